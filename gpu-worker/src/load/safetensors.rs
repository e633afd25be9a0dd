//! The table of one safetensors file. The format is read by the `safetensors` crate, from the header alone: the whole file
//! is never in memory.

use std::fs::File;
use std::io::Read;

use candle_core::quantized::GgmlDType;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::check::{MAX_DIMS, MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_TENSORS};
use super::{LoadError, TensorInfo};

/// Length of the number at the file's start, which is the header's length.
const LENGTH_BYTES: u64 = 8;

/// Reads and checks the table of `file`, called `name`, of `file_bytes` bytes. Offsets are counted from the file's start.
///
/// What passes lies inside the file, and its length follows from its shape.
///
/// # Errors
/// [`LoadError::BadFile`], [`LoadError::Truncated`] and [`LoadError::UnsupportedTensorType`]. Never a panic, whatever the
/// bytes.
pub(super) fn read_table(file: &mut File, name: &str, file_bytes: u64) -> Result<Vec<TensorInfo>, LoadError> {
    let malformed = |why: String| LoadError::bad_file(name, why);
    let failed = |err: std::io::Error| LoadError::bad_file(name, format!("cannot be read: {err}"));
    let truncated =
        |what: &str, needed_bytes| LoadError::Truncated { what: format!("{what} of {name}"), needed_bytes, file_bytes };
    if file_bytes < LENGTH_BYTES {
        return Err(truncated("the header's length", LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(failed)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(malformed(format!("has a header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are read")));
    }
    let data_offset = LENGTH_BYTES + header_bytes;
    if data_offset > file_bytes {
        return Err(truncated("the header", data_offset));
    }
    let mut header = Vec::new();
    file.take(header_bytes).read_to_end(&mut header).map_err(failed)?;
    // This also checks that tensors follow one another without gaps, and are as long as their shapes say.
    let table: Metadata =
        serde_json::from_slice(&header).map_err(|err| malformed(format!("has a malformed header: {err}")))?;
    let data_bytes = table.data_len() as u64;
    if data_offset.checked_add(data_bytes).is_none_or(|end| end > file_bytes) {
        return Err(truncated("the weights", data_offset.saturating_add(data_bytes)));
    }
    let tensors = table.tensors();
    if tensors.len() as u64 > MAX_TENSORS {
        return Err(malformed(format!("has {} tensors, at most {MAX_TENSORS} are read", tensors.len())));
    }
    let info = |(tensor, info): (String, &safetensors::tensor::TensorInfo)| {
        if tensor.is_empty() || tensor.len() as u64 > MAX_NAME_BYTES {
            return Err(malformed(format!("has a tensor with a name of {} bytes", tensor.len())));
        }
        let dims: Vec<u64> = info.shape.iter().map(|dim| *dim as u64).collect();
        if !(1..=MAX_DIMS as usize).contains(&dims.len()) || dims.iter().any(|dim| !(1..=1 << 32).contains(dim)) {
            return Err(malformed(format!("has tensor {tensor:?} with the shape {dims:?}")));
        }
        let (start, end) = info.data_offsets;
        let dtype = dtype(info.dtype, &tensor)?;
        Ok(TensorInfo { name: tensor, dims, dtype, offset: data_offset + start as u64, bytes: (end - start) as u64 })
    };
    let mut infos = tensors.into_iter().map(info).collect::<Result<Vec<_>, _>>()?;
    infos.sort_unstable_by_key(|info| info.offset);
    Ok(infos)
}

fn dtype(dtype: Dtype, name: &str) -> Result<GgmlDType, LoadError> {
    match dtype {
        Dtype::F32 => Ok(GgmlDType::F32),
        Dtype::F16 => Ok(GgmlDType::F16),
        Dtype::BF16 => Ok(GgmlDType::BF16),
        other => {
            Err(LoadError::UnsupportedTensorType { name: name.to_owned(), ggml_type: format!("safetensors {other:?}") })
        }
    }
}
