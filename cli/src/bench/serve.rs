//! `penstock bench serve`: a server as its clients see it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use gpu_worker::engine::random::philox;
use serde::Serialize;
use serde_json::{Value, json};

use super::arrival::{Arrival, poisson};
use super::latency::{Latency, Percentiles};
use super::stream::{self, Answer, Failure};
use crate::config::{self, ConfigArgs, Flags, Secret};
use crate::{http, terminal};

/// Words that prompts are made of: short ones, so that a word is about a token.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "is", "it", "for", "as", "was", "on", "are", "by", "be", "this", "that", "with",
    "at", "from", "one", "had", "but", "not", "what", "all", "were", "we", "when", "your", "can", "said", "there",
];
/// Longest silence of a server before a request counts as failed.
const QUIET: Duration = Duration::from_secs(120);

/// Latency and rates of any OpenAI-compatible server, as its clients see them.
///
/// Every request streams. Times are the client's: TTFT from sending to the first text, ITL between texts, E2E to the end
/// of the stream. With --concurrency each client sends its next request when its last one has ended; with --rate requests
/// arrive at random times that heed nobody, which shows what a queue does. A first request is sent before and not counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  penstock bench serve --concurrency 1,8,32 --requests 64
  penstock bench serve --url http://localhost:8000 --model my-model --rate 2,4 --requests 100 --json")]
pub struct ServeArgs {
    /// Address of the server [default: client.server]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Model name that requests carry [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Clients at once, one row each
    #[arg(long, value_delimiter = ',', value_name = "N,…", conflicts_with = "rate")]
    concurrency: Vec<usize>,
    /// Mean requests per second of a Poisson process, one row each
    #[arg(long, value_delimiter = ',', value_name = "R,…")]
    rate: Vec<f64>,
    /// Requests of each row
    #[arg(long, default_value_t = 32, value_name = "N")]
    requests: usize,
    /// Words of each prompt, about as many tokens
    #[arg(long, default_value_t = 128, value_name = "N")]
    prompt_words: usize,
    /// Most tokens of each answer
    #[arg(long, default_value_t = 64, value_name = "N")]
    output_tokens: usize,
    /// Call /v1/completions in place of /v1/chat/completions
    #[arg(long)]
    completions: bool,
    /// Further fields of every request, as a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    extra: String,
    /// Seed of prompts and arrivals; another one for each run, or a server that keeps prompts has them already
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    conditions: ServeConditions,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct ServeConditions {
    url: String,
    route: &'static str,
    model: String,
    /// The release that the server names, if it names one.
    release: Option<String>,
    requests: usize,
    prompt_words: usize,
    output_tokens: usize,
    extra: Value,
    seed: u64,
    client_cpu: String,
}

#[derive(Debug, Serialize)]
struct Row {
    arrival: Arrival,
    succeeded: u64,
    /// Requests without a whole answer, by what went wrong.
    errors: BTreeMap<String, u64>,
    seconds: f64,
    requests_per_s: f64,
    output_tokens_per_s: f64,
    ttft_ms: Option<Percentiles>,
    itl_ms: Option<Percentiles>,
    e2e_ms: Option<Percentiles>,
}

/// What a row counts while it runs.
#[derive(Default)]
struct Tally {
    succeeded: u64,
    tokens: u64,
    errors: BTreeMap<String, u64>,
    ttft: Latency,
    itl: Latency,
    e2e: Latency,
}

impl Tally {
    fn count(&mut self, outcome: Result<Answer, Failure>) {
        match outcome {
            Ok(answer) => {
                self.succeeded += 1;
                self.tokens += answer.tokens;
                if let Some(first) = answer.first {
                    self.ttft.record(first);
                }
                answer.gaps.iter().for_each(|gap| self.itl.record(*gap));
                self.e2e.record(answer.total);
            }
            Err(failure) => *self.errors.entry(failure.to_string()).or_default() += 1,
        }
    }

    fn row(self, arrival: Arrival, time: Duration) -> Row {
        let seconds = time.as_secs_f64();
        Row {
            arrival,
            succeeded: self.succeeded,
            errors: self.errors,
            seconds,
            requests_per_s: self.succeeded as f64 / seconds,
            output_tokens_per_s: self.tokens as f64 / seconds,
            ttft_ms: self.ttft.percentiles(),
            itl_ms: self.itl.percentiles(),
            e2e_ms: self.e2e.percentiles(),
        }
    }
}

/// Where requests go and what they look like.
struct Target {
    http: reqwest::Client,
    url: String,
    key: Option<Secret>,
    model: String,
    completions: bool,
    prompt_words: usize,
    output_tokens: usize,
    extra: serde_json::Map<String, Value>,
    seed: u64,
}

impl Target {
    fn body(&self, row: u32, nth: u32) -> Value {
        let word = |idx: usize| {
            let drawn = philox([idx as u32, nth, row, 0], [self.seed as u32, (self.seed >> 32) as u32]);
            WORDS[drawn[0] as usize % WORDS.len()]
        };
        let prompt = (0..self.prompt_words).map(word).collect::<Vec<_>>().join(" ");
        let mut body = json!({
            "model": self.model,
            "max_tokens": self.output_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let fields = body.as_object_mut().expect("the macro made an object");
        match self.completions {
            true => fields.insert("prompt".to_owned(), prompt.into()),
            false => fields.insert("messages".to_owned(), json!([{"role": "user", "content": prompt}])),
        };
        fields.extend(self.extra.clone());
        body
    }

    async fn send(&self, row: u32, nth: u32) -> Result<Answer, Failure> {
        stream::send(&self.http, &self.url, self.key.as_ref().map(Secret::reveal), &self.body(row, nth)).await
    }
}

/// Runs `penstock bench serve`; false when any request failed.
///
/// # Errors
/// The server does not answer at all, or the arguments make no sense.
pub async fn run(args: &ServeArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default().set("client.server", "--url", args.url.clone()))?.config;
    let base = settings.client.server.trim_end_matches('/').to_owned();
    let arrivals = arrivals(args)?;
    let extra: serde_json::Map<String, Value> =
        serde_json::from_str(&args.extra).context("--extra needs a JSON object")?;
    let http = http::client(QUIET)?;
    let key = settings.client.api_key;
    let (model, release) = first_model(&http, &base, key.as_ref(), args.model.clone()).await?;
    let route = if args.completions { "/v1/completions" } else { "/v1/chat/completions" };
    let target = Target {
        http,
        url: format!("{base}{route}"),
        key,
        model: model.clone(),
        completions: args.completions,
        prompt_words: args.prompt_words,
        output_tokens: args.output_tokens,
        extra: extra.clone(),
        seed: args.seed,
    };
    if let Err(failure) = target.send(u32::MAX, 0).await {
        bail!("the first request to {} failed: {failure}", target.url);
    }
    let mut rows = Vec::new();
    for (row, arrival) in (0u32..).zip(arrivals) {
        rows.push(measure(&target, row, arrival, args.requests).await);
    }
    let conditions = ServeConditions {
        url: base,
        route,
        model,
        release,
        requests: args.requests,
        prompt_words: args.prompt_words,
        output_tokens: args.output_tokens,
        extra: Value::Object(extra),
        seed: args.seed,
        client_cpu: super::cpu_name(),
    };
    let all_well = rows.iter().all(|row| row.errors.is_empty());
    let report = Report { conditions, rows };
    if args.json {
        terminal::print_json(&report)?
    } else {
        show(&report)?
    }
    Ok(all_well)
}

fn arrivals(args: &ServeArgs) -> anyhow::Result<Vec<Arrival>> {
    if args.requests == 0 || args.output_tokens == 0 || args.prompt_words == 0 {
        bail!("--requests, --prompt-words and --output-tokens are at least 1");
    }
    if args.rate.is_empty() {
        let concurrency = if args.concurrency.is_empty() { &[1, 8][..] } else { &args.concurrency };
        if concurrency.contains(&0) {
            bail!("--concurrency needs at least 1 client");
        }
        return Ok(concurrency.iter().map(|clients| Arrival::Closed { clients: *clients }).collect());
    }
    if let Some(wrong) = args.rate.iter().find(|rate| !(rate.is_finite() && **rate > 0.0)) {
        bail!("--rate {wrong} is no rate: requests per second, above 0");
    }
    Ok(args.rate.iter().map(|per_second| Arrival::Poisson { per_second: *per_second }).collect())
}

/// The model to name, and the release that the server says it serves.
async fn first_model(
    http: &reqwest::Client,
    base: &str,
    key: Option<&Secret>,
    named: Option<String>,
) -> anyhow::Result<(String, Option<String>)> {
    let mut request = http.get(format!("{base}/v1/models"));
    if let Some(key) = key {
        request = request.bearer_auth(key.reveal());
    }
    let answer = request.send().await.map_err(|error| {
        anyhow::anyhow!("no server answers at {base} ({}): name it with --url", http::cause(&error))
    })?;
    // A server without this list can be measured all the same, if the model is named.
    let models: Option<Value> = answer.json().await.ok();
    let models = models.as_ref().and_then(|list| list["data"].as_array()).map_or(&[][..], Vec::as_slice);
    let name = match named {
        Some(name) => name,
        None => {
            let first = models.first().and_then(|model| model["id"].as_str());
            first.with_context(|| format!("{base}/v1/models names no model: name one with --model"))?.to_owned()
        }
    };
    // Penstock names the release of each; others name none.
    let release = models.iter().find(|model| model["id"] == name.as_str()).and_then(|model| model["release"].as_str());
    Ok((name, release.map(str::to_owned)))
}

async fn measure(target: &Target, row: u32, arrival: Arrival, requests: usize) -> Row {
    let mut tally = Tally::default();
    let begin = Instant::now();
    let n = u32::try_from(requests).unwrap_or(u32::MAX);
    match arrival {
        Arrival::Closed { clients } => {
            let mut answers = futures::stream::iter(0..n).map(|nth| target.send(row, nth)).buffer_unordered(clients);
            while let Some(outcome) = answers.next().await {
                tally.count(outcome);
            }
        }
        Arrival::Poisson { per_second } => {
            let mut running = FuturesUnordered::new();
            for (nth, at) in (0..n).zip(poisson(per_second, requests, target.seed ^ u64::from(row))) {
                let due = tokio::time::sleep_until(tokio::time::Instant::from_std(begin + at));
                let mut due = std::pin::pin!(due);
                // Answers are read while the next request waits for its time.
                loop {
                    tokio::select! {
                        () = &mut due => break,
                        Some(outcome) = running.next(), if !running.is_empty() => tally.count(outcome),
                    }
                }
                running.push(target.send(row, nth));
            }
            while let Some(outcome) = running.next().await {
                tally.count(outcome);
            }
        }
    }
    tally.row(arrival, begin.elapsed())
}

fn show(report: &Report) -> anyhow::Result<()> {
    let conditions = &report.conditions;
    terminal::say(&format!(
        "{}{}, {} ({}), prompts of {} words and outputs of at most {} tokens, {} requests a row, client on {}; times in ms",
        conditions.url,
        conditions.route,
        conditions.model,
        conditions
            .release
            .as_deref()
            .map_or("no release named".to_owned(), |release| release.chars().take(12).collect()),
        conditions.prompt_words,
        conditions.output_tokens,
        conditions.requests,
        conditions.client_cpu,
    ));
    let three = |times: &Option<Percentiles>| match times {
        Some(times) => format!("{:.1} / {:.1} / {:.1}", times.p50, times.p95, times.p99),
        None => "-".to_owned(),
    };
    let rows = report.rows.iter().map(|row| {
        let errors: Vec<String> = row.errors.iter().map(|(what, n)| format!("{n} x {what}")).collect();
        [
            row.arrival.to_string(),
            row.succeeded.to_string(),
            if errors.is_empty() { "none".to_owned() } else { errors.join(", ") },
            format!("{:.1}", row.requests_per_s),
            format!("{:.1}", row.output_tokens_per_s),
            three(&row.ttft_ms),
            three(&row.itl_ms),
            three(&row.e2e_ms),
        ]
    });
    terminal::print(&terminal::table(
        &["arrival", "answered", "errors", "req/s", "tok/s", "TTFT p50/95/99", "ITL p50/95/99", "E2E p50/95/99"],
        rows,
    ))
}
