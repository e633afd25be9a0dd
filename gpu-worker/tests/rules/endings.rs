//! How an answer that keeps to a rule ends.

use contract::{FinishReason, Sampling};
use gpu_worker::engine::planner::Limits;
use gpu_worker::engine::sequence::{Ending, StopReason};
use gpu_worker::forward::trivial::Ending as ModelEnding;
use gpu_worker::grammar::{GRAMMAR_ENGINE, Grammars};
use serde_json::json;

use crate::cases::constraint;
use crate::run::{Answer, Ask, at, noise, run, tiny_tokenizer};

/// `<|im_end|>`, as `fixtures/tiny/make.py` places it: after 256 bytes, 15 merges and two other control tokens.
const END: u32 = 273;
/// `<|endoftext|>`, an end as well.
const OTHER_END: u32 = 271;
/// `<|im_start|>`, a control token that ends nothing by itself.
const START: u32 = 272;

fn ask(ask: Ask, ending: ModelEnding) -> Answer {
    let tokenizer = tiny_tokenizer();
    let grammars = Grammars::new(tokenizer.clone());
    let mut forward = noise(&tokenizer, 64, ending);
    let limits = Limits { max_sequences: 1, step_tokens: 64, ..Limits::default() };
    let id = ask.id;
    run(&mut forward, vec![ask.prepared(&grammars, &tokenizer)], limits, 64, 0).0.remove(&id).unwrap()
}

fn stopped(stop: Option<StopReason>) -> Option<Ending> {
    Some(Ending::Finished { reason: FinishReason::Stop, stop })
}

#[test]
fn an_answer_that_cannot_go_on_ends_without_an_end_token() {
    let answer = ask(Ask::new(1, Some(constraint("guided_regex", json!("abc")))), ModelEnding::Never);
    assert_eq!((answer.text.as_str(), answer.ids.len(), answer.ending), ("abc", 3, stopped(None)));
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let answer =
        ask(Ask::new(1, Some(constraint("guided_json", schema))), ModelEnding::AtLength { token: END, tokens: 5 });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&answer.text).unwrap(), json!({}), "{answer:?}");
    assert!(answer.is_whole(), "{answer:?}");
}

#[test]
fn the_last_token_may_be_the_one_that_completes_it() {
    let three = Ask { max_tokens: 3, ..Ask::new(1, Some(constraint("guided_regex", json!("abc")))) };
    assert_eq!(ask(three, ModelEnding::Never).ending, stopped(None));
    let two = Ask { max_tokens: 2, ..Ask::new(1, Some(constraint("guided_regex", json!("abc")))) };
    let answer = ask(two, ModelEnding::Never);
    assert_eq!((answer.text.as_str(), answer.is_cut()), ("ab", true));
}

/// The end token is the likeliest at every position, by far.
#[test]
fn an_end_token_comes_only_where_the_answer_is_complete() {
    let always = ModelEnding::OneIn { token: END, n: 1 };
    let choices = constraint("guided_choice", json!(["a", "ab", "abc"]));
    let answer = ask(Ask { sampling: at(0.0), ..Ask::new(1, Some(choices)) }, always);
    assert_eq!((answer.text.as_str(), answer.ending), ("a", stopped(Some(StopReason::Token(END)))));
    let schema = json!({"type": "object", "properties": {"a": {"enum": [10, 100]}}, "required": ["a"]});
    let answer = ask(Ask { sampling: at(0.0), ..Ask::new(1, Some(constraint("guided_json", schema))) }, always);
    let value: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert!(value["a"] == 10 || value["a"] == 100, "{answer:?}");
    let other = ModelEnding::OneIn { token: OTHER_END, n: 1 };
    let answer = ask(Ask::new(1, Some(constraint("guided_choice", json!(["x", "xy"])))), other);
    assert_eq!(answer.ending, stopped(Some(StopReason::Token(OTHER_END))), "{answer:?}");
}

/// Bias and penalties of any size choose within the rule, and never beyond it.
#[test]
fn no_bias_and_no_penalty_leads_out_of_a_rule() {
    let bias = |id: u8, by: f32| (u32::from(id), by);
    let extremes = [
        Sampling { repetition_penalty: f32::MAX, ..Sampling::default() },
        Sampling { repetition_penalty: f32::MIN_POSITIVE, ..Sampling::default() },
        Sampling { frequency_penalty: 2.0, presence_penalty: 2.0, ..Sampling::default() },
        Sampling { logit_bias: [bias(b'z', 100.0), bias(b'a', -100.0)].into(), ..Sampling::default() },
    ];
    for (nth, sampling) in (0..).zip(extremes) {
        for temperature in [0.0, 2.0] {
            let sampling = Sampling { temperature, ..sampling.clone() };
            let rule = constraint("guided_regex", json!("(a|b){40}"));
            let answer = ask(Ask { sampling, ..Ask::new(nth, Some(rule)) }, ModelEnding::Never);
            assert_eq!((answer.text.len(), answer.ending), (40, stopped(None)), "{}", answer.text);
            assert!(answer.text.chars().all(|c| c == 'a' || c == 'b'), "{}", answer.text);
        }
    }
    // Ten more for `b` is e^10 times as likely, of which the noise cannot make good.
    let sampling = Sampling { logit_bias: [bias(b'b', 100.0)].into(), ..at(0.0) };
    let rule = constraint("guided_regex", json!("[abc]{20}"));
    let answer = ask(Ask { sampling, ..Ask::new(1, Some(rule)) }, ModelEnding::Never);
    assert_eq!(answer.text, "b".repeat(20));
}

/// Control tokens stand for no text, whatever a rule says.
#[test]
fn no_rule_lets_a_control_token_in() {
    let always = ModelEnding::OneIn { token: START, n: 1 };
    let rule = constraint("guided_regex", json!(r"(<\|im_start\|>|[<|>_a-z]){4,30}"));
    let answer = ask(Ask { sampling: at(0.0), ..Ask::new(1, Some(rule)) }, always);
    assert!(answer.ids.len() >= 4 && !answer.ids.contains(&START), "{answer:?}");
}

#[test]
fn stops_of_the_request_cut_an_answer_and_are_named() {
    let rule = || Some(constraint("guided_regex", json!("a{3}b{3}c{3}")));
    let text = Ask { stops: vec!["ab".into()], ..Ask::new(1, rule()) };
    let answer = ask(text, ModelEnding::Never);
    assert_eq!((answer.text.as_str(), answer.ending), ("aa", stopped(Some(StopReason::Text("ab".into())))));
    // The byte `b` in GPT-2's alphabet is its own place.
    let token = Ask { stop_ids: vec![u32::from(b'b')], ..Ask::new(1, rule()) };
    let answer = ask(token, ModelEnding::Never);
    assert_eq!((answer.text.as_str(), answer.ending), ("aaa", stopped(Some(StopReason::Token(98)))));
}

#[test]
fn a_control_token_that_the_request_names_as_an_end_may_come_where_the_answer_is_complete() {
    let always = ModelEnding::OneIn { token: START, n: 1 };
    let rule = Some(constraint("guided_choice", json!(["a", "ab"])));
    let answer = ask(Ask { stop_ids: vec![START], sampling: at(0.0), ..Ask::new(1, rule) }, always);
    assert_eq!((answer.text.as_str(), answer.ending), ("a", stopped(Some(StopReason::Token(START)))));
}

/// A model that wants white space above all does not get to write it for ever.
#[test]
fn white_space_in_json_is_bounded() {
    let tokenizer = tiny_tokenizer();
    for space in [" ", "\n"] {
        let token = tokenizer.encode(space, false).unwrap()[0];
        let schema = json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": [2, 3]}},
            "required": ["a", "b"], "additionalProperties": false});
        let rule = constraint("guided_json", schema);
        let favoured = ModelEnding::OneIn { token, n: 1 };
        let answer = ask(Ask { sampling: at(0.0), max_tokens: 400, ..Ask::new(1, Some(rule)) }, favoured);
        // Beside its 14 parts, each time at most a line break and 20 spaces.
        let blanks = answer.text.chars().filter(|c| c.is_whitespace()).count();
        let value: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(value, json!({"a": 1, "b": [2, 3]}), "{answer:?}");
        assert!(blanks <= 21 * 14, "{blanks} in {:?}", answer.text);
    }
}

#[test]
fn the_manifest_names_the_engine_of_grammars_that_is_built_in() {
    let (name, version) = GRAMMAR_ENGINE.split_once(' ').unwrap();
    let lock = include_str!("../../../Cargo.lock");
    assert!(
        lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")),
        "{GRAMMAR_ENGINE} is not in Cargo.lock"
    );
}
