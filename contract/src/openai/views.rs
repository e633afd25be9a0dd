//! Results as views of a record: the same record always gives the same bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bodies::{
    AssistantMessage, CalledFunction, ChatChoice, ChatCompletion, ChatLogprobs, ChatTokenLogprob, ChatTopLogprob,
    TextChoice, TextCompletion, TextLogprobs, ToolCallBody, UsageBody,
};
use crate::event::TokenEvent;
use crate::ids::JobId;
use crate::reading::{FoundCall, Piece, call_id};
use crate::record::{ChoiceRecord, Record, TokenLogprob};
use crate::request::Kind;
use crate::time::Timestamp;

/// A result in the shape of the route it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResultBody {
    /// Of a chat.
    Chat(ChatCompletion),
    /// Of a completion.
    Completion(TextCompletion),
}

/// The id that an OpenAI route shows for a job.
pub fn completion_id(kind: Kind, job: &JobId) -> String {
    match kind {
        Kind::Chat => format!("chatcmpl-{job}"),
        Kind::Completion => format!("cmpl-{job}"),
    }
}

/// The body of the route that `record` belongs to.
pub fn result_body(record: &Record, accepted_at: Timestamp) -> ResultBody {
    match record.kind {
        Kind::Chat => ResultBody::Chat(chat_body(record, accepted_at)),
        Kind::Completion => ResultBody::Completion(completion_body(record, accepted_at)),
    }
}

/// The record of a chat as `POST /v1/chat/completions` answers it.
pub fn chat_body(record: &Record, accepted_at: Timestamp) -> ChatCompletion {
    let choices = (0u32..).zip(&record.choices).map(|(index, choice)| ChatChoice {
        index,
        message: message(record, index, choice),
        logprobs: choice.logprobs.as_ref().map(|tokens| chat_logprobs(tokens)),
        finish_reason: choice.finish_reason,
        stop_reason: choice.stop_reason.clone(),
    });
    ChatCompletion {
        id: completion_id(Kind::Chat, &record.job),
        object: "chat.completion".to_owned(),
        created: accepted_at.unix_seconds(),
        model: record.request.model.clone(),
        choices: choices.collect(),
        usage: UsageBody::from(record.usage),
        system_fingerprint: record.release.short().to_owned(),
    }
}

/// An answer as a message.
fn message(record: &Record, index: u32, choice: &ChoiceRecord) -> AssistantMessage {
    let Piece { thoughts, content, calls } = record.read(choice);
    let calls: Vec<ToolCallBody> = match record.reading.calls {
        None => Vec::new(),
        Some(syntax) => {
            let ids = (0..).map(|nth| call_id(syntax, &record.job, index, nth));
            ids.zip(calls).map(|(id, call)| tool_call(id, call)).collect()
        }
    };
    let says_nothing = content.is_empty() && !(calls.is_empty() && thoughts.is_empty());
    AssistantMessage {
        role: "assistant".to_owned(),
        content: (!says_nothing).then_some(content),
        reasoning_content: Some(thoughts).filter(|thoughts| !thoughts.is_empty()),
        tool_calls: Some(calls).filter(|calls| !calls.is_empty()),
        refusal: None,
    }
}

/// A call as it is shown.
pub(super) fn tool_call(id: String, call: FoundCall) -> ToolCallBody {
    let function = CalledFunction { name: call.name, arguments: call.arguments };
    ToolCallBody { id, kind: "function".to_owned(), function }
}

/// The record of a completion as `POST /v1/completions` answers it.
pub fn completion_body(record: &Record, accepted_at: Timestamp) -> TextCompletion {
    let choices = (0u32..).zip(&record.choices).map(|(index, choice)| TextChoice {
        text: choice.text.clone(),
        index,
        logprobs: text_logprobs(choice),
        finish_reason: Some(choice.finish_reason),
        stop_reason: choice.stop_reason.clone(),
    });
    TextCompletion {
        id: completion_id(Kind::Completion, &record.job),
        object: "text_completion".to_owned(),
        created: accepted_at.unix_seconds(),
        model: record.request.model.clone(),
        choices: choices.collect(),
        usage: Some(Some(UsageBody::from(record.usage))),
        system_fingerprint: record.release.short().to_owned(),
    }
}

/// Log-probabilities in the shape of the chat route.
pub(super) fn chat_logprobs(tokens: &[TokenLogprob]) -> ChatLogprobs {
    let content = tokens.iter().map(|token| ChatTokenLogprob {
        token: token.token.clone(),
        logprob: token.logprob,
        bytes: token.bytes.clone(),
        top_logprobs: token
            .top
            .iter()
            .map(|top| ChatTopLogprob { token: top.token.clone(), logprob: top.logprob, bytes: top.bytes.clone() })
            .collect(),
    });
    ChatLogprobs { content: content.collect(), refusal: None }
}

/// One token in the shape of the completion route; `offset` is where its text begins, in characters.
pub(super) fn push_text_logprob(into: &mut TextLogprobs, token: &TokenLogprob, offset: u32) {
    let mut top = BTreeMap::new();
    for other in &token.top {
        // Two tokens can look alike, and a map holds one: the likelier, which comes first.
        top.entry(other.token.clone()).or_insert(other.logprob);
    }
    top.entry(token.token.clone()).or_insert(token.logprob);
    into.tokens.push(token.token.clone());
    into.token_logprobs.push(token.logprob);
    into.top_logprobs.push(top);
    into.text_offset.push(offset);
}

fn text_logprobs(choice: &ChoiceRecord) -> Option<TextLogprobs> {
    let tokens = choice.logprobs.as_ref()?;
    let mut shown = TextLogprobs::default();
    let (mut start, mut offset) = (0usize, 0u32);
    for (nth, token) in tokens.iter().enumerate() {
        push_text_logprob(&mut shown, token, offset);
        let end = choice.ends.get(nth).map_or(start, |end| *end as usize);
        offset = offset.saturating_add(chars(choice.text.get(start..end).unwrap_or_default()));
        start = end;
    }
    Some(shown)
}

/// Characters of a text.
pub(super) fn chars(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}

/// A record whose parts contradict one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record's text and tokens do not fit together at token {position}")]
pub struct Inconsistent {
    /// The first token that does not fit, from 1.
    pub position: u32,
}

/// The events of the tokens above position `after`, exactly as they were streamed.
///
/// # Errors
/// [`Inconsistent`] when the record is damaged.
pub fn replay(record: &Record, after: u32) -> Result<Vec<TokenEvent>, Inconsistent> {
    let mut events = Vec::new();
    // Where the text of each choice goes on.
    let mut starts = vec![0usize; record.choices.len()];
    for (position, (index, nth)) in (1u32..).zip(record.stream_order()) {
        let (choice, start) = (&record.choices[index], &mut starts[index]);
        let inconsistent = Inconsistent { position };
        let end = *choice.ends.get(nth).ok_or(inconsistent)? as usize;
        let text = choice.text.get(*start..end).ok_or(inconsistent)?;
        let logprob = match &choice.logprobs {
            None => None,
            Some(tokens) => Some(tokens.get(nth).ok_or(inconsistent)?.clone()),
        };
        if position > after {
            let (id, choice) = (choice.output_ids[nth], u32::try_from(index).unwrap_or(u32::MAX));
            events.push(TokenEvent { position, id, choice, text: text.to_owned(), logprob });
        }
        *start = end;
    }
    Ok(events)
}
