//! Products of activations with packed weight matrices.

mod float;
mod form;
mod ggml;
mod pack;
mod pairs;
mod product;
mod quantise;

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Module, Shape, Tensor};

use crate::error::{KernelError, Result};
use crate::path::Path;
use crate::tensors::{check_f32, cpu_slice};
use float::transpose;
use pack::Weights;
use pairs::RoundedPairs;
pub(crate) use product::rows_of;
use quantise::Rounded;

const OP: &str = "packed_linear";

/// One weight matrix `[n, k]`, repacked once at load for the products of a step.
///
/// Quantised weights keep the exact values of their file format. Activations are rounded to signed bytes per block of
/// 32 along `k` (scale: largest magnitude / 127; nearest, ties to even), multiplied as integers, and summed in f32 in
/// the order of `k`. F32 and F16 weights are multiplied as f32; for BF16 ones the activations are rounded to bf16, and the
/// products summed in f32. The result for a row is bit-equal whatever other rows are in
/// the call. A row with a value that is not finite gives only NaN for quantised weights.
///
/// On a device other than the CPU the weights lie there as the file has them, and candle's own product multiplies them:
/// right, but neither packed nor promised to be batch invariant.
#[derive(Debug)]
pub struct PackedLinear {
    form: Form,
    n: usize,
    k: usize,
}

/// Where the weights lie, and whose product multiplies them.
#[derive(Debug)]
enum Form {
    /// In host memory, for our own product.
    Packed(Weights),
    /// On the activations' device, for candle's; with the bytes they take.
    Device(QMatMul, usize),
}

impl PackedLinear {
    /// The matrix for activations on `device`: repacked for the CPU as by [`PackedLinear::from_ggml`], else uploaded.
    ///
    /// # Errors
    /// As [`PackedLinear::from_ggml`]; [`KernelError::Device`] when the device has no room or no product for the format.
    pub fn on_device(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize, device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => Self::from_ggml(dtype, blocks, n, k),
            device => Self::upload(dtype, blocks, n, k, device),
        }
    }

    fn upload(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize, device: &Device) -> Result<Self> {
        let fits = k.is_multiple_of(dtype.block_size())
            && n.checked_mul(k / dtype.block_size()).and_then(|n| n.checked_mul(dtype.type_size()))
                == Some(blocks.len());
        if !fits {
            return Err(KernelError::shape(OP, format!("{} bytes are no {dtype:?} matrix of {n} x {k}", blocks.len())));
        }
        let weights = QTensor::new(QStorage::from_data(Cow::Borrowed(blocks), device, dtype)?, (n, k))?;
        Ok(Self { form: Form::Device(QMatMul::from_qtensor(weights)?, blocks.len()), n, k })
    }

    /// Repacks `n` rows of `k` values from their file format, exactly: no value is rounded again.
    ///
    /// # Errors
    /// [`KernelError::Format`] when the format has no packed form, `k` does not fit it, or the bytes do not fit `n * k`;
    /// [`KernelError::Path`] when the environment forces instructions that cannot be had.
    pub fn from_ggml(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize) -> Result<Self> {
        Path::current()?;
        Ok(Self { form: Form::Packed(Weights::from_ggml(dtype, blocks, n, k)?), n, k })
    }

    /// Outputs.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// How the matrix lies in memory, for logs: file format, then the packed form.
    #[must_use]
    pub fn format_name(&self) -> &'static str {
        match &self.form {
            Form::Packed(weights) => weights.format_name(),
            Form::Device(..) => "as in the file, candle's product",
        }
    }

    /// Bytes of the packed form.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        match &self.form {
            Form::Packed(weights) => weights.bytes(),
            Form::Device(_, bytes) => *bytes,
        }
    }

    /// `x [m, k]` times the transpose of this matrix, `[m, n]`.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `x` is a contiguous f32 `[m, k]` with `m` at least 1;
    /// [`KernelError::Unsupported`] when the matrix was packed for the CPU and `x` is elsewhere.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check(&[self], x)?;
        match &self.form {
            Form::Packed(_) => {
                cpu_slice(OP, x, |_| ())?;
                Ok(x.apply_op1_no_bwd(self)?)
            }
            Form::Device(weights, _) => Ok(weights.forward(x)?),
        }
    }

    /// The products of one `x` with several matrices of the same `k`: the activations are rounded once.
    ///
    /// # Errors
    /// As [`PackedLinear::forward`].
    pub fn forward_many(layers: &[&PackedLinear], x: &Tensor) -> Result<Vec<Tensor>> {
        let m = check(layers, x)?;
        if layers.iter().any(|layer| matches!(layer.form, Form::Device(..))) {
            return layers.iter().map(|layer| layer.forward(x)).collect();
        }
        let path = Path::current()?;
        let products = cpu_slice(OP, x, |x| {
            let mut inputs = Inputs::new(path, x, m);
            layers.iter().map(|layer| inputs.multiply(layer)).collect::<candle_core::Result<Vec<_>>>()
        })??;
        let tensors = layers.iter().zip(products);
        tensors.map(|(layer, product)| Ok(Tensor::from_vec(product, (m, layer.n), x.device())?)).collect()
    }
}

/// Refuses what the matrices cannot take; answers the number of rows.
fn check(layers: &[&PackedLinear], x: &Tensor) -> Result<usize> {
    let &[m, _] = x.dims() else {
        return Err(KernelError::shape(OP, format!("x has shape {:?}, expected [m, k]", x.dims())));
    };
    if m == 0 {
        return Err(KernelError::shape(OP, "x has no rows"));
    }
    for layer in layers {
        check_f32(OP, "x", x, &[m, layer.k])?;
    }
    Ok(m)
}

impl CustomOp1 for PackedLinear {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(values), Some((start, end))) => &values[start..end],
            _ => candle_core::bail!("{OP}: x must be contiguous f32"),
        };
        let path = Path::current().map_err(candle_core::Error::wrap)?;
        let m = x.len() / self.k;
        let product = Inputs::new(path, x, m).multiply(self)?;
        Ok((CpuStorage::F32(product), Shape::from((m, self.n))))
    }
}

/// Activations in the forms that the matrices of one call need, each made at most once.
struct Inputs<'a> {
    path: Path,
    x: &'a [f32],
    m: usize,
    rounded: Option<Rounded>,
    columns: Option<Vec<f32>>,
    pairs: Option<RoundedPairs>,
}

impl<'a> Inputs<'a> {
    fn new(path: Path, x: &'a [f32], m: usize) -> Self {
        Self { path, x, m, rounded: None, columns: None, pairs: None }
    }

    /// The rows as bytes, for quantised matrices.
    fn rounded(&mut self) -> &Rounded {
        let Self { path, x, m, .. } = *self;
        self.rounded.get_or_insert_with(|| Rounded::new(path, x, m, x.len() / m))
    }

    /// The rows as `[k][m]`, for float matrices.
    fn columns(&mut self) -> &[f32] {
        let Self { x, m, .. } = *self;
        self.columns.get_or_insert_with(|| transpose(x, m, x.len() / m))
    }

    /// The rows as pairs of bf16, for bf16 matrices.
    fn pairs(&mut self) -> &RoundedPairs {
        let Self { x, m, .. } = *self;
        self.pairs.get_or_insert_with(|| RoundedPairs::new(x, m, x.len() / m))
    }

    /// `[m, n]` products with `layer`.
    fn multiply(&mut self, layer: &PackedLinear) -> candle_core::Result<Vec<f32>> {
        let Form::Packed(weights) = &layer.form else {
            candle_core::bail!("{OP}: the matrix lies on another device than the activations")
        };
        let mut out = vec![0.0; self.m * layer.n];
        weights.multiply(self, layer.n, &mut out);
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
