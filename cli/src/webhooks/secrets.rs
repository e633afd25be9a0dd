//! `penstock webhooks secret` and `rotate`

use std::process::ExitCode;

use serde_json::{Value, json};

use super::text;
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Show the secret that signs: of a webhook, or for addresses named by jobs and batches.
///
/// Earlier secrets that still sign beside it are named on standard error. For example:
///
///     penstock webhooks secret
///     penstock webhooks secret wh_0193f0c0d0e070008000000000000001
///     penstock webhooks listen --secret "$(penstock webhooks secret)"
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct SecretArgs {
    /// Id of the webhook [default: the secret for addresses that jobs and batches name in their field webhook]
    id: Option<String>,
    /// Print {"object": "webhook.secrets", "secret": …, "earlier": […]} instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Make a new secret. For a time the earlier ones sign beside it.
///
/// Prints the new secret; receivers may change to it at any time until then. For example:
///
///     penstock webhooks rotate wh_0193f0c0d0e070008000000000000001
///     penstock webhooks rotate --overlap-hours 0    # the earlier one is known to others: it ends now
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct RotateArgs {
    /// Id of the webhook [default: the secret for addresses that jobs and batches name in their field webhook]
    id: Option<String>,
    /// Hours for which the earlier secrets sign on, up to 168
    #[arg(long, value_name = "HOURS", default_value = "24", value_parser = clap::value_parser!(u64).range(..=168))]
    overlap_hours: u64,
    /// Print {"object": "webhook.secrets", "secret": …, "earlier": […]} instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &SecretArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let secrets = server.get(&path(args.id.as_deref(), &["secret"]), &[]).await?;
    show(&secrets, args.json)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn rotate(args: &RotateArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let last: &[&str] = if args.id.is_some() { &["rotate"] } else { &["secret", "rotate"] };
    let body = json!({"overlap_seconds": args.overlap_hours * 3_600});
    let secrets = server.post(&path(args.id.as_deref(), last), Some(&body)).await?;
    show(&secrets, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn path<'p>(id: Option<&'p str>, last: &[&'p str]) -> Vec<&'p str> {
    ["v1", "webhooks"].into_iter().chain(id).chain(last.iter().copied()).collect()
}

fn show(secrets: &Value, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return terminal::print_json(secrets);
    }
    terminal::print(&format!("{}\n", text(secrets, "secret")))?;
    let earlier: Vec<_> = secrets["earlier"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !earlier.is_empty() {
        terminal::say(&format!("earlier secrets that still sign beside it: {}", earlier.join(" ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_id_it_is_the_tenants_own_secret() {
        assert_eq!(path(None, &["secret", "rotate"]), ["v1", "webhooks", "secret", "rotate"]);
        assert_eq!(path(Some("wh_1"), &["rotate"]), ["v1", "webhooks", "wh_1", "rotate"]);
    }
}
