//! JSON from strangers: strict UTF-8, bounded depth, no key twice in one object.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Deepest nesting of arrays and objects; a scalar has depth 0.
pub const MAX_DEPTH: usize = 64;

/// Bytes that are no acceptable JSON document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the body is not valid JSON: {message} (line {line}, column {column})")]
pub struct BadJson {
    /// What is wrong.
    pub message: String,
    /// Line of the first fault, from 1.
    pub line: usize,
    /// Column of it in bytes, from 1; 0 right after a line break.
    pub column: usize,
}

/// Reads one JSON document.
///
/// # Errors
/// [`BadJson`] with the place of the first fault: bad UTF-8, bad syntax, a number no double can hold, a key given
/// twice in one object, nesting deeper than [`MAX_DEPTH`], or bytes after the document.
pub fn parse(bytes: &[u8]) -> Result<Value, BadJson> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        BadJson { message: "bytes that are not UTF-8".to_owned(), line, column }
    })?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Node { depth: 0 }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        BadJson {
            message: message.strip_suffix(&place).unwrap_or(&message).to_owned(),
            line: error.line(),
            column: error.column(),
        }
    })
}

/// A place in the document, `depth` containers down.
#[derive(Clone, Copy)]
struct Node {
    depth: usize,
}

impl Node {
    fn inner<E: serde::de::Error>(self) -> Result<Node, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Node { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Node {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut map = Map::new();
        while let Some(key) = pairs.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown: String = key.chars().take(40).collect();
                return Err(serde::de::Error::custom(format_args!("the key `{shown}` twice in one object")));
            }
            let value = pairs.next_value_seed(inner)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn faults_have_a_place_and_a_reason() {
        let cases: [(&[u8], &str, usize); 9] = [
            (b"", "EOF", 1),
            (b"{\n \"a\": 1,\n}", "trailing comma", 3),
            (b"{\"a\":1,\"a\":2}", "the key `a` twice", 1),
            (b"{\"a\":1} x", "trailing characters", 1),
            (b"[1e999]", "number out of range", 1),
            (b"\n\"\xff\"", "not UTF-8", 2),
            (b"\"\\ud800\"", "hex escape", 1),
            (b"[NaN]", "expected value", 1),
            (b"{'a':1}", "key must be a string", 1),
        ];
        for (bytes, reason, line) in cases {
            let error = parse(bytes).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
            assert_eq!(error.line, line, "{error}");
        }
    }

    #[test]
    fn depth_ends_at_64() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(nested(64).as_bytes()).is_ok());
        assert!(parse(nested(65).as_bytes()).unwrap_err().message.contains("deeper than 64"));
        assert!(parse(nested(100_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn documents_are_read_as_serde_json_reads_them(text in "\\PC{0,40}", number in any::<i64>(), float in -1e300f64..1e300) {
            let value = serde_json::json!({"t": text, "n": [number, float, null, true], "o": {"x": []}});
            let written = value.to_string();
            let expected: Value = serde_json::from_str(&written).unwrap();
            prop_assert_eq!(parse(written.as_bytes()).unwrap(), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
