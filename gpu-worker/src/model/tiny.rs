//! Test support: models of a few thousand weights as GGUF files, with their weights at hand.

use std::collections::HashMap;
use std::io::Cursor;

use candle_core::Device;

use super::config::Architecture;
use crate::load::gguf::{LoadOptions, LoadedModel, load_tensors};
use crate::load::gguf_writer::GgufWriter;
use crate::load::{GgufHeader, LoadError};

pub(crate) const HIDDEN: usize = 64;
pub(crate) const MLP: usize = 48;
pub(crate) const VOCAB: usize = 40;
pub(crate) const CONTEXT: usize = 64;
pub(crate) const WINDOW: usize = 5;
pub(crate) const NORM_EPS: f32 = 1e-6;
pub(crate) const ROPE_BASE: f32 = 1e6;

/// Sizes in which the families differ.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) n_layers: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Sizes {
    pub(crate) fn of(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Llama | Architecture::Qwen2 | Architecture::Phi3 => {
                Self { n_layers: 3, n_heads: 4, n_kv_heads: 2, head_dim: 16 }
            }
            Architecture::Qwen3 => Self { n_layers: 2, n_heads: 4, n_kv_heads: 2, head_dim: 32 },
            // Seven layers: five with a window, one without, one with. Heads wider than the stream together.
            Architecture::Gemma3 => Self { n_layers: 7, n_heads: 4, n_kv_heads: 1, head_dim: 32 },
        }
    }
}

/// A model file in the making.
#[derive(Clone)]
pub(crate) struct Tiny {
    pub(crate) file: GgufWriter,
    /// By GGUF name, row-major.
    pub(crate) weights: HashMap<String, Vec<f32>>,
    random: u64,
}

impl Tiny {
    pub(crate) fn new(architecture: Architecture) -> Self {
        let sizes = Sizes::of(architecture);
        let key = |name: &str| format!("{}.{name}", architecture.name());
        let mut file = GgufWriter::new()
            .string("general.architecture", architecture.name())
            .u32(&key("block_count"), sizes.n_layers as u32)
            .u32(&key("context_length"), CONTEXT as u32)
            .u32(&key("embedding_length"), HIDDEN as u32)
            .u32(&key("feed_forward_length"), MLP as u32)
            .u32(&key("attention.head_count"), sizes.n_heads as u32)
            .u32(&key("attention.head_count_kv"), sizes.n_kv_heads as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), NORM_EPS)
            .f32(&key("rope.freq_base"), ROPE_BASE);
        if matches!(architecture, Architecture::Gemma3 | Architecture::Qwen3) {
            file = file
                .u32(&key("attention.key_length"), sizes.head_dim as u32)
                .u32(&key("attention.value_length"), sizes.head_dim as u32);
        }
        if architecture == Architecture::Gemma3 {
            file = file.u32(&key("attention.sliding_window"), WINDOW as u32);
        }
        let mut tiny = Self { file, weights: HashMap::new(), random: 1 };
        tiny.tensors(architecture, sizes);
        tiny
    }

    fn tensors(&mut self, architecture: Architecture, sizes: Sizes) {
        let (q, kv) = (sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim);
        self.matrix("token_embd.weight", VOCAB, HIDDEN);
        self.vector("output_norm.weight", HIDDEN, 1.0);
        for layer in 0..sizes.n_layers {
            let name = |tensor: &str| format!("blk.{layer}.{tensor}");
            let apart = [
                ("attn_q", q, HIDDEN),
                ("attn_k", kv, HIDDEN),
                ("attn_v", kv, HIDDEN),
                ("attn_output", HIDDEN, q),
                ("ffn_gate", MLP, HIDDEN),
                ("ffn_up", MLP, HIDDEN),
                ("ffn_down", HIDDEN, MLP),
            ];
            let stacked = [
                ("attn_qkv", q + 2 * kv, HIDDEN),
                ("attn_output", HIDDEN, q),
                ("ffn_up", 2 * MLP, HIDDEN),
                ("ffn_down", HIDDEN, MLP),
            ];
            let matrices = if architecture == Architecture::Phi3 { &stacked[..] } else { &apart[..] };
            for &(tensor, n, k) in matrices {
                self.matrix(&name(&format!("{tensor}.weight")), n, k);
            }
            self.vector(&name("attn_norm.weight"), HIDDEN, 1.0);
            self.vector(&name("ffn_norm.weight"), HIDDEN, 1.0);
            match architecture {
                Architecture::Qwen2 => {
                    self.vector(&name("attn_q.bias"), q, 0.0);
                    self.vector(&name("attn_k.bias"), kv, 0.0);
                    self.vector(&name("attn_v.bias"), kv, 0.0);
                }
                Architecture::Llama | Architecture::Phi3 => {}
                Architecture::Qwen3 => {
                    self.vector(&name("attn_q_norm.weight"), sizes.head_dim, 1.0);
                    self.vector(&name("attn_k_norm.weight"), sizes.head_dim, 1.0);
                }
                Architecture::Gemma3 => {
                    self.vector(&name("attn_q_norm.weight"), sizes.head_dim, 1.0);
                    self.vector(&name("attn_k_norm.weight"), sizes.head_dim, 1.0);
                    self.vector(&name("post_attention_norm.weight"), HIDDEN, 1.0);
                    self.vector(&name("post_ffw_norm.weight"), HIDDEN, 1.0);
                }
            }
        }
        if architecture == Architecture::Qwen2 {
            self.matrix("output.weight", VOCAB, HIDDEN);
        }
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) {
        self.tensor(name, &[k as u64, n as u64], 0.0, 0.4);
    }

    fn vector(&mut self, name: &str, n: usize, centre: f32) {
        self.tensor(name, &[n as u64], centre, 0.3);
    }

    fn tensor(&mut self, name: &str, dims: &[u64], centre: f32, spread: f32) {
        let n = dims.iter().product::<u64>();
        let values: Vec<f32> = (0..n).map(|_| centre + spread * self.next()).collect();
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.file = self.file.clone().tensor(name, dims, 0, bytes);
        self.weights.insert(name.to_owned(), values);
    }

    /// From -1 to 1 (xorshift64).
    fn next(&mut self) -> f32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub(crate) fn load(&self) -> Result<LoadedModel, LoadError> {
        load_bytes(self.file.bytes())
    }
}

pub(crate) fn load_bytes(bytes: Vec<u8>) -> Result<LoadedModel, LoadError> {
    let mut file = Cursor::new(bytes);
    let header = GgufHeader::read(&mut file)?;
    load_tensors(file, header, &Device::Cpu, LoadOptions::default())
}
