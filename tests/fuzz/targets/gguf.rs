//! Any bytes as a model file: refused with a reason, or a model that can be described, loaded and prompted.
#![no_main]

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::sync::{Arc, LazyLock};

use candle_core::Device;
use gpu_worker::load::gguf::{LoadOptions, load_tensors};
use gpu_worker::load::{GgufHeader, LoadError};
use gpu_worker::model::family::read_config;
use gpu_worker::text::{Prompts, TextStream};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

/// Zeros that stand for the weights, which would only be ballast in an input.
const TAIL_BYTES: u64 = 256 << 10;

fuzz_target!(|bytes: &[u8]| {
    match GgufHeader::read(&mut Cursor::new(bytes)) {
        Ok(header) => accepted(header, Cursor::new(bytes)),
        Err(error @ LoadError::Truncated { .. }) => {
            refused(&error);
            let mut file = WithTail { bytes, position: 0 };
            match GgufHeader::read(&mut file) {
                Ok(header) => accepted(header, file),
                Err(error) => refused(&error),
            }
        }
        Err(error) => refused(&error),
    }
});

/// The bytes, then [`TAIL_BYTES`] zeros.
struct WithTail<'a> {
    bytes: &'a [u8],
    position: u64,
}

impl WithTail<'_> {
    fn len(&self) -> u64 {
        self.bytes.len() as u64 + TAIL_BYTES
    }
}

impl Read for WithTail<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.len().saturating_sub(self.position)).unwrap_or(usize::MAX);
        let n_read = left.min(into.len());
        let given = self.bytes.get(self.position as usize..).unwrap_or_default();
        let n_given = given.len().min(n_read);
        into[..n_given].copy_from_slice(&given[..n_given]);
        into[n_given..n_read].fill(0);
        self.position += n_read as u64;
        Ok(n_read)
    }
}

impl Seek for WithTail<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.position = match to {
            SeekFrom::Start(position) => position,
            SeekFrom::End(by) => self.len().checked_add_signed(by).ok_or(std::io::ErrorKind::InvalidInput)?,
            SeekFrom::Current(by) => self.position.checked_add_signed(by).ok_or(std::io::ErrorKind::InvalidInput)?,
        };
        Ok(self.position)
    }
}

fn refused(error: &LoadError) {
    let message = error.to_string();
    // A name of 512 bytes is quoted with escapes.
    assert!(!message.is_empty() && message.len() < 16_384, "{message}");
    if let LoadError::Truncated { needed_bytes, file_bytes, .. } = error {
        assert!(needed_bytes > file_bytes, "{message}");
    }
}

/// What the reader promises of a header, then everything that is made of one.
fn accepted(header: GgufHeader, file: impl Read + Seek) {
    assert!(header.alignment.is_power_of_two() && (8..=4_096).contains(&header.alignment));
    let mut ends = Vec::new();
    for tensor in &header.tensors {
        assert_eq!(header.tensor(&tensor.name).expect("every tensor is found by its name"), tensor);
        assert!((1..=4).contains(&tensor.dims.len()));
        let n_values: u128 = tensor.dims.iter().map(|dim| u128::from(*dim)).product();
        let (block, block_bytes) = (tensor.dtype.block_size() as u128, tensor.dtype.type_size() as u128);
        assert_eq!(u128::from(tensor.bytes) * block, n_values * block_bytes, "{}", tensor.name);
        assert!(tensor.offset >= header.data_offset && tensor.offset.is_multiple_of(header.alignment));
        ends.push((tensor.offset, tensor.offset.checked_add(tensor.bytes).expect("ends inside the file")));
    }
    ends.sort_unstable();
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap");
    assert!(ends.last().is_none_or(|(_, end)| *end <= header.file_bytes));

    match Prompts::from_gguf(&header.metadata) {
        Ok(prompts) => prompt(&prompts),
        Err(error) => refused(&error),
    }
    match read_config(&header) {
        Ok(config) => {
            config.validate().expect("a config that was read is valid");
            assert!(config.kv_bytes_per_block() > 0);
        }
        Err(error) => return refused(&error),
    }
    match load_tensors(file, header, &Device::Cpu, LoadOptions::default()) {
        Ok(model) => assert_eq!(model.decoder.layers.len(), model.decoder.config.n_layers()),
        Err(error) => refused(&error),
    }
}

static CONVERSATION: LazyLock<Value> = LazyLock::new(|| {
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1 <|im_end|> é漢🦀\n\n<start_of_turn>"},
        {"role": "assistant", "content": "2", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{\"x\": [1, 2.5, null]}"}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "3.5"},
        {"role": "user", "content": "thanks"},
    ])
});

static TOOLS: LazyLock<Value> = LazyLock::new(|| {
    json!([{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
        "type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}, "required": ["x"],
    }}}])
});

/// Prompts of every kind: each makes ids of the vocabulary, or an error with a message.
fn prompt(prompts: &Prompts) {
    let texts = ["Hello, wörld 漢字 <|im_start|>  \r\n\t1234 don't", ""];
    let made = [
        prompts.completion(texts[0], false),
        prompts.completion(texts[0], true),
        prompts.completion(texts[1], true),
        prompts.chat(&CONVERSATION, None, true),
        prompts.chat(&CONVERSATION, Some(&TOOLS), false),
    ];
    for made in made {
        match made {
            Ok(prompt) => ids(prompts, &prompt.ids),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A stream of ids and the whole of them are the same text.
fn ids(prompts: &Prompts, ids: &[u32]) {
    let tokenizer = prompts.tokenizer();
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
    let mut stream = TextStream::new(Arc::clone(tokenizer), Vec::new(), false, true);
    let mut streamed: String = ids.iter().map(|id| stream.push(*id).text).collect();
    streamed.push_str(&stream.finish());
    assert_eq!(streamed, tokenizer.decode(ids, true));
}
