//! Whether two answers are the same, bit for bit, and if not, where they first part.

use std::fmt;

use contract::{ChoiceRecord, FinishReason, Input, Record, TokenLogprob};
use serde::Serialize;
use serde_json::{Value, json};

/// What a replay found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Tokens, log-probabilities, text and end are the same.
    BitEqual {
        /// Tokens compared.
        tokens: usize,
    },
    /// They are not.
    Parts {
        /// The answer, counted from 0; left out for the first.
        #[serde(skip_serializing_if = "is_first")]
        choice: usize,
        /// The first token, counted from 0, that has a difference; one more than the last where only the ends differ.
        at: usize,
        /// What differs there.
        what: Part,
        /// What the trajectory says; null: nothing.
        recorded: Value,
        /// What came now; null: nothing.
        got: Value,
    },
    /// It could not be run again.
    NotReplayed {
        /// Why.
        reason: String,
    },
}

/// What can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The token's id.
    Token,
    /// Its log-probability, or those beside it.
    Logprob,
    /// The text up to it.
    Text,
    /// Why the answer ends.
    End,
}

fn is_first(choice: &usize) -> bool {
    *choice == 0
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::BitEqual { tokens } => write!(f, "bit-equal, {tokens} tokens"),
            Verdict::Parts { choice, at, what, recorded, got } => {
                let what = match what {
                    Part::Token => "in its id",
                    Part::Logprob => "in its log-probability",
                    Part::Text => "in the text",
                    Part::End => "in the end",
                };
                let of = if *choice == 0 { String::new() } else { format!(" of answer {choice}") };
                write!(f, "parts at token {at}{of} {what}: recorded {recorded}, got {got}")
            }
            Verdict::NotReplayed { reason } => write!(f, "not replayed: {reason}"),
        }
    }
}

/// Whether a record says nothing that contradicts itself or that no request can ask for: a file may hold anything.
///
/// # Errors
/// What is wrong, for people.
pub fn check(record: &Record) -> Result<(), String> {
    let damaged = |what: &str| Err(format!("its trajectory is damaged: {what}"));
    let fits = record.request.sampling.is_in_range() && record.request.logprobs.is_none_or(|top| top <= 20);
    if !fits {
        return damaged("a sampling parameter is out of range");
    }
    if let Input::Embedding(_) = record.request.input {
        return Err("it is an embedding: it has no tokens to compare".to_owned());
    }
    if record.choices.len() != usize::from(record.request.sampling.n) {
        return damaged("it has not as many choices as were asked for");
    }
    let n_outputs: usize = record.choices.iter().map(|choice| choice.output_ids.len()).sum();
    if record.usage.output_tokens as usize != n_outputs {
        return damaged("`output_ids` are not as many as `usage` says");
    }
    for choice in &record.choices {
        let n_output = choice.output_ids.len();
        // Only what shows or scores its prompt alone has none.
        if n_output == 0 && record.request.max_tokens != Some(0) {
            return damaged("`output_ids` are empty");
        }
        let end = choice.ends.last().map_or(0, |end| *end as usize);
        if choice.ends.len() != n_output || end != choice.text.len() {
            return damaged("`ends` do not fit `output_ids` and `text`");
        }
        let logprobs = choice.logprobs.as_ref().map(Vec::len);
        if logprobs != record.request.logprobs.map(|_| n_output) {
            return damaged("`logprobs` are not what was asked for");
        }
        let is_cut_short = |max: u32| choice.finish_reason == FinishReason::Length && max as usize != n_output;
        if record.request.max_tokens.is_some_and(is_cut_short) {
            return damaged("it ends for its length, and not at `max_tokens`");
        }
    }
    Ok(())
}

/// Compares what was recorded with what came now, answer by answer.
pub fn compare(recorded: &[ChoiceRecord], got: &[ChoiceRecord]) -> Verdict {
    let mut all = 0;
    for (nth, (recorded, got)) in recorded.iter().zip(got).enumerate() {
        match compare_one(nth, recorded, got) {
            Verdict::BitEqual { tokens } => all += tokens,
            other => return other,
        }
    }
    if recorded.len() != got.len() {
        return Verdict::NotReplayed { reason: format!("{} answers came, not {}", got.len(), recorded.len()) };
    }
    Verdict::BitEqual { tokens: all }
}

fn compare_one(choice: usize, recorded: &ChoiceRecord, got: &ChoiceRecord) -> Verdict {
    let n_tokens = recorded.output_ids.len().max(got.output_ids.len());
    let parts = |at, what, recorded, got| Verdict::Parts { choice, at, what, recorded, got };
    for at in 0..n_tokens {
        let ids = (recorded.output_ids.get(at), got.output_ids.get(at));
        if ids.0 != ids.1 {
            return parts(at, Part::Token, json!(ids.0), json!(ids.1));
        }
        let logprob = |choice: &ChoiceRecord| choice.logprobs.as_ref().and_then(|all| all.get(at).cloned());
        let logprobs = (logprob(recorded), logprob(got));
        if !same_logprob(logprobs.0.as_ref(), logprobs.1.as_ref()) {
            return parts(at, Part::Logprob, json!(logprobs.0), json!(logprobs.1));
        }
        let texts = (text_to(recorded, at), text_to(got, at));
        if texts.0 != texts.1 {
            return parts(at, Part::Text, json!(texts.0), json!(texts.1));
        }
    }
    let end = |choice: &ChoiceRecord| json!([choice.finish_reason, choice.stop_reason]);
    if recorded.finish_reason != got.finish_reason || recorded.stop_reason != got.stop_reason {
        return parts(n_tokens, Part::End, end(recorded), end(got));
    }
    Verdict::BitEqual { tokens: n_tokens }
}

/// What token `at` made visible; `None` where the record's own lengths are not of its text.
fn text_to(choice: &ChoiceRecord, at: usize) -> Option<&str> {
    let start = if at == 0 { 0 } else { *choice.ends.get(at - 1)? as usize };
    choice.text.get(start..*choice.ends.get(at)? as usize)
}

fn same_logprob(a: Option<&TokenLogprob>, b: Option<&TokenLogprob>) -> bool {
    let (a, b) = match (a, b) {
        (None, None) => return true,
        (Some(a), Some(b)) => (a, b),
        _ => return false,
    };
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits();
    same(a.logprob, b.logprob)
        && (&a.token, &a.bytes, a.top.len()) == (&b.token, &b.bytes, b.top.len())
        && a.top
            .iter()
            .zip(&b.top)
            .all(|(a, b)| same(a.logprob, b.logprob) && (&a.token, &a.bytes) == (&b.token, &b.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice() -> ChoiceRecord {
        let logprob = |logprob| TokenLogprob { token: "x".into(), bytes: Some(vec![120]), logprob, top: vec![] };
        ChoiceRecord {
            output_ids: vec![5, 6, 7],
            text: "abc".into(),
            ends: vec![1, 2, 3],
            logprobs: Some(vec![logprob(-0.5), logprob(-1.5), logprob(-0.25)]),
            finish_reason: FinishReason::Stop,
            stop_reason: None,
        }
    }

    fn parts(at: usize, what: Part, change: impl Fn(&mut ChoiceRecord)) {
        let mut recorded = choice();
        change(&mut recorded);
        match compare(&[recorded.clone()], &[choice()]) {
            Verdict::Parts { choice: 0, at: found, what: part, .. } => assert_eq!((found, part), (at, what)),
            other => panic!("{other}"),
        }
        match compare(&[choice(), recorded], &[choice(), choice()]) {
            Verdict::Parts { choice: 1, at: found, what: part, .. } => assert_eq!((found, part), (at, what)),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(compare(&[choice()], &[choice()]), Verdict::BitEqual { tokens: 3 });
        assert_eq!(compare(&[choice(), choice()], &[choice(), choice()]), Verdict::BitEqual { tokens: 6 });
        assert!(matches!(compare(&[choice(), choice()], &[choice()]), Verdict::NotReplayed { .. }));
        parts(1, Part::Token, |choice| choice.output_ids[1] = 9);
        parts(2, Part::Token, |choice| choice.output_ids.truncate(choice.output_ids.len() - 1));
        parts(3, Part::Token, |choice| choice.output_ids.push(1));
        parts(0, Part::Logprob, |choice| choice.logprobs.as_mut().unwrap()[0].logprob = (-0.5f32).next_up());
        parts(0, Part::Logprob, |choice| choice.logprobs = None);
        parts(2, Part::Text, |choice| choice.text = "abd".into());
        parts(1, Part::Text, |choice| choice.ends[1] = 3);
        parts(3, Part::End, |choice| choice.finish_reason = FinishReason::Length);
        parts(3, Part::End, |choice| choice.stop_reason = Some("c".into()));
        let mut recorded = choice();
        recorded.output_ids[1] = 9;
        let said = compare(&[recorded.clone()], &[choice()]).to_string();
        assert_eq!(said, "parts at token 1 in its id: recorded 9, got 6");
        let said = compare(&[choice(), recorded], &[choice(), choice()]).to_string();
        assert_eq!(said, "parts at token 1 of answer 1 in its id: recorded 9, got 6");
    }
}
