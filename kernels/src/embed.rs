//! Token embeddings: rows of a table by id.

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};

use crate::error::{KernelError, Result};
use crate::reference;

/// A table `[n, k]` kept in its file format; rows become f32 when they are asked for.
#[derive(Debug)]
pub struct EmbeddingTable {
    dtype: GgmlDType,
    bytes: Vec<u8>,
    n: usize,
    k: usize,
}

impl EmbeddingTable {
    /// Takes the table's blocks as they lie in the file.
    ///
    /// # Errors
    /// [`KernelError::Format`] when `blocks` is not exactly `n` rows of `k` values of `dtype`.
    pub fn from_ggml(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize) -> Result<Self> {
        reference::check_bytes(dtype, blocks, n, k)?;
        Ok(Self { dtype, bytes: blocks.to_vec(), n, k })
    }

    /// Rows in the table.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Values of one row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes held.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The rows with these ids, `[ids.len(), k]` f32 on `device`.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when an id is outside the table or there is none.
    pub fn rows(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        if ids.is_empty() {
            return Err(KernelError::shape("embed_rows", "no ids were given"));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.n) {
            return Err(KernelError::shape("embed_rows", format!("id {id} is outside the table of {} rows", self.n)));
        }
        let row_bytes = self.bytes.len() / self.n;
        let mut picked = Vec::with_capacity(ids.len() * row_bytes);
        for id in ids {
            picked.extend_from_slice(&self.bytes[*id as usize * row_bytes..][..row_bytes]);
        }
        Ok(reference::dequantize(self.dtype, &picked, ids.len(), self.k)?.to_device(device)?)
    }
}
