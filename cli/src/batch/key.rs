//! Idempotency keys that are what they stand for: the same content with the same options has the same key.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use sha2::{Digest, Sha256};

use crate::model::Progress;

/// A key of these parts, in this order. Where one part ends and the next begins is part of it.
pub fn derive(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("penstock-{}", hex(&hash.finalize()))
}

/// SHA-256 of a file's content, in hexadecimal digits; shows how far it is.
///
/// # Errors
/// The file cannot be read.
pub async fn of_content(path: &Path, progress: &Arc<Progress>) -> anyhow::Result<String> {
    let (owned, shown) = (path.to_owned(), Arc::clone(progress));
    let hashed = tokio::task::spawn_blocking(move || {
        let mut file = File::open(owned)?;
        shown.begin("read", file.metadata()?.len(), 0);
        let (mut hash, mut piece, mut at) = (Sha256::new(), vec![0; 1 << 20], 0);
        loop {
            let taken = file.read(&mut piece)?;
            if taken == 0 {
                return std::io::Result::Ok(hex(&hash.finalize()));
            }
            hash.update(&piece[..taken]);
            at += taken as u64;
            shown.at(at);
        }
    });
    let hashed = hashed.await?;
    progress.end();
    hashed.with_context(|| format!("{} cannot be read", path.display()))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_parts_have_the_same_key_and_no_others() {
        let key = derive(&[b"file", b"abc"]);
        assert_eq!(key, derive(&[b"file", b"abc"]));
        assert!(key.len() <= 255 && key.is_ascii(), "{key}");
        for other in [derive(&[b"filea", b"bc"]), derive(&[b"abc", b"file"]), derive(&[b"file", b"abc", b""])] {
            assert_ne!(other, key);
        }
    }

    #[test]
    fn keys_stay_what_they_were_in_earlier_versions() {
        // sha256 of nothing: a run that an older version began must be found again.
        assert_eq!(derive(&[]), "penstock-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
