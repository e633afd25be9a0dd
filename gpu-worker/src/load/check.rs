//! GGUF headers from untrusted files: everything that other code relies on is checked here, once, before any tensor
//! data is touched.
//!
//! A header that passes says: every tensor lies inside the file, aligned, apart from every other; its byte length
//! follows from its shape without overflow; names and keys are unique; strings are UTF-8. Reading takes memory and
//! time in proportion to the header, which is at most [`MAX_HEADER_BYTES`], whatever counts the file claims.

use std::{
    collections::HashSet,
    io::{Read, Seek},
};

use candle_core::quantized::GgmlDType;

use super::{LoadError, metadata::Metadata, source::Source, table::TensorTable};

/// Longest header that is read: magic, metadata and tensor table.
pub const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Most elements in one metadata array.
pub const MAX_ARRAY_ELEMENTS: u64 = 1 << 20;
/// Most metadata keys; real files have about 30.
pub const MAX_METADATA_KEYS: u64 = 4_096;
/// Most tensors; real files have hundreds.
pub const MAX_TENSORS: u64 = 65_536;
/// Longest metadata key or tensor name, in bytes.
pub const MAX_NAME_BYTES: u64 = 512;
/// Most dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;

const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// A checked GGUF header.
#[derive(Debug)]
pub struct GgufHeader {
    /// 2 or 3.
    pub version: u32,
    /// Every tensor offset is a multiple of this; a power of two from 8 to 4,096.
    pub alignment: u64,
    /// Everything the file says of itself.
    pub metadata: Metadata,
    /// In the file's order.
    pub tensors: TensorTable,
    /// Where tensor data begins.
    pub data_offset: u64,
    /// Length of the whole file.
    pub file_bytes: u64,
}

/// Where one tensor lies and how it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the model's files, such as `blk.0.attn_q.weight`; no other tensor of the model has it.
    pub name: String,
    /// Outermost first, so a projection from `k` to `n` is `[n, k]`; 1 to 4 dimensions, each 1 to 2^32.
    pub dims: Vec<u64>,
    /// Storage format; its block length divides the last (innermost) dimension.
    pub dtype: GgmlDType,
    /// First byte in the file, absolute; where a model is several files, in all of them one after the other.
    pub offset: u64,
    /// Length in bytes; `offset + bytes` is inside the file.
    pub bytes: u64,
}

impl GgufHeader {
    /// Reads and checks the header of the file in `reader`, from its first byte.
    ///
    /// # Errors
    /// [`LoadError::NotGguf`], [`LoadError::UnsupportedVersion`], [`LoadError::Truncated`],
    /// [`LoadError::Malformed`], [`LoadError::BadMetadata`] (alignment), [`LoadError::UnsupportedTensorType`],
    /// or [`LoadError::Io`]. Never a panic, whatever the bytes.
    pub fn read(reader: &mut (impl Read + Seek)) -> Result<Self, LoadError> {
        let mut source = Source::new(reader)?;
        let file_bytes = source.file_bytes;
        let magic = source.array::<4>("the magic")?;
        if &magic != b"GGUF" {
            return Err(LoadError::NotGguf { found: magic });
        }
        let version = source.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(LoadError::UnsupportedVersion { found: version });
        }
        let n_tensors = source.count("the tensor count", MAX_TENSORS, MIN_TENSOR_BYTES)?;
        let n_keys = source.count("the metadata count", MAX_METADATA_KEYS, MIN_KEY_BYTES)?;
        let metadata = Metadata::read(&mut source, n_keys)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = read_tensors(&mut source, n_tensors)?;
        let data_offset = source.position.next_multiple_of(alignment);
        for tensor in &mut tensors {
            place(tensor, data_offset, alignment, file_bytes)?;
        }
        refuse_overlap(&tensors)?;
        Ok(Self { version, alignment, metadata, tensors: TensorTable::new(tensors), data_offset, file_bytes })
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`] when the file has none of that name.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        self.tensors.tensor(name)
    }
}

/// Key length, a key of one byte, type, a value of one byte.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Name length, a name of one byte, number of dimensions, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

fn alignment(metadata: &Metadata) -> Result<u64, LoadError> {
    let Some(alignment) = metadata.opt_u32(ALIGNMENT_KEY)? else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    if !alignment.is_power_of_two() || !(8..=4_096).contains(&alignment) {
        let why = format!("must be a power of two from 8 to 4096, not {alignment}");
        return Err(LoadError::bad_metadata(ALIGNMENT_KEY, why));
    }
    Ok(u64::from(alignment))
}

/// The tensor table; each `offset` is still relative to the data section.
fn read_tensors(source: &mut Source<impl Read>, n_tensors: u64) -> Result<Vec<TensorInfo>, LoadError> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for tensor_idx in 0..n_tensors {
        let name = source.name(&format!("the name of tensor {tensor_idx}"))?;
        let n_dims = source.u32(&name)?;
        if !(1..=MAX_DIMS).contains(&n_dims) {
            return Err(LoadError::malformed(format!("tensor {name:?} has {n_dims} dimensions, not 1 to {MAX_DIMS}")));
        }
        let mut dims = (0..n_dims).map(|_| source.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        dims.reverse(); // GGUF writes the innermost dimension first.
        let dtype = dtype(source.u32(&name)?, &name)?;
        let bytes = tensor_bytes(&name, &dims, dtype)?;
        let offset = source.u64(&name)?;
        if !names.insert(name.clone()) {
            return Err(LoadError::malformed(format!("tensor {name:?} appears twice")));
        }
        tensors.push(TensorInfo { name, dims, dtype, offset, bytes });
    }
    Ok(tensors)
}

fn tensor_bytes(name: &str, dims: &[u64], dtype: GgmlDType) -> Result<u64, LoadError> {
    if let Some(dim) = dims.iter().find(|dim| !(1..=1 << 32).contains(*dim)) {
        return Err(LoadError::malformed(format!("tensor {name:?} has a dimension of {dim}, not 1 to 2^32")));
    }
    let block = dtype.block_size() as u64;
    let innermost = dims.last().copied().unwrap_or(0);
    if !innermost.is_multiple_of(block) {
        return Err(LoadError::malformed(format!(
            "tensor {name:?} has rows of {innermost}, which {dtype:?} blocks of {block} do not divide"
        )));
    }
    dims.iter()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim))
        .and_then(|elements| (elements / block).checked_mul(dtype.type_size() as u64))
        .ok_or_else(|| LoadError::malformed(format!("tensor {name:?} of shape {dims:?} is larger than 2^64 bytes")))
}

fn place(tensor: &mut TensorInfo, data_offset: u64, alignment: u64, file_bytes: u64) -> Result<(), LoadError> {
    let name = &tensor.name;
    if !tensor.offset.is_multiple_of(alignment) {
        let what = format!("tensor {name:?} lies at offset {}, not a multiple of {alignment}", tensor.offset);
        return Err(LoadError::malformed(what));
    }
    let end = data_offset.checked_add(tensor.offset).and_then(|start| start.checked_add(tensor.bytes));
    let needed_bytes = end.ok_or_else(|| LoadError::malformed(format!("tensor {name:?} ends past 2^64 bytes")))?;
    if needed_bytes > file_bytes {
        return Err(LoadError::Truncated { what: format!("tensor {name:?}"), needed_bytes, file_bytes });
    }
    tensor.offset += data_offset;
    Ok(())
}

fn refuse_overlap(tensors: &[TensorInfo]) -> Result<(), LoadError> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(LoadError::malformed(format!("tensors {:?} and {:?} overlap", pair[0].name, pair[1].name)));
        }
    }
    Ok(())
}

fn dtype(ggml_type: u32, name: &str) -> Result<GgmlDType, LoadError> {
    let unsupported = |ggml_type: String| LoadError::UnsupportedTensorType { name: name.to_owned(), ggml_type };
    Ok(match ggml_type {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        30 => GgmlDType::BF16,
        other => return Err(unsupported(type_name(other))),
    })
}

/// Names of the formats that are known and not supported.
fn type_name(ggml_type: u32) -> String {
    let name = match ggml_type {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        other => return format!("ggml type {other}"),
    };
    name.to_owned()
}
