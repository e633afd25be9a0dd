//! What prompts give of themselves, scores and vectors, against one pass over the whole prompt; and that they give it in any
//! company, however they are cut, and whatever is found in the cache.

use contract::Pooling;

use super::*;
use crate::engine::planner::SCORED_ROWS;
use crate::engine::prefix::CacheScope;
use crate::engine::sequence::{PromptGives, PromptOutput};
use crate::engine::single::SingleLimits;
use crate::forward::push_span;

/// The logits and the hidden states of all tokens of a prompt, from one pass.
fn whole(prompt: &[u32]) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let n_blocks = prompt.len().div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..n_blocks as u32).collect();
    let mut plan = StepPlan::default();
    push_span(&mut plan, prompt, 0, &blocks, 0..prompt.len());
    let logits = forward(n_blocks, ModelEnding::Never).step(&plan).unwrap();
    plan.hidden_rows = std::mem::take(&mut plan.logit_rows);
    let hidden = forward(n_blocks, ModelEnding::Never).step(&plan).unwrap();
    let all = 0..prompt.len();
    (
        all.clone().map(|row| logits.row(row).to_vec()).collect(),
        all.map(|row| hidden.hidden_row(row).to_vec()).collect(),
    )
}

/// A token's score: the bits of its log-probability, its rank, and the likeliest tokens with theirs.
type Score = (u32, u32, Vec<(u32, u32)>);

/// What a sequence's prompt gave: scores in order, and the vector's bits.
#[derive(Debug, Default, PartialEq)]
struct Given {
    scores: Vec<Score>,
    vector: Option<Vec<u32>>,
}

fn gather(given: &mut HashMap<u64, Given>, prompts: &[PromptOutput]) {
    for prompt in prompts {
        let entry = given.entry(prompt.id.0).or_default();
        match &prompt.gives {
            PromptGives::Scores(scores) => entry.scores.extend(scores.iter().map(|scored| {
                let top = scored.top.iter().map(|(id, logprob)| (*id, logprob.to_bits()));
                (scored.logprob.to_bits(), scored.rank, top.collect())
            })),
            PromptGives::Vector(vector) => {
                assert!(entry.vector.is_none(), "a vector is given once");
                entry.vector = Some(vector.iter().map(|x| x.to_bits()).collect());
            }
        }
    }
}

/// Steps until idle; `admit` is asked before every step and says whether more will come.
fn give(
    n_blocks: usize,
    planner: &mut Planner,
    mut admit: impl FnMut(usize, &mut Planner) -> bool,
) -> (HashMap<u64, Given>, Run) {
    let (mut given, mut run) = (HashMap::new(), Run::default());
    let mut forward = forward(n_blocks, ModelEnding::Never);
    for step in 0.. {
        assert!(step < 100_000, "the planner does not come to an end");
        let more = admit(step, planner);
        let mut out = StepOutput::default();
        if let Some(plan) = planner.plan() {
            let ours = plan.logit_rows.len().saturating_sub(plan.spans.len());
            assert!(ours <= SCORED_ROWS, "{} rows of logits for {} sequences", plan.logit_rows.len(), plan.spans.len());
            let logits = forward.step(&plan).expect("a right plan never reads an unwritten slot");
            planner.commit(&plan, &logits, &mut out);
        } else if !more {
            break;
        }
        gather(&mut given, &out.prompts);
        collect(&mut run, out);
        planner.assert_whole();
    }
    run.preemptions = planner.preemptions();
    assert_eq!(planner.pool().n_used(), 0, "K-1: all blocks are free at the end");
    (given, run)
}

fn limits(max_sequences: usize, step_tokens: usize) -> Limits {
    Limits { max_sequences, step_tokens, ..Limits::default() }
}

fn alone(prepared: Prepared) -> Given {
    let (id, mut planner) = (prepared.id.0, Planner::new(limits(1, 512), 64));
    planner.admit(Prepared { scope: None, ..prepared });
    give(64, &mut planner, |_, _| false).0.remove(&id).unwrap_or_default()
}

#[test]
fn scores_are_log_probabilities_and_ranks_of_the_tokens_behind_the_first() {
    for n_prompt in [1, 2, 16, 17, 64, 65, 66, 200] {
        let sequence = Prepared { of_prompt: OfPrompt::Scores(3), ..prepared(2, n_prompt, 0) };
        let prompt = sequence.prompt.clone();
        let (rows, _) = whole(&prompt);
        let given = alone(sequence);
        assert_eq!(given.scores.len(), n_prompt - 1);
        for (at, (bits, rank, top)) in given.scores.iter().enumerate() {
            let row = &rows[at];
            let own = row[prompt[at + 1] as usize];
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            let expected = f64::from(own) - sum.ln();
            assert!((f64::from(f32::from_bits(*bits)) - expected).abs() < 1e-5, "token {at} of {n_prompt}");
            let mut ids: Vec<u32> = (0..97).collect();
            ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
            assert_eq!(ids[*rank as usize - 1], prompt[at + 1]);
            assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids[..3]);
        }
    }
}

#[test]
fn vectors_are_the_last_state_or_the_mean_of_all() {
    for n_prompt in [1, 2, 16, 17, 300] {
        let sequence = |pooling| Prepared { of_prompt: OfPrompt::Vector(pooling), ..prepared(3, n_prompt, 0) };
        let (_, states) = whole(&sequence(Pooling::Last).prompt);
        let bits = |vector: &[f32]| Some(vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        let last = alone(sequence(Pooling::Last));
        assert_eq!((last.vector, last.scores.len()), (bits(&states[n_prompt - 1]), 0));
        let mean: Vec<f32> = (0..states[0].len())
            .map(|at| (states.iter().map(|state| f64::from(state[at])).sum::<f64>() / n_prompt as f64) as f32)
            .collect();
        assert_eq!(alone(sequence(Pooling::Mean)).vector, bits(&mean));
    }
}

/// One of a mix: beginnings alike, ends of their own; tokens alone, scores with an answer or without, or a vector.
fn in_mix(seed: u32, id: u64) -> Prepared {
    let draw = |what: u32, below: u32| philox([seed, id as u32, what, 0], [53, 54])[0] % below;
    let family = draw(0, 3);
    let mut prompt: Vec<u32> = (0..1 + draw(1, 90)).map(|at| philox([at, family, 0, 0], [55, 56])[0] % 97).collect();
    prompt.extend((0..1 + draw(2, 20)).map(|at| philox([at, id as u32, 1, 0], [55, 56])[0] % 97));
    let max_tokens = 1 + draw(3, 40);
    let (of_prompt, max_tokens) = match draw(4, 6) {
        0 => (OfPrompt::Nothing, max_tokens),
        1 => (OfPrompt::Scores(draw(5, 4) as u8), max_tokens),
        2 => (OfPrompt::Scores(draw(5, 4) as u8), 0),
        3 => (OfPrompt::Vector(Pooling::Last), 0),
        4 => (OfPrompt::Vector(Pooling::Mean), 0),
        _ => (OfPrompt::Nothing, 0),
    };
    let scope = (draw(6, 8) > 0).then(|| CacheScope::from_key([5; 32]));
    Prepared { prompt, of_prompt, scope, ..prepared(id, 1, max_tokens) }
}

#[test]
fn any_mix_gives_each_prompt_what_it_gives_alone() {
    let (mut preemptions, mut n_found, mut n_scored, mut n_vectors) = (0, 0, 0, 0);
    for seed in 0..200u32 {
        let number = |what: u32, below: u32| philox([seed, what, 0, 0], [57, 58])[0] % below;
        let (n_sequences, n_blocks) = (2 + u64::from(number(0, 14)), 12 + number(1, 20) as usize);
        let singles = SingleLimits { largest_batch: 1 + number(4, 6) as usize, ..SingleLimits::default() };
        let limits = Limits { singles, ..limits(1 + number(2, 8) as usize, 1 + number(3, 150) as usize) };
        let mut planner = Planner::new(limits, n_blocks);
        let mut next = 0;
        let (given, run) = give(n_blocks, &mut planner, |step, planner| {
            while next < n_sequences && number(100 + step as u32, 3) > 0 {
                planner.admit(in_mix(seed, next));
                next += 1;
            }
            next < n_sequences
        });
        for id in 0..n_sequences {
            let sequence = in_mix(seed, id);
            let (n_prompt, of_prompt, max_tokens) = (sequence.prompt.len(), sequence.of_prompt, sequence.max_tokens);
            let expected = alone(sequence);
            assert_eq!(
                given.get(&id).unwrap_or(&Given::default()),
                &expected,
                "seed {seed}, sequence {id}, {of_prompt:?}"
            );
            let ended = &run.ended[&id];
            assert_eq!((ended.prompt_tokens as usize, ended.output_tokens), (n_prompt, max_tokens), "{of_prompt:?}");
            match of_prompt {
                // Case 34 of what others got wrong: a block that is found gives no row.
                OfPrompt::Scores(_) | OfPrompt::Vector(Pooling::Mean) => assert_eq!(ended.cached_tokens, 0),
                OfPrompt::Nothing | OfPrompt::Vector(Pooling::Last) => n_found += u32::from(ended.cached_tokens > 0),
            }
            n_scored += expected.scores.len();
            n_vectors += usize::from(expected.vector.is_some());
        }
        preemptions += run.preemptions;
    }
    assert!(
        preemptions > 30 && n_found > 100 && n_scored > 10_000 && n_vectors > 200,
        "{preemptions} preemptions, {n_found} found blocks, {n_scored} tokens scored, {n_vectors} vectors"
    );
}

#[test]
fn a_scored_prompt_finds_nothing_and_leaves_its_blocks_to_find() {
    let scope = Some(CacheScope::from_key([9; 32]));
    let prompt: Vec<u32> = (0..100).map(|at| at * 7 % 97).collect();
    let found = |kinds: &[(OfPrompt, u32)]| {
        let one = |(id, (of_prompt, max_tokens)): (u64, &(OfPrompt, u32))| Prepared {
            scope,
            prompt: prompt.clone(),
            of_prompt: *of_prompt,
            ..prepared(id, 1, *max_tokens)
        };
        let mut coming: std::collections::VecDeque<Prepared> = (0..).zip(kinds).map(one).collect();
        let mut planner = Planner::new(limits(4, 512), 64);
        let (_, run) = give(64, &mut planner, |_, planner| {
            if planner.is_idle()
                && let Some(next) = coming.pop_front()
            {
                planner.admit(next);
            }
            !coming.is_empty()
        });
        (0..kinds.len() as u64).map(|id| run.ended[&id].cached_tokens).collect::<Vec<_>>()
    };
    let (mean, last) = (OfPrompt::Vector(Pooling::Mean), OfPrompt::Vector(Pooling::Last));
    let kinds = [(OfPrompt::Nothing, 1), (OfPrompt::Scores(0), 1), (mean, 0), (last, 0), (OfPrompt::Nothing, 1)];
    assert_eq!(found(&kinds), [0, 0, 0, 96, 96]);
    for first in [OfPrompt::Scores(0), mean, last] {
        assert_eq!(found(&[(first, 0), (OfPrompt::Nothing, 1)]), [0, 96], "what {first:?} wrote is as good as any");
    }
}

#[test]
fn long_prompts_that_are_scored_do_not_hold_up_those_that_generate() {
    let mut planner = Planner::new(limits(4, 256), 64);
    for id in 0..3 {
        planner.admit(Prepared { of_prompt: OfPrompt::Scores(0), ..prepared(id, 200, 0) });
    }
    planner.admit(prepared(7, 20, 3));
    let plan = planner.plan().unwrap();
    let spans: Vec<_> = plan.spans.iter().map(|span| (span.sequence.0, span.len)).collect();
    // The first takes all the rows that can be scored; the answer's prompt goes beside it.
    assert_eq!(spans, [(0, SCORED_ROWS as u32), (7, 20)]);
    assert_eq!(plan.logit_rows.len(), SCORED_ROWS + 1);
}

#[test]
fn a_step_has_no_more_singles_than_a_batch_and_they_take_no_places_of_answers() {
    let singles = SingleLimits { largest_batch: 3, ..SingleLimits::default() };
    let mut planner = Planner::new(Limits { singles, ..limits(2, 512) }, 64);
    for id in 0..5 {
        planner.admit(prepared(id, 10, 4));
        planner.admit(Prepared { of_prompt: OfPrompt::Vector(Pooling::Last), ..prepared(100 + id, 10, 0) });
    }
    let plan = planner.plan().unwrap();
    let mut who: Vec<u64> = plan.spans.iter().map(|span| span.sequence.0).collect();
    who.sort_unstable();
    assert_eq!(who, [0, 1, 100, 101, 102]);
    assert_eq!((plan.logit_rows.len(), plan.hidden_rows.len()), (2, 3));
}

#[test]
fn numbers_that_are_not_finite_end_the_prompt_that_has_them() {
    for (of_prompt, max_tokens) in [(OfPrompt::Scores(1), 0), (OfPrompt::Vector(Pooling::Mean), 0)] {
        let mut planner = Planner::new(limits(4, 512), 64);
        for id in 0..2 {
            planner.admit(Prepared { of_prompt, ..prepared(id, 10, max_tokens) });
        }
        let plan = planner.plan().unwrap();
        let mut logits = forward(64, ModelEnding::Never).step(&plan).unwrap();
        // In a row of the first one, and not its last.
        let broken = if logits.data.is_empty() { &mut logits.hidden[30] } else { &mut logits.data[100] };
        *broken = f32::NAN;
        let mut out = StepOutput::default();
        planner.commit(&plan, &logits, &mut out);
        out.ended.sort_by_key(|ended| ended.id);
        assert!(matches!(&out.ended[0].ending, Ending::Failed(err) if err.code == contract::ErrorCode::NotFinite));
        assert!(matches!(out.ended[1].ending, Ending::Finished { .. }), "the other one has rows of its own");
        assert_eq!((out.prompts.len(), out.prompts[0].id.0), (1, 1));
    }
}

#[test]
fn the_engine_gathers_singles_and_ends_them_when_it_stops() {
    let singles = SingleLimits { largest_batch: 4, longest_wait: Duration::from_secs(3_600) };
    let limits = Limits { singles, ..limits(2, 64) };
    let mut engine = spawn(Box::new(forward(64, ModelEnding::Never)), limits, FaultPoint::default()).unwrap();
    let vector = |id| Prepared { of_prompt: OfPrompt::Vector(Pooling::Last), ..prepared(id, 6, 0) };
    for id in 0..5 {
        engine.commands.blocking_send(Command::Start(Box::new(vector(id)))).ok().unwrap();
    }
    let (mut given, mut ended) = (HashMap::new(), Vec::new());
    while ended.len() < 4 {
        let out = engine.outputs.blocking_recv().unwrap();
        gather(&mut given, &out.prompts);
        ended.extend(out.ended);
    }
    for id in 0..4 {
        assert_eq!(given[&id], alone(vector(id)));
    }
    assert_eq!(engine.status.read().steps, 1, "four that wait are one step");
    // The fifth waits for company that never comes.
    engine.commands.blocking_send(Command::Stop).ok().unwrap();
    let last = engine.outputs.blocking_recv().unwrap();
    assert_eq!((last.ended[0].id.0, &last.ended[0].ending), (4, &Ending::Dropped));
    assert!(engine.join());
}
