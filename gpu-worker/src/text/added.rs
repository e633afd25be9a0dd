//! Finding tokens that are whole strings: control tokens and user-defined ones.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocab::{TokenKind, Vocab};
use crate::load::LoadError;

/// Finds the leftmost-longest whole-string tokens of chosen kinds.
#[derive(Debug)]
pub(super) struct AddedTokens {
    automaton: AhoCorasick,
    /// Id of each pattern, and what it takes with it.
    ids: Vec<(u32, Strip)>,
}

/// Whether a whole-string token takes the white space before or after it with it, so that it is in no other token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Strip {
    pub(super) before: bool,
    pub(super) after: bool,
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
    pub(super) fn new(
        vocab: &Vocab,
        strips: &HashMap<u32, Strip>,
        wanted: impl Fn(TokenKind) -> bool,
    ) -> Result<Self, LoadError> {
        let (ids, texts): (Vec<(u32, Strip)>, Vec<&str>) = vocab
            .iter()
            .filter(|(_, text, kind)| {
                let least = if *kind == TokenKind::Control { 2 } else { 1 };
                wanted(*kind) && text.chars().nth(least - 1).is_some()
            })
            .map(|(id, text, _)| ((id, strips.get(&id).copied().unwrap_or_default()), text))
            .unzip();
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).map_err(|err| {
            LoadError::bad_metadata("tokenizer.ggml.tokens", format!("cannot be searched for: {err}"))
        })?;
        Ok(Self { automaton, ids })
    }

    pub(super) fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        // What the token before has taken.
        let mut taken = 0;
        self.automaton.find_iter(text).map(move |found| {
            let (id, strip) = self.ids[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if strip.before {
                start = taken + text[taken.min(start)..start].trim_end().len();
            }
            if strip.after {
                end = text.len() - text[end..].trim_start().len();
            }
            taken = end;
            Found { id, start, end }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::vocab::Family;

    #[test]
    fn tokens_take_the_spaces_that_they_are_to_take_and_no_others() {
        let tokens = [("<a>", TokenKind::Control), ("<b>", TokenKind::Control), ("<c>", TokenKind::Control)];
        let vocab = Vocab::from_tokens(tokens.into_iter(), Family::SentencePiece);
        let strip = |before, after| Strip { before, after };
        let strips = HashMap::from([(1, strip(false, true)), (2, strip(true, false))]);
        let added = AddedTokens::new(&vocab, &strips, |_| true).unwrap();
        let text = "x <a> y <b> \n\u{a0}<c> z <c>";
        let found: Vec<_> = added.find(text).map(|found| (found.id, &text[found.start..found.end])).collect();
        assert_eq!(found, [(0, "<a>"), (1, "<b> \n\u{a0}"), (2, "<c>"), (2, " <c>")]);
    }
}
