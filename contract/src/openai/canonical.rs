//! One form per meaning: what idempotency keys compare.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::fields::whole;

/// SHA-256 over `route` and the body with the keys of every object sorted, no spaces and one form per number, so that the
/// same request written by another client library, or in another order, is the same request.
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
        // RFC 8785, 3.2.2.3: `4.0` and `4e0` are `4`, and `-0` is `0`. Other than there, integers that no double holds stay as
        // they are, since the routes read them so: two seeds are two requests.
        Value::Number(number) => match whole(value) {
            Some(whole) => out.push_str(&whole.to_string()),
            None => out.push_str(&number.to_string()),
        },
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::json::parse;
    use proptest::prelude::*;
    use serde_json::json;

    /// The canonical form of a document.
    fn canonical(value: &Value) -> String {
        let mut out = String::new();
        write(value, &mut out);
        out
    }

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

    #[test]
    fn a_number_has_one_form_however_it_is_written() {
        // By ECMAScript's Number::toString, which RFC 8785, 3.2.2.3 asks for; the last ones are integers of ours.
        let cases: [(&str, &[&str]); 11] = [
            ("4", &["4", "4.0", "4.000", "4e0", "0.4e1", "40E-1"]),
            ("0", &["0", "-0", "0.0", "-0.0", "0e5", "-0e-5"]),
            ("-7", &["-7", "-7.0", "-70e-1"]),
            ("100", &["100", "1e2", "1E+2", "100.0"]),
            ("4.5", &["4.5", "4.50", "45e-1"]),
            ("0.002", &["0.002", "2e-3"]),
            ("9007199254740991", &["9007199254740991"]),
            ("9007199254740992", &["9007199254740992", "9.007199254740992e15"]),
            ("9007199254740993", &["9007199254740993"]),
            ("18446744073709551615", &["18446744073709551615"]),
            ("-9223372036854775808", &["-9223372036854775808"]),
        ];
        for (expected, texts) in cases {
            for text in texts {
                assert_eq!(canonical(&parse(text.as_bytes()).unwrap()), expected, "{text}");
            }
        }
        let hash = |text: &str| body_hash("/v1/jobs", &parse(text.as_bytes()).unwrap());
        assert_eq!(hash(r#"{"n": [4.0, -0.0]}"#), hash(r#"{"n": [4, 0]}"#));
        for other in ["[5]", "[4.5]", "[-4]", "[\"4\"]", "[4, 0]", "[40]"] {
            assert_ne!(hash("[4]"), hash(other), "{other}");
        }
    }

    proptest! {
        #[test]
        fn numbers_have_the_same_form_exactly_if_they_are_equal(
            a in -(1_i64 << 53)..=1 << 53, b in -1_000_i64..1_000, x in any::<f64>(), y in any::<f64>(), big in any::<u64>(),
        ) {
            prop_assert_eq!(canonical(&json!(a)), a.to_string());
            prop_assert_eq!(canonical(&json!(a as f64)), a.to_string());
            prop_assert_eq!(canonical(&json!(b as f64 / 8.0)) == canonical(&json!(b / 8)), b % 8 == 0);
            prop_assert_eq!(canonical(&json!(big)), big.to_string());
            for (x, y) in [(x, y), (x, -x), (x, x.next_up()), (x.trunc(), x)] {
                if x.is_finite() && y.is_finite() {
                    prop_assert_eq!(canonical(&json!(x)) == canonical(&json!(y)), x == y, "{} and {}", x, y);
                }
            }
        }
    }
}
