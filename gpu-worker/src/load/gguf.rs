//! A model from one GGUF file: everything is checked before the first weight is read.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use candle_core::Device;

pub use super::weights::LoadOptions;
use super::weights::{self, Weights};
use super::{GgufHeader, Layout, LoadError};
use crate::model::decoder::Decoder;
use crate::model::family::read_config;

/// A model in memory.
#[derive(Debug)]
pub struct LoadedModel {
    /// Config and weights.
    pub decoder: Decoder,
    /// What the file says of itself; tokenizer and chat template are in its metadata.
    pub header: GgufHeader,
}

/// Loads the model in the GGUF file at `path` for computing on `device`.
///
/// The file's checksum is not looked at here.
///
/// # Errors
/// [`LoadError`], naming the key or the tensor that is wrong. Never a panic, whatever the file holds.
pub fn load(path: &Path, device: &Device, options: LoadOptions<'_>) -> Result<LoadedModel, LoadError> {
    let mut file = File::open(path).map_err(LoadError::Io)?;
    let header = GgufHeader::read(&mut BufReader::new(&mut file))?;
    load_tensors(file, header, device, options)
}

/// Loads the weights that `header`, read from `file`, speaks of.
///
/// # Errors
/// As [`load`].
pub fn load_tensors(
    file: impl Read + Seek,
    header: GgufHeader,
    device: &Device,
    options: LoadOptions<'_>,
) -> Result<LoadedModel, LoadError> {
    let config = read_config(&header)?;
    let weights = Weights { file, tensors: &header.tensors, layout: Layout::Gguf };
    let decoder = weights::load(weights, config, device, options)?;
    Ok(LoadedModel { decoder, header })
}
