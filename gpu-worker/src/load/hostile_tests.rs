//! Headers that lie in every way known from other loaders.

use std::io::Cursor;

use proptest::prelude::*;

use super::{
    GgufHeader, LoadError,
    gguf_writer::{GgufWriter, array, text},
    header_tests::{read, valid},
};

type Lie = fn(&mut GgufWriter);

/// What is done to the valid file, and a word that the error must hold.
const LIES: &[(&str, Lie, &str)] = &[
    ("magic", |w| w.magic = *b"GGML", "not a GGUF"),
    ("old magic", |w| w.magic = *b"ggjt", "not a GGUF"),
    ("big-endian magic", |w| w.magic = *b"FUGG", "not a GGUF"),
    ("version 0", |w| w.version = 0, "version 0"),
    ("version 1", |w| w.version = 1, "version 1"),
    ("version 4", |w| w.version = 4, "version 4"),
    ("big-endian version", |w| w.version = 3 << 24, "version 50331648"),
    ("2^64 - 1 tensors", |w| w.n_tensors = Some(u64::MAX), "tensor count"),
    ("60,000 tensors", |w| w.n_tensors = Some(60_000), "tensor count"),
    ("one tensor too many", |w| w.n_tensors = Some(4), "tensor 3"),
    ("2^64 - 1 keys", |w| w.n_keys = Some(u64::MAX), "metadata count"),
    ("4,000 keys", |w| w.n_keys = Some(4_000), "metadata count"),
    ("one key too many", |w| w.n_keys = Some(8), ""),
    ("one key too few", |w| w.n_keys = Some(6), ""),
    ("key of 600 bytes", |w| w.keys[0].0 = vec![b'k'; 600], "metadata key 0 is 600 bytes"),
    ("empty key", |w| w.keys[1].0.clear(), "metadata key 1 is empty"),
    ("key not UTF-8", |w| w.keys[1].0 = vec![0xff, 0xfe], "not UTF-8"),
    ("key twice", |w| w.keys[1].0 = w.keys[0].0.clone(), "appears twice"),
    ("value type 13", |w| w.keys[1].1 = 13, "value type 13"),
    ("value type 2^32 - 1", |w| w.keys[1].1 = u32::MAX, "value type"),
    ("string of 2^64 - 1", |w| w.keys[0].2 = vec![0xff; 8], "general.architecture"),
    ("string past the end", |w| w.keys[0].2 = 60_000_000u64.to_le_bytes().to_vec(), "truncated"),
    ("string not UTF-8", |w| w.keys[0].2 = text(&[0xc3, 0x28]), "not UTF-8"),
    ("bool of 2", |w| w.keys[3].2 = vec![2], "holds 2"),
    ("array of arrays", |w| w.keys[4].2 = array(9, 1, array(9, 1, [])), "array of arrays"),
    ("array of 2^64 - 1", |w| w.keys[4].2 = array(0, u64::MAX, []), "tokenizer.ggml.tokens"),
    ("array of 2^62 f64", |w| w.keys[4].2 = array(12, 1 << 62, []), "tokenizer.ggml.tokens"),
    ("array past the end", |w| w.keys[4].2 = array(5, 1 << 20, []), "truncated"),
    ("1 Mi + 1 elements", |w| w.keys[4].2 = array(0, (1 << 20) + 1, vec![0; (1 << 20) + 1]), "at most"),
    ("element type 13", |w| w.keys[4].2 = array(13, 1, [0]), "element type 13"),
    ("bool array of 7", |w| w.keys[4].2 = array(7, 2, [1, 7]), "holds 7"),
    ("element not UTF-8", |w| w.keys[4].2 = array(8, 1, text(&[0x80])), "not UTF-8"),
    ("alignment 0", |w| align(w, 0), "power of two"),
    ("alignment 4", |w| align(w, 4), "power of two"),
    ("alignment 48", |w| align(w, 48), "power of two"),
    ("alignment 8,192", |w| align(w, 8_192), "power of two"),
    ("alignment a string", |w| *w = w.clone().string("general.alignment", "32"), "general.alignment"),
    ("no dimension", |w| w.tensors[0].dims.clear(), "0 dimensions"),
    ("5 dimensions", |w| w.tensors[0].dims = vec![1; 5], "5 dimensions"),
    ("dimension 0", |w| w.tensors[0].dims[1] = 0, "dimension of 0"),
    ("dimension 2^32 + 1", |w| w.tensors[0].dims[1] = (1 << 32) + 1, "dimension of 4294967297"),
    ("product overflows", |w| w.tensors[0].dims = vec![1 << 32; 4], "larger than 2^64"),
    ("product wraps to 0", |w| w.tensors[0].dims = vec![1 << 32, 1 << 32], "larger than 2^64"),
    ("bytes overflow", |w| w.tensors[0].dims = vec![1 << 31, 1 << 32, 2], "larger than 2^64"),
    ("half a block", |w| w.tensors[2].dims = vec![16, 2], "do not divide"),
    ("IQ2_XXS", |w| w.tensors[0].ggml_type = 16, "IQ2_XXS"),
    ("MXFP4", |w| w.tensors[0].ggml_type = 39, "MXFP4"),
    ("removed Q4_2", |w| w.tensors[0].ggml_type = 4, "ggml type 4"),
    ("type 2^32 - 1", |w| w.tensors[0].ggml_type = u32::MAX, "ggml type 4294967295"),
    ("offset not aligned", |w| w.tensors[1].offset = 68, "not a multiple"),
    ("offset past the end", |w| w.tensors[1].offset = 1 << 21, "truncated"),
    ("offset wraps", |w| w.tensors[1].offset = u64::MAX - 31, "ends past 2^64"),
    ("overlap by one", |w| w.tensors[1].offset = 32, "overlap"),
    ("same place", |w| w.tensors[1].offset = 0, "overlap"),
    ("name twice", |w| w.tensors[1].name = w.tensors[0].name.clone(), "appears twice"),
    ("empty name", |w| w.tensors[1].name.clear(), "tensor 1 is empty"),
    ("name not UTF-8", |w| w.tensors[1].name = vec![0xed, 0xa0, 0x80], "not UTF-8"),
    ("data cut off", |w| w.data_bytes = Some(161), "truncated"),
    ("no data", |w| w.data_bytes = Some(0), "truncated"),
];

fn align(writer: &mut GgufWriter, alignment: u32) {
    *writer = writer.clone().u32("general.alignment", alignment);
}

#[test]
fn every_lie_is_an_error_that_names_it() {
    assert!(LIES.len() >= 40);
    for (what, lie, word) in LIES {
        let mut writer = valid();
        lie(&mut writer);
        let message = match read(&writer) {
            Ok(_) => panic!("{what} was accepted"),
            Err(err) => err.to_string(),
        };
        assert!(message.contains(word), "{what}: {message}");
    }
}

#[test]
fn every_truncation_of_a_header_is_an_error() {
    let bytes = valid().bytes();
    for length in 0..bytes.len() {
        let err = GgufHeader::read(&mut Cursor::new(&bytes[..length])).unwrap_err();
        assert!(matches!(err, LoadError::Truncated { .. }), "{length} bytes: {err}");
    }
}

#[test]
fn a_header_past_64_mib_is_refused_before_it_is_read() {
    // Sparse by construction: only the length field says 100 MB, and the reader has that many zeros.
    let mut bytes = GgufWriter::new().raw("k", 8, 100_000_000u64.to_le_bytes().to_vec()).bytes();
    bytes.resize(101_000_000, 0);
    let message = GgufHeader::read(&mut Cursor::new(bytes)).unwrap_err().to_string();
    assert!(message.contains("at most 67108864"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes, the answer is a header whose tensors lie in the file, or an error.
    #[test]
    fn damaged_headers_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = valid().bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(keep.index(bytes.len()));
        }
        if let Ok(header) = GgufHeader::read(&mut Cursor::new(&bytes)) {
            for tensor in &header.tensors {
                prop_assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
                prop_assert_eq!(tensor.offset % header.alignment, 0);
            }
        }
    }
}
