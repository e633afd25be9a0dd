//! Results as views of a record: the same record always gives the same bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bodies::{
    AssistantMessage, ChatChoice, ChatCompletion, ChatLogprobs, ChatTokenLogprob, ChatTopLogprob, EmbeddingBody,
    EmbeddingList, EmbeddingUsage, EmbeddingVector, PromptLogprob, PromptTokensDetails, TextChoice, TextCompletion,
    TextLogprobs, UsageBody,
};
use crate::event::TokenEvent;
use crate::ids::JobId;
use crate::record::{ChoiceRecord, PromptToken, Record, TokenLogprob};
use crate::request::{Input, Kind, VectorFormat};
use crate::time::Timestamp;

/// A result in the shape of the route it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResultBody {
    /// Of a chat.
    Chat(ChatCompletion),
    /// Of a completion.
    Completion(TextCompletion),
    /// Of an embedding.
    Embedding(EmbeddingList),
}

/// The id that an OpenAI route shows for a job.
pub fn completion_id(kind: Kind, job: &JobId) -> String {
    match kind {
        Kind::Chat => format!("chatcmpl-{job}"),
        Kind::Completion => format!("cmpl-{job}"),
        Kind::Embedding => format!("embd-{job}"),
    }
}

/// The body of the route that `record` belongs to.
pub fn result_body(record: &Record, accepted_at: Timestamp) -> ResultBody {
    match record.kind {
        Kind::Chat => ResultBody::Chat(chat_body(record, accepted_at)),
        Kind::Completion => ResultBody::Completion(completion_body(record, accepted_at)),
        Kind::Embedding => ResultBody::Embedding(embedding_body(record)),
    }
}

/// The record of a chat as `POST /v1/chat/completions` answers it.
pub fn chat_body(record: &Record, accepted_at: Timestamp) -> ChatCompletion {
    let choices = (0u32..).zip(&record.choices).map(|(index, choice)| ChatChoice {
        index,
        message: AssistantMessage { role: "assistant".to_owned(), content: choice.text.clone(), refusal: None },
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
        prompt_logprobs: prompt_logprobs(record),
    }
}

/// The record of a completion as `POST /v1/completions` answers it.
pub fn completion_body(record: &Record, accepted_at: Timestamp) -> TextCompletion {
    let prompt = if record.request.echo { record.prompt_text.as_str() } else { "" };
    let choices = (0u32..).zip(&record.choices).map(|(index, choice)| TextChoice {
        text: format!("{prompt}{}", choice.text),
        index,
        logprobs: text_logprobs(record, choice, chars(prompt)),
        finish_reason: Some(choice.finish_reason),
        stop_reason: choice.stop_reason.clone(),
        prompt_logprobs: prompt_logprobs(record),
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

/// The record of an embedding as `POST /v1/embeddings` answers it.
pub fn embedding_body(record: &Record) -> EmbeddingList {
    let format = match &record.request.input {
        Input::Embedding(embedding) => embedding.format,
        Input::Chat(_) | Input::Completion(_) => VectorFormat::default(),
    };
    let data = (0u32..).zip(&record.vectors).map(|(index, vector)| EmbeddingBody {
        object: "embedding".to_owned(),
        index,
        embedding: match format {
            VectorFormat::Float => EmbeddingVector::Float(vector.0.clone()),
            VectorFormat::Base64 => EmbeddingVector::Base64(vector.to_base64()),
        },
    });
    EmbeddingList {
        object: "list".to_owned(),
        id: completion_id(Kind::Embedding, &record.job),
        data: data.collect(),
        model: record.request.model.clone(),
        usage: EmbeddingUsage {
            prompt_tokens: record.usage.prompt_tokens,
            total_tokens: record.usage.prompt_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: record.usage.cached_tokens },
        },
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
    into.token_logprobs.push(Some(token.logprob));
    into.top_logprobs.push(Some(top));
    into.text_offset.push(offset);
}

/// One token of the prompt in the shape of the completion route, with the `top` likeliest beside it.
fn push_prompt_token(into: &mut TextLogprobs, token: &PromptToken, top: usize) {
    let shown = token.score.as_ref().map(|score| {
        let mut shown = BTreeMap::new();
        for other in score.top.iter().take(top) {
            shown.entry(other.token.clone()).or_insert(other.logprob);
        }
        shown.entry(token.token.clone()).or_insert(score.logprob);
        shown
    });
    into.tokens.push(token.token.clone());
    into.token_logprobs.push(token.score.as_ref().map(|score| score.logprob));
    into.top_logprobs.push(shown);
    into.text_offset.push(token.offset);
}

/// The prompt's log-probabilities in vLLM's shape, if they were asked for in it.
fn prompt_logprobs(record: &Record) -> Option<Vec<Option<BTreeMap<String, PromptLogprob>>>> {
    let top = usize::from(record.request.prompt_logprobs?);
    let of = |(id, token): (&u32, &PromptToken)| {
        let score = token.score.as_ref()?;
        let likeliest = (1..).zip(&score.top).take(top).map(|(rank, top)| {
            let shown = PromptLogprob { logprob: top.logprob, rank, decoded_token: top.token.clone() };
            (top.id.to_string(), shown)
        });
        let own = PromptLogprob { logprob: score.logprob, rank: score.rank, decoded_token: token.token.clone() };
        Some(likeliest.chain([(id.to_string(), own)]).collect())
    };
    Some(record.prompt_ids.iter().zip(record.prompt_tokens.iter().flatten()).map(of).collect())
}

/// Those of the answer, which begins at the character `start_offset` of the text; with `echo` after those of the prompt.
fn text_logprobs(record: &Record, choice: &ChoiceRecord, start_offset: u32) -> Option<TextLogprobs> {
    let tokens = choice.logprobs.as_ref()?;
    let mut shown = TextLogprobs::default();
    if record.request.echo {
        let top = record.request.logprobs.map_or(0, usize::from);
        for token in record.prompt_tokens.iter().flatten() {
            push_prompt_token(&mut shown, token, top);
        }
    }
    let (mut start, mut offset) = (0usize, start_offset);
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
