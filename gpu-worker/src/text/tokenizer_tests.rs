//! Tokenizers that are refused, long runs, and small vocabularies worked out by hand.

use std::io::Cursor;

use super::{
    TextTokenizer,
    golden_tests::{GEMMA, QWEN},
};
use crate::load::{GgufHeader, LoadError, gguf_writer::GgufWriter};

fn build(writer: &GgufWriter) -> Result<TextTokenizer, LoadError> {
    TextTokenizer::from_gguf(&GgufHeader::read(&mut Cursor::new(writer.bytes())).unwrap().metadata)
}

/// A SentencePiece vocabulary: `<unk>`, `</s>`, 256 bytes, then `pieces` with their scores and types.
fn sentence_piece(pieces: &[(&str, f32, i32)]) -> GgufWriter {
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec!["<unk>", "</s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    let (mut scores, mut types) = (vec![0.0; tokens.len()], vec![6; tokens.len()]);
    types[..2].copy_from_slice(&[2, 3]);
    for (piece, score, kind) in pieces {
        tokens.push(piece);
        scores.push(*score);
        types.push(*kind);
    }
    GgufWriter::new()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.eos_token_id", 1)
}

const PIECES: &[(&str, f32, i32)] = &[
    ("a", -10.0, 1),
    ("b", -11.0, 1),
    ("▁", -12.0, 1),
    ("ab", -1.0, 1),
    ("ba", -0.5, 1),
    ("▁a", -2.0, 1),
    ("[X]", 0.0, 4),
];

#[test]
fn scores_decide_which_pieces_merge() {
    let plain = sentence_piece(PIECES).bool("tokenizer.ggml.add_space_prefix", false);
    let tokenizer = build(&plain).unwrap();
    let [a, b, space, ab, ba, space_a, x] = [258, 259, 260, 261, 262, 263, 264];
    // "ba" (-0.5) goes before "ab" (-1): a|ba, not ab|a.
    assert_eq!(tokenizer.encode("aba", false).unwrap(), [a, ba]);
    assert_eq!(tokenizer.encode("ab b", false).unwrap(), [ab, space, b]);
    assert_eq!(tokenizer.encode(" ab", false).unwrap(), [space, ab]);
    assert_eq!(tokenizer.encode(" a[X]a", false).unwrap(), [space_a, x, a]);
    // "é" is in no piece: its two bytes.
    assert_eq!(tokenizer.encode("aé", false).unwrap(), [a, 2 + 0xc3, 2 + 0xa9]);
    assert_eq!(tokenizer.decode(&[a, 2 + 0xc3, 2 + 0xa9, space_a], true), "aé a");
    // Neither the name of a byte nor that of a control token becomes the token.
    let written = tokenizer.encode("<0x41></s>", false).unwrap();
    assert_eq!(tokenizer.decode(&written, false), "<0x41></s>");
    assert!(!written.contains(&1) && !written.contains(&(2 + 0x41)));

    // By SentencePiece's default a space goes before the text, and after a whole-string token.
    let prefixed = build(&sentence_piece(PIECES)).unwrap();
    assert_eq!(prefixed.encode("a[X]a", false).unwrap(), [space_a, x, space_a]);
}

#[test]
fn tokenizers_that_would_be_guessed_at_are_refused() {
    let error = |writer: &GgufWriter| build(writer).unwrap_err().to_string();
    let base = GgufWriter::new().strings("tokenizer.ggml.tokens", &["a"]).i32s("tokenizer.ggml.token_type", &[1]);
    for (writer, word) in [
        (GgufWriter::new(), "tokenizer.ggml.model"),
        (base.clone().string("tokenizer.ggml.model", "bert"), "\"bert\""),
        (base.clone().string("tokenizer.ggml.model", "gpt2"), "tokenizer.ggml.pre"),
        (gpt2("deepseek-llm", &["a"], &[]), "\"deepseek-llm\""),
        (gpt2("default", &["a"], &[]), "\"default\""),
        (gpt2("qwen2", &["a"], &[]), "lacks a token for the byte"),
        (base.clone().string("tokenizer.ggml.model", "llama"), "tokenizer.ggml.scores"),
        (sentence_piece(&[]).u32("tokenizer.ggml.bos_token_id", 258), "of 258 tokens"),
        (sentence_piece(&[]).bool("tokenizer.ggml.add_bos_token", true), "without a bos_token_id"),
        (sentence_piece(&[("a", f32::NAN, 1)]), "not a number"),
        (sentence_piece(&[("a", 0.0, 7)]), "type 7"),
        (sentence_piece(&[("<0x4>", 0.0, 6)]), "not <0xHH>"),
    ] {
        let message = error(&writer);
        assert!(message.contains(word), "{message}");
    }
}

fn gpt2(pre: &str, tokens: &[&str], merges: &[&str]) -> GgufWriter {
    GgufWriter::new()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", tokens)
        .i32s("tokenizer.ggml.token_type", &vec![1; tokens.len()])
        .strings("tokenizer.ggml.merges", merges)
}

#[test]
fn merges_of_unknown_tokens_are_refused() {
    let alphabet: Vec<String> = super::bytes::alphabet().map(|(_, character)| character.to_string()).collect();
    let mut tokens: Vec<&str> = alphabet.iter().map(String::as_str).collect();
    tokens.push("ab");
    let good = build(&gpt2("gpt-2", &tokens, &["a b"])).unwrap();
    assert_eq!(good.encode("ab", false).unwrap(), [256]);
    for merge in ["a c", "ab c", "ab", "a zz", "", " "] {
        let message = build(&gpt2("gpt-2", &tokens, &["a b", merge])).unwrap_err().to_string();
        assert!(message.contains("merge 1"), "{merge:?}: {message}");
    }
}

#[test]
fn long_runs_are_never_cut_short() {
    for prompts in [&*QWEN, &*GEMMA] {
        let tokenizer = prompts.tokenizer();
        let tail = tokenizer.encode("abc def ghi", false).unwrap();
        for unit in [" ", "\n", "\t", "a", "7", "=", "漢"] {
            let text = format!("{}\nabc def ghi", unit.repeat(300_000));
            let ids = tokenizer.encode(&text, false).unwrap();
            assert!(tokenizer.decode(&ids, false) == text, "{unit:?}");
            assert!(ids.ends_with(&tail[1..]), "{unit:?}");
        }
    }
}

#[test]
fn no_text_has_fewer_tokens_than_promised() {
    // "각" spelled out shrinks from 9 bytes to 3 when it is composed.
    for text in ["\u{1100}\u{1161}\u{11a8}".repeat(100), " ".repeat(1_000), "the ".repeat(50), "=".repeat(4_000)] {
        for prompts in [&*QWEN, &*GEMMA] {
            let n_tokens = prompts.tokenizer().encode(&text, true).unwrap().len();
            assert!(n_tokens >= prompts.tokenizer().fewest_tokens(text.len()), "{:?}", &text[..9]);
        }
    }
}
