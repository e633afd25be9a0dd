//! A model from one GGUF file: everything is checked before the first weight is read, and weights are read one tensor
//! at a time, so that loading takes the packed model and its largest tensor, never the file twice.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use kernels::{EmbeddingTable, KernelError, PackedLinear, RopeTable};

use super::{GgufHeader, LoadError, TensorInfo};
use crate::model::attention::Attention;
use crate::model::config::{LayerConfig, ModelConfig};
use crate::model::decoder::{Decoder, Layer};
use crate::model::family::read_config;
use crate::model::tensors::{self, LayerNames, Names};

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Called after every tensor with the bytes of weights read so far and in all.
    pub progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

/// A model in memory.
#[derive(Debug)]
pub struct LoadedModel {
    /// Config and weights.
    pub decoder: Decoder,
    /// What the file says of itself; tokenizer and chat template are in its metadata.
    pub header: GgufHeader,
}

/// Loads the model in the GGUF file at `path` for computing on `device`.
///
/// The file's checksum is not looked at here.
///
/// # Errors
/// [`LoadError`], naming the key or the tensor that is wrong. Never a panic, whatever the file holds.
pub fn load(path: &Path, device: &Device, options: LoadOptions<'_>) -> Result<LoadedModel, LoadError> {
    let mut file = File::open(path).map_err(LoadError::Io)?;
    let header = GgufHeader::read(&mut BufReader::new(&mut file))?;
    load_tensors(file, header, device, options)
}

/// Loads the weights that `header`, read from `file`, speaks of.
///
/// # Errors
/// As [`load`].
pub fn load_tensors(
    file: impl Read + Seek,
    header: GgufHeader,
    device: &Device,
    options: LoadOptions<'_>,
) -> Result<LoadedModel, LoadError> {
    let config = read_config(&header)?;
    tensors::check(&header, &config)?;
    let total = header.tensors.iter().map(|info| info.bytes).sum();
    let reader = Reader { file, header: &header, device, options, buffer: Vec::new(), done: 0, total };
    let decoder = reader.decoder(config)?;
    Ok(LoadedModel { decoder, header })
}

/// Reads tensors by name. One buffer serves all of them.
struct Reader<'a, 'p, F> {
    file: F,
    header: &'a GgufHeader,
    device: &'a Device,
    options: LoadOptions<'p>,
    buffer: Vec<u8>,
    done: u64,
    total: u64,
}

impl<'a, F: Read + Seek> Reader<'a, '_, F> {
    fn decoder(mut self, config: ModelConfig) -> Result<Decoder, LoadError> {
        let names = Names::of(&config);
        let mut ropes = Ropes::default();
        let mut layers = Vec::with_capacity(config.n_layers());
        for (layer_idx, layer) in config.layers.iter().enumerate() {
            let rope = ropes.get(layer, &config)?;
            layers.push(self.layer(&names.layer(layer_idx), layer, rope, &config)?);
        }
        let output_norm = self.vector(names.output_norm)?;
        let (embedding, tied_head) = self.embedding(&names)?;
        let head = match tied_head {
            Some(head) => head,
            None => self.matrix(names.head)?,
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
            q: self.matrix(&names.q)?,
            k: self.matrix(&names.k)?,
            v: self.matrix(&names.v)?,
            qkv_bias: self.vectors(names.qkv_bias.as_ref())?,
            qk_norm: self.vectors(names.qk_norm.as_ref())?,
            o: self.matrix(&names.o)?,
            rope,
            window: layer.window.map(|window| window as u32),
            scale: config.attention_scale,
            norm_eps: config.norm_eps,
            head_dim: config.head_dim,
        };
        Ok(Layer {
            attn_norm: self.vector(&names.attn_norm)?,
            attention,
            post_attn_norm: names.post_attn_norm.as_deref().map(|name| self.vector(name)).transpose()?,
            mlp_norm: self.vector(&names.mlp_norm)?,
            gate: self.matrix(&names.gate)?,
            up: self.matrix(&names.up)?,
            down: self.matrix(&names.down)?,
            post_mlp_norm: names.post_mlp_norm.as_deref().map(|name| self.vector(name)).transpose()?,
        })
    }

    /// The embedding, and the head packed from the same bytes where the file has no other head.
    fn embedding(&mut self, names: &Names) -> Result<(EmbeddingTable, Option<PackedLinear>), LoadError> {
        let info = self.read(names.embedding)?;
        let (n, k) = matrix_size(info);
        let failed = |err| tensor_error(names.embedding, err);
        let head = match self.header.opt_tensor(names.head) {
            Some(_) => None,
            None => Some(PackedLinear::on_device(info.dtype, &self.buffer, n, k, self.device).map_err(failed)?),
        };
        let table = EmbeddingTable::from_ggml(info.dtype, &self.buffer, n, k).map_err(failed)?;
        Ok((table, head))
    }

    fn matrix(&mut self, name: &str) -> Result<PackedLinear, LoadError> {
        let info = self.read(name)?;
        let (n, k) = matrix_size(info);
        PackedLinear::on_device(info.dtype, &self.buffer, n, k, self.device).map_err(|err| tensor_error(name, err))
    }

    fn vectors<const N: usize>(&mut self, names: Option<&[String; N]>) -> Result<Option<[Tensor; N]>, LoadError> {
        let Some(names) = names else { return Ok(None) };
        let vectors = names.iter().map(|name| self.vector(name)).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(vectors.try_into().expect("one vector per name")))
    }

    /// A vector of floats, widened to float32.
    fn vector(&mut self, name: &str) -> Result<Tensor, LoadError> {
        let info = self.read(name)?;
        let values = floats(&self.buffer, info.dtype).ok_or_else(|| LoadError::UnsupportedTensorType {
            name: name.to_owned(),
            ggml_type: format!("{:?}", info.dtype),
        })?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(LoadError::malformed(format!("tensor {name:?} holds a value that is not finite")));
        }
        Tensor::new(values, self.device).map_err(|source| LoadError::Tensor { name: name.to_owned(), source })
    }

    /// Fills the buffer with the tensor's bytes.
    fn read(&mut self, name: &str) -> Result<&'a TensorInfo, LoadError> {
        let info = self.header.tensor(name)?;
        self.file.seek(SeekFrom::Start(info.offset)).map_err(LoadError::Io)?;
        self.buffer.clear();
        // `take` and `read_to_end`, not a buffer of the promised length: the file may have shrunk since it was checked.
        let n_read = (&mut self.file).take(info.bytes).read_to_end(&mut self.buffer).map_err(LoadError::Io)?;
        if n_read as u64 != info.bytes {
            return Err(LoadError::Truncated {
                what: format!("tensor {name:?}"),
                needed_bytes: info.offset + info.bytes,
                file_bytes: info.offset + n_read as u64,
            });
        }
        self.done += info.bytes;
        if let Some(progress) = &mut self.options.progress {
            progress(self.done, self.total);
        }
        Ok(info)
    }
}

/// One rotary table per base and scale, shared by the layers that turn alike.
#[derive(Default)]
struct Ropes {
    tables: HashMap<(u32, u32), Arc<RopeTable>>,
}

impl Ropes {
    fn get(&mut self, layer: &LayerConfig, config: &ModelConfig) -> Result<Arc<RopeTable>, LoadError> {
        let key = (layer.rope_base.to_bits(), layer.rope_scale.to_bits());
        if let Some(table) = self.tables.get(&key) {
            return Ok(table.clone());
        }
        let scale = 1.0 / layer.rope_scale;
        let table = RopeTable::new(config.head_dim, layer.rope_base, scale, config.context_tokens)
            .map_err(|err| LoadError::Device(candle_core::Error::wrap(err)))?;
        Ok(self.tables.entry(key).or_insert(Arc::new(table)).clone())
    }
}

/// Rows and columns of a matrix; `tensors::check` has seen that it is one, of sizes that fit a machine word.
fn matrix_size(info: &TensorInfo) -> (usize, usize) {
    (info.dims[0] as usize, info.dims[1] as usize)
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
