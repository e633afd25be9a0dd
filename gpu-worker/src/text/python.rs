//! The parts of Python that chat templates lean on: `json.dumps`, `repr` of a float, `strftime`.

use std::fmt::Write;

use minijinja::{Error, ErrorKind, State, Value, value::Kwargs};
use serde_json::Value as Json;
use time::OffsetDateTime;

/// Deepest indentation that a template may ask for; wider ones would turn a short value into gigabytes.
const MAX_INDENT: usize = 8;

/// The `tojson` filter as transformers defines it: `json.dumps(value, ensure_ascii=False)`, so `", "` and `": "`
/// between items and no escaping beyond what JSON needs. Takes `indent` (up to 8), `sort_keys` and
/// `ensure_ascii=false`; anything else is refused.
pub(super) fn tojson(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let fail = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    if value.is_undefined() {
        return Err(fail("an undefined value has no JSON".to_owned()));
    }
    let indent: Option<usize> = options.get("indent")?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(fail(format!("tojson takes an indent of up to {MAX_INDENT}")));
    }
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        return Err(fail("tojson does not do ensure_ascii=true".to_owned()));
    }
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|err| fail("a value has no JSON".to_owned()).with_source(err))?;
    let mut text = String::new();
    write_json(&mut text, &json, indent, sort_keys, 0);
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}

fn write_json(out: &mut String, value: &Json, indent: Option<usize>, sort_keys: bool, depth: usize) {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let between = if indent.is_some() { "," } else { ", " };
    match value {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (idx, item) in items.iter().enumerate() {
                out.push_str(if idx == 0 { "" } else { between });
                line(out, depth + 1);
                write_json(out, item, indent, sort_keys, depth + 1);
            }
            line(out, depth);
            out.push(']');
        }
        Json::Object(fields) if !fields.is_empty() => {
            let mut fields: Vec<(&String, &Json)> = fields.iter().collect();
            if sort_keys {
                fields.sort_by_key(|(key, _)| *key);
            }
            out.push('{');
            for (idx, (key, item)) in fields.into_iter().enumerate() {
                out.push_str(if idx == 0 { "" } else { between });
                line(out, depth + 1);
                write_json_string(out, key);
                out.push_str(": ");
                write_json(out, item, indent, sort_keys, depth + 1);
            }
            line(out, depth);
            out.push('}');
        }
        Json::Number(number) if number.is_f64() => out.push_str(&float(number.as_f64().unwrap_or(0.0))),
        Json::String(text) => write_json_string(out, text),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
            // Scalars and empty containers read the same in Python and in Rust.
            out.push_str(&value.to_string());
        }
    }
}

fn write_json_string(out: &mut String, text: &str) {
    // serde_json escapes exactly what `json.dumps(ensure_ascii=False)` does.
    out.push_str(&Json::from(text).to_string());
}

/// `repr(number)`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        let name = if number.is_nan() { "nan" } else { "inf" };
        return if number == f64::NEG_INFINITY { format!("-{name}") } else { name.to_owned() };
    }
    if number != 0.0 && !(1e-4..1e16).contains(&number.abs()) {
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}

/// `now.strftime(format)` for the directives that templates use, in English.
pub(super) fn strftime(now: OffsetDateTime, format: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut directives = format.chars();
    while let Some(character) = directives.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = directives.next();
        let (month, weekday) = (now.month().to_string(), now.weekday().to_string());
        let hour12 = (now.hour() + 11) % 12 + 1;
        let written = match directive {
            Some('Y') => write!(out, "{}", now.year()),
            Some('y') => write!(out, "{:02}", now.year().rem_euclid(100)),
            Some('m') => write!(out, "{:02}", u8::from(now.month())),
            Some('d') => write!(out, "{:02}", now.day()),
            Some('e') => write!(out, "{:2}", now.day()),
            Some('B') => write!(out, "{month}"),
            Some('b' | 'h') => write!(out, "{}", &month[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('j') => write!(out, "{:03}", now.ordinal()),
            Some('H') => write!(out, "{:02}", now.hour()),
            Some('I') => write!(out, "{hour12:02}"),
            Some('M') => write!(out, "{:02}", now.minute()),
            Some('S') => write!(out, "{:02}", now.second()),
            Some('p') => write!(out, "{}", if now.hour() < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{}-{:02}-{:02}", now.year(), u8::from(now.month()), now.day()),
            Some('%') => write!(out, "%"),
            other => {
                let what = format!("strftime_now does not know %{}", other.map(String::from).unwrap_or_default());
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        };
        written.map_err(|err| Error::new(ErrorKind::WriteFailure, "strftime_now").with_source(err))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::{float, strftime};

    /// Expected values typed from a Python prompt.
    #[test]
    fn floats_read_as_in_python() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (3.5, "3.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn dates_are_written_in_english() {
        let now = datetime!(2026-03-09 15:04:05 UTC);
        assert_eq!(strftime(now, "%d %b %Y").unwrap(), "09 Mar 2026");
        assert_eq!(strftime(now, "%A, %B %e %y, %I:%M:%S %p %% %j").unwrap(), "Monday, March  9 26, 03:04:05 PM % 068");
        assert!(strftime(now, "%Q").unwrap_err().to_string().contains("%Q"));
        assert!(strftime(now, "%").is_err());
    }
}
