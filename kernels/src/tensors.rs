//! Checking tensors, and reaching the numbers of those on the CPU.

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};

use crate::error::{KernelError, Result};

/// Refuses `tensor` unless it is a contiguous f32 tensor of exactly the `expected` dimensions.
pub(crate) fn check_f32(op: &'static str, name: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() != expected {
        return Err(KernelError::shape(op, format!("{name} has shape {:?}, expected {expected:?}", tensor.dims())));
    }
    if tensor.dtype() != DType::F32 {
        return Err(KernelError::shape(op, format!("{name} is {:?}, expected F32", tensor.dtype())));
    }
    if !tensor.is_contiguous() {
        return Err(KernelError::shape(op, format!("{name} is not contiguous: call contiguous() first")));
    }
    Ok(())
}

/// Calls `f` with the numbers of a contiguous f32 tensor that lives on the CPU.
pub(crate) fn cpu_slice<T>(op: &'static str, tensor: &Tensor, f: impl FnOnce(&[f32]) -> T) -> Result<T> {
    cpu_slices(op, [tensor], |[values]| f(values))
}

/// Calls `f` with the numbers of several such tensors.
pub(crate) fn cpu_slices<T, const N: usize>(
    op: &'static str,
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> T,
) -> Result<T> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices = [&[][..]; N];
    for ((slice, (storage, layout)), tensor) in slices.iter_mut().zip(&guards).zip(tensors) {
        let Storage::Cpu(CpuStorage::F32(values)) = &**storage else {
            return Err(KernelError::Unsupported { op, device: format!("{:?}", tensor.device().location()) });
        };
        *slice = &values[layout.start_offset()..][..layout.shape().elem_count()];
    }
    Ok(f(slices))
}

/// True where our own kernels run.
pub(crate) fn on_cpu(tensor: &Tensor) -> bool {
    matches!(tensor.device(), Device::Cpu)
}
