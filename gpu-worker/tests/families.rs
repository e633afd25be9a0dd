//! Tiny models of every family, in every layout, against what transformers answers with them in float32.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use candle_core::Device;
use common::{argmax, field, run_alone, same_bits};
use gpu_worker::forward::candle::CandleForward;
use gpu_worker::load::gguf::{LoadOptions, load};
use gpu_worker::load::{GgufHeader, ModelFolder};
use gpu_worker::model::ModelConfig;
use gpu_worker::text::Prompts;
use serde_json::{Value, json};

const FAMILIES: [&str; 6] = ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"];
/// Blocks that the longest prompt and its 64 greedy tokens take, to spare.
const N_BLOCKS: usize = 16;

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/families")
}

fn golden(family: &str) -> Value {
    serde_json::from_slice(&std::fs::read(families().join(format!("{family}.json"))).unwrap()).unwrap()
}

/// Expected logits, a row after each token of each prompt.
fn golden_logits(family: &str) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(families().join(format!("{family}.logits.safetensors"))).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let logits = file.tensor("logits").unwrap();
    let values: Vec<f32> = logits.data().as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect();
    values.chunks(logits.shape()[1]).map(<[f32]>::to_vec).collect()
}

fn from_folder(family: &str) -> CandleForward {
    let folder = ModelFolder::open(&families().join(family)).unwrap();
    let decoder = folder.load(&Device::Cpu, LoadOptions::default()).unwrap();
    CandleForward::from_decoder(decoder, N_BLOCKS).unwrap()
}

fn from_gguf(family: &str) -> CandleForward {
    let path = families().join(format!("{family}.gguf"));
    CandleForward::new(load(&path, &Device::Cpu, LoadOptions::default()).unwrap(), N_BLOCKS).unwrap()
}

/// Logits of every prompt within 1e-3 of the largest, however it is cut, and the same 64 greedy tokens.
fn agrees(what: &str, mut forward: CandleForward, family: &str) {
    let golden = golden(family);
    let prompts: Vec<Vec<u32>> = field(&golden, "/prompts");
    let expected = golden_logits(family);
    let mut rows = expected.iter();
    let mut worst = 0.0_f32;
    for prompt in &prompts {
        let whole = run_alone(&mut forward, prompt, prompt.len(), 0);
        let cut = run_alone(&mut forward, prompt, 7, 0);
        for (nth, (row, cut)) in whole.iter().zip(&cut).enumerate() {
            let expected = rows.next().unwrap();
            assert!(same_bits(row, cut), "{what}: row {nth} differs in chunks");
            let largest = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
            let off = row.iter().zip(expected).fold(0.0_f32, |most, (found, wanted)| most.max((found - wanted).abs()));
            assert!(off <= 1e-3 * largest, "{what}: row {nth} of {} is off by {off} of {largest}", prompt.len());
            worst = worst.max(off / largest);
        }
    }
    assert!(rows.next().is_none());
    let mut ids = prompts.last().unwrap().clone();
    let n_prompt = ids.len();
    let mut next = argmax(run_alone(&mut forward, &ids, ids.len(), ids.len() - 1).last().unwrap());
    let greedy: Vec<u32> = field(&golden, "/greedy");
    assert_eq!(greedy.len(), 64);
    for _ in 0..greedy.len() {
        ids.push(next);
        // From the start each time, in chunks of one block: what stands in the cache is what was computed.
        next = argmax(run_alone(&mut forward, &ids, 16, ids.len() - 1).last().unwrap());
    }
    assert_eq!(ids[n_prompt..], greedy, "{what}: greedy tokens");
    println!("{what}: largest difference {worst:.1e} of the largest logit; 64 greedy tokens equal");
}

#[test]
fn every_familys_folder_agrees_with_transformers() {
    for family in FAMILIES {
        agrees(&format!("{family} folder"), from_folder(family), family);
    }
}

#[test]
fn gguf_files_agree_with_transformers() {
    for family in FAMILIES {
        agrees(&format!("{family} GGUF"), from_gguf(family), family);
    }
}

fn ids_agree(what: &str, prompts: &Prompts, golden: &Value) {
    let tokenizer = prompts.tokenizer();
    for text in field::<Vec<Value>>(golden, "/texts") {
        let (written, ids, plain): (String, Vec<u32>, Vec<u32>) =
            (field(&text, "/text"), field(&text, "/ids"), field(&text, "/plain"));
        assert_eq!(tokenizer.encode(&written, true).unwrap(), plain, "{what}: {written:?}");
        assert_eq!(tokenizer.encode_prompt(&written, true).unwrap(), ids, "{what}, as a prompt: {written:?}");
    }
    match golden.get("chat") {
        None => assert!(prompts.template().is_none(), "{what} has no template"),
        Some(_) => {
            let chat = json!([{"role": "user", "content": "Say hello."}]);
            assert_eq!(
                prompts.chat(&chat, None, true).unwrap().ids,
                field::<Vec<u32>>(golden, "/chat"),
                "{what}: chat"
            );
        }
    }
}

#[test]
fn token_ids_are_those_of_the_hugging_face_tokenizers() {
    for family in FAMILIES {
        let folder = ModelFolder::open(&families().join(family)).unwrap();
        let (prompts, golden) = (Prompts::from_folder(&folder).unwrap(), golden(family));
        ids_agree(&format!("{family} folder"), &prompts, &golden);
        // Tokens that end a turn by their names are ours beside those that the files list.
        let (found, listed) = (prompts.tokenizer().eos_ids(), field::<Vec<u32>>(&golden, "/eos_ids"));
        assert!(listed.iter().all(|id| found.contains(id)), "{family}: {found:?} lack some of {listed:?}");
    }
    for family in FAMILIES {
        let mut file = std::io::BufReader::new(std::fs::File::open(families().join(format!("{family}.gguf"))).unwrap());
        let header = GgufHeader::read(&mut file).unwrap();
        let mut golden = golden(family);
        // Where GGUF cannot say what the folder says of spaces: what the tokenizer that it can describe gives.
        if let Some(texts) = golden.get("gguf_texts") {
            golden["texts"] = texts.clone();
        }
        ids_agree(&format!("{family} GGUF"), &Prompts::from_gguf(&header.metadata).unwrap(), &golden);
    }
}

/// The config of a family's folder after its `config.json` was changed.
fn changed(family: &str, change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Result<ModelConfig, String> {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(families().join(family)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    std::fs::write(&path, config.to_string()).unwrap();
    let config = ModelFolder::open(copy.path()).and_then(|folder| folder.config());
    config.map_err(|err| err.to_string())
}

#[test]
fn configs_as_older_libraries_wrote_them_describe_the_same_models() {
    for family in FAMILIES {
        let new = changed(family, |_| ()).unwrap();
        let old = changed(family, |config| {
            let rope = config.remove("rope_parameters").unwrap();
            config.remove("layer_types");
            if family == "gemma3" {
                let (full, sliding) = (&rope["full_attention"], &rope["sliding_attention"]);
                config.insert("rope_theta".into(), full["rope_theta"].clone());
                config.insert("rope_local_base_freq".into(), sliding["rope_theta"].clone());
                config.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": full["factor"]}));
                return;
            }
            let mut scaling = rope.as_object().unwrap().clone();
            config.insert("rope_theta".into(), scaling.remove("rope_theta").unwrap());
            let kind = scaling.remove("rope_type").unwrap();
            if kind != "default" {
                scaling.insert(if family == "phi3" { "type" } else { "rope_type" }.into(), kind);
                config.insert("rope_scaling".into(), scaling.into());
            }
        });
        assert_eq!(old.unwrap(), new, "{family}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_the_name_of_its_field() {
    type Change = fn(&mut serde_json::Map<String, Value>);
    let refusals: [(&str, Change, &str); 18] = [
        ("llama", |c| drop(c.insert("model_type".into(), json!("mamba"))), "\"mamba\" is not supported"),
        (
            "llama",
            |c| drop(c.insert("architectures".into(), json!(["LlamaForSequenceClassification"]))),
            "architectures",
        ),
        ("llama", |c| drop(c.remove("hidden_size")), "config.json:hidden_size"),
        ("llama", |c| drop(c.insert("hidden_size".into(), json!("64"))), "config.json:hidden_size"),
        ("llama", |c| drop(c.insert("hidden_size".into(), json!(-64))), "config.json:hidden_size"),
        ("llama", |c| drop(c.insert("num_hidden_layers".into(), json!(u32::MAX))), "n_layers"),
        ("llama", |c| drop(c.insert("vocab_size".into(), json!(385))), "config.json:vocab_size"),
        ("llama", |c| drop(c.insert("attention_bias".into(), json!(true))), "config.json:attention_bias"),
        ("llama", |c| drop(c.insert("hidden_act".into(), json!("relu"))), "config.json:hidden_act"),
        ("llama", |c| drop(c.insert("sliding_window".into(), json!(8))), "config.json:sliding_window"),
        ("llama", |c| drop(c.insert("partial_rotary_factor".into(), json!(0.5))), "config.json:partial_rotary_factor"),
        ("llama", |c| drop(c.insert("quantization_config".into(), json!({"quant_method": "gptq"}))), "gptq"),
        ("llama", |c| c["rope_parameters"]["rope_type"] = json!("yarn"), "config.json:rope_parameters.rope_type"),
        ("llama", |c| c["rope_parameters"]["high_freq_factor"] = json!(1), "high_freq_factor"),
        ("mistral", |c| drop(c.insert("num_local_experts".into(), json!(8))), "config.json:num_local_experts"),
        ("qwen3", |c| drop(c.remove("head_dim")), "config.json:head_dim"),
        ("gemma3", |c| drop(c.insert("final_logit_softcapping".into(), json!(30))), "final_logit_softcapping"),
        ("phi3", |c| c["rope_parameters"]["short_factor"] = json!([1.0]), "rope_divisors"),
    ];
    for (family, change, word) in refusals {
        let message = changed(family, change).unwrap_err();
        assert!(message.contains(word), "{family}: {message:?} does not name {word}");
    }
}

#[test]
fn windows_of_the_qwen_families_are_on_the_layers_that_the_config_names() {
    let windows = |change: fn(&mut serde_json::Map<String, Value>)| {
        let config = changed("qwen2", change).unwrap();
        config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    assert_eq!(windows(|c| drop(c.insert("sliding_window".into(), json!(32)))), [None; 3]);
    let switched_on = windows(|c| {
        c.extend([
            ("sliding_window".to_owned(), json!(32)),
            ("use_sliding_window".to_owned(), json!(true)),
            ("max_window_layers".to_owned(), json!(2)),
        ]);
        c.remove("layer_types");
    });
    assert_eq!(switched_on, [None, None, Some(32)]);
}
