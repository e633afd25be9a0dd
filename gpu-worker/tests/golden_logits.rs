//! The real models against another engine's float32 figures, and against themselves in other company.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{argmax, field, gemma, golden, qwen, rows, run_alone, same_bits, scattered_blocks};
use gpu_worker::engine::plan::{Forward, StepPlan};
use gpu_worker::forward::{candle::CandleForward, push_span};
use gpu_worker::model::perplexity::log_prob;

/// What a model was found to differ by from the reference.
#[derive(Default)]
struct Differences {
    /// Of every fed token's log-probability.
    all: Vec<f64>,
    /// Of the first step's most likely token.
    first: Vec<f64>,
    /// Of the first step's five most likely tokens.
    top5: Vec<f64>,
    firm_tokens: usize,
}

impl Differences {
    /// Feeds `prompt` and `reference`, and compares what is predicted for each token of `reference`.
    fn add(&mut self, forward: &mut CandleForward, record: &serde_json::Value, reference: &[u32], log_probs: &[f64]) {
        let mut ids: Vec<u32> = field(record, "/prompt_ids");
        let n_prompt = ids.len();
        ids.extend_from_slice(&reference[..reference.len() - 1]);
        let logits = run_alone(forward, &ids, 64, n_prompt - 1);
        assert_eq!(logits.len(), reference.len());
        for ((row, &token), &expected) in logits.iter().zip(reference).zip(log_probs) {
            self.all.push((log_prob(row, token) - expected).abs());
        }
        for (nth, top) in field::<Vec<serde_json::Value>>(record, "/hf_f32/first_token_top5").iter().enumerate() {
            let difference = (log_prob(&logits[0], field(top, "/id")) - field::<f64>(top, "/logprob")).abs();
            self.top5.push(difference);
            if nth == 0 {
                self.first.push(difference);
            }
        }
        let n_firm: usize = field(record, "/firm_tokens");
        let greedy: Vec<u32> = logits[..n_firm].iter().map(|row| argmax(row)).collect();
        assert_eq!(greedy, reference[..n_firm], "{}: greedy tokens before the first near-tie", record["name"]);
        self.firm_tokens += n_firm;
    }

    fn check(&self, model: &str, mean_limit: f64, first_limit: f64) {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let max = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        println!(
            "{model}: {} tokens, mean difference {:.4}, max {:.4}; first token mean {:.4}, max {:.4}; \
             top 5 mean {:.4}, max {:.4}; {} firm tokens equal",
            self.all.len(),
            mean(&self.all),
            max(&self.all),
            mean(&self.first),
            max(&self.first),
            mean(&self.top5),
            max(&self.top5),
            self.firm_tokens
        );
        assert!(mean(&self.all) <= mean_limit, "mean difference {} is over {mean_limit}", mean(&self.all));
        assert!(max(&self.first) <= first_limit, "first token differs by {}, over {first_limit}", max(&self.first));
    }
}

#[test]
fn qwen_agrees_with_the_float32_reference() {
    let mut forward = qwen();
    println!("{}", forward.numerics());
    let mut differences = Differences::default();
    for record in golden("chat.jsonl") {
        let reference: Vec<u32> = field(&record, "/hf_f32/output_ids");
        differences.add(&mut forward, &record, &reference, &field::<Vec<f64>>(&record, "/hf_f32/logprobs"));
    }
    differences.check("qwen", 0.04, 0.15);
}

#[test]
fn gemma_agrees_with_the_float32_reference() {
    let mut forward = gemma();
    println!("{}", forward.numerics());
    let mut differences = Differences::default();
    for record in golden("gemma.jsonl") {
        let reference: Vec<u32> = field(&record, "/llamacpp/output_ids");
        let log_probs: Vec<f64> = field(&record, "/hf_f32/logprobs_of_llamacpp_ids");
        differences.add(&mut forward, &record, &reference, &log_probs);
    }
    differences.check("gemma", 0.10, 0.30);
}

/// `n` sequences of uneven length, all different, cut from the golden prompts.
fn sequences(file: &str, n: usize) -> Vec<Vec<u32>> {
    let all: Vec<u32> = golden(file).iter().flat_map(|record| field::<Vec<u32>>(record, "/prompt_ids")).collect();
    (0..n).map(|nth| all[nth * 17..nth * 17 + 3 + (nth * 7) % 40].to_vec()).collect()
}

/// Every sequence prefilled alone in one chunk and then given 3 more tokens, against all of them together: prefill in
/// one step, then decode steps of all, and last a step in which half decode while the others prefill from the start.
fn company_changes_nothing(forward: &mut CandleForward, prompts: &[Vec<u32>]) {
    const DECODE: usize = 3;
    let n = prompts.len();
    let whole: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| prompt.iter().chain(&prompt[..DECODE]).copied().collect()).collect();
    let alone: Vec<Vec<Vec<f32>>> =
        whole.iter().zip(prompts).map(|(ids, prompt)| run_alone(forward, ids, ids.len(), prompt.len() - 1)).collect();
    let blocks: Vec<_> = (0..n).map(|seat| scattered_blocks(48, seat, n)).collect();
    for step in 0..=DECODE + 1 {
        let mut plan = StepPlan::default();
        for (seat, prompt) in prompts.iter().enumerate() {
            let (range, wanted) = match step {
                0 => (0..prompt.len(), prompt.len() - 1..prompt.len()),
                _ if step == DECODE + 1 && seat % 2 == 0 => (0..prompt.len(), prompt.len() - 1..prompt.len()),
                _ => (prompt.len() + step.min(DECODE) - 1..prompt.len() + step.min(DECODE), 0..1),
            };
            push_span(&mut plan, &whole[seat][range.clone()], range.start, &blocks[seat], wanted);
        }
        let logits = rows(&forward.step(&plan).unwrap(), n);
        for (seat, row) in logits.iter().enumerate() {
            let expected = if step == DECODE + 1 && seat % 2 == 0 { 0 } else { step.min(DECODE) };
            assert!(same_bits(row, &alone[seat][expected]), "sequence {seat} differs in company at step {step}");
        }
    }
}

fn chunks_change_nothing(forward: &mut CandleForward, ids: &[u32]) {
    let first_wanted = ids.len() - 4;
    let whole = run_alone(forward, ids, ids.len(), first_wanted);
    for chunk in [1, 7, 16, 33] {
        let cut = run_alone(forward, ids, chunk, first_wanted);
        for (row, (cut, whole)) in cut.iter().zip(&whole).enumerate() {
            assert!(same_bits(cut, whole), "row {row} differs with chunks of {chunk}");
        }
    }
}

#[test]
fn qwen_logits_are_the_same_bits_alone_and_among_15_others() {
    company_changes_nothing(&mut qwen(), &sequences("chat.jsonl", 16));
}

#[test]
fn gemma_logits_are_the_same_bits_alone_and_among_15_others() {
    company_changes_nothing(&mut gemma(), &sequences("gemma.jsonl", 16));
}

#[test]
fn qwen_logits_are_the_same_bits_however_the_prompt_is_cut() {
    let ids: Vec<u32> = field(&golden("chat.jsonl")[7], "/prompt_ids");
    chunks_change_nothing(&mut qwen(), &ids);
}

#[test]
fn gemma_logits_are_the_same_bits_however_the_prompt_is_cut() {
    // Longer than the window of 512 tokens, so that the window's edge moves through the chunks.
    let ids: Vec<u32> = field(&golden("gemma.jsonl")[5], "/prompt_ids");
    chunks_change_nothing(&mut gemma(), &ids[..560]);
}
