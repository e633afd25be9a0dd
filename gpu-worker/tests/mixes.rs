//! Batch invariance on the real files: whatever a request runs with, its tokens and log-probabilities are bit-equal to
//! those it gets alone, computed as a whole. Mixes draw batch, order of arrival, prefill chunk, and a pool small enough to
//! preempt; their requests begin alike in three families and share the blocks of that.
//!
//! `PENSTOCK_MIXES` says how many per model (30 without it).

mod common;

use std::collections::HashMap;
use std::time::Instant;

use contract::{Pooling, Sampling};
use gpu_worker::engine::plan::Forward;
use gpu_worker::engine::planner::{Limits, Planner, StepOutput};
use gpu_worker::engine::prefix::CacheScope;
use gpu_worker::engine::random::philox;
use gpu_worker::engine::sampler::Choosing;
use gpu_worker::engine::sequence::{DropMark, NoText, OfPrompt, Prepared, PromptGives, SequenceId};

const REQUESTS: usize = 24;
const N_BLOCKS: usize = 64;

/// What a prompt gave, as bits, and the tokens with the bits of their log-probability and of the two likeliest beside it.
#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    prompt: Vec<u32>,
    tokens: Vec<(u32, Vec<u32>)>,
}

fn draw(seed: u32, what: u32, below: usize) -> usize {
    philox([seed, what, 0, 0], [11, 12])[0] as usize % below
}

fn request(idx: usize, vocab: usize, scope: Option<CacheScope>) -> Prepared {
    // Most end one below a block's end: the second token generated needs another block, which a full pool does not have.
    let n_prompt = match idx % 4 {
        3 => 1 + draw(idx as u32, 1, 60),
        _ => 16 * (1 + draw(idx as u32, 1, 3)) - 1,
    };
    // Whose beginning it has, and how far: an end of its own may begin anywhere in a block.
    let (family, n_alike) = (1_000 + idx as u32 % 3, n_prompt.saturating_sub(1 + draw(idx as u32, 4, 16)));
    let id_at = |at: usize| draw(if at < n_alike { family } else { idx as u32 }, 100 + at as u32, vocab) as u32;
    let greedy = idx.is_multiple_of(2);
    // A quarter have their prompts scored, before an answer or alone, and a sixth become vectors.
    let (of_prompt, generates) = match idx % 12 {
        1 | 5 => (OfPrompt::Scores(2), true),
        9 => (OfPrompt::Scores(2), false),
        6 => (OfPrompt::Vector(Pooling::Last), false),
        11 => (OfPrompt::Vector(Pooling::Mean), false),
        _ => (OfPrompt::Nothing, true),
    };
    Prepared {
        id: SequenceId(idx as u64),
        scope,
        prompt: (0..n_prompt).map(id_at).collect(),
        choosing: Choosing {
            sampling: Sampling {
                temperature: if greedy { 0.0 } else { 1.0 },
                repetition_penalty: if idx % 3 == 1 { 1.2 } else { 1.0 },
                frequency_penalty: if idx % 3 == 2 { 0.5 } else { 0.0 },
                typical_p: if idx % 5 == 1 { 0.9 } else { 1.0 },
                ..Sampling::default()
            },
            seed: 1_000 + idx as u64,
            logprobs: Some(2),
        },
        of_prompt,
        max_tokens: if generates { 2 + draw(idx as u32, 2, 9) as u32 } else { 0 },
        min_tokens: 0,
        end_ids: Vec::new(),
        grammar: None,
        text: Box::new(NoText),
        deadline: None,
        mark: DropMark::default(),
    }
}

/// What a run gave.
#[derive(Default)]
struct Outcome {
    answers: HashMap<u64, Answer>,
    preemptions: u64,
    cached_tokens: u32,
}

/// Runs the requests, one arriving at every `gap`-th step.
fn run(
    forward: &mut dyn Forward,
    idxs: &[usize],
    scope: Option<CacheScope>,
    limits: Limits,
    (n_blocks, gap): (usize, usize),
) -> Outcome {
    let mut planner = Planner::new(limits, n_blocks);
    let vocab = forward.vocab_size();
    let mut arriving = idxs.iter().map(|idx| request(*idx, vocab, scope));
    let mut left = idxs.len();
    let mut outcome = Outcome::default();
    for step in 0.. {
        // A gap of 0: all at once.
        let arrivals = if gap == 0 { usize::MAX } else { usize::from(step % gap == 0 || planner.is_idle()) };
        for next in arriving.by_ref().take(arrivals) {
            planner.admit(next);
        }
        let plan = planner.plan().expect("K-2: not idle, so there is a plan");
        let logits = forward.step(&plan).expect("the step is computed");
        let mut out = StepOutput::default();
        planner.commit(&plan, &logits, &mut out);
        for prompt in out.prompts {
            let bits = &mut outcome.answers.entry(prompt.id.0).or_default().prompt;
            match prompt.gives {
                PromptGives::Scores(scores) => bits.extend(scores.iter().flat_map(|scored| {
                    let top = scored.top.iter().flat_map(|(id, logprob)| [*id, logprob.to_bits()]);
                    [scored.rank, scored.logprob.to_bits()].into_iter().chain(top)
                })),
                PromptGives::Vector(vector) => bits.extend(vector.iter().map(|x| x.to_bits())),
            }
        }
        for token in out.tokens {
            let (own, top) = token.chosen.logprobs.expect("log-probabilities were asked for");
            let bits = std::iter::once(own.to_bits()).chain(top.iter().map(|(_, logprob)| logprob.to_bits()));
            outcome.answers.entry(token.id.0).or_default().tokens.push((token.chosen.id, bits.collect()));
        }
        left -= out.ended.len();
        outcome.cached_tokens += out.ended.iter().map(|ended| ended.cached_tokens).sum::<u32>();
        if left == 0 {
            break;
        }
    }
    assert_eq!(planner.pool().n_used(), 0, "K-1");
    outcome.preemptions = planner.preemptions();
    outcome
}

fn any_mix_gives_what_each_gets_alone(model: &str) {
    let begin = Instant::now();
    let n_mixes =
        std::env::var("PENSTOCK_MIXES").map_or(30, |mixes| mixes.parse().expect("PENSTOCK_MIXES is a number"));
    let mut forward = common::fresh(model, N_BLOCKS);
    let alone: Vec<Answer> = (0..REQUESTS)
        .map(|idx| {
            let limits = Limits { max_sequences: 1, step_tokens: 256, ..Limits::default() };
            let mut outcome = run(&mut forward, &[idx], None, limits, (N_BLOCKS, 1));
            outcome.answers.remove(&(idx as u64)).expect("it was run")
        })
        .collect();
    let (mut compared, mut preemptions, mut cached) = (0, 0, 0);
    for mix in 0..n_mixes {
        let mut idxs: Vec<usize> = (0..REQUESTS).collect();
        for at in 0..REQUESTS {
            idxs.swap(at, draw(mix, 10 + at as u32, REQUESTS));
        }
        // A sixteenth of the mixes takes all sixteen at once; the others what they draw.
        idxs.truncate(if mix % 16 == 0 { 16 } else { 2 + draw(mix, 3, 12) });
        let limits = Limits {
            max_sequences: 1 + draw(mix, 4, 16),
            step_tokens: [1, 7, 16, 33, 256][draw(mix, 5, 5)],
            ..Limits::default()
        };
        let n_blocks = 5 + draw(mix, 6, 12);
        let scope = Some(CacheScope::from_key([7; 32]));
        let outcome = run(&mut forward, &idxs, scope, limits, (n_blocks, draw(mix, 7, 3)));
        for idx in &idxs {
            assert_eq!(
                outcome.answers[&(*idx as u64)],
                alone[*idx],
                "{model}, mix {mix}, request {idx}, {limits:?}, {n_blocks} blocks"
            );
            compared += 1;
        }
        preemptions += outcome.preemptions;
        cached += outcome.cached_tokens;
    }
    assert!(
        preemptions >= u64::from(n_mixes / 10),
        "the small pools were meant to preempt, and did {preemptions} times"
    );
    assert!(cached > 10 * n_mixes, "the families were meant to share, and {cached} tokens were found");
    println!(
        "{model}: {n_mixes} mixes, {compared} answers bit-equal, {preemptions} preemptions, {cached} tokens found, {:.0} s",
        begin.elapsed().as_secs_f64()
    );
}

#[test]
fn any_mix_of_qwen_requests_gives_what_each_gets_alone() {
    any_mix_gives_what_each_gets_alone("qwen2.5-coder-0.5b-instruct-q4_k_m");
}

#[test]
fn any_mix_of_gemma_requests_gives_what_each_gets_alone() {
    any_mix_gives_what_each_gets_alone("gemma-3-270m-q4_k_m");
}
