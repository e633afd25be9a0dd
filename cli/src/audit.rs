//! `penstock audit`: whether every accepted job is accounted for.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use contract::{Day, Timestamp};
use serde_json::{Value, json};

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::{self, ConfigArgs};
use crate::terminal;

/// Days of an audit where none are asked for.
const DAYS: i32 = 7;
/// Most contradictions that are shown.
const MAX_BREACHES: usize = 100;

/// Prove that every accepted job ended once or is unfinished, or say what contradicts it.
///
/// For every tenant and day of acceptance (UTC), and for every batch: accepted = succeeded + failed + cancelled +
/// expired + unfinished. What was accepted is counted from the events, the rest from the rows; each job's row is held
/// against its events, batches against their lines, and the counters of unfinished jobs against the rows. Needs the
/// scope admin. The exit status is 1 if something does not add up. For example:
///
///     penstock audit
///     penstock audit --tenant acme --from 2026-11-01 --to 2026-11-30 --json
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct AuditArgs {
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// The first day of acceptance, as 2026-11-29 [default: 7 days with --to]
    #[arg(long, value_name = "DAY")]
    from: Option<Day>,
    /// The last day [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<Day>,
    /// Print {"object": "audit", "holds": …, "days": […], "batches": […], "breaches": […]} instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `penstock audit`.
///
/// # Errors
/// The server cannot be used, or refuses.
pub async fn run(args: &AuditArgs, config: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let settings = config::load(config, args.server.flags())?.config;
    let server = Server::new(&settings.client)?;
    let to = args.to.unwrap_or_else(today);
    let from = args.from.unwrap_or_else(|| Day(to.plus(1 - DAYS).0.max(0)));
    anyhow::ensure!(from <= to, "--from {from} is later than --to {to}");
    let mut found = Found { holds: true, ..Found::default() };
    // A day at a time: however busy they were, no answer takes long.
    let mut day = from;
    while day <= to {
        let mut query = vec![("from", day.to_string()), ("to", day.to_string())];
        query.extend(args.tenant.clone().map(|tenant| ("tenant", tenant)));
        found.take(&server.get(&["v1", "audit"], &query).await?);
        day = day.plus(1);
    }
    if args.json {
        terminal::print_json(&found.json(from, to))?;
    } else {
        terminal::print(&found.tables())?;
        terminal::say(&found.verdict(from, to));
    }
    Ok(if found.holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn today() -> Day {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Day::of(Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}

/// The audits of some days together.
#[derive(Default)]
struct Found {
    holds: bool,
    days: Vec<Value>,
    batches: Vec<Value>,
    more_batches: bool,
    breaches: Vec<Value>,
    more_breaches: bool,
}

impl Found {
    fn take(&mut self, audit: &Value) {
        let list = |name: &str| audit[name].as_array().cloned().unwrap_or_default();
        // An answer that does not say so proves nothing.
        self.holds &= audit["holds"] == true;
        self.more_batches |= audit["more_batches"] == true;
        self.more_breaches |= audit["more_breaches"] == true;
        self.days.extend(list("days"));
        self.batches.extend(list("batches"));
        for breach in list("breaches") {
            // A counter is of no day, so each day's audit finds it.
            if !self.breaches.contains(&breach) {
                self.breaches.push(breach);
            }
        }
        self.more_breaches |= self.breaches.len() > MAX_BREACHES;
        self.breaches.truncate(MAX_BREACHES);
    }

    fn json(&self, from: Day, to: Day) -> Value {
        json!({
            "object": "audit", "from": from.to_string(), "to": to.to_string(), "holds": self.holds, "days": self.days,
            "batches": self.batches, "more_batches": self.more_batches, "breaches": self.breaches,
            "more_breaches": self.more_breaches,
        })
    }

    fn tables(&self) -> String {
        const TALLY: [&str; 6] = ["accepted", "succeeded", "failed", "cancelled", "expired", "unfinished"];
        let heads = TALLY.map(str::to_uppercase);
        let row = |line: &Value, fields: &[&str]| -> Vec<String> {
            let verdict = if line["balanced"] == true { "ok" } else { "WRONG" };
            fields.iter().map(|field| cell(&line[*field])).chain([verdict.to_owned()]).collect()
        };
        let table = |first: &[&str], lines: &[Value]| {
            let fields: Vec<&str> = first.iter().copied().chain(TALLY).collect();
            let header: Vec<String> = first.iter().map(|field| field.to_uppercase()).chain(heads.clone()).collect();
            let header: Vec<&str> = header.iter().map(String::as_str).chain(["VERDICT"]).collect();
            terminal::table(&header, lines.iter().map(|line| row(line, &fields)))
        };
        let mut shown = Vec::new();
        if !self.days.is_empty() {
            shown.push(table(&["day", "tenant"], &self.days));
        }
        if !self.batches.is_empty() {
            shown.push(table(&["id", "day", "tenant", "status", "lines", "refused"], &self.batches));
        }
        if !self.breaches.is_empty() {
            let fields = ["kind", "subject", "tenant", "day", "detail"];
            let cells = |breach: &Value| fields.map(|field| cell(&breach[field]));
            let header = ["WRONG", "SUBJECT", "TENANT", "DAY", "FOUND"];
            shown.push(terminal::table(&header, self.breaches.iter().map(cells)));
        }
        shown.join("\n")
    }

    fn verdict(&self, from: Day, to: Day) -> String {
        let sum = |field: &str| self.days.iter().filter_map(|day| day[field].as_u64()).sum::<u64>();
        let (accepted, unfinished) = (sum("accepted"), sum("unfinished"));
        let range = format!("{from} to {to}");
        if self.holds && accepted == 0 {
            return format!("{range}: no job was accepted, so there is nothing to prove");
        }
        if self.holds {
            return format!(
                "{range}: {accepted} jobs accepted; all are accounted for, {unfinished} of them unfinished"
            );
        }
        let mut words = format!("{range}: {accepted} jobs accepted, and not all adds up");
        if !self.breaches.is_empty() {
            let more = if self.more_breaches { " or more" } else { "" };
            words = format!("{words}; contradictions named above: {}{more}", self.breaches.len());
        }
        if self.more_batches {
            words = format!("{words}; a day has more batches than one audit looks at: ask tenant by tenant");
        }
        words
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(holds: bool, breaches: &[Value]) -> Value {
        let day = json!({"day": "2026-11-29", "tenant": "acme", "accepted": 3, "succeeded": 2, "failed": 0,
            "cancelled": 0, "expired": 0, "unfinished": 1, "balanced": true});
        json!({"holds": holds, "days": [day], "batches": [], "more_batches": false, "breaches": breaches,
            "more_breaches": false})
    }

    #[test]
    fn what_each_day_finds_is_said_once() {
        let counter =
            json!({"kind": "counter", "subject": "tenant:acme", "tenant": "acme", "day": null, "detail": "x"});
        let mut found = Found { holds: true, ..Found::default() };
        found.take(&audit(true, &[]));
        let day: Day = "2026-11-29".parse().unwrap();
        assert!(found.holds && found.verdict(day, day).contains("3 jobs accepted; all are accounted for, 1 of them"));
        found.take(&audit(false, std::slice::from_ref(&counter)));
        found.take(&audit(false, &[counter]));
        assert!(!found.holds && found.breaches.len() == 1);
        let shown = found.tables();
        let line = shown.lines().find(|line| line.starts_with("counter")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["counter", "tenant:acme", "acme", "-", "x"]);
        assert!(
            found.verdict(day, day).contains("9 jobs accepted, and not all adds up; contradictions named above: 1")
        );
        let first = shown.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(first, ["2026-11-29", "acme", "3", "2", "0", "0", "0", "1", "ok"]);
    }

    #[test]
    fn an_answer_that_says_nothing_proves_nothing() {
        let mut found = Found { holds: true, ..Found::default() };
        found.take(&json!({}));
        assert!(!found.holds);
    }
}
