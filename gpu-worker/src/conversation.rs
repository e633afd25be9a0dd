//! A request's conversation and functions as chat templates know them: in OpenAI's form.

use contract::{Message, Role, Tool, ToolCall, ToolUse};
use serde_json::{Map, Value, json};

/// Messages for a template.
pub fn messages(messages: &[Message]) -> Value {
    messages.iter().map(message).collect()
}

/// Functions for a template, members in the order of OpenAI's documentation: one request is one prompt, however its JSON
/// was ordered.
///
/// # Errors
/// A schema that is no JSON.
pub fn tools(tools: &ToolUse) -> Result<Value, serde_json::Error> {
    tools.offered.iter().map(tool).collect()
}

fn message(message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut fields = Map::new();
    fields.insert("role".to_owned(), role.into());
    fields.insert("content".to_owned(), message.content.as_str().into());
    let more =
        [("name", &message.name), ("tool_call_id", &message.tool_call_id), ("reasoning_content", &message.thoughts)];
    fields.extend(more.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text.as_deref()?.into()))));
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        fields.insert("tool_calls".to_owned(), message.tool_calls.iter().map(call).collect());
    }
    fields.into()
}

fn tool(tool: &Tool) -> Result<Value, serde_json::Error> {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    function.extend(tool.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
    if let Some(schema) = &tool.parameters {
        function.insert("parameters".to_owned(), serde_json::from_str(schema)?);
    }
    Ok(json!({"type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    use contract::Input;
    use contract::openai::parse_chat;
    use serde_json::{Value, json};

    use crate::text::golden_tests::QWEN;

    /// From the body of a request to the prompt, against what `fixtures/golden/tools.py` made with Jinja2 of the same file.
    #[test]
    fn conversations_with_functions_render_as_with_jinja2() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/golden/tools.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() >= 20);
        for line in lines {
            let mut body = line["request"].clone();
            body["model"] = json!("m");
            let request = parse_chat(&body).unwrap_or_else(|err| panic!("{}: {err}", line["name"])).request;
            let Input::Chat(messages) = &request.input else { panic!("not a chat") };
            let tools = request.tools.as_ref().map(|tools| super::tools(tools).unwrap());
            let prompt = QWEN.chat(&super::messages(messages), tools.as_ref(), true).unwrap();
            assert_eq!(prompt.text, line["rendered"].as_str().unwrap(), "{}", line["name"]);
        }
    }

    #[test]
    fn the_order_of_a_functions_members_does_not_show() {
        let prompt = |tool: Value| {
            let messages = json!([{"role": "user", "content": "Hi"}]);
            let body = json!({"model": "m", "messages": messages, "tools": [tool]});
            super::tools(&parse_chat(&body).unwrap().request.tools.unwrap()).unwrap().to_string()
        };
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        let one = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}});
        let other = json!({"function": {"strict": null, "parameters": schema, "description": "d", "name": "f"}, "type": "function"});
        let shown = format!("[{one}]");
        assert_eq!(prompt(one.clone()), shown);
        assert_eq!(prompt(other), shown);
    }
}
