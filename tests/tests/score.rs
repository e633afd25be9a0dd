//! `penstock score` on a dataset of 200 lines, undisturbed and killed twice on the way.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{penstock, repository};

const LINES: usize = 200;

/// 200 lines over the golden prompts, of different lengths, answers of up to `max_tokens`.
fn dataset(path: &Path, max_tokens: u32) {
    let golden = std::fs::read_to_string(repository().join("fixtures/golden/prompts.jsonl")).unwrap();
    let prompts: Vec<Value> = golden.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = (0..LINES).map(|idx| {
        let prompt = &prompts[idx % prompts.len()];
        let limit = 1 + (idx as u32 * 7) % max_tokens;
        format!(
            "{}\n",
            json!({"custom_id": format!("line {idx}"), "messages": prompt["messages"], "max_tokens": limit, "temperature": 0})
        )
    });
    std::fs::write(path, lines.collect::<String>()).unwrap();
}

fn score(input: &Path, output: &Path) -> Child {
    let mut command = penstock();
    command.arg("score").arg(input).arg("-o").arg(output);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The answers by name: what each line says, without ids and times.
fn answers(output: &Path) -> BTreeMap<String, (Value, Value, Value)> {
    let text = std::fs::read_to_string(output).unwrap();
    let mut answers = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["response"]["status_code"], 200, "{line}");
        assert_eq!(line["release"].as_str().map(str::len), Some(64));
        let body = &line["response"]["body"];
        let choice = &body["choices"][0];
        let mut usage = body["usage"].clone();
        // Another run shares other beginnings of prompts.
        usage.as_object_mut().unwrap().remove("prompt_tokens_details");
        let answer = (choice["message"]["content"].clone(), choice["finish_reason"].clone(), usage);
        let name = line["custom_id"].as_str().unwrap().to_owned();
        assert!(answers.insert(name.clone(), answer).is_none(), "{name} is there twice");
    }
    answers
}

fn n_lines(path: &Path) -> usize {
    std::fs::read(path).map(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(0)
}

fn ends_well(mut child: Child) {
    let status = child.wait().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(status.success(), "{said}");
}

#[test]
fn killed_twice_it_ends_with_the_same_lines_as_an_undisturbed_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    dataset(&at("in.jsonl"), 24);

    let begin = Instant::now();
    ends_well(score(&at("in.jsonl"), &at("undisturbed.jsonl")));
    println!("{LINES} lines undisturbed: {:.1} s", begin.elapsed().as_secs_f64());
    let expected = answers(&at("undisturbed.jsonl"));
    assert_eq!(expected.len(), LINES);

    let output = at("killed.jsonl");
    for lines_at_kill in [40, 120] {
        let mut child = score(&at("in.jsonl"), &output);
        let patience = Instant::now() + Duration::from_secs(300);
        while n_lines(&output) < lines_at_kill {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
            assert!(Instant::now() < patience, "no progress: {} lines", n_lines(&output));
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // As a kill in the middle of a write leaves it.
    let mut torn = std::fs::OpenOptions::new().append(true).open(&output).unwrap();
    std::io::Write::write_all(&mut torn, b"{\"id\":\"batch_req_torn").unwrap();
    ends_well(score(&at("in.jsonl"), &output));
    assert_eq!(answers(&output), expected);
    let order: Vec<u64> = std::fs::read_to_string(&output)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["line"].as_u64().unwrap())
        .collect();
    assert_eq!(order, (1..=LINES as u64).collect::<Vec<_>>(), "lines come in the order of the input");
    assert!(!at("killed.jsonl.penstock").exists(), "a finished run leaves nothing behind");
}

#[test]
fn bad_lines_are_answered_with_their_number_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let long = "word ".repeat(40_000);
    let lines: Vec<(Vec<u8>, Option<u64>, &str)> = vec![
        (br#"{"prompt": "1 + 1 =", "max_tokens": 2, "temperature": 0}"#.to_vec(), Some(200), ""),
        (b"not json".to_vec(), None, "line 2"),
        (b"{\"prompt\": \"\xff\xfe\"}".to_vec(), None, "line 3"),
        (br#"{"prompt": "x", "temperature": 9}"#.to_vec(), Some(400), "temperature"),
        (br#"{"prompt": "x", "tool_choice": "required"}"#.to_vec(), Some(400), "tool_choice"),
        (br#"{"messages": []}"#.to_vec(), Some(400), "messages"),
        (br#"{"messages": [{"role": "wizard", "content": "x"}]}"#.to_vec(), Some(400), "messages[0].role"),
        (format!("{{\"prompt\": \"{long}\"}}").into_bytes(), Some(400), "context"),
        (br#"{"prompt": "x", "model": "gpt-4o"}"#.to_vec(), Some(404), "model"),
        (format!("{{\"prompt\": \"{}\"}}", "x".repeat(1_100_000)).into_bytes(), None, "longer than"),
        (br#"{"prompt": "2 + 2 =", "max_tokens": 2, "temperature": 0}"#.to_vec(), Some(200), ""),
    ];
    let mut bytes = Vec::new();
    for (line, _, _) in &lines {
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
    }
    std::fs::write(&input, bytes).unwrap();
    let status = score(&input, &output).wait().unwrap();
    assert_eq!(status.code(), Some(1), "not every line succeeded");
    let text = std::fs::read_to_string(&output).unwrap();
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), lines.len());
    for (idx, (answer, (_, status, says))) in answers.iter().zip(&lines).enumerate() {
        assert_eq!(answer["line"], idx as u64 + 1);
        assert_eq!(answer["response"]["status_code"].as_u64(), *status, "{answer}");
        assert!(answer.to_string().contains(says), "line {}: {answer}", idx + 1);
    }
}

#[test]
fn csv_goes_through_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.csv"), folder.path().join("out.jsonl"));
    let csv = "\u{feff}custom_id,text,n\na,\"two, with a comma\",1\nb,\"a \"\"quoted\"\" word\nand a line break\",2\nc,too,many,columns\nd,last,4\n";
    std::fs::write(&input, csv).unwrap();
    let mut command = penstock();
    command.arg("score").arg(&input).arg("-o").arg(&output);
    command.args(["--template", "Repeat: {{text}} {{ n }}", "--max-tokens", "3", "--temperature", "0", "--chat"]);
    let status = command.stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(1), "one record has too many columns");
    let text = std::fs::read_to_string(&output).unwrap();
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = answers.iter().map(|answer| answer["custom_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "line-5", "d"]);
    assert!(answers[2]["error"]["message"].as_str().unwrap().contains("4 columns and the header 3"), "{}", answers[2]);
    let missing = penstock().arg("score").arg(&input).arg("-o").arg(folder.path().join("x")).output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("--template"));
}

#[test]
fn the_dataset_is_never_its_own_output() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("questions.jsonl");
    let lines = "{\"prompt\": \"Hi\", \"max_tokens\": 1}\n";
    std::fs::write(&input, lines).unwrap();
    let link = folder.path().join("link.jsonl");
    std::os::unix::fs::symlink(&input, &link).unwrap();
    for output in [&input, &link] {
        let refused = penstock().arg("score").arg(&input).arg("-o").arg(output).arg("--overwrite").output().unwrap();
        assert!(!refused.status.success());
        let message = String::from_utf8_lossy(&refused.stderr);
        assert!(message.contains("is the dataset itself"), "{message}");
        assert_eq!(std::fs::read_to_string(&input).unwrap(), lines);
    }
}

#[test]
fn an_output_that_another_run_writes_to_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    std::fs::write(&input, "{\"prompt\": \"Hi\", \"max_tokens\": 1}\n").unwrap();
    let half = "{\"id\":\"batch_req_job_1\",\"cus";
    std::fs::write(&output, half).unwrap();
    let other = std::fs::File::options().write(true).open(&output).unwrap();
    other.try_lock().unwrap();
    let run = |more: &[&str]| penstock().arg("score").arg(&input).arg("-o").arg(&output).args(more).output().unwrap();
    for more in [&[][..], &["--overwrite"]] {
        let refused = run(more);
        let message = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && message.contains("another penstock is writing to"), "{message}");
        assert_eq!(std::fs::read_to_string(&output).unwrap(), half);
        assert!(!folder.path().join("out.jsonl.penstock").exists());
    }
    drop(other);
    let ran = run(&["--overwrite"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(n_lines(&output), 1);
}
