//! The planner and the loop over the trivial forward, whose logits show any wrong block, slot or order.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use contract::{FinishReason, Sampling};

use super::fault::FaultPoint;
use super::plan::{BLOCK_TOKENS, Forward, StepPlan};
use super::planner::{Ended, Limits, Planner, StepOutput};
use super::random::philox;
use super::sampler::Choosing;
use super::sequence::{DropMark, Ending, NoText, OfPrompt, Prepared, SequenceId, StopReason};
use super::{Command, spawn};
use crate::forward::trivial::{Ending as ModelEnding, TrivialConfig, TrivialForward};

mod prompts;
mod shared;

fn forward(n_blocks: usize, ending: ModelEnding) -> TrivialForward {
    TrivialForward::new(TrivialConfig {
        vocab_size: 97,
        context_tokens: 512,
        n_blocks,
        step_delay: Duration::ZERO,
        ending,
    })
}

/// Greedy and drawn, with and without what depends on the tokens so far.
fn sampling(id: u64) -> Sampling {
    let plain = Sampling { temperature: if id.is_multiple_of(2) { 0.0 } else { 0.9 }, ..Sampling::default() };
    match id % 3 {
        1 => Sampling { repetition_penalty: 1.3, typical_p: 0.9, ..plain },
        2 => {
            let logit_bias = BTreeMap::from([(id as u32 % 97, 1.5)]);
            Sampling { logit_bias, frequency_penalty: 0.4, presence_penalty: -0.3, ..plain }
        }
        _ => plain,
    }
}

pub(super) fn prepared(id: u64, n_prompt: usize, max_tokens: u32) -> Prepared {
    Prepared {
        id: SequenceId(id),
        scope: None,
        prompt: (0..n_prompt).map(|idx| philox([id as u32, idx as u32, 0, 0], [3, 4])[0] % 97).collect(),
        choosing: Choosing { sampling: sampling(id), seed: id * 31, logprobs: Some(3) },
        of_prompt: OfPrompt::Nothing,
        max_tokens,
        min_tokens: 0,
        end_ids: Vec::new(),
        grammar: None,
        text: Box::new(NoText),
        deadline: None,
        mark: DropMark::default(),
    }
}

#[derive(Debug, Default, PartialEq)]
struct Run {
    tokens: HashMap<u64, Vec<(u32, Option<u32>)>>,
    ended: HashMap<u64, Ended>,
    preemptions: u64,
}

/// Steps until idle, checking K-1 at every step; `between` may admit, mark or look.
fn run(
    forward: &mut TrivialForward,
    planner: &mut Planner,
    mut between: impl FnMut(usize, &mut Planner) -> bool,
) -> Run {
    let mut result = Run::default();
    for step in 0.. {
        assert!(step < 100_000, "the planner does not come to an end");
        let more = between(step, planner);
        let mut out = StepOutput::default();
        planner.sweep(Instant::now(), &mut out);
        match planner.plan() {
            Some(plan) => {
                let logits = forward.step(&plan).expect("a right plan never reads an unwritten slot");
                planner.commit(&plan, &logits, &mut out);
            }
            None if !more => {
                collect(&mut result, out);
                break;
            }
            None => assert!(planner.is_idle(), "K-2"),
        }
        collect(&mut result, out);
        planner.assert_whole();
    }
    result.preemptions = planner.preemptions();
    assert_eq!(planner.pool().n_used(), 0, "K-1: all blocks are free at the end");
    result
}

fn collect(result: &mut Run, out: StepOutput) {
    for token in out.tokens {
        let seen = result.tokens.entry(token.id.0).or_default();
        assert_eq!(token.position as usize, seen.len() + 1, "positions have no gap and no repeat");
        seen.push((token.chosen.id, token.chosen.logprobs.map(|(own, _)| own.to_bits())));
    }
    for ended in out.ended {
        assert!(result.ended.insert(ended.id.0, ended).is_none(), "a sequence ends once");
    }
}

/// Each sequence by itself, in a pool without pressure: what any mix must give.
fn alone(id: u64, n_prompt: usize, max_tokens: u32) -> Vec<(u32, Option<u32>)> {
    let mut planner = Planner::new(Limits { max_sequences: 1, step_tokens: 512, ..Limits::default() }, 64);
    planner.admit(prepared(id, n_prompt, max_tokens));
    let result = run(&mut forward(64, ModelEnding::Never), &mut planner, |_, _| false);
    result.tokens[&id].clone()
}

#[test]
fn any_mix_gives_each_sequence_what_it_gets_alone() {
    let mut total_preemptions = 0;
    for seed in 0..300u32 {
        let number = |what: u32, below: u32| philox([seed, what, 0, 0], [1, 2])[0] % below;
        let n_sequences = 1 + number(0, 12);
        let n_blocks = 12 + number(1, 20) as usize;
        let limits = Limits {
            max_sequences: 1 + number(2, 8) as usize,
            step_tokens: 1 + number(3, 64) as usize,
            ..Limits::default()
        };
        let shapes: Vec<(usize, u32)> =
            (0..n_sequences).map(|idx| (1 + number(10 + idx, 90) as usize, 1 + number(50 + idx, 80))).collect();
        let mut planner = Planner::new(limits, n_blocks);
        let mut next = 0;
        let result = run(&mut forward(n_blocks, ModelEnding::Never), &mut planner, |step, planner| {
            while next < shapes.len() && number(100 + step as u32, 3) > 0 {
                let (n_prompt, max_tokens) = shapes[next];
                planner.admit(prepared(next as u64, n_prompt, max_tokens));
                next += 1;
            }
            next < shapes.len()
        });
        for (idx, (n_prompt, max_tokens)) in shapes.iter().enumerate() {
            let id = idx as u64;
            assert_eq!(result.tokens[&id], alone(id, *n_prompt, *max_tokens), "seed {seed}, sequence {id}");
            let expected = Ending::Finished { reason: FinishReason::Length, stop: None };
            assert_eq!(result.ended[&id].ending, expected);
            assert_eq!(result.ended[&id].output_tokens, *max_tokens);
        }
        total_preemptions += result.preemptions;
    }
    assert!(total_preemptions > 100, "the small pools were meant to preempt, and did {total_preemptions} times");
}

/// Greedy tokens under penalties are those of the formulas, applied to each row with counts taken anew.
#[test]
fn penalties_count_the_tokens_of_prompt_and_output() {
    let mut planner = Planner::new(Limits { max_sequences: 1, step_tokens: 8, ..Limits::default() }, 16);
    let mut sequence = prepared(2, 20, 60);
    let bias = BTreeMap::from([(3, 0.5f32), (50, -1.0)]);
    sequence.choosing.sampling = Sampling {
        temperature: 0.0,
        logit_bias: bias.clone(),
        repetition_penalty: 1.5,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        ..Sampling::default()
    };
    let prompt = sequence.prompt.clone();
    planner.admit(sequence);
    let mut forward = forward(16, ModelEnding::Never);
    let (mut output, mut differs) = (Vec::new(), 0);
    while let Some(plan) = planner.plan() {
        let logits = forward.step(&plan).unwrap();
        let mut out = StepOutput::default();
        planner.commit(&plan, &logits, &mut out);
        for token in out.tokens {
            let row = logits.row(0);
            let value = |id: u32| {
                let mut value = row[id as usize] + bias.get(&id).copied().unwrap_or(0.0);
                let count = output.iter().filter(|seen| **seen == id).count() as f32;
                if count > 0.0 || prompt.contains(&id) {
                    value = if value > 0.0 { value / 1.5 } else { value * 1.5 };
                }
                value - 0.25 * count - if count > 0.0 { 0.5 } else { 0.0 }
            };
            let best = |of: &dyn Fn(u32) -> f32| (0..97).rev().max_by(|a, b| of(*a).total_cmp(&of(*b))).unwrap();
            assert_eq!(token.chosen.id, best(&value), "token {}", output.len());
            differs += usize::from(token.chosen.id != best(&|id| row[id as usize]));
            output.push(token.chosen.id);
        }
    }
    assert_eq!(output.len(), 60);
    assert!(differs > 0, "the penalties changed nothing");
}

#[test]
fn a_thousand_random_cancels_leave_the_pool_whole() {
    let mut planner = Planner::new(Limits { max_sequences: 8, step_tokens: 40, ..Limits::default() }, 40);
    let mut marks: Vec<DropMark> = Vec::new();
    let draw = |what: u32, below: u32| philox([what, 9, 9, 9], [5, 6])[0] % below;
    let result = run(&mut forward(40, ModelEnding::Never), &mut planner, |step, planner| {
        let step = step as u32;
        if marks.len() < 1_000 && draw(step, 2) == 0 {
            let sequence =
                prepared(marks.len() as u64, 1 + draw(step + 7_000, 60) as usize, 1 + draw(step + 9_000, 60));
            marks.push(sequence.mark.clone());
            planner.admit(sequence);
        }
        if !marks.is_empty() && draw(step + 11_000, 2) == 0 {
            let newest = marks.len().saturating_sub(12);
            marks[newest + draw(step + 13_000, (marks.len() - newest) as u32) as usize].set();
        }
        marks.len() < 1_000
    });
    let dropped = result.ended.values().filter(|ended| ended.ending == Ending::Dropped).count();
    assert_eq!(result.ended.len(), 1_000);
    assert!(dropped > 200, "{dropped} were cancelled before their end");
}

#[test]
fn a_marked_sequence_is_gone_before_the_next_step() {
    let mut planner = Planner::new(Limits { max_sequences: 4, step_tokens: 64, ..Limits::default() }, 32);
    let sequence = prepared(1, 40, 100);
    let mark = sequence.mark.clone();
    planner.admit(sequence);
    let mut forward = forward(32, ModelEnding::Never);
    for _ in 0..3 {
        let plan = planner.plan().unwrap();
        let logits = forward.step(&plan).unwrap();
        planner.commit(&plan, &logits, &mut StepOutput::default());
    }
    assert_eq!(planner.pool().n_used(), 43usize.div_ceil(BLOCK_TOKENS));
    mark.set();
    let mut out = StepOutput::default();
    planner.sweep(Instant::now(), &mut out);
    assert_eq!((planner.pool().n_used(), planner.is_idle()), (0, true));
    assert_eq!((out.ended[0].prompt_tokens, out.ended[0].output_tokens), (40, 3));
}

#[test]
fn a_passed_deadline_ends_a_sequence_without_another_step() {
    let mut planner = Planner::new(Limits { max_sequences: 4, step_tokens: 64, ..Limits::default() }, 32);
    planner.admit(Prepared { deadline: Some(Instant::now()), ..prepared(1, 5, 5) });
    let mut out = StepOutput::default();
    planner.sweep(Instant::now(), &mut out);
    assert_eq!(out.ended[0].ending, Ending::DeadlinePassed);
    assert!(planner.plan().is_none());
}

#[test]
fn end_tokens_end_and_are_not_chosen_before_min_tokens() {
    let ending = ModelEnding::AtLength { token: 7, tokens: 12 };
    let run_with = |min_tokens, end_ids: Vec<u32>| {
        let mut planner = Planner::new(Limits { max_sequences: 1, step_tokens: 64, ..Limits::default() }, 16);
        planner.admit(Prepared { min_tokens, end_ids, ..prepared(2, 10, 30) });
        let result = run(&mut forward(16, ending), &mut planner, |_, _| false);
        (result.ended[&2].ending.clone(), result.ended[&2].output_tokens)
    };
    let stopped = Ending::Finished { reason: FinishReason::Stop, stop: Some(StopReason::Token(7)) };
    assert_eq!(run_with(0, vec![7]), (stopped.clone(), 3));
    assert_eq!(run_with(20, vec![7]), (stopped, 21));
    let to_the_end = Ending::Finished { reason: FinishReason::Length, stop: None };
    assert_eq!(run_with(0, vec![]), (to_the_end, 30));
}

/// A forward that fails or panics on demand.
struct Faulty {
    inner: TrivialForward,
    steps: usize,
}

impl Forward for Faulty {
    fn step(&mut self, plan: &StepPlan) -> Result<super::plan::Logits, super::plan::ForwardError> {
        self.steps += 1;
        match self.steps {
            2 => Err(super::plan::ForwardError::Device("out of luck".into())),
            4 => panic!("a kernel tripped"),
            _ => self.inner.step(plan),
        }
    }

    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn hidden_size(&self) -> usize {
        self.inner.hidden_size()
    }

    fn context_tokens(&self) -> usize {
        self.inner.context_tokens()
    }

    fn n_blocks(&self) -> usize {
        self.inner.n_blocks()
    }
}

#[test]
fn a_failed_or_panicking_step_ends_its_sequences_and_nothing_else() {
    let forward = Faulty { inner: forward(16, ModelEnding::Never), steps: 0 };
    let limits = Limits { max_sequences: 4, step_tokens: 64, ..Limits::default() };
    let mut engine = spawn(Box::new(forward), limits, FaultPoint::default()).unwrap();
    let mut endings = Vec::new();
    for id in 0..3 {
        engine.commands.blocking_send(Command::Start(Box::new(prepared(id, 4, 4)))).ok().unwrap();
        while endings.len() <= id as usize {
            endings.extend(engine.outputs.blocking_recv().unwrap().ended.into_iter().map(|ended| ended.ending));
        }
    }
    assert!(matches!(&endings[0], Ending::Failed(err) if err.message.contains("out of luck")), "{endings:?}");
    assert!(matches!(&endings[1], Ending::Failed(err) if err.message.contains("a kernel tripped")), "{endings:?}");
    assert_eq!(endings[2], Ending::Finished { reason: FinishReason::Length, stop: None });
    assert_eq!(engine.status.read().used_blocks, 0);
    engine.commands.blocking_send(Command::Stop).ok().unwrap();
    assert!(engine.join());
}

#[test]
fn a_slow_reader_never_holds_up_the_engine() {
    let limits = Limits { max_sequences: 2, step_tokens: 64, ..Limits::default() };
    let mut engine = spawn(Box::new(forward(64, ModelEnding::Never)), limits, FaultPoint::default()).unwrap();
    engine.commands.blocking_send(Command::Start(Box::new(prepared(1, 4, 400)))).ok().unwrap();
    // 400 steps do not fit the channel of 64 outputs; nobody reads until they are done.
    let patience = Instant::now() + Duration::from_secs(20);
    while engine.status.read().steps < 400 {
        assert!(Instant::now() < patience, "the engine waits for its reader");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut tokens = 0;
    loop {
        let out = engine.outputs.blocking_recv().unwrap();
        tokens += out.tokens.len();
        if !out.ended.is_empty() {
            break;
        }
    }
    assert_eq!(tokens, 400);
    assert!(engine.status.is_progressing(Duration::from_secs(1)));
    engine.commands.blocking_send(Command::Stop).ok().unwrap();
    let status = engine.status.clone();
    assert!(engine.join());
    assert!(!status.is_progressing(Duration::from_secs(1)), "a stopped engine renews no lease");
}
