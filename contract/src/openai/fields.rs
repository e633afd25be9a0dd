//! Takes the fields of a JSON object one by one, and refuses what is left.

use serde_json::{Map, Value};

use super::{ParseCode, ParseError};

/// The fields of one object of a request. `null` counts as absent.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    at: String,
    taken: Vec<&'static str>,
}

/// The path of a member of `at`; `at` is empty for the body itself.
pub(super) fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// The JSON type of a value, for messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// An error at `param`; the message begins with the field's name.
pub(super) fn error(param: impl Into<String>, code: ParseCode, what: impl std::fmt::Display) -> ParseError {
    let param = param.into();
    ParseError { message: format!("`{param}` {what}"), param: Some(param), code }
}

/// The value is of the wrong type.
pub(super) fn wrong_type(param: impl Into<String>, expected: &str, got: &Value) -> ParseError {
    error(param, ParseCode::InvalidType, format_args!("must be {expected}, not {}", type_name(got)))
}

/// The value is of the right type and still wrong.
pub(super) fn wrong_value(param: impl Into<String>, what: impl std::fmt::Display) -> ParseError {
    error(param, ParseCode::InvalidValue, what)
}

/// A whole number, also when written as `16.0`; `None` when it is none or does not fit.
pub(super) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let float = value.as_f64()?;
        // Doubles hold every whole number up to 2^53; beyond, the text may have meant another one.
        (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i64)
    })
}

impl<'a> Fields<'a> {
    /// The fields of the object at path `at` (empty for the body itself).
    pub fn of(value: &'a Value, at: impl Into<String>) -> Result<Self, ParseError> {
        let at = at.into();
        match value {
            Value::Object(map) => Ok(Self { map, at, taken: Vec::new() }),
            other if at.is_empty() => Err(ParseError {
                param: None,
                message: format!("the body must be a JSON object, not {}", type_name(other)),
                code: ParseCode::InvalidType,
            }),
            other => Err(wrong_type(at, "an object", other)),
        }
    }

    /// The path of the field `name`.
    pub fn path(&self, name: &str) -> String {
        join(&self.at, name)
    }

    /// The value of a field; `None` when absent or `null`.
    pub fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.taken.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The value of a field that must be there.
    pub fn required(&mut self, name: &'static str) -> Result<&'a Value, ParseError> {
        self.take(name).ok_or_else(|| error(self.path(name), ParseCode::MissingRequiredParameter, "is required"))
    }

    /// A string of at most `max_bytes` bytes.
    pub fn string(&mut self, name: &'static str, max_bytes: usize) -> Result<Option<&'a str>, ParseError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        text(value, &self.path(name), max_bytes).map(Some)
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ParseError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong_type(self.path(name), "a boolean", other)),
        }
    }

    /// A number for which `fits` holds; `range` says in words which do.
    pub fn number(
        &mut self,
        name: &'static str,
        fits: impl Fn(f64) -> bool,
        range: &str,
    ) -> Result<Option<f64>, ParseError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| wrong_type(self.path(name), "a number", value))?;
        if fits(number) {
            return Ok(Some(number));
        }
        Err(wrong_value(self.path(name), format_args!("is {value}; it must be {range}")))
    }

    /// A whole number from `min` to `max`.
    pub fn integer(&mut self, name: &'static str, min: i64, max: i64) -> Result<Option<i64>, ParseError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        integer(value, &self.path(name), min, max).map(Some)
    }

    /// An array of at most `max` items.
    pub fn list(&mut self, name: &'static str, max: usize) -> Result<Option<&'a [Value]>, ParseError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| wrong_type(self.path(name), "an array", value))?;
        if items.len() > max {
            return Err(wrong_value(self.path(name), format_args!("has {} items; {max} are the most", items.len())));
        }
        Ok(Some(items))
    }

    /// A feature that is not there yet: only the value that asks for nothing passes. `neutral` says it in words.
    pub fn only(
        &mut self,
        name: &'static str,
        passes: impl Fn(&Value) -> bool,
        neutral: &str,
    ) -> Result<(), ParseError> {
        match self.take(name) {
            Some(value) if !passes(value) => Err(error(
                self.path(name),
                ParseCode::UnsupportedParameter,
                format_args!("is not supported yet: leave it out, or give {neutral}"),
            )),
            _ => Ok(()),
        }
    }

    /// A feature that is not there yet, in any form.
    pub fn unsupported(&mut self, name: &'static str) -> Result<(), ParseError> {
        match self.take(name) {
            Some(_) => {
                Err(error(self.path(name), ParseCode::UnsupportedParameter, "is not supported yet: leave it out"))
            }
            None => Ok(()),
        }
    }

    /// Refuses every field that was not taken, the first by name. A `null` asks for nothing and passes.
    pub fn finish(self) -> Result<(), ParseError> {
        let left = self.map.iter().find(|(name, value)| !value.is_null() && !self.taken.contains(&name.as_str()));
        match left {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(80).collect();
                Err(error(
                    self.path(&shown),
                    ParseCode::UnknownParameter,
                    "is not a parameter here: remove it, or check its spelling",
                ))
            }
        }
    }
}

/// A string of at most `max_bytes` bytes at path `param`.
pub(super) fn text<'a>(value: &'a Value, param: &str, max_bytes: usize) -> Result<&'a str, ParseError> {
    let text = value.as_str().ok_or_else(|| wrong_type(param, "a string", value))?;
    if text.len() > max_bytes {
        return Err(wrong_value(param, format_args!("has {} bytes; {max_bytes} are the most", text.len())));
    }
    Ok(text)
}

/// A whole number from `min` to `max` at path `param`.
pub(super) fn integer(value: &Value, param: &str, min: i64, max: i64) -> Result<i64, ParseError> {
    if !value.is_number() {
        return Err(wrong_type(param, "an integer", value));
    }
    let out_of_range = || wrong_value(param, format_args!("is {value}; it must be an integer from {min} to {max}"));
    whole(value).filter(|number| (min..=max).contains(number)).ok_or_else(out_of_range)
}

/// A token id at path `param`.
pub(super) fn token_id(value: &Value, param: &str) -> Result<u32, ParseError> {
    let id = integer(value, param, 0, i64::from(u32::MAX))?;
    Ok(u32::try_from(id).unwrap_or(u32::MAX))
}
