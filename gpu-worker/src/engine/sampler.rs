//! Chooses the next token of a sequence from a row of logits.
//!
//! The order of the filters: banned tokens, temperature, top-k, top-p (over what top-k left), min-p. The choice depends on
//! the row, the parameters, the seed and the position, on nothing else.

use std::cmp::Ordering;

use contract::Sampling;

use super::random::uniform;

/// How the tokens of one sequence are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choosing {
    /// Temperature and filters.
    pub sampling: Sampling,
    /// The seed in force, given or drawn.
    pub seed: u64,
    /// Wanted log-probabilities: this many of the likeliest beside the chosen one.
    pub logprobs: Option<u8>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The token.
    pub id: u32,
    /// Its log-probability and the likeliest tokens with theirs, best first; by the unfiltered distribution at
    /// temperature 1.
    pub logprobs: Option<(f32, Vec<(u32, f32)>)>,
}

/// The row holds a number that is not finite: nothing can be chosen from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the logits are not finite")]
pub struct NotFinite;

/// Room that is reused from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Vec<(u32, f32)>,
    weights: Vec<f32>,
    /// A row in which only some tokens can be chosen.
    pub(super) masked: Vec<f32>,
}

/// Below this, sampling is greedy: the reciprocal of a still smaller temperature overflows.
const MIN_TEMPERATURE: f32 = 1e-5;
/// Smallest log-probability shown.
const LOWEST_LOGPROB: f32 = -9999.0;

/// Chooses the token at `position` (0 is the first generated one) from `row`, never one of `banned`.
///
/// # Errors
/// [`NotFinite`] when a logit is NaN or infinite.
pub fn choose(
    row: &[f32],
    how: &Choosing,
    position: u32,
    banned: &[u32],
    scratch: &mut Scratch,
) -> Result<Chosen, NotFinite> {
    if !all_finite(row) {
        return Err(NotFinite);
    }
    let id = if how.sampling.temperature < MIN_TEMPERATURE {
        best_of(row, banned)
    } else {
        draw(row, how, position, banned, scratch)
    };
    let logprobs = how.logprobs.map(|top| logprobs_of(row, id, top as usize, scratch));
    Ok(Chosen { id, logprobs })
}

/// True when no number is NaN or infinite. Sums zeros, so that it vectorises: `0 * x` is NaN for those alone.
pub(super) fn all_finite(row: &[f32]) -> bool {
    let mut lanes = [0f32; 16];
    let chunks = row.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|x| x * 0.0).sum();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * 0.0;
        }
    }
    lanes.iter().sum::<f32>() + rest == 0.0
}

/// The largest number of a row.
fn max_of(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = row.chunks_exact(16);
    let rest = chunks.remainder().iter().fold(f32::NEG_INFINITY, |best, x| best.max(*x));
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    lanes.iter().fold(rest, |best, x| best.max(*x))
}

/// The likeliest token that is not banned; the smallest id of equals. With every token banned, the likeliest of all.
fn best_of(row: &[f32], banned: &[u32]) -> u32 {
    let best = max_of(row);
    let first = row.iter().position(|x| *x == best).unwrap_or(0) as u32;
    if !banned.contains(&first) {
        return first;
    }
    let mut found: Option<(u32, f32)> = None;
    for (id, logit) in row.iter().enumerate() {
        let id = id as u32;
        if found.is_none_or(|(_, best)| *logit > best) && !banned.contains(&id) {
            found = Some((id, *logit));
        }
    }
    found.map_or(first, |(id, _)| id)
}

/// Larger logits first, then smaller ids.
fn by_rank(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the `k` first candidates by rank, in order.
fn keep_best(candidates: &mut Vec<(u32, f32)>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, by_rank);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(by_rank);
}

fn draw(row: &[f32], how: &Choosing, position: u32, banned: &[u32], scratch: &mut Scratch) -> u32 {
    let Sampling { temperature, top_k, top_p, min_p, .. } = how.sampling;
    let share = uniform(how.seed, position);
    let banned_best = banned.iter().any(|id| row.get(*id as usize).is_some());
    if top_k.is_none() && top_p >= 1.0 && min_p == 0.0 && !banned_best {
        return draw_from_all(row, temperature, share, &mut scratch.weights);
    }
    let reach = if top_k.is_none() && !banned_best { Reach::of(row, &how.sampling) } else { Reach::WHOLE };
    let candidates = &mut scratch.candidates;
    candidates.clear();
    let in_reach = row.iter().enumerate().filter(|(_, logit)| **logit >= reach.lowest);
    candidates.extend(in_reach.map(|(id, logit)| (id as u32, *logit)));
    if banned_best {
        candidates.retain(|(id, _)| !banned.contains(id));
        if candidates.is_empty() {
            return best_of(row, banned);
        }
    }
    let best = candidates.iter().fold(f32::NEG_INFINITY, |best, (_, logit)| best.max(*logit));
    let weight = |logit: f32| ((logit - best) / temperature).exp();
    if let Some(k) = top_k {
        keep_best(candidates, k as usize);
    }
    if top_p < 1.0 {
        let total =
            reach.total.unwrap_or_else(|| candidates.iter().map(|(_, logit)| f64::from(weight(*logit))).sum::<f64>());
        keep_mass(candidates, f64::from(top_p) * total, weight);
    }
    if min_p > 0.0 {
        candidates.retain(|(_, logit)| weight(*logit) >= min_p);
    }
    let total: f64 = candidates.iter().map(|(_, logit)| f64::from(weight(*logit))).sum();
    let mut left = share * total;
    for (id, logit) in candidates.iter() {
        left -= f64::from(weight(*logit));
        if left < 0.0 {
            return *id;
        }
    }
    // Rounding left a crumb: the last candidate is the one it belongs to.
    candidates.last().map_or(0, |(id, _)| *id)
}

/// Which tokens of a row can be chosen at all: a first, cheap cut that takes nothing away from what the filters keep.
struct Reach {
    /// Smallest logit of such a token.
    lowest: f32,
    /// Weight of all tokens of the row, relative to the likeliest, if it was summed.
    total: Option<f64>,
}

impl Reach {
    /// All tokens.
    const WHOLE: Reach = Reach { lowest: f32::NEG_INFINITY, total: None };

    /// By top-p: the tokens that weigh less than an equal share of the mass that is cut off have less than that mass
    /// together, so none of them is needed to reach top-p. By min-p: its own border. Half of either, for rounding.
    fn of(row: &[f32], sampling: &Sampling) -> Self {
        let best = max_of(row);
        let border = |weight: f64| (f64::from(best) + f64::from(sampling.temperature) * (0.5 * weight).ln()) as f32;
        if sampling.top_p < 1.0 {
            let total = total_weight(row, best, 1.0 / sampling.temperature);
            let share = (1.0 - f64::from(sampling.top_p)) * total / row.len() as f64;
            return Reach { lowest: border(share), total: Some(total) };
        }
        match sampling.min_p {
            0.0 => Reach::WHOLE,
            min_p => Reach { lowest: border(f64::from(min_p)), total: None },
        }
    }
}

/// Sum of `e^((logit - best) * scale)` over a row.
fn total_weight(row: &[f32], best: f32, scale: f32) -> f64 {
    let mut total = 0f64;
    for group in row.chunks(256) {
        let mut lanes = [0f32; 16];
        let chunks = group.chunks_exact(16);
        let rest: f32 = chunks.remainder().iter().map(|logit| exp_fast((logit - best) * scale)).sum();
        for chunk in chunks {
            for (lane, logit) in lanes.iter_mut().zip(chunk) {
                *lane += exp_fast((logit - best) * scale);
            }
        }
        total += f64::from(lanes.iter().sum::<f32>() + rest);
    }
    total
}

/// Keeps the likeliest candidates that together weigh `wanted`, the one that crosses it included. Sorting a whole vocabulary
/// is dear, so growing heads of it are tried first.
fn keep_mass(candidates: &mut Vec<(u32, f32)>, wanted: f64, weight: impl Fn(f32) -> f32) {
    let mut head = 256.min(candidates.len());
    loop {
        if head < candidates.len() {
            candidates.select_nth_unstable_by(head, by_rank);
        }
        candidates[..head].sort_unstable_by(by_rank);
        let mut sum = 0.0;
        let crossing = candidates[..head].iter().position(|(_, logit)| {
            sum += f64::from(weight(*logit));
            sum >= wanted
        });
        match crossing {
            Some(last) => return candidates.truncate(last + 1),
            None if head == candidates.len() => return,
            None => head = (head * 8).min(candidates.len()),
        }
    }
}

/// Draws by the plain distribution at a temperature: no candidate list, two passes over the row.
fn draw_from_all(row: &[f32], temperature: f32, share: f64, weights: &mut Vec<f32>) -> u32 {
    let best = max_of(row);
    let scale = 1.0 / temperature;
    weights.clear();
    weights.resize(row.len(), 0.0);
    for (weight, logit) in weights.iter_mut().zip(row) {
        *weight = exp_fast((logit - best) * scale);
    }
    // Sums of 256 keep float32 exact enough and let the search skip.
    let groups: Vec<f64> = weights.chunks(256).map(|group| f64::from(sum_lanes(group))).collect();
    let mut left = share * groups.iter().sum::<f64>();
    let mut last_possible = 0;
    for (group_idx, group_sum) in groups.iter().enumerate() {
        let start = group_idx * 256;
        let group = &weights[start..(start + 256).min(weights.len())];
        if left >= *group_sum {
            left -= group_sum;
            if let Some(idx) = group.iter().rposition(|weight| *weight > 0.0) {
                last_possible = start + idx;
            }
            continue;
        }
        for (idx, weight) in group.iter().enumerate() {
            left -= f64::from(*weight);
            if *weight > 0.0 {
                last_possible = start + idx;
                if left < 0.0 {
                    return last_possible as u32;
                }
            }
        }
        return last_possible as u32;
    }
    last_possible as u32
}

fn sum_lanes(values: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let chunks = values.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

/// `e^x` for x ≤ 0 within 2e-7 relative, written so that it vectorises; 0 below -87.
#[inline(always)]
fn exp_fast(x: f32) -> f32 {
    let clamped = if x < -87.0 { -87.0 } else { x };
    let scaled = clamped * std::f32::consts::LOG2_E;
    // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
    let whole = (scaled + 12_582_912.0) - 12_582_912.0;
    let r = clamped - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let poly = ((((1.987_569_2e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_5e-1)
        * r
        + 0.5;
    let value = poly * r * r + r + 1.0;
    let power = f32::from_bits(((whole as i32 + 127) << 23) as u32);
    if x < -87.0 { 0.0 } else { value * power }
}

/// Log-probabilities of the chosen token and of the `top` likeliest.
pub(super) fn logprobs_of(row: &[f32], id: u32, top: usize, scratch: &mut Scratch) -> (f32, Vec<(u32, f32)>) {
    let best = max_of(row);
    let log_sum = total_weight(row, best, 1.0).ln() + f64::from(best);
    let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).max(LOWEST_LOGPROB);
    let chosen = logprob(row[id as usize]);
    if top == 0 {
        return (chosen, Vec::new());
    }
    let candidates = &mut scratch.candidates;
    candidates.clear();
    candidates.extend(row.iter().enumerate().map(|(id, logit)| (id as u32, *logit)));
    keep_best(candidates, top);
    (chosen, candidates.iter().map(|(id, logit)| (*id, logprob(*logit))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32, seed: u64) -> Choosing {
        Choosing { sampling: Sampling { temperature, top_k, top_p, min_p, seed: Some(seed) }, seed, logprobs: None }
    }

    fn pick(row: &[f32], how: &Choosing, position: u32, banned: &[u32]) -> u32 {
        choose(row, how, position, banned, &mut Scratch::default()).unwrap().id
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
            let answer = choose(&row, &how(0.0, None, 1.0, 0.0, 1), 0, &[], &mut Scratch::default());
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
        let chosen = choose(&row, &how, 0, &[0], &mut Scratch::default()).unwrap();
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
}
