//! Compares the tokenizer built from a GGUF file with a family's own `tokenizer.json`, on generated texts of many
//! scripts: `cargo run --release -p gpu-worker --example compare_tokenizer -- MODEL.gguf TOKENIZER.json [N_TEXTS]`.
//!
//! Prints how many of the texts have the same ids in both, the first few that have not, and the time it took to build
//! the tokenizer. Exit status 1 when any differs.

use std::{env, error::Error, fs::File, process::ExitCode, time::Instant};

use gpu_worker::{load::GgufHeader, text::TextTokenizer};
use tokenizers::Tokenizer;

/// Ranges of code points that texts are drawn from, one script or kind each.
const SCRIPTS: &[(u32, u32)] = &[
    (0x61, 0x7a),
    (0x41, 0x5a),
    (0x30, 0x39),
    (0x21, 0x2f),
    (0x3a, 0x40),
    (0x5b, 0x60),
    (0x20, 0x20),
    (0x09, 0x0d),
    (0xa0, 0xff),
    (0x100, 0x24f),
    (0x250, 0x2af),
    (0x300, 0x36f),
    (0x370, 0x3ff),
    (0x400, 0x4ff),
    (0x531, 0x58a),
    (0x5d0, 0x5ea),
    (0x620, 0x6ff),
    (0x900, 0x97f),
    (0x980, 0x9ff),
    (0xb80, 0xbff),
    (0xe01, 0xe5b),
    (0x10a0, 0x10ff),
    (0x1100, 0x11ff),
    (0x1e00, 0x1fff),
    (0x2000, 0x206f),
    (0x20a0, 0x20bf),
    (0x2190, 0x22ff),
    (0x2500, 0x25ff),
    (0x2581, 0x2581),
    (0x3000, 0x30ff),
    (0x4e00, 0x9fff),
    (0xac00, 0xd7a3),
    (0xfb00, 0xfb06),
    (0xff00, 0xffef),
    (0x1d400, 0x1d7ff),
    (0x1f300, 0x1faff),
    (0x20000, 0x2a6df),
];

/// Words and fragments that real texts are full of, and that tokenizers stumble over.
const WORDS: &[&str] = &[
    " the ",
    "hello",
    " world",
    "I'm",
    "don't",
    "WE'LL",
    "it's",
    "'s",
    "ſ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    "\t",
    "\t\t",
    " \n ",
    "    return x;",
    "fn main() {",
    "}",
    "==",
    "!=",
    "->",
    "::",
    "1234567890",
    "3.14",
    "1,000",
    "٣٤٥",
    "नमस्ते",
    "привет",
    "Γειά",
    "שלום",
    "مرحبا",
    "你好",
    "こんにちは",
    "안녕하세요",
    "สวัสดี",
    "xin chào",
    "👩‍👩‍👧‍👦",
    "🇨🇭",
    "é",
    "e\u{301}",
    "Å",
    "A\u{30a}",
    "\u{1100}\u{1161}\u{11a8}",
    "ﬁ",
    "½",
    "²",
    "…",
    "—",
    "“”",
    "▁",
    "▁▁",
    "<b>",
    "</b>",
    "<h1>",
    "<table>",
    "<|not_a_token|>",
    "<tool_call>",
    "[multimodal]",
    "\u{0}",
    "\u{7f}",
    "\u{200b}",
    "\u{feff}",
    "\u{fffd}",
    "https://example.org/a?b=c&d=%20",
    "user@example.org",
    "snake_case",
    "CamelCase",
];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let usage = "usage: compare_tokenizer MODEL.gguf TOKENIZER.json [N_TEXTS]";
    let (model, reference) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let n_texts: usize = args.next().map_or(Ok(20_000), |count| count.parse())?;

    let header = GgufHeader::read(&mut File::open(model)?)?;
    let started = Instant::now();
    let ours = TextTokenizer::from_gguf(&header.metadata)?;
    println!("built from the GGUF file in {:.0?}", started.elapsed());
    let mut theirs = Tokenizer::from_file(reference).map_err(|err| err.to_string())?;
    // Special tokens written out in the text stay text, as with `parse_special = false`.
    theirs.set_encode_special_tokens(true);

    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut n_same, mut n_shown, mut n_tokens) = (0, 0, 0);
    for _ in 0..n_texts {
        let text = random.text();
        let got = ours.encode(&text, false)?;
        let want = theirs.encode_fast(text.as_str(), false).map_err(|err| err.to_string())?;
        n_tokens += want.len();
        if got == want.get_ids() {
            n_same += 1;
        } else if n_shown < 10 {
            n_shown += 1;
            println!("differs: {text:?}\n  ours   {got:?}\n  theirs {:?}", want.get_ids());
        }
    }
    println!("{n_same} of {n_texts} texts have equal ids ({n_tokens} tokens)");
    Ok(if n_same == n_texts { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A small fixed generator (xorshift), so that every run draws the same texts.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    /// Up to 40 fragments: words from the list, and runs of one script.
    fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..=self.below(40) {
            if self.below(2) == 0 {
                text.push_str(WORDS[self.below(WORDS.len())]);
                continue;
            }
            let (first, last) = SCRIPTS[self.below(SCRIPTS.len())];
            for _ in 0..=self.below(8) {
                let code = first + self.below((last - first + 1) as usize) as u32;
                text.extend(char::from_u32(code));
            }
        }
        text
    }
}
