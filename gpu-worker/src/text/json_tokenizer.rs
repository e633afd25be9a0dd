//! Builds the piece of a tokenizer that needs a model, from a `tokenizer.json`.
//!
//! The file can describe any pipeline; the two kinds that the served families have are taken, byte-level BPE and BPE over
//! SentencePiece's pieces with byte fallback, and every other part is refused by name: it would change ids.

use serde_json::{Map, Value as Json};
use tokenizers::{
    PreTokenizerWrapper, Tokenizer,
    models::bpe::{BPE, Vocab as BpeVocab},
    normalizers::unicode::NFC,
};

use super::{
    added::Strip,
    bytes::{alphabet, byte_token},
    gguf_tokenizer::Built,
    tokenizer::SpacePrefix,
    vocab::{Family, SPACE_MARK, TokenKind, Vocab},
};
use crate::load::{LoadError, folder::TOKENIZER};

/// No token id is as great; the same bound as a model's vocabulary.
const MAX_ID: u64 = 1 << 22;
/// Most ids below the greatest that may be no token's: a table of all ids is made, and one token must not make it large.
const MAX_GAPS: u64 = 1 << 16;
/// Longest regular expression that cuts text into words.
const MAX_PATTERN_BYTES: usize = 8 << 10;

/// A tokenizer, and what its file says of text around whole-string tokens.
pub(super) struct Described {
    pub(super) built: Built,
    pub(super) space_prefix: SpacePrefix,
    /// The token that its post-processor puts first, by its text.
    pub(super) begin: Option<String>,
    /// What whole-string tokens take with them of the spaces around them, by id.
    pub(super) strips: Vec<(u32, Strip)>,
}

/// Reads the object that a `tokenizer.json` is.
///
/// # Errors
/// [`LoadError::BadFile`] naming the field that is missing, wrong or not supported.
pub(super) fn read(file: &Map<String, Json>) -> Result<Described, LoadError> {
    let model = file.get("model").and_then(Json::as_object).ok_or_else(|| wrong("has no object \"model\""))?;
    let kind = model.get("type").and_then(Json::as_str).unwrap_or("BPE");
    if kind != "BPE" {
        return Err(wrong(format!("has model.type {kind:?}; only BPE is supported")));
    }
    for field in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
        match model.get(field) {
            None | Some(Json::Null) => {}
            Some(Json::String(text)) if text.is_empty() => {}
            Some(other) => return Err(wrong(format!("has model.{field} {}, which is not supported", short(other)))),
        }
    }
    let flag = |field: &str| model.get(field).and_then(Json::as_bool).unwrap_or(false);
    let family = if flag("byte_fallback") { Family::SentencePiece } else { Family::ByteLevel };
    let n_tokens = [model.get("vocab").and_then(Json::as_object).map(Map::len), added_list(file)?.map(Vec::len)];
    let n_tokens: usize = n_tokens.into_iter().flatten().sum();
    let bound = MAX_ID.min(n_tokens as u64 + MAX_GAPS);
    let added = added_tokens(file, bound)?;
    let (vocab, by_text) = vocabulary(model, &added, family, bound)?;
    let merges = merges(model, &by_text)?;
    let bpe = BPE::builder()
        .vocab_and_merges(by_text, merges)
        .byte_fallback(family == Family::SentencePiece)
        .ignore_merges(flag("ignore_merges"))
        .build()
        .map_err(|err| wrong(format!("does not make a tokenizer: {err}")))?;
    let mut plain = Tokenizer::new(bpe);
    let normalizer = file.get("normalizer").filter(|part| !part.is_null());
    let pre_tokenizer = file.get("pre_tokenizer").filter(|part| !part.is_null());
    let (composes, space_prefix) = match family {
        Family::ByteLevel => (byte_level(&mut plain, normalizer, pre_tokenizer)?, SpacePrefix::Never),
        Family::SentencePiece => (false, spaces(normalizer, pre_tokenizer)?),
    };
    let begin = begin(file.get("post_processor"))?;
    let strips = added.iter().map(|token| (token.id, token.strip)).filter(|(_, strip)| *strip != Strip::default());
    let strips = strips.collect();
    let built = Built { vocab, family, plain, composes, adds_bos: begin.is_some() };
    Ok(Described { built, space_prefix, begin, strips })
}

fn wrong(why: impl Into<String>) -> LoadError {
    LoadError::bad_file(TOKENIZER, why)
}

/// A part of the file for an error message; never its whole content.
fn short(part: &Json) -> String {
    part.to_string().chars().take(80).collect()
}

fn type_of(part: &Json) -> &str {
    part.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// The parts of a sequence, which lie under `field`; anything else is one part.
fn parts_of<'a>(part: Option<&'a Json>, field: &str) -> &'a [Json] {
    match part {
        None => &[],
        Some(part) if type_of(part) == "Sequence" => {
            part.get(field).and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default()
        }
        Some(part) => std::slice::from_ref(part),
    }
}

struct Added {
    id: u32,
    text: String,
    kind: TokenKind,
    strip: Strip,
}

fn added_list(file: &Map<String, Json>) -> Result<Option<&Vec<Json>>, LoadError> {
    match file.get("added_tokens") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Array(tokens)) => Ok(Some(tokens)),
        Some(_) => Err(wrong("has added_tokens that are no array")),
    }
}

/// The whole-string tokens; their ids are below `bound`.
fn added_tokens(file: &Map<String, Json>, bound: u64) -> Result<Vec<Added>, LoadError> {
    let Some(tokens) = added_list(file)? else { return Ok(Vec::new()) };
    let added = tokens.iter().map(|token| {
        let text = token.get("content").and_then(Json::as_str).filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| wrong(format!("has an added token without content: {}", short(token))))?;
        let flag = |field: &str| token.get(field).and_then(Json::as_bool).unwrap_or(false);
        if flag("single_word") {
            return Err(wrong(format!("has the added token {text:?} with single_word, which is not supported")));
        }
        Ok(Added {
            id: id(token.get("id"), text, bound)?,
            text: text.to_owned(),
            kind: if flag("special") { TokenKind::Control } else { TokenKind::UserDefined },
            strip: Strip { before: flag("lstrip"), after: flag("rstrip") },
        })
    });
    added.collect()
}

fn id(id: Option<&Json>, text: &str, bound: u64) -> Result<u32, LoadError> {
    let id = id.and_then(Json::as_u64).filter(|id| *id < bound);
    // `bound` is at most `MAX_ID`, which is below 2^32.
    id.map(|id| id as u32).ok_or_else(|| wrong(format!("has the token {text:?} without an id below {bound}")))
}

/// All tokens by id, and those that text may become by their text. Ids are below `bound`.
fn vocabulary(
    model: &Map<String, Json>,
    added: &[Added],
    family: Family,
    bound: u64,
) -> Result<(Vocab, BpeVocab), LoadError> {
    let pieces = model.get("vocab").and_then(Json::as_object).ok_or_else(|| wrong("has no object model.vocab"))?;
    let mut tokens: Vec<Option<(&str, TokenKind)>> = Vec::new();
    let mut place = |id: u32, text, kind| -> Result<(), LoadError> {
        if tokens.len() <= id as usize {
            tokens.resize(id as usize + 1, None);
        }
        match &mut tokens[id as usize] {
            Some((other, _)) if *other != text => Err(wrong(format!("gives {other:?} and {text:?} the id {id}"))),
            token => {
                *token = Some((text, kind));
                Ok(())
            }
        }
    };
    for (text, value) in pieces {
        let is_byte = family == Family::SentencePiece && byte_token(text).is_some();
        place(id(Some(value), text, bound)?, text.as_str(), if is_byte { TokenKind::Byte } else { TokenKind::Normal })?;
    }
    for token in added {
        place(token.id, token.text.as_str(), token.kind)?;
    }
    let mut by_text = BpeVocab::with_capacity(pieces.len());
    for (id, token) in (0u32..).zip(&tokens) {
        // Control tokens are left out, so that no text of a user's is merged to one.
        if let Some((text, kind)) = token.filter(|(_, kind)| *kind != TokenKind::Control)
            && (kind != TokenKind::UserDefined || pieces.contains_key(text))
            && by_text.insert(text.to_owned(), id).is_some()
        {
            return Err(wrong(format!("has the token {text:?} twice")));
        }
    }
    // Without a token for every byte some text would have no ids at all, and be dropped silently.
    let lacks = |text: String| !by_text.contains_key(&text);
    let missing = match family {
        Family::ByteLevel => alphabet().find(|(_, character)| lacks(character.to_string())).map(|(byte, _)| byte),
        Family::SentencePiece => (0..=u8::MAX).find(|byte| lacks(format!("<0x{byte:02X}>"))),
    };
    if let Some(byte) = missing {
        return Err(wrong(format!("lacks a token for the byte 0x{byte:02X} in model.vocab")));
    }
    let tokens = tokens.into_iter().map(|token| token.unwrap_or(("", TokenKind::Unused)));
    Ok((Vocab::from_tokens(tokens, family), by_text))
}

/// The merges, best first. Those to or of a control token are left out, as it is itself.
fn merges(model: &Map<String, Json>, by_text: &BpeVocab) -> Result<Vec<(String, String)>, LoadError> {
    let pieces = model.get("vocab").and_then(Json::as_object);
    let written = model.get("merges").and_then(Json::as_array).ok_or_else(|| wrong("has no array model.merges"))?;
    let mut merges = Vec::with_capacity(written.len());
    for (rank, merge) in written.iter().enumerate() {
        let pair = match merge {
            Json::String(text) => text.split_once(' '),
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(left), Json::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let (left, right) = pair.ok_or_else(|| wrong(format!("has merge {rank} that is no pair: {}", short(merge))))?;
        let whole = [left, right].concat();
        let parts = [left, right, whole.as_str()];
        if parts.iter().all(|part| by_text.contains_key(*part)) {
            merges.push((left.to_owned(), right.to_owned()));
        } else if !parts.iter().all(|part| pieces.is_some_and(|pieces| pieces.contains_key(*part))) {
            return Err(wrong(format!("has merge {rank} ({left:?}, {right:?}), not of two tokens to a third")));
        }
    }
    Ok(merges)
}

/// Sets up how a byte-level tokenizer cuts text; true where it composes the text first.
fn byte_level(plain: &mut Tokenizer, normalizer: Option<&Json>, words: Option<&Json>) -> Result<bool, LoadError> {
    let normalizers = parts_of(normalizer, "normalizers");
    if let Some(part) = normalizers.iter().find(|part| type_of(part) != "NFC") {
        return Err(wrong(format!("has the normalizer {}, which is not supported", short(part))));
    }
    let composes = !normalizers.is_empty();
    if composes {
        plain.with_normalizer(Some(NFC)).map_err(|err| wrong(format!("does not make a tokenizer: {err}")))?;
    }
    let words = words.ok_or_else(|| wrong("has no pre_tokenizer"))?;
    let parts = parts_of(Some(words), "pretokenizers");
    for (nth, part) in parts.iter().enumerate() {
        let is_last = nth + 1 == parts.len();
        let known = match type_of(part) {
            "Split" => {
                let pattern = part.pointer("/pattern/Regex").and_then(Json::as_str);
                pattern.is_some_and(|pattern| pattern.len() <= MAX_PATTERN_BYTES) && !is_last
            }
            "Digits" => !is_last,
            "ByteLevel" => is_last && part.get("add_prefix_space").and_then(Json::as_bool) == Some(false),
            _ => false,
        };
        if !known {
            return Err(wrong(format!("has the pre_tokenizer {}, which is not supported there", short(part))));
        }
    }
    if parts.is_empty() {
        return Err(wrong("has an empty pre_tokenizer"));
    }
    let words: PreTokenizerWrapper = serde_json::from_value(words.clone())
        .map_err(|err| wrong(format!("has a pre_tokenizer that cannot be used: {err}")))?;
    plain.with_pre_tokenizer(Some(words));
    Ok(composes)
}

/// How a SentencePiece tokenizer marks spaces. The marks themselves are made by [`super::TextTokenizer`].
fn spaces(normalizer: Option<&Json>, pre_tokenizer: Option<&Json>) -> Result<SpacePrefix, LoadError> {
    let mark = SPACE_MARK.to_string();
    let unknown = |what: &str, part: &Json| wrong(format!("has the {what} {}, which is not supported", short(part)));
    let (mut replaces, mut prefix) = (false, SpacePrefix::Never);
    for part in parts_of(normalizer, "normalizers") {
        let text = |field: &str| part.pointer(field).and_then(Json::as_str);
        match type_of(part) {
            "Replace" if text("/pattern/String") == Some(" ") && text("/content") == Some(&mark) => replaces = true,
            "Prepend" if text("/prepend") == Some(&mark) && !replaces => prefix = SpacePrefix::Always,
            _ => return Err(unknown("normalizer", part)),
        }
    }
    match pre_tokenizer {
        None if replaces => Ok(prefix),
        // Spaces are gone before it looks for them.
        Some(part)
            if replaces && type_of(part) == "Split" && part.pointer("/pattern/String") == Some(&Json::from(" ")) =>
        {
            Ok(prefix)
        }
        Some(part) if normalizer.is_none() && type_of(part) == "Metaspace" => {
            let splits = part.get("split").and_then(Json::as_bool).unwrap_or(true);
            if splits || part.get("replacement").and_then(Json::as_str) != Some(&mark) {
                return Err(unknown("pre_tokenizer", part));
            }
            match part.get("prepend_scheme").and_then(Json::as_str) {
                Some("always") => Ok(SpacePrefix::WhereMissing { only_at_start: false }),
                Some("first") => Ok(SpacePrefix::WhereMissing { only_at_start: true }),
                Some("never") => Ok(SpacePrefix::Never),
                _ => Err(unknown("pre_tokenizer", part)),
            }
        }
        Some(part) => Err(unknown("pre_tokenizer", part)),
        None => Err(wrong("says nowhere how spaces become pieces")),
    }
}

/// The token that goes before every text.
fn begin(post_processor: Option<&Json>) -> Result<Option<String>, LoadError> {
    let Some(part) = post_processor.filter(|part| !part.is_null()) else { return Ok(None) };
    let unknown = || wrong(format!("has the post_processor {}, which is not supported", short(part)));
    match type_of(part) {
        "ByteLevel" => Ok(None),
        "Sequence" => {
            let parts = part.get("processors").and_then(Json::as_array).ok_or_else(unknown)?;
            let mut found = None;
            for part in parts {
                if type_of(part) == "Sequence" {
                    return Err(unknown());
                }
                found = begin(Some(part))?.or(found);
            }
            Ok(found)
        }
        "TemplateProcessing" => {
            let single = part.get("single").and_then(Json::as_array).ok_or_else(unknown)?;
            match single.as_slice() {
                [text] if text.get("Sequence").is_some() => Ok(None),
                [token, text] if text.get("Sequence").is_some() => {
                    let token = token.pointer("/SpecialToken/id").and_then(Json::as_str).ok_or_else(unknown)?;
                    Ok(Some(token.to_owned()))
                }
                // A token behind the text would end a prompt before it is answered.
                _ => Err(unknown()),
            }
        }
        _ => Err(unknown()),
    }
}
