//! `penstock config`: the settings in force, and where each was set.

use std::fmt::Write as _;

use figment::value::{Dict, Empty, Value};
use serde_json::json;

use super::Loaded;

/// Settings whose value is never printed.
const SECRETS: [&str; 6] = ["client.api_key", "follow.amqp", "store.url", "queue.url", "bus.url", "objects.url"];

/// Print the settings in force, each with the source of its value.
///
/// Prints TOML in which secrets read `***`. The settings file is TOML too; a variable
/// PENSTOCK_SECTION__NAME wins over it, and a flag over both. For example:
///
///     penstock config
///     PENSTOCK_ENGINE__THREADS=4 penstock config --json
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ConfigCommand {
    /// Print one JSON object instead: {"serve": {"listen": {"value": …, "source": "default"}, …}, …}.
    #[arg(long)]
    pub json: bool,
}

/// Prints the settings on stdout.
///
/// # Errors
/// Only when stdout cannot be written.
pub fn run(args: &ConfigCommand, loaded: &Loaded) -> anyhow::Result<()> {
    let text = if args.json { as_json(loaded) } else { as_toml(loaded) };
    crate::terminal::print(&text)
}

/// The sections as they are printed, by name, with secrets masked.
fn sections(loaded: &Loaded) -> Vec<(String, Vec<(String, Value)>)> {
    let settings = Value::serialize(&loaded.config).expect("the settings are plain data");
    let sections = settings.into_dict().unwrap_or_default();
    let masked = |section: &str, settings: Dict| {
        let mask = |(name, value): (String, Value)| match value {
            Value::Empty(..) => (name, value),
            _ if SECRETS.contains(&format!("{section}.{name}").as_str()) => (name, Value::from("***")),
            _ => (name, value),
        };
        settings.into_iter().map(mask).collect()
    };
    sections
        .into_iter()
        .map(|(name, value)| (name.clone(), masked(&name, value.into_dict().unwrap_or_default())))
        .collect()
}

fn as_toml(loaded: &Loaded) -> String {
    let mut out = String::new();
    for (section, settings) in sections(loaded) {
        let _ = writeln!(out, "{}[{section}]", if out.is_empty() { "" } else { "\n" });
        for (name, value) in settings {
            let source = &loaded.origins[&format!("{section}.{name}")];
            let _ = match value {
                Value::Empty(..) => writeln!(out, "# {name} is not set"),
                value => writeln!(out, "{name} = {}  # {source}", plain(&value)),
            };
        }
    }
    out
}

fn as_json(loaded: &Loaded) -> String {
    let mut out = serde_json::Map::new();
    for (section, settings) in sections(loaded) {
        let of = |(name, value): (String, Value)| {
            let source = &loaded.origins[&format!("{section}.{name}")];
            (name, json!({"value": value, "source": source}))
        };
        out.insert(section.clone(), settings.into_iter().map(of).collect());
    }
    format!("{:#}\n", serde_json::Value::Object(out))
}

/// A value as TOML writes it.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Empty(_, Empty::None | Empty::Unit) => "none".to_owned(),
        value => toml::Value::try_from(value).map_or_else(|_| "?".to_owned(), |value| value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::config::layers::{Flags, resolve};

    fn loaded() -> Loaded {
        let variables = [("PENSTOCK_API_KEY", "sk-very-secret"), ("PENSTOCK_SERVE__MODEL", "a\"b")];
        let variables = variables.map(|(k, v)| (OsString::from(k), OsString::from(v)));
        resolve(None, variables.into_iter(), Flags::default()).unwrap()
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same_settings() {
        let loaded = loaded();
        let text = as_toml(&loaded);
        assert!(text.contains("model = 'a\"b'  # variable PENSTOCK_SERVE__MODEL"), "{text}");
        assert!(text.contains("limit = 256  # default"), "{text}");
        let again = resolve(Some(("printed".into(), text)), std::iter::empty(), Flags::default()).unwrap();
        assert_eq!(again.config.serve, loaded.config.serve);
        assert_eq!(again.config.limits, loaded.config.limits);
    }

    #[test]
    fn secrets_are_never_printed() {
        let loaded = loaded();
        for text in [as_toml(&loaded), as_json(&loaded), format!("{:?}", loaded.config)] {
            assert!(text.contains("***") && !text.contains("sk-very"), "{text}");
        }
    }
}
