//! What a person typed, a name or a path, as a file or folder that is there and is what it should be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};

use sha2::{Digest, Sha256};

use super::cache::{Cache, hex};
use super::catalogue::{self, ENTRIES, Entry};
use super::fetch::{Fetcher, SourceChoice, hash};
use super::progress::Progress;
use crate::suggest;

/// A model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedModel {
    /// The catalogue's name, the file's name without `.gguf`, or the folder's name.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// SHA-256 of the file as it is now, lower case; of a catalogue entry, the right one. Of a folder, the one over the
    /// lines that `sha256sum` prints of every file that decides its answers, sorted by their names.
    pub sha256: String,
}

/// What was typed.
#[derive(Debug)]
pub enum Named {
    /// A name of the catalogue.
    Known(&'static Entry),
    /// The path of a file.
    File(PathBuf),
    /// The path of a folder in the layout of the Hugging Face libraries.
    Folder(PathBuf),
}

/// Finds the model, fetching it where it is of the catalogue and not in the cache yet, and hashes it.
///
/// # Errors
/// Neither a known name nor a file; a folder that is no model, and holds not exactly one GGUF file; a damaged file in the cache; no source has it. The message says what to do.
pub async fn ensure(name_or_path: &str, progress: &Arc<Progress>) -> anyhow::Result<ResolvedModel> {
    match named(name_or_path)? {
        Named::File(path) => {
            let sha256 = hash(&path, &path.display().to_string(), progress).await?;
            let stem = path.file_stem().unwrap_or(path.as_os_str());
            Ok(ResolvedModel { name: stem.to_string_lossy().into_owned(), path, sha256 })
        }
        Named::Folder(path) => {
            // Not what was typed: `.` is no name.
            let whole = path.canonicalize().with_context(|| format!("{} cannot be read", path.display()))?;
            let name = whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned();
            let sha256 = hash_folder(&path, &name, progress).await?;
            Ok(ResolvedModel { name, path, sha256 })
        }
        Named::Known(entry) => {
            let name = entry.name.to_owned();
            let path = Cache::of_user().file(entry);
            if !path.is_file() {
                progress.say(&format!("fetching {name} ({})", crate::terminal::bytes(entry.bytes)));
                let path = Fetcher::of_user()?.pull(entry, SourceChoice::Auto, progress).await?;
                return Ok(ResolvedModel { name, path, sha256: entry.sha256.to_owned() });
            }
            let sha256 = hash(&path, &name, progress).await?;
            if sha256 != entry.sha256 {
                bail!(
                    "{} is damaged (sha256 {sha256}, expected {}): `penstock model pull {name}` fetches it again",
                    path.display(),
                    entry.sha256
                );
            }
            Ok(ResolvedModel { name, path, sha256 })
        }
    }
}

/// The checksum of a model folder: see [`ResolvedModel::sha256`].
///
/// # Errors
/// A folder that is no model, or a file of it that cannot be read.
pub async fn hash_folder(folder: &Path, name: &str, progress: &Arc<Progress>) -> anyhow::Result<String> {
    let mut listed = Sha256::new();
    for file in gpu_worker::load::folder::deciding_files(folder).with_context(|| folder.display().to_string())? {
        let sha256 = hash(&folder.join(&file), &format!("{name}/{file}"), progress).await?;
        listed.update(format!("{sha256}  {file}\n"));
    }
    Ok(hex(&listed.finalize()))
}

/// Tells a name from a path. A name of the catalogue is the entry even where a file is called so; `./NAME` is the file.
///
/// # Errors
/// As [`ensure`], of what can be said without reading the file.
pub fn named(name_or_path: &str) -> anyhow::Result<Named> {
    if let Some(entry) = catalogue::find(name_or_path) {
        return Ok(Named::Known(entry));
    }
    let path = Path::new(name_or_path);
    if path.join("config.json").is_file() {
        return Ok(Named::Folder(path.to_owned()));
    }
    if path.is_dir() {
        return only_gguf(path).map(Named::File);
    }
    if path.is_file() {
        return Ok(Named::File(path.to_owned()));
    }
    if path.extension().is_some_and(|end| end == "gguf") || path.components().count() > 1 {
        bail!("there is no file {name_or_path}");
    }
    Err(unknown(name_or_path))
}

/// The one GGUF file of a folder.
fn only_gguf(folder: &Path) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.is_file() && path.extension().is_some_and(|end| end == "gguf")).collect();
    match (files.pop(), files.len()) {
        (Some(file), 0) => Ok(file),
        (Some(_), more) => bail!("{} holds {} GGUF files: give the path of one", folder.display(), more + 1),
        (None, _) => {
            bail!("{} holds no GGUF file, and no config.json of a Hugging Face model either", folder.display())
        }
    }
}

/// The error for a name that is not in the catalogue.
pub fn unknown(name: &str) -> anyhow::Error {
    let near = suggest::nearest(name, ENTRIES.iter().map(|entry| entry.name));
    let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
    let known: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
    anyhow!(
        "no model is called {name:?}{near}; known: {}; the path of a GGUF file or of a Hugging Face folder works too",
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart_and_refusals_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my.model.gguf");
        std::fs::write(&file, b"x").unwrap();
        assert!(matches!(named(crate::model::DEFAULT).unwrap(), Named::Known(_)));
        assert!(matches!(named(file.to_str().unwrap()).unwrap(), Named::File(path) if path == file));
        let refusal = |typed: &str| named(typed).unwrap_err().to_string();
        let in_folder = folder.path().to_str().unwrap();
        assert!(matches!(named(in_folder).unwrap(), Named::File(path) if path == file));
        std::fs::write(folder.path().join("other.gguf"), b"x").unwrap();
        assert!(refusal(in_folder).contains("holds 2 GGUF files"));
        let empty = tempfile::tempdir().unwrap();
        assert!(refusal(empty.path().to_str().unwrap()).contains("holds no GGUF file"));
        std::fs::write(empty.path().join("config.json"), b"{}").unwrap();
        assert!(matches!(named(empty.path().to_str().unwrap()).unwrap(), Named::Folder(path) if path == empty.path()));
        assert!(refusal("gone.gguf").contains("there is no file gone.gguf"));
        let message = refusal("gemma-3-270m-q4");
        for part in ["did you mean gemma-3-270m-q4_k_m?", "qwen2.5-coder-0.5b-instruct-q4_k_m", "path of a GGUF file"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[tokio::test]
    async fn every_file_that_decides_answers_is_part_of_a_folders_checksum() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("my-model");
        std::fs::create_dir(&folder).unwrap();
        let write = |file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
        let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
        let deciding = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors.index.json",
            "one.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "two.safetensors",
        ];
        for file in deciding {
            write(file, if file.ends_with("index.json") { index } else { "{}" });
        }
        let checksum = async || {
            let model = ensure(folder.to_str().unwrap(), &Arc::new(Progress::silent())).await.unwrap();
            assert_eq!((model.name.as_str(), &model.path), ("my-model", &folder));
            model.sha256
        };
        let first = checksum().await;
        // `sha256sum chat_template.jinja config.json … two.safetensors | sha256sum`, of these very files.
        assert_eq!(first, "670ebf0a733a2d7ad8ac558451d2434aeee502b38a6a6c5772bdeb27e487de01");
        write("README.md", "not read");
        assert_eq!(checksum().await, first);
        for file in deciding {
            write(file, &if file.ends_with("index.json") { format!("{index} ") } else { "{} ".to_owned() });
            assert_ne!(checksum().await, first, "{file}");
            write(file, if file.ends_with("index.json") { index } else { "{}" });
        }
    }

    #[tokio::test]
    async fn a_path_is_hashed_and_named_after_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my.model.gguf");
        std::fs::write(&file, b"abc").unwrap();
        let model = ensure(file.to_str().unwrap(), &Arc::new(Progress::silent())).await.unwrap();
        assert_eq!(model.name, "my.model");
        // FIPS 180-2, appendix B.1.
        assert_eq!(model.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
