//! Batch invariance with rules: answers do not depend on who runs beside them, on chunks, or on preemptions.

use contract::Sampling;
use gpu_worker::engine::planner::Limits;
use gpu_worker::engine::prefix::CacheScope;
use gpu_worker::engine::random::philox;
use gpu_worker::forward::trivial::Ending as ModelEnding;
use gpu_worker::grammar::Grammars;

use crate::cases;
use crate::run::{Answer, Ask, noise, run, tiny_tokenizer};

const REQUESTS: u64 = 60;

fn draw(seed: u32, what: u32, below: usize) -> usize {
    philox([seed, what, 0, 0], [31, 32])[0] as usize % below
}

#[test]
fn any_mix_gives_each_request_what_it_gets_alone() {
    let tokenizer = tiny_tokenizer();
    let rules = cases::all();
    let ask = |id: u64| {
        // Every fourth request has no rule.
        let rule = (!id.is_multiple_of(4)).then(|| rules[id as usize % rules.len()].clone());
        let n_prompt = 1 + draw(id as u32, 1, 40);
        let prompt = (0..n_prompt).map(|at| draw(id as u32, 50 + at as u32, 256) as u32).collect();
        let sampling = Sampling {
            temperature: if id.is_multiple_of(3) { 0.0 } else { 1.0 },
            repetition_penalty: if id % 5 == 1 { 1.3 } else { 1.0 },
            frequency_penalty: if id % 5 == 2 { 0.7 } else { 0.0 },
            logit_bias: if id % 5 == 3 { [(34, 5.0), (44, -5.0)].into() } else { Default::default() },
            ..Sampling::default()
        };
        let scope = (id % 2 == 1).then(|| CacheScope::from_key([9; 32]));
        Ask { prompt, max_tokens: 60, sampling, scope, ..Ask::new(id, rule) }
    };
    // Grammars that are compiled anew for each give what kept ones give.
    let alone: Vec<Answer> = (0..REQUESTS)
        .map(|id| {
            let grammars = Grammars::new(tokenizer.clone());
            let mut forward = noise(&tokenizer, 64, ModelEnding::Never);
            let limits = Limits { max_sequences: 1, step_tokens: 64, ..Limits::default() };
            run(&mut forward, vec![ask(id).prepared(&grammars, &tokenizer)], limits, 64, 0).0.remove(&id).unwrap()
        })
        .collect();
    let grammars = Grammars::new(tokenizer.clone());
    let (mut preemptions, mut compared) = (0, 0);
    for mix in 0..80 {
        let n = 2 + draw(mix, 1, 12);
        let ids = (0..n).map(|at| draw(mix, 10 + at as u32, REQUESTS as usize) as u64);
        let ids: std::collections::BTreeSet<u64> = ids.collect();
        let n_blocks = 8 + draw(mix, 2, 12);
        let limits =
            Limits { max_sequences: 1 + draw(mix, 3, 10), step_tokens: 1 + draw(mix, 4, 40), ..Limits::default() };
        let mut forward = noise(&tokenizer, n_blocks, ModelEnding::Never);
        let prepared = ids.iter().map(|id| ask(*id).prepared(&grammars, &tokenizer)).collect();
        let (answers, preempted) = run(&mut forward, prepared, limits, n_blocks, draw(mix, 5, 3));
        for id in ids {
            assert_eq!(answers[&id], alone[id as usize], "mix {mix}, request {id}");
            compared += 1;
        }
        preemptions += preempted;
    }
    println!("{compared} answers equal, {preemptions} preemptions");
    assert!(preemptions > 50, "the small pools were meant to preempt, and did {preemptions} times");
}
