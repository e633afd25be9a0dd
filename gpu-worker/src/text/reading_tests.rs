//! What templates show of calls and thoughts, and what is rendered of conversations with functions.

use contract::{CallSyntax, Reading, ThoughtSyntax};
use serde_json::json;

use super::golden_tests::{GEMMA, QWEN};
use super::stream_tests::BYTES;
use super::{ChatTemplate, Prompts, TextStream, reading};

/// In the manner of Qwen 3 as it first came: it looks into content before it knows that there is some.
const QWEN3: &str = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}\
    {%- set content = m.content %}{% if '</think>' in m.content %}{% set content = m.content.split('</think>')[-1] %}{% endif %}\
    {{ content.lstrip('\\n') }}{% for c in m.tool_calls %}\n<tool_call>\n{\"name\": \"{{ c.function.name }}\", \
    \"arguments\": {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}\
    {% endif %}}\n</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// In the manner of Llama 3.1.
const LLAMA: &str = "{{ bos_token }}{% if tools is not none %}Respond in the format {\"name\": function name, \"parameters\": \
    dictionary of argument name and its value}.\n{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{% endif %}\
    {% for message in messages %}{% if 'tool_calls' in message %}{% if not message.tool_calls|length == 1 %}\
    {{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}\
    {% set tool_call = message.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n\
    {{ '{\"name\": \"' + tool_call.name + '\", ' }}{{ '\"parameters\": ' }}{{ tool_call.arguments | tojson }}{{ '}' }}<|eot_id|>\
    {% elif message.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n\
    {% if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}{% else %}{{ message.content }}\
    {% endif %}<|eot_id|>{% else %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>\
    {% endif %}{% endfor %}";

/// In the manner of Mistral 7B v0.3.
const MISTRAL: &str = "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{{ bos_token }}\
    {% for m in messages %}{% if m.role == 'user' %}{% if tools is not none and m == users[-1] %}[AVAILABLE_TOOLS] \
    {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]{% elif m.tool_calls is defined and m.content is none %}\
    [TOOL_CALLS] [{% for c in m.tool_calls %}{% set out = c.function | tojson %}{{ out[:-1] }}\
    {% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('Tool call IDs should be of length 9!') }}{% endif %}\
    {{ ', \"id\": \"' + c.id + '\"}' }}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}{% elif m.role == 'assistant' %}\
    {{ ' ' + m.content + eos_token }}{% elif m.role == 'tool' %}[TOOL_RESULTS] {\"content\": {{ m.content }}, \"call_id\": \
    \"{{ m.tool_call_id }}\"}[/TOOL_RESULTS]{% endif %}{% endfor %}";

fn shown(source: &str) -> reading::Shown {
    reading::of(&ChatTemplate::from_source(source, "<s>", "</s>").unwrap())
}

#[test]
fn templates_show_how_their_models_call_and_think() {
    let of = |calls, thoughts| Reading { calls, thoughts };
    assert_eq!(QWEN.reading(), of(Some(CallSyntax::Hermes), None));
    assert_eq!(GEMMA.reading(), of(None, None));
    let cases = [
        (QWEN3, of(Some(CallSyntax::Hermes), Some(ThoughtSyntax::Tagged)), false),
        (LLAMA, of(Some(CallSyntax::Llama), None), false),
        (MISTRAL, of(Some(CallSyntax::Mistral), None), true),
    ];
    for (source, reading, wants_null) in cases {
        assert_eq!(shown(source), reading::Shown { reading, wants_null }, "{source}");
    }
    // The answer's beginning is the prompt's end.
    let open = format!("{QWEN3}{{% if add_generation_prompt %}}<think>\n{{% endif %}}");
    assert_eq!(shown(&open).reading.thoughts, Some(ThoughtSyntax::Open));
}

#[test]
fn a_template_that_only_goes_half_way_has_no_calls() {
    let none = [
        // No notion of functions at all.
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}".to_owned(),
        // Calls, and nobody is told of what can be called.
        QWEN3.replace("{{ t | tojson }}", ""),
        // Answers of functions are not shown.
        LLAMA.replace(
            "{% elif message.role == 'tool' %}",
            "{% elif message.role == 'tool' and false %}{% elif message.role == 'tool' %}-{% elif false %}",
        ),
        // A form that nobody here reads.
        QWEN3.replace("\"name\"", "\"function\""),
        QWEN3.replace("<tool_call>\n", "<call>\n"),
        "{{ raise_exception('no') }}".to_owned(),
    ];
    for source in none {
        assert_eq!(shown(&source).reading.calls, None, "{source}");
    }
}

#[test]
fn no_content_is_what_the_template_wants_it_to_be() {
    let messages = |content: serde_json::Value| {
        json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": content, "tool_calls":
            [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}])
    };
    for (source, call) in [
        (QWEN3, "assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>"),
        (MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]</s>"),
    ] {
        let template = ChatTemplate::from_source(source, "<s>", "</s>").unwrap();
        let prompts = Prompts::new(BYTES.clone(), Some(template));
        for content in [json!(null), json!("")] {
            let text = prompts.chat(&messages(content), None, false).unwrap().text;
            assert!(text.trim_end().ends_with(call), "{text}");
        }
    }
}

#[test]
fn marks_that_are_control_tokens_are_shown_where_they_are_asked_for() {
    let tokenizer = QWEN.tokenizer();
    // Any control token can stand in for one that is a mark.
    let mark = tokenizer.control_ids(&["<|im_start|>"]);
    assert_eq!(mark, [151_644]);
    let text = |shown: Vec<u32>| {
        let mut stream = TextStream::new(tokenizer.clone(), vec![], false, true).showing(shown);
        let ids = [151_644, 9_707, 151_645];
        let shown: String = ids.iter().map(|id| stream.push(*id).text).collect();
        shown + &stream.finish()
    };
    assert_eq!(text(vec![]), "Hello");
    assert_eq!(text(mark), "<|im_start|>Hello");
    // In this file they are plain tokens.
    assert_eq!((QWEN.marks(true), QWEN.call_mark(CallSyntax::Hermes)), (vec![], None));
}
