//! One sequence's ids to text, a token at a time.
//!
//! Tokens are bytes; only whole characters leave. What is shown never depends on how the bytes were cut into tokens:
//! the deltas of a stream joined are the text of the answer, to the byte.

use std::sync::Arc;

use super::{
    TextTokenizer,
    stops::{StopHit, StopMatcher},
};

/// What one token adds to the text that a client sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text to send now; empty while it may still be part of a character or of a stop string.
    pub text: String,
    /// Set when this token completed a stop string: the sequence ends here.
    pub stop: Option<StopHit>,
}

/// The text of one sequence. Feed it every generated id with [`Self::push`], then [`Self::finish`] it.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<TextTokenizer>,
    matcher: StopMatcher,
    include_stop: bool,
    skip_special: bool,
    /// Control tokens that add their text all the same.
    shown: Vec<u32>,
    /// Bytes that are not whole characters yet, at most three.
    partial: Vec<u8>,
    /// Text that may yet turn out to be a stop string.
    held: String,
    stopped: bool,
}

impl TextStream {
    /// A stream that ends before the first of `stops` (empty ones never match).
    ///
    /// `include_stop`: the text ends after the stop string instead of before it. `skip_special`: control tokens add
    /// nothing to the text; without it they add their own text.
    pub fn new(tokenizer: Arc<TextTokenizer>, stops: Vec<String>, include_stop: bool, skip_special: bool) -> Self {
        Self {
            tokenizer,
            matcher: StopMatcher::new(&stops),
            include_stop,
            skip_special,
            shown: Vec::new(),
            partial: Vec::new(),
            held: String::new(),
            stopped: false,
        }
    }

    /// The same, but these control tokens add their own text.
    #[must_use]
    pub fn showing(self, ids: Vec<u32>) -> Self {
        Self { shown: ids, ..self }
    }

    /// Adds one generated token. After a stop string nothing is added any more. An id outside the vocabulary adds
    /// nothing.
    pub fn push(&mut self, id: u32) -> Delta {
        self.push_token(id, true)
    }

    /// Adds one generated token without looking for stop strings in it, nor for ones that begin in it: for the tokens
    /// of `min_tokens`.
    pub fn push_ignoring_stops(&mut self, id: u32) -> Delta {
        self.push_token(id, false)
    }

    /// The text that was still held back, once no token follows. Bytes that never became a character show as U+FFFD.
    pub fn finish(mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let rest = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        // U+FFFD may itself be asked for as a stop string; looking once more keeps stream and whole text equal.
        let delta = self.append(&rest, true);
        if self.stopped { delta.text } else { delta.text + &self.held }
    }

    /// True once a stop string was found.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn push_token(&mut self, id: u32, match_stops: bool) -> Delta {
        let is_hidden = self.skip_special && self.tokenizer.is_special(id) && !self.shown.contains(&id);
        if self.stopped || is_hidden {
            return Delta::default();
        }
        self.partial.extend_from_slice(self.tokenizer.bytes_of(id));
        let whole = self.take_characters();
        self.append(&whole, match_stops)
    }

    /// Takes every character that is whole, or surely broken, off `partial`.
    fn take_characters(&mut self) -> String {
        let mut whole = String::new();
        let mut rest = self.partial.as_slice();
        for chunk in self.partial.utf8_chunks() {
            whole.push_str(chunk.valid());
            rest = &rest[chunk.valid().len()..];
            let broken = chunk.invalid();
            if broken.is_empty() || (rest.len() == broken.len() && may_be_completed(broken)) {
                break;
            }
            whole.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[broken.len()..];
        }
        self.partial = rest.to_vec();
        whole
    }

    fn append(&mut self, text: &str, match_stops: bool) -> Delta {
        if !match_stops {
            self.matcher.reset();
            self.held.push_str(text);
            return Delta { text: std::mem::take(&mut self.held), stop: None };
        }
        for (at, byte) in text.bytes().enumerate() {
            let Some((hit, stop_bytes)) = self.matcher.push(byte) else { continue };
            self.stopped = true;
            self.held.push_str(&text[..=at]);
            if !self.include_stop {
                self.held.truncate(self.held.len() - stop_bytes);
            }
            self.partial.clear();
            return Delta { text: std::mem::take(&mut self.held), stop: Some(hit) };
        }
        self.held.push_str(text);
        let sure = self.held.len() - self.matcher.held_bytes();
        let after = self.held.split_off(sure);
        Delta { text: std::mem::replace(&mut self.held, after), stop: None }
    }
}

/// Whether bytes at the end of a text are the beginning of a character, and not broken already.
fn may_be_completed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|err| err.error_len().is_none())
}
