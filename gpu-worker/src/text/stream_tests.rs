//! Streams: whatever the split into tokens, the same text; nothing of a stop string, nothing lost before it.

use std::{
    io::Cursor,
    sync::{Arc, LazyLock},
};

use proptest::prelude::*;

use super::{Delta, StopHit, TextStream, TextTokenizer, bytes, golden_tests::QWEN};
use crate::load::{GgufHeader, gguf_writer::GgufWriter};

/// Ids: 0 to 255 the bytes, 256 the control token `<|end|>`.
pub(crate) static BYTES: LazyLock<Arc<TextTokenizer>> = LazyLock::new(|| {
    let mut alphabet: Vec<(u8, char)> = bytes::alphabet().collect();
    alphabet.sort_unstable();
    let alphabet: Vec<String> = alphabet.into_iter().map(|(_, character)| character.to_string()).collect();
    let mut tokens: Vec<&str> = alphabet.iter().map(String::as_str).collect();
    tokens.push("<|end|>");
    let mut types = vec![1; 256];
    types.push(3);
    let file = GgufWriter::new()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &[]);
    let header = GgufHeader::read(&mut Cursor::new(file.bytes())).unwrap();
    Arc::new(TextTokenizer::from_gguf(&header.metadata).unwrap())
});

fn stream(stops: &[&str]) -> TextStream {
    let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
    TextStream::new(BYTES.clone(), stops, false, true)
}

/// Feeds all bytes, a token each; every delta, the rest, and the stop.
fn feed(mut stream: TextStream, text: &[u8]) -> (Vec<String>, Option<StopHit>) {
    let mut deltas = Vec::new();
    let mut stop = None;
    for byte in text {
        let delta = stream.push(u32::from(*byte));
        deltas.push(delta.text);
        stop = stop.or(delta.stop);
    }
    deltas.push(stream.finish());
    (deltas, stop)
}

fn whole(stops: &[&str], text: &str) -> (String, Option<usize>) {
    let (deltas, stop) = feed(stream(stops), text.as_bytes());
    (deltas.concat(), stop.map(|hit| hit.which))
}

#[test]
fn characters_leave_whole() {
    let (deltas, _) = feed(stream(&[]), "é👩‍👧".as_bytes());
    let shown: Vec<&str> = deltas.iter().map(String::as_str).filter(|delta| !delta.is_empty()).collect();
    assert_eq!(shown, ["é", "👩", "\u{200d}", "👧"]);
}

#[test]
fn broken_bytes_show_as_soon_as_they_are_surely_broken() {
    let mut stream = stream(&[]);
    assert_eq!(stream.push(0xf0).text, "");
    assert_eq!(stream.push(0x9f).text, "");
    assert_eq!(stream.push(u32::from(b'a')).text, "\u{fffd}a");
    assert_eq!(stream.push(0xff).text, "\u{fffd}");
    assert_eq!(stream.push(0xe2).text, "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

#[test]
fn control_tokens_are_shown_only_when_asked_for() {
    let mut hidden = stream(&[]);
    assert_eq!(hidden.push(256), Delta::default());
    let mut shown = TextStream::new(BYTES.clone(), Vec::new(), false, false);
    assert_eq!(shown.push(256).text, "<|end|>");
    // A hidden one does not break a character, an unknown id adds nothing.
    assert_eq!(hidden.push(0xc3).text, "");
    assert_eq!(hidden.push(256).text, "");
    assert_eq!(hidden.push(9_999).text, "");
    assert_eq!(hidden.push(0xa9).text, "é");
}

#[test]
fn text_ends_before_the_first_stop() {
    assert_eq!(whole(&["\n\n"], "one\ntwo\n\nthree"), ("one\ntwo".into(), Some(0)));
    assert_eq!(whole(&["END", "NOW"], "go NOW END"), ("go ".into(), Some(1)));
    assert_eq!(whole(&["aab"], "aaaab"), ("aa".into(), Some(0)));
    assert_eq!(whole(&["ababc"], "abababc!"), ("ab".into(), Some(0)));
    assert_eq!(whole(&["語", "日本"], "日本語"), ("".into(), Some(1)));
    // "bc" is complete before "abcd" can be.
    assert_eq!(whole(&["abcd", "bc"], "abcd"), ("a".into(), Some(1)));
    // Both end here: the one that began first.
    assert_eq!(whole(&["bc", "abc"], "xabc"), ("x".into(), Some(1)));
    assert_eq!(whole(&[""], "text"), ("text".into(), None));
    assert_eq!(whole(&["\u{fffd}"], "text"), ("text".into(), None));
}

#[test]
fn beginnings_of_stops_are_held_and_not_lost() {
    let mut stream = stream(&["<|user|>", "<|u"]);
    assert_eq!(stream.push(u32::from(b'<')).text, "");
    assert_eq!(stream.push(u32::from(b'|')).text, "");
    assert_eq!(stream.push(u32::from(b'x')).text, "<|x");
    assert_eq!(stream.push(u32::from(b'<')).text, "");
    assert_eq!(stream.finish(), "<");
}

#[test]
fn an_included_stop_ends_the_text() {
    let mut stream = TextStream::new(BYTES.clone(), vec!["ab".into()], true, true);
    assert_eq!(stream.push(u32::from(b'a')), Delta::default());
    let delta = stream.push(u32::from(b'b'));
    assert_eq!(delta, Delta { text: "ab".into(), stop: Some(StopHit { which: 0 }) });
    assert!(stream.is_stopped());
    assert_eq!(stream.push(u32::from(b'c')), Delta::default());
    assert_eq!(stream.finish(), "");
}

#[test]
fn stops_that_begin_before_min_tokens_do_not_count() {
    let mut stream = stream(&["aa"]);
    assert_eq!(stream.push_ignoring_stops(u32::from(b'a')).text, "a");
    assert_eq!(stream.push_ignoring_stops(u32::from(b'a')).text, "a");
    assert_eq!(stream.push(u32::from(b'a')), Delta::default());
    assert_eq!(stream.push(u32::from(b'a')).stop, Some(StopHit { which: 0 }));
}

/// The definition: of all occurrences the one that ends first, and of those the one that began first.
fn reference(text: &str, stops: &[String]) -> (String, Option<usize>) {
    let ends = stops
        .iter()
        .enumerate()
        .filter(|(_, stop)| !stop.is_empty())
        .filter_map(|(which, stop)| text.find(stop.as_str()).map(|start| (start + stop.len(), start, which)));
    match ends.min() {
        Some((_, start, which)) => (text[..start].to_owned(), Some(which)),
        None => (text.to_owned(), None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Few letters, so that stops overlap themselves and each other; real tokens of the Qwen file cut by chance.
    #[test]
    fn any_split_gives_the_text_before_the_first_stop(
        text in "[abé😀\n ]{0,40}",
        stops in prop::collection::vec("[abé😀\n ]{0,4}", 0..4),
    ) {
        let (want, which) = reference(&text, &stops);
        for (tokenizer, ids) in [
            (BYTES.clone(), text.bytes().map(u32::from).collect()),
            (QWEN.tokenizer().clone(), QWEN.tokenizer().encode(&text, false).unwrap()),
        ] {
            // NFC leaves these texts as they are.
            let mut stream = TextStream::new(tokenizer, stops.clone(), false, true);
            let mut shown = String::new();
            let mut stop = None;
            for id in &ids {
                let delta = stream.push(*id);
                shown.push_str(&delta.text);
                prop_assert!(want.starts_with(&shown), "{shown:?} shows more than {want:?}");
                stop = stop.or(delta.stop);
            }
            shown.push_str(&stream.finish());
            prop_assert_eq!(&shown, &want);
            let same_start = |a: usize, b: usize| stops[a] == stops[b];
            let agree = match (stop, which) {
                (Some(hit), Some(which)) => same_start(hit.which, which),
                (None, None) => true,
                _ => false,
            };
            prop_assert!(agree, "{stop:?} where {which:?} was due");
        }
    }

    /// Bytes that are no text: the joined deltas are what decoding all of them at once gives.
    #[test]
    fn any_bytes_stream_to_their_lossy_text(noise in prop::collection::vec(any::<u8>(), 0..60)) {
        let (deltas, _) = feed(stream(&[]), &noise);
        prop_assert_eq!(deltas.concat(), String::from_utf8_lossy(&noise));
        let ids: Vec<u32> = noise.iter().copied().map(u32::from).collect();
        prop_assert_eq!(BYTES.decode(&ids, true), String::from_utf8_lossy(&noise));
    }
}
