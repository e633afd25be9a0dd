//! `penstock keys`: who may call, and what for.

use std::process::ExitCode;

use contract::key::KEY_RANDOM_BYTES;
use contract::openai::keys::{KeyObject, NewKeyObject, parse_key};
use contract::{NewKey, Scope};
use serde_json::{Value, json};

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::{self, ConfigArgs};
use crate::{embedded, terminal};

/// Make, list and revoke API keys.
///
/// A server without keys takes calls from whoever reaches it. From the first key on, every call needs one.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum KeysCommand {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a key, and print it: it is shown this once.
///
/// For example:
///
///     penstock keys create --scope admin --name me
///     PENSTOCK_API_KEY=psk_… penstock keys create --tenant acme --name nightly --expires-days 90
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct CreateArgs {
    /// Whose calls it makes: 1 to 64 letters, digits, `.`, `_` and `-`
    #[arg(long, value_name = "NAME", default_value = "local")]
    tenant: String,
    /// What people call it
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// What it may do: submit, read or admin; give it several times for several [default: submit and read]
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,
    /// Days until it ends by itself [default: never]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=3_650))]
    expires_days: Option<u64>,
    /// Write to the store of the settings instead of asking a server: for the first key where auth.required is true. With
    /// the embedded store no server may run meanwhile
    #[arg(long)]
    direct: bool,
    /// Print the key object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// List keys, newest first; of each what people know it by, never the key.
#[derive(Debug, Clone, clap::Args)]
pub struct ListArgs {
    /// Only keys of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Print {"object": "list", "data": […]} instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Revoke keys: within two seconds no server takes them any more.
#[derive(Debug, Clone, clap::Args)]
pub struct RevokeArgs {
    /// Ids of the keys (`key_…`), as `penstock keys list` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `penstock keys`.
///
/// # Errors
/// The server or the store cannot be used, or refuses.
pub async fn run(command: &KeysCommand, config: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let (KeysCommand::Create(CreateArgs { server, .. })
    | KeysCommand::List(ListArgs { server, .. })
    | KeysCommand::Revoke(RevokeArgs { server, .. })) = command;
    let settings = config::load(config, server.flags())?.config;
    match command {
        KeysCommand::Create(args) if args.direct => {
            let urls = embedded::urls(&settings.serve.data_dir, &settings)?;
            let store = backends::open_admin(&urls).await?;
            // With the embedded store, whose folder a server may have been given another of, it matters which one this is.
            if urls.store.starts_with("sqlite:") {
                terminal::say(&format!("written to the store of {}", settings.serve.data_dir.display()));
            }
            let mut random = [0; KEY_RANDOM_BYTES];
            getrandom::fill(&mut random)?;
            let (new, text) = NewKey::make(parse_key(&args.body())?, random);
            let key = store.admin.add_key(&new).await?;
            let shown = NewKeyObject { about: KeyObject::of(&key), key: text.reveal().to_owned() };
            args.show(&serde_json::to_value(shown)?)
        }
        KeysCommand::Create(args) => {
            let server = Server::new(&settings.client)?;
            args.show(&server.post(&["v1", "keys"], Some(&args.body())).await?)
        }
        KeysCommand::List(args) => args.run(&Server::new(&settings.client)?).await,
        KeysCommand::Revoke(args) => args.run(&Server::new(&settings.client)?).await,
    }
}

impl CreateArgs {
    fn body(&self) -> Value {
        let scopes = (!self.scopes.is_empty()).then_some(&self.scopes);
        let seconds = self.expires_days.map(|days| days * 24 * 3_600);
        json!({"tenant": self.tenant, "name": self.name, "scopes": scopes, "expires_in_seconds": seconds})
    }

    fn show(&self, key: &Value) -> anyhow::Result<ExitCode> {
        if self.json {
            terminal::print_json(key)?;
            return Ok(ExitCode::SUCCESS);
        }
        terminal::print(&format!("{}\n", text(key, "key")))?;
        terminal::say(&format!(
            "{} of tenant {} may {}; it is not shown again. Give it as PENSTOCK_API_KEY, or as `authorization: Bearer`.",
            text(key, "id"),
            text(key, "tenant"),
            scopes(key),
        ));
        Ok(ExitCode::SUCCESS)
    }
}

impl ListArgs {
    async fn run(&self, server: &Server) -> anyhow::Result<ExitCode> {
        let query: Vec<_> = self.tenant.clone().map(|tenant| ("tenant", tenant)).into_iter().collect();
        let list = server.get(&["v1", "keys"], &query).await?;
        if self.json {
            terminal::print_json(&list)?;
            return Ok(ExitCode::SUCCESS);
        }
        let keys = list["data"].as_array().map_or(&[][..], Vec::as_slice);
        if keys.is_empty() {
            terminal::say("no keys: whoever reaches the server may call it. `penstock keys create` makes one");
            return Ok(ExitCode::SUCCESS);
        }
        let row = |key: &Value| {
            let plain = ["id", "tenant", "name", "prefix", "created_at", "expires_at", "revoked_at"];
            let mut row = plain.map(|field| text(key, field).to_owned()).to_vec();
            row.insert(4, scopes(key));
            row
        };
        let header = ["ID", "TENANT", "NAME", "PREFIX", "SCOPES", "CREATED", "EXPIRES", "REVOKED"];
        terminal::print(&terminal::table(&header, keys.iter().map(row)))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl RevokeArgs {
    async fn run(&self, server: &Server) -> anyhow::Result<ExitCode> {
        for id in &self.ids {
            let key = server.post(&["v1", "keys", id, "revoke"], None).await?;
            terminal::say(&format!("{} of tenant {} is revoked", text(&key, "id"), text(&key, "tenant")));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text<'v>(key: &'v Value, field: &str) -> &'v str {
    key[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-")
}

fn scopes(key: &Value) -> String {
    let words = key["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    words.collect::<Vec<_>>().join(",")
}
