//! The real model files against golden prompts made by other programs (transformers and llama.cpp).

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Instant,
};

use serde_json::{Value, json};

use super::{Prompts, TextError, TextTokenizer};
use crate::load::{GgufHeader, real_model};

/// Prompts of the Qwen file, loaded once.
pub(crate) static QWEN: LazyLock<Prompts> = LazyLock::new(|| load("qwen2.5-coder-0.5b-instruct-q4_k_m"));
/// Prompts of the Gemma file, loaded once.
pub(super) static GEMMA: LazyLock<Prompts> = LazyLock::new(|| load("gemma-3-270m-q4_k_m"));

fn load(name: &str) -> Prompts {
    let mut file = std::fs::File::open(real_model(name)).unwrap();
    let header = GgufHeader::read(&mut file).unwrap();
    let started = Instant::now();
    let prompts = Prompts::from_gguf(&header.metadata).unwrap();
    eprintln!("{name}: tokenizer and template built in {:?}", started.elapsed());
    prompts
}

fn golden(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/golden").join(file);
    let lines = std::fs::read_to_string(path).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn qwen_prompts_equal_the_golden_ones() {
    let lines = golden("chat.jsonl");
    assert_eq!(lines.len(), 12);
    for line in lines {
        let prompt = QWEN.chat(&line["messages"], line.get("tools"), true).unwrap();
        assert_eq!(prompt.text, line["rendered"].as_str().unwrap(), "{}", line["name"]);
        assert_eq!(prompt.ids, ids(&line["prompt_ids"]), "{}", line["name"]);
    }
}

#[test]
fn gemma_prompts_equal_the_golden_ones_with_one_bos() {
    let lines = golden("gemma.jsonl");
    assert_eq!(lines.len(), 6);
    for line in lines {
        let text = line["prompt"].as_str().unwrap();
        let want = ids(&line["prompt_ids"]);
        assert_eq!(GEMMA.completion(text, false).unwrap().ids, want, "{}", line["name"]);
        // A prompt that has its BOS already gets no second one.
        assert_eq!(GEMMA.completion(&format!("<bos>{text}"), true).unwrap().ids, want);
    }
}

#[test]
fn golden_outputs_decode_to_their_texts() {
    for (file, prompts, source) in [("chat.jsonl", &*QWEN, "hf_f32"), ("gemma.jsonl", &*GEMMA, "llamacpp")] {
        for line in golden(file) {
            let output = &line[source];
            let text = prompts.tokenizer().decode(&ids(&output["output_ids"]), true);
            assert_eq!(text, output["text"].as_str().unwrap(), "{}", line["name"]);
        }
    }
}

#[test]
fn a_base_model_has_no_template_and_none_is_guessed() {
    let err = GEMMA.chat(&json!([{"role": "user", "content": "hi"}]), None, true).unwrap_err();
    assert!(matches!(err, TextError::NoTemplate));
    assert!(err.to_string().contains("/v1/completions"));
}

#[test]
fn special_ids_are_those_of_the_files() {
    let tokenizer: &Arc<TextTokenizer> = QWEN.tokenizer();
    assert_eq!(tokenizer.vocab_size(), 151_936);
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(151_643), Some(151_645)));
    assert_eq!(tokenizer.eos_ids(), [151_643, 151_645]);
    assert!(!tokenizer.adds_bos());
    assert!(tokenizer.is_special(151_644) && !tokenizer.is_special(151_657) && !tokenizer.is_special(200_000));
    assert_eq!(tokenizer.token_text(151_657), Some("<tool_call>"));
    assert_eq!(tokenizer.token_text(151_936), None);

    let tokenizer = GEMMA.tokenizer();
    assert_eq!(tokenizer.vocab_size(), 262_144);
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(2), Some(1)));
    // <eos> and <end_of_turn>.
    assert_eq!(tokenizer.eos_ids(), [1, 106]);
    assert!(tokenizer.adds_bos());
}

#[test]
fn token_bytes_are_the_real_bytes() {
    let tokenizer = QWEN.tokenizer();
    assert_eq!(tokenizer.token_text(279), Some("Ġthe"));
    assert_eq!(tokenizer.token_bytes(279).unwrap(), b" the");
    assert_eq!(tokenizer.token_bytes(198).unwrap(), b"\n");
    assert_eq!(tokenizer.token_bytes(151_936), None);
    let tokenizer = GEMMA.tokenizer();
    assert_eq!(tokenizer.token_bytes(506).unwrap(), b" the");
    assert_eq!(tokenizer.token_text(238 + 0xf0), Some("<0xF0>"));
    assert_eq!(tokenizer.token_bytes(238 + 0xf0).unwrap(), [0xf0]);
    // A run of three spaces is one user-defined token.
    assert_eq!(tokenizer.token_bytes(139).unwrap(), b"   ");
}

#[test]
fn tool_calls_and_results_render_as_transformers_does() {
    // Made with Jinja2 3.1 from the file's template, arguments given as an object.
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "get", "arguments": "{\"city\": \"Zürich\", \"days\": 2, \"t\": 1.0}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "{\"c\": 7}"},
    ]);
    let prompt = QWEN.chat(&messages, None, true).unwrap();
    let tail = "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"get\", \
        \"arguments\": {\"city\": \"Zürich\", \"days\": 2, \"t\": 1.0}}\n</tool_call><|im_end|>\n<|im_start|>user\n\
        <tool_response>\n{\"c\": 7}\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert!(prompt.text.ends_with(tail), "{}", prompt.text);

    let mut wrong = messages.clone();
    wrong[1]["tool_calls"][0]["function"]["arguments"] = json!("{\"city\": ");
    let err = QWEN.chat(&wrong, None, true).unwrap_err().to_string();
    assert!(err.contains("messages[1].tool_calls[0].function.arguments"), "{err}");
}

#[test]
fn messages_that_are_none_are_refused() {
    for (messages, word) in [
        (json!([]), "at least one"),
        (json!({}), "an array"),
        (json!(["hi"]), "objects"),
        (json!([{"content": "hi"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "a"}, {"role": "<|im_start|>", "content": "hi"}]), "messages[1].role"),
    ] {
        let err = QWEN.chat(&messages, None, true).unwrap_err().to_string();
        assert!(err.contains(word), "{messages}: {err}");
    }
}
