//! A model folder in the layout of the Hugging Face libraries: `config.json`, one or many safetensors files, and the
//! files of its tokenizer, which [`crate::text`] reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde_json::Value as Json;

use super::joined::Joined;
use super::json::{self, MAX_SETTINGS_BYTES};
use super::weights::{self, LoadOptions, Weights};
use super::{Layout, LoadError, Metadata, TensorInfo, TensorTable, check, inside, safetensors};
use crate::model::config::ModelConfig;
use crate::model::decoder::Decoder;
use crate::model::family;

/// What a model is.
pub const CONFIG: &str = "config.json";
/// What ends its generations.
pub const GENERATION_CONFIG: &str = "generation_config.json";
/// Its tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// Settings of the tokenizer, and in many folders the chat template.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The chat template, where it has a file of its own.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Most files that a model's weights are cut into; the largest published models have two hundred.
const MAX_SHARDS: usize = 1_024;

/// A folder whose description and tables of tensors were read and checked, before its weights are.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    /// What `config.json` and `generation_config.json` say; the key of a value is `FILE:PATH.TO.IT`.
    pub metadata: Metadata,
    /// Every tensor of the folder, under the name it has there.
    pub tensors: TensorTable,
    shards: Vec<String>,
}

impl ModelFolder {
    /// Reads and checks the folder at `path`.
    ///
    /// # Errors
    /// [`LoadError`] naming the file that is missing or wrong. Never a panic, whatever the files hold.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let mut metadata = json::metadata(CONFIG, &json::object(path, CONFIG, MAX_SETTINGS_BYTES)?);
        if let Some(fields) = json::opt_object(path, GENERATION_CONFIG, MAX_SETTINGS_BYTES)? {
            metadata.append(json::metadata(GENERATION_CONFIG, &fields));
        }
        let weight_files = WeightFiles::find(path)?;
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut names = BTreeSet::new();
        let mut start = 0;
        for shard in weight_files.names() {
            let (mut file, bytes) = open_file(path, shard)?;
            for mut info in safetensors::read_table(&mut file, shard, bytes)? {
                if !names.insert(info.name.clone()) {
                    return Err(LoadError::bad_file(shard, format!("has tensor {:?} a second time", info.name)));
                }
                weight_files.expect(&info.name, shard)?;
                info.offset += start;
                tensors.push(info);
            }
            if tensors.len() as u64 > check::MAX_TENSORS {
                return Err(LoadError::bad_file(
                    shard,
                    format!("is one too many: over {} tensors", check::MAX_TENSORS),
                ));
            }
            start = start.checked_add(bytes).ok_or_else(|| LoadError::bad_file(shard, "ends past 2^64 bytes"))?;
        }
        weight_files.all_found(&names)?;
        let shards = weight_files.names().map(str::to_owned).collect();
        Ok(Self { path: path.to_owned(), metadata, tensors: TensorTable::new(tensors), shards })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checked description of the model.
    ///
    /// # Errors
    /// As [`family::read_config`].
    pub fn config(&self) -> Result<ModelConfig, LoadError> {
        family::describe(Layout::HuggingFace, &self.metadata, &self.tensors)
    }

    /// Loads the weights for computing on `device`. Matrices keep the float format of the files.
    ///
    /// # Errors
    /// [`LoadError`] naming the setting or the tensor that is wrong.
    pub fn load(&self, device: &Device, options: LoadOptions<'_>) -> Result<Decoder, LoadError> {
        let mut file = Joined::default();
        let mut end = 0;
        for shard in &self.shards {
            let (opened, bytes) = open_file(&self.path, shard)?;
            file.push(opened, bytes);
            end += bytes;
        }
        if self.tensors.iter().any(|info| info.offset + info.bytes > end) {
            return Err(LoadError::bad_file(
                &self.shards[0],
                "or a file beside it was changed while it was being loaded",
            ));
        }
        weights::load(
            Weights { file, tensors: &self.tensors, layout: Layout::HuggingFace },
            self.config()?,
            device,
            options,
        )
    }
}

/// The files of the folder that decide what the model answers, by name, sorted: what a release is made of. Files that are
/// not there are left out.
///
/// # Errors
/// [`LoadError::BadFile`] for a folder without `config.json` or without weights, and for a file that lies outside it.
pub fn deciding_files(path: &Path) -> Result<Vec<String>, LoadError> {
    json::object(path, CONFIG, MAX_SETTINGS_BYTES)?;
    let weight_files = WeightFiles::find(path)?;
    let settings = [CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, INDEX];
    let mut files: Vec<String> = Vec::new();
    for name in settings.into_iter().chain(weight_files.names()) {
        if inside::find(path, name)?.is_some() {
            files.push(name.to_owned());
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// Where the weights are.
enum WeightFiles {
    /// In `model.safetensors`.
    One,
    /// In the files of `model.safetensors.index.json`: the tensors that each is to hold.
    Indexed(BTreeMap<String, BTreeSet<String>>),
}

impl WeightFiles {
    fn find(folder: &Path) -> Result<Self, LoadError> {
        // As transformers has it: one file goes before an index.
        if inside::find(folder, WEIGHTS)?.is_some() {
            return Ok(Self::One);
        }
        let malformed = |why: String| LoadError::bad_file(INDEX, why);
        let Some(fields) = json::opt_object(folder, INDEX, json::MAX_TOKENIZER_BYTES)? else {
            let why =
                format!("is missing, and there is no {INDEX} either; weights are read from safetensors files only");
            return Err(LoadError::bad_file(WEIGHTS, why));
        };
        let Some(Json::Object(map)) = fields.get("weight_map") else {
            return Err(malformed("has no object \"weight_map\"".to_owned()));
        };
        let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (tensor, file) in map {
            let file = file.as_str().unwrap_or_default();
            // A name and nothing else: no path leads out of the folder.
            let is_name = file.strip_suffix(".safetensors").is_some_and(|stem| {
                !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            });
            if !is_name {
                return Err(malformed(format!(
                    "names {file:?} for tensor {tensor:?}, not a .safetensors file of the folder"
                )));
            }
            files.entry(file.to_owned()).or_default().insert(tensor.clone());
        }
        if files.is_empty() || files.len() > MAX_SHARDS {
            return Err(malformed(format!("names {} files, not 1 to {MAX_SHARDS}", files.len())));
        }
        Ok(Self::Indexed(files))
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::One => Box::new(std::iter::once(WEIGHTS)),
            Self::Indexed(files) => Box::new(files.keys().map(String::as_str)),
        }
    }

    /// Refuses a tensor in a file where the index does not have it.
    fn expect(&self, tensor: &str, shard: &str) -> Result<(), LoadError> {
        match self {
            Self::Indexed(files) if !files.get(shard).is_some_and(|tensors| tensors.contains(tensor)) => {
                Err(LoadError::bad_file(shard, format!("has tensor {tensor:?}, which {INDEX} does not place there")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an index with tensors that are in no file.
    fn all_found(&self, found: &BTreeSet<String>) -> Result<(), LoadError> {
        let Self::Indexed(files) = self else { return Ok(()) };
        for (shard, tensors) in files {
            if let Some(tensor) = tensors.iter().find(|tensor| !found.contains(*tensor)) {
                return Err(LoadError::bad_file(shard, format!("lacks tensor {tensor:?}, which {INDEX} places there")));
            }
        }
        Ok(())
    }
}

/// A file of the folder and its length.
fn open_file(folder: &Path, name: &str) -> Result<(File, u64), LoadError> {
    inside::open(folder, name)?.ok_or_else(|| LoadError::bad_file(name, "is missing; fetch the model again"))
}
