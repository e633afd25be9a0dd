//! `penstock webhooks deliveries` and `redeliver`

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use contract::DeliveryState;
use serde_json::{Value, json};

use super::text;
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Deliveries asked for at once; more are fetched page by page.
const PAGE: usize = 100;

/// List what was sent and what waits, newest first; or show one with its attempts.
///
/// They are kept for 30 days after their end. For example:
///
///     penstock webhooks deliveries
///     penstock webhooks deliveries --status failed --json | jq -r .data[].id
///     penstock webhooks deliveries msg_0193f0c0d0e070008000000000000001
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct DeliveriesArgs {
    /// Show this one, with its attempts
    #[arg(conflicts_with_all = ["webhook", "status", "limit", "after"])]
    id: Option<String>,
    /// Only those of this webhook
    #[arg(long, value_name = "ID")]
    webhook: Option<String>,
    /// Only those that stand so: waiting, delivered or failed
    #[arg(long, value_name = "STATUS")]
    status: Option<DeliveryState>,
    /// Most deliveries to list
    #[arg(long, value_name = "N", default_value = "20")]
    limit: NonZeroUsize,
    /// Begin after this delivery: the last one of an earlier list
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Print {"object": "list", "data": […], "has_more": …, "last_id": …}, or the one delivery, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Send deliveries again, with the same ids, whether they were delivered or not.
///
/// For example:
///
///     penstock webhooks redeliver msg_0193f0c0d0e070008000000000000001
///     penstock webhooks deliveries --status failed --limit 1000 --json | jq -r .data[].id \
///       | xargs penstock webhooks redeliver
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct RedeliverArgs {
    /// Ids of the deliveries (`msg_…`), as `penstock webhooks deliveries` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &DeliveriesArgs, server: &Server) -> anyhow::Result<ExitCode> {
    if let Some(id) = &args.id {
        let delivery = server.get(&["v1", "webhooks", "deliveries", id], &[]).await?;
        if args.json {
            terminal::print_json(&delivery)?;
        } else {
            terminal::print(&readable(&delivery))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (deliveries, has_more) = find(args, server).await?;
    let last = deliveries.last().map(|delivery| text(delivery, "id").to_owned());
    if args.json {
        terminal::print_json(&json!({"object": "list", "data": deliveries, "has_more": has_more, "last_id": last}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if deliveries.is_empty() {
        terminal::say("no such deliveries: `penstock webhooks list` shows the webhooks there are");
        return Ok(ExitCode::SUCCESS);
    }
    let row = |delivery: &Value| {
        let [id, event, subject, status, next, url] = ["id", "event", "subject", "status", "next_attempt_at", "url"]
            .map(|field| text(delivery, field).to_owned());
        [id, event, subject, status, delivery["attempts"].to_string(), next, url]
    };
    let header = ["ID", "EVENT", "SUBJECT", "STATUS", "ATTEMPTS", "NEXT", "URL"];
    terminal::print(&terminal::table(&header, deliveries.iter().map(row)))?;
    if let Some(last) = last.filter(|_| has_more) {
        terminal::say(&format!("there are more: --after {last} goes on, --limit shows more at once"));
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn redeliver(args: &RedeliverArgs, server: &Server) -> anyhow::Result<ExitCode> {
    for id in &args.ids {
        let delivery = server.post(&["v1", "webhooks", "deliveries", id, "redeliver"], None).await?;
        terminal::say(&format!("{} is sent again to {}", text(&delivery, "id"), text(&delivery, "url")));
    }
    Ok(ExitCode::SUCCESS)
}

async fn find(args: &DeliveriesArgs, server: &Server) -> anyhow::Result<(Vec<Value>, bool)> {
    let (mut found, mut has_more, mut after) = (Vec::new(), false, args.after.clone());
    while found.len() < args.limit.get() {
        let mut query = vec![("limit", (args.limit.get() - found.len()).min(PAGE).to_string())];
        let status = args.status.map(|status| status.as_str().to_owned());
        for (name, value) in [("webhook", args.webhook.clone()), ("status", status), ("after", after.take())] {
            query.extend(value.map(|value| (name, value)));
        }
        let page = server.get(&["v1", "webhooks", "deliveries"], &query).await?;
        has_more = page["has_more"] == Value::Bool(true);
        let deliveries = page["data"].as_array().cloned().unwrap_or_default();
        let came = deliveries.len();
        found.extend(deliveries);
        after = page["last_id"].as_str().map(str::to_owned);
        // A page without deliveries that promises more would be asked for again and again.
        if !has_more || came == 0 || after.is_none() {
            break;
        }
    }
    Ok((found, has_more))
}

fn readable(delivery: &Value) -> String {
    let mut out = String::new();
    for (name, field) in [
        ("id", "id"),
        ("event", "event"),
        ("subject", "subject"),
        ("created", "created_at"),
        ("webhook", "webhook"),
        ("url", "url"),
        ("status", "status"),
        ("next", "next_attempt_at"),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<8} {}", text(delivery, field));
    }
    let attempts = delivery["log"].as_array().map_or(&[][..], Vec::as_slice);
    if attempts.is_empty() {
        out.push_str("\nno attempt has ended yet\n");
        return out;
    }
    let row = |attempt: &Value| {
        let status = attempt["status"].as_u64().map_or_else(|| "-".to_owned(), |status| status.to_string());
        [text(attempt, "at").to_owned(), status, attempt["took_ms"].to_string(), text(attempt, "error").to_owned()]
    };
    let table = terminal::table(&["AT", "STATUS", "TOOK_MS", "ERROR"], attempts.iter().map(row));
    let _ = write!(out, "\n{table}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_shows_why_its_attempts_failed() {
        let shown = readable(&json!({
            "id": "msg_1", "event": "job.failed", "status": "waiting", "webhook": null,
            "log": [{"at": "2026-01-01T00:00:00Z", "status": 500, "error": "the server answered 500", "took_ms": 3}],
        }));
        assert!(shown.contains("webhook  -") && shown.contains("the server answered 500"), "{shown}");
        assert!(readable(&json!({"id": "msg_1", "log": []})).contains("no attempt"), "{shown}");
    }
}
