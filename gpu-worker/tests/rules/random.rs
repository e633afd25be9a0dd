//! Every rule against models that say anything: noise, and the tiny model with its random weights.

use gpu_worker::engine::plan::Forward;
use gpu_worker::engine::planner::Limits;
use gpu_worker::forward::trivial::Ending as ModelEnding;
use gpu_worker::grammar::Grammars;

use crate::cases;
use crate::run::{Ask, at, noise, run, tiny, tiny_tokenizer};

/// Runs every rule `times` times; answers how many finished, of how many.
fn check(forward: &mut dyn Forward, times: u64, temperature: f32) -> (usize, usize) {
    let tokenizer = tiny_tokenizer();
    let grammars = Grammars::new(tokenizer.clone());
    let rules = cases::all();
    let (mut finished, mut all) = (0, 0);
    for time in 0..times {
        let asks = rules.iter().enumerate().map(|(nth, rule)| {
            let ask = Ask::new(time * 1_000 + nth as u64, Some(rule.clone()));
            Ask { sampling: at(temperature), ..ask }.prepared(&grammars, &tokenizer)
        });
        let limits = Limits { max_sequences: 16, step_tokens: 64, ..Limits::default() };
        let (answers, _) = run(forward, asks.collect(), limits, 600, 0);
        for (id, answer) in answers {
            let rule = &rules[id as usize % 1_000].rule;
            assert!(answer.is_whole() || answer.is_cut(), "{rule:?}: {answer:?}");
            all += 1;
            if answer.is_whole() {
                finished += 1;
                let fault = cases::fault(rule, &answer.text);
                assert!(fault.is_none(), "{rule:?} gave {:?}: {}", answer.text, fault.unwrap());
            }
        }
    }
    (finished, all)
}

#[test]
fn whatever_noise_says_a_finished_answer_keeps_to_its_rule() {
    let (finished, all) = check(&mut noise(&tiny_tokenizer(), 600, ModelEnding::Never), 12, 1.0);
    println!("noise: {finished} of {all} finished");
    assert!(finished * 10 > all * 7, "only {finished} of {all} finished");
}

#[test]
fn whatever_the_tiny_model_says_a_finished_answer_keeps_to_its_rule() {
    let mut forward = tiny(600);
    for temperature in [0.0, 1.0, 2.0] {
        let (finished, all) = check(&mut forward, 2, temperature);
        println!("tiny at {temperature}: {finished} of {all} finished");
        assert!(finished * 2 > all, "only {finished} of {all} finished");
    }
}
