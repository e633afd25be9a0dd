//! Sequences that begin alike: what they share, what it changes (the work) and what it must not change (the answers).

use super::*;
use crate::engine::prefix::CacheScope;

const A: [u8; 32] = [1; 32];
const B: [u8; 32] = [2; 32];

fn with_scope(key: [u8; 32], prompt: Vec<u32>, sequence: Prepared) -> Prepared {
    Prepared { scope: Some(CacheScope::from_key(key)), prompt, ..sequence }
}

fn text(n: usize, salt: u32) -> Vec<u32> {
    (0..n).map(|at| philox([at as u32, salt, 0, 0], [41, 42])[0] % 97).collect()
}

/// Runs these to their end, one after the other in one planner; answers the run and the tokens that were computed for each.
fn one_by_one(n_blocks: usize, sequences: Vec<Prepared>) -> (Run, Vec<usize>) {
    let mut forward = forward(n_blocks, ModelEnding::Never);
    let mut planner = Planner::new(Limits { max_sequences: 4, step_tokens: 512 }, n_blocks);
    let (mut run, mut computed) = (Run::default(), Vec::new());
    for sequence in sequences {
        planner.admit(sequence);
        computed.push(0);
        while let Some(plan) = planner.plan() {
            *computed.last_mut().unwrap() += plan.n_tokens();
            step(&mut forward, &mut planner, &plan, &mut run);
        }
    }
    (run, computed)
}

fn step(forward: &mut TrivialForward, planner: &mut Planner, plan: &StepPlan, run: &mut Run) {
    let mut out = StepOutput::default();
    let logits = forward.step(plan).expect("a right plan never reads an unwritten slot");
    planner.commit(plan, &logits, &mut out);
    planner.assert_whole();
    collect(run, out);
}

#[test]
fn a_beginning_is_computed_once_and_found_in_its_own_scope_alone() {
    let prompt = text(100, 1);
    let longer = [&prompt[..], &text(20, 2)].concat();
    let one = |id, key, prompt: &[u32]| with_scope(key, prompt.to_vec(), prepared(id, 1, 1));
    let sequences = vec![
        one(0, A, &prompt),
        one(1, A, &prompt),
        // All its 96 tokens are there, and the last must be computed: it shares five blocks of the six.
        one(2, A, &prompt[..96]),
        one(3, A, &longer),
        one(4, B, &prompt),
        Prepared { prompt: prompt.clone(), ..prepared(5, 1, 1) },
        one(6, B, &prompt),
    ];
    let (run, computed) = one_by_one(64, sequences);
    let found: Vec<u32> = (0..7).map(|id| run.ended[&id].cached_tokens).collect();
    assert_eq!(found, [0, 96, 80, 96, 0, 0, 96]);
    assert_eq!(computed, [100, 4, 16, 24, 100, 100, 4]);
    assert!((0..7).all(|id| run.ended[&id].prompt_tokens as usize == [100, 100, 96, 120, 100, 100, 100][id as usize]));
}

#[test]
fn what_was_generated_is_found_by_the_next_turn() {
    let first = with_scope(A, text(10, 1), prepared(2, 1, 30));
    let (run, _) = one_by_one(64, vec![first]);
    let answer: Vec<u32> = run.tokens[&2].iter().map(|(id, _)| *id).collect();
    let next = [text(10, 1), answer, text(5, 2)].concat();
    let first = with_scope(A, text(10, 1), prepared(2, 1, 30));
    let (run, _) = one_by_one(64, vec![first, with_scope(A, next, prepared(4, 1, 3))]);
    // 40 tokens, the last of which was never written: two blocks of 16 are whole.
    assert_eq!(run.ended[&4].cached_tokens, 32);
}

#[test]
fn a_preempted_sequence_finds_what_it_had_computed_and_is_not_told_of_it_as_cached() {
    let both = |scope: Option<CacheScope>| {
        let mut planner = Planner::new(Limits { max_sequences: 2, step_tokens: 64 }, 12);
        for id in 0..2 {
            planner.admit(Prepared { scope, ..prepared(id, 60, 60) });
        }
        let mut forward = forward(12, ModelEnding::Never);
        let (mut result, mut computed) = (Run::default(), 0);
        while let Some(plan) = planner.plan() {
            computed += plan.n_tokens();
            step(&mut forward, &mut planner, &plan, &mut result);
        }
        assert!(planner.preemptions() > 0);
        assert!(result.ended.values().all(|ended| (ended.prompt_tokens, ended.cached_tokens) == (60, 0)));
        (result.tokens, computed)
    };
    let (tokens, computed) = both(Some(CacheScope::from_key(A)));
    let (tokens_without, computed_without) = both(None);
    assert_eq!(tokens, tokens_without);
    assert_eq!(tokens[&0], alone(0, 60, 60));
    assert!(computed < computed_without, "{computed} tokens were computed, and {computed_without} without sharing");
}

#[test]
fn what_others_use_costs_no_room_and_what_is_cached_counts_as_room() {
    let prompt = text(80, 1);
    let mut planner = Planner::new(Limits { max_sequences: 4, step_tokens: 512 }, 10);
    let mut forward = forward(10, ModelEnding::Never);
    let mut run = Run::default();
    planner.admit(with_scope(A, prompt.clone(), prepared(0, 1, 10)));
    let plan = planner.plan().unwrap();
    step(&mut forward, &mut planner, &plan, &mut run);
    // Seven blocks in all; four are free, and it needs two beside the five that it shares.
    planner.admit(with_scope(A, [&prompt[..], &text(20, 2)].concat(), prepared(1, 1, 10)));
    let plan = planner.plan().unwrap();
    assert_eq!((planner.n_running(), plan.spans.len(), plan.spans[1].context), (2, 2, 80));
    assert_eq!(plan.spans[0].blocks[..5], plan.spans[1].blocks[..5]);
    step(&mut forward, &mut planner, &plan, &mut run);
    while let Some(plan) = planner.plan() {
        step(&mut forward, &mut planner, &plan, &mut run);
    }
    assert_eq!((planner.pool().n_used(), planner.pool().n_free()), (0, 10));
    assert!(planner.pool().n_cached() >= 6, "{}", planner.pool().n_cached());
    planner.admit(prepared(3, 150, 8));
    assert_eq!(planner.plan().unwrap().n_tokens(), 150);
    planner.abort_all(&mut StepOutput::default());
}

#[test]
fn of_two_that_share_blocks_only_the_one_that_failed_ends_and_nobody_finds_what_it_left() {
    let prompt = text(64, 1);
    let mut planner = Planner::new(Limits { max_sequences: 4, step_tokens: 512 }, 32);
    let mut forward = forward(32, ModelEnding::Never);
    let mut run = Run::default();
    let one = |id: u64| with_scope(A, [&prompt[..], &text(9, id as u32)].concat(), prepared(id, 1, 20));
    planner.admit(one(0));
    let plan = planner.plan().unwrap();
    step(&mut forward, &mut planner, &plan, &mut run);
    planner.admit(one(1));
    let plan = planner.plan().unwrap();
    assert_eq!(plan.spans[0].blocks[0], plan.spans[1].blocks[0]);
    let mut out = StepOutput::default();
    let logits = forward.step(&plan.only(0)).unwrap();
    planner.commit(&plan.only(0), &logits, &mut out);
    planner.fail(&plan.only(1), "out of luck", &mut out);
    planner.assert_whole();
    assert_eq!(out.ended.iter().map(|ended| ended.id.0).collect::<Vec<_>>(), [1]);
    collect(&mut run, out);
    planner.admit(one(2));
    let plan = planner.plan().unwrap();
    assert_eq!((plan.spans.len(), plan.spans[1].context), (2, 0), "what failed had shared it: computed anew");
    step(&mut forward, &mut planner, &plan, &mut run);
    while let Some(plan) = planner.plan() {
        step(&mut forward, &mut planner, &plan, &mut run);
    }
    for id in [0, 2] {
        let (alone, _) = one_by_one(32, vec![one(id)]);
        assert_eq!(run.tokens[&id], alone.tokens[&id]);
    }
}

/// A sequence of a mix: one of few beginnings, cut anywhere, an end of its own, and one of two scopes or none.
fn in_mix(seed: u32, id: u64) -> Prepared {
    let draw = |what: u32, below: u32| philox([seed, id as u32, what, 0], [43, 44])[0] % below;
    let mut prompt = text(80, 100 + draw(0, 3));
    prompt.truncate(draw(1, 81) as usize);
    prompt.extend(text(1 + draw(2, 20) as usize, 1_000 + id as u32));
    let sequence = prepared(id, 1, 1 + draw(3, 60));
    match draw(4, 8) {
        0 => Prepared { prompt, ..sequence },
        1 => with_scope(B, prompt, sequence),
        _ => with_scope(A, prompt, sequence),
    }
}

#[test]
fn any_mix_of_sequences_that_share_gives_each_what_it_gets_alone() {
    let (mut preemptions, mut found, mut n_found) = (0, 0, 0);
    for seed in 0..200u32 {
        let number = |what: u32, below: u32| philox([seed, what, 0, 0], [45, 46])[0] % below;
        let n_sequences = 2 + u64::from(number(0, 12));
        let n_blocks = 12 + number(1, 20) as usize;
        let limits = Limits { max_sequences: 1 + number(2, 8) as usize, step_tokens: 1 + number(3, 64) as usize };
        let mut planner = Planner::new(limits, n_blocks);
        let mut next = 0;
        let result = run(&mut forward(n_blocks, ModelEnding::Never), &mut planner, |step, planner| {
            while next < n_sequences && number(100 + step as u32, 3) > 0 {
                planner.admit(in_mix(seed, next));
                next += 1;
            }
            next < n_sequences
        });
        for id in 0..n_sequences {
            let mut lone = Planner::new(Limits { max_sequences: 1, step_tokens: 512 }, 64);
            let sequence = in_mix(seed, id);
            let (n_prompt, shares) = (sequence.prompt.len() as u32, sequence.scope.is_some());
            lone.admit(Prepared { scope: None, ..sequence });
            let alone = run(&mut forward(64, ModelEnding::Never), &mut lone, |_, _| false);
            assert_eq!(result.tokens[&id], alone.tokens[&id], "seed {seed}, sequence {id}");
            let ended = &result.ended[&id];
            assert_eq!(ended.prompt_tokens, n_prompt);
            assert!(ended.cached_tokens < n_prompt && ended.cached_tokens.is_multiple_of(BLOCK_TOKENS as u32));
            assert!(shares || ended.cached_tokens == 0);
            found += ended.cached_tokens;
            n_found += u32::from(ended.cached_tokens > 0);
        }
        preemptions += result.preemptions;
    }
    assert!(preemptions > 100 && n_found > 300, "{preemptions} preemptions, {n_found} found {found} tokens");
}

#[test]
fn ten_thousand_random_events_leave_the_pool_whole() {
    let mut planner = Planner::new(Limits { max_sequences: 6, step_tokens: 48 }, 30);
    let mut forward = forward(30, ModelEnding::Never);
    let (mut run, mut marks) = (Run::default(), Vec::new());
    let (mut next, mut failed) = (0u64, 0);
    for event in 0..10_000u32 {
        let draw = |what: u32, below: u32| philox([event, what, 0, 0], [47, 48])[0] % below;
        let mut out = StepOutput::default();
        match draw(0, 16) {
            0..=2 if planner.n_running() + planner.n_waiting() < 12 => {
                let sequence = in_mix(7, next);
                marks.push(sequence.mark.clone());
                let deadline = (draw(1, 8) == 0).then(Instant::now);
                planner.admit(Prepared { deadline, ..sequence });
                next += 1;
            }
            // A cancel or a lost lease: of one that came lately, so that it is often still there.
            3 if !marks.is_empty() => marks[marks.len() - 1 - draw(1, marks.len().min(10) as u32) as usize].set(),
            4 => planner.sweep(Instant::now(), &mut out),
            5 => {
                if let Some(plan) = planner.plan() {
                    planner.fail(&plan.only(draw(1, plan.spans.len() as u32) as usize), "out of luck", &mut out);
                    failed += out.ended.len();
                }
            }
            _ => {
                if let Some(plan) = planner.plan() {
                    let logits = forward.step(&plan).expect("a right plan never reads an unwritten slot");
                    planner.commit(&plan, &logits, &mut out);
                }
            }
        }
        planner.assert_whole();
        collect(&mut run, out);
    }
    let mut out = StepOutput::default();
    planner.abort_all(&mut out);
    collect(&mut run, out);
    planner.assert_whole();
    assert_eq!((planner.pool().n_used(), planner.pool().n_free()), (0, 30));
    assert_eq!(run.ended.len() as u64, next, "each has ended once");
    let count = |wanted: fn(&Ending) -> bool| run.ended.values().filter(|ended| wanted(&ended.ending)).count();
    let finished = count(|ending| matches!(ending, Ending::Finished { .. }));
    let dropped = count(|ending| *ending == Ending::Dropped);
    let late = count(|ending| *ending == Ending::DeadlinePassed);
    let found = run.ended.values().filter(|ended| ended.cached_tokens > 0).count();
    assert!(
        [finished, dropped, late, failed, found].iter().all(|n| *n > 50) && planner.preemptions() > 20,
        "{next} came: {finished} finished, {dropped} dropped, {late} late, {failed} failed; {found} found blocks; {} preemptions",
        planner.preemptions()
    );
}

/// All admitted at once: one computes the beginning, the others wait for it, and those that have another go before them.
#[test]
fn a_beginning_is_computed_once_by_those_that_come_together() {
    let (prompt, other) = (text(100, 1), text(40, 2));
    let mut planner = Planner::new(Limits { max_sequences: 8, step_tokens: 64 }, 64);
    for id in 0..4 {
        planner.admit(with_scope(A, prompt.clone(), prepared(id, 1, 5)));
    }
    planner.admit(with_scope(A, other, prepared(4, 1, 5)));
    planner.admit(with_scope(B, prompt.clone(), prepared(5, 1, 5)));
    let mut forward = forward(64, ModelEnding::Never);
    let mut run = Run::default();
    let mut spans = Vec::new();
    while let Some(plan) = planner.plan() {
        let of_step = plan.spans.iter().map(|span| (span.sequence.0, span.context, span.len));
        spans.push(of_step.filter(|(_, context, _)| *context < 100).collect::<Vec<_>>());
        step(&mut forward, &mut planner, &plan, &mut run);
    }
    assert_eq!(spans[0], [(0, 0, 64)], "the first takes the whole step");
    // Then 36 of the first and 28 of 64: the three that begin like it have found four blocks of six, and wait for the rest.
    assert_eq!(spans[1], [(0, 64, 36), (4, 0, 28)]);
    let found = [1, 2, 3].map(|id| (id, 96, 4));
    assert!(found.iter().all(|span| spans[2].contains(span)), "{spans:?}");
    let cached: Vec<u32> = (0..6).map(|id| run.ended[&id].cached_tokens).collect();
    assert_eq!(cached, [0, 96, 96, 96, 0, 0]);
    assert_eq!(run.ended.len(), 6);
}
