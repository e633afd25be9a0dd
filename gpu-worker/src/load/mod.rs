//! Reading model files: from untrusted bytes to checked metadata and tensor places.
//!
//! A model file comes from outside and is treated so: [`check`] reads the whole header by its own bounded reader
//! before any other code sees the file, and everything downstream works on what it checked. A [`folder`] in the layout of
//! the Hugging Face libraries is brought into the same form: metadata, and a table of tensors.

pub mod check;
pub mod folder;
#[cfg(test)]
mod folder_tests;
pub mod gguf;
#[cfg(test)]
mod gguf_tests;
#[cfg(test)]
pub(crate) mod gguf_writer;
#[cfg(test)]
mod header_tests;
#[cfg(test)]
mod hostile_tests;
mod inside;
mod joined;
pub(crate) mod json;
pub mod metadata;
mod safetensors;
mod source;
mod table;
mod values;
mod weights;

pub use check::{GgufHeader, TensorInfo};
pub use folder::ModelFolder;
pub use metadata::Metadata;
pub use table::{Layout, TensorTable};

/// Why a model could not be loaded. One variant per thing that an operator would do differently.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file of a model folder is not there, or not what it must be.
    #[error("{file} of the model folder {why}")]
    BadFile {
        /// The file's name in the folder.
        file: String,
        /// What is wrong with it, as the rest of a sentence.
        why: String,
    },
    /// The operating system could not read the file.
    #[error("could not read the model file")]
    Io(#[source] std::io::Error),
    /// The file ends before its content does: a download broken off.
    #[error(
        "the model file is truncated: {what} needs {needed_bytes} bytes, the file has {file_bytes}; fetch it again"
    )]
    Truncated {
        /// The part that does not fit.
        what: String,
        /// Length that the file would need at least.
        needed_bytes: u64,
        /// Length that it has.
        file_bytes: u64,
    },
    /// The file does not start with the GGUF magic.
    #[error("not a GGUF file: it starts with {found:02x?} where \"GGUF\" was expected; give the path of a .gguf file")]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A GGUF version (or byte order) that this reader does not know.
    #[error("GGUF version {found} is not supported, only little-endian versions 2 and 3; convert the file again")]
    UnsupportedVersion {
        /// The version field as read in little-endian order.
        found: u32,
    },
    /// The header contradicts itself or exceeds a limit: a damaged or hostile file.
    #[error("the model file's header is malformed: {what}; fetch the file again from a source you trust")]
    Malformed {
        /// What is wrong, and where.
        what: String,
    },
    /// A model family that the engine has no code for.
    #[error("architecture {found:?} is not supported; supported are {}", .supported.join(", "))]
    UnsupportedArchitecture {
        /// `general.architecture` of the file.
        found: String,
        /// The families that this build serves.
        supported: Vec<&'static str>,
    },
    /// A tensor that the architecture needs is not in the file.
    #[error("tensor {name:?} is missing from the model file; convert or fetch it again")]
    MissingTensor {
        /// The tensor's GGUF name.
        name: String,
    },
    /// A tensor whose shape does not follow from the metadata.
    #[error("tensor {name:?} has shape {found:?} where the metadata calls for {expected:?}")]
    TensorShape {
        /// The tensor's GGUF name.
        name: String,
        /// Dimensions by the metadata, outermost first.
        expected: Vec<u64>,
        /// Dimensions in the file, outermost first.
        found: Vec<u64>,
    },
    /// A tensor in a storage format that the engine cannot compute with.
    #[error(
        "tensor {name:?} is stored as {ggml_type}, which is not supported; use a file in Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 or BF16"
    )]
    UnsupportedTensorType {
        /// The tensor's GGUF name.
        name: String,
        /// The format's name, or its number where it has none here.
        ggml_type: String,
    },
    /// A tensor's data could not be turned into a tensor of the engine.
    #[error("tensor {name:?} could not be loaded")]
    Tensor {
        /// The tensor's GGUF name.
        name: String,
        /// What candle said.
        #[source]
        source: candle_core::Error,
    },
    /// The computing device refused something that is not about one tensor.
    #[error("the device failed while the model was being loaded")]
    Device(#[source] candle_core::Error),
    /// A metadata key that the architecture needs is not in the file.
    #[error("metadata key {key:?} is missing from the model file; convert or fetch it again")]
    MissingMetadata {
        /// The key.
        key: String,
    },
    /// A metadata value of the wrong type, or out of the range that makes sense.
    #[error("metadata key {key:?} {why}")]
    BadMetadata {
        /// The key.
        key: String,
        /// What is wrong with its value, as the rest of a sentence.
        why: String,
    },
    /// A tokenizer kind that would be guessed at, and is refused instead.
    #[error("tokenizer {found} is not supported; supported are {}", .supported.join(", "))]
    UnsupportedTokenizer {
        /// The kind named by the file.
        found: String,
        /// The kinds that this build knows.
        supported: Vec<&'static str>,
    },
}

impl LoadError {
    /// A [`LoadError::BadMetadata`] for `key`.
    pub(crate) fn bad_metadata(key: &str, why: impl Into<String>) -> Self {
        Self::BadMetadata { key: key.to_owned(), why: clipped(why) }
    }

    /// A [`LoadError::BadFile`].
    pub(crate) fn bad_file(file: &str, why: impl Into<String>) -> Self {
        Self::BadFile { file: file.to_owned(), why: clipped(why) }
    }

    /// A [`LoadError::Malformed`].
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: clipped(what) }
    }
}

/// Longest part of a message that quotes a file, in characters.
const MAX_QUOTED: usize = 1_000;

/// A message that may quote a file, no longer than a person reads.
fn clipped(text: impl Into<String>) -> String {
    let mut text = text.into();
    if let Some((end, _)) = text.char_indices().nth(MAX_QUOTED) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Where the tests find a real model.
///
/// # Panics
/// Without the file: a test that needs it fails, and says how to get it.
#[cfg(test)]
pub(crate) fn real_model(name: &str) -> std::path::PathBuf {
    let cache = std::env::var_os("PENSTOCK_CACHE").map_or_else(
        || std::path::Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache/penstock"),
        std::path::PathBuf::from,
    );
    let path = cache.join("models").join(format!("{name}.gguf"));
    assert!(path.exists(), "model {name} is missing: run tests/run, or penstock model pull {name}");
    path
}
