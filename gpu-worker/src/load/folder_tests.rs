//! Folders that are wrong, by accident or on purpose: an error that names the file, and never a panic.

use std::path::{Path, PathBuf};

use candle_core::Device;
use tempfile::TempDir;

use super::weights::LoadOptions;
use super::{LoadError, ModelFolder, folder};
use crate::text::Prompts;

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/families").join(family)
}

/// A copy that may be spoilt.
fn copy(family: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(family)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// Everything that is done to a folder before it is served.
fn load(path: &Path) -> Result<(), LoadError> {
    let folder = ModelFolder::open(path)?;
    folder.load(&Device::Cpu, LoadOptions::default())?;
    Prompts::from_folder(&folder)?;
    Ok(())
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} is in {}", path.display());
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

fn refused(folder: &TempDir, words: &[&str]) {
    let err = load(folder.path()).expect_err(words[0]).to_string();
    assert!(words.iter().all(|word| err.contains(word)), "{err:?} does not hold {words:?}");
}

/// A safetensors file with this header and these bytes behind it.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn files_that_are_missing_are_named() {
    for (family, file) in [
        ("llama", "config.json"),
        ("llama", "model.safetensors"),
        ("llama", "tokenizer.json"),
        ("qwen2", "model-00002-of-00002.safetensors"),
    ] {
        let folder = copy(family);
        std::fs::remove_file(folder.path().join(file)).unwrap();
        refused(&folder, &[file, "is missing"]);
    }
    let folder = copy("qwen2");
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    refused(&folder, &["model.safetensors", "model.safetensors.index.json"]);
    // A folder in a file's place.
    std::fs::create_dir(folder.path().join("model.safetensors.index.json")).unwrap();
    refused(&folder, &["model.safetensors.index.json", "cannot be read"]);
}

#[test]
fn an_index_cannot_lead_out_of_the_folder_or_disagree_with_the_files() {
    let second = "\"model-00002-of-00002.safetensors\"";
    for path in ["\"../secret.safetensors\"", "\"/etc/passwd\"", "\"a/b.safetensors\"", "\".safetensors\"", "\"\"", "7"]
    {
        let folder = copy("qwen2");
        replace(&folder.path().join("model.safetensors.index.json"), second, path);
        refused(&folder, &["model.safetensors.index.json", "not a .safetensors file of the folder"]);
    }
    let folder = copy("qwen2");
    replace(&folder.path().join("model.safetensors.index.json"), second, "\"gone.safetensors\"");
    refused(&folder, &["gone.safetensors", "is missing"]);
    let folder = copy("qwen2");
    replace(&folder.path().join("model.safetensors.index.json"), second, "\"model-00001-of-00002.safetensors\"");
    refused(&folder, &["does not place there"]);
    let folder = copy("qwen2");
    std::fs::write(folder.path().join("model.safetensors.index.json"), "{}").unwrap();
    refused(&folder, &["weight_map"]);
}

#[test]
#[cfg(unix)]
fn no_file_of_a_folder_may_be_a_link_out_of_it() {
    for (family, file) in [
        ("llama", "config.json"),
        ("llama", "generation_config.json"),
        ("llama", "model.safetensors"),
        ("llama", "tokenizer.json"),
        ("llama", "tokenizer_config.json"),
        ("qwen2", "chat_template.jinja"),
        ("qwen2", "model.safetensors.index.json"),
        ("qwen2", "model-00002-of-00002.safetensors"),
    ] {
        let (folder, outside) = (copy(family), copy(family));
        let path = folder.path().join(file);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(outside.path().join(file), &path).unwrap();
        refused(&folder, &[file, "leads out of the folder"]);
        let err = folder::deciding_files(folder.path()).unwrap_err().to_string();
        assert!(err.contains("leads out of the folder"), "{file} is not hashed either: {err}");
        // The same file under another name of the folder is what is meant to be linked.
        std::fs::remove_file(&path).unwrap();
        std::fs::copy(outside.path().join(file), folder.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        load(folder.path()).unwrap();
    }
}

#[test]
fn weights_cut_anywhere_give_an_error() {
    let folder = copy("mistral");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for end in (0..bytes.len()).step_by(bytes.len() / 61) {
        std::fs::write(&path, &bytes[..end]).unwrap();
        let err = load(folder.path()).expect_err("a cut file was loaded");
        assert!(matches!(err, LoadError::Truncated { .. }), "cut at {end}: {err}");
    }
}

#[test]
fn weights_that_shrink_after_their_check_are_an_error() {
    let copy = copy("mistral");
    let folder = ModelFolder::open(copy.path()).unwrap();
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(folder.load(&Device::Cpu, LoadOptions::default()).is_err());
}

#[test]
fn headers_that_lie_give_an_error() {
    let folder = copy("llama");
    let path = folder.path().join("model.safetensors");
    let entry = |dtype: &str, shape: &str, start: u64, end: u64| {
        format!(r#"{{"a": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{start}, {end}]}}}}"#)
    };
    for (what, bytes) in [
        ("a length of 2^64 - 1", [u64::MAX.to_le_bytes().to_vec(), vec![0; 64]].concat()),
        ("no JSON", safetensors("{", &[])),
        ("a list", safetensors("[]", &[])),
        ("deep JSON", safetensors(&"[".repeat(100_000), &[])),
        ("longer than its shape", safetensors(&entry("F32", "[2]", 0, 12), &[0; 12])),
        ("beginning in the middle", safetensors(&entry("F32", "[2]", 4, 12), &[0; 12])),
        ("ending before it begins", safetensors(&entry("F32", "[2]", 8, 0), &[0; 12])),
        ("a product over 2^64", safetensors(&entry("F32", "[4294967296, 4294967296, 4]", 0, 8), &[0; 8])),
        ("behind the end", safetensors(&entry("F32", "[1000]", 0, 4000), &[0; 8])),
        ("no dimensions", safetensors(&entry("F32", "[]", 0, 4), &[0; 4])),
        ("five dimensions", safetensors(&entry("F32", "[1, 1, 1, 1, 1]", 0, 4), &[0; 4])),
        ("a dimension of 0", safetensors(&entry("F32", "[0]", 0, 0), &[])),
        ("integers", safetensors(&entry("I64", "[1]", 0, 8), &[0; 8])),
        ("no tensors", safetensors("{}", &[])),
    ] {
        std::fs::write(&path, bytes).unwrap();
        assert!(load(folder.path()).is_err(), "{what}");
    }
}

#[test]
fn tensors_of_the_wrong_shape_or_name_are_named() {
    let spoil = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len(), "offsets stay right");
        let folder = copy("llama");
        let path = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(path, bytes).unwrap();
        folder
    };
    refused(&spoil("layers.1.mlp.up_proj.weight", "layers.1.mlp.up_prok.weight"), &["layers.1.mlp.up_proj.weight"]);
    refused(&spoil("model.norm.weight", "model.morm.weight"), &["model.norm.weight", "missing"]);
    let folder = copy("llama");
    replace(&folder.path().join("config.json"), "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
    refused(&folder, &["model.layers.2.", "has no place"]);
    let folder = copy("llama");
    replace(&folder.path().join("config.json"), "\"intermediate_size\": 96", "\"intermediate_size\": 95");
    refused(&folder, &["mlp.gate_proj.weight"]);
    let folder = copy("qwen3");
    replace(&folder.path().join("config.json"), "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    refused(&folder, &["lm_head.weight", "missing"]);
}

#[test]
fn tokenizers_that_would_give_other_ids_are_refused_by_the_part_that_would() {
    for (family, from, to, word) in [
        ("llama", r#""type": "BPE""#, r#""type": "Unigram""#, "model.type"),
        ("llama", r#""dropout": null"#, r#""dropout": 0.5"#, "model.dropout"),
        ("llama", r#""normalizer": null"#, r#""normalizer": {"type": "Lowercase"}"#, "Lowercase"),
        ("llama", r#""add_prefix_space": false"#, r#""add_prefix_space": true"#, "pre_tokenizer"),
        ("llama", r#""single_word": false"#, r#""single_word": true"#, "single_word"),
        ("llama", r#""id": 368"#, r#""id": 4194304"#, "without an id below"),
        ("llama", r#""id": 368"#, r#""id": 3"#, "the id 3"),
        ("llama", r#""!": 0"#, r#""!!!!": 0"#, "0x21"),
        ("llama", r#""type": "TemplateProcessing""#, r#""type": "BertProcessing""#, "post_processor"),
        ("mistral", r#""split": false"#, r#""split": true"#, "Metaspace"),
        ("mistral", r#""<0x41>""#, r#""<0xZZ>""#, "0x41"),
    ] {
        let folder = copy(family);
        replace(&folder.path().join("tokenizer.json"), from, to);
        refused(&folder, &["tokenizer.json", word]);
    }
    for (file, text, word) in [
        ("tokenizer.json", "{}", "model"),
        ("tokenizer.json", "[", "not JSON"),
        ("tokenizer_config.json", r#"{"eos_token": "gone"}"#, "eos_token"),
        ("tokenizer_config.json", r#"{"chat_template": "{% if %}"}"#, "chat template"),
        ("chat_template.jinja", "{% for %}", "chat_template.jinja"),
        ("generation_config.json", r#"{"eos_token_id": [1, 4000]}"#, "generation_config.json:eos_token_id"),
        ("generation_config.json", r#"{"eos_token_id": "a"}"#, "generation_config.json:eos_token_id"),
        ("generation_config.json", r#"{"eos_token_id": [1, -1]}"#, "generation_config.json:eos_token_id"),
        ("generation_config.json", r#"{"eos_token_id": [1.5]}"#, "generation_config.json:eos_token_id"),
    ] {
        let folder = copy("llama");
        std::fs::write(folder.path().join(file), text).unwrap();
        refused(&folder, &[file, word]);
    }
}

#[test]
fn normalizers_that_are_written_as_a_sequence_are_the_same_ones() {
    let text = "e\u{301} naïve";
    let ids = |path: &Path| {
        Prompts::from_folder(&ModelFolder::open(path).unwrap()).unwrap().tokenizer().encode(text, false).unwrap()
    };
    for (family, from, to) in [
        ("llama", r#""normalizer": null"#, r#""normalizer": {"type": "Sequence", "normalizers": []}"#),
        ("qwen2", r#""type": "NFC""#, r#""type": "Sequence", "normalizers": [{"type": "NFC"}]"#),
    ] {
        let folder = copy(family);
        replace(&folder.path().join("tokenizer.json"), from, to);
        assert_eq!(ids(folder.path()), ids(&fixture(family)), "{family}");
    }
    assert_ne!(ids(&fixture("llama")), ids(&fixture("qwen2")), "only one of them composes");
}

#[test]
fn only_files_that_decide_answers_are_listed() {
    let copy = copy("qwen2");
    std::fs::write(copy.path().join("README.md"), "nothing").unwrap();
    std::fs::write(copy.path().join("other.safetensors"), "nothing").unwrap();
    let listed = folder::deciding_files(copy.path()).unwrap();
    let expected = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(listed, expected);
}
