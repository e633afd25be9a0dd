//! The one error type of the crate.

/// What a kernel refuses, or what the device reported.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A tensor, slice or index does not fit the operation; nothing was computed or written.
    #[error("{op}: {what}")]
    Shape {
        /// The operation that refused.
        op: &'static str,
        /// What did not fit, with both sides of the comparison.
        what: String,
    },
    /// A weight matrix is in a block format, or of a size, that has no packed form here.
    #[error("weights of type {dtype} cannot be packed: {what}")]
    Format {
        /// The block format as the file names it.
        dtype: String,
        /// Why not, and what would be accepted.
        what: String,
    },
    /// The operation has no implementation for the tensor's device.
    #[error("{op} has no implementation for device {device}: move the tensors to the cpu")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// Where the tensor lives.
        device: String,
    },
    /// The environment asks for instructions that cannot be had.
    #[error("{variable}: {what}")]
    Path {
        /// The variable.
        variable: &'static str,
        /// What is wrong with its value.
        what: String,
    },
    /// candle refused or failed.
    #[error("the tensor library failed")]
    Device(#[from] candle_core::Error),
}

impl KernelError {
    /// A [`KernelError::Shape`] for `op`.
    pub(crate) fn shape(op: &'static str, what: impl Into<String>) -> Self {
        Self::Shape { op, what: what.into() }
    }
}

/// What every function of this crate returns.
pub type Result<T> = std::result::Result<T, KernelError>;
