//! One form per meaning: what idempotency keys compare.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 over `route` and the body with the keys of every object sorted and no spaces, so that the same request
/// written by another client library, or in another order, is the same request.
pub fn body_hash(route: &str, body: &Value) -> [u8; 32] {
    let mut canonical = String::new();
    write(body, &mut canonical);
    let mut hash = Sha256::new();
    hash.update(route.as_bytes());
    hash.update([0]);
    hash.update(canonical.as_bytes());
    hash.finalize().into()
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (nth, (key, value)) in pairs.into_iter().enumerate() {
                if nth > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (nth, item) in items.iter().enumerate() {
                if nth > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn key_order_does_not_matter_and_everything_else_does() {
        let body = json!({"b": [1, {"y": "\"", "x": null}], "a": 1.5});
        let hex: String = body_hash("/v1/jobs", &body).iter().map(|byte| format!("{byte:02x}")).collect();
        // `printf '/v1/jobs\0{"a":1.5,"b":[1,{"x":null,"y":"\\""}]}' | sha256sum`
        assert_eq!(hex, "aa211cc866a0430d400ed12cdad50e746f662b765e065a0e54bd54d7cdfbbef3");
        assert_eq!(
            body_hash("/v1/jobs", &body),
            body_hash("/v1/jobs", &json!({"a": 1.5, "b": [1, {"x": null, "y": "\""}]}))
        );
        for other in [json!({"b": [{"y": "\"", "x": null}, 1], "a": 1.5}), json!({"a": 1.5}), json!([])] {
            assert_ne!(body_hash("/v1/jobs", &body), body_hash("/v1/jobs", &other));
        }
        assert_ne!(body_hash("/v1/jobs", &body), body_hash("/v1/completions", &body));
    }
}
