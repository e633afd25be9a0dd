use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn how(temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32, seed: u64) -> Choosing {
    let sampling = Sampling { temperature, top_k, top_p, min_p, seed: Some(seed), ..Sampling::default() };
    Choosing { sampling, seed, logprobs: None }
}

fn chosen(row: &[f32], how: &Choosing, position: u32, banned: &[u32]) -> Result<Chosen, NotFinite> {
    choose(row, &Next { how, position, banned, adjustment: None }, &mut Scratch::default())
}

fn pick(row: &[f32], how: &Choosing, position: u32, banned: &[u32]) -> u32 {
    chosen(row, how, position, banned).unwrap().id
}

#[test]
fn greedy_takes_the_first_of_the_largest_and_heeds_bans() {
    let row = [0.5, 2.0, 2.0, -1.0];
    let greedy = how(0.0, None, 1.0, 0.0, 1);
    assert_eq!(pick(&row, &greedy, 0, &[]), 1);
    assert_eq!(pick(&row, &greedy, 0, &[1]), 2);
    assert_eq!(pick(&row, &greedy, 0, &[1, 2]), 0);
}

#[test]
fn not_finite_rows_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut row = vec![0.0; 40];
        row[37] = bad;
        let answer = chosen(&row, &how(0.0, None, 1.0, 0.0, 1), 0, &[]);
        assert_eq!(answer, Err(NotFinite));
    }
}

/// Frequencies over 40,000 draws against probabilities worked out by hand: weights 4, 2, 1, 1 of 8.
#[test]
fn draws_follow_the_distribution() {
    let row = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    let check = |how: &Choosing, expected: [f64; 4]| {
        let mut counts = [0u32; 4];
        for position in 0..40_000 {
            counts[pick(&row, how, position, &[]) as usize] += 1;
        }
        for (count, expected) in counts.iter().zip(expected) {
            assert!((f64::from(*count) / 40_000.0 - expected).abs() < 0.01, "{counts:?} for {expected:?}");
        }
    };
    check(&how(1.0, None, 1.0, 0.0, 5), [0.5, 0.25, 0.125, 0.125]);
    check(&how(1.0, Some(2), 1.0, 0.0, 5), [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    check(&how(1.0, None, 0.7, 0.0, 5), [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    check(&how(1.0, None, 1.0, 0.4, 5), [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    // Temperature 2 takes the square root of the weights: 2, 1.414, 1, 1 of 5.414.
    check(&how(2.0, None, 1.0, 0.0, 5), [0.3694, 0.2612, 0.1847, 0.1847]);
    check(&how(1.0, Some(4), 1.0, 0.0, 5), [0.5, 0.25, 0.125, 0.125]);
}

#[test]
fn top_p_finds_its_border_beyond_the_first_head() {
    let row = vec![0.0f32; 3000];
    let how = how(1.0, None, 0.9, 0.0, 3);
    let seen = (0..20_000).map(|position| pick(&row, &how, position, &[])).max().unwrap();
    assert!((2600..2700).contains(&seen), "nine tenths of 3,000 equals end at 2,699, saw {seen}");
}

/// The cut is only a short cut: with it, every draw is the one without it.
#[test]
fn the_first_cut_takes_nothing_from_top_p_and_min_p() {
    for seed in 0..400u32 {
        let noise = |idx: u32| uniform(u64::from(seed), idx) as f32;
        let row: Vec<f32> = (0..700).map(|idx| (noise(idx) - 0.5) * 30.0 * noise(9_000)).collect();
        let sampling = Sampling {
            temperature: 0.2 + 1.8 * noise(9_001),
            top_p: 0.05 + 0.949 * noise(9_002),
            min_p: if seed % 3 == 0 { noise(9_003) * 0.5 } else { 0.0 },
            ..Sampling::default()
        };
        let with = Choosing { sampling, seed: 1, logprobs: None };
        // A top-k of everything changes nothing but takes the path without the cut.
        let mut without = with.clone();
        without.sampling.top_k = Some(700);
        for position in 0..20 {
            assert_eq!(pick(&row, &with, position, &[]), pick(&row, &without, position, &[]), "seed {seed}");
        }
    }
}

#[test]
fn banned_tokens_are_never_drawn() {
    let row = [3.0, 1.0, 0.0, 2.0];
    for position in 0..2_000 {
        let id = pick(&row, &how(1.0, None, 1.0, 0.0, 9), position, &[0, 3]);
        assert!(id == 1 || id == 2);
    }
}

#[test]
fn log_probabilities_are_those_of_the_plain_distribution() {
    let row = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    let how = Choosing { logprobs: Some(2), ..how(0.0, None, 1.0, 0.0, 1) };
    let chosen = chosen(&row, &how, 0, &[0]).unwrap();
    let (own, top) = chosen.logprobs.unwrap();
    assert_eq!(chosen.id, 1);
    assert!((own - 0.25f32.ln()).abs() < 1e-5);
    assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
    assert!((top[0].1 - 0.5f32.ln()).abs() < 1e-5);
}

#[test]
fn the_fast_exponential_is_close() {
    for step in 0..8_700 {
        let x = -(step as f32) / 100.0;
        let (fast, exact) = (f64::from(exp_fast(x)), f64::from(x).exp());
        assert!((fast - exact).abs() <= 3e-7 * exact, "{x}: {fast} and {exact}");
    }
    assert_eq!(exp_fast(-100.0), 0.0);
}

fn adjusted(row: &[f32], how: &Choosing, prompt: &[u32], output: &[u32]) -> Chosen {
    let mut adjustment = Adjustment::new(&how.sampling, prompt, 100).expect("something is asked for");
    output.iter().for_each(|id| adjustment.push(*id));
    let next = Next { how, position: output.len() as u32, banned: &[], adjustment: Some(&adjustment) };
    choose(row, &next, &mut Scratch::default()).unwrap()
}

/// Logits 3, 2, 1: a token that came n times loses n, so greedy takes 0; after it 2 and 2 tie and the smaller id wins;
/// then 1, 2, 1; then all are at 1.
#[test]
fn greedy_decoding_heeds_penalties() {
    let row = [3.0, 2.0, 1.0];
    let mut how = how(0.0, None, 1.0, 0.0, 1);
    how.sampling.frequency_penalty = 1.0;
    let mut output = Vec::new();
    for expected in [0, 0, 1, 0, 1, 2] {
        let id = adjusted(&row, &how, &[], &output).id;
        assert_eq!(id, expected, "after {output:?}");
        output.push(id);
    }
}

/// Weights 4, 2, 1, 1 of 8, and ln 4 more for the third: 4, 2, 4, 1 of 11. At temperature 0.5 the bias counts before it:
/// 16, 4, 16, 1 of 37.
#[test]
fn a_bias_moves_the_distribution_and_comes_before_the_temperature() {
    let row = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    for (temperature, weights) in [(1.0, [4.0, 2.0, 4.0, 1.0]), (0.5, [16.0, 4.0, 16.0, 1.0])] {
        let mut how = how(temperature, None, 1.0, 0.0, 5);
        how.sampling.logit_bias = BTreeMap::from([(2, 4f32.ln())]);
        let adjustment = Adjustment::new(&how.sampling, &[], 1).expect("a bias is asked for");
        let (mut counts, mut scratch) = ([0u32; 4], Scratch::default());
        for position in 0..40_000 {
            let next = Next { how: &how, position, banned: &[], adjustment: Some(&adjustment) };
            counts[choose(&row, &next, &mut scratch).unwrap().id as usize] += 1;
        }
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            assert!((f64::from(*count) / 40_000.0 - weight / total).abs() < 0.01, "{counts:?} for {weights:?}");
        }
    }
}

#[test]
fn log_probabilities_do_not_show_bias_and_penalties() {
    let row = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    let mut how = Choosing { logprobs: Some(1), ..how(0.0, None, 1.0, 0.0, 1) };
    how.sampling.logit_bias = BTreeMap::from([(3, 100.0)]);
    let chosen = adjusted(&row, &how, &[], &[]);
    let (own, top) = chosen.logprobs.unwrap();
    assert_eq!((chosen.id, top[0].0), (3, 0));
    assert!((own - 0.125f32.ln()).abs() < 1e-5 && (top[0].1 - 0.5f32.ln()).abs() < 1e-5);
}

/// A half, a quarter, two eighths have 1, 2, 3 and 3 bits, and an entropy of 1.75: the quarter is nearest, then the half,
/// then the eighths.
#[test]
fn typical_sampling_prefers_what_is_as_surprising_as_expected() {
    let row = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
    let seen = |typical_p: f32, top_k: Option<u32>| {
        let mut how = how(1.0, top_k, 1.0, 0.0, 5);
        how.sampling.typical_p = typical_p;
        let mut counts = [0u32; 4];
        for position in 0..40_000 {
            counts[pick(&row, &how, position, &[]) as usize] += 1;
        }
        counts.map(|count| f64::from(count) / 40_000.0)
    };
    assert_eq!(seen(0.2, None), [0.0, 1.0, 0.0, 0.0]);
    let cases = [
        (0.3, None, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]),
        (0.7, None, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]),
        (0.8, None, [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]),
        (0.95, None, [0.5, 0.25, 0.125, 0.125]),
        // Two thirds and a third have 0.585 and 1.585 bits, and an entropy of 0.918: now the likelier one is nearer.
        (0.5, Some(2), [1.0, 0.0, 0.0, 0.0]),
    ];
    for (typical_p, top_k, expected) in cases {
        let shares = seen(typical_p, top_k);
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected).abs() < 0.01, "{typical_p}: {shares:?} for {expected:?}");
        }
    }
}

/// The set that the paper defines, straight from its formulas.
fn typical_set(row: &[f32], temperature: f32, mass: f32) -> Option<Vec<u32>> {
    let scaled: Vec<f64> = row.iter().map(|logit| f64::from(*logit) / f64::from(temperature)).collect();
    let total: f64 = scaled.iter().map(|x| x.exp()).sum();
    let p: Vec<f64> = scaled.iter().map(|x| x.exp() / total).collect();
    let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| (-p[*a].ln() - entropy).abs().total_cmp(&(-p[*b].ln() - entropy).abs()));
    let (mut kept, mut sum) = (Vec::new(), 0.0);
    for id in order {
        kept.push(id as u32);
        sum += p[id];
        if (sum - f64::from(mass)).abs() < 1e-5 {
            return None; // Rounding decides here.
        }
        if sum > f64::from(mass) {
            break;
        }
    }
    kept.sort_unstable();
    Some(kept)
}

proptest! {
    #[test]
    fn the_typical_set_is_that_of_the_paper(
        row in proptest::collection::vec(-12f32..12.0, 2..900), temperature in 0.3f32..2.0, mass in 0.02f32..0.98,
    ) {
        let mut candidates: Vec<(u32, f32)> = row.iter().enumerate().map(|(id, logit)| (id as u32, *logit)).collect();
        let best = max_of(&row);
        let depth = |logit: f32| (f64::from(logit) - f64::from(best)) / f64::from(temperature);
        keep_typical(&mut candidates, mass, |logit| ((logit - best) / temperature).exp(), depth);
        let mut kept: Vec<u32> = candidates.iter().map(|(id, _)| *id).collect();
        kept.sort_unstable();
        if let Some(expected) = typical_set(&row, temperature, mass) {
            prop_assert_eq!(kept, expected);
        }
    }

    /// A bias of nothing goes the way of all adjustments, and every draw is the one without it.
    #[test]
    fn a_bias_of_zero_is_none(
        row in proptest::collection::vec(-12f32..12.0, 2..300), temperature in 0f32..2.0, top_p in 0.1f32..1.0,
        top_k in proptest::option::of(1u32..50), seed in any::<u64>(), biased in 0u32..300,
    ) {
        let plain = how(temperature, top_k, top_p, 0.0, seed);
        let mut zero = plain.clone();
        zero.sampling.logit_bias = BTreeMap::from([(biased, 0.0)]);
        prop_assert_eq!(adjusted(&row, &zero, &[], &[]), chosen(&row, &plain, 0, &[]).unwrap());
    }
}
