//! Chooses the next token of a sequence from a row of logits.
//!
//! The order: bias and penalties, banned tokens, temperature, top-k, top-p (over what top-k left), min-p, typical-p (over
//! what all of them left). The choice depends on the row, the parameters, the sequence's own tokens, the seed and the
//! position, on nothing else.

use std::cmp::Ordering;

use contract::Sampling;

use super::adjust::Adjustment;
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
    /// Its log-probability and the likeliest tokens with theirs, best first; by the model's own distribution: before
    /// bias, penalties, temperature and filters.
    pub logprobs: Option<(f32, Vec<(u32, f32)>)>,
}

/// What the model made of a token that is there already.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Its log-probability.
    pub logprob: f32,
    /// Its place among all tokens, the likeliest being 1; of equals, the smaller id comes first.
    pub rank: u32,
    /// The likeliest tokens with their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// The row holds a number that is not finite: nothing can be chosen from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the logits are not finite")]
pub struct NotFinite;

/// What is to be chosen next.
#[derive(Debug, Clone, Copy)]
pub struct Next<'a> {
    /// The sequence's parameters.
    pub how: &'a Choosing,
    /// Place of the token; 0 is the first generated one.
    pub position: u32,
    /// Tokens that may not come now.
    pub banned: &'a [u32],
    /// Bias and penalties, if there are any.
    pub adjustment: Option<&'a Adjustment>,
}

/// Room that is reused from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The row with bias and penalties.
    pub(super) adjusted: Vec<f32>,
    candidates: Vec<(u32, f32)>,
    weights: Vec<f32>,
    groups: Vec<f64>,
    /// A row in which only some tokens can be chosen.
    pub(super) masked: Vec<f32>,
}

/// Below this, sampling is greedy: the reciprocal of a still smaller temperature overflows.
const MIN_TEMPERATURE: f32 = 1e-5;
/// Smallest log-probability shown.
const LOWEST_LOGPROB: f32 = -9999.0;

/// Chooses the next token from `row`, `[vocab_size]`.
///
/// # Errors
/// [`NotFinite`] when a logit is NaN or infinite.
pub fn choose(row: &[f32], next: &Next<'_>, scratch: &mut Scratch) -> Result<Chosen, NotFinite> {
    if !all_finite(row) {
        return Err(NotFinite);
    }
    let id = match next.adjustment {
        None => pick(row, next, scratch),
        Some(adjustment) => {
            let mut adjusted = std::mem::take(&mut scratch.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(row);
            adjustment.apply(&mut adjusted);
            let id = pick(&adjusted, next, scratch);
            scratch.adjusted = adjusted;
            id
        }
    };
    let logprobs = next.how.logprobs.map(|top| logprobs_of(row, id, top as usize, scratch));
    Ok(Chosen { id, logprobs })
}

/// What `row`, `[vocab_size]`, says of the token `id` that follows, with the `top` likeliest.
///
/// # Errors
/// [`NotFinite`] when a logit is NaN or infinite.
pub fn score(row: &[f32], id: u32, top: u8, scratch: &mut Scratch) -> Result<Scored, NotFinite> {
    if !all_finite(row) {
        return Err(NotFinite);
    }
    let own = row[id as usize];
    let likelier = row.iter().filter(|logit| **logit > own).count();
    let as_likely = row[..id as usize].iter().filter(|logit| **logit == own).count();
    let (logprob, top) = logprobs_of(row, id, top as usize, scratch);
    Ok(Scored { logprob, rank: (likelier + as_likely + 1) as u32, top })
}

/// The choice from a row of finite logits that has its bias and penalties.
pub(super) fn pick(row: &[f32], next: &Next<'_>, scratch: &mut Scratch) -> u32 {
    if next.how.sampling.temperature < MIN_TEMPERATURE { best_of(row, next.banned) } else { draw(row, next, scratch) }
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

fn draw(row: &[f32], next: &Next<'_>, scratch: &mut Scratch) -> u32 {
    let Next { how, position, banned, adjustment: _ } = *next;
    let Sampling { temperature, top_k, top_p, min_p, typical_p, .. } = how.sampling;
    let share = uniform(how.seed, position);
    let banned_best = banned.iter().any(|id| row.get(*id as usize).is_some());
    if top_k.is_none() && top_p >= 1.0 && min_p == 0.0 && typical_p >= 1.0 && !banned_best {
        return draw_from_all(row, temperature, share, scratch);
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
        keep_mass(candidates, f64::from(top_p) * total, weight, by_rank);
    }
    if min_p > 0.0 {
        candidates.retain(|(_, logit)| weight(*logit) >= min_p);
    }
    if typical_p < 1.0 {
        let depth = |logit: f32| (f64::from(logit) - f64::from(best)) / f64::from(temperature);
        keep_typical(candidates, typical_p, weight, depth);
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

/// Keeps the first candidates by `order` that together weigh `wanted`, the one that crosses it included. Sorting a whole
/// vocabulary is dear, so growing heads of it are tried first.
fn keep_mass(
    candidates: &mut Vec<(u32, f32)>,
    wanted: f64,
    weight: impl Fn(f32) -> f32,
    order: impl Fn(&(u32, f32), &(u32, f32)) -> Ordering,
) {
    let mut head = 256.min(candidates.len());
    loop {
        if head < candidates.len() {
            candidates.select_nth_unstable_by(head, &order);
        }
        candidates[..head].sort_unstable_by(&order);
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

/// Locally typical sampling (arXiv 2202.00666): keeps the candidates whose information is nearest to the entropy of all of
/// them and that together have the share `mass`, the one that crosses it included.
///
/// `weight` is `e^depth`. With W the sum of weights a candidate's information is `ln W - depth` and the entropy `ln W`
/// less the mean depth, so what counts is how far its depth is from the mean.
fn keep_typical(candidates: &mut Vec<(u32, f32)>, mass: f32, weight: impl Fn(f32) -> f32, depth: impl Fn(f32) -> f64) {
    let (mut total, mut sum) = (0f64, 0f64);
    for (_, logit) in candidates.iter() {
        let weight = f64::from(weight(*logit));
        total += weight;
        sum += weight * depth(*logit);
    }
    let mean = sum / total;
    let distance = |candidate: &(u32, f32)| (depth(candidate.1) - mean).abs();
    let order = |a: &(u32, f32), b: &(u32, f32)| distance(a).total_cmp(&distance(b)).then(by_rank(a, b));
    keep_mass(candidates, f64::from(mass) * total, weight, order);
}

/// Draws by the plain distribution at a temperature: no candidate list, two passes over the row.
fn draw_from_all(row: &[f32], temperature: f32, share: f64, scratch: &mut Scratch) -> u32 {
    let Scratch { weights, groups, .. } = scratch;
    let best = max_of(row);
    let scale = 1.0 / temperature;
    weights.clear();
    weights.resize(row.len(), 0.0);
    for (weight, logit) in weights.iter_mut().zip(row) {
        *weight = exp_fast((logit - best) * scale);
    }
    // Sums of 256 keep float32 exact enough and let the search skip.
    groups.clear();
    groups.extend(weights.chunks(256).map(|group| f64::from(sum_lanes(group))));
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
mod tests;
