//! Tokenizer and chat template of a model folder.

use serde_json::{Map, Value as Json};

use super::{
    ChatTemplate, Prompts, TextTokenizer,
    json_tokenizer::{self, Described},
    template,
    tokenizer::Parts,
};
use crate::load::folder::{CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use crate::load::json::{MAX_SETTINGS_BYTES, MAX_TOKENIZER_BYTES, object, opt_bytes, opt_object};
use crate::load::metadata::{Array, Value};
use crate::load::{LoadError, ModelFolder};

impl Prompts {
    /// Tokenizer and template of a model folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`, and
    /// the ids that end a generation from `generation_config.json` and `config.json`. A folder without a template is none.
    ///
    /// # Errors
    /// [`LoadError::BadFile`] and [`LoadError::BadMetadata`] name the file, and the field in it, that is missing, wrong, or
    /// would have to be guessed at.
    pub fn from_folder(folder: &ModelFolder) -> Result<Self, LoadError> {
        let settings = opt_object(folder.path(), TOKENIZER_CONFIG, MAX_SETTINGS_BYTES)?.unwrap_or_default();
        let file = object(folder.path(), TOKENIZER, MAX_TOKENIZER_BYTES)?;
        let Described { built, space_prefix, begin, strips } = json_tokenizer::read(&file)?;
        drop(file);
        let find = |text: &str| (0u32..built.vocab.len() as u32).find(|id| built.vocab.text(*id) == Some(text));
        let named = |field: &str| -> Result<Option<u32>, LoadError> {
            let Some(text) = token_text(&settings, field)? else { return Ok(None) };
            let id = find(text).ok_or_else(|| {
                LoadError::bad_file(TOKENIZER_CONFIG, format!("has {field} {text:?}, which {TOKENIZER} does not have"))
            })?;
            Ok(Some(id))
        };
        let bos = match &begin {
            Some(text) => Some(find(text).ok_or_else(|| {
                LoadError::bad_file(TOKENIZER, format!("begins texts with {text:?}, which is none of its tokens"))
            })?),
            None => named("bos_token")?,
        };
        let eos = named("eos_token")?;
        let adds_bos = settings.get("add_bos_token").and_then(Json::as_bool).unwrap_or(begin.is_some());
        if adds_bos && bos.is_none() {
            return Err(LoadError::bad_file(TOKENIZER_CONFIG, "has add_bos_token, and no bos_token"));
        }
        let mut ends: Vec<u32> = eos.into_iter().collect();
        for key in [GENERATION_CONFIG, CONFIG].map(|file| format!("{file}:eos_token_id")) {
            ends.extend(end_ids(folder, &key, built.vocab.len())?);
        }
        let tokenizer =
            TextTokenizer::assemble(Parts { built, space_prefix, strips, bos, eos, eot: None, adds_bos, ends })?;
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
        let template = chat_template(folder, &settings, text(tokenizer.bos_id()), text(tokenizer.eos_id()))?;
        Ok(Self::new(std::sync::Arc::new(tokenizer), template))
    }
}

/// A token that is named by its text, or by an object with it.
fn token_text<'a>(settings: &'a Map<String, Json>, field: &str) -> Result<Option<&'a str>, LoadError> {
    match settings.get(field) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => match other.get("content").and_then(Json::as_str) {
            Some(text) => Ok(Some(text)),
            None => Err(LoadError::bad_file(TOKENIZER_CONFIG, format!("has a {field} that is no token's text"))),
        },
    }
}

/// One id or several under a key of the folder's settings.
fn end_ids(folder: &ModelFolder, key: &str, n_tokens: usize) -> Result<Vec<u32>, LoadError> {
    let ids = match folder.metadata.get(key) {
        None => Vec::new(),
        Some(Value::Unsigned(id)) => vec![*id],
        // Ids are below 2^22, where every float32 is exact.
        Some(Value::Array(Array::F32(ids))) if ids.iter().all(|id| *id >= 0.0 && id.fract() == 0.0) => {
            ids.iter().map(|id| *id as u64).collect()
        }
        Some(_) => return Err(LoadError::bad_metadata(key, "must be a token id, or an array of them")),
    };
    match ids.iter().find(|id| **id >= n_tokens as u64) {
        Some(id) => Err(LoadError::bad_metadata(key, format!("has {id}, of {n_tokens} tokens"))),
        // Below the number of tokens, which is below 2^22.
        None => Ok(ids.into_iter().map(|id| id as u32).collect()),
    }
}

fn chat_template(
    folder: &ModelFolder,
    settings: &Map<String, Json>,
    bos: &str,
    eos: &str,
) -> Result<Option<ChatTemplate>, LoadError> {
    let (file, source) = match opt_bytes(folder.path(), CHAT_TEMPLATE, MAX_SETTINGS_BYTES)? {
        Some(bytes) => {
            let source = String::from_utf8(bytes).map_err(|_| LoadError::bad_file(CHAT_TEMPLATE, "is not UTF-8"))?;
            (CHAT_TEMPLATE, source)
        }
        None => match settings.get("chat_template") {
            None | Some(Json::Null) => return Ok(None),
            Some(Json::String(source)) => (TOKENIZER_CONFIG, source.clone()),
            // Several, each with a name; what chats without tools or documents take is called so.
            Some(Json::Array(templates)) => {
                let default =
                    templates.iter().find(|template| template.get("name").is_some_and(|name| name == "default"));
                let source = default.and_then(|template| template.get("template")).and_then(Json::as_str);
                let source = source.ok_or_else(|| {
                    LoadError::bad_file(TOKENIZER_CONFIG, "has several chat templates, and none is called \"default\"")
                })?;
                (TOKENIZER_CONFIG, source.to_owned())
            }
            Some(_) => return Err(LoadError::bad_file(TOKENIZER_CONFIG, "has a chat_template that is no text")),
        },
    };
    ChatTemplate::from_source(&source, bos, eos).map(Some).map_err(|err| {
        LoadError::bad_file(file, format!("has no chat template that can be rendered: {}", template::cause(&err)))
    })
}
