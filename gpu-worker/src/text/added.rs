//! Finding tokens that are whole strings: control tokens and user-defined ones.

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocab::{TokenKind, Vocab};
use crate::load::LoadError;

/// Finds the leftmost-longest whole-string tokens of chosen kinds.
#[derive(Debug)]
pub(super) struct AddedTokens {
    automaton: AhoCorasick,
    /// Id of each pattern.
    ids: Vec<u32>,
}

/// One token found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: u32,
    /// Byte range in the text.
    pub(super) start: usize,
    pub(super) end: usize,
}

impl AddedTokens {
    /// Tokens of `vocab` for whose kind `wanted` is true. Control tokens of a single character are left out: nothing
    /// could keep that character in a user's text apart from one of a template.
    pub(super) fn new(vocab: &Vocab, wanted: impl Fn(TokenKind) -> bool) -> Result<Self, LoadError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = vocab
            .iter()
            .filter(|(_, text, kind)| {
                let least = if *kind == TokenKind::Control { 2 } else { 1 };
                wanted(*kind) && text.chars().nth(least - 1).is_some()
            })
            .map(|(id, text, _)| (id, text))
            .unzip();
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).map_err(|err| {
            LoadError::bad_metadata("tokenizer.ggml.tokens", format!("cannot be searched for: {err}"))
        })?;
        Ok(Self { automaton, ids })
    }

    pub(super) fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        self.automaton.find_iter(text).map(|found| Found {
            id: self.ids[found.pattern().as_usize()],
            start: found.start(),
            end: found.end(),
        })
    }
}
