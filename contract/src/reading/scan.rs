//! Follows JSON a character at a time: whether it is complete, or cannot become JSON any more.

use crate::openai::json::MAX_DEPTH;

/// What the text so far is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// The beginning of a document.
    More,
    /// A whole document.
    Complete,
    /// No beginning of one: an object or array, nested [`MAX_DEPTH`] levels at most.
    Dead,
}

/// Where in a document the next character stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the document.
    Start,
    /// Before a value; `closes`: the array may also end here, for it is empty.
    Value { closes: bool },
    /// Before a key; `closes`: the object may also end here.
    Key { closes: bool },
    /// Behind a key.
    Colon,
    /// Behind a value.
    Comma,
    /// In a string.
    Text { is_key: bool, escape: Escape },
    /// In a number.
    Number(Digits),
    /// In `true`, `false` or `null`, before this rest of it.
    Word(&'static str),
    /// Behind the document.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    No,
    /// Behind a backslash.
    Begun,
    /// So many hexadecimal digits are left.
    Unicode(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// A document that is read a character at a time.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    at: At,
    /// What is open: true for an object.
    open: Vec<bool>,
}

impl Scanner {
    pub(super) fn new() -> Self {
        Self { at: At::Start, open: Vec::new() }
    }

    /// Takes the next character. After [`Scan::Complete`] only white space may come, after [`Scan::Dead`] nothing.
    pub(super) fn push(&mut self, c: char) -> Scan {
        match self.step(c) {
            None => Scan::Dead,
            Some(At::End) => {
                self.at = At::End;
                Scan::Complete
            }
            Some(at) => {
                self.at = at;
                Scan::More
            }
        }
    }

    fn step(&mut self, c: char) -> Option<At> {
        match self.at {
            At::Text { is_key, escape } => in_text(c, is_key, escape),
            At::Word(rest) => {
                let rest = rest.strip_prefix(c)?;
                Some(if rest.is_empty() { At::Comma } else { At::Word(rest) })
            }
            At::Number(digits) => match in_number(c, digits) {
                Ok(digits) => Some(At::Number(digits)),
                // The number has ended before this character.
                Err(true) => self.structure(At::Comma, c),
                Err(false) => None,
            },
            at => self.structure(at, c),
        }
    }

    fn structure(&mut self, at: At, c: char) -> Option<At> {
        if matches!(c, ' ' | '\t' | '\n' | '\r') {
            return Some(at);
        }
        match (at, c) {
            (At::Start | At::Value { .. }, '{') => self.enter(true, At::Key { closes: true }),
            (At::Start | At::Value { .. }, '[') => self.enter(false, At::Value { closes: true }),
            (At::Value { closes: true }, ']') | (At::Key { closes: true }, '}') => self.leave(c == '}'),
            (At::Value { .. }, '"') => Some(At::Text { is_key: false, escape: Escape::No }),
            (At::Value { .. }, '-') => Some(At::Number(Digits::Minus)),
            (At::Value { .. }, '0') => Some(At::Number(Digits::Zero)),
            (At::Value { .. }, '1'..='9') => Some(At::Number(Digits::Whole)),
            (At::Value { .. }, 't') => Some(At::Word("rue")),
            (At::Value { .. }, 'f') => Some(At::Word("alse")),
            (At::Value { .. }, 'n') => Some(At::Word("ull")),
            (At::Key { .. }, '"') => Some(At::Text { is_key: true, escape: Escape::No }),
            (At::Colon, ':') => Some(At::Value { closes: false }),
            (At::Comma, ',') if self.open.last() == Some(&true) => Some(At::Key { closes: false }),
            (At::Comma, ',') => Some(At::Value { closes: false }),
            (At::Comma, '}' | ']') => self.leave(c == '}'),
            _ => None,
        }
    }

    fn enter(&mut self, is_object: bool, inside: At) -> Option<At> {
        self.open.push(is_object);
        (self.open.len() <= MAX_DEPTH).then_some(inside)
    }

    fn leave(&mut self, is_object: bool) -> Option<At> {
        if self.open.pop() != Some(is_object) {
            return None;
        }
        Some(if self.open.is_empty() { At::End } else { At::Comma })
    }
}

fn in_text(c: char, is_key: bool, escape: Escape) -> Option<At> {
    let escape = match (escape, c) {
        (Escape::No, '"') => return Some(if is_key { At::Colon } else { At::Comma }),
        (Escape::No, '\\') => Escape::Begun,
        (Escape::No, c) if c < ' ' => return None,
        (Escape::No, _) => Escape::No,
        (Escape::Begun, 'u') => Escape::Unicode(4),
        (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::No,
        (Escape::Unicode(left), c) if c.is_ascii_hexdigit() => match left - 1 {
            0 => Escape::No,
            left => Escape::Unicode(left),
        },
        (Escape::Begun | Escape::Unicode(_), _) => return None,
    };
    Some(At::Text { is_key, escape })
}

/// The number with one more character; or, where it is no part of it, whether the number was whole.
fn in_number(c: char, digits: Digits) -> Result<Digits, bool> {
    use Digits as D;
    match (digits, c) {
        (D::Minus, '0') => Ok(D::Zero),
        (D::Minus, '1'..='9') | (D::Whole, '0'..='9') => Ok(D::Whole),
        (D::Zero | D::Whole, '.') => Ok(D::Point),
        (D::Point | D::Fraction, '0'..='9') => Ok(D::Fraction),
        (D::Zero | D::Whole | D::Fraction, 'e' | 'E') => Ok(D::E),
        (D::E, '+' | '-') => Ok(D::Sign),
        (D::E | D::Sign | D::Exponent, '0'..='9') => Ok(D::Exponent),
        (D::Zero | D::Whole | D::Fraction | D::Exponent, _) => Err(true),
        (D::Minus | D::Point | D::E | D::Sign, _) => Err(false),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::{Scan, Scanner};

    fn scan(text: &str) -> Scan {
        let mut scanner = Scanner::new();
        let mut scan = Scan::More;
        for c in text.chars() {
            scan = scanner.push(c);
            if scan == Scan::Dead {
                break;
            }
        }
        scan
    }

    #[test]
    fn beginnings_are_told_from_what_is_none() {
        for (text, expected) in [
            ("", Scan::More),
            (" \n", Scan::More),
            ("{", Scan::More),
            ("{} ", Scan::Complete),
            ("[]", Scan::Complete),
            (r#"{"a": [1, -0.5e+3, "\u00e9\"", true, null, {}]}"#, Scan::Complete),
            (r#"{"a": 1"#, Scan::More),
            (r#"{"a" 1"#, Scan::Dead),
            ("{,", Scan::Dead),
            ("[1,]", Scan::Dead),
            ("{}}", Scan::Dead),
            ("[}", Scan::Dead),
            ("[01", Scan::Dead),
            ("[1.]", Scan::Dead),
            ("[-]", Scan::Dead),
            ("[tru]", Scan::Dead),
            ("[\"\n", Scan::Dead),
            (r#"["\x"#, Scan::Dead),
            (r#"["\u12g"#, Scan::Dead),
            ("7", Scan::Dead),
            ("\"a\"", Scan::Dead),
        ] {
            assert_eq!(scan(text), expected, "{text}");
        }
        assert_eq!(scan(&"[".repeat(64)), Scan::More);
        assert_eq!(scan(&"[".repeat(65)), Scan::Dead);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// `serde_json` says of the whole text what the scanner finds character by character.
        #[test]
        fn whole_documents_are_those_of_serde_json(text in r#"[\[{]([{}\[\]",:0-9.eE+\-a\\u \n]|true|null|"a"|"a":|1,){0,12}[\]}]?"#) {
            let is_json = match serde_json::from_str::<Value>(&text) {
                Ok(_) => true,
                // A number that no double holds is JSON all the same.
                Err(err) if err.to_string().contains("number out of range") => return Ok(()),
                Err(_) => false,
            };
            prop_assert_eq!(scan(&text) == Scan::Complete, is_json, "{}", text);
        }
    }
}
