//! Limits of JSON Schemas from strangers. Every object of the document is looked at, whatever it stands under, because a
//! `$ref` can lead anywhere.

use serde_json::Value;

use super::fields::{join, wrong_value};
use super::{ParseError, pattern};

/// Most properties of all objects of a schema together.
pub const MAX_PROPERTIES: usize = 512;
/// Most values of one `enum`.
pub const MAX_ENUM: usize = 1_000;
/// Most references.
pub const MAX_REFS: usize = 512;
/// Most alternatives of `anyOf`, `oneOf` and `allOf` together.
pub const MAX_ALTERNATIVES: usize = 512;

/// Largest `multipleOf`, and as many of its smallest part: remainders are followed digit by digit in 32 bits.
const MAX_MULTIPLE: f64 = 1_000_000.0;
/// Decimal places of a `multipleOf`.
const MULTIPLE_PLACES: [f64; 5] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0];

/// Checks the schema, an object, that stands at `param`.
pub(super) fn check(schema: &Value, param: &str) -> Result<(), ParseError> {
    if schema.get("x-guidance").is_some() {
        return Err(wrong_value(join(param, "x-guidance"), "cannot be set by a request: remove it"));
    }
    let mut counts = Counts::default();
    counts.walk(schema, param)?;
    if counts.multiples.len() > 1 && counts.merges {
        let what = "gives more than one `multipleOf` beside `allOf` or `$ref`, which may have to be combined: give one";
        return Err(wrong_value(param, what));
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    properties: usize,
    refs: usize,
    alternatives: usize,
    /// Different values of `multipleOf`.
    multiples: Vec<f64>,
    /// Whether keywords of different places may have to hold for one value.
    merges: bool,
}

impl Counts {
    /// The depth is bounded by what read the document.
    fn walk(&mut self, value: &Value, param: &str) -> Result<(), ParseError> {
        match value {
            Value::Array(items) => {
                items.iter().enumerate().try_for_each(|(nth, item)| self.walk(item, &format!("{param}[{nth}]")))
            }
            Value::Object(map) => map.iter().try_for_each(|(key, value)| {
                let at = join(param, &key.chars().take(80).collect::<String>());
                self.keyword(key, value, &at)?;
                self.walk(value, &at)
            }),
            _ => Ok(()),
        }
    }

    fn keyword(&mut self, key: &str, value: &Value, at: &str) -> Result<(), ParseError> {
        match (key, value) {
            ("properties" | "required", value) => {
                let n = value.as_object().map_or(0, |map| map.len()).max(value.as_array().map_or(0, Vec::len));
                self.properties += if key == "properties" { n } else { 0 };
                bound(at, n.max(self.properties), MAX_PROPERTIES, "properties")
            }
            ("patternProperties", Value::Object(map)) => {
                self.properties += map.len();
                bound(at, self.properties, MAX_PROPERTIES, "properties")?;
                map.keys().try_for_each(|key| pattern::check(key).map_err(|bad| wrong_value(at, bad)))
            }
            ("anyOf" | "oneOf" | "allOf", Value::Array(items)) => {
                self.merges |= key == "allOf";
                self.alternatives += items.len();
                bound(at, self.alternatives, MAX_ALTERNATIVES, "alternatives")
            }
            ("enum", Value::Array(items)) => bound(at, items.len(), MAX_ENUM, "values"),
            ("pattern", Value::String(text)) => pattern::check(text).map_err(|bad| wrong_value(at, bad)),
            ("$ref", Value::String(to)) => {
                self.merges = true;
                self.refs += 1;
                bound(at, self.refs, MAX_REFS, "references")?;
                if to == "#" || to.starts_with("#/") {
                    return Ok(());
                }
                Err(wrong_value(at, "must lead to a place in the same schema, as `#/$defs/NAME`: nothing is fetched"))
            }
            ("multipleOf", Value::Number(number)) => {
                let multiple = number.as_f64().unwrap_or(f64::NAN);
                if !is_followed(multiple) {
                    let what = format_args!(
                        "is {number}; it must be above 0, at most 1,000,000, and its digits without \
                                             the decimal point too, with at most 4 decimal places"
                    );
                    return Err(wrong_value(at, what));
                }
                if !self.multiples.contains(&multiple) {
                    self.multiples.push(multiple);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn is_followed(multiple: f64) -> bool {
    multiple > 0.0
        && MULTIPLE_PLACES.iter().any(|scale| {
            let scaled = multiple * scale;
            scaled.fract() == 0.0 && scaled <= MAX_MULTIPLE
        })
}

fn bound(at: &str, n: usize, most: usize, what: &str) -> Result<(), ParseError> {
    if n <= most {
        return Ok(());
    }
    Err(wrong_value(at, format_args!("makes {n} {what}; {most} are the most of one schema")))
}
