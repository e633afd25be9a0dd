//! Scores and vectors of prompts against transformers' figures for the same weights in float32, which
//! `fixtures/tiny/golden.py` wrote; and against themselves in company.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::Device;
use common::{field, golden, qwen};
use contract::{Pooling, Sampling};
use gpu_worker::engine::plan::Forward;
use gpu_worker::engine::planner::{Limits, Planner, StepOutput};
use gpu_worker::engine::sampler::{Choosing, Scored};
use gpu_worker::engine::sequence::{DropMark, Ending, NoText, OfPrompt, Prepared, PromptGives, SequenceId};
use gpu_worker::forward::candle::CandleForward;
use gpu_worker::load::gguf::{LoadOptions, load};

const N_BLOCKS: usize = 64;

fn tiny() -> CandleForward {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/tiny.gguf");
    CandleForward::new(load(&path, &Device::Cpu, LoadOptions::default()).unwrap(), N_BLOCKS).unwrap()
}

fn asked(id: u64, prompt: Vec<u32>, of_prompt: OfPrompt) -> Prepared {
    Prepared {
        id: SequenceId(id),
        scope: None,
        prompt,
        choosing: Choosing { sampling: Sampling::default(), seed: 0, logprobs: None },
        of_prompt,
        max_tokens: 0,
        min_tokens: 0,
        end_ids: Vec::new(),
        grammar: None,
        text: Box::new(NoText),
        deadline: None,
        mark: DropMark::default(),
    }
}

#[derive(Debug, Default, PartialEq)]
struct Given {
    scores: Vec<Scored>,
    vector: Vec<f32>,
}

/// Runs all of them together.
fn run(forward: &mut CandleForward, limits: Limits, all: Vec<Prepared>) -> HashMap<u64, Given> {
    let mut planner = Planner::new(limits, forward.n_blocks());
    for prepared in all {
        planner.admit(prepared);
    }
    let mut given: HashMap<u64, Given> = HashMap::new();
    while let Some(plan) = planner.plan() {
        let logits = forward.step(&plan).unwrap();
        let mut out = StepOutput::default();
        planner.commit(&plan, &logits, &mut out);
        for prompt in out.prompts {
            let entry = given.entry(prompt.id.0).or_default();
            match prompt.gives {
                PromptGives::Scores(scores) => entry.scores.extend(scores),
                PromptGives::Vector(vector) => entry.vector = vector,
            }
        }
        assert!(out.ended.iter().all(|ended| matches!(ended.ending, Ending::Finished { .. })), "{:?}", out.ended);
    }
    given
}

fn together(forward: &mut CandleForward, all: Vec<Prepared>) -> HashMap<u64, Given> {
    run(forward, Limits::default(), all)
}

fn cosine(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum();
    let length = |squares: f64| squares.sqrt();
    dot / length(a.iter().map(|x| f64::from(*x).powi(2)).sum()) / length(b.iter().map(|x| x * x).sum())
}

/// The numbers of this engine's products are rounded to 8 bits per block of 32, transformers' are not.
#[test]
fn scores_and_vectors_agree_with_transformers() {
    let records = golden("tiny.jsonl");
    let kinds = [OfPrompt::Scores(5), OfPrompt::Vector(Pooling::Last), OfPrompt::Vector(Pooling::Mean)];
    let all = records.iter().enumerate().flat_map(|(nth, record)| {
        let ids: Vec<u32> = field(record, "/ids");
        kinds.iter().zip(0..).map(move |(kind, at)| asked(nth as u64 * 3 + at, ids.clone(), *kind))
    });
    let given = together(&mut tiny(), all.collect());
    let (mut differences, mut worst_cosine, mut same_first, mut clear) = (Vec::new(), [1.0f64; 2], 0, 0);
    for (nth, record) in records.iter().enumerate() {
        let logprobs: Vec<f64> = field(record, "/logprobs");
        let top5: Vec<Vec<(u32, f64)>> = field(record, "/top5");
        let scores = given.get(&(nth as u64 * 3)).map_or(&[][..], |given| &given.scores);
        assert_eq!(scores.len(), logprobs.len());
        for ((scored, expected), top) in scores.iter().zip(&logprobs).zip(&top5) {
            differences.push((f64::from(scored.logprob) - expected).abs());
            // Where the likeliest stands out, it must be the same one.
            if top[0].1 - top[1].1 > 0.3 {
                clear += 1;
                same_first += usize::from(scored.top[0].0 == top[0].0);
            }
            let ours: HashMap<u32, f32> = scored.top.iter().copied().collect();
            let shared = top.iter().filter_map(|(id, expected)| Some((f64::from(*ours.get(id)?) - expected).abs()));
            differences.extend(shared);
        }
        for (at, name) in [(1, "/last"), (2, "/mean")] {
            let expected: Vec<f64> = field(record, name);
            let found = cosine(&given[&(nth as u64 * 3 + at)].vector, &expected);
            let worst = &mut worst_cosine[at as usize - 1];
            *worst = worst.min(found);
        }
    }
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let max = differences.iter().copied().fold(0.0, f64::max);
    println!(
        "{} log-probabilities: mean difference {mean:.4}, max {max:.4}; {same_first} of {clear} clear firsts; cosine at least \
         {:.6} (last), {:.6} (mean)",
        differences.len(),
        worst_cosine[0],
        worst_cosine[1]
    );
    assert!(differences.len() > 1_500 && clear > 100);
    assert_eq!(same_first, clear);
    assert!(mean < 0.03 && max < 0.3, "mean difference {mean}, max {max}");
    assert!(worst_cosine.iter().all(|worst| *worst >= 0.9999), "{worst_cosine:?}");
}

/// Case 40 of what others got wrong: vectors that change with the size of the batch.
#[test]
fn company_changes_no_bit_of_a_score_or_a_vector() {
    let records = golden("tiny.jsonl");
    let prompts: Vec<Vec<u32>> = records.iter().map(|record| field(record, "/ids")).collect();
    let kinds = [OfPrompt::Scores(2), OfPrompt::Vector(Pooling::Last), OfPrompt::Vector(Pooling::Mean)];
    // 54 of them, so that they are more than one batch.
    let make = |nth: usize| asked(nth as u64, prompts[nth % prompts.len()].clone(), kinds[nth / prompts.len() % 3]);
    let n = 2 * 3 * prompts.len();
    let mut forward = tiny();
    let alone: Vec<Given> =
        (0..n).map(|nth| together(&mut forward, vec![make(nth)]).remove(&(nth as u64)).unwrap_or_default()).collect();
    for step_tokens in [32, 100, 256] {
        let limits = Limits { step_tokens, ..Limits::default() };
        let given = run(&mut forward, limits, (0..n).map(make).collect());
        for (nth, alone) in alone.iter().enumerate() {
            assert_eq!(
                given.get(&(nth as u64)).unwrap_or(&Given::default()),
                alone,
                "{nth} with steps of {step_tokens}"
            );
        }
    }
}

/// The tokens that transformers generated, given as part of the prompt, have the log-probabilities that they had there.
#[test]
fn scores_of_qwen_agree_with_the_float32_reference() {
    let mut forward = qwen();
    let (mut differences, mut n) = (Vec::new(), 0);
    for (nth, record) in golden("chat.jsonl").iter().enumerate() {
        let mut ids: Vec<u32> = field(record, "/prompt_ids");
        let n_prompt = ids.len();
        ids.extend(field::<Vec<u32>>(record, "/hf_f32/output_ids"));
        let expected: Vec<f64> = field(record, "/hf_f32/logprobs");
        let given = together(&mut forward, vec![asked(nth as u64, ids, OfPrompt::Scores(0))]);
        let scores = &given[&(nth as u64)].scores[n_prompt - 1..];
        assert_eq!(scores.len(), expected.len());
        differences.extend(scores.iter().zip(&expected).map(|(ours, theirs)| (f64::from(ours.logprob) - theirs).abs()));
        n += 1;
    }
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    println!("{} tokens of {n} answers: mean difference {mean:.4}", differences.len());
    assert!(mean <= 0.04, "mean difference {mean}");
}
