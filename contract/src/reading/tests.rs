//! Answers as models write them, whole and cut anywhere.

use proptest::prelude::*;
use serde_json::json;

use super::{CallSyntax, FoundCall, Piece, Reader, Reading, ThoughtSyntax, call_id};

const HERMES: Reading = Reading { calls: Some(CallSyntax::Hermes), thoughts: None };
const LLAMA: Reading = Reading { calls: Some(CallSyntax::Llama), thoughts: None };
const MISTRAL: Reading = Reading { calls: Some(CallSyntax::Mistral), thoughts: None };
const TAGGED: Reading = Reading { calls: Some(CallSyntax::Hermes), thoughts: Some(ThoughtSyntax::Tagged) };
const OPEN: Reading = Reading { calls: None, thoughts: Some(ThoughtSyntax::Open) };
const ALL: [Reading; 6] =
    [HERMES, LLAMA, MISTRAL, TAGGED, OPEN, Reading { calls: None, thoughts: Some(ThoughtSyntax::Tagged) }];

fn names() -> Vec<String> {
    vec!["f".into(), "get_weather".into()]
}

fn read(reading: Reading, text: &str) -> Piece {
    reading.read(&names(), text)
}

fn call(name: &str, arguments: &str) -> FoundCall {
    FoundCall { name: name.into(), arguments: arguments.into() }
}

fn message(content: &str, calls: Vec<FoundCall>) -> Piece {
    Piece { content: content.into(), calls, ..Piece::default() }
}

/// Text, its message and its calls.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

fn check(reading: Reading, cases: &[Case]) {
    for (text, content, calls) in cases {
        let calls = calls.iter().map(|(name, arguments)| call(name, arguments)).collect();
        assert_eq!(read(reading, text), message(content, calls), "{text:?}");
    }
}

#[test]
fn hermes_calls_are_told_from_text() {
    const F: &[(&str, &str)] = &[("f", r#"{"a": 1}"#)];
    check(
        HERMES,
        &[
            ("Hello.\n", "Hello.\n", &[]),
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", F),
            ("Well.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n", "Well.", F),
            ("<tool_call>{\"arguments\":{\"a\": 1},\"name\":\"f\"}</tool_call>", "", F),
            // The end of the text, or of its tokens, closes a call that is whole.
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "", F),
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_", "", F),
            ("<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "", &[("f", "{}")]),
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}\n</tool_call>", "", F),
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\u{fc}rich </tool_call> {\\\"}\"}}\n</tool_call>",
                "",
                &[("f", r#"{"a": 1}"#), ("get_weather", "{\"city\": \"Z\u{fc}rich </tool_call> {\\\"}\"}")],
            ),
            // Text behind a call keeps the white space before it.
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n done \n", "\n done \n", F),
            ("a < b <tool <tool_call", "a < b <tool <tool_call", &[]),
            ("<<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>", "<", F),
        ],
    );
}

#[test]
fn what_is_no_call_is_content_to_the_last_character() {
    const NONE: &[(&str, &str)] = &[];
    const TEXTS: &[&str] = &[
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>\n",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
        "<tool_call>\n{'name': 'f'}\n</tool_call> and on",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": \"a\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1e999}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud800\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"parameters\": {}, \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"more\": 1}\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"cut off",
        "<tool_call>\n{\"name\": \"f\"} {\"name\": \"f\"}\n</tool_call>",
        "<tool_call>\n[{\"name\": \"f\"}]\n</tool_call>",
        "<tool_call>\n</tool_call>",
        "<tool_call>",
    ];
    for text in TEXTS {
        check(HERMES, &[(text, text, NONE)]);
    }
    // What comes behind is still read.
    let good = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    for text in TEXTS.iter().filter(|text| !text.contains("cut off")) {
        let both = format!("{text}{good}");
        assert_eq!(read(HERMES, &both), message(text.trim_end(), vec![call("f", "{}")]), "{both}");
    }
    assert_eq!(
        read(HERMES, &format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"text\": \"cut\n{good}")),
        message("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"cut", vec![call("f", "{}")])
    );
}

#[test]
fn llama_calls_stand_where_the_answer_begins() {
    const F: &[(&str, &str)] = &[("f", r#"{"a": [1]}"#)];
    check(
        LLAMA,
        &[
            ("Hello {", "Hello {", &[]),
            (r#"{"name": "f", "parameters": {"a": [1]}}"#, "", F),
            (r#"{"type": "function", "name": "f", "parameters": {"a": [1]}}"#, "", F),
            (r#"<|python_tag|>{"name": "f", "parameters": {"a": [1]}}"#, "", F),
            (
                r#"{"name": "f", "parameters": {"a": [1]}}; {"name": "get_weather", "parameters": {}}"#,
                "",
                &[("f", r#"{"a": [1]}"#), ("get_weather", "{}")],
            ),
            (r#"{"name": "f", "parameters": {"a": [1]}}; and"#, "; and", F),
            (r#"{"name": "f", "parameters": {"a": [1]}};"#, ";", F),
            (r#"{"name": "f", "parameters": {"a": [1]}} {"name": "f"}"#, r#" {"name": "f"}"#, F),
            (r#"{"answer": 42}"#, r#"{"answer": 42}"#, &[]),
            (r#" {"name": "f", "parameters": {"a": "#, r#" {"name": "f", "parameters": {"a": "#, &[]),
            ("<|python_tag|>print(1)", "<|python_tag|>print(1)", &[]),
            (r#"Call: {"name": "f", "parameters": {}}"#, r#"Call: {"name": "f", "parameters": {}}"#, &[]),
        ],
    );
}

#[test]
fn mistral_calls_are_a_list() {
    const TWO: &[(&str, &str)] = &[("f", r#"{"a": 1}"#), ("get_weather", "{}")];
    check(
        MISTRAL,
        &[
            ("Hello [TOOL", "Hello [TOOL", &[]),
            (
                r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}, "id": "abcdefghi"}]"#,
                "",
                TWO,
            ),
            (
                r#"Well. [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}},{"name":"get_weather","arguments": {}}] on"#,
                "Well. on",
                TWO,
            ),
            (
                r#"[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"}]"#,
                r#"[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"}]"#,
                &[],
            ),
            ("[TOOL_CALLS] []", "[TOOL_CALLS] []", &[]),
            ("[TOOL_CALLS] f", "[TOOL_CALLS] f", &[]),
        ],
    );
}

#[test]
fn thoughts_end_where_the_mark_says() {
    let case = |reading, text: &str, thoughts: &str, content: &str| {
        let expected = Piece { thoughts: thoughts.into(), content: content.into(), calls: vec![] };
        assert_eq!(read(reading, text), expected, "{text:?}");
    };
    case(TAGGED, "<think>\nSo <b>.\n\n</think>\n\nYes.\n", "So <b>.", "Yes.\n");
    case(TAGGED, "\n<think></think>Yes", "", "Yes");
    case(TAGGED, "No <think>x</think>", "", "No <think>x</think>");
    case(TAGGED, "<think>\nfor ever\n</thin", "for ever\n</thin", "");
    case(TAGGED, "<thin", "", "<thin");
    case(OPEN, "So.\n</think>\n\nYes </think>", "So.", "Yes </think>");
    case(OPEN, "\nSo", "So", "");
    let text = "<think>\nuse f: <tool_call>\n</think>\n\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>";
    let expected =
        Piece { thoughts: "use f: <tool_call>".into(), content: String::new(), calls: vec![call("f", "{}")] };
    assert_eq!(read(TAGGED, text), expected);
}

#[test]
fn ids_are_of_the_job_the_answer_and_the_place() {
    let job = "job_0193f0c0d0e070008000000000000001".parse().unwrap();
    // `printf 'job_0193f0c0d0e070008000000000000001/0/0' | sha256sum`, each byte modulo 62 in 0-9A-Za-z.
    assert_eq!(call_id(CallSyntax::Hermes, &job, 0, 0), "call_66WV7yigc6Hr5ZwcaKbSLI44");
    assert_eq!(call_id(CallSyntax::Mistral, &job, 0, 0), "66WV7yigc");
    let others = [(0, 1), (1, 0), (1, 1)].map(|(choice, nth)| call_id(CallSyntax::Llama, &job, choice, nth));
    assert_eq!(others.iter().collect::<std::collections::HashSet<_>>().len(), 3);
}

#[test]
fn hostile_answers_are_read_in_proportion() {
    let started = std::time::Instant::now();
    for unit in [
        "<tool_call>",
        "<tool_call>{\"a\":\"",
        "<tool_call>{\"a\": [",
        "<tool_call>{}",
        "{",
        "[TOOL_CALLS][",
        "</think>\n",
    ] {
        let text = unit.repeat((1 << 20) / unit.len());
        for reading in ALL {
            let piece = read(reading, &text);
            assert_eq!(piece.calls, []);
        }
    }
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

/// The pieces of `text`, cut at these places, joined.
fn in_pieces(reading: Reading, text: &str, mut cuts: Vec<usize>) -> Piece {
    let mut reader = Reader::new(reading, names());
    let mut whole = Piece::default();
    cuts.push(text.len());
    let mut from = 0;
    for to in cuts {
        whole.append(reader.push(&text[from..to]));
        from = to;
    }
    whole.append(reader.finish());
    whole
}

/// Text of parts that make trouble, or of calls that are right.
fn answer() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("\n"),
        Just(" "),
        Just("<"),
        Just("<think>"),
        Just("</think>"),
        Just("{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}"),
        Just("{\"name\": \"g\"}"),
        Just("{"),
        Just("}"),
        Just("\""),
        Just("\\"),
        Just("[TOOL_CALLS]"),
        Just("["),
        Just("]"),
        Just(","),
        Just(";"),
        Just("<|python_tag|>"),
        Just("é"),
        Just("😀"),
        Just("text"),
        Just("{\"name\": \"get_weather\", \"parameters\": {}}"),
        Just("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"),
        Just("[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]"),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every single cut, and all cuts at once: a character at a time.
    #[test]
    fn any_cut_is_read_as_the_whole(text in answer(), reading in prop::sample::select(&ALL[..])) {
        let whole = read(reading, &text);
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for at in &cuts {
            prop_assert_eq!(&in_pieces(reading, &text, vec![*at]), &whole, "{:?} cut at {}", text, at);
        }
        prop_assert_eq!(&in_pieces(reading, &text, cuts), &whole, "{:?}", text);
    }

    /// Nothing is shown that later becomes a call, and nothing is lost: what no call took is shown, white space beside
    /// calls and the marks of thoughts apart.
    #[test]
    fn an_answer_without_calls_is_its_text(text in answer(), reading in prop::sample::select(&ALL[..3])) {
        let piece = read(reading, &text);
        if piece.calls.is_empty() {
            prop_assert_eq!(&piece.content, &text);
        } else {
            let calls: usize = piece.calls.iter().map(|call| call.arguments.len()).sum();
            prop_assert!(piece.content.len() + calls < text.len());
            prop_assert!(piece.calls.iter().all(|call| serde_json::from_str::<serde_json::Value>(&call.arguments).unwrap().is_object()));
        }
        let mut shown = String::new();
        let mut reader = Reader::new(reading, names());
        for c in text.chars() {
            shown.push_str(&reader.push(c.encode_utf8(&mut [0; 4])).content);
            prop_assert!(piece.content.starts_with(&shown), "{:?} shows {:?} of {:?}", text, shown, piece.content);
        }
    }

    /// Calls as the templates write them, arguments of any kind, with text before them.
    #[test]
    fn calls_come_back_as_they_were_written(
        before in "[a-z .\n]{0,20}",
        arguments in prop::collection::vec(prop::collection::btree_map("\\PC{0,8}", prop_oneof![
            "(\\PC|\n|</tool_call>|\"){0,12}".prop_map(serde_json::Value::from), any::<i64>().prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from), Just(json!({"a": [null, 1.5]})),
        ], 0..4), 1..4),
    ) {
        let arguments: Vec<String> = arguments.iter().map(|map| json!(map).to_string()).collect();
        let expected: Vec<FoundCall> = arguments.iter().map(|arguments| call("f", arguments)).collect();
        let hermes: Vec<String> = arguments
            .iter()
            .map(|arguments| format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>"))
            .collect();
        prop_assert_eq!(read(HERMES, &format!("{before}{}", hermes.join("\n"))), message(before.trim_end(), expected.clone()));
        let objects: Vec<String> =
            arguments.iter().map(|arguments| format!("{{\"name\": \"f\", \"arguments\": {arguments}}}")).collect();
        let mistral = format!("{before}[TOOL_CALLS] [{}]", objects.join(", "));
        prop_assert_eq!(read(MISTRAL, &mistral), message(before.trim_end(), expected.clone()));
        prop_assert_eq!(read(LLAMA, &objects.join("; ")), message("", expected));
    }
}
