//! Chat templates against Jinja2, and templates that mean harm.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ChatTemplate, TextError};

/// Source and output: what Jinja2 3.1.6 renders, set up as transformers sets it up.
const CASES: &str = r###"[
    ["{% for m in messages %}\n  {% if m.role == 'user' %}\nU:{{ m.content | trim }}\n  {% endif %}\n{% endfor %}\nend\n", "U:hi <b> & \"q\" \u00e9\nend"],
    ["{{ tools | tojson }}", "[{\"name\": \"f\", \"p\": {\"z\": 1, \"a\": [1.5, 1e-05, 1e+16, true, null, \"\u00e9\u2028\\u0001\\\"\\\\/<\"], \"e\": {}, \"l\": []}}]"],
    ["{{ tools | tojson(indent=4) }}", "[\n    {\n        \"name\": \"f\",\n        \"p\": {\n            \"z\": 1,\n            \"a\": [\n                1.5,\n                1e-05,\n                1e+16,\n                true,\n                null,\n                \"\u00e9\u2028\\u0001\\\"\\\\/<\"\n            ],\n            \"e\": {},\n            \"l\": []\n        }\n    }\n]"],
    ["{{ tools[0].p | tojson(sort_keys=true) }}", "{\"a\": [1.5, 1e-05, 1e+16, true, null, \"\u00e9\u2028\\u0001\\\"\\\\/<\"], \"e\": {}, \"l\": [], \"z\": 1}"],
    ["{{ messages[2].n }}|{{ messages[2].ok }}|{{ messages[2].no }}|{{ messages[2].absent }}|{{ 7 // 2 }}|{{ 7 / 2 }}|{{ 2 * 3.0 }}", "1.0|True|None||3|3.5|6.0"],
    ["{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}|{{ messages[2].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}", "yes|why"],
    ["{%- set ns = namespace(n=0) -%}\n{%- for m in messages[1:] -%}\n{%- set ns.n = ns.n + 1 -%}{{ loop.index0 }}{{ ns.n }}{{ '' if loop.last else ',' }}{%- endfor -%}", "01,12"],
    ["{{ messages[::-1][0]['role'] }} {{ messages | length }} {{ messages[0].content is string }} {{ messages is iterable }} {{ tools is not none }} {{ documents is none }}", "assistant 3 True True True True"],
    ["{{ messages[0].content is iterable }} {{ messages[0].content is mapping }} {{ 7 is iterable }} {{ {} is iterable }}", "True False False True"],
    ["{{ bos_token + messages[0]['content'] + eos_token }}{% if add_generation_prompt %}GO{% endif %}", "<B>S<E>GO"],
    ["{% for k, v in tools[0].p.items() %}{{ k }};{% endfor %}{{ '\u00e9'.upper() }} {{ 'a,b'.split(',') | join('+') }} {{ 'hello world'.title() }} {{ ' x '.strip() }}.", "z;a;e;l;\u00c9 a+b Hello World x."],
    ["{% macro row(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ row(1) }}{{ row('x', b=2) }}", "[1d][x2]"],
    ["{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}", "user"],
    ["a\n{# note #}\nb\n   {%- if true %} c {% endif -%}   d", "a\nb c d"],
    ["{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | map(attribute='role') | join(' ') }} {{ (messages | last).role }} {{ messages[0].role in ['system', 'x'] }} {{ 'a' ~ 1 ~ 'b' }}", "1 system user assistant assistant True a1b"],
    ["{{ messages[1].content | replace('hi', 'ho') | upper }} {{ '%s' }} {{ messages[1].content | length }} {{ messages[1].content[2:4] }}", "  HO <B> & \"Q\" \u00c9  %s 17 hi"],
    ["{{ 'x' if messages[9] is defined else 'y' }}{{ messages[0].get('role') }}{{ messages[0].get('nope', 'dflt') }}{{ messages[0]['role'].startswith('sys') }}", "ysystemdfltTrue"]
]"###;

fn render(source: &str) -> Result<String, TextError> {
    let messages = json!([
        {"role": "system", "content": "S"},
        {"role": "user", "content": "  hi <b> & \"q\" é "},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nyes", "n": 1.0, "ok": true, "no": null},
    ]);
    let list = json!([1.5, 1e-5, 1e16, true, null, "é\u{2028}\u{1}\"\\/<"]);
    let tools = json!([{"name": "f", "p": {"z": 1, "a": list, "e": {}, "l": []}}]);
    ChatTemplate::from_source(source, "<B>", "<E>")?.render(&messages, Some(&tools), true)
}

#[test]
fn templates_render_as_in_jinja2() {
    let cases: Vec<(String, String)> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() >= 16);
    for (source, output) in cases {
        assert_eq!(render(&source).unwrap(), output, "{source}");
    }
}

#[test]
fn without_tools_the_name_is_none() {
    let template = ChatTemplate::from_source("{{ tools is none }} {{ not tools }}", "", "").unwrap();
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(template.render(&messages, None, false).unwrap(), "True True");
}

#[test]
fn generation_tags_print_what_is_in_them() {
    for (source, output) in [
        ("a {% generation %}b{% endgeneration %} c", "a b c"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("{% set x = '{% generation' %}{{ x }}", "{% generation"),
    ] {
        assert_eq!(render(source).unwrap(), output);
    }
}

#[test]
fn what_a_template_raises_is_what_the_client_reads() {
    let err = render("{{ raise_exception('roles must alternate') }}").unwrap_err();
    assert!(matches!(&err, TextError::TemplateRefused(message) if message == "roles must alternate"), "{err:?}");
    let nested = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}";
    assert!(matches!(render(nested).unwrap_err(), TextError::TemplateRefused(message) if message == "deep"));
}

#[test]
fn dates_come_from_the_clock() {
    let year = time::OffsetDateTime::now_utc().year().to_string();
    assert!(render("{{ strftime_now('%Y') }}").unwrap() >= year);
    assert!(render("{{ strftime_now('%d %b %Y') }}").unwrap().len() == 11);
}

#[test]
fn syntax_errors_are_found_before_any_request() {
    for source in ["{% if %}", "{{ a", "{% for x in y %}", "{% unknown %}", "{%}", "{%} %}"] {
        assert!(matches!(ChatTemplate::from_source(source, "", ""), Err(TextError::TemplateSyntax(_))), "{source}");
    }
}

#[test]
fn what_would_print_otherwise_than_in_python_is_refused() {
    for source in
        ["{{ messages }}", "{{ messages[0] }}", "{{ [1, 2] }}", "{{ '{}'.format(1) }}", "{{ '%s' | format(1) }}"]
    {
        assert!(matches!(render(source), Err(TextError::TemplateFailed { .. })), "{source}");
    }
}

/// Each must fail, and soon: what asks for gigabytes takes seconds.
const ATTACKS: &[&str] = &[
    "{% for a in range(100000000) %}x{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% set ns = namespace(s='x' * 1000) %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{{ 'x' * 10000000000 }}",
    "{{ ['x'] * 10000000000 }}",
    "{{ [1, 2] | tojson(indent=1000000000) }}",
    "{{ '{:>1000000000}'.format('x') }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ 'a\nb' | indent(1000000000) }}",
    "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "{{ ('y' * 100000).join(['a'] * 100000) }}",
    "{{ (['a'] * 100000) | join('y' * 100000) }}",
    "{{ range(1000000000) | list | length }}",
    "{{ (range(1000000) | list) | batch(1) | list | length }}",
    "{{ 10 ** 10 ** 10 }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
];

#[test]
fn hostile_templates_fail_within_their_bounds() {
    for source in ATTACKS {
        let started = Instant::now();
        let result = render(source);
        let took = started.elapsed();
        assert!(result.is_err(), "{source}: {:?}", result.map(|text| text.len()));
        assert!(took < Duration::from_secs(2), "{source} took {took:?}");
    }
}

#[test]
fn long_conversations_fit_the_fuel() {
    let source = "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}";
    let template = ChatTemplate::from_source(source, "", "").unwrap();
    let messages: Vec<Value> = (0..2_048).map(|_| json!({"role": "user", "content": "x".repeat(2_048)})).collect();
    let text = template.render(&Value::from(messages), None, true).unwrap();
    assert_eq!(text.len(), 2_048 * (2_048 + 28));
}
