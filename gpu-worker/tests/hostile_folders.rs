//! Model folders that are wrong in thousands of ways: each is refused with a message that says where, or is a model that
//! can be loaded and prompted. Never a panic, and never the memory that a file only claims to need.
//!
//! A program of its own, so that what it takes of the address space is its own too.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use candle_core::Device;
use gpu_worker::load::gguf::LoadOptions;
use gpu_worker::load::{LoadError, ModelFolder};
use gpu_worker::text::Prompts;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

const FAMILIES: [&str; 6] = ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"];
const CASES: u32 = 3_000;
/// Far above what a folder of this size takes with its threads, and far below what a lie about a size would.
const MAX_GROWTH_KIB: u64 = 1 << 20;

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/families").join(family)
}

/// What is put in a value's place.
fn hostile(nth: usize) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(7),
        json!(65_537),
        json!(4_194_303),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e-300),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("../../etc/passwd"),
        json!("a".repeat(100_000)),
        json!([]),
        json!([u64::MAX, -1, 0.5]),
        json!(["", "a"]),
        json!({}),
        json!({"type": "Sequence", "pretokenizers": [], "normalizers": [], "processors": []}),
        json!({"type": "Split", "pattern": {"Regex": "(((a*)*)*)*(?=b)\\1"}, "behavior": "Isolated", "invert": true}),
    ];
    values[nth % values.len()].clone()
}

/// Pointers to every value, of long objects and arrays to the first and the last few.
fn pointers(value: &Value, path: &str, found: &mut Vec<String>) {
    const ENDS: usize = 12;
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(nth, value)| (nth.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (nth, (name, child)) in children.iter().enumerate() {
        if nth < ENDS || nth + ENDS >= children.len() {
            let path = format!("{path}/{name}");
            pointers(child, &path, found);
            found.push(path);
        }
    }
}

/// One thing that is done to a file.
#[derive(Debug, Clone)]
enum Edit {
    Replace { at: Index, with: usize },
    Remove { at: Index },
    Byte { at: Index, byte: u8 },
    Cut { at: Index },
}

fn edits() -> impl Strategy<Value = Vec<(Index, Edit)>> {
    let edit = prop_oneof![
        6 => (any::<Index>(), any::<usize>()).prop_map(|(at, with)| Edit::Replace { at, with }),
        2 => any::<Index>().prop_map(|at| Edit::Remove { at }),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte { at, byte }),
        1 => any::<Index>().prop_map(|at| Edit::Cut { at }),
    ];
    prop::collection::vec((any::<Index>(), edit), 1..4)
}

/// Applies an edit to the bytes of a JSON file.
fn spoil(bytes: &mut Vec<u8>, edit: &Edit) {
    match edit {
        _ if bytes.is_empty() => {}
        Edit::Byte { at, byte } => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Edit::Cut { at } => bytes.truncate(at.index(bytes.len())),
        Edit::Replace { at, .. } | Edit::Remove { at } => {
            // An earlier edit may have left no JSON.
            let Ok(mut file) = serde_json::from_slice::<Value>(bytes) else { return };
            let mut all = vec![String::new()];
            pointers(&file, "", &mut all);
            let path = at.get(&all);
            match (edit, path.rsplit_once('/')) {
                (Edit::Replace { with, .. }, _) => *file.pointer_mut(path).unwrap() = hostile(*with),
                (_, Some((parent, name))) => match file.pointer_mut(parent).unwrap() {
                    Value::Object(fields) => drop(fields.remove(&name.replace("~1", "/").replace("~0", "~"))),
                    Value::Array(items) => drop(items.remove(name.parse().unwrap())),
                    _ => unreachable!("only objects and arrays have children"),
                },
                (_, None) => file = json!({}),
            }
            *bytes = file.to_string().into_bytes();
        }
    }
}

/// Writes the family's folder with one of its files after each edit.
fn write_spoilt(family: &str, edits: &[(Index, Edit)], folder: &Path) {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(fixture(family))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    for (which, edit) in edits {
        let at = which.index(files.len());
        let (name, bytes) = &mut files[at];
        if !name.ends_with(".safetensors") || bytes.len() < 8 {
            spoil(bytes, edit);
            continue;
        }
        // Of weights, the header.
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let end = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(8).min(bytes.len());
        let mut header = bytes[8..end].to_vec();
        spoil(&mut header, edit);
        let length = (header.len() as u64).to_le_bytes();
        *bytes = [&length, header.as_slice(), &bytes[end..]].concat();
    }
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

/// Everything that is done to a folder before and while it is served.
fn serve(path: &Path) -> Result<(), LoadError> {
    let folder = ModelFolder::open(path)?;
    let config = folder.config()?;
    config.validate().expect("a config that was read is valid");
    let decoder = folder.load(&Device::Cpu, LoadOptions::default())?;
    assert_eq!(decoder.layers.len(), config.n_layers());
    let prompts = Prompts::from_folder(&folder)?;
    let tokenizer = prompts.tokenizer();
    for text in ["Hello, wörld 漢字 <|im_end|>  \r\n\t1234 don't", ""] {
        for special in [false, true] {
            // A pattern that cannot be matched in bounded time is a message too.
            if let Ok(ids) = tokenizer.encode_prompt(text, special) {
                assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
                tokenizer.decode(&ids, true);
            }
        }
    }
    let chat = json!([{"role": "user", "content": "Say hello."}]);
    if prompts.template().is_some() {
        // A template that gives up says so.
        let _refused = prompts.chat(&chat, None, true).map(|prompt| prompt.ids.len());
    }
    Ok(())
}

/// A message for a person: short, and with a file, a tensor or a field in it.
fn says_where(err: &LoadError) {
    let message = err.to_string();
    let places = [".json", ".safetensors", ".jinja", "tensor \"", "model_type", "architecture", "tokenizer"];
    assert!(places.iter().any(|place| message.contains(place)), "{message:?} says nowhere where");
    assert!(message.len() < 8_192, "{} bytes: {message:.200}", message.len());
}

/// Address space taken so far at its greatest.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    line.and_then(|line| line.split_whitespace().next()).map_or(0, |kib| kib.parse().unwrap())
}

#[test]
fn a_spoilt_folder_is_refused_with_a_place_or_can_be_served() {
    // What a sound folder takes, its threads among it, is taken before it is looked.
    for family in FAMILIES {
        serve(&fixture(family)).unwrap();
    }
    let before = peak_kib();
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let (served, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let cases = (prop::sample::select(FAMILIES.to_vec()), edits());
    let result = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(Default::default()),
    )
    .run(&cases, |(family, edits)| {
        let folder = tempfile::tempdir().unwrap();
        write_spoilt(family, &edits, folder.path());
        match serve(folder.path()) {
            Ok(()) => served.set(served.get() + 1),
            Err(err) => {
                says_where(&err);
                refused.set(refused.get() + 1);
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|err| panic!("{err}"));
    // Both kinds are reached often, or the edits would test little.
    println!("{} refused, {} served", refused.get(), served.get());
    assert!(
        refused.get() > CASES / 4 && served.get() > CASES / 20,
        "{} refused, {} served",
        refused.get(),
        served.get()
    );
    let growth = peak_kib() - before;
    assert!(growth < MAX_GROWTH_KIB, "the address space grew by {growth} KiB");
}
