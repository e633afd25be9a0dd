//! Shared by the tests that run real models: finding the files, reading the golden data, driving a model by hand.
#![allow(dead_code, clippy::unwrap_used, reason = "each test program uses its own part")]

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gpu_worker::engine::plan::{Forward, Logits, StepPlan};
use gpu_worker::forward::{candle::CandleForward, push_span};
use gpu_worker::load::GgufHeader;
use gpu_worker::load::gguf::{LoadOptions, load};
use gpu_worker::text::TextTokenizer;

pub const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m";
pub const GEMMA: &str = "gemma-3-270m-q4_k_m";

/// Blocks in the cache of the shared models: 2,560 tokens.
pub const N_BLOCKS: usize = 160;

/// The file of a model of the catalogue.
///
/// # Panics
/// If it has not been fetched.
pub fn model_path(name: &str) -> PathBuf {
    let cache = std::env::var_os("PENSTOCK_CACHE").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME is set");
        PathBuf::from(home).join(".cache/penstock")
    });
    let path = cache.join("models").join(format!("{name}.gguf"));
    assert!(path.is_file(), "model {name} is missing: run tests/run, or penstock model pull {name}");
    path
}

/// A model loaded afresh.
pub fn fresh(name: &str, n_blocks: usize) -> CandleForward {
    let model = load(&model_path(name), &candle_core::Device::Cpu, LoadOptions::default()).unwrap();
    CandleForward::new(model, n_blocks).unwrap()
}

/// The Qwen model, loaded once for a test program; its tests take turns.
pub fn qwen() -> MutexGuard<'static, CandleForward> {
    static MODEL: OnceLock<Mutex<CandleForward>> = OnceLock::new();
    lock(MODEL.get_or_init(|| Mutex::new(fresh(QWEN, N_BLOCKS))))
}

/// The Gemma model, loaded once for a test program; its tests take turns.
pub fn gemma() -> MutexGuard<'static, CandleForward> {
    static MODEL: OnceLock<Mutex<CandleForward>> = OnceLock::new();
    lock(MODEL.get_or_init(|| Mutex::new(fresh(GEMMA, N_BLOCKS))))
}

fn lock(model: &'static Mutex<CandleForward>) -> MutexGuard<'static, CandleForward> {
    // A test that failed leaves nothing behind that another one reads: each writes its own cache before it reads.
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of `fixtures/golden`, as text.
pub fn golden_text(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/golden").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// The records of a golden JSONL file.
pub fn golden(file: &str) -> Vec<serde_json::Value> {
    golden_text(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A field of a golden record, in the type that is asked for.
pub fn field<T: serde::de::DeserializeOwned>(record: &serde_json::Value, path: &str) -> T {
    let value = record.pointer(path).unwrap_or_else(|| panic!("{path} is missing in {}", record["name"]));
    serde_json::from_value(value.clone()).unwrap()
}

/// Blocks for `n_tokens`, far apart and out of order, so that a table that is not followed shows. Sequences with
/// different `seat` below `n_seats` share none.
pub fn scattered_blocks(n_tokens: usize, seat: usize, n_seats: usize) -> Vec<u32> {
    let n_blocks = n_tokens.div_ceil(16);
    assert!(n_blocks * n_seats <= N_BLOCKS, "the shared cache is too small");
    (0..n_blocks).rev().map(|block| (block * n_seats + seat) as u32).collect()
}

/// Logits after each token of `ids` from `first_wanted` on, the prompt fed in chunks of `chunk` tokens.
pub fn run_alone(forward: &mut CandleForward, ids: &[u32], chunk: usize, first_wanted: usize) -> Vec<Vec<f32>> {
    let blocks = scattered_blocks(ids.len(), 0, 1);
    let mut rows = Vec::new();
    for start in (0..ids.len()).step_by(chunk) {
        let end = ids.len().min(start + chunk);
        let mut plan = StepPlan::default();
        let wanted = first_wanted.clamp(start, end) - start..end - start;
        let n_wanted = wanted.len();
        push_span(&mut plan, &ids[start..end], start, &blocks, wanted);
        let logits = forward.step(&plan).unwrap();
        rows.extend((0..n_wanted).map(|row| logits.row(row).to_vec()));
    }
    rows
}

/// Index of the greatest logit.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// True where both rows have the same bits.
pub fn same_bits(left: &[f32], right: &[f32]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(l, r)| l.to_bits() == r.to_bits())
}

/// All rows of a step's logits.
pub fn rows(logits: &Logits, n: usize) -> Vec<Vec<f32>> {
    (0..n).map(|row| logits.row(row).to_vec()).collect()
}

/// The tokenizer in a model's file.
pub fn tokenizer(name: &str) -> TextTokenizer {
    let mut file = std::io::BufReader::new(std::fs::File::open(model_path(name)).unwrap());
    TextTokenizer::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap()
}
