//! `penstock tenants`: how much each tenant may use, and its share.

use std::process::ExitCode;
use std::str::FromStr;

use contract::tenant::{MAX_LIMIT, MAX_WEIGHT};
use serde_json::{Map, Value, json};

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::Client;
use crate::terminal;

/// Set, list and take back the limits and weights of tenants.
///
/// A tenant is whoever its keys say (`penstock keys create --tenant NAME`). One of which nothing was said has no limits and
/// weight 1.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum TenantsCommand {
    Set(SetArgs),
    List(ListArgs),
    Show(ShowArgs),
    Reset(ResetArgs),
}

/// Set limits or the weight of a tenant; what is not given stays as it is.
///
/// Requests, tokens and calls under way are counted by each API process for itself. Within two seconds every server goes
/// by what was set.
///
/// For example:
///
///     penstock tenants set acme --requests-per-minute 600 --tokens-per-minute 200000
///     penstock tenants set acme --tokens-per-minute none --weight 4
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct SetArgs {
    /// The tenant
    #[arg(value_name = "NAME")]
    name: String,
    /// Calls that make jobs, batches or files, a minute; `none` takes the limit away
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<Limit>,
    /// Estimated tokens of the jobs it submits, a minute (batch lines are not counted); `none` takes the limit away
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<Limit>,
    /// Calls under way that somebody waits for; `none` takes the limit away
    #[arg(long, value_name = "N")]
    concurrent: Option<Limit>,
    /// Unfinished jobs, batch lines left out; `none` takes the limit away
    #[arg(long, value_name = "N")]
    queued_jobs: Option<Limit>,
    /// Its share of a queue's dispatches among the tenants that wait
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WEIGHT)))]
    weight: Option<u32>,
    /// Print the tenant object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// List the tenants of which something was said, by name.
#[derive(Debug, Clone, clap::Args)]
pub struct ListArgs {
    /// Print {"object": "list", "data": […]} instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Show the limits and the weight of a tenant.
#[derive(Debug, Clone, clap::Args)]
pub struct ShowArgs {
    /// The tenant
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the tenant object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Take tenants back to the defaults: no limits, weight 1.
#[derive(Debug, Clone, clap::Args)]
pub struct ResetArgs {
    /// The tenants
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A limit as it is written: a number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    Of(u64),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Limit::None);
        }
        let number = text.parse().ok().filter(|number| (1..=MAX_LIMIT).contains(number));
        number.map(Limit::Of).ok_or_else(|| format!("give a whole number from 1 to {MAX_LIMIT}, or none"))
    }
}

impl TenantsCommand {
    /// How its server is reached.
    pub fn server_args(&self) -> &ServerArgs {
        match self {
            TenantsCommand::Set(SetArgs { server, .. })
            | TenantsCommand::List(ListArgs { server, .. })
            | TenantsCommand::Show(ShowArgs { server, .. })
            | TenantsCommand::Reset(ResetArgs { server, .. }) => server,
        }
    }
}

/// Runs `penstock tenants`.
///
/// # Errors
/// The server cannot be used, or refuses.
pub async fn run(command: &TenantsCommand, client: &Client) -> anyhow::Result<ExitCode> {
    let server = Server::new(client)?;
    match command {
        TenantsCommand::Set(args) => {
            let body = args.body();
            anyhow::ensure!(
                body.as_object().is_some_and(|body| !body.is_empty()),
                "nothing to set: give a limit or a weight (see `penstock tenants set --help`)"
            );
            show(&server.post(&["v1", "tenants", &args.name], Some(&body)).await?, args.json)
        }
        TenantsCommand::List(args) => {
            let list = server.get(&["v1", "tenants"], &[]).await?;
            if args.json {
                terminal::print_json(&list)?;
                return Ok(ExitCode::SUCCESS);
            }
            match list["data"].as_array().map_or(&[][..], Vec::as_slice) {
                [] => terminal::say("nothing was said of any tenant: all have no limits and weight 1"),
                tenants => table(tenants)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        TenantsCommand::Show(args) => show(&server.get(&["v1", "tenants", &args.name], &[]).await?, args.json),
        TenantsCommand::Reset(args) => {
            for name in &args.names {
                server.delete(&["v1", "tenants", name]).await?;
                terminal::say(&format!("{name} has no limits and weight 1"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl SetArgs {
    fn body(&self) -> Value {
        let limits = [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("concurrent_requests", self.concurrent),
            ("queued_jobs", self.queued_jobs),
        ];
        let mut body = Map::new();
        for (name, limit) in limits.into_iter().filter_map(|(name, limit)| Some((name, limit?))) {
            let value = match limit {
                Limit::None => Value::Null,
                Limit::Of(number) => json!(number),
            };
            body.insert(name.to_owned(), value);
        }
        body.extend(self.weight.map(|weight| ("weight".to_owned(), json!(weight))));
        Value::Object(body)
    }
}

fn show(tenant: &Value, as_json: bool) -> anyhow::Result<ExitCode> {
    match as_json {
        true => terminal::print_json(tenant)?,
        false => table(std::slice::from_ref(tenant))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(tenants: &[Value]) -> anyhow::Result<()> {
    let row = |tenant: &Value| {
        ["id", "requests_per_minute", "tokens_per_minute", "concurrent_requests", "queued_jobs", "weight", "changed_at"]
            .map(|field| match &tenant[field] {
                Value::String(text) => text.clone(),
                Value::Null => "-".to_owned(),
                other => other.to_string(),
            })
    };
    let header = ["TENANT", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT", "QUEUED", "WEIGHT", "CHANGED"];
    terminal::print(&terminal::table(&header, tenants.iter().map(row)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: TenantsCommand,
    }

    fn set(rest: &str) -> Result<Value, String> {
        let words = ["tenants", "set", "acme"].into_iter().chain(rest.split_whitespace());
        match Line::try_parse_from(words).map_err(|error| error.to_string())?.command {
            TenantsCommand::Set(args) => Ok(args.body()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn what_is_given_is_sent_and_none_is_null() {
        let body = set("--requests-per-minute 60 --tokens-per-minute none --concurrent 2 --weight 7").unwrap();
        let expected =
            json!({"requests_per_minute": 60, "tokens_per_minute": null, "concurrent_requests": 2, "weight": 7});
        assert_eq!(body, expected);
        assert_eq!(set("--queued-jobs 1000000000").unwrap(), json!({"queued_jobs": 1_000_000_000}));
        assert_eq!(set("").unwrap(), json!({}));
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_is_one() {
        for wrong in ["--queued-jobs 0", "--queued-jobs 1000000001", "--concurrent -1", "--requests-per-minute many"] {
            let refused = set(wrong).unwrap_err();
            assert!(refused.contains("from 1 to 1000000000, or none") || refused.contains("unexpected"), "{refused}");
        }
        assert!(set("--weight 1001").unwrap_err().contains("1..=1000"));
    }
}
