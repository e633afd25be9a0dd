//! `penstock score --choices` against the figures that transformers give for the same weights, undisturbed and killed.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::{penstock, repository};

fn score(input: &Path, output: &Path, more: &[&str]) -> std::process::Command {
    let mut command = penstock();
    command.arg("score").arg(input).arg("-o").arg(output).args(["--model", &tiny_model()]).args(more);
    command.stdin(Stdio::null());
    command
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_log_probabilities_of_choices_are_those_of_transformers() {
    let golden = std::fs::read_to_string(repository().join("fixtures/golden/tiny_choices.jsonl")).unwrap();
    let golden: Vec<Value> = golden.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let line = |nth: usize, record: &Value| {
        // Of every other line the last choice is called the right one, of the rest the first.
        let label = if nth.is_multiple_of(2) { record["choices"].as_array().unwrap().len() - 1 } else { 0 };
        let parity = if nth.is_multiple_of(2) { "even" } else { "odd" };
        json!({"custom_id": format!("n{nth}"), "prompt": record["prompt"], "choices": record["choices"], "gold": label, "parity": parity})
    };
    let bad = json!({"prompt": "x", "choices": ["one"]});
    let text: String = golden
        .iter()
        .enumerate()
        .map(|(nth, record)| line(nth, record))
        .chain([bad])
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&input, text).unwrap();
    let options = ["--choices", "--label", "gold", "--slice", "parity"];
    let done = score(&input, &output, &options).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "one line is refused: {}", said(&done));
    let answers = lines(&output);
    assert_eq!(answers.len(), golden.len() + 1);
    assert_eq!(answers[golden.len()]["response"]["body"]["error"]["param"], "choices");
    let (mut right, mut by_parity) = (0, [0; 2]);
    for (nth, (answer, record)) in answers.iter().zip(&golden).enumerate() {
        let body = &answer["response"]["body"];
        let scores: Vec<f64> =
            body["choices"].as_array().unwrap().iter().map(|choice| choice["logprob"].as_f64().unwrap()).collect();
        let expected: Vec<f64> = serde_json::from_value(record["logprobs"].clone()).unwrap();
        let n_tokens: Vec<f64> = serde_json::from_value(record["n_tokens"].clone()).unwrap();
        for (at, (ours, theirs)) in scores.iter().zip(&expected).enumerate() {
            assert_eq!(body["choices"][at]["n_tokens"].as_f64(), Some(n_tokens[at]), "{record}");
            assert!((ours - theirs).abs() < 0.06 * n_tokens[at] + 0.05, "{ours} and {theirs} for {record}");
        }
        let chosen = body["chosen"].as_u64().unwrap() as usize;
        assert!(scores.iter().all(|score| *score <= scores[chosen]));
        let is_right = body["correct"].as_bool().unwrap();
        right += usize::from(is_right);
        by_parity[nth % 2] += usize::from(is_right);
    }
    let report = said(&done);
    let n = golden.len();
    assert!(report.contains(&format!("({right} of {n})")), "{report}");
    assert!(
        report.contains(&format!(
            "parity odd: {:.4} ({} of {})",
            by_parity[1] as f64 / (n / 2) as f64,
            by_parity[1],
            n / 2
        )),
        "{report}"
    );
}

#[test]
fn a_killed_run_goes_on_and_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.csv");
    let rows = (0..300)
        .map(|nth| format!("\"row {nth} {}\",{},{}\n", "word ".repeat(nth % 40), ["no", "yes"][nth % 2], nth % 3));
    std::fs::write(&input, "text,label,slice\n".to_owned() + &rows.collect::<String>()).unwrap();
    let options = ["--template", "{{text}}:", "--slice", "slice", "--choices", " yes", " no"];
    let (whole, killed) = (folder.path().join("whole.jsonl"), folder.path().join("killed.jsonl"));
    let done = score(&input, &whole, &options).output().unwrap();
    assert!(done.status.success() && said(&done).contains("of 300)"), "{}", said(&done));
    let mut child = score(&input, &killed, &options).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while std::fs::read(&killed).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count()) < 40 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no lines came");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let n_before = lines_whole(&killed);
    let done = score(&input, &killed, &options).output().unwrap();
    assert!(done.status.success() && said(&done).contains("going on after"), "{}", said(&done));
    assert!(n_before < 300, "it was killed before its end");
    let bodies = |path: &Path| lines(path).into_iter().map(|line| line["response"]["body"].clone()).collect::<Vec<_>>();
    assert_eq!(bodies(&killed), bodies(&whole));
    // Another command does not go on with it.
    let other = score(&input, &whole, &["--template", "{{text}}:", "--choices", "a", "b"]).output().unwrap();
    assert!(!other.status.success() && said(&other).contains("--overwrite"), "{}", said(&other));
}

fn lines_whole(path: &Path) -> usize {
    std::fs::read(path).unwrap().iter().filter(|byte| **byte == b'\n').count()
}
