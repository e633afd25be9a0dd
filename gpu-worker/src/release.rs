//! From a model file to a release: first its identity (cheap, from header and checksum), then its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use contract::ServedModel;
use contract::release::Manifest;

use crate::engine::plan::{BLOCK_TOKENS, Forward, ForwardError, StepPlan};
use crate::forward::candle::CandleForward;
use crate::forward::push_span;
use crate::forward::trivial::{Ending, TrivialConfig, TrivialForward};
use crate::grammar::GRAMMAR_ENGINE;
use crate::load::GgufHeader;
use crate::load::LoadError;
use crate::load::gguf::{self, LoadOptions};
use crate::model::config::ModelConfig;
use crate::model::family::read_config;
use crate::text::{Prompts, TextTokenizer};

/// Why a release could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The file cannot be opened.
    #[error("{} cannot be opened", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: std::io::Error,
    },
    /// The file is no model that this build runs.
    #[error("{} cannot be served", .path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<LoadError>,
    },
    /// The first step failed.
    #[error("{} was loaded, but its first step failed", .path.display())]
    WarmUp {
        /// The file.
        path: PathBuf,
        /// What the device says.
        #[source]
        source: ForwardError,
    },
    /// Not even one sequence of the context fits the cache.
    #[error("a KV cache of {mib} MiB holds {tokens} tokens, too few to answer anything: raise engine.kv_cache_mib")]
    CacheTooSmall {
        /// As configured.
        mib: u64,
        /// What fits.
        tokens: usize,
    },
}

/// A model file whose header was read and checked, before its weights are.
pub struct Identified {
    path: PathBuf,
    config: ModelConfig,
    prompts: Arc<Prompts>,
    /// What the API offers.
    pub served: ServedModel,
}

/// A release ready to run.
pub struct LoadedRelease {
    /// What the API offers.
    pub served: ServedModel,
    /// Its tokenizer.
    pub tokenizer: Arc<TextTokenizer>,
    /// From requests to token ids.
    pub prompts: Arc<Prompts>,
    /// The model.
    pub forward: Box<dyn Forward>,
    /// Tokens that the cache holds.
    pub cache_tokens: usize,
}

/// Reads header, tokenizer and template of the model file at `path`. `sha256` is the file's checksum, hexadecimal.
///
/// # Errors
/// [`ReleaseError`] names what is wrong with the file.
pub fn identify(path: &Path, name: &str, sha256: &str) -> Result<Identified, ReleaseError> {
    let wrong = |source: LoadError| ReleaseError::Load { path: path.to_owned(), source: Box::new(source) };
    let mut file = std::fs::File::open(path).map_err(|source| ReleaseError::Open { path: path.to_owned(), source })?;
    let header = GgufHeader::read(&mut std::io::BufReader::new(&mut file)).map_err(wrong)?;
    let config = read_config(&header).map_err(wrong)?;
    let prompts = Arc::new(Prompts::from_gguf(&header.metadata).map_err(wrong)?);
    let manifest = Manifest {
        model_sha256: sha256.to_owned(),
        engine: engine_build(),
        numerics: numerics(&header),
        reading: prompts.reading(),
    };
    let served = served(name, manifest, &config, &prompts);
    Ok(Identified { path: path.to_owned(), config, prompts, served })
}

/// What the API is told of a release.
fn served(name: &str, manifest: Manifest, config: &ModelConfig, prompts: &Prompts) -> ServedModel {
    ServedModel {
        name: name.to_owned(),
        release: manifest.fingerprint(),
        manifest,
        context_tokens: config.context_tokens as u32,
        longest_token_bytes: prompts.tokenizer().longest_token_bytes() as u32,
        has_chat_template: prompts.template().is_some(),
        vocab_size: config.vocab_size as u32,
    }
}

/// A release without a model, for benchmarks of everything around the engine: the tokenizer of a model file in memory and
/// logits that are a hash of the history. Its manifest says so, so nothing it answers can be taken for a model's.
///
/// # Errors
/// [`LoadError`] when the file's header or tokenizer cannot be read.
pub fn trivial(file: &[u8], n_blocks: usize) -> Result<LoadedRelease, LoadError> {
    let header = GgufHeader::read(&mut std::io::Cursor::new(file))?;
    let config = read_config(&header)?;
    let prompts = Arc::new(Prompts::from_gguf(&header.metadata)?);
    let manifest = Manifest {
        model_sha256: "none".to_owned(),
        engine: engine_build(),
        numerics: "trivial: no model, logits are a hash".to_owned(),
        reading: prompts.reading(),
    };
    let served = served("trivial", manifest, &config, &prompts);
    let forward = TrivialForward::new(TrivialConfig {
        vocab_size: config.vocab_size,
        context_tokens: config.context_tokens,
        n_blocks,
        step_delay: Duration::ZERO,
        ending: Ending::Never,
    });
    Ok(LoadedRelease {
        served,
        tokenizer: Arc::clone(prompts.tokenizer()),
        prompts,
        forward: Box::new(forward),
        cache_tokens: n_blocks * BLOCK_TOKENS,
    })
}

/// The versions that decide, beside the weights and the numerics, which tokens an answer is made of.
fn engine_build() -> String {
    format!("penstock {}, {GRAMMAR_ENGINE}", env!("CARGO_PKG_VERSION"))
}

/// The kernel path and the block formats of the file's matrices: what decides the numbers beside the weights.
fn numerics(header: &GgufHeader) -> String {
    let mut formats: Vec<String> = header
        .tensors
        .iter()
        .filter(|tensor| tensor.dims.len() > 1)
        .map(|tensor| format!("{:?}", tensor.dtype).to_lowercase())
        .collect();
    formats.sort();
    formats.dedup();
    format!("cpu {}, f32 activations and cache, weights {}", kernels::cpu_path(), formats.join(" "))
}

/// A prompt of two blocks and a token after it: threads are started, weights and tables touched, memory for scratch taken,
/// so that the first request is as quick as the second.
fn warm_up(forward: &mut dyn Forward) -> Result<(), ForwardError> {
    let blocks = [0, 1, 2];
    let prompt = vec![0; 2 * BLOCK_TOKENS];
    for (tokens, context) in [(prompt.as_slice(), 0), (&[0], prompt.len())] {
        let mut plan = StepPlan::default();
        push_span(&mut plan, tokens, context, &blocks, tokens.len() - 1..tokens.len());
        forward.step(&plan)?;
    }
    Ok(())
}

impl Identified {
    /// MiB of cache that hold `n_tokens`, with a little to spare.
    pub fn kv_cache_mib_for(&self, n_tokens: usize) -> u64 {
        let n_blocks = n_tokens.div_ceil(BLOCK_TOKENS).max(8) as u64 + 8;
        (n_blocks * self.config.kv_bytes_per_block() as u64).div_ceil(1024 * 1024)
    }

    /// Loads the weights and makes the cache. Blocks for as long as the disk and the repacking take.
    ///
    /// # Errors
    /// [`ReleaseError`] names the tensor or setting that is wrong.
    pub fn load(self, kv_cache_mib: u64, progress: &mut dyn FnMut(u64, u64)) -> Result<LoadedRelease, ReleaseError> {
        let block_bytes = self.config.kv_bytes_per_block() as u64;
        let for_context = self.config.context_tokens.div_ceil(BLOCK_TOKENS) as u64;
        let n_blocks = (kv_cache_mib * 1024 * 1024 / block_bytes.max(1)) as usize;
        let cache_tokens = n_blocks * BLOCK_TOKENS;
        if n_blocks < 8 {
            return Err(ReleaseError::CacheTooSmall { mib: kv_cache_mib, tokens: cache_tokens });
        }
        if (n_blocks as u64) < for_context {
            tracing::warn!(
                cache_tokens,
                context_tokens = self.config.context_tokens,
                "the KV cache holds less than one full context; longer requests are refused"
            );
        }
        let wrong = |source: LoadError| ReleaseError::Load { path: self.path.clone(), source: Box::new(source) };
        let options = LoadOptions { progress: Some(progress) };
        let model = gguf::load(&self.path, &Device::Cpu, options).map_err(wrong)?;
        let mut forward = CandleForward::new(model, n_blocks).map_err(wrong)?;
        warm_up(&mut forward).map_err(|source| ReleaseError::WarmUp { path: self.path.clone(), source })?;
        Ok(LoadedRelease {
            served: self.served,
            tokenizer: Arc::clone(self.prompts.tokenizer()),
            prompts: self.prompts,
            forward: Box::new(forward),
            cache_tokens,
        })
    }
}
