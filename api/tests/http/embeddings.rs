//! `POST /v1/embeddings`, and prompts that are shown and scored, up to where a worker answers.

use contract::{Class, Input, Kind, Prompt, PromptToken, Record, TokenScore, Usage, Vector};
use serde_json::{Value, json};

use crate::support::{MODEL, World, record, request};

const ROUTE: &str = "/v1/embeddings";

fn texts(fields: Value) -> Value {
    let mut body = json!({"model": MODEL, "input": ["one", "two"]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// What a worker commits for a job of two texts.
fn two_vectors(leased: &contract::Leased) -> Record {
    Record {
        choices: vec![],
        vectors: vec![Vector(vec![0.6, -0.8]), Vector(vec![1.0, 0.0])],
        usage: Usage { prompt_tokens: 5, cached_tokens: 0, output_tokens: 0 },
        prompt_text: String::new(),
        prompt_ids: vec![],
        ..record(leased, &[])
    }
}

#[tokio::test]
async fn a_call_is_answered_with_the_vectors_of_its_job() {
    let world = World::new().await;
    for (format, expected) in [(json!(null), json!([0.6, -0.8])), (json!("base64"), json!("mpkZP83MTL8="))] {
        let calling = world.start(request(ROUTE, &[], &texts(json!({"encoding_format": format}))));
        let leased = world.lease(Class::Interactive).await;
        assert_eq!((leased.request.kind(), leased.request.max_tokens), (Kind::Embedding, Some(0)));
        let Input::Embedding(embedding) = &leased.request.input else { panic!() };
        assert_eq!(embedding.inputs, [Prompt::Text("one".into()), Prompt::Text("two".into())]);
        world.commit(&leased, &two_vectors(&leased)).await;
        let answer = calling.await.unwrap();
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
        let body = answer.json();
        let id = leased.lease.job;
        assert_eq!(
            (&body["object"], &body["model"], &body["id"]),
            (&json!("list"), &json!(MODEL), &json!(format!("embd-{id}")))
        );
        assert_eq!(body["data"].as_array().unwrap().len(), 2);
        assert_eq!(body["data"][0], json!({"object": "embedding", "index": 0, "embedding": expected}));
        assert_eq!((&body["data"][1]["index"], &body["usage"]["total_tokens"]), (&json!(1), &json!(5)));
        let job = world.get(&format!("/v1/jobs/{id}")).await.json();
        assert_eq!((&job["type"], &job["result"], &job["status"]), (&json!("embedding"), &body, &json!("succeeded")));
    }
}

#[tokio::test]
async fn jobs_take_texts_for_vectors_too() {
    let world = World::new().await;
    let answer = world.post("/v1/jobs", &json!({"type": "embedding", "request": texts(json!({}))})).await;
    assert_eq!(answer.status.as_u16(), 202, "{}", answer.text);
    let leased = world.lease(Class::Standard).await;
    world.commit(&leased, &two_vectors(&leased)).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let job = world.get(&format!("/v1/jobs/{id}")).await.json();
    assert_eq!(job["result"]["data"][1]["embedding"], json!([1.0, 0.0]));
    assert_eq!(job["usage"]["prompt_tokens"], 5);
    // Nothing is told of it while it runs; its end has the result.
    let events = world.get(&format!("/v1/jobs/{id}/events")).await;
    assert!(!events.text.contains("event: token") && events.text.contains("event: ended"), "{}", events.text);
}

#[tokio::test]
async fn what_is_surely_wrong_is_refused_at_the_door() {
    let world = World::new().await;
    let longest = "x".repeat(40_000);
    for (fields, param, code) in [
        (json!({"input": [longest]}), "input", "context_length_exceeded"),
        (json!({"input": ["a", longest]}), "input[1]", "context_length_exceeded"),
        (json!({"input": [[1], vec![1; 1_001]]}), "input[1]", "context_length_exceeded"),
        (json!({"input": [[1], [2, 1_000_000]]}), "input[1][1]", "invalid_value"),
        (json!({"input": []}), "input", "invalid_value"),
        (json!({"dimensions": 0}), "dimensions", "invalid_value"),
        (json!({"max_tokens": 5}), "max_tokens", "unknown_parameter"),
    ] {
        let answer = world.post(ROUTE, &texts(fields.clone())).await;
        assert_eq!(answer.status.as_u16(), 400, "{fields}: {}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{error}");
    }
    // As many tokens as the context has can be read.
    let calling = world.start(request(ROUTE, &[], &texts(json!({"input": vec![1; 1_000]}))));
    let leased = world.lease(Class::Interactive).await;
    world.commit(&leased, &two_vectors(&leased)).await;
    assert_eq!(calling.await.unwrap().status.as_u16(), 200);
}

#[tokio::test]
async fn an_echo_is_answered_with_the_prompt_and_its_scores() {
    let world = World::new().await;
    let body =
        json!({"model": MODEL, "prompt": "Hi", "max_tokens": 0, "echo": true, "logprobs": 0, "prompt_logprobs": 0});
    let calling = world.start(request("/v1/completions", &[], &body));
    let leased = world.lease(Class::Interactive).await;
    assert_eq!((leased.request.echo, leased.request.max_tokens), (true, Some(0)));
    let mut scored = record(&leased, &[]);
    scored.choices[0].logprobs = Some(vec![]);
    scored.prompt_tokens = Some(vec![
        PromptToken { token: "H".into(), offset: 0, score: None },
        PromptToken { token: "i".into(), offset: 1, score: Some(TokenScore { logprob: -1.5, rank: 3, top: vec![] }) },
    ]);
    world.commit(&leased, &scored).await;
    let choice = calling.await.unwrap().json()["choices"][0].clone();
    assert_eq!(
        choice["logprobs"],
        json!({"tokens": ["H", "i"], "token_logprobs": [null, -1.5], "top_logprobs": [null, {"i": -1.5}], "text_offset": [0, 1]})
    );
    assert_eq!(choice["prompt_logprobs"], json!([null, {"2": {"logprob": -1.5, "rank": 3, "decoded_token": "i"}}]));
    assert_eq!(choice["text"], "Hi");
}
