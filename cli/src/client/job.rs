//! A job object as the server sent it, and what people want to see of it.

use serde_json::Value;

use super::server::{Server, ServerError};

/// A job object. Kept as it came, so that `--json` prints what the server said.
#[derive(Debug, Clone, PartialEq)]
pub struct JobView(pub Value);

impl JobView {
    /// The job now, or after at most `wait_seconds` if it has not ended before.
    pub async fn fetch(server: &Server, id: &str, wait_seconds: Option<u64>) -> Result<Self, ServerError> {
        let query: Vec<_> = wait_seconds.map(|seconds| ("wait", seconds.to_string())).into_iter().collect();
        server.get(&["v1", "jobs", id], &query).await.map(Self)
    }

    /// A field that is text; `-` where it is not there (yet).
    pub fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or("-")
    }

    /// Its id.
    pub fn id(&self) -> &str {
        self.text("id")
    }

    /// Its state, perhaps one that this program does not know.
    pub fn status(&self) -> &str {
        self.text("status")
    }

    /// Whether it has ended. A state unknown here has ended when the server gives the time of it.
    pub fn has_ended(&self) -> bool {
        matches!(self.status(), "succeeded" | "failed" | "cancelled" | "expired") || self.0["finished_at"].is_string()
    }

    /// Whether it has a result.
    pub fn has_succeeded(&self) -> bool {
        self.status() == "succeeded"
    }

    /// Prompt and output tokens, as `12 + 34`.
    pub fn tokens(&self) -> String {
        let usage = &self.0["usage"];
        match (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()) {
            (Some(prompt), Some(output)) => format!("{prompt} + {output}"),
            _ => "-".to_owned(),
        }
    }

    /// Why it failed, as `code: message`.
    pub fn error(&self) -> Option<String> {
        let error = self.0["error"].as_object()?;
        let text = |name: &str| error.get(name).and_then(Value::as_str);
        Some(format!("{}: {}", text("code").unwrap_or("error"), text("message").unwrap_or("no message")))
    }

    /// The generated text: of each choice in order, each ended by a line end. A result of another shape as JSON.
    pub fn result_text(&self) -> String {
        let result = &self.0["result"];
        let of = |choice: &Value| choice["message"]["content"].as_str().or(choice["text"].as_str()).map(str::to_owned);
        let texts = result["choices"].as_array().and_then(|choices| choices.iter().map(of).collect::<Option<Vec<_>>>());
        let texts = texts.unwrap_or_else(|| vec![format!("{result:#}")]);
        texts.into_iter().map(|text| if text.ends_with('\n') { text } else { format!("{text}\n") }).collect()
    }
}
