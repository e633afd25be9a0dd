//! Cancels on the real model and the running engine: 1,000 at random moments leave the pool as it was, and a cancelled
//! sequence's blocks are free within one step.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use contract::Sampling;
use gpu_worker::engine::fault::FaultPoint;
use gpu_worker::engine::planner::Limits;
use gpu_worker::engine::random::philox;
use gpu_worker::engine::sampler::Choosing;
use gpu_worker::engine::sequence::{DropMark, Ending, NoText, OfPrompt, Prepared, SequenceId};
use gpu_worker::engine::{Command, spawn};

const CANCELS: u64 = 1_000;
const AT_ONCE: usize = 12;

fn draw(what: u64, salt: u32, below: usize) -> usize {
    philox([what as u32, salt, 0, 0], [21, 22])[0] as usize % below
}

fn sequence(id: u64, mark: DropMark) -> Prepared {
    Prepared {
        id: SequenceId(id),
        scope: None,
        prompt: (0..1 + draw(id, 1, 24)).map(|at| draw(id, 100 + at as u32, 150_000) as u32).collect(),
        choosing: Choosing { sampling: Sampling { temperature: 0.0, ..Sampling::default() }, seed: 0, logprobs: None },
        of_prompt: OfPrompt::Nothing,
        max_tokens: 400,
        min_tokens: 0,
        end_ids: Vec::new(),
        grammar: None,
        text: Box::new(NoText),
        deadline: None,
        mark,
    }
}

#[test]
fn a_thousand_cancels_free_every_block_within_a_step() {
    let forward = common::fresh(common::QWEN, 96);
    let limits = Limits { max_sequences: AT_ONCE, step_tokens: 64, ..Limits::default() };
    let mut engine = spawn(Box::new(forward), limits, FaultPoint::default()).expect("a thread");
    let mut marks: HashMap<u64, DropMark> = HashMap::new();
    let mut asked: HashMap<u64, (u64, Instant)> = HashMap::new();
    let (mut started, mut steps_taken, mut times) = (0u64, Vec::new(), Vec::new());
    while (steps_taken.len() as u64) < CANCELS {
        while marks.len() + asked.len() < AT_ONCE + 4 && started < CANCELS + 64 {
            let mark = DropMark::default();
            marks.insert(started, mark.clone());
            let command = Command::Start(Box::new(sequence(started, mark)));
            assert!(engine.commands.blocking_send(command).is_ok(), "the engine runs");
            started += 1;
        }
        // A random pause puts the cancel anywhere in a step.
        std::thread::sleep(Duration::from_micros(draw(started + steps_taken.len() as u64, 3, 3_000) as u64));
        let mut names: Vec<u64> = marks.keys().copied().collect();
        names.sort_unstable();
        if !names.is_empty() {
            let chosen = names[draw(started * 7 + steps_taken.len() as u64, 4, names.len())];
            let mark = marks.remove(&chosen).expect("it was chosen from the keys");
            asked.insert(chosen, (engine.status.read().steps, Instant::now()));
            mark.set();
        }
        while let Ok(output) = engine.outputs.try_recv() {
            for ended in output.ended {
                let Some((at_step, at)) = asked.remove(&ended.id.0) else { panic!("{ended:?} was not cancelled") };
                assert_eq!(ended.ending, Ending::Dropped);
                steps_taken.push(engine.status.read().steps - at_step);
                times.push(at.elapsed());
            }
        }
        if marks.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for mark in marks.values() {
        mark.set();
    }
    let patience = Instant::now() + Duration::from_secs(30);
    while engine.status.read().used_blocks > 0 || engine.status.read().running > 0 {
        while engine.outputs.try_recv().is_ok() {}
        assert!(Instant::now() < patience, "blocks are left: {:?}", engine.status.read());
        std::thread::sleep(Duration::from_millis(5));
    }
    steps_taken.sort_unstable();
    times.sort_unstable();
    let percentile = |share: f64| ((steps_taken.len() - 1) as f64 * share) as usize;
    println!(
        "{} cancels: steps until the blocks were free p50 {}, p99 {}, most {}; time p50 {:?}, p99 {:?}",
        steps_taken.len(),
        steps_taken[percentile(0.5)],
        steps_taken[percentile(0.99)],
        steps_taken[steps_taken.len() - 1],
        times[percentile(0.5)],
        times[percentile(0.99)],
    );
    // The step that runs while the mark is set, and one more while the reader looks.
    assert!(steps_taken[percentile(0.99)] <= 3, "cancelled sequences go on: {steps_taken:?}");
    assert!(engine.commands.blocking_send(Command::Stop).is_ok(), "the engine runs");
    assert!(engine.join());
}
