//! The sections of the settings file, one struct each, with their defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use contract::TrajectoryMode;
use gpu_worker::TenantGroups;
use serde::{Deserialize, Serialize};

use super::units::{days, mib, millis, seconds, tenant_groups};

/// `[serve]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serve {
    /// Address and port of the HTTP server.
    pub listen: SocketAddr,
    /// Folder of the database and the objects; one server at a time.
    pub data_dir: PathBuf,
    /// Name of a catalogue entry, or path of a GGUF file.
    pub model: String,
    /// How long running jobs may go on after a stop was asked for; what is left is handed back, not lost.
    #[serde(rename = "drain_seconds", with = "seconds")]
    pub drain: Duration,
}

impl Default for Serve {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            data_dir: crate::folders::data(),
            model: crate::model::DEFAULT.to_owned(),
            drain: Duration::from_secs(30),
        }
    }
}

/// `[auth]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// Calls need a key even before the first one is made.
    pub required: bool,
}

/// `[webhooks]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    /// Private networks that webhooks may lead into, as in `10.0.0.0/8`.
    pub allowed_networks: Vec<String>,
    /// How often who asks for `batch.progress` is told of a batch.
    #[serde(rename = "progress_seconds", with = "seconds")]
    pub progress_every: Duration,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self { allowed_networks: Vec::new(), progress_every: Duration::from_secs(30) }
    }
}

/// `[engine]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Compute threads. More than the physical cores makes each step slower.
    pub threads: NonZeroUsize,
    /// Most sequences in one step.
    pub max_sequences: NonZeroUsize,
    /// Most tokens in one step: decode tokens of running sequences and prefill chunks of new ones together.
    pub step_tokens: NonZeroUsize,
    /// Most texts that are embedded or scored in one step.
    pub single_pass_batch: NonZeroUsize,
    /// Longest time that such a text waits for others to be computed with.
    #[serde(rename = "single_pass_wait_ms", with = "millis")]
    pub single_pass_wait: Duration,
    /// Memory of the key-value cache in bytes, taken at start.
    #[serde(rename = "kv_cache_mib", with = "mib")]
    pub kv_cache_bytes: u64,
    /// Prompts that begin alike are computed once, within each tenant.
    pub prefix_cache: bool,
    /// Lists of tenants that share these beginnings with one another.
    #[serde(with = "tenant_groups")]
    pub shared_cache_groups: TenantGroups,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            threads: usable_cores(),
            max_sequences: NonZeroUsize::new(32).expect("not zero"),
            step_tokens: NonZeroUsize::new(256).expect("not zero"),
            single_pass_batch: NonZeroUsize::new(32).expect("not zero"),
            single_pass_wait: Duration::from_millis(2),
            kv_cache_bytes: 1024 << 20,
            prefix_cache: true,
            shared_cache_groups: TenantGroups::default(),
        }
    }
}

/// Physical cores, but not more than this process may run on (affinity, container quota).
fn usable_cores() -> NonZeroUsize {
    let physical = NonZeroUsize::new(num_cpus::get_physical()).unwrap_or(NonZeroUsize::MIN);
    std::thread::available_parallelism().map_or(physical, |allowed| allowed.min(physical))
}

/// `[limits]`: a job that would be one more is refused with 429 and leaves nothing behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Most unfinished jobs of class interactive.
    pub interactive: NonZeroU32,
    /// Most unfinished jobs of class standard.
    pub standard: NonZeroU32,
    /// Most unfinished jobs of class bulk.
    pub bulk: NonZeroU32,
    /// Largest request body in bytes.
    #[serde(rename = "body_mib", with = "mib")]
    pub body_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let n = |n| NonZeroU32::new(n).expect("not zero");
        Self { interactive: n(256), standard: n(10_000), bulk: n(5_000_000), body_bytes: 4 << 20 }
    }
}

/// `[bus]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bus {
    /// Where it is; nothing: in this process.
    pub url: Option<Secret>,
    /// What the names of its keys and channels begin with: another one for each installation on one server.
    pub prefix: String,
}

impl Default for Bus {
    fn default() -> Self {
        Self { url: None, prefix: "penstock".to_owned() }
    }
}

/// `[store]`, `[objects]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// Where it is; nothing: the embedded one.
    pub url: Option<Secret>,
}

/// `[queue]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Where it is; nothing: in this process.
    pub url: Option<Secret>,
    /// Most wake-ups waiting per class. Short on purpose: the order between jobs is decided in the store.
    pub limit: NonZeroU32,
    /// What the names of its queues begin with: another one for each installation on one broker.
    pub prefix: String,
}

impl Default for Queue {
    fn default() -> Self {
        Self { url: None, limit: NonZeroU32::new(256).expect("not zero"), prefix: "penstock".to_owned() }
    }
}

/// `[worker]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// How long a job stays with a worker that shows no progress, in seconds; renewed at a third of it.
    pub lease_seconds: NonZeroU32,
}

impl Worker {
    /// The lease as a duration.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.get().into())
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self { lease_seconds: NonZeroU32::new(15).expect("not zero") }
    }
}

/// `[trajectories]`: how much is kept of jobs beside their results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trajectories {
    /// Of tenants that are not named below.
    pub default: TrajectoryMode,
    /// By tenant.
    pub tenants: BTreeMap<String, TrajectoryMode>,
    /// Compressed size at which a segment of archived records is closed, in bytes.
    #[serde(rename = "segment_mib", with = "mib")]
    pub segment_bytes: u64,
    /// Age at which a record is archived, however small its segment then is.
    #[serde(rename = "segment_seconds", with = "seconds")]
    pub segment_age: Duration,
    /// How long requests, results and trajectories of jobs are kept after the end, where a job does not say; 0 is for ever.
    #[serde(rename = "keep_days", with = "days")]
    pub keep: Duration,
}

impl Default for Trajectories {
    fn default() -> Self {
        Self {
            default: TrajectoryMode::Full,
            tenants: BTreeMap::new(),
            segment_bytes: 8 << 20,
            segment_age: Duration::from_secs(60),
            keep: Duration::from_secs(30 * 86_400),
        }
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,scheduler=debug`.
    #[serde(deserialize_with = "level")]
    pub level: String,
    /// Lines for people or for machines.
    pub format: LogFormat,
}

/// Refused where it is set, not only by the command that comes to use it.
fn level<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<String, D::Error> {
    let text = String::deserialize(reader)?;
    match crate::logging::filter(&text) {
        Some(_) => Ok(text),
        None => Err(serde::de::Error::custom(crate::logging::not_a_filter(&text))),
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Text }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[client]`: for `submit`, `get`, `wait`, `cancel` and `list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Address of the server.
    pub server: String,
    /// Key sent as bearer token; none is sent without it.
    pub api_key: Option<Secret>,
}

impl Default for Client {
    fn default() -> Self {
        Self { server: "http://127.0.0.1:8080".to_owned(), api_key: None }
    }
}

/// `[follow]`: for `score --follow`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follow {
    /// The broker of its queue and exchange; nothing: that of `queue.url`.
    pub amqp: Option<Secret>,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value itself, to send it where it belongs.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
