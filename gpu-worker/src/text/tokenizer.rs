//! Text to token ids and token ids to bytes, for one model.

use tokenizers::Tokenizer;

use super::{
    TextError,
    added::AddedTokens,
    gguf_tokenizer::{self, Built},
    vocab::{Family, TokenKind, Vocab},
};
use crate::load::{LoadError, Metadata};

/// Longest run of one class of characters that is tokenized in one piece. The regular expressions that cut text into
/// words backtrack over runs of spaces; past a limit of theirs they would stop without a word, in both senses.
const MAX_RUN_CHARS: usize = 65_536;

/// Names of control tokens that end a generation in the families' own settings, whatever `eos_token_id` says.
const END_TOKENS: &[&str] =
    &["<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"];

/// The tokenizer of one model. Immutable; share it by `Arc`.
#[derive(Debug)]
pub struct TextTokenizer {
    vocab: Vocab,
    family: Family,
    plain: Tokenizer,
    composes: bool,
    /// A space goes before text at the start and after a whole-string token (SentencePiece's dummy prefix).
    space_prefix: bool,
    user_defined: AddedTokens,
    control: AddedTokens,
    every: AddedTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    adds_bos: bool,
    eos_ids: Vec<u32>,
}

impl TextTokenizer {
    /// Builds the tokenizer that a model file describes.
    ///
    /// # Errors
    /// [`LoadError::UnsupportedTokenizer`] for a kind that would have to be guessed at; [`LoadError::MissingMetadata`]
    /// and [`LoadError::BadMetadata`] name the key that is missing or wrong.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, LoadError> {
        let Built { vocab, family, plain, composes, adds_bos } = gguf_tokenizer::build(metadata)?;
        let id = |key: &str| -> Result<Option<u32>, LoadError> {
            let id = metadata.opt_u32(key)?;
            match id.filter(|id| *id as usize >= vocab.len()) {
                Some(id) => Err(LoadError::bad_metadata(key, format!("is {id}, of {} tokens", vocab.len()))),
                None => Ok(id),
            }
        };
        let bos = id("tokenizer.ggml.bos_token_id")?;
        let eos = id("tokenizer.ggml.eos_token_id")?;
        let eot = id("tokenizer.ggml.eot_token_id")?;
        let adds_bos_key = "tokenizer.ggml.add_bos_token";
        let adds_bos = metadata.opt_bool(adds_bos_key)?.unwrap_or(adds_bos && bos.is_some());
        if adds_bos && bos.is_none() {
            return Err(LoadError::bad_metadata(adds_bos_key, "is true in a file without a bos_token_id"));
        }
        let named = vocab
            .iter()
            .filter(|(_, text, kind)| *kind == TokenKind::Control && END_TOKENS.contains(text))
            .map(|(id, _, _)| id);
        let listed = [eos, eot, id("tokenizer.ggml.eom_token_id")?].into_iter().flatten();
        let mut eos_ids: Vec<u32> = named.chain(listed).collect();
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let space_prefix =
            family == Family::SentencePiece && metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        Ok(Self {
            user_defined: AddedTokens::new(&vocab, |kind| kind == TokenKind::UserDefined)?,
            control: AddedTokens::new(&vocab, |kind| kind == TokenKind::Control)?,
            every: AddedTokens::new(&vocab, |kind| matches!(kind, TokenKind::UserDefined | TokenKind::Control))?,
            vocab,
            family,
            plain,
            composes,
            space_prefix,
            bos,
            eos,
            eot,
            adds_bos,
            eos_ids,
        })
    }

    /// Ids of `text`, no BOS added.
    ///
    /// With `parse_special` the text of a control token becomes that token; without it, it stays text, which is the
    /// way for everything that a user wrote. User-defined tokens (runs of newlines, `<tool_call>`) are found in
    /// both: they are part of how text is written, and steer nothing.
    ///
    /// A run of more than 65,536 characters of one class (spaces, letters, digits, others) is cut into pieces of that
    /// length first.
    ///
    /// # Errors
    /// [`TextError::Tokenize`] if the tokenizer gives up.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        let added = if parse_special { &self.every } else { &self.user_defined };
        let mut ids = Vec::with_capacity(text.len() / 4 + 8);
        let mut at = 0;
        for found in added.find(text) {
            self.encode_plain(&text[at..found.start], &mut ids)?;
            ids.push(found.id);
            at = found.end;
        }
        self.encode_plain(&text[at..], &mut ids)?;
        Ok(ids)
    }

    /// Ids of a raw prompt: [`Self::encode`], after one BOS where the model wants one.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_prompt(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        Ok(self.with_bos(self.encode(text, parse_special)?))
    }

    /// Exactly one BOS in front, where the model wants one; as they are otherwise.
    pub(super) fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        match self.bos {
            Some(bos) if self.adds_bos && ids.first() != Some(&bos) => {
                ids.insert(0, bos);
                ids
            }
            _ => ids,
        }
    }

    /// Text without whole-string tokens in it.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        let marked = (self.family == Family::SentencePiece).then(|| {
            let prefix = if self.space_prefix { "\u{2581}" } else { "" };
            format!("{prefix}{}", text.replace(' ', "\u{2581}"))
        });
        for piece in runs(marked.as_deref().unwrap_or(text)) {
            let encoding = self.plain.encode_fast(piece, false).map_err(|err| TextError::Tokenize(err.to_string()))?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(())
    }

    /// The text of `ids`, bytes that are no UTF-8 as U+FFFD; what [`super::TextStream`] gives in all, without stops.
    /// Ids outside the vocabulary add nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids.iter().filter(|id| !(skip_special && self.is_special(**id)));
        let bytes: Vec<u8> = shown.flat_map(|id| self.bytes_of(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Number of ids, gaps included.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// A token as the vocabulary writes it (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The bytes that a token adds to a text, which need not be whole characters; `None` outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.vocab.bytes(id).map(<[u8]>::to_vec)
    }

    /// [`Self::token_bytes`] without a copy, empty outside the vocabulary.
    pub(super) fn bytes_of(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id).unwrap_or_default()
    }

    /// Bytes of the longest token.
    pub fn longest_token_bytes(&self) -> usize {
        self.vocab.longest_bytes()
    }

    /// A number of tokens that no text of `n_bytes` bytes stays under: for refusing what is surely too long before
    /// anything is spent on it.
    pub fn fewest_tokens(&self, n_bytes: usize) -> usize {
        // Composing (NFC) shortens a text to a third at most.
        let shrink = if self.composes { 3 } else { 1 };
        n_bytes.div_ceil(self.longest_token_bytes() * shrink)
    }

    /// True for control tokens: they steer the model and are not shown.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }

    /// Begin-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// The file's end-of-sequence token; see [`Self::eos_ids`] for all that end a generation.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// The file's end-of-turn token, where it names one.
    pub fn eot_id(&self) -> Option<u32> {
        self.eot
    }

    /// Every id that ends a generation, ascending: the file's own (`eos`, `eot`, `eom`) and the control tokens that
    /// the known families end a turn or a document with.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Whether a raw prompt begins with BOS.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Finds control tokens in a template's output.
    pub(super) fn control_tokens(&self) -> &AddedTokens {
        &self.control
    }

    /// Control tokens of these texts.
    pub(super) fn control_ids(&self, texts: &[&str]) -> Vec<u32> {
        let control = self.vocab.iter().filter(|(_, text, kind)| *kind == TokenKind::Control && texts.contains(text));
        control.map(|(id, _, _)| id).collect()
    }

    /// Text of every control token that is found in templates.
    pub(super) fn control_texts(&self) -> impl Iterator<Item = &str> + '_ {
        self.vocab.iter().filter(|(_, _, kind)| *kind == TokenKind::Control).map(|(_, text, _)| text)
    }
}

/// Cuts `text` wherever a run of one class of characters reaches [`MAX_RUN_CHARS`].
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let class = |character: char| match character {
        _ if character.is_whitespace() => 0,
        _ if character.is_alphabetic() => 1,
        _ if character.is_numeric() => 2,
        _ => 3,
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (mut last, mut length) = (u8::MAX, 0);
        // No run can be too long in a text that short, the usual case.
        let long = rest.len() > MAX_RUN_CHARS;
        let cut = rest.char_indices().take_while(|_| long).find_map(|(at, character)| {
            let class = class(character);
            length = if class == last { length + 1 } else { 1 };
            last = class;
            (length > MAX_RUN_CHARS).then_some(at)
        });
        let (piece, after) = rest.split_at(cut.unwrap_or(rest.len()));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::{MAX_RUN_CHARS, runs};

    #[test]
    fn only_runs_past_the_limit_are_cut() {
        let words = "ab ".repeat(100_000);
        assert_eq!(runs(&words).count(), 1);
        let spaces = " ".repeat(MAX_RUN_CHARS);
        assert_eq!(runs(&format!("{spaces}a{spaces}")).count(), 1);
        assert_eq!(runs("").count(), 0);
    }

    #[test]
    fn pieces_join_to_the_text() {
        for unit in [" ", "a", "1", "-", "é", "漢"] {
            let text = format!("x{}y z", unit.repeat(3 * MAX_RUN_CHARS + 5));
            let pieces: Vec<&str> = runs(&text).collect();
            assert!((4..=5).contains(&pieces.len()), "{unit}: {} pieces", pieces.len());
            assert_eq!(pieces.concat(), text);
        }
    }
}
