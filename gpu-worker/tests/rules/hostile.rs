//! Rules from people who mean harm: each is refused with its field named, or followed, in bounded time and memory.

use std::time::{Duration, Instant};

use contract::ErrorCode;
use contract::openai::parse_completion;
use gpu_worker::engine::planner::Limits;
use gpu_worker::engine::sequence::Ending;
use gpu_worker::forward::trivial::Ending as ModelEnding;
use gpu_worker::grammar::Grammars;
use serde_json::{Map, Value, json};

use crate::run::{Ask, noise, run, tiny_tokenizer};

/// What has to come of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// An error that names the field.
    Refused,
    /// An error, or an answer: it only must not do harm.
    Either,
}
use Fate::{Either, Refused};

fn nested(depth: usize) -> String {
    format!(r#"{}{{"type":"null"}}{}"#, r#"{"properties":{"a":"#.repeat(depth), "}}".repeat(depth))
}

fn properties(n: usize) -> Value {
    let all: Map<String, Value> = (0..n).map(|nth| (format!("property_{nth}"), json!({"type": "integer"}))).collect();
    json!({"type": "object", "properties": all, "additionalProperties": false})
}

/// `#/$defs/d0` → `d1` → … → a string.
fn chain(n: usize) -> Value {
    let mut defs: Map<String, Value> =
        (0..n).map(|nth| (format!("d{nth}"), json!({"$ref": format!("#/$defs/d{}", nth + 1)}))).collect();
    defs.insert(format!("d{n}"), json!({"type": "boolean"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// The same, each link inside of an object and with a sibling, so that the schemas are merged.
fn merged_chain(n: usize) -> Value {
    let mut defs: Map<String, Value> = (0..n)
        .map(|nth| {
            let link =
                json!({"type": "object", "allOf": [{"properties": {"x": {"$ref": format!("#/$defs/d{}", nth + 1)}}}]});
            (format!("d{nth}"), link)
        })
        .collect();
    defs.insert(format!("d{n}"), json!({"type": "boolean"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// `allOf` of `n` choices among `m`: what is merged grows as `m` to the power of `n`.
fn product(n: usize, m: usize) -> Value {
    let one = |nth: usize| {
        let options: Vec<Value> = (0..m).map(|k| json!({"properties": {format!("p{nth}"): {"const": k}}})).collect();
        json!({"anyOf": options})
    };
    json!({"type": "object", "allOf": (0..n).map(one).collect::<Vec<_>>()})
}

fn schemas() -> Vec<(Fate, Value)> {
    let long = "é".repeat(300);
    let overlapping: Vec<Value> =
        (0..200).map(|n| json!({"type": "object", "properties": {format!("a{n}"): {}}})).collect();
    let mut all = vec![
        (Either, json!(nested(28))),
        (Refused, json!(nested(65))),
        (Refused, json!(nested(2_000))),
        (Refused, json!("[".repeat(20_000))),
        (Refused, json!({"enum": (0..1_001).collect::<Vec<_>>()})),
        (Either, json!({"enum": (0..1_000).map(|n| format!("value number {n}")).collect::<Vec<_>>()})),
        (Refused, json!({"enum": [long.repeat(120)]})),
        (Either, json!({"enum": [long.repeat(60)]})),
        (Either, properties(512)),
        (Refused, properties(513)),
        (Refused, properties(3_000)),
        (Either, chain(60)),
        (Either, chain(500)),
        (Refused, chain(513)),
        (Either, merged_chain(100)),
        (Either, merged_chain(500)),
        (Either, product(4, 8)),
        (Either, product(8, 8)),
        (Either, product(60, 8)),
        (Refused, json!({"$ref": "#"})),
        (Refused, json!({"allOf": [{"$ref": "#"}]})),
        (Either, json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]})),
        (Either, json!({"type": "array", "items": {"$ref": "#"}})),
        (Either, json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})),
        (
            Either,
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}},
            "required": ["x"], "additionalProperties": false}}}),
        ),
        (Either, json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}})),
        (Refused, json!({"$ref": "#/$defs/none"})),
        (Refused, json!({"$ref": "#/0"})),
        (Refused, json!({"$ref": "#/$defs/a/0", "$defs": {"a": []}})),
        (Refused, json!({"$ref": 5})),
        (Either, json!({"type": "array", "items": {}, "minItems": 1_000_000_000})),
        (
            Either,
            json!({"type": "array", "items": {"type": "array", "items": {"type": "array", "maxItems": 60_000},
            "minItems": 60_000}, "minItems": 60_000}),
        ),
        (Either, json!({"type": "array", "prefixItems": vec![json!({"type": "boolean"}); 2_000], "minItems": 2_000})),
        (Either, json!({"type": "array", "maxItems": 4_294_967_295u64})),
        (Either, json!({"type": "array", "maxItems": u64::MAX})),
        (Either, json!({"type": "object", "minProperties": 1_000_000_000})),
        (Either, json!({"type": "string", "minLength": 1_000_000_000})),
        (Either, json!({"type": "string", "maxLength": 4_000_000_000u64})),
        (Refused, json!({"type": "string", "maxLength": 1e30})),
        (Either, json!({"type": "string", "minLength": 100_000, "pattern": "^a*$"})),
        (Either, json!({"type": "string", "pattern": "^(a|b)*a(a|b){30}$", "maxLength": 64})),
        (Either, json!({"type": "integer", "minimum": -1e308, "maximum": 1e308})),
        (Either, json!({"type": "number", "minimum": 1e-308, "maximum": 1.000000000000001})),
        (Either, json!({"type": "number", "multipleOf": 0.0007, "minimum": 3})),
        (Either, json!({"type": "integer", "multipleOf": 999_983, "minimum": 1})),
        (Refused, json!({"type": "integer", "multipleOf": -1})),
        (Refused, json!({"type": "integer", "multipleOf": "3"})),
        (Refused, json!({"type": "integer", "multipleOf": 1e300})),
        (Either, json!({"oneOf": overlapping})),
        (Refused, json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
        (Either, json!({"patternProperties": {"^a": {}, "b$": {}}})),
        (Either, json!({"patternProperties": {"(a|b)*a(a|b){20}": {}, "(a|b)*b(a|b){20}": {}}})),
        (Refused, json!({"type": "number", "minimum": long})),
        (Refused, json!({"type": "string", "format": long})),
        (Refused, json!({"type": "string", "pattern": 5})),
        (Refused, json!({"minimum": {"$ref": long}})),
    ];
    // What contradicts itself, is of the wrong type, or cannot be enforced.
    for wrong in [
        json!({"type": "foo"}),
        json!({"type": 5}),
        json!({"type": ["string", 5]}),
        json!({"type": []}),
        json!({"properties": []}),
        json!({"properties": {"a": 5}}),
        json!({"items": 5}),
        json!({"enum": {}}),
        json!({"enum": []}),
        json!({"required": "a"}),
        json!({"allOf": {}}),
        json!({"anyOf": []}),
        json!({"oneOf": []}),
        json!({"minLength": "x"}),
        json!({"minLength": -1}),
        json!({"additionalProperties": 5}),
        json!({"prefixItems": {}}),
        json!({"format": "no such format"}),
        json!({"not": {"type": "string"}}),
        json!({"if": {"type": "string"}, "then": {"maxLength": 3}}),
        json!({"uniqueItems": true}),
        json!({"contains": {"type": "string"}}),
        json!({"dependentRequired": {"a": ["b"]}}),
        json!({"propertyNames": {"maxLength": 3}}),
        json!({"unevaluatedProperties": false}),
        json!({"$dynamicRef": "#a"}),
        json!({"type": "string", "minLength": 5, "maxLength": 4}),
        json!({"type": "array", "minItems": 5, "maxItems": 4}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "integer", "minimum": 1.2, "maximum": 1.8}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"], "additionalProperties": false}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"type": "integer", "enum": ["a"]}),
        json!({"type": "string", "pattern": "^a{5}$", "maxLength": 4}),
        json!({"type": "object", "properties": {"a": {}}, "minProperties": 2, "additionalProperties": false}),
        json!({"x-guidance": {"lenient": true}, "not": {}}),
        json!({"type": "string", "pattern": "a(?=b)"}),
        json!({"type": "string", "pattern": r"(a)\1"}),
        json!({"type": "string", "pattern": "a{5000}"}),
        json!({"const": "\u{1}"}),
    ] {
        all.push((Refused, wrong));
    }
    for remote in [
        "http://127.0.0.1/x",
        "https://example.com/s.json",
        "file:///etc/passwd",
        "other.json",
        "//evil/x",
        "urn:x:y",
        "#anchor",
        "data:application/json,{}",
    ] {
        all.push((Refused, json!({"properties": {"a": {"$ref": remote}}})));
    }
    all
}

fn regexes() -> Vec<(Fate, String)> {
    let mut all: Vec<(Fate, String)> = [
        "(a{64}){64}",
        "(a{1,64}){1,64}",
        "(a+)+$",
        "(a|a)*b",
        "(.*a){20}",
        "(x+x+)+y",
        "(a|b)*a(a|b){200}",
        "(.*)(.*)(.*)(.*)(.*)x",
        r"\p{L}{4096}",
        r"(\w{1,64}\s){1,64}",
        "[^a]*b[^c]*d[^e]*f",
        "(?i)[a-z]{4096}",
        ".{4096}",
        "(.|a|aa|aaa){1,1000}",
        "(a?){64}a{64}",
        "((a*)*)*",
        r"(\d+\.)*\d+(-(\d|[a-z])+)*",
        "(?s).*",
        "((((((((((a|b)|c)|d)|e)|f)|g)|h)|i)|j)|k)+",
        "[^x]",
    ]
    .into_iter()
    .map(|regex| (Either, regex.to_owned()))
    .collect();
    all.push((Either, "[a-z]?".repeat(170)));
    all.push((Either, "(a|b)?".repeat(170)));
    all.push((Either, format!("({})", (0..200).map(|n| format!("k{n}")).collect::<Vec<_>>().join("|"))));
    for refused in [
        "(a{500}){500}",
        "((a{64}){64}){64}",
        "a{1000000000}",
        "(",
        ")",
        "[",
        "a{2,1}",
        r"(a)\1",
        "a(?=b)",
        "(?<!a)b",
        "(?P<stop>a)b",
        r"\bword\b",
        "*",
        r"\p{Nonsense}",
        "(?z)a",
    ] {
        all.push((Refused, refused.to_owned()));
    }
    all.push((Refused, "[a-z]?".repeat(10_000)));
    all.push((Refused, format!("{}a{}", "(".repeat(400), ")".repeat(400))));
    all
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn hostile_rules_are_refused_by_name_or_followed_and_bounded() {
    let tokenizer = tiny_tokenizer();
    let grammars = Grammars::new(tokenizer.clone());
    let schemas = schemas().into_iter().map(|(fate, rule)| (fate, "guided_json", rule));
    let regexes = regexes().into_iter().map(|(fate, rule)| (fate, "guided_regex", json!(rule)));
    let cases: Vec<_> = schemas.chain(regexes).collect();
    let before = resident_mib();
    let (mut refused, mut followed, mut slowest) = (0, 0, Duration::ZERO);
    for (nth, (fate, field, value)) in cases.iter().enumerate() {
        let shown: String = value.to_string().chars().take(120).collect();
        let begin = Instant::now();
        let mut body = json!({"model": "m", "prompt": "x"});
        body[*field] = value.clone();
        let error = match parse_completion(&body) {
            Err(error) => Some((error.param, error.message)),
            Ok(parsed) => {
                let rule = parsed.request.constraint.unwrap();
                match grammars.grammar(&rule, &[]) {
                    Err(error) => {
                        assert_eq!(error.code, ErrorCode::InvalidRequest, "{shown}: {error}");
                        Some((error.param, error.message))
                    }
                    Ok(_) => {
                        let ask = Ask { max_tokens: 300, ..Ask::new(nth as u64, Some(rule)) };
                        let mut forward = noise(&tokenizer, 64, ModelEnding::Never);
                        let prepared = vec![ask.prepared(&grammars, &tokenizer)];
                        let limits = Limits { max_sequences: 1, step_tokens: 64, ..Limits::default() };
                        let answer = run(&mut forward, prepared, limits, 64, 0).0.remove(&(nth as u64)).unwrap();
                        match answer.ending {
                            Some(Ending::Failed(error)) => {
                                assert_eq!(error.code, ErrorCode::InvalidRequest, "{shown}: {error}");
                                println!("given up: {shown}: {}", error.message);
                                Some((error.param, error.message))
                            }
                            _ => None,
                        }
                    }
                }
            }
        };
        let took = begin.elapsed();
        if took > Duration::from_millis(300) {
            println!("{took:?}: {shown}");
        }
        slowest = slowest.max(took);
        match error {
            Some((param, message)) => {
                refused += 1;
                assert!(param.as_ref().is_some_and(|param| param.starts_with(field)), "{shown}: {param:?}");
                assert!(message.starts_with('`') || message.contains(field), "{shown}: {message}");
                assert!(message.chars().count() < 700, "{shown}: {message}");
            }
            None => {
                followed += 1;
                assert_eq!(*fate, Either, "{shown} was followed");
            }
        }
    }
    let grown = resident_mib().saturating_sub(before);
    println!(
        "{} hostile rules: {refused} refused, {followed} followed, slowest {slowest:?}, {grown} MiB more",
        cases.len()
    );
    assert!(cases.len() >= 130 && refused >= 90);
    assert!(slowest < Duration::from_secs(25), "the slowest took {slowest:?}");
    assert!(grown < 1_024, "{grown} MiB");
}

/// Threads whose rule takes too long are few, and others get their turn; what was compiled once is not compiled again.
#[test]
fn a_kept_rule_is_ready_at_once() {
    let tokenizer = tiny_tokenizer();
    let grammars = Grammars::new(tokenizer);
    let rule = crate::cases::constraint("guided_json", properties(200));
    let begin = Instant::now();
    grammars.grammar(&rule, &[]).unwrap();
    let first = begin.elapsed();
    let begin = Instant::now();
    for _ in 0..20 {
        grammars.grammar(&rule, &[]).unwrap();
    }
    let again = begin.elapsed() / 20;
    println!("first {first:?}, again {again:?}");
    assert!(again < first / 3, "first {first:?}, again {again:?}");
}
