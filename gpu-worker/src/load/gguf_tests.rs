//! Files that are whole as GGUF and wrong as models.

use super::LoadError;
use super::gguf_writer::GgufWriter;
use crate::model::config::Architecture;
use crate::model::tiny::{Tiny, load_bytes};

type Lie = fn(&mut GgufWriter);

fn set_u32(file: &mut GgufWriter, key: &str, value: u32) {
    for (name, _, bytes) in &mut file.keys {
        if name == key.as_bytes() {
            *bytes = value.to_le_bytes().to_vec();
        }
    }
}

fn drop_key(file: &mut GgufWriter, key: &str) {
    file.keys.retain(|(name, _, _)| name != key.as_bytes());
}

fn add(file: &mut GgufWriter, change: fn(GgufWriter) -> GgufWriter) {
    *file = change(file.clone());
}

fn rename(file: &mut GgufWriter, from: &str, to: &str) {
    for tensor in &mut file.tensors {
        if tensor.name == from.as_bytes() {
            tensor.name = to.as_bytes().to_vec();
        }
    }
}

/// What is done to a Qwen2 file, and a word that the error must hold.
const LIES: &[(Lie, &str)] = &[
    (
        |w| w.keys[0].2 = crate::load::gguf_writer::text(b"mamba"),
        "\"mamba\" is not supported; supported are llama, qwen2, qwen3, gemma3, phi3",
    ),
    (|w| drop_key(w, "general.architecture"), "general.architecture"),
    (|w| drop_key(w, "qwen2.block_count"), "qwen2.block_count"),
    (|w| set_u32(w, "qwen2.block_count", 0), "n_layers is 0"),
    (|w| set_u32(w, "qwen2.block_count", 1_000_000_000), "n_layers is 1000000000"),
    (|w| set_u32(w, "qwen2.block_count", 4), "blk.3."),
    (|w| set_u32(w, "qwen2.attention.head_count", 0), "n_heads is 0"),
    (|w| set_u32(w, "qwen2.attention.head_count", 5), "n_heads is 5; it must divide 64"),
    (|w| set_u32(w, "qwen2.attention.head_count", u32::MAX), "n_heads"),
    (|w| set_u32(w, "qwen2.attention.head_count", 32), "head_dim is 2"),
    (|w| set_u32(w, "qwen2.attention.head_count_kv", 0), "n_kv_heads is 0"),
    (|w| set_u32(w, "qwen2.attention.head_count_kv", 3), "n_kv_heads is 3"),
    (|w| set_u32(w, "qwen2.attention.head_count_kv", 4), "attn_k.weight"),
    (|w| set_u32(w, "qwen2.embedding_length", 128), "token_embd.weight"),
    (|w| set_u32(w, "qwen2.embedding_length", u32::MAX), "n_heads is 4; it must divide 4294967295"),
    (|w| set_u32(w, "qwen2.embedding_length", u32::MAX - 3), "hidden_size"),
    (|w| set_u32(w, "qwen2.feed_forward_length", 0), "intermediate_size is 0"),
    (|w| set_u32(w, "qwen2.feed_forward_length", 49), "ffn_gate.weight"),
    (|w| set_u32(w, "qwen2.context_length", 0), "context_tokens is 0"),
    (|w| set_u32(w, "qwen2.context_length", u32::MAX), "context_tokens"),
    (|w| set_u32(w, "qwen2.attention.layer_norm_rms_epsilon", 0), "norm_eps is 0"),
    (|w| set_u32(w, "qwen2.attention.layer_norm_rms_epsilon", f32::NAN.to_bits()), "layer_norm_rms_epsilon"),
    (|w| set_u32(w, "qwen2.rope.freq_base", (-1.0_f32).to_bits()), "rope_base is -1"),
    (|w| add(w, |w| w.u32("qwen2.attention.value_length", 9)), "qwen2.attention.value_length"),
    (|w| add(w, |w| w.u32("qwen2.rope.dimension_count", 4)), "qwen2.rope.dimension_count"),
    (|w| add(w, |w| w.u32("qwen2.attention.sliding_window", 16)), "qwen2.attention.sliding_window"),
    (|w| add(w, |w| w.string("qwen2.rope.scaling.type", "yarn")), "\"yarn\""),
    (|w| add(w, |w| w.string("qwen2.rope.scaling.type", "linear")), "qwen2.rope.scaling.factor"),
    (|w| add(w, |w| w.strings("tokenizer.ggml.tokens", &["a"; 41])), "41 tokens, the embedding 40 rows"),
    (|w| add(w, |w| w.tensor("rope_freqs.weight", &[4], 0, vec![0; 16])), "rope_freqs.weight"),
    (|w| add(w, |w| w.tensor("blk.0.attn_output.bias", &[32], 0, vec![0; 128])), "blk.0.attn_output.bias"),
    (|w| rename(w, "blk.1.ffn_up.weight", "blk.1.ffn_top.weight"), "\"blk.1.ffn_up.weight\" is missing"),
    (|w| rename(w, "token_embd.weight", "token.weight"), "\"token_embd.weight\" is missing"),
    (|w| rename(w, "blk.2.attn_v.bias", "blk.2.other"), "\"blk.2.attn_v.bias\" is missing"),
    // The embedding as a stack of matrices, a vector of the wrong type, a value that is no number.
    (|w| w.tensors[0].dims = vec![64, 40, 1], "token_embd.weight"),
    (|w| (w.tensors[1].ggml_type, w.tensors[1].data) = (8, vec![0; 68]), "output_norm.weight"),
    (|w| w.tensors[1].data[..4].copy_from_slice(&f32::INFINITY.to_le_bytes()), "not finite"),
];

#[test]
fn the_untouched_files_load() {
    for architecture in Architecture::ALL {
        let tiny = Tiny::new(architecture);
        let model = tiny.load().unwrap();
        assert_eq!(model.decoder.config.architecture, architecture);
        assert_eq!(model.decoder.layers.len(), model.decoder.config.n_layers());
    }
}

#[test]
fn every_lie_gets_an_error_that_names_it() {
    for (idx, (lie, word)) in LIES.iter().enumerate() {
        let mut tiny = Tiny::new(Architecture::Qwen2);
        lie(&mut tiny.file);
        let err = load_bytes(tiny.file.bytes()).err().unwrap_or_else(|| panic!("lie {idx} ({word}) was believed"));
        assert!(err.to_string().contains(word), "lie {idx}: {err:?} does not name {word}");
    }
}

#[test]
fn extra_tensors_that_change_nothing_are_left_alone() {
    let mut tiny = Tiny::new(Architecture::Gemma3);
    tiny.file = tiny.file.tensor("general.signature", &[4], 0, vec![0; 16]);
    tiny.load().unwrap();
}

#[test]
fn a_file_cut_anywhere_gives_an_error() {
    let bytes = Tiny::new(Architecture::Qwen2).file.bytes();
    for end in (0..bytes.len()).step_by(bytes.len() / 97) {
        load_bytes(bytes[..end].to_vec()).expect_err("a cut file was loaded");
    }
}

#[test]
fn a_file_that_shrinks_after_its_check_is_truncated_and_not_a_panic() {
    let bytes = Tiny::new(Architecture::Qwen2).file.bytes();
    let header = super::GgufHeader::read(&mut std::io::Cursor::new(&bytes)).unwrap();
    let cut = std::io::Cursor::new(&bytes[..bytes.len() - 100]);
    let options = super::gguf::LoadOptions::default();
    let err = super::gguf::load_tensors(cut, header, &candle_core::Device::Cpu, options).unwrap_err();
    assert!(matches!(err, LoadError::Truncated { .. }), "{err:?}");
}

#[test]
fn progress_ends_at_the_total() {
    let tiny = Tiny::new(Architecture::Gemma3);
    let mut file = std::io::Cursor::new(tiny.file.bytes());
    let header = super::GgufHeader::read(&mut file).unwrap();
    let mut seen = Vec::new();
    let mut progress = |done, total| seen.push((done, total));
    let options = super::gguf::LoadOptions { progress: Some(&mut progress) };
    super::gguf::load_tensors(file, header, &candle_core::Device::Cpu, options).unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(seen.last().is_some_and(|(done, total)| done == total));
}
