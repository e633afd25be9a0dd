//! What is served: a manifest that names everything that changes an answer, and its fingerprint.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::Fingerprint;
use crate::reading::Reading;

/// What a release is made of. Its canonical JSON is hashed into the fingerprint; a later part widens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Manifest {
    /// SHA-256 (hexadecimal) of the model file, which holds weights, tokenizer and chat template.
    pub model_sha256: String,
    /// Engine name and version.
    pub engine: String,
    /// Kernel path and the format each group of matrices is computed in.
    pub numerics: String,
    /// How the model writes calls and thoughts.
    #[serde(default, skip_serializing_if = "Reading::is_plain")]
    pub reading: Reading,
}

impl Manifest {
    /// SHA-256 over the canonical JSON: keys sorted, no spaces (RFC 8785 for the strings used here).
    pub fn fingerprint(&self) -> Fingerprint {
        let mut fields = std::collections::BTreeMap::from([
            ("engine", self.engine.as_str()),
            ("model_sha256", &self.model_sha256),
            ("numerics", &self.numerics),
        ]);
        fields.extend(self.reading.calls.map(|syntax| ("calls", syntax.as_str())));
        fields.extend(self.reading.thoughts.map(|syntax| ("thoughts", syntax.as_str())));
        // A map of strings always serialises.
        let canonical = serde_json::to_vec(&fields).unwrap_or_default();
        Fingerprint(Sha256::digest(canonical).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A model as the API offers it: enough to accept or refuse a request without opening the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedModel {
    /// The name clients use.
    pub name: String,
    /// The release behind the name.
    pub release: Fingerprint,
    /// What that release is made of.
    pub manifest: Manifest,
    /// Longest sequence (prompt and output) in tokens.
    pub context_tokens: u32,
    /// Bytes of the longest token: a text of more than `context_tokens` times this is surely too long.
    pub longest_token_bytes: u32,
    /// Whether the file brings a chat template; without one there is no chat, and nobody guesses one.
    pub has_chat_template: bool,
    /// Entries in the vocabulary: token ids of a prompt are below it.
    pub vocab_size: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{CallSyntax, ThoughtSyntax};

    #[test]
    fn the_fingerprint_is_the_hash_of_the_canonical_json() {
        let manifest = Manifest {
            model_sha256: "ab".into(),
            engine: "penstock 0.1.0".into(),
            numerics: "portable".into(),
            reading: Reading::default(),
        };
        // `printf '{"engine":"penstock 0.1.0","model_sha256":"ab","numerics":"portable"}' | sha256sum`
        assert_eq!(manifest.fingerprint().as_str(), "440f72cd82ab22e7b11e92efe6c39dd88203228b22c6ea77d8be6349763fbf30");
        let other = Manifest { numerics: "avx512-vnni".into(), ..manifest.clone() };
        assert_ne!(manifest.fingerprint(), other.fingerprint());
        let reading = Reading { calls: Some(CallSyntax::Hermes), thoughts: Some(ThoughtSyntax::Tagged) };
        let other = Manifest { reading, ..manifest };
        // `printf '{"calls":"hermes","engine":"penstock 0.1.0","model_sha256":"ab","numerics":"portable","thoughts":"tagged"}' | sha256sum`
        assert_eq!(other.fingerprint().as_str(), "e120597115d293903d6d80b8cf40a51d5a97059121775f4bc536fd5727b03d7d");
    }
}
