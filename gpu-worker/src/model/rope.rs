//! How a model's files say that its heads are turned: base, and the ways to a longer context than it began with.

use super::config::RopeDivisors;
use super::family::{Keys, Sizes};
use crate::load::{LoadError, TensorTable};

const DEFAULT_BASE: f32 = 10_000.0;
/// GGUF's tensor with the divisors of Llama 3.1 and later.
pub(super) const LLAMA3_DIVISORS: &str = "rope_freqs.weight";
/// GGUF's tensor with the divisors for contexts up to the trained length.
pub(super) const SHORT_DIVISORS: &str = "rope_factors_short.weight";
/// GGUF's tensor with the divisors for longer ones.
pub(super) const LONG_DIVISORS: &str = "rope_factors_long.weight";

/// The turns of layers that are alike.
pub(super) struct Rope {
    pub base: f32,
    /// Positions are divided by this.
    pub scale: f32,
    pub divisors: RopeDivisors,
    pub magnitude: f32,
    /// Longest context for which these turns are right, where that is less than the model's own.
    pub context_tokens: Option<usize>,
}

impl Rope {
    fn plain(base: f32) -> Self {
        Self { base, scale: 1.0, divisors: RopeDivisors::None, magnitude: 1.0, context_tokens: None }
    }

    /// The base that a GGUF file gives, and nothing else.
    ///
    /// # Errors
    /// [`LoadError::BadMetadata`].
    pub fn unscaled(keys: &Keys<'_>) -> Result<Self, LoadError> {
        Ok(Self::plain(keys.opt_number("rope.freq_base")?.unwrap_or(DEFAULT_BASE)))
    }

    /// The turns of a model whose layers are all alike.
    ///
    /// # Errors
    /// [`LoadError`] naming a way of scaling that is not computed here, or a key that is missing or wrong.
    pub fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<Self, LoadError> {
        if !keys.of_folder() {
            return Ok(Self { scale: gguf_scale(keys)?, ..Self::unscaled(keys)? });
        }
        let settings = Settings::of_all_layers(keys)?;
        let base = settings.base()?.or(keys.opt_number("rope_theta")?).unwrap_or(DEFAULT_BASE);
        settings.rope(base, sizes)
    }

    /// The turns of Gemma's layers that see everything, and of those with a window. Only linear scaling is known there.
    ///
    /// # Errors
    /// As [`Rope::read`].
    pub fn read_global_and_local(keys: &Keys<'_>, defaults: [f32; 2], sizes: &Sizes) -> Result<[Self; 2], LoadError> {
        let [global_base, local_base] = defaults;
        if !keys.of_folder() {
            let local = keys.opt_number("rope.freq_base_swa")?.unwrap_or(local_base);
            return Ok([Self { scale: gguf_scale(keys)?, ..Self::unscaled(keys)? }, Self::plain(local)]);
        }
        let global = Settings::of_layers(keys, "full_attention")?;
        let base = global.base()?.or(keys.opt_number("rope_theta")?).unwrap_or(global_base);
        let global = global.only_linear(base, sizes)?;
        // Older files say of these layers only their base; what they say of scaling is for the others.
        let local = match Settings::opt_nested(keys, "sliding_attention")? {
            Some(local) => {
                let base = local.base()?.unwrap_or(local_base);
                local.only_linear(base, sizes)?
            }
            None => Self::plain(keys.opt_number("rope_local_base_freq")?.unwrap_or(local_base)),
        };
        Ok([global, local])
    }
}

/// The factor that positions are divided by, 1 without scaling. Only linear scaling has a key of its own in GGUF.
fn gguf_scale(keys: &Keys<'_>) -> Result<f32, LoadError> {
    match keys.opt_text("rope.scaling.type")? {
        None | Some("none") => Ok(1.0),
        Some("linear") => keys.number("rope.scaling.factor"),
        Some(other) => Err(keys.refused("rope.scaling.type", &format!("is {other:?}"))),
    }
}

/// The divisors that lie in a GGUF file as a tensor, if this one has them.
pub(super) fn gguf_divisors(tensors: &TensorTable, name: &'static str) -> RopeDivisors {
    match tensors.opt_tensor(name) {
        Some(_) => RopeDivisors::Tensor(name),
        None => RopeDivisors::None,
    }
}

/// The object of `config.json` that says how heads are turned: `rope_parameters`, or `rope_scaling` in older files.
struct Settings<'k, 'a> {
    keys: &'k Keys<'a>,
    path: String,
}

impl<'k, 'a> Settings<'k, 'a> {
    fn of_all_layers(keys: &'k Keys<'a>) -> Result<Self, LoadError> {
        for name in ["rope_parameters", "rope_scaling"] {
            let settings = Self { keys, path: name.to_owned() };
            if settings.is_there()? {
                return Ok(settings);
            }
        }
        Ok(Self { keys, path: "rope_parameters".to_owned() })
    }

    fn of_layers(keys: &'k Keys<'a>, layers: &str) -> Result<Self, LoadError> {
        match Self::opt_nested(keys, layers)? {
            Some(settings) => Ok(settings),
            None => Self::of_all_layers(keys),
        }
    }

    fn opt_nested(keys: &'k Keys<'a>, layers: &str) -> Result<Option<Self>, LoadError> {
        let settings = Self { keys, path: format!("rope_parameters.{layers}") };
        Ok(settings.is_there()?.then_some(settings))
    }

    fn is_there(&self) -> Result<bool, LoadError> {
        Ok(self.kind()?.is_some() || self.base()?.is_some())
    }

    fn name(&self, field: &str) -> String {
        format!("{}.{field}", self.path)
    }

    fn base(&self) -> Result<Option<f32>, LoadError> {
        self.keys.opt_number(&self.name("rope_theta"))
    }

    fn kind(&self) -> Result<Option<&'a str>, LoadError> {
        // `type` is the older word.
        Ok(self.keys.opt_text(&self.name("rope_type"))?.or(self.keys.opt_text(&self.name("type"))?))
    }

    fn only_linear(&self, base: f32, sizes: &Sizes) -> Result<Rope, LoadError> {
        match self.kind()? {
            None | Some("default" | "linear") => self.rope(base, sizes),
            Some(other) => Err(self.keys.refused(&self.name("rope_type"), &format!("is {other:?}"))),
        }
    }

    fn rope(&self, base: f32, sizes: &Sizes) -> Result<Rope, LoadError> {
        for name in [self.name("partial_rotary_factor"), "partial_rotary_factor".to_owned()] {
            if let Some(part) = self.keys.opt_number(&name)?.filter(|&part| part != 1.0) {
                return Err(self.keys.refused(&name, &format!("is {part}")));
            }
        }
        let plain = Rope::plain(base);
        match self.kind()? {
            None | Some("default") => Ok(plain),
            Some("linear") => Ok(Rope { scale: self.keys.number(&self.name("factor"))?, ..plain }),
            Some("llama3") => {
                let divisors = RopeDivisors::Values(self.llama3_divisors(base, sizes)?);
                Ok(Rope { divisors, ..plain })
            }
            Some("longrope" | "su") => self.long_rope(plain, sizes),
            Some(other) => Err(self.keys.refused(&self.name("rope_type"), &format!("is {other:?}"))),
        }
    }

    /// Llama 3.1's divisors: 1 for the pairs that turn fast, `factor` for those that turn slowly, and in between a
    /// mixture of both frequencies.
    fn llama3_divisors(&self, base: f32, sizes: &Sizes) -> Result<Vec<f32>, LoadError> {
        let number = |field: &str| Ok::<_, LoadError>(f64::from(self.keys.number(&self.name(field))?));
        let (factor, low, high) = (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
        let trained = number("original_max_position_embeddings")?;
        if low == high {
            let why = format!("is {high}, as low_freq_factor; they must differ");
            return Err(LoadError::bad_metadata(&self.keys.key(&self.name("high_freq_factor")), why));
        }
        let divisor = |pair: usize| {
            let frequency = f64::from(base).powf(-2.0 * pair as f64 / sizes.head_dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < trained / high {
                return 1.0;
            }
            if wavelength > trained / low {
                return factor;
            }
            let fast = (trained / wavelength - low) / (high - low);
            1.0 / ((1.0 - fast) / factor + fast)
        };
        Ok((0..sizes.head_dim / 2).map(|pair| divisor(pair) as f32).collect())
    }

    /// Phi-3's divisors for contexts up to the trained length. A longer sequence would need others, and for all of its
    /// tokens, those in the cache too: so the context ends where these do.
    fn long_rope(&self, plain: Rope, sizes: &Sizes) -> Result<Rope, LoadError> {
        let nested = self.name("original_max_position_embeddings");
        let trained = match self.keys.opt_size("original_max_position_embeddings")? {
            Some(trained) => trained,
            None => self.keys.opt_size(&nested)?.unwrap_or(sizes.context_tokens),
        };
        for name in ["short_mscale", "long_mscale"].map(|field| self.name(field)) {
            if let Some(value) = self.keys.opt_number(&name)? {
                return Err(self.keys.refused(&name, &format!("is {value}")));
            }
        }
        let magnitude = match self.keys.opt_number(&self.name("attention_factor"))? {
            Some(magnitude) => magnitude,
            None => {
                let given = self.keys.opt_number(&self.name("factor"))?.map(f64::from);
                let factor = given.unwrap_or(sizes.context_tokens as f64 / trained as f64);
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (trained as f64).ln()).sqrt() as f32 }
            }
        };
        let divisors = RopeDivisors::Values(self.keys.numbers(&self.name("short_factor"))?.to_vec());
        Ok(Rope { divisors, magnitude, context_tokens: Some(trained), ..plain })
    }
}
