//! Models: one decoder described by a config, one small file per family, and what a family's file must hold.
//!
//! Nothing here knows jobs, sequences or sampling: a step's plan comes in, logits go out.

pub mod attention;
pub mod config;
pub mod decoder;
#[cfg(test)]
mod decoder_tests;
pub mod family;
mod gemma3;
mod llama;
pub mod perplexity;
mod phi3;
mod qwen2;
mod qwen3;
mod rope;
pub mod tensors;
#[cfg(test)]
pub(crate) mod tiny;

pub use config::ModelConfig;
pub use decoder::Decoder;
pub use perplexity::{Perplexity, perplexity};
