//! `penstock usage`: what was used, by day and release.

use std::collections::BTreeMap;
use std::process::ExitCode;

use contract::Day;
use serde_json::Value;

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::{self, ConfigArgs};
use crate::terminal;

/// Show jobs and tokens by day (UTC) and release: those of the key's tenant, or of all tenants for an operator.
///
/// Jobs count on the day of their acceptance, and by how they ended on the day of their end. Wasted tokens are those of
/// attempts that gave no result. For example:
///
///     penstock usage --from 2026-11-01 --to 2026-11-30
///     penstock usage --all-tenants --json | jq '[.data[].tokens.output_tokens] | add'
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct UsageArgs {
    /// The first day, as 2026-11-29 [default: 30 days with --to]
    #[arg(long, value_name = "DAY")]
    from: Option<Day>,
    /// The last day [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<Day>,
    /// Of this tenant, whose key it need not be; needs the scope admin
    #[arg(long, value_name = "NAME", conflicts_with = "all_tenants")]
    tenant: Option<String>,
    /// Of all tenants; needs the scope admin
    #[arg(long)]
    all_tenants: bool,
    /// Print {"object": "list", "data": […]} instead of a table, by class too
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `penstock usage`.
///
/// # Errors
/// The server cannot be used, or refuses.
pub async fn run(args: &UsageArgs, config: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let settings = config::load(config, args.server.flags())?.config;
    let server = Server::new(&settings.client)?;
    let of_tenants = args.all_tenants || args.tenant.is_some();
    let path: &[&str] = if of_tenants { &["v1", "usage", "tenants"] } else { &["v1", "usage"] };
    let days = [("from", args.from), ("to", args.to)];
    let mut query: Vec<_> = days.into_iter().filter_map(|(name, day)| Some((name, day?.to_string()))).collect();
    query.extend(args.tenant.clone().map(|tenant| ("tenant", tenant)));
    let list = server.get(path, &query).await?;
    if args.json {
        terminal::print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    if lines.is_empty() {
        let (from, to) = (text(&list, "from"), text(&list, "to"));
        terminal::say(&format!("no jobs from {from} to {to}"));
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&table(lines))?;
    Ok(ExitCode::SUCCESS)
}

/// Where the figures of a line are, in the order of the columns.
const FIGURES: [(&str, &str); 9] = [
    ("/jobs/accepted", "ACCEPTED"),
    ("/jobs/succeeded", "SUCCEEDED"),
    ("/jobs/failed", "FAILED"),
    ("/jobs/cancelled", "CANCELLED"),
    ("/jobs/expired", "EXPIRED"),
    ("/tokens/prompt_tokens", "PROMPT"),
    ("/tokens/cached_tokens", "CACHED"),
    ("/tokens/output_tokens", "OUTPUT"),
    // Prompt and output tokens of attempts without a result.
    ("", "WASTED"),
];

/// By day, tenant, release and model; the classes together.
fn table(lines: &[Value]) -> String {
    let mut sums: BTreeMap<[&str; 4], [u64; FIGURES.len()]> = BTreeMap::new();
    for line in lines {
        let key = ["day", "tenant", "release", "model"].map(|field| text(line, field));
        let sums = sums.entry(key).or_default();
        for (sum, (pointer, _)) in sums.iter_mut().zip(FIGURES) {
            *sum += match pointer {
                "" => number(line, "/wasted_tokens/prompt_tokens") + number(line, "/wasted_tokens/output_tokens"),
                pointer => number(line, pointer),
            };
        }
    }
    let header: Vec<&str> =
        ["DAY", "TENANT", "RELEASE", "MODEL"].into_iter().chain(FIGURES.map(|(_, name)| name)).collect();
    let row = |([day, tenant, release, model], sums): ([&str; 4], [u64; FIGURES.len()])| {
        let release = release.get(..12).unwrap_or(release);
        let words = [day, tenant, release, model].map(str::to_owned);
        words.into_iter().chain(sums.map(|sum| sum.to_string())).collect::<Vec<String>>()
    };
    terminal::table(&header, sums.into_iter().map(row))
}

fn text<'v>(line: &'v Value, field: &str) -> &'v str {
    line[field].as_str().unwrap_or("-")
}

fn number(line: &Value, pointer: &str) -> u64 {
    line.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_are_summed_up_and_waste_is_prompt_and_output() {
        let line = |class: &str| {
            json!({
                "day": "2026-11-29", "tenant": "acme", "release": "ab".repeat(32), "model": "small", "class": class,
                "jobs": {"accepted": 5, "succeeded": 2, "failed": 1, "cancelled": 1, "expired": 1},
                "tokens": {"prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 30},
                "wasted_tokens": {"prompt_tokens": 7, "cached_tokens": 0, "output_tokens": 3},
            })
        };
        let shown = table(&[line("bulk"), line("standard")]);
        let words: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        let expected =
            ["2026-11-29", "acme", "abababababab", "small", "10", "4", "2", "2", "2", "200", "80", "60", "20"];
        assert_eq!(words, expected);
        assert_eq!(shown.lines().count(), 2, "{shown}");
    }
}
