//! What was set where: defaults, file, variables and flags, merged into one [`Config`] or refused with the reason.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use figment::providers::Serialized;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::Serialize;

use super::{Config, Loaded};
use crate::suggest;

const PREFIX: &str = "PENSTOCK_";

/// Variables that name a setting without its section, because people type them.
const SHORT: [(&str, &str); 2] = [("PENSTOCK_SERVER", "client.server"), ("PENSTOCK_API_KEY", "client.api_key")];

/// Variables of ours that are no settings; whoever reads them documents them.
const OTHERS: [&str; 6] = [
    "PENSTOCK_CACHE",
    "PENSTOCK_CONFIG",
    "PENSTOCK_CPU_KERNELS",
    // Of `deploy/services`, whose settings go into the same shell.
    "PENSTOCK_SERVICES_DIR",
    "PENSTOCK_SERVICES_TIMEOUT_S",
    gpu_worker::engine::fault::ABORT_ON_SEED,
];

/// Tables whose names the user chooses: one setting each.
const TABLES: [&str; 1] = ["trajectories.tenants"];

/// Why the settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is missing or cannot be read.
    #[error("could not read the settings file {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML; the source shows the line.
    #[error("the settings file {} is not TOML", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: toml::de::Error,
    },
    /// Settings that are unknown or have a value they cannot have: all of them, not only the first.
    #[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<Problem>),
}

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, as `section.name`.
    pub key: String,
    /// Where it was set.
    pub origin: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "setting {} ({}): {}", self.key, self.origin, self.reason)
    }
}

/// What the command line sets over the file and the variables.
#[derive(Debug, Clone, Default)]
pub struct Flags(Vec<Layer>);

impl Flags {
    /// Sets `key` (`serve.listen`) where the flag (`--listen`) was given.
    #[must_use]
    pub fn set<T: Serialize>(mut self, key: &'static str, flag: &'static str, value: Option<T>) -> Self {
        if let Some(value) = value {
            let value = Value::serialize(value).expect("a flag holds a plain value");
            self.0.push(Layer { key: key.to_owned(), origin: format!("flag {flag}"), value });
        }
        self
    }
}

/// One setting as one source set it.
#[derive(Debug, Clone)]
struct Layer {
    key: String,
    origin: String,
    value: Value,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let dict = figment::util::nest(&self.key, self.value.clone()).into_dict().unwrap_or_default();
        Ok(Profile::Default.collect(dict))
    }
}

/// The settings file to read and its text; `None` where none was named and none of the usual places has one.
pub fn find_file(named: Option<&Path>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let usual = || [PathBuf::from("penstock.toml"), crate::folders::config().join("config.toml")];
    let path = match named {
        Some(path) => path.to_owned(),
        None => match usual().into_iter().find(|path| path.is_file()) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(source) => Err(ConfigError::Read { path, source }),
    }
}

/// Merges all layers; later ones win.
pub fn resolve(
    file: Option<(PathBuf, String)>,
    variables: impl Iterator<Item = (OsString, OsString)>,
    flags: Flags,
) -> Result<Loaded, ConfigError> {
    let known = Known::new();
    let mut problems = Vec::new();
    let mut layers = match file {
        Some((path, text)) => from_file(&path, &text)?,
        None => Vec::new(),
    };
    layers.extend(from_variables(variables, &known, &mut problems));
    layers.extend(flags.0);

    let mut merged = Figment::from(Serialized::defaults(Config::default()));
    let mut origins: BTreeMap<_, _> = known.0.keys().map(|key| (key.clone(), "default".to_owned())).collect();
    for layer in layers {
        if known.is_empty_section(&layer) {
            continue;
        }
        if !known.0.contains_key(&layer.key) {
            problems.push(known.refuse(&layer));
            continue;
        }
        origins.insert(layer.key.clone(), layer.origin.clone());
        merged = merged.merge(layer);
    }
    match merged.extract::<Config>() {
        Ok(config) if problems.is_empty() => Ok(Loaded { config, origins }),
        Ok(_) => Err(ConfigError::Settings(problems)),
        Err(errors) => {
            problems.extend(errors.into_iter().map(|error| known.explain(&error, &origins)));
            Err(ConfigError::Settings(problems))
        }
    }
}

fn from_file(path: &Path, text: &str) -> Result<Vec<Layer>, ConfigError> {
    let dict: Dict = toml::from_str(text).map_err(|source| ConfigError::Syntax { path: path.to_owned(), source })?;
    let origin = format!("file {}", path.display());
    let mut settings = Vec::new();
    flatten("", Value::from(dict), &mut settings);
    Ok(settings.into_iter().map(|(key, value)| Layer { key, origin: origin.clone(), value }).collect())
}

fn from_variables(
    variables: impl Iterator<Item = (OsString, OsString)>,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> Vec<Layer> {
    let mut layers = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let short = SHORT.iter().find(|(short, _)| *short == name).map(|(_, key)| (*key).to_owned());
        let key = short.unwrap_or_else(|| name[PREFIX.len()..].to_lowercase().replace("__", "."));
        let origin = format!("variable {name}");
        let Some(value) = value.to_str() else {
            problems.push(Problem { key, origin, reason: "the value is not UTF-8".to_owned() });
            continue;
        };
        // Compose files and unit files leave a variable empty to say that it is not set.
        if value.is_empty() || OTHERS.contains(&name) || is_service_link(name) {
            continue;
        }
        let value = known.typed(&key, value);
        layers.push(Layer { key, origin, value });
    }
    layers
}

/// Kubernetes sets these in every pod beside a service whose name begins with `penstock`; they are not meant for us.
fn is_service_link(name: &str) -> bool {
    let port = |rest: &str| rest.is_empty() || rest.starts_with('_');
    name.ends_with("_SERVICE_HOST")
        || name.split_once("_SERVICE_PORT").is_some_and(|(_, rest)| port(rest))
        || name.ends_with("_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The leaves of a nested table as `section.name`; an empty table is a leaf, so that it can be refused.
fn flatten(prefix: &str, value: Value, out: &mut Vec<(String, Value)>) {
    match value {
        Value::Dict(_, dict) if !dict.is_empty() && !TABLES.contains(&prefix) => {
            for (name, value) in dict {
                let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                flatten(&key, value, out);
            }
        }
        leaf => out.push((prefix.to_owned(), leaf)),
    }
}

/// Every setting there is, with its default: the shape of [`Config`] itself, so that it cannot be out of date.
struct Known(BTreeMap<String, Value>);

impl Known {
    fn new() -> Self {
        let mut settings = Vec::new();
        let defaults = Value::serialize(Config::default()).expect("the settings are plain data");
        flatten("", defaults, &mut settings);
        Self(settings.into_iter().collect())
    }

    /// A variable's text as the type its setting has; text that does not fit stays text and is refused later.
    fn typed(&self, key: &str, text: &str) -> Value {
        match self.0.get(key) {
            Some(Value::Bool(..)) => text.trim().parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
            Some(Value::Num(..)) => text.trim().parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
            // An inline table, as TOML writes it: { acme = "off" }.
            Some(Value::Dict(..)) => {
                let table = toml::from_str::<Dict>(&format!("table = {text}"));
                table.ok().and_then(|mut table| table.remove("table")).unwrap_or_else(|| Value::from(text))
            }
            // A list, as TOML and JSON write it: ["10.0.0.0/8"].
            Some(Value::Array(..)) => {
                let list = toml::from_str::<Dict>(&format!("list = {text}"));
                list.ok().and_then(|mut list| list.remove("list")).unwrap_or_else(|| Value::from(text))
            }
            _ => Value::from(text),
        }
    }

    fn is_section(&self, key: &str) -> bool {
        self.0.keys().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
    }

    fn is_empty_section(&self, layer: &Layer) -> bool {
        // An empty file is one empty table without a name.
        let empty = matches!(&layer.value, Value::Dict(_, dict) if dict.is_empty());
        empty && (layer.key.is_empty() || self.is_section(&layer.key))
    }

    fn refuse(&self, layer: &Layer) -> Problem {
        let reason = if self.is_section(&layer.key) {
            format!("is a section, not a value: write [{}] and its settings below", layer.key)
        } else {
            match suggest::nearest(&layer.key, self.0.keys().map(String::as_str)) {
                Some(near) => format!("unknown; did you mean {near}?"),
                None => "unknown; `penstock config` lists all settings".to_owned(),
            }
        };
        Problem { key: layer.key.clone(), origin: layer.origin.clone(), reason }
    }

    fn explain(&self, error: &figment::Error, origins: &BTreeMap<String, String>) -> Problem {
        let path = error.path.join(".");
        // What is wrong inside a table of the user's names, or at a place of a list, is its setting's affair.
        let inside = |key: &&String| path.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let key = self.0.keys().find(inside).cloned().unwrap_or(path);
        let origin = origins.get(&key).cloned().unwrap_or_else(|| "unknown origin".to_owned());
        let default = self.0.get(&key).map(super::show::plain).unwrap_or_default();
        Problem { key, origin, reason: format!("{}; the default is {default}", in_words(&error.kind)) }
    }
}

/// The library speaks of Rust's types, of which only ours for numbers that cannot be 0 need a translation.
fn in_words(kind: &figment::error::Kind) -> String {
    kind.to_string().replace("nonzero usize", "whole number from 1").replace("nonzero u32", "whole number from 1")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::LogFormat;

    fn vars(pairs: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
        pairs.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect::<Vec<_>>().into_iter()
    }

    fn file(text: &str) -> Option<(PathBuf, String)> {
        Some((PathBuf::from("some.toml"), text.to_owned()))
    }

    fn refusal(file_text: &str, variables: &[(&str, &str)]) -> String {
        resolve(file(file_text), vars(variables), Flags::default()).expect_err("must be refused").to_string()
    }

    #[test]
    fn without_any_source_every_setting_has_the_default_of_the_manual() {
        let loaded = resolve(None, vars(&[]), Flags::default()).unwrap();
        let Config { serve, engine, limits, store, queue, bus, objects, worker, log, client, .. } = loaded.config;
        assert!([store.url, queue.url.clone(), bus.url, objects.url].iter().all(Option::is_none));
        assert_eq!(serve.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(serve.model, "qwen2.5-coder-0.5b-instruct-q4_k_m");
        assert_eq!(serve.drain, Duration::from_secs(30));
        assert_eq!((engine.max_sequences.get(), engine.step_tokens.get()), (32, 256));
        assert_eq!((engine.single_pass_batch.get(), engine.single_pass_wait), (32, Duration::from_millis(2)));
        assert_eq!(engine.kv_cache_bytes, 1_073_741_824);
        assert!(engine.prefix_cache && engine.shared_cache_groups.as_lists().is_empty());
        assert_eq!((limits.interactive.get(), limits.standard.get(), limits.bulk.get()), (256, 10_000, 5_000_000));
        assert_eq!(limits.body_bytes, 4_194_304);
        assert_eq!((queue.limit.get(), worker.lease()), (256, Duration::from_secs(15)));
        assert_eq!((log.level.as_str(), log.format), ("info", LogFormat::Text));
        assert_eq!((client.server.as_str(), client.api_key), ("http://127.0.0.1:8080", None));
        assert!(loaded.origins.values().all(|origin| origin == "default"));
    }

    #[test]
    fn variables_win_over_the_file_and_flags_over_both() {
        let text = "[serve]\nlisten = \"0.0.0.0:1\"\nmodel = \"from-file\"\n[engine]\nthreads = 3\n";
        let variables = vars(&[
            ("PENSTOCK_SERVE__LISTEN", "0.0.0.0:2"),
            ("PENSTOCK_ENGINE__THREADS", "5"),
            ("PENSTOCK_SERVE__MODEL", "7"),
            ("PENSTOCK_AUTH__REQUIRED", "true"),
        ]);
        let flags = Flags::default().set("serve.listen", "--listen", Some("0.0.0.0:3")).set(
            "serve.model",
            "--model",
            None::<String>,
        );
        let loaded = resolve(file(text), variables, flags).unwrap();
        assert_eq!(loaded.config.serve.listen.port(), 3);
        assert_eq!(loaded.config.engine.threads.get(), 5);
        assert!(loaded.config.auth.required);
        // A name made of digits is still a name.
        assert_eq!(loaded.config.serve.model, "7");
        assert_eq!(loaded.origins["serve.listen"], "flag --listen");
        assert_eq!(loaded.origins["engine.threads"], "variable PENSTOCK_ENGINE__THREADS");
        assert_eq!(loaded.origins["queue.limit"], "default");
    }

    #[test]
    fn unknown_settings_are_named_with_their_source_and_the_nearest_known_one() {
        let message = refusal("[serve]\nlisten_on = 1\nzzz = 2\n[wibble]\n", &[("PENSTOCK_SERVE_LISTEN", "x")]);
        for part in [
            "setting serve.listen_on (file some.toml): unknown; did you mean serve.listen?",
            "setting serve.zzz (file some.toml): unknown; `penstock config` lists all settings",
            "setting wibble (file some.toml): unknown",
            "setting serve_listen (variable PENSTOCK_SERVE_LISTEN): unknown; did you mean serve.listen?",
        ] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        assert!(refusal("serve = 3", &[]).contains("is a section, not a value"));
    }

    #[test]
    fn values_of_the_wrong_kind_name_the_setting_its_source_and_the_default() {
        let cases = [
            (
                "[serve]\nlisten = \"localhost\"",
                "setting serve.listen (file some.toml): ",
                "the default is \"127.0.0.1:8080\"",
            ),
            ("[engine]\nmax_sequences = 0", "setting engine.max_sequences (file some.toml): ", "the default is 32"),
            ("[engine]\nsingle_pass_wait_ms = 60001", "setting engine.single_pass_wait_ms", "more than a minute"),
            ("[engine]\nkv_cache_mib = 0", "setting engine.kv_cache_mib", "out of range: 1 to"),
            ("[engine]\nkv_cache_mib = -1", "setting engine.kv_cache_mib", "-1"),
            ("[serve]\ndrain_seconds = 1000000", "setting serve.drain_seconds", "more than a day"),
            ("[log]\nformat = \"xml\"", "setting log.format", "json"),
            ("[limits]\nbulk = 5000000000", "setting limits.bulk", "5000000000"),
        ];
        for (text, first, second) in cases {
            let message = refusal(text, &[]);
            assert!(message.contains(first) && message.contains(second), "{text}: {message}");
        }
        let message = refusal("", &[("PENSTOCK_ENGINE__THREADS", "0")]);
        assert!(message.contains("expected a whole number from 1"), "{message}");
        let message = refusal("", &[("PENSTOCK_LOG__LEVEL", "banana")]);
        assert!(message.contains("`banana` is no level or filter"), "{message}");
        let message = refusal("", &[("PENSTOCK_ENGINE__THREADS", "many")]);
        assert!(message.contains("engine.threads (variable PENSTOCK_ENGINE__THREADS)"), "{message}");
        assert!(matches!(resolve(file("[serve"), vars(&[]), Flags::default()), Err(ConfigError::Syntax { .. })));
    }

    #[test]
    fn tenants_are_named_in_a_table_of_their_own() {
        use contract::TrajectoryMode::{Off, Redacted};
        let text =
            "[trajectories]\ndefault = \"redacted\"\n[trajectories.tenants]\nacme = \"off\"\n\"a.b\" = \"redacted\"\n";
        let kept = resolve(file(text), vars(&[]), Flags::default()).unwrap().config.trajectories;
        assert_eq!(kept.default, Redacted);
        assert_eq!(kept.tenants, [("acme".to_owned(), Off), ("a.b".to_owned(), Redacted)].into());
        assert_eq!((kept.segment_bytes, kept.segment_age), (8 << 20, Duration::from_secs(60)));
        let variables = vars(&[("PENSTOCK_TRAJECTORIES__TENANTS", "{ acme = \"off\" }")]);
        let kept = resolve(None, variables, Flags::default()).unwrap().config.trajectories;
        assert_eq!(kept.tenants, [("acme".to_owned(), Off)].into());
        for (text, says) in [
            ("[trajectories.tenants]\nacme = \"some\"", "setting trajectories.tenants (file some.toml)"),
            ("[trajectories]\ndefault = \"none\"", "redacted"),
            ("[trajectories]\ntenants = 3", "setting trajectories.tenants"),
        ] {
            let message = refusal(text, &[]);
            assert!(message.contains(says), "{text}: {message}");
        }
        assert!(refusal("", &[("PENSTOCK_TRAJECTORIES__TENANTS", "acme")]).contains("trajectories.tenants"));
    }

    #[test]
    fn lists_are_written_in_variables_as_in_the_file() {
        let kept = |text: &str| {
            let loaded = resolve(None, vars(&[("PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS", text)]), Flags::default());
            loaded.map(|loaded| loaded.config.webhooks.allowed_networks)
        };
        assert_eq!(kept("[\"127.0.0.1/32\"]").unwrap(), ["127.0.0.1/32"]);
        assert_eq!(kept("['10.0.0.0/8', 'fd00::/8']").unwrap(), ["10.0.0.0/8", "fd00::/8"]);
        assert!(kept("[]").unwrap().is_empty());
        for wrong in ["127.0.0.1/32", "[127.0.0.1/32]", "[3]", "3"] {
            let message = kept(wrong).unwrap_err().to_string();
            let setting = "setting webhooks.allowed_networks (variable PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS): ";
            assert!(message.starts_with(setting) && message.ends_with("the default is []"), "{wrong}: {message}");
        }
    }

    #[test]
    fn variables_of_other_meaning_are_left_alone() {
        let loaded = resolve(
            file(""),
            vars(&[
                ("PENSTOCK_CACHE", "/c"),
                ("PENSTOCK_CPU_KERNELS", "portable"),
                ("PENSTOCK_SERVICES_DIR", "/s"),
                ("PENSTOCK_SERVICES_TIMEOUT_S", "9"),
                ("PENSTOCK_PORT", "tcp://10.0.0.1:80"),
                ("PENSTOCK_PORT_80_TCP_ADDR", "10.0.0.1"),
                ("PENSTOCK_API_SERVICE_PORT_HTTP", "80"),
                ("PENSTOCK_SERVICE_HOST", "10.0.0.1"),
                ("PENSTOCK_LOG__LEVEL", ""),
                ("PENSTOCK_SERVER", "http://h:1"),
                ("PENSTOCK_API_KEY", "k"),
                ("PATH", "/bin"),
            ]),
            Flags::default(),
        )
        .unwrap();
        assert_eq!(loaded.config.log.level, "info");
        assert_eq!(loaded.config.client.server, "http://h:1");
        assert_eq!(loaded.config.client.api_key.unwrap().reveal(), "k");
    }

    #[test]
    fn the_commented_default_file_holds_the_defaults_and_names_every_setting() {
        let text = include_str!("../../../deploy/penstock.toml");
        let loaded = resolve(file(text), vars(&[]), Flags::default()).unwrap();
        assert_eq!(loaded.config, Config::default());
        let uncommented: String = text
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line))
            .map(|line| format!("{line}\n"))
            .collect();
        let named = from_file(Path::new("default"), &uncommented).unwrap();
        let named: std::collections::BTreeSet<_> = named.into_iter().map(|layer| layer.key).collect();
        assert_eq!(named, Known::new().0.into_keys().collect());
    }
}
