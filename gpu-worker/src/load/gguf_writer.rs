//! Test support: writes GGUF bytes by hand, right or wrong as the test asks.

/// A file in the making. Every field may be set to a lie before [`GgufWriter::bytes`].
#[derive(Clone)]
pub(crate) struct GgufWriter {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    /// `None`: the true count.
    pub(crate) n_tensors: Option<u64>,
    /// `None`: the true count.
    pub(crate) n_keys: Option<u64>,
    /// Key, value type, encoded value.
    pub(crate) keys: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<TensorEntry>,
    /// Where the data section starts is a multiple of this.
    pub(crate) alignment: u64,
    /// Length of the data section; `None`: to the end of the last tensor.
    pub(crate) data_bytes: Option<usize>,
}

/// One line of the tensor table.
#[derive(Clone)]
pub(crate) struct TensorEntry {
    pub(crate) name: Vec<u8>,
    /// Innermost first, as in the file.
    pub(crate) dims: Vec<u64>,
    pub(crate) ggml_type: u32,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

impl GgufWriter {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_keys: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data_bytes: None,
        }
    }

    pub(crate) fn raw(mut self, key: &str, kind: u32, value: Vec<u8>) -> Self {
        self.keys.push((key.as_bytes().to_vec(), kind, value));
        self
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, text(value.as_bytes()))
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, value.to_le_bytes().to_vec())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, value.to_le_bytes().to_vec())
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, vec![u8::from(value)])
    }

    pub(crate) fn strings(self, key: &str, values: &[&str]) -> Self {
        let items = values.iter().map(|value| text(value.as_bytes()));
        self.raw(key, 9, array(8, values.len() as u64, items.flatten()))
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items = values.iter().flat_map(|value| value.to_le_bytes());
        self.raw(key, 9, array(5, values.len() as u64, items))
    }

    pub(crate) fn f32s(self, key: &str, values: &[f32]) -> Self {
        let items = values.iter().flat_map(|value| value.to_le_bytes());
        self.raw(key, 9, array(6, values.len() as u64, items))
    }

    /// A tensor after the ones before it; `dims` innermost first.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], ggml_type: u32, data: Vec<u8>) -> Self {
        let end = self.tensors.last().map_or(0, |last| last.offset + last.data.len() as u64);
        self.tensors.push(TensorEntry {
            name: name.as_bytes().to_vec(),
            dims: dims.to_vec(),
            ggml_type,
            offset: end.next_multiple_of(self.alignment),
            data,
        });
        self
    }

    /// Header and data as they would lie on disk.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.keys {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.ggml_type.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        let start = out.len().next_multiple_of(self.alignment.max(1) as usize);
        out.resize(start, 0);
        for tensor in self.tensors.iter().filter(|tensor| tensor.offset < 1 << 20) {
            let at = start + tensor.offset as usize;
            out.resize(out.len().max(at + tensor.data.len()), 0);
            out[at..at + tensor.data.len()].copy_from_slice(&tensor.data);
        }
        if let Some(data_bytes) = self.data_bytes {
            out.resize(start + data_bytes, 0);
        }
        out
    }
}

/// A length-prefixed string.
pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// Element type, count, elements.
pub(crate) fn array(kind: u32, count: u64, items: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let mut out = [kind.to_le_bytes().as_slice(), &count.to_le_bytes()].concat();
    out.extend(items);
    out
}
