//! Builds the piece of a tokenizer that needs a model: plain text to ids, from GGUF metadata.
//!
//! Two families: byte-level BPE with merges (`gpt2`), for the pre-tokenizers in [`PRE_TOKENIZERS`] and no other; and
//! SentencePiece BPE with scores (`llama`). Whole-string tokens are found before this piece sees the text, see
//! [`super::tokenizer`].

use tokenizers::{
    SplitDelimiterBehavior, Tokenizer,
    models::bpe::{BPE, Vocab as BpeVocab},
    normalizers::unicode::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{
    bytes::alphabet,
    vocab::{Family, TokenKind, Vocab},
};
use crate::load::{LoadError, Metadata};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// How a byte-level family cuts text into words.
struct PreTokenizer {
    name: &'static str,
    /// Each match is one word.
    words: &'static str,
    /// Text is composed (Unicode NFC) first.
    composes: bool,
    /// A word that is a token is that token, whatever the merges say.
    whole_words: bool,
    /// Whether a prompt begins with BOS where the file does not say.
    adds_bos: bool,
}

/// The pre-tokenizers that were compared with the families' own tokenizer files.
const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer { name: "qwen2", words: QWEN2, composes: true, whole_words: false, adds_bos: false },
    PreTokenizer { name: "llama-bpe", words: LLAMA3, composes: false, whole_words: true, adds_bos: true },
    PreTokenizer { name: "gpt-2", words: GPT2, composes: false, whole_words: false, adds_bos: false },
];

/// A vocabulary and what turns plain text into its ids.
pub(super) struct Built {
    pub(super) vocab: Vocab,
    pub(super) family: Family,
    /// Knows no whole-string token and adds none.
    pub(super) plain: Tokenizer,
    /// Whether `plain` composes its text first.
    pub(super) composes: bool,
    /// Whether a prompt begins with BOS where the file does not say.
    pub(super) adds_bos: bool,
}

/// Builds the tokenizer that `metadata` describes.
///
/// # Errors
/// [`LoadError::UnsupportedTokenizer`] for a model or pre-tokenizer that is not known, and the metadata errors.
pub(super) fn build(metadata: &Metadata) -> Result<Built, LoadError> {
    match metadata.string(MODEL)? {
        "gpt2" => byte_level(metadata),
        "llama" => sentence_piece(metadata),
        other => {
            Err(LoadError::UnsupportedTokenizer { found: format!("model {other:?}"), supported: vec!["gpt2", "llama"] })
        }
    }
}

fn byte_level(metadata: &Metadata) -> Result<Built, LoadError> {
    let name = metadata.string(PRE)?;
    let pre = PRE_TOKENIZERS.iter().find(|pre| pre.name == name).ok_or_else(|| LoadError::UnsupportedTokenizer {
        found: format!("pre-tokenizer {name:?}"),
        supported: PRE_TOKENIZERS.iter().map(|pre| pre.name).collect(),
    })?;
    let vocab = Vocab::read(metadata, Family::ByteLevel)?;
    let by_text = ids_by_text(&vocab, |kind| kind == TokenKind::Normal);
    // Without a token for every byte some text would have no ids at all, and be dropped silently.
    if let Some((byte, _)) = alphabet().find(|(_, character)| !by_text.contains_key(&character.to_string())) {
        return Err(LoadError::bad_metadata(TOKENS, format!("lacks a token for the byte 0x{byte:02X}")));
    }
    let written = metadata.strings(MERGES)?;
    let mut merges = Vec::with_capacity(written.len());
    for (rank, merge) in written.iter().enumerate() {
        let (left, right) = merge
            .split_once(' ')
            .filter(|(left, right)| [left, right].iter().all(|part| by_text.contains_key(**part)))
            .filter(|(left, right)| by_text.contains_key(&[*left, *right].concat()))
            .ok_or_else(|| {
                LoadError::bad_metadata(MERGES, format!("has merge {rank} ({merge:?}), not of two tokens to a third"))
            })?;
        merges.push((left.to_owned(), right.to_owned()));
    }
    let model = BPE::builder()
        .vocab_and_merges(by_text, merges)
        .ignore_merges(pre.whole_words)
        .build()
        .map_err(|err| unbuildable(&*err))?;
    let mut plain = Tokenizer::new(model);
    if pre.composes {
        plain.with_normalizer(Some(NFC)).map_err(|err| unbuildable(&*err))?;
    }
    let pattern = SplitPattern::Regex(pre.words.to_owned());
    let words = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|err| unbuildable(&*err))?;
    let bytes = ByteLevel::new(false, false, false);
    plain.with_pre_tokenizer(Some(Sequence::new(vec![words.into(), bytes.into()])));
    Ok(Built { vocab, family: Family::ByteLevel, plain, composes: pre.composes, adds_bos: pre.adds_bos })
}

fn sentence_piece(metadata: &Metadata) -> Result<Built, LoadError> {
    let vocab = Vocab::read(metadata, Family::SentencePiece)?;
    let scores = metadata.f32s(SCORES)?;
    if scores.len() != vocab.len() {
        let why = format!("has {} entries for {} tokens", scores.len(), vocab.len());
        return Err(LoadError::bad_metadata(SCORES, why));
    }
    if let Some(id) = scores.iter().position(|score| score.is_nan()) {
        return Err(LoadError::bad_metadata(SCORES, format!("is not a number for token {id}")));
    }
    let by_text =
        ids_by_text(&vocab, |kind| matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte));
    if let Some(byte) = (0..=u8::MAX).find(|byte| !by_text.contains_key(&format!("<0x{byte:02X}>"))) {
        let why = format!("lacks the byte token <0x{byte:02X}>");
        return Err(LoadError::bad_metadata(TOKENS, why));
    }
    let merges = merges_by_score(&vocab, scores, &by_text);
    let model = BPE::builder()
        .vocab_and_merges(by_text, merges)
        .byte_fallback(true)
        .build()
        .map_err(|err| unbuildable(&*err))?;
    Ok(Built { vocab, family: Family::SentencePiece, plain: Tokenizer::new(model), composes: false, adds_bos: true })
}

/// Two tokens that become a third.
struct Merge {
    score: f32,
    left_chars: u16,
    right_chars: u16,
    left: u32,
    right: u32,
}

/// SentencePiece states scores, BPE wants ranked merges: every way to make a piece of two pieces, best score first.
/// User-defined pieces come before all others (SentencePiece never splits them), and ties go to the longer parts,
/// as in the conversion that the Hugging Face tokenizer files of these models went through.
fn merges_by_score(vocab: &Vocab, scores: &[f32], by_text: &BpeVocab) -> Vec<(String, String)> {
    let mut merges = Vec::with_capacity(2 * vocab.len());
    let mut of_piece = Vec::new();
    for (id, text, kind) in vocab.iter() {
        let score = match kind {
            TokenKind::Normal => scores[id as usize],
            TokenKind::UserDefined => f32::INFINITY,
            TokenKind::Control | TokenKind::Unused | TokenKind::Byte => continue,
        };
        let n_chars = text.chars().count();
        for (nth, (at, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(left), Some(right)) = (by_text.get(left), by_text.get(right)) {
                of_piece.push(Merge {
                    score,
                    left_chars: nth.min(usize::from(u16::MAX)) as u16,
                    right_chars: (n_chars - nth).min(usize::from(u16::MAX)) as u16,
                    left: *left,
                    right: *right,
                });
            }
        }
        of_piece.sort_by_key(|merge| (merge.left, merge.right));
        merges.append(&mut of_piece);
    }
    merges.sort_by(|a, b| {
        let chars = |merge: &Merge| (merge.left_chars, merge.right_chars);
        b.score.total_cmp(&a.score).then_with(|| chars(b).cmp(&chars(a)))
    });
    let text = |id| vocab.text(id).expect("ids come from the vocabulary").to_owned();
    merges.iter().map(|merge| (text(merge.left), text(merge.right))).collect()
}

/// Tokens that text may become, by their text; the first id where a text stands twice.
fn ids_by_text(vocab: &Vocab, wanted: impl Fn(TokenKind) -> bool) -> BpeVocab {
    let mut ids = BpeVocab::with_capacity(vocab.len());
    for (id, text, _) in vocab.iter().filter(|(_, _, kind)| wanted(*kind)) {
        ids.entry(text.to_owned()).or_insert(id);
    }
    ids
}

fn unbuildable(err: &(dyn std::error::Error + Send + Sync)) -> LoadError {
    LoadError::bad_metadata("tokenizer.ggml", format!("does not make a tokenizer: {err}"))
}
