//! Streams: exact bytes, resuming, attempts that repeat one another, and a bus that forgot.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use backends::memory_bus::BusLimits;
use contract::openai::views::replay;
use contract::record::output_hash;
use contract::{ChoiceRecord, Class, FinishReason, JobEventBody, JobId, JobStore, Leased, Record, RecordLocation};
use serde_json::{Value, json};

use crate::support::{Choices, World, chat, events, model, record, request, succeeded};

const CHAT: &str = "/v1/chat/completions";
/// The second token shows nothing; the last brings what was held back.
const SCRIPT: [(u32, &str); 4] = [(10, "Hé"), (11, ""), (12, "llo"), (13, "!")];

fn resume(job: JobId, after: u32) -> Request<Body> {
    let builder = Request::get(format!("/v1/jobs/{job}/events")).header("last-event-id", after.to_string());
    builder.body(Body::empty()).unwrap()
}

/// (position, id, text) of the token events.
fn tokens(events: &[(String, String, String)]) -> Vec<(u32, u32, String)> {
    let tokens = events.iter().filter(|(name, ..)| name == "token");
    tokens
        .map(|(_, id, data)| {
            let data: Value = serde_json::from_str(data).unwrap();
            let position: u32 = id.parse().unwrap();
            assert_eq!(data["position"], position);
            let token = u32::try_from(data["token_id"].as_u64().unwrap()).unwrap();
            (position, token, data["text"].as_str().unwrap().to_owned())
        })
        .collect()
}

fn script_tokens(after: u32) -> Vec<(u32, u32, String)> {
    let all = (1u32..).zip(SCRIPT).map(|(position, (id, text))| (position, id, text.to_owned()));
    all.filter(|(position, ..)| *position > after).collect()
}

#[tokio::test]
async fn a_streamed_chat_is_byte_exact() {
    let world = World::new().await;
    let mut body = chat(true);
    body["stream_options"] = json!({"include_usage": true});
    let calling = world.start(request(CHAT, &[], &body));
    let leased = world.lease(Class::Interactive).await;
    world.tokens(&leased.lease, &SCRIPT, 1..=4).await;
    world.succeed(&leased, &SCRIPT).await;
    let answer = calling.await.unwrap();
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let job = leased.lease.job;
    let created = world.store.get(&contract::TenantId::local(), &job).await.unwrap().unwrap().accepted_at.0 / 1000;
    let head = format!(
        "data: {{\"id\":\"chatcmpl-{job}\",\"object\":\"chat.completion.chunk\",\"created\":{created},\
         \"model\":\"tiny\",\"system_fingerprint\":\"{}\",\"choices\":",
        model().release.short()
    );
    let chunk = |delta: &str, reason: &str| {
        format!(
            "{head}[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason}}}],\"usage\":null}}\n\n"
        )
    };
    let expected = [
        chunk("{\"role\":\"assistant\",\"content\":\"\"}", "null"),
        chunk("{\"content\":\"Hé\"}", "null"),
        chunk("{\"content\":\"llo\"}", "null"),
        chunk("{\"content\":\"!\"}", "null"),
        chunk("{}", "\"stop\""),
        format!(
            "{head}[],\"usage\":{{\"prompt_tokens\":2,\"completion_tokens\":4,\"total_tokens\":6,\
             \"prompt_tokens_details\":{{\"cached_tokens\":0}}}}}}\n\n"
        ),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(answer.text, expected.concat());
}

#[tokio::test]
async fn a_stream_without_usage_and_one_that_is_replayed_show_the_same_text() {
    let world = World::new().await;
    let mut body = json!({"model": "tiny", "prompt": "Hi", "stream": true});
    let calling = world.start(request("/v1/completions", &[("idempotency-key", "k")], &body));
    let leased = world.lease(Class::Interactive).await;
    world.tokens(&leased.lease, &SCRIPT, 1..=4).await;
    world.succeed(&leased, &SCRIPT).await;
    let first = calling.await.unwrap();
    assert!(!first.text.contains("usage") && first.text.ends_with("data: [DONE]\n\n"), "{}", first.text);
    let texts = |text: &str| -> Vec<String> {
        let chunks = events(text).into_iter().filter(|event| event.2 != "[DONE]");
        let choice = |data: &str| serde_json::from_str::<Value>(data).unwrap()["choices"][0].clone();
        chunks.map(|event| choice(&event.2)["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&first.text), ["Hé", "llo", "!", ""]);
    // The same call again: from the record now.
    let again = world.post_with("/v1/completions", &[("idempotency-key", "k")], &body).await;
    assert_eq!((again.text, again.headers.contains_key("idempotency-replayed")), (first.text, true));
    body["stream_options"] = json!({"include_usage": true});
    assert_eq!(world.post_with("/v1/completions", &[("idempotency-key", "k")], &body).await.status.as_u16(), 422);
}

#[tokio::test]
async fn a_stream_sends_its_head_after_a_while_and_pings_while_it_waits() {
    let mut choices = Choices::default();
    choices.limits.first_event = Duration::from_millis(30);
    choices.limits.ping = Duration::from_millis(30);
    let world = World::with(choices).await;
    let calling = world.start(request(CHAT, &[], &chat(true)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let leased = world.lease(Class::Interactive).await;
    world.succeed(&leased, &SCRIPT).await;
    let text = calling.await.unwrap().text;
    assert!(text.contains(": ping\n\n") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(events(&text)[0].2.contains("\"role\":\"assistant\""));
}

#[tokio::test]
async fn a_running_job_resumes_after_every_position() {
    let world = World::new().await;
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    world.tokens(&leased.lease, &SCRIPT, 1..=3).await;
    let readers: Vec<_> = (0..=3u32).map(|after| (after, world.start(resume(job, after)))).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.tokens(&leased.lease, &SCRIPT, 4..=4).await;
    world.succeed(&leased, &SCRIPT).await;
    for (after, reader) in readers {
        let events = reader.await.unwrap().events();
        assert_eq!(tokens(&events), script_tokens(after), "after {after}");
        assert_eq!(events.last().unwrap().0, "ended");
    }
}

#[tokio::test]
async fn an_ended_job_resumes_after_every_position_and_carries_the_result() {
    // A bus that keeps a single event: all the rest comes from the record.
    let bus = BusLimits { events_per_job: 1, ..BusLimits::default() };
    let world = World::with(Choices { bus, ..Choices::default() }).await;
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    world.tokens(&leased.lease, &SCRIPT, 1..=4).await;
    world.succeed(&leased, &SCRIPT).await;
    for after in 0..=4u32 {
        let events = world.call(resume(job, after)).await.events();
        assert_eq!(tokens(&events), script_tokens(after), "after {after}");
        let (name, _, data) = events.last().unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name, "ended");
        assert_eq!(data["output_hash"], output_hash(&[10, 11, 12, 13]));
        assert_eq!(data["job"]["result"]["choices"][0]["text"], "Héllo!");
        assert_eq!(events.first().unwrap().0 == "started", after == 0);
    }
    // A position that never was: nothing but the end was missed.
    let events = world.call(resume(job, 5)).await.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].0, "ended");
}

#[tokio::test]
async fn a_reader_that_the_bus_left_behind_gets_the_rest_from_the_record() {
    let bus = BusLimits { events_per_job: 2, ..BusLimits::default() };
    let world = World::with(Choices { bus, ..Choices::default() }).await;
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    world.tokens(&leased.lease, &SCRIPT, 1..=3).await;
    let reader = world.start(resume(job, 0));
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.tokens(&leased.lease, &SCRIPT, 4..=4).await;
    world.succeed(&leased, &SCRIPT).await;
    assert_eq!(tokens(&reader.await.unwrap().events()), script_tokens(0));
}

async fn two_attempts(second: &[(u32, &str)]) -> Vec<(String, String, String)> {
    let world = World::new().await;
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    let reader = world.start(resume(job, 0));
    world.tokens(&leased.lease, &SCRIPT, 1..=2).await;
    // Until the reader has them.
    while world.get("/v1/stats").await.json()["http"]["open_streams"] == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(30)).await;
    world.store.hand_back(&[leased.lease], Duration::ZERO).await.unwrap();
    let again = world.lease(Class::Standard).await;
    assert_eq!(again.lease.attempt, 2);
    world.tokens(&again.lease, second, 1..=4).await;
    world.succeed(&again, second).await;
    reader.await.unwrap().events()
}

#[tokio::test]
async fn a_second_attempt_is_joined_without_a_seam() {
    let events = two_attempts(&SCRIPT).await;
    assert_eq!(tokens(&events), script_tokens(0));
    let starts: Vec<_> = events.iter().filter(|event| event.0 == "started").map(|event| event.2.as_str()).collect();
    assert_eq!(starts, ["{\"attempt\":1}", "{\"attempt\":2}"]);
    assert_eq!(events.last().unwrap().0, "ended");
}

#[tokio::test]
async fn a_second_attempt_that_disagrees_ends_in_an_error() {
    let events = two_attempts(&[(10, "Hé"), (99, "y"), (12, "llo"), (13, "!")]).await;
    assert_eq!(tokens(&events), script_tokens(0)[..2]);
    let (name, _, data) = events.last().unwrap();
    assert_eq!(name, "error");
    assert!(data.contains("different tokens"), "{data}");
}

#[tokio::test]
async fn a_cancel_ends_the_stream_of_a_job_that_nobody_runs() {
    let world = World::new().await;
    let job = world.submit(Class::Standard).await;
    let reader = world.start(resume(job, 0));
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.post(&format!("/v1/jobs/{job}/cancel"), &json!(null)).await;
    let events = reader.await.unwrap().events();
    assert_eq!(events.len(), 1);
    assert!(events[0].2.contains("\"status\":\"cancelled\""));
}

/// The script's answer, and one of two tokens that ends for its length.
fn record_of_two(leased: &Leased) -> Record {
    let mut record = record(leased, &SCRIPT);
    record.choices.push(ChoiceRecord {
        output_ids: vec![20, 21],
        text: "xy".into(),
        ends: vec![1, 2],
        logprobs: None,
        finish_reason: FinishReason::Length,
        stop_reason: None,
    });
    record.usage.output_tokens = 6;
    record
}

#[tokio::test]
async fn two_answers_come_in_one_stream_and_one_body() {
    let world = World::new().await;
    let mut body = chat(true);
    (body["n"], body["stream_options"]) = (json!(2), json!({"include_usage": true}));
    let keyed = [("idempotency-key", "two")];
    let calling = world.start(request(CHAT, &keyed, &body));
    let leased = world.lease(Class::Interactive).await;
    assert_eq!(leased.request.sampling.n, 2);
    let record = record_of_two(&leased);
    for token in replay(&record, 0).unwrap() {
        world.event(&leased.lease, JobEventBody::Token(token)).await;
    }
    world.finish(&leased.lease, succeeded(&record, RecordLocation::Inline(record.encode().unwrap()))).await;
    let streamed = calling.await.unwrap();
    let seen: Vec<(u64, Value, Value)> = streamed
        .events()
        .iter()
        .filter(|event| event.2 != "[DONE]")
        .filter_map(|event| {
            let chunk: Value = serde_json::from_str(&event.2).unwrap();
            let choice = chunk["choices"].get(0)?.clone();
            Some((choice["index"].as_u64().unwrap(), choice["delta"].clone(), choice["finish_reason"].clone()))
        })
        .collect();
    let role = json!({"role": "assistant", "content": ""});
    let text = |text: &str| json!({"content": text});
    let expected = [
        (0, role.clone(), Value::Null),
        (1, role, Value::Null),
        (0, text("Hé"), Value::Null),
        (1, text("x"), Value::Null),
        (1, text("y"), Value::Null),
        (0, text("llo"), Value::Null),
        (0, text("!"), Value::Null),
        (0, json!({}), json!("stop")),
        (1, json!({}), json!("length")),
    ];
    assert_eq!(seen, expected);
    assert!(streamed.text.contains("\"prompt_tokens\":2,\"completion_tokens\":6"), "{}", streamed.text);
    // From the record, byte for byte.
    assert_eq!(world.call(request(CHAT, &keyed, &body)).await.text, streamed.text);
    let job = world.get(&format!("/v1/jobs/{}", leased.lease.job)).await.json();
    let choices = job["result"]["choices"].as_array().unwrap();
    let shown: Vec<_> = choices.iter().map(|choice| (&choice["index"], &choice["message"]["content"])).collect();
    assert_eq!(shown, [(&json!(0), &json!("Héllo!")), (&json!(1), &json!("xy"))]);
    assert_eq!(job["result"]["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn events_of_two_answers_resume_after_every_position() {
    let world = World::new().await;
    let mut job = json!({"type": "completion", "request": {"model": "tiny", "prompt": "Hi", "n": 2, "best_of": 2}});
    job["class"] = json!("standard");
    let id: JobId = world.post("/v1/jobs", &job).await.json()["id"].as_str().unwrap().parse().unwrap();
    let leased = world.lease(Class::Standard).await;
    let record = record_of_two(&leased);
    world.finish(&leased.lease, succeeded(&record, RecordLocation::Inline(record.encode().unwrap()))).await;
    let expected = [(10, 0), (20, 1), (11, 0), (21, 1), (12, 0), (13, 0)];
    for after in 0..=6usize {
        let events = world.call(resume(id, after as u32)).await.events();
        let seen: Vec<(u64, u64)> = events
            .iter()
            .filter(|event| event.0 == "token")
            .map(|(_, _, data)| {
                let data: Value = serde_json::from_str(data).unwrap();
                (data["token_id"].as_u64().unwrap(), data["index"].as_u64().unwrap_or(0))
            })
            .collect();
        assert_eq!(seen, expected[after..], "after {after}");
        let (_, _, ended) = events.last().unwrap();
        let ended: Value = serde_json::from_str(ended).unwrap();
        assert_eq!(ended["output_hash"], output_hash(&[10, 20, 11, 21, 12, 13]));
    }
}

/// A thought, text, a call cut in the middle of its mark and of its JSON, and one that is none.
const CALLING: [(u32, &str); 8] = [
    (20, "<think>\nHm"),
    (21, ".\n</thi"),
    (22, "nk>\n\nLook: "),
    (23, "<tool"),
    (24, "_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "),
    (25, "\"é\"}}\n</tool_call>\n<tool_call>"),
    (26, "\n{\"name\": \"f\", \"arguments\": {\"a\": }}\n</tool_call"),
    (27, ">"),
];

fn with_tools(stream: bool) -> Value {
    let mut body = chat(stream);
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    body
}

/// A job that ends as `script` says, in a call that has functions or none.
async fn called(world: &World, body: &Value, script: &[(u32, &str)]) -> (JobId, String) {
    let calling = world.start(request(CHAT, &[], body));
    let leased = world.lease(Class::Interactive).await;
    world.tokens(&leased.lease, script, 1..=script.len() as u32).await;
    let mut record = record(&leased, script);
    if !record.read(&record.choices[0]).calls.is_empty() {
        record.choices[0].finish_reason = FinishReason::ToolCalls;
    }
    let bytes = RecordLocation::Inline(record.encode().unwrap());
    world.finish(&leased.lease, succeeded(&record, bytes)).await;
    (leased.lease.job, calling.await.unwrap().text)
}

#[tokio::test]
async fn calls_are_streamed_whole_and_as_the_answer_in_one_piece_has_them() {
    let world = World::new().await;
    let (job, text) = called(&world, &with_tools(true), &CALLING).await;
    let choices: Vec<Value> = events(&text)
        .into_iter()
        .filter(|event| event.2 != "[DONE]")
        .map(|event| serde_json::from_str::<Value>(&event.2).unwrap()["choices"][0].clone())
        .collect();
    let deltas: Vec<&Value> = choices.iter().map(|choice| &choice["delta"]).collect();
    let id = contract::reading::call_id(contract::CallSyntax::Hermes, &job, 0, 0);
    let call =
        json!({"index": 0, "id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"é\"}"}});
    let broken = "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": }}\n</tool_call";
    let expected = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "Hm"}),
        json!({"reasoning_content": "."}),
        json!({"content": "Look:"}),
        json!({"tool_calls": [call]}),
        json!({"content": broken}),
        json!({"content": ">"}),
        json!({}),
    ];
    assert_eq!(deltas, expected.iter().collect::<Vec<_>>());
    assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");

    let (job, text) = called(&world, &with_tools(false), &CALLING).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    let id = contract::reading::call_id(contract::CallSyntax::Hermes, &job, 0, 0);
    let message = json!({
        "role": "assistant", "content": format!("Look:{broken}>"), "reasoning_content": "Hm.", "refusal": null,
        "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"é\"}"}}],
    });
    assert_eq!(
        (&answer["choices"][0]["message"], &answer["choices"][0]["finish_reason"]),
        (&message, &json!("tool_calls"))
    );
}

#[tokio::test]
async fn without_functions_a_call_is_text() {
    let world = World::new().await;
    let script = [(1, "<tool_call>\n{\"name\": "), (2, "\"f\"}\n</tool_call>")];
    for mut body in [chat(false), with_tools(false)] {
        body["tool_choice"] = json!("none");
        let (_, text) = called(&world, &body, &script).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], "<tool_call>\n{\"name\": \"f\"}\n</tool_call>");
        assert_eq!((&choice["message"]["tool_calls"], &choice["finish_reason"]), (&Value::Null, &json!("stop")));
    }
}

#[tokio::test]
async fn what_is_held_back_of_a_call_comes_before_the_end() {
    let world = World::new().await;
    let script = [(1, "Well <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"cut off")];
    let (_, text) = called(&world, &with_tools(true), &script).await;
    let said: String = events(&text)
        .into_iter()
        .filter_map(|event| serde_json::from_str::<Value>(&event.2).ok())
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(said, script[0].1);
    assert!(text.contains("\"finish_reason\":\"stop\"") && !text.contains("tool_calls"), "{text}");
}
