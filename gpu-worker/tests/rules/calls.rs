//! Calls that are forced, strict, or one at most: what finishes is read as clients read it, and checked by `boon`.

use std::sync::Arc;

use contract::openai::parse_chat;
use contract::reading::Piece;
use contract::{CallSyntax, Reading, Rule, Sampling, ToolUse};
use gpu_worker::calls;
use gpu_worker::conversation;
use gpu_worker::engine::planner::Limits;
use gpu_worker::forward::trivial::Ending as ModelEnding;
use gpu_worker::grammar::Grammars;
use gpu_worker::load::GgufHeader;
use gpu_worker::text::{Prompts, TextTokenizer};
use serde_json::{Value, json};

use crate::cases::{fault, schemas};
use crate::common::{QWEN, fresh, model_path};
use crate::run::{Answer, Ask, at, noise, run, tiny_tokenizer};

const SYNTAXES: [CallSyntax; 3] = [CallSyntax::Hermes, CallSyntax::Llama, CallSyntax::Mistral];

/// What a request with these functions may do.
fn tool_use(tools: Value, more: Value) -> ToolUse {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": tools});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    parse_chat(&body).unwrap_or_else(|err| panic!("{err}")).request.tools.unwrap()
}

/// A function for each schema, whose answers are short, and one without arguments.
fn functions(strict: bool) -> Value {
    let schemas = schemas();
    let objects = schemas.iter().filter(|schema| schema["type"] == "object");
    let tools = objects.enumerate().map(|(nth, schema)| {
        json!({"type": "function", "function": {"name": format!("f{nth}"), "parameters": schema, "strict": strict}})
    });
    tools.chain([json!({"type": "function", "function": {"name": "now", "strict": strict}})]).collect()
}

fn read(syntax: CallSyntax, tools: &ToolUse, text: &str) -> Piece {
    Reading { calls: Some(syntax), thoughts: None }.read(&tools.names(), text)
}

/// Every call keeps to the schema of its function.
fn check_calls(tools: &ToolUse, piece: &Piece, text: &str) {
    for call in &piece.calls {
        let tool = tools.offered.iter().find(|tool| tool.name == call.name).unwrap();
        let nothing = json!({"type": "object", "additionalProperties": false}).to_string();
        let rule = Rule::JsonSchema(tool.parameters.clone().unwrap_or(nothing));
        let fault = fault(&rule, &call.arguments);
        assert!(fault.is_none(), "{text:?}: {}: {}", call.arguments, fault.unwrap());
    }
}

fn answers(tokenizer: &Arc<TextTokenizer>, asks: Vec<Ask>) -> Vec<Answer> {
    let grammars = Grammars::new(Arc::clone(tokenizer));
    let prepared = asks.into_iter().map(|ask| ask.prepared(&grammars, tokenizer)).collect();
    let limits = Limits { max_sequences: 16, step_tokens: 64 };
    run(&mut noise(tokenizer, 600, ModelEnding::Never), prepared, limits, 600, 0).0.into_values().collect()
}

#[test]
fn whatever_noise_says_a_forced_answer_is_calls_and_nothing_else() {
    let tokenizer = tiny_tokenizer();
    let (mut finished, mut all, mut several) = (0, 0, 0);
    for syntax in SYNTAXES {
        let named = json!({"type": "function", "function": {"name": "f1"}});
        for (choice, parallel) in [(json!("required"), true), (json!("required"), false), (named.clone(), true)] {
            let tools = tool_use(functions(false), json!({"tool_choice": choice, "parallel_tool_calls": parallel}));
            let lark = calls::grammar(syntax, &tools, None).unwrap();
            assert!(lark.is_some());
            let ask = |id| Ask { calls: lark.clone(), sampling: at(1.0), max_tokens: 600, ..Ask::new(id, None) };
            for answer in answers(&tokenizer, (0..24).map(ask).collect()) {
                assert!(answer.is_whole() || answer.is_cut(), "{answer:?}");
                all += 1;
                let piece = read(syntax, &tools, &answer.text);
                check_calls(&tools, &piece, &answer.text);
                if answer.is_whole() {
                    finished += 1;
                    assert!(piece.content.is_empty() && !piece.calls.is_empty(), "{:?}: {piece:?}", answer.text);
                    assert!(parallel && choice != named || piece.calls.len() == 1, "{:?}", answer.text);
                    assert!(choice != named || piece.calls[0].name == "f1");
                    several += usize::from(piece.calls.len() > 1);
                }
            }
        }
    }
    println!("{finished} of {all} finished, {several} with several calls");
    assert!(finished * 2 > all, "only {finished} of {all} finished");
    assert!(several > 0);
}

/// Noise hardly ever begins a call by itself: a bias makes it.
#[test]
fn strict_calls_keep_to_their_schema_wherever_the_model_calls() {
    let mut file = std::io::BufReader::new(std::fs::File::open(model_path(QWEN)).unwrap());
    let prompts = Prompts::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap();
    let tokenizer = Arc::clone(prompts.tokenizer());
    let [mark] = tokenizer.encode("<tool_call>", false).unwrap()[..] else { panic!("one token") };
    let (mut called, mut finished) = (0, 0);
    for (parallel, strict) in [(true, true), (false, true), (false, false)] {
        let tools = tool_use(functions(strict), json!({"parallel_tool_calls": parallel}));
        let lark = calls::grammar(CallSyntax::Hermes, &tools, prompts.call_mark(CallSyntax::Hermes)).unwrap();
        let ask = |id: u64| {
            let logit_bias = [(mark, 6.0 + id as f32)].into();
            let sampling = Sampling { logit_bias, ..at(1.0) };
            Ask { calls: lark.clone(), sampling, max_tokens: 300, ..Ask::new(id, None) }
        };
        for answer in answers(&tokenizer, (0..16).map(ask).collect()) {
            assert!(answer.is_whole() || answer.is_cut(), "{answer:?}");
            let piece = read(CallSyntax::Hermes, &tools, &answer.text);
            called += piece.calls.len();
            assert!(parallel || piece.calls.len() <= 1, "{:?}", answer.text);
            if strict {
                check_calls(&tools, &piece, &answer.text);
            }
            if answer.is_whole() {
                finished += 1;
                // No mark that leads to no call.
                assert!(!piece.content.contains("<tool_call>"), "{:?}", answer.text);
            }
            if !parallel && piece.calls.len() == 1 && answer.is_whole() {
                assert!(answer.text.ends_with("</tool_call>"), "an answer of one call ends with it: {:?}", answer.text);
            }
        }
    }
    println!("{called} calls, {finished} answers finished");
    assert!(called >= 8, "{called}");
}

#[test]
fn text_is_free_where_nothing_is_called() {
    let tokenizer = tiny_tokenizer();
    for syntax in SYNTAXES {
        let tools = tool_use(functions(true), json!({}));
        let lark = calls::grammar(syntax, &tools, None).unwrap();
        let ask = |id| Ask { calls: lark.clone(), sampling: at(1.0), max_tokens: 60, ..Ask::new(id, None) };
        let answers = answers(&tokenizer, (0..16).map(ask).collect());
        let free = answers.iter().filter(|answer| answer.is_cut() && answer.text.len() >= 40).count();
        assert!(free >= 12, "{syntax:?}: {:?}", answers.iter().map(|answer| &answer.text).collect::<Vec<_>>());
    }
    // Without anything to keep to there is no grammar.
    assert_eq!(calls::grammar(CallSyntax::Hermes, &tool_use(functions(false), json!({})), None).unwrap(), None);
}

/// A control token of the Qwen file stands in for one that marks calls, as Mistral's files have it.
#[test]
fn a_mark_that_is_a_control_token_begins_the_call() {
    let mut file = std::io::BufReader::new(std::fs::File::open(model_path(QWEN)).unwrap());
    let prompts = Prompts::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap();
    let tokenizer = Arc::clone(prompts.tokenizer());
    let mark = 151_644;
    let name = tokenizer.token_text(mark).unwrap();
    for (syntax, forced) in [(CallSyntax::Mistral, true), (CallSyntax::Mistral, false), (CallSyntax::Hermes, true)] {
        let choice = if forced { "required" } else { "auto" };
        let tools = tool_use(functions(true), json!({"tool_choice": choice, "parallel_tool_calls": forced}));
        let lark = calls::grammar(syntax, &tools, Some(mark)).unwrap();
        let logit_bias = if forced { Default::default() } else { [(mark, 100.0)].into() };
        let ask = |id| Ask {
            calls: lark.clone(),
            sampling: Sampling { logit_bias: std::collections::BTreeMap::clone(&logit_bias), ..at(1.0) },
            max_tokens: 400,
            shown: vec![mark],
            ..Ask::new(id, None)
        };
        let mut finished = 0;
        for answer in answers(&tokenizer, (0..12).map(ask).collect()) {
            assert_eq!(answer.ids[0], mark, "{:?}", answer.text);
            let piece = read(syntax, &tools, &answer.text.replace(name, syntax.marker()));
            check_calls(&tools, &piece, &answer.text);
            if answer.is_whole() {
                finished += 1;
                assert!(piece.content.is_empty() && !piece.calls.is_empty(), "{:?}", answer.text);
            }
        }
        assert!(finished >= 4, "{syntax:?}: {finished}");
    }
}

#[test]
fn the_real_model_calls_what_it_has_to() {
    let mut file = std::io::BufReader::new(std::fs::File::open(model_path(QWEN)).unwrap());
    let prompts = Prompts::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap();
    let tokenizer = Arc::clone(prompts.tokenizer());
    let tool = |name: &str, what: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": what, "parameters": parameters}});
    let functions = json!([
        tool(
            "get_weather",
            "Current weather of a city.",
            json!({"type": "object",
            "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false})
        ),
        tool(
            "add",
            "Adds two numbers.",
            json!({"type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
            "additionalProperties": false})
        ),
    ]);
    let cases = [
        ("What is the weather in Paris?", json!({"type": "function", "function": {"name": "get_weather"}})),
        ("What is 17 plus 25?", json!({"type": "function", "function": {"name": "add"}})),
        ("What is the weather in Lima?", json!("required")),
    ];
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    let mut uses = Vec::new();
    let prepared = cases.iter().enumerate().map(|(nth, (asked, choice))| {
        let tools = tool_use(functions.clone(), json!({"tool_choice": choice, "parallel_tool_calls": false}));
        let messages = json!([{"role": "user", "content": asked}]);
        let offered = conversation::tools(&tools).unwrap();
        let prompt = prompts.chat(&messages, Some(&offered), true).unwrap().ids;
        let lark = calls::grammar(CallSyntax::Hermes, &tools, None).unwrap();
        uses.push(tools);
        Ask { prompt, calls: lark, sampling: at(0.0), max_tokens: 80, ..Ask::new(nth as u64, None) }
            .prepared(&grammars, &tokenizer)
    });
    let prepared = prepared.collect();
    let limits = Limits { max_sequences: 4, step_tokens: 512 };
    let (answers, _) = run(&mut fresh(QWEN, 120), prepared, limits, 120, 0);
    let calls: Vec<(String, Value)> = answers
        .iter()
        .map(|(id, answer)| {
            assert!(answer.is_whole(), "{answer:?}");
            let piece = read(CallSyntax::Hermes, &uses[*id as usize], &answer.text);
            let [call] = &piece.calls[..] else { panic!("{:?}", answer.text) };
            (call.name.clone(), serde_json::from_str(&call.arguments).unwrap())
        })
        .collect();
    println!("{calls:?}");
    assert_eq!(calls[0], ("get_weather".into(), json!({"city": "Paris"})));
    assert_eq!(calls[1], ("add".into(), json!({"a": 17, "b": 25})));
    assert_eq!(calls[2], ("get_weather".into(), json!({"city": "Lima"})));
}
