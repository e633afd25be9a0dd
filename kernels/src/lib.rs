//! Kernels of a continuous-batching decoder: tensors in, tensors out.
//!
//! This crate knows shapes and numbers. It must never know a job, a tenant, a sequence's text or HTTP.
//!
//! Every kernel is batch invariant: the result for a row is bit-equal whatever other rows are in the call, however many
//! threads run, and however a prompt was cut into chunks. Every kernel has a plain version in [`mod@reference`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod activation;
mod attention;
mod embed;
mod error;
mod exp;
mod kv;
mod lanes;
mod linear;
mod norm;
mod path;
pub mod reference;
mod rope;
mod tensors;
mod threads;

pub use activation::{add, add_bias, gelu_tanh_mul, scale, silu_mul};
pub use attention::{AttnSpan, paged_attention};
pub use embed::EmbeddingTable;
pub use error::{KernelError, Result};
pub use kv::{BLOCK_TOKENS, KvLayer, write_kv};
pub use linear::PackedLinear;
pub use norm::{add_rms_norm, rms_norm};
pub use path::cpu_path;
pub use rope::{RopeTable, rope};
pub use threads::threads;
