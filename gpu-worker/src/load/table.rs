//! The tensors of a model, whatever files they lie in, found by name.

use std::ops::Deref;

use super::{LoadError, TensorInfo};

/// Whose names and conventions a model's files follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One GGUF file, as llama.cpp's converter writes it.
    Gguf,
    /// A folder as transformers saves it.
    HuggingFace,
}

/// Checked tensors, in the order of their files. Names are unique.
#[derive(Debug)]
pub struct TensorTable {
    tensors: Vec<TensorInfo>,
    /// Indexes into `tensors`, sorted by name.
    by_name: Vec<u32>,
}

impl TensorTable {
    /// Takes tensors whose names and places were checked: at most [`super::check::MAX_TENSORS`].
    pub(super) fn new(tensors: Vec<TensorInfo>) -> Self {
        let mut by_name: Vec<u32> = (0..u32::try_from(tensors.len()).expect("at most MAX_TENSORS")).collect();
        by_name.sort_unstable_by_key(|idx| tensors[*idx as usize].name.as_str());
        Self { tensors, by_name }
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`] when there is none of that name.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        self.opt_tensor(name).ok_or_else(|| LoadError::MissingTensor { name: name.to_owned() })
    }

    /// The tensor called `name`, where the architecture does without it.
    pub fn opt_tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.by_name.binary_search_by_key(&name, |idx| self.tensors[*idx as usize].name.as_str()).ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }
}

impl Deref for TensorTable {
    type Target = [TensorInfo];

    fn deref(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

impl<'a> IntoIterator for &'a TensorTable {
    type Item = &'a TensorInfo;
    type IntoIter = std::slice::Iter<'a, TensorInfo>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.iter()
    }
}
