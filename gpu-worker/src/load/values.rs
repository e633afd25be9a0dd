//! Reading metadata values: types by number, arrays without nesting, nothing longer than the header may be.

use std::io::Read;

use super::{
    LoadError,
    check::{MAX_ARRAY_ELEMENTS, MAX_HEADER_BYTES},
    metadata::{Array, Metadata, Strings, Value},
    source::Source,
};

impl Metadata {
    /// Reads `n_keys` pairs.
    pub(super) fn read(source: &mut Source<impl Read>, n_keys: u64) -> Result<Self, LoadError> {
        let mut metadata = Self::default();
        for key_idx in 0..n_keys {
            let key = source.name(&format!("metadata key {key_idx}"))?;
            let kind = source.u32(&key)?;
            let value =
                if kind == 9 { Value::Array(read_array(source, &key)?) } else { read_scalar(source, &key, kind)? };
            if !metadata.insert(key.clone(), value) {
                return Err(LoadError::malformed(format!("metadata key {key:?} appears twice")));
            }
        }
        Ok(metadata)
    }
}

fn read_scalar(source: &mut Source<impl Read>, key: &str, kind: u32) -> Result<Value, LoadError> {
    Ok(match kind {
        0 => Value::Unsigned(u64::from(u8::from_le_bytes(source.array(key)?))),
        1 => Value::Signed(i64::from(i8::from_le_bytes(source.array(key)?))),
        2 => Value::Unsigned(u64::from(u16::from_le_bytes(source.array(key)?))),
        3 => Value::Signed(i64::from(i16::from_le_bytes(source.array(key)?))),
        4 => Value::Unsigned(u64::from(source.u32(key)?)),
        5 => Value::Signed(i64::from(i32::from_le_bytes(source.array(key)?))),
        6 => Value::Float(f64::from(f32::from_le_bytes(source.array(key)?))),
        7 => Value::Bool(truth(source.array::<1>(key)?[0], key)?),
        8 => Value::String(source.text(&mut Vec::new(), MAX_HEADER_BYTES, key)?.to_owned()),
        10 => Value::Unsigned(source.u64(key)?),
        11 => Value::Signed(i64::from_le_bytes(source.array(key)?)),
        12 => Value::Float(f64::from_le_bytes(source.array(key)?)),
        unknown => {
            return Err(LoadError::malformed(format!("{key:?} has value type {unknown}, which GGUF lacks")));
        }
    })
}

fn read_array(source: &mut Source<impl Read>, key: &str) -> Result<Array, LoadError> {
    fn numbers<const N: usize, T>(
        source: &mut Source<impl Read>,
        key: &str,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, LoadError> {
        let count = source.count(key, MAX_ARRAY_ELEMENTS, N as u64)?;
        (0..count).map(|_| source.array(key).map(from)).collect()
    }
    let kind = source.u32(key)?;
    Ok(match kind {
        0 => Array::U8(numbers(source, key, u8::from_le_bytes)?),
        1 => Array::I8(numbers(source, key, i8::from_le_bytes)?),
        2 => Array::U16(numbers(source, key, u16::from_le_bytes)?),
        3 => Array::I16(numbers(source, key, i16::from_le_bytes)?),
        4 => Array::U32(numbers(source, key, u32::from_le_bytes)?),
        5 => Array::I32(numbers(source, key, i32::from_le_bytes)?),
        6 => Array::F32(numbers(source, key, f32::from_le_bytes)?),
        7 => {
            let count = source.count(key, MAX_ARRAY_ELEMENTS, 1)?;
            Array::Bool((0..count).map(|_| truth(source.array::<1>(key)?[0], key)).collect::<Result<_, _>>()?)
        }
        8 => {
            let count = source.count(key, MAX_ARRAY_ELEMENTS, 8)?;
            let (mut strings, mut buffer) = (Strings::default(), Vec::new());
            for _ in 0..count {
                strings.push(source.text(&mut buffer, MAX_HEADER_BYTES, key)?);
            }
            Array::Strings(strings)
        }
        9 => {
            return Err(LoadError::malformed(format!("{key:?} is an array of arrays, which no model needs")));
        }
        10 => Array::U64(numbers(source, key, u64::from_le_bytes)?),
        11 => Array::I64(numbers(source, key, i64::from_le_bytes)?),
        12 => Array::F64(numbers(source, key, f64::from_le_bytes)?),
        unknown => {
            return Err(LoadError::malformed(format!("{key:?} has element type {unknown}, which GGUF lacks")));
        }
    })
}

fn truth(byte: u8, key: &str) -> Result<bool, LoadError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(LoadError::malformed(format!("{key:?} holds {other} where true (1) or false (0) belongs"))),
    }
}
