//! The real Qwen model, asked for things in words, with rules for its answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::Constraint;
use gpu_worker::engine::planner::Limits;
use gpu_worker::forward::trivial::Ending as ModelEnding;
use gpu_worker::grammar::Grammars;
use gpu_worker::load::GgufHeader;
use gpu_worker::text::Prompts;
use serde_json::{Value, json};

use crate::cases::{constraint, fault, schemas};
use crate::common::{QWEN, fresh, model_path};
use crate::run::{Ask, at, noise, run};

fn prompts() -> Prompts {
    let mut file = std::io::BufReader::new(std::fs::File::open(model_path(QWEN)).unwrap());
    Prompts::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap()
}

#[test]
fn what_a_real_model_says_under_a_rule_is_valid_and_sensible() {
    let prompts = prompts();
    let tokenizer = Arc::clone(prompts.tokenizer());
    let begin = Instant::now();
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    let person = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
        "languages": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "languages"],
        "additionalProperties": false});
    let asked = "Ada is 36 years old and speaks English and French. Write this person as JSON.";
    let tale = "Tell me a very long story about a river.";
    let mut rules = vec![
        (asked, constraint("guided_json", person.clone())),
        (tale, constraint("guided_json", person)),
        (
            "Write a JSON object with a key \"city\" and the value \"Paris\".",
            constraint("response_format", json!({"type": "json_object"})),
        ),
        ("Is the sky blue? Answer yes or no.", constraint("guided_choice", json!(["yes", "no"]))),
        (
            "I love this film! Is this review positive, negative or neutral?",
            constraint("guided_choice", json!(["positive", "negative", "neutral"])),
        ),
        ("What is 17 + 25? Only the number.", constraint("guided_regex", json!("[0-9]{1,4}"))),
        ("Give me an IPv4 address.", constraint("guided_regex", json!(r"\d{1,3}(\.\d{1,3}){3}"))),
    ];
    let schemas: Vec<Value> = schemas();
    rules.extend(schemas.iter().map(|schema| (tale, constraint("guided_json", schema.clone()))));
    rules.extend(
        schemas.iter().map(|schema| ("Answer with JSON that fits.", constraint("guided_json", schema.clone()))),
    );
    let asks = rules.iter().enumerate().map(|(nth, (prompt, rule))| {
        let messages = json!([{"role": "user", "content": prompt}]);
        let ids = prompts.chat(&messages, None, true).unwrap().ids;
        let temperature = if nth < 7 || nth.is_multiple_of(2) { 0.0 } else { 1.0 };
        Ask { prompt: ids, sampling: at(temperature), max_tokens: 80, ..Ask::new(nth as u64, Some(rule.clone())) }
    });
    let prepared: Vec<_> = asks.map(|ask| ask.prepared(&grammars, &tokenizer)).collect();
    println!("{} rules compiled in {:?}", rules.len(), begin.elapsed());
    let limits = Limits { max_sequences: 16, step_tokens: 256, ..Limits::default() };
    let begin = Instant::now();
    let (answers, _) = run(&mut fresh(QWEN, 200), prepared, limits, 200, 0);
    let n_tokens: usize = answers.values().map(|answer| answer.ids.len()).sum();
    println!("{n_tokens} tokens in {:?}", begin.elapsed());
    let mut whole = 0;
    for (id, answer) in &answers {
        let (prompt, rule) = &rules[*id as usize];
        assert!(answer.is_whole() || answer.is_cut(), "{rule:?}: {answer:?}");
        if answer.is_whole() {
            whole += 1;
            let fault = fault(&rule.rule, &answer.text);
            assert!(fault.is_none(), "{rule:?} gave {:?} to {prompt:?}: {}", answer.text, fault.unwrap());
        }
    }
    println!("{whole} of {} finished", answers.len());
    assert!(whole * 10 >= answers.len() * 9, "only {whole} of {} finished", answers.len());
    let ada: Value = serde_json::from_str(&answers[&0].text).unwrap();
    assert_eq!((&ada["name"], &ada["age"]), (&json!("Ada"), &json!(36)), "{ada}");
    assert_eq!(answers[&3].text, "yes");
}

/// What following a rule costs over a vocabulary of 151,936 tokens, whatever computes the logits.
#[test]
fn a_rule_costs_little_over_a_large_vocabulary() {
    let prompts = prompts();
    let tokenizer = Arc::clone(prompts.tokenizer());
    let begin = Instant::now();
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    let rule = |schema: Value| constraint("guided_json", schema);
    let open = rule(json!({"type": "object", "properties": {"story": {"type": "string"}}, "required": ["story"]}));
    grammars.grammar(&open, &[]).unwrap();
    println!("tables and first rule: {:?}", begin.elapsed());
    let begin = Instant::now();
    grammars.grammar(&rule(schemas()[5].clone()), &[]).unwrap();
    println!("another rule: {:?}", begin.elapsed());
    let begin = Instant::now();
    grammars.grammar(&open, &[]).unwrap();
    println!("a kept rule: {:?}", begin.elapsed());
    let time = |constraint: Option<Constraint>| {
        let mut forward = noise(&tokenizer, 64, ModelEnding::Never);
        let ask = Ask { max_tokens: 400, ..Ask::new(1, constraint) }.prepared(&grammars, &tokenizer);
        let limits = Limits { max_sequences: 1, step_tokens: 64, ..Limits::default() };
        let begin = Instant::now();
        let answer = run(&mut forward, vec![ask], limits, 64, 0).0.remove(&1).unwrap();
        begin.elapsed() / answer.ids.len() as u32
    };
    let (without, with) = (time(None), time(Some(open)));
    println!("a token without a rule {without:?}, with one {with:?}");
    assert!(with < without + Duration::from_millis(20), "without {without:?}, with {with:?}");
}
