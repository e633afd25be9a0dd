//! From checked tensors to a decoder. Weights are read one tensor at a time, so that loading takes the packed model and
//! its largest tensor, never the files twice.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use kernels::{EmbeddingTable, KernelError, PackedLinear, RopeTable};

use super::{Layout, LoadError, TensorInfo, TensorTable};
use crate::model::attention::Attention;
use crate::model::config::{Architecture, LayerConfig, ModelConfig, RopeDivisors};
use crate::model::decoder::{Decoder, Layer};
use crate::model::tensors::{self, LayerNames, Matrix, Names};

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Called after every tensor with the bytes of weights read so far and in all.
    pub progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

/// Tensors and where their bytes come from.
pub(super) struct Weights<'a, F> {
    /// The file, or several as one; the tensors' offsets are places in it.
    pub(super) file: F,
    pub(super) tensors: &'a TensorTable,
    pub(super) layout: Layout,
}

/// Loads the weights that `config` calls for.
///
/// # Errors
/// [`LoadError`] naming the tensor that is wrong. Never a panic, whatever the tensors hold.
pub(super) fn load(
    weights: Weights<'_, impl Read + Seek>,
    config: ModelConfig,
    device: &Device,
    options: LoadOptions<'_>,
) -> Result<Decoder, LoadError> {
    tensors::check(weights.tensors, &config, weights.layout)?;
    let total = weights.tensors.iter().map(|info| info.bytes).sum();
    let Weights { file, tensors, layout } = weights;
    let norm_offset = match (layout, config.architecture) {
        // The family's norms multiply by 1 + weight; GGUF files hold the sum already.
        (Layout::HuggingFace, Architecture::Gemma3) => 1.0,
        _ => 0.0,
    };
    // llama.cpp turns neighbours where the models turn halves, and its converter reorders the rows to match. Ours turns
    // halves, so they are put back; that is exact for every format, because no block of weights spans two rows.
    let halves_interleaved = layout == Layout::Gguf && config.architecture == Architecture::Llama;
    let reader = Reader {
        file,
        tensors,
        layout,
        device,
        options,
        norm_offset,
        halves_interleaved,
        buffer: Vec::new(),
        done: 0,
        total,
    };
    reader.decoder(config)
}

/// Reads tensors by name. One buffer serves all of them.
struct Reader<'a, 'p, F> {
    file: F,
    tensors: &'a TensorTable,
    layout: Layout,
    device: &'a Device,
    options: LoadOptions<'p>,
    /// Added to every weight of a norm.
    norm_offset: f32,
    /// Rows of query and key heads lie as (pair, half) instead of (half, pair).
    halves_interleaved: bool,
    buffer: Vec<u8>,
    done: u64,
    total: u64,
}

impl<'a, F: Read + Seek> Reader<'a, '_, F> {
    fn decoder(mut self, config: ModelConfig) -> Result<Decoder, LoadError> {
        let names = Names::of(&config, self.layout);
        let divisors = match &config.rope_divisors {
            RopeDivisors::None => None,
            RopeDivisors::Values(values) => Some(values.clone()),
            RopeDivisors::Tensor(name) => Some(self.floats(name)?),
        };
        let mut ropes = Ropes { divisors, tables: HashMap::new() };
        let mut layers = Vec::with_capacity(config.n_layers());
        for (layer_idx, layer) in config.layers.iter().enumerate() {
            let rope = ropes.get(layer, &config)?;
            layers.push(self.layer(&names.layer(layer_idx), layer, rope, &config)?);
        }
        let output_norm = self.norm(names.output_norm)?;
        let (embedding, tied_head) = self.embedding(&names)?;
        let head = match tied_head {
            Some(head) => head,
            None => self.matrix(&names.head_matrix())?,
        };
        Ok(Decoder { config, embedding, layers, output_norm, head, device: self.device.clone() })
    }

    fn layer(
        &mut self,
        names: &LayerNames,
        layer: &LayerConfig,
        rope: Arc<RopeTable>,
        config: &ModelConfig,
    ) -> Result<Layer, LoadError> {
        let attention = Attention {
            q: self.turned_matrix(&names.q, config.head_dim)?,
            k: self.turned_matrix(&names.k, config.head_dim)?,
            v: self.matrix(&names.v)?,
            qkv_bias: names.qkv_bias.as_ref().map(|names| self.vectors(names)).transpose()?,
            qk_norm: match &names.qk_norm {
                Some([q, k]) => Some([self.norm(q)?, self.norm(k)?]),
                None => None,
            },
            o: self.matrix(&names.o)?,
            rope,
            window: layer.window.map(|window| window as u32),
            scale: config.attention_scale,
            norm_eps: config.norm_eps,
            head_dim: config.head_dim,
        };
        Ok(Layer {
            attn_norm: self.norm(&names.attn_norm)?,
            attention,
            post_attn_norm: names.post_attn_norm.as_deref().map(|name| self.norm(name)).transpose()?,
            mlp_norm: self.norm(&names.mlp_norm)?,
            gate: self.matrix(&names.gate)?,
            up: self.matrix(&names.up)?,
            down: self.matrix(&names.down)?,
            post_mlp_norm: names.post_mlp_norm.as_deref().map(|name| self.norm(name)).transpose()?,
        })
    }

    /// The embedding, and the head packed from the same bytes where that is the model's head.
    fn embedding(&mut self, names: &Names<'_>) -> Result<(EmbeddingTable, Option<PackedLinear>), LoadError> {
        let info = self.tensors.tensor(names.embedding)?;
        // `tensors::check` has seen that it is a matrix, of sizes that fit a machine word.
        let (n, k) = (info.dims[0] as usize, info.dims[1] as usize);
        self.read(info, 0..n)?;
        let failed = |err| tensor_error(names.embedding, err);
        let head = match names.has_own_head(self.tensors) {
            true => None,
            false => Some(PackedLinear::on_device(info.dtype, &self.buffer, n, k, self.device).map_err(failed)?),
        };
        let table = EmbeddingTable::from_ggml(info.dtype, &self.buffer, n, k).map_err(failed)?;
        Ok((table, head))
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<PackedLinear, LoadError> {
        let info = self.tensors.tensor(&matrix.name)?;
        self.read(info, matrix.rows.clone())?;
        self.pack(info, matrix)
    }

    /// A matrix whose rows are heads that will be turned.
    fn turned_matrix(&mut self, matrix: &Matrix, head_dim: usize) -> Result<PackedLinear, LoadError> {
        let info = self.tensors.tensor(&matrix.name)?;
        self.read(info, matrix.rows.clone())?;
        if self.halves_interleaved {
            self.buffer = halves_apart(&self.buffer, matrix.rows.len(), head_dim);
        }
        self.pack(info, matrix)
    }

    fn pack(&self, info: &TensorInfo, matrix: &Matrix) -> Result<PackedLinear, LoadError> {
        PackedLinear::on_device(info.dtype, &self.buffer, matrix.rows.len(), matrix.k, self.device)
            .map_err(|err| tensor_error(&matrix.name, err))
    }

    fn vectors<const N: usize>(&mut self, names: &[String; N]) -> Result<[Tensor; N], LoadError> {
        let vectors = names.iter().map(|name| self.vector(name, 0.0)).collect::<Result<Vec<_>, _>>()?;
        Ok(vectors.try_into().expect("one vector per name"))
    }

    fn norm(&mut self, name: &str) -> Result<Tensor, LoadError> {
        self.vector(name, self.norm_offset)
    }

    /// A vector of floats, widened to float32, with `offset` added to each.
    fn vector(&mut self, name: &str, offset: f32) -> Result<Tensor, LoadError> {
        let values: Vec<f32> = self.floats(name)?.into_iter().map(|value| value + offset).collect();
        Tensor::new(values, self.device).map_err(|source| LoadError::Tensor { name: name.to_owned(), source })
    }

    /// The finite values of a vector.
    fn floats(&mut self, name: &str) -> Result<Vec<f32>, LoadError> {
        let info = self.tensors.tensor(name)?;
        self.read(info, 0..info.dims[0] as usize)?;
        let values = floats(&self.buffer, info.dtype).ok_or_else(|| LoadError::UnsupportedTensorType {
            name: name.to_owned(),
            ggml_type: format!("{:?}", info.dtype),
        })?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(LoadError::malformed(format!("tensor {name:?} holds a value that is not finite")));
        }
        Ok(values)
    }

    /// Fills the buffer with the bytes of some of the tensor's rows (of a vector: values).
    fn read(&mut self, info: &TensorInfo, rows: Range<usize>) -> Result<(), LoadError> {
        // The table was checked: whole rows of at least one byte, inside the file.
        let row_bytes = info.bytes / info.dims[0];
        let (offset, bytes) = (info.offset + rows.start as u64 * row_bytes, rows.len() as u64 * row_bytes);
        self.file.seek(SeekFrom::Start(offset)).map_err(LoadError::Io)?;
        self.buffer.clear();
        // `take` and `read_to_end`, not a buffer of the promised length: the file may have shrunk since it was checked.
        let n_read = (&mut self.file).take(bytes).read_to_end(&mut self.buffer).map_err(LoadError::Io)?;
        if n_read as u64 != bytes {
            return Err(LoadError::Truncated {
                what: format!("tensor {:?}", info.name),
                needed_bytes: offset + bytes,
                file_bytes: offset + n_read as u64,
            });
        }
        self.done += bytes;
        if let Some(progress) = &mut self.options.progress {
            progress(self.done, self.total);
        }
        Ok(())
    }
}

/// `n_rows` rows of whole heads from the order (pair, half) to (half, pair).
fn halves_apart(rows: &[u8], n_rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = rows.len() / n_rows;
    let mut apart = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * row_bytes) {
        for half in 0..2 {
            for pair in 0..head_dim / 2 {
                apart.extend_from_slice(&head[(2 * pair + half) * row_bytes..][..row_bytes]);
            }
        }
    }
    apart
}

/// One rotary table per base and scale, shared by the layers that turn alike.
struct Ropes {
    divisors: Option<Vec<f32>>,
    tables: HashMap<(u32, u32), Arc<RopeTable>>,
}

impl Ropes {
    fn get(&mut self, layer: &LayerConfig, config: &ModelConfig) -> Result<Arc<RopeTable>, LoadError> {
        let key = (layer.rope_base.to_bits(), layer.rope_scale.to_bits());
        if let Some(table) = self.tables.get(&key) {
            return Ok(table.clone());
        }
        let scale = 1.0 / layer.rope_scale;
        let plain = RopeTable::new(config.head_dim, layer.rope_base, scale, config.context_tokens);
        let divided = match &self.divisors {
            Some(divisors) => plain.and_then(|table| table.divided_by(divisors)),
            None => plain,
        };
        let table = divided
            .and_then(|table| table.stretched_by(config.rope_magnitude))
            .map_err(|err| LoadError::malformed(err.to_string()))?;
        Ok(self.tables.entry(key).or_insert(Arc::new(table)).clone())
    }
}

/// The values of an unquantised tensor; `None` for any other format.
fn floats(bytes: &[u8], dtype: GgmlDType) -> Option<Vec<f32>> {
    let halves = |widen: fn([u8; 2]) -> f32| bytes.as_chunks().0.iter().map(|&pair| widen(pair)).collect();
    match dtype {
        GgmlDType::F32 => Some(bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()),
        GgmlDType::F16 => Some(halves(|pair| half::f16::from_le_bytes(pair).to_f32())),
        GgmlDType::BF16 => Some(halves(|pair| half::bf16::from_le_bytes(pair).to_f32())),
        _ => None,
    }
}

fn tensor_error(name: &str, err: KernelError) -> LoadError {
    LoadError::Tensor { name: name.to_owned(), source: candle_core::Error::wrap(err) }
}
