//! Perplexity of the golden text against llama.cpp's figures for the same files.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{GEMMA, QWEN, gemma, golden_text, qwen, tokenizer};
use gpu_worker::forward::candle::CandleForward;
use gpu_worker::model::perplexity;

const CONTEXT: usize = 512;

/// Within 1 % of `expected`, which `llama-perplexity` prints for windows of 512 tokens.
fn check(forward: &mut CandleForward, name: &str, expected: f64) {
    let tokenizer = tokenizer(name);
    let ids = tokenizer.encode_prompt(&golden_text("text.txt"), false).unwrap();
    let bos = tokenizer.bos_id().filter(|_| tokenizer.adds_bos());
    let found = perplexity(forward, &ids, CONTEXT, bos).unwrap();
    println!("{name}: perplexity {:.3} ({expected}) of {} tokens in {} windows", found.ppl, found.tokens, found.chunks);
    assert_eq!((found.chunks, found.tokens), (ids.len() / CONTEXT, ids.len() / CONTEXT * (CONTEXT / 2 - 1)));
    assert!((found.ppl / expected - 1.0).abs() <= 0.01, "perplexity {} is not within 1 % of {expected}", found.ppl);
}

#[test]
fn qwen_has_the_perplexity_that_llama_cpp_finds() {
    check(&mut qwen(), QWEN, 50.92);
}

#[test]
fn gemma_has_the_perplexity_that_llama_cpp_finds() {
    check(&mut gemma(), GEMMA, 72.02);
}
