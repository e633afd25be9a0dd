//! A given text as its tokens show it: what each stands for, and where.

use std::sync::Arc;

use super::{TextStream, TextTokenizer};

/// One token of a given text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownToken {
    /// What it stands for, as a client reads it.
    pub text: String,
    /// Characters of the text before what it made visible.
    pub offset: u32,
}

/// A text and its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownText {
    /// The text.
    pub text: String,
    /// One for each id.
    pub tokens: Vec<ShownToken>,
}

impl ShownText {
    /// How `ids` show `text`, of which they are the tokens; without a text they are put together. Control tokens count as
    /// what they are written as, and a BOS that the text does not have as nothing. Where the tokenizer has written a text
    /// in another way first (composed its characters, say), places are counted in what it made of it.
    pub fn of(tokenizer: &Arc<TextTokenizer>, text: Option<String>, ids: &[u32]) -> Self {
        let mut stream = TextStream::new(Arc::clone(tokenizer), Vec::new(), false, false);
        let (mut decoded, mut n_chars) = (String::new(), 0u32);
        let mut tokens = Vec::with_capacity(ids.len());
        for (nth, id) in ids.iter().enumerate() {
            tokens.push(ShownToken { text: tokenizer.show(*id).0, offset: n_chars });
            let is_unseen = nth == 0
                && tokenizer.bos_id() == Some(*id)
                && text.as_ref().is_some_and(|text| !text.as_bytes().starts_with(tokenizer.bytes_of(*id)));
            if !is_unseen {
                let piece = stream.push(*id).text;
                n_chars += piece.chars().count() as u32;
                decoded.push_str(&piece);
            }
        }
        decoded.push_str(&stream.finish());
        let text = text.unwrap_or_else(|| decoded.clone());
        // The space that some tokenizers put in front of every text is in no text.
        if decoded.starts_with(' ') && !text.starts_with(' ') {
            for token in &mut tokens {
                token.offset = token.offset.saturating_sub(1);
            }
        }
        Self { text, tokens }
    }
}

impl TextTokenizer {
    /// A token as a client reads it: ` the`, not the vocabulary's spelling, with its bytes; control tokens stand for none.
    pub fn show(&self, id: u32) -> (String, Option<Vec<u8>>) {
        match self.token_bytes(id).filter(|_| !self.is_special(id)) {
            Some(bytes) => (String::from_utf8_lossy(&bytes).into_owned(), Some(bytes)),
            None => (self.token_text(id).unwrap_or_default().to_owned(), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream_tests::BYTES;
    use super::*;

    fn shown(text: Option<&str>, ids: &[u32]) -> (String, Vec<(String, u32)>) {
        let shown = ShownText::of(&BYTES, text.map(str::to_owned), ids);
        (shown.text, shown.tokens.into_iter().map(|token| (token.text, token.offset)).collect())
    }

    #[test]
    fn places_are_characters_and_a_part_of_one_shows_nothing() {
        let ids: Vec<u32> = "aé b".bytes().map(u32::from).collect();
        let (text, tokens) = shown(Some("aé b"), &ids);
        assert_eq!(text, "aé b");
        let places: Vec<u32> = tokens.iter().map(|(_, offset)| *offset).collect();
        // Two bytes of one character: it is there with the second.
        assert_eq!(places, [0, 1, 1, 2, 3]);
        assert_eq!((tokens[0].0.as_str(), tokens[1].0.as_str()), ("a", "\u{fffd}"));
    }

    #[test]
    fn tokens_without_a_text_are_put_together() {
        let ids: Vec<u32> = "hi é".bytes().map(u32::from).collect();
        assert_eq!(shown(None, &ids).0, "hi é");
        // A character that never becomes whole.
        assert_eq!(shown(None, &ids[..4]).0, "hi \u{fffd}");
    }
}
