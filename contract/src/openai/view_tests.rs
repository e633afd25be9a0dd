//! Wire shapes against JSON written by hand.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::native::{JobList, job_object};
use super::stream::Chunks;
use super::views::{chat_body, completion_body, replay, result_body};
use crate::event::TokenEvent;
use crate::ids::{Class, Fingerprint, JobId, TenantId};
use crate::job::Job;
use crate::life::JobState;
use crate::outcome::{ErrorCode, FinishReason, JobError, Usage};
use crate::reading::{CallSyntax, Reading, ThoughtSyntax, call_id};
use crate::record::{AttemptTimings, ChoiceRecord, Record, TokenLogprob, TopLogprob, TrajectoryMode};
use crate::request::{Input, Kind, Message, Prompt, Request, Role, Sampling};
use crate::time::Timestamp;
use crate::tools::{Tool, ToolChoice, ToolUse};

const JOB: &str = "job_0193f0c0d0e070008000000000000001";
const ACCEPTED: Timestamp = Timestamp(1_764_439_454_120);

fn logprob(token: &str, value: f32, top: &[(&str, f32)]) -> TokenLogprob {
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    TokenLogprob {
        token: token.into(),
        bytes: bytes(token),
        logprob: value,
        top: top.iter().map(|(t, v)| TopLogprob { token: (*t).into(), bytes: bytes(t), logprob: *v }).collect(),
    }
}

/// Three tokens `Hé`, `llo`, end; the second token's text is held back and comes with the last one.
fn record(kind: Kind, with_logprobs: bool) -> Record {
    let input = match kind {
        Kind::Chat => Input::Chat(vec![Message::of(Role::User, "Hi")]),
        Kind::Completion => Input::Completion(Prompt::Text("Hi".into())),
    };
    let logprobs = with_logprobs.then(|| {
        vec![
            logprob("Hé", -0.5, &[("Hé", -0.5), ("Ho", -1.25)]),
            logprob("llo", -2.0, &[("x", -0.25), ("x", -0.75)]),
            TokenLogprob { bytes: None, ..logprob("<end>", -0.125, &[]) },
        ]
    });
    Record {
        v: 1,
        job: JOB.parse().unwrap(),
        attempt: 1,
        release: Fingerprint("abcdef0123456789abcdef".into()),
        kind,
        request: Request {
            model: "m".into(),
            input,
            sampling: Sampling::default(),
            max_tokens: Some(8),
            min_tokens: 0,
            ignore_eos: false,
            stop: vec![],
            include_stop: false,
            stop_token_ids: vec![],
            logprobs: None,
            constraint: None,
            tools: None,
        },
        seed: 7,
        prompt_text: "Hi".into(),
        prompt_ids: vec![1, 2],
        choices: vec![ChoiceRecord {
            output_ids: vec![10, 11, 12],
            text: "Héllo".into(),
            ends: vec![3, 3, 6],
            logprobs,
            finish_reason: FinishReason::Stop,
            stop_reason: None,
        }],
        usage: Usage { prompt_tokens: 2, cached_tokens: 0, output_tokens: 3 },
        timings: AttemptTimings::default(),
        reading: Reading::default(),
    }
}

fn usage() -> Value {
    json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}})
}

#[test]
fn a_chat_has_the_documented_shape() {
    let body = serde_json::to_value(chat_body(&record(Kind::Chat, true), ACCEPTED)).unwrap();
    let expected = json!({
        "id": format!("chatcmpl-{JOB}"), "object": "chat.completion", "created": 1764439454, "model": "m",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "Héllo", "refusal": null},
            "logprobs": {"content": [
                {"token": "Hé", "logprob": -0.5, "bytes": [72, 195, 169], "top_logprobs": [
                    {"token": "Hé", "logprob": -0.5, "bytes": [72, 195, 169]},
                    {"token": "Ho", "logprob": -1.25, "bytes": [72, 111]},
                ]},
                {"token": "llo", "logprob": -2.0, "bytes": [108, 108, 111], "top_logprobs": [
                    {"token": "x", "logprob": -0.25, "bytes": [120]},
                    {"token": "x", "logprob": -0.75, "bytes": [120]},
                ]},
                {"token": "<end>", "logprob": -0.125, "bytes": null, "top_logprobs": []},
            ], "refusal": null},
            "finish_reason": "stop",
        }],
        "usage": usage(), "system_fingerprint": "abcdef012345",
    });
    assert_eq!(body, expected);
    let plain = serde_json::to_value(chat_body(&record(Kind::Chat, false), ACCEPTED)).unwrap();
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    assert!(plain["choices"][0].as_object().unwrap().contains_key("logprobs"));
}

#[test]
fn a_completion_has_the_documented_shape() {
    let mut record = record(Kind::Completion, true);
    record.choices[0].stop_reason = Some(json!("END"));
    let body = serde_json::to_value(completion_body(&record, ACCEPTED)).unwrap();
    let expected = json!({
        "id": format!("cmpl-{JOB}"), "object": "text_completion", "created": 1764439454, "model": "m",
        "choices": [{
            "text": "Héllo", "index": 0,
            "logprobs": {
                "tokens": ["Hé", "llo", "<end>"],
                "token_logprobs": [-0.5, -2.0, -0.125],
                "top_logprobs": [{"Hé": -0.5, "Ho": -1.25}, {"llo": -2.0, "x": -0.25}, {"<end>": -0.125}],
                "text_offset": [0, 2, 2],
            },
            "finish_reason": "stop", "stop_reason": "END",
        }],
        "usage": usage(), "system_fingerprint": "abcdef012345",
    });
    assert_eq!(body, expected);
    assert_eq!(serde_json::to_value(result_body(&record, ACCEPTED)).unwrap(), expected);
}

#[test]
fn log_probabilities_are_written_as_short_as_they_are() {
    let mut record = record(Kind::Completion, true);
    if let Some(logprobs) = &mut record.choices[0].logprobs {
        logprobs[0].logprob = -0.1;
    }
    let text = serde_json::to_string(&completion_body(&record, ACCEPTED)).unwrap();
    assert!(text.contains("\"token_logprobs\":[-0.1,-2.0,-0.125]"), "{text}");
}

#[test]
fn chat_chunks_are_byte_exact() {
    let record = record(Kind::Chat, false);
    let mut chunks = Chunks::new(Kind::Chat, &record.job, ACCEPTED, "m", &record.release, true);
    let head = format!(
        "{{\"id\":\"chatcmpl-{JOB}\",\"object\":\"chat.completion.chunk\",\"created\":1764439454,\"model\":\"m\",\
         \"system_fingerprint\":\"abcdef012345\",\"choices\":"
    );
    let mut lines = vec![chunks.opening(0).unwrap().to_json()];
    lines.extend(replay(&record, 0).unwrap().iter().filter_map(|token| chunks.token(token)).map(|c| c.to_json()));
    lines.push(chunks.closing(0, FinishReason::Stop, None).to_json());
    lines.push(chunks.usage(record.usage).unwrap().to_json());
    let choice = |delta: &str, reason: &str| {
        format!(
            "{head}[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason}}}],\"usage\":null}}"
        )
    };
    let expected = [
        choice(r#"{"role":"assistant","content":""}"#, "null"),
        choice(r#"{"content":"Hé"}"#, "null"),
        choice(r#"{"content":"llo"}"#, "null"),
        choice("{}", "\"stop\""),
        format!(
            "{head}[],\"usage\":{{\"prompt_tokens\":2,\"completion_tokens\":3,\"total_tokens\":5,\
             \"prompt_tokens_details\":{{\"cached_tokens\":0}}}}}}"
        ),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn without_include_usage_there_is_none() {
    let record = record(Kind::Chat, false);
    let chunks = Chunks::new(Kind::Chat, &record.job, ACCEPTED, "m", &record.release, false);
    assert!(chunks.usage(record.usage).is_none());
    assert!(!chunks.opening(0).unwrap().to_json().contains("usage"));
}

#[test]
fn completion_chunks_join_to_the_whole() {
    let record = record(Kind::Completion, true);
    let mut chunks = Chunks::new(Kind::Completion, &record.job, ACCEPTED, "m", &record.release, false);
    assert!(chunks.opening(0).is_none());
    let parts: Vec<Value> = replay(&record, 0)
        .unwrap()
        .iter()
        .filter_map(|token| chunks.token(token))
        .map(|chunk| serde_json::to_value(chunk).unwrap())
        .collect();
    // The second token shows nothing, and still has its log-probability.
    assert_eq!(parts.len(), 3);
    let whole = serde_json::to_value(completion_body(&record, ACCEPTED)).unwrap();
    let text: String = parts.iter().map(|part| part["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let joined: Vec<Value> =
            parts.iter().flat_map(|part| part["choices"][0]["logprobs"][list].as_array().unwrap().clone()).collect();
        assert_eq!(Value::from(joined), whole["choices"][0]["logprobs"][list], "{list}");
    }
}

#[test]
fn a_record_replays_from_every_position() {
    let record = record(Kind::Chat, false);
    let event = |position, id, text: &str| TokenEvent { position, id, choice: 0, text: text.into(), logprob: None };
    let whole = [event(1, 10, "Hé"), event(2, 11, ""), event(3, 12, "llo")];
    for after in 0..=3u32 {
        assert_eq!(replay(&record, after).unwrap(), whole[after as usize..]);
    }
    let mut damaged = record.clone();
    damaged.choices[0].ends = vec![3, 2, 6];
    assert_eq!(replay(&damaged, 0).unwrap_err().position, 2);
    damaged.choices[0].ends = vec![2, 3, 6]; // inside `é`
    assert_eq!(replay(&damaged, 0).unwrap_err().position, 1);
    damaged.choices[0].ends = vec![3, 3];
    assert_eq!(replay(&damaged, 0).unwrap_err().position, 3);
}

/// An answer with text and two calls, in tokens of a few characters.
fn record_with_calls() -> Record {
    let mut record = record(Kind::Chat, false);
    record.reading = Reading { calls: Some(CallSyntax::Hermes), thoughts: Some(ThoughtSyntax::Tagged) };
    let tool = |name: &str| Tool { name: name.into(), description: None, parameters: None, strict: false };
    let offered = vec![tool("f"), tool("g")];
    record.request.tools = Some(ToolUse { offered, choice: ToolChoice::Auto, parallel: true });
    let text = "<think>\nHm.\n</think>\n\nSo.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"\u{e9}\"}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    let ends: Vec<u32> =
        text.char_indices().step_by(3).skip(1).map(|(at, _)| at as u32).chain([text.len() as u32]).collect();
    record.choices = vec![ChoiceRecord {
        output_ids: (0..ends.len() as u32).collect(),
        text: text.into(),
        ends,
        finish_reason: FinishReason::ToolCalls,
        ..record.choices[0].clone()
    }];
    record
}

#[test]
fn a_chat_with_calls_has_the_documented_shape() {
    let record = record_with_calls();
    let [first, second] = [0, 1].map(|nth| call_id(CallSyntax::Hermes, &record.job, 0, nth));
    let calls = json!([
        {"id": first, "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"\u{e9}\"}"}},
        {"id": second, "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]);
    let body = serde_json::to_value(chat_body(&record, ACCEPTED)).unwrap();
    let choice = &body["choices"][0];
    let message = json!({
        "role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": calls, "refusal": null,
    });
    assert_eq!((&choice["message"], &choice["finish_reason"]), (&message, &json!("tool_calls")));
    let mut silent = record.clone();
    silent.choices[0].text = "<tool_call>{\"name\": \"f\"}</tool_call>".into();
    let body = serde_json::to_value(chat_body(&silent, ACCEPTED)).unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], Value::Null);
    silent.choices[0].text = String::new();
    let body = serde_json::to_value(chat_body(&silent, ACCEPTED)).unwrap();
    assert_eq!(body["choices"][0]["message"], json!({"role": "assistant", "content": "", "refusal": null}));
}

#[test]
fn chunks_of_calls_join_to_the_whole() {
    let record = record_with_calls();
    let whole = serde_json::to_value(chat_body(&record, ACCEPTED)).unwrap();
    let message = &whole["choices"][0]["message"];
    for cut in 0..=record.choices[0].text.len() {
        let mut record = record.clone();
        let choice = &mut record.choices[0];
        if !choice.text.is_char_boundary(cut) {
            continue;
        }
        // Two tokens; and, at the last cut, those of the record.
        if cut < choice.text.len() {
            (choice.output_ids, choice.ends) = (vec![1, 2], vec![cut as u32, choice.text.len() as u32]);
        }
        let names = vec!["f".to_owned(), "g".to_owned()];
        let mut chunks = Chunks::new(Kind::Chat, &record.job, ACCEPTED, "m", &record.release, false);
        chunks = chunks.reading(record.reading, names);
        let tokens = replay(&record, 0).unwrap();
        let mut told: Vec<_> = tokens.iter().filter_map(|token| chunks.token(token)).collect();
        told.extend(chunks.rest(0));
        let deltas: Vec<Value> =
            told.into_iter().map(|chunk| serde_json::to_value(chunk).unwrap()["choices"][0]["delta"].clone()).collect();
        let joined = |field: &str| -> String { deltas.iter().filter_map(|delta| delta[field].as_str()).collect() };
        assert_eq!((joined("content").as_str(), joined("reasoning_content").as_str()), ("So.", "Hm."), "cut at {cut}");
        let calls: Vec<Value> =
            deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten().cloned().collect();
        let indexes: Vec<_> = calls.iter().map(|call| call["index"].as_u64()).collect();
        assert_eq!(indexes, [Some(0), Some(1)]);
        for (call, expected) in calls.iter().zip(message["tool_calls"].as_array().unwrap()) {
            for field in ["id", "type", "function"] {
                assert_eq!(call[field], expected[field], "cut at {cut}");
            }
        }
        assert!(chunks.rest(0).is_none(), "the rest is told once");
    }
}

/// Three answers of 3, 1 and 2 tokens: the first token of each, the second of the first and third, the third of the first.
fn record_of_three(kind: Kind) -> Record {
    let mut record = record(kind, false);
    record.request.sampling.n = 3;
    let short = |ids: &[u32], text: &str, ends: &[u32], reason| ChoiceRecord {
        output_ids: ids.to_vec(),
        text: text.into(),
        ends: ends.to_vec(),
        finish_reason: reason,
        ..record.choices[0].clone()
    };
    let others = [short(&[20], "x", &[1], FinishReason::Length), short(&[30, 31], "yz", &[1, 2], FinishReason::Stop)];
    record.choices.extend(others);
    record
}

#[test]
fn several_answers_are_streamed_in_turn() {
    let record = record_of_three(Kind::Completion);
    assert_eq!(record.streamed_ids(), [10, 20, 30, 11, 31, 12]);
    let tokens = replay(&record, 0).unwrap();
    let seen: Vec<_> = tokens.iter().map(|t| (t.position, t.choice, t.id, t.text.as_str())).collect();
    let expected =
        [(1, 0, 10, "Hé"), (2, 1, 20, "x"), (3, 2, 30, "y"), (4, 0, 11, ""), (5, 2, 31, "z"), (6, 0, 12, "llo")];
    assert_eq!(seen, expected);
    assert_eq!(replay(&record, 4).unwrap(), tokens[4..]);
    // `printf '\x0a\0\0\0\x14\0\0\0\x1e\0\0\0\x0b\0\0\0\x1f\0\0\0\x0c\0\0\0' | sha256sum`
    assert_eq!(record.output_hash(), "9bcac84f127b85426c9b39c97c2390d4c8425936bdff1bca56591e3549f97971");
}

#[test]
fn chunks_name_their_answer() {
    let record = record_of_three(Kind::Chat);
    let mut chunks = Chunks::new(Kind::Chat, &record.job, ACCEPTED, "m", &record.release, false);
    let choice = |chunk: super::stream::Chunk| serde_json::to_value(chunk).unwrap()["choices"][0].clone();
    let opening = choice(chunks.opening(2).unwrap());
    assert_eq!((&opening["index"], &opening["delta"]["role"]), (&json!(2), &json!("assistant")));
    let tokens = replay(&record, 0).unwrap();
    let seen: Vec<_> = tokens.iter().filter_map(|token| chunks.token(token)).map(choice).collect();
    let indexes: Vec<_> = seen.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 2, 0], "what shows nothing is not sent");
    let joined = |index| -> String {
        let own = seen.iter().filter(|choice| choice["index"] == index);
        own.map(|choice| choice["delta"]["content"].as_str().unwrap()).collect()
    };
    assert_eq!([joined(0), joined(1), joined(2)], ["Héllo", "x", "yz"]);
    let closing = choice(chunks.closing(1, FinishReason::Length, None));
    assert_eq!((&closing["index"], &closing["finish_reason"]), (&json!(1), &json!("length")));
    let whole = serde_json::to_value(chat_body(&record, ACCEPTED)).unwrap();
    let texts: Vec<_> = (0..3).map(|nth| &whole["choices"][nth]["message"]["content"]).collect();
    assert_eq!(texts, ["Héllo", "x", "yz"]);
    assert_eq!(whole["choices"][2]["index"], 2);
}

#[test]
fn offsets_count_in_each_answer_by_itself() {
    let mut record = record_of_three(Kind::Completion);
    for choice in &mut record.choices {
        choice.logprobs = Some(choice.output_ids.iter().map(|_| logprob("t", -1.0, &[])).collect());
    }
    let mut chunks = Chunks::new(Kind::Completion, &record.job, ACCEPTED, "m", &record.release, false);
    let whole = serde_json::to_value(completion_body(&record, ACCEPTED)).unwrap();
    let mut offsets: Vec<Vec<Value>> = vec![Vec::new(); 3];
    for token in replay(&record, 0).unwrap() {
        let chunk = serde_json::to_value(chunks.token(&token).unwrap()).unwrap();
        let choice = &chunk["choices"][0];
        let of = &mut offsets[choice["index"].as_u64().unwrap() as usize];
        of.extend(choice["logprobs"]["text_offset"].as_array().unwrap().clone());
    }
    assert_eq!(offsets, [vec![json!(0), json!(2), json!(2)], vec![json!(0)], vec![json!(0), json!(1)]]);
    for (nth, own) in offsets.into_iter().enumerate() {
        assert_eq!(whole["choices"][nth]["logprobs"]["text_offset"], Value::from(own));
    }
}

fn job() -> Job {
    Job {
        id: JOB.parse::<JobId>().unwrap(),
        tenant: TenantId::local(),
        release: Fingerprint("abcdef0123456789".into()),
        route: "m".into(),
        class: Class::Bulk,
        kind: Kind::Chat,
        state: JobState::Running,
        attempt: 2,
        errors: 1,
        losses: 0,
        seed: u64::MAX,
        metadata: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        batch_line: None,
        sequence_key: Some("s".into()),
        on_failure: crate::sequence::OnFailure::Block,
        error: Some(JobError::new(ErrorCode::EngineFailed, "a step failed")),
        history: vec![json!({"attempt": 1})],
        usage: Usage::default(),
        accepted_at: ACCEPTED,
        started_at: Some(Timestamp(ACCEPTED.0 + 30)),
        first_token_at: None,
        finished_at: None,
        deadline: Timestamp(ACCEPTED.0 + 3_600_000),
        record: None,
        trajectory: TrajectoryMode::Full,
        segment: None,
        keep: None,
        result_expires_at: None,
        emptied_at: None,
        now: ACCEPTED,
    }
}

#[test]
fn a_job_has_the_documented_shape() {
    let body = serde_json::to_value(job_object(&job(), None)).unwrap();
    let expected = json!({
        "id": JOB, "object": "job", "status": "running", "class": "bulk", "type": "chat", "model": "m",
        "release": "abcdef0123456789",
        "created_at": "2025-11-29T18:04:14.12Z", "started_at": "2025-11-29T18:04:14.15Z",
        "first_token_at": null, "finished_at": null, "expires_at": "2025-11-29T19:04:14.12Z",
        "keep_seconds": null, "result_expires_at": null, "emptied_at": null,
        "attempt": 2, "errors": 1, "losses": 0, "seed": -1, "metadata": {"k": "v"},
        "sequence_key": "s", "on_failure": "block", "usage": null,
        "error": {"code": "engine_failed", "message": "a step failed", "param": null},
        "history": [{"attempt": 1}], "result": null,
        "timings": {"queue_wait_ms": 30, "ttft_ms": null, "tpot_ms": null, "total_ms": null},
        "urls": {
            "get": format!("/v1/jobs/{JOB}"),
            "events": format!("/v1/jobs/{JOB}/events"),
            "cancel": format!("/v1/jobs/{JOB}/cancel"),
        },
    });
    assert_eq!(body, expected);
}

#[test]
fn an_ended_job_carries_its_result_and_times() {
    let record = record(Kind::Chat, false);
    let ended = Job {
        state: JobState::Succeeded,
        error: None,
        usage: record.usage,
        first_token_at: Some(Timestamp(ACCEPTED.0 + 100)),
        finished_at: Some(Timestamp(ACCEPTED.0 + 131)),
        keep: Some(std::time::Duration::from_secs(60)),
        result_expires_at: Some(Timestamp(ACCEPTED.0 + 60_131)),
        ..job()
    };
    let body = serde_json::to_value(job_object(&ended, Some(&record))).unwrap();
    assert_eq!(body["result"]["choices"][0]["message"]["content"], "Héllo");
    assert_eq!(body["usage"], usage());
    assert_eq!((&body["keep_seconds"], &body["result_expires_at"]), (&json!(60), &json!("2025-11-29T18:05:14.251Z")));
    // Three tokens: two gaps in 31 ms.
    assert_eq!(body["timings"], json!({"queue_wait_ms": 30, "ttft_ms": 100, "tpot_ms": 15.5, "total_ms": 131}));
}

#[test]
fn a_page_names_its_ends() {
    let empty = serde_json::to_value(JobList::new(&[], false)).unwrap();
    assert_eq!(empty, json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false}));
    let page = serde_json::to_value(JobList::new(&[job()], true)).unwrap();
    assert_eq!((&page["first_id"], &page["last_id"]), (&json!(JOB), &json!(JOB)));
}
