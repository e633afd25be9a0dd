//! The key-value part of a GGUF header, as typed values that say which key is wrong when one is.

use std::{borrow::Cow, collections::HashMap};

use super::LoadError;

/// One metadata value. Integers of every width are widened; arrays keep their element type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `u8`, `u16`, `u32` or `u64`.
    Unsigned(u64),
    /// `i8`, `i16`, `i32` or `i64`.
    Signed(i64),
    /// `f32` or `f64`.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// A one-dimensional array.
    Array(Array),
}

/// A one-dimensional array, each element as wide as in the file.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is the element type it is named after")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Strings(Strings),
}

/// Many strings in one allocation: a vocabulary of 262,144 tokens costs its text and four bytes a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// End of each string in `text`.
    ends: Vec<u32>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `idx`, `None` past the end.
    pub fn get(&self, idx: usize) -> Option<&str> {
        let end = *self.ends.get(idx)? as usize;
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] as usize };
        self.text.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        (0..self.len()).map(|idx| self.get(idx).expect("idx is below len"))
    }

    /// Appends one string. The caller keeps the whole text under 4 GiB.
    pub(crate) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(u32::try_from(self.text.len()).expect("a header is at most 64 MiB"));
    }
}

impl<'a> FromIterator<&'a str> for Strings {
    fn from_iter<I: IntoIterator<Item = &'a str>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string));
        all
    }
}

/// All keys of a header. Getters come in pairs: `u32(key)` needs the key, `opt_u32(key)` answers `None` without it;
/// both refuse a value of another type.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    values: HashMap<String, Value>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $need:ident, $opt:ident -> $of:ty, $wanted:literal, $read:expr;)+) => { $(
        $(#[$doc])*
        /// # Errors
        /// [`LoadError::MissingMetadata`] without the key, [`LoadError::BadMetadata`] for a value of another type.
        pub fn $need(&self, key: &str) -> Result<$of, LoadError> {
            self.$opt(key)?.ok_or_else(|| LoadError::MissingMetadata { key: key.to_owned() })
        }

        #[doc = concat!("[`Self::", stringify!($need), "`], or `None` without the key.")]
        /// # Errors
        /// [`LoadError::BadMetadata`] for a value of another type.
        pub fn $opt(&self, key: &str) -> Result<Option<$of>, LoadError> {
            let Some(value) = self.values.get(key) else { return Ok(None) };
            let read: fn(&Value) -> Option<$of> = $read;
            read(value).map(Some).ok_or_else(|| {
                LoadError::bad_metadata(key, format!("must be {}, not {}", $wanted, describe(value)))
            })
        }
    )+ };
}

impl Metadata {
    /// The value under `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True without any key.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds a key; false when it was there already (and is left as it was).
    pub(crate) fn insert(&mut self, key: String, value: Value) -> bool {
        match self.values.entry(key) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(value);
                true
            }
        }
    }

    /// Adds what `other` has under keys that are not there yet.
    pub(super) fn append(&mut self, other: Self) {
        for (key, value) in other.values {
            self.insert(key, value);
        }
    }

    getters! {
        /// Text.
        string, opt_string -> &str, "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        };
        /// An integer of any width whose value fits 32 unsigned bits.
        u32, opt_u32 -> u32, "an integer from 0 to 4294967295", |value| match value {
            Value::Unsigned(number) => u32::try_from(*number).ok(),
            Value::Signed(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        /// A finite number of either float width (rounded to 32 bits).
        f32, opt_f32 -> f32, "a finite 32-bit float", |value| match value {
            Value::Float(number) => Some(*number as f32).filter(|number| number.is_finite()),
            _ => None,
        };
        /// A truth value.
        bool, opt_bool -> bool, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        };
        /// An array of strings.
        strings, opt_strings -> &Strings, "an array of strings", |value| match value {
            Value::Array(Array::Strings(strings)) => Some(strings),
            _ => None,
        };
        /// An array of 32-bit floats (not checked for NaN).
        f32s, opt_f32s -> &[f32], "an array of 32-bit floats", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(numbers),
            _ => None,
        };
        /// An array of integers of any width whose values all fit 32 signed bits; borrowed where the file has `i32`.
        i32s, opt_i32s -> Cow<'_, [i32]>, "an array of integers that fit 32 signed bits", |value| match value {
            Value::Array(array) => narrow(array),
            _ => None,
        };
        /// An array of truth values.
        bools, opt_bools -> &[bool], "an array of true or false", |value| match value {
            Value::Array(Array::Bool(flags)) => Some(flags),
            _ => None,
        };
    }
}

fn narrow(array: &Array) -> Option<Cow<'_, [i32]>> {
    fn each<T: Copy>(numbers: &[T]) -> Option<Cow<'static, [i32]>>
    where
        i32: TryFrom<T>,
    {
        numbers.iter().map(|number| i32::try_from(*number).ok()).collect::<Option<Vec<_>>>().map(Cow::Owned)
    }
    match array {
        Array::I32(numbers) => Some(Cow::Borrowed(numbers)),
        Array::U8(numbers) => each(numbers),
        Array::I8(numbers) => each(numbers),
        Array::U16(numbers) => each(numbers),
        Array::I16(numbers) => each(numbers),
        Array::U32(numbers) => each(numbers),
        Array::U64(numbers) => each(numbers),
        Array::I64(numbers) => each(numbers),
        Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Strings(_) => None,
    }
}

/// What a value is, for an error message; never its whole content.
fn describe(value: &Value) -> String {
    match value {
        Value::Unsigned(number) => format!("the integer {number}"),
        Value::Signed(number) => format!("the integer {number}"),
        Value::Float(number) => format!("the float {number}"),
        Value::Bool(flag) => format!("{flag}"),
        Value::String(text) => format!("a string of {} bytes", text.len()),
        Value::Array(_) => "an array of another type or range".to_owned(),
    }
}
