//! The JSON files of a model folder: read within bounds, and settings as metadata that name their file.

use std::io::Read;
use std::path::Path;

use serde_json::Value as Json;

use super::metadata::{Array, Metadata, Strings, Value};
use super::{LoadError, inside};

/// Longest file of settings.
pub(crate) const MAX_SETTINGS_BYTES: u64 = 4 << 20;
/// Longest `tokenizer.json`; those with the largest vocabularies have 34 MB.
pub(crate) const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// The file `name` of `folder`, `None` where there is none.
///
/// # Errors
/// [`LoadError::BadFile`] for a file that cannot be read, lies outside the folder, or has more than `max_bytes`.
pub(crate) fn opt_bytes(folder: &Path, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, LoadError> {
    let Some((file, _)) = inside::open(folder, name)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let read = file.take(max_bytes + 1).read_to_end(&mut bytes);
    read.map_err(|err| LoadError::bad_file(name, format!("cannot be read: {err}")))?;
    if bytes.len() as u64 > max_bytes {
        return Err(LoadError::bad_file(name, format!("has more than {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

/// The object in the file `name` of `folder`, `None` where there is no such file.
///
/// # Errors
/// As [`opt_bytes`], and for anything but a JSON object.
pub(crate) fn opt_object(
    folder: &Path,
    name: &str,
    max_bytes: u64,
) -> Result<Option<serde_json::Map<String, Json>>, LoadError> {
    let Some(bytes) = opt_bytes(folder, name, max_bytes)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(Json::Object(fields)) => Ok(Some(fields)),
        Ok(_) => Err(LoadError::bad_file(name, "is not a JSON object")),
        Err(err) => Err(LoadError::bad_file(name, format!("is not JSON: {err}"))),
    }
}

/// [`opt_object`] for a file that must be there.
///
/// # Errors
/// As [`opt_object`], and without the file.
pub(crate) fn object(folder: &Path, name: &str, max_bytes: u64) -> Result<serde_json::Map<String, Json>, LoadError> {
    opt_object(folder, name, max_bytes)?.ok_or_else(|| LoadError::bad_file(name, "is missing; fetch it again"))
}

/// Longest key of a setting, with what it lies in. No setting that is read has a longer one; without the bound a long name
/// around many short ones would be copied for each of them.
const MAX_KEY_BYTES: usize = 512;

/// Settings as metadata. The value at `a.b` of `config.json` has the key `config.json:a.b`, so that an error about it
/// says where to look. A null is no value; arrays that are not of one simple type are left out, and so are keys that are
/// too long for any setting.
pub(super) fn metadata(file: &str, fields: &serde_json::Map<String, Json>) -> Metadata {
    let mut metadata = Metadata::default();
    add(&mut metadata, &format!("{file}:"), fields);
    metadata
}

fn add(metadata: &mut Metadata, prefix: &str, fields: &serde_json::Map<String, Json>) {
    for (name, value) in fields {
        if prefix.len() + name.len() > MAX_KEY_BYTES {
            continue;
        }
        let key = format!("{prefix}{name}");
        let value = match value {
            Json::Null => None,
            Json::Object(fields) => {
                add(metadata, &format!("{key}."), fields);
                None
            }
            Json::Array(items) => array(items),
            Json::Bool(flag) => Some(Value::Bool(*flag)),
            Json::String(text) => Some(Value::String(text.clone())),
            Json::Number(number) => {
                let whole = number.as_u64().map(Value::Unsigned).or(number.as_i64().map(Value::Signed));
                whole.or(number.as_f64().map(Value::Float))
            }
        };
        if let Some(value) = value {
            metadata.insert(key, value);
        }
    }
}

fn array(items: &[Json]) -> Option<Value> {
    let texts: Option<Strings> = items.iter().map(Json::as_str).collect::<Option<Vec<_>>>().map(Strings::from_iter);
    let numbers = || items.iter().map(|item| item.as_f64().map(|number| number as f32)).collect::<Option<Vec<f32>>>();
    texts.map(Array::Strings).or_else(|| numbers().map(Array::F32)).map(Value::Array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_file_and_path() {
        let fields = serde_json::json!({
            "hidden_size": 64, "rope": {"theta": 1e4, "type": "default", "factors": [1, 2.5]}, "none": null,
            "layers": ["a", "b"], "mixed": [1, "a"], "below": -1, "tied": true,
        });
        let metadata = metadata("config.json", fields.as_object().unwrap());
        assert_eq!(metadata.u32("config.json:hidden_size").unwrap(), 64);
        assert_eq!(metadata.f32("config.json:rope.theta").unwrap(), 1e4);
        assert_eq!(metadata.f32s("config.json:rope.factors").unwrap(), [1.0, 2.5]);
        assert_eq!(metadata.strings("config.json:layers").unwrap().get(1), Some("b"));
        assert!(metadata.bool("config.json:tied").unwrap());
        assert!(metadata.get("config.json:none").is_none() && metadata.get("config.json:mixed").is_none());
        let message = metadata.u32("config.json:below").unwrap_err().to_string();
        assert!(message.contains("\"config.json:below\" must be"), "{message}");
    }

    #[test]
    fn a_long_name_around_many_short_ones_is_not_copied_for_each() {
        // Every key with its whole path would be 100 GB.
        let inner: serde_json::Map<String, Json> = (0..100_000).map(|nth| (nth.to_string(), Json::from(1))).collect();
        let fields = serde_json::json!({"a".repeat(1 << 20): inner, "hidden_size": 64});
        let metadata = metadata("config.json", fields.as_object().unwrap());
        assert_eq!(metadata.u32("config.json:hidden_size").unwrap(), 64);
    }

    #[test]
    fn nesting_that_would_exhaust_the_stack_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"a":"#.repeat(100_000)).unwrap();
        let err = object(folder.path(), "config.json", MAX_SETTINGS_BYTES).unwrap_err();
        assert!(err.to_string().contains("config.json of the model folder is not JSON"), "{err}");
    }
}
