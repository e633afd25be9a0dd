//! The vocabulary of a model: text, kind and real bytes of every token.

use super::bytes::{byte_level, byte_token};
use crate::load::{LoadError, Metadata, metadata::Strings};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";

/// SentencePiece's stand-in for a space.
pub(super) const SPACE_MARK: char = '\u{2581}';

/// What a token is for; the numbers are GGUF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// 1: a piece of text.
    Normal,
    /// 3, and 2 (unknown): steers the model, is never text of a user.
    Control,
    /// 4: a whole string that is always one token, such as `<tool_call>` or a run of newlines.
    UserDefined,
    /// 5: a gap in the table.
    Unused,
    /// 6: one byte that no piece covers.
    Byte,
}

/// How token text maps to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// GPT-2's byte alphabet (`tokenizer.ggml.model = gpt2`).
    ByteLevel,
    /// SentencePiece with byte fallback (`llama`).
    SentencePiece,
}

/// Every token of a model, by id.
#[derive(Debug)]
pub(super) struct Vocab {
    texts: Strings,
    kinds: Vec<TokenKind>,
    /// Real bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// End of each token in `bytes`.
    ends: Vec<u32>,
    longest_bytes: usize,
}

impl Vocab {
    /// Reads the vocabulary from a file's metadata. SentencePiece space marks in token texts of a user-defined token
    /// may be written as spaces; they are marks afterwards.
    pub(super) fn read(metadata: &Metadata, family: Family) -> Result<Self, LoadError> {
        let tokens = metadata.strings(TOKENS)?;
        let types = metadata.i32s(TOKEN_TYPE)?;
        if tokens.is_empty() {
            return Err(LoadError::bad_metadata(TOKENS, "is empty"));
        }
        if types.len() != tokens.len() {
            let why = format!("has {} entries for {} tokens", types.len(), tokens.len());
            return Err(LoadError::bad_metadata(TOKEN_TYPE, why));
        }
        let mut vocab = Self::empty();
        for (id, (token, kind)) in tokens.iter().zip(types.iter()).enumerate() {
            vocab.push(id, token, *kind, family)?;
        }
        Ok(vocab)
    }

    /// The tokens that a `tokenizer.json` has, by id; gaps are unused tokens of no text. Byte tokens are `<0xHH>`.
    pub(super) fn from_tokens<'a>(tokens: impl Iterator<Item = (&'a str, TokenKind)>, family: Family) -> Self {
        let mut vocab = Self::empty();
        for (text, kind) in tokens {
            let spaced = || text.replace(SPACE_MARK, " ").into_bytes();
            let bytes = match (kind, family) {
                (TokenKind::Byte, _) => byte_token(text).into_iter().collect(),
                (TokenKind::Normal, Family::ByteLevel) => byte_level(text).unwrap_or_else(|| text.as_bytes().to_vec()),
                (TokenKind::Normal | TokenKind::UserDefined, Family::SentencePiece) => spaced(),
                (TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused, _) => text.as_bytes().to_vec(),
            };
            vocab.append(text, kind, bytes);
        }
        vocab
    }

    fn empty() -> Self {
        Self { texts: Strings::default(), kinds: Vec::new(), bytes: Vec::new(), ends: Vec::new(), longest_bytes: 1 }
    }

    fn append(&mut self, text: &str, kind: TokenKind, bytes: Vec<u8>) {
        self.texts.push(text);
        self.kinds.push(kind);
        self.longest_bytes = self.longest_bytes.max(bytes.len());
        self.bytes.extend(bytes);
        self.ends.push(u32::try_from(self.bytes.len()).expect("a header or a tokenizer.json is at most 64 MiB"));
    }

    fn push(&mut self, id: usize, token: &str, kind: i32, family: Family) -> Result<(), LoadError> {
        let kind = match kind {
            1 => TokenKind::Normal,
            2 | 3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            other => return Err(LoadError::bad_metadata(TOKEN_TYPE, format!("has type {other} for token {id}"))),
        };
        let spaced = |token: &str| token.replace(SPACE_MARK, " ").into_bytes();
        let (text, bytes) = match (kind, family) {
            (TokenKind::Byte, _) => {
                let byte = byte_token(token).ok_or_else(|| {
                    LoadError::bad_metadata(TOKENS, format!("has {token:?} as byte token {id}, not <0xHH>"))
                })?;
                (token.to_owned(), vec![byte])
            }
            (TokenKind::Normal | TokenKind::Unused, Family::ByteLevel) => {
                let bytes = byte_level(token).unwrap_or_else(|| token.as_bytes().to_vec());
                (token.to_owned(), bytes)
            }
            (TokenKind::UserDefined, Family::SentencePiece) => (token.replace(' ', "\u{2581}"), spaced(token)),
            (TokenKind::Normal, Family::SentencePiece) => (token.to_owned(), spaced(token)),
            (TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused, _) => {
                (token.to_owned(), token.as_bytes().to_vec())
            }
        };
        self.append(&text, kind, bytes);
        Ok(())
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize)
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The bytes that the token adds to a text.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] as usize };
        Some(&self.bytes[start..end])
    }

    pub(super) fn longest_bytes(&self) -> usize {
        self.longest_bytes
    }

    /// Id, text and kind of every token, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> + '_ {
        (0u32..).zip(self.texts.iter()).zip(&self.kinds).map(|((id, text), kind)| (id, text, *kind))
    }
}
