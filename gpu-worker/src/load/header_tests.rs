//! Headers as they should be, of small files made here and of the two real ones.

use std::io::Cursor;

use candle_core::quantized::GgmlDType;

use super::{GgufHeader, LoadError, gguf_writer::GgufWriter};

pub(super) fn read(writer: &GgufWriter) -> Result<GgufHeader, LoadError> {
    GgufHeader::read(&mut Cursor::new(writer.bytes()))
}

/// Three tensors of 64, 36 and 34 bytes at 0, 64 and 128.
pub(super) fn valid() -> GgufWriter {
    GgufWriter::new()
        .string("general.architecture", "qwen2")
        .u32("qwen2.block_count", 1)
        .f32("qwen2.rope.freq_base", 1e6)
        .bool("tokenizer.ggml.add_bos_token", false)
        .strings("tokenizer.ggml.tokens", &["a", "", "ü"])
        .i32s("tokenizer.ggml.token_type", &[1, 3, -1])
        .f32s("tokenizer.ggml.scores", &[0.5, -1.0])
        .tensor("a.weight", &[4, 2, 2], 0, vec![1; 64])
        .tensor("b.weight", &[3, 6], 1, vec![2; 36])
        .tensor("c.weight", &[32], 8, vec![3; 34])
}

#[test]
fn a_valid_header_reads_as_written() {
    let bytes = valid().bytes();
    let header = GgufHeader::read(&mut Cursor::new(&bytes)).unwrap();
    assert_eq!((header.version, header.alignment), (3, 32));
    assert_eq!(header.file_bytes, bytes.len() as u64);
    assert_eq!(header.data_offset % 32, 0);
    let metadata = &header.metadata;
    assert_eq!(metadata.string("general.architecture").unwrap(), "qwen2");
    assert_eq!(metadata.u32("qwen2.block_count").unwrap(), 1);
    assert_eq!(metadata.f32("qwen2.rope.freq_base").unwrap(), 1e6);
    assert!(!metadata.bool("tokenizer.ggml.add_bos_token").unwrap());
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.iter().collect::<Vec<_>>(), ["a", "", "ü"]);
    assert_eq!(tokens.get(3), None);
    assert_eq!(*metadata.i32s("tokenizer.ggml.token_type").unwrap(), [1, 3, -1]);
    assert_eq!(metadata.f32s("tokenizer.ggml.scores").unwrap(), [0.5, -1.0]);
    assert_eq!(metadata.opt_u32("absent").unwrap(), None);

    let a = header.tensor("a.weight").unwrap();
    assert_eq!((a.dims.as_slice(), a.dtype), ([2, 2, 4].as_slice(), GgmlDType::F32));
    assert_eq!((a.offset, a.bytes), (header.data_offset, 64));
    let c = header.tensor("c.weight").unwrap();
    assert_eq!((c.offset, c.bytes, c.dtype), (header.data_offset + 128, 34, GgmlDType::Q8_0));
    assert_eq!(bytes[c.offset as usize], 3);
}

#[test]
fn version_2_and_other_alignments_read() {
    let mut writer = GgufWriter { version: 2, alignment: 64, ..GgufWriter::new() };
    writer = writer.u32("general.alignment", 64).tensor("a", &[1], 0, vec![0; 4]);
    let header = read(&writer).unwrap();
    assert_eq!((header.version, header.alignment, header.data_offset % 64), (2, 64, 0));
}

#[test]
fn getters_name_the_key_and_both_types() {
    let header = read(&valid()).unwrap();
    let message = |err: LoadError| err.to_string();
    let missing = message(header.metadata.u32("qwen2.absent").unwrap_err());
    assert!(missing.contains("qwen2.absent") && missing.contains("missing"), "{missing}");
    let wrong = message(header.metadata.u32("general.architecture").unwrap_err());
    assert!(wrong.contains("general.architecture") && wrong.contains("not a string"), "{wrong}");
    let tensor = message(header.tensor("blk.0.attn_q.weight").unwrap_err());
    assert!(tensor.contains("blk.0.attn_q.weight"), "{tensor}");
}

/// Counts and places taken with the `gguf` Python package's reader.
#[test]
fn the_real_files_read() {
    let open = |name| {
        let path = crate::load::real_model(name);
        GgufHeader::read(&mut std::fs::File::open(path).unwrap()).unwrap()
    };
    let qwen = open("qwen2.5-coder-0.5b-instruct-q4_k_m");
    assert_eq!((qwen.version, qwen.alignment, qwen.data_offset), (3, 32, 5_947_776));
    assert_eq!((qwen.metadata.len(), qwen.tensors.len(), qwen.file_bytes), (26, 291, 491_400_064));
    assert_eq!(qwen.metadata.strings("tokenizer.ggml.tokens").unwrap().len(), 151_936);
    assert_eq!(qwen.metadata.strings("tokenizer.ggml.merges").unwrap().get(3), Some("Ġ t"));
    let embed = qwen.tensor("token_embd.weight").unwrap();
    assert_eq!((embed.dims.as_slice(), embed.dtype), ([151_936, 896].as_slice(), GgmlDType::Q5_0));
    assert_eq!((embed.offset, embed.bytes), (150_590_848, 93_592_576));

    let gemma = open("gemma-3-270m-q4_k_m");
    assert_eq!((gemma.version, gemma.alignment, gemma.data_offset), (3, 32, 6_525_120));
    assert_eq!((gemma.metadata.len(), gemma.tensors.len(), gemma.file_bytes), (33, 236, 253_113_024));
    assert_eq!(gemma.metadata.strings("tokenizer.ggml.tokens").unwrap().len(), 262_144);
    let down = gemma.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.dims.as_slice(), down.dtype), ([640, 2_048].as_slice(), GgmlDType::Q6K));
    assert_eq!((down.offset, down.bytes), (185_896_128, 1_075_200));
}
