//! `penstock score --follow`: work that comes without an end, answered as it comes.
//!
//! From the standard input or a queue, by the engine in this process or a server, to the standard output, a file or an
//! exchange. What came from a queue is acknowledged when its answer is durable: confirmed by the broker, or in the file.
//! So it is answered at least once, and a repeat says the same: its seed is derived from the message.

mod scorer;
mod scratch;
mod shown;
mod sink;
mod source;
mod work;

use std::num::{NonZeroU16, NonZeroU64};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use backends::rabbitmq::{Answers, AnswersOptions, FollowOptions, FollowedQueue};
use tokio::sync::watch;

use super::reading::Reading;
use super::request::Defaults;
use super::{ScoreArgs, remote};
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::{self, Config, ConfigArgs};
use crate::embedded::{self, Model, Running};
use crate::threads;
use scorer::{Embedded, Remote, Scorer};
use scratch::Scratch;
use shown::Shown;
use sink::Sink;
use source::Source;
use work::{Summary, Turn, Work};

/// A broker gives up on a message that is not acknowledged within 30 minutes; this leaves time for the rest of the way.
const DEADLINE: Duration = Duration::from_secs(10 * 60);
/// The longest deadline a job may have.
const LONGEST_DEADLINE: Duration = Duration::from_secs(24 * 3_600);

/// Options of `penstock score --follow`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Continuous work")]
pub struct FollowArgs {
    /// Answer lines of the standard input, or messages of a queue, as they come; ends with the input, or when stopped
    #[arg(long, conflicts_with_all = ["overwrite", "window", "template"])]
    pub follow: bool,
    /// Lines under way at once; no more are read [default: twice engine.max_sequences]
    #[arg(long, value_name = "N", requires = "follow")]
    concurrency: Option<NonZeroU16>,
    /// Write answers as they end, not in the order of the input (an exchange always gets them so)
    #[arg(long, requires = "follow")]
    unordered: bool,
    /// Time that a line has, as in 90s or 10m; one that takes longer becomes an error line [default: 10m]
    #[arg(long, value_name = "TIME", requires = "follow", value_parser = deadline)]
    deadline: Option<Duration>,
    /// Take messages of this queue of a RabbitMQ broker; each is acknowledged when its answer is durable
    #[arg(long, value_name = "NAME", requires = "follow", conflicts_with = "input")]
    from_queue: Option<String>,
    /// Publish answers to this exchange; "" leads to the queue that --routing-key names
    #[arg(long, value_name = "NAME", requires = "follow", conflicts_with = "output")]
    to_exchange: Option<String>,
    /// Routing key of the answers [default: empty]
    #[arg(long, value_name = "KEY", requires = "to_exchange")]
    routing_key: Option<String>,
    /// Lines after which the temporary store of answered lines is made anew, and the model loaded again; not with --server
    #[arg(long, value_name = "N", requires = "follow", default_value = "100000")]
    store_lines: NonZeroU64,
    /// The broker, amqp://user:password@host/vhost [setting follow.amqp, variable PENSTOCK_FOLLOW__AMQP, which other users
    /// cannot see; else queue.url]
    #[arg(long, value_name = "URL", requires = "follow")]
    amqp: Option<String>,
}

/// `90s`, `10m`, `2h`.
fn deadline(text: &str) -> Result<Duration, String> {
    let wrong = || "write a number of seconds, minutes or hours, as in 90s, 10m or 2h, up to 24h".to_owned();
    let (digits, unit) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'm') => (&text[..text.len() - 1], 60),
        Some(b'h') => (&text[..text.len() - 1], 3_600),
        _ => return Err(wrong()),
    };
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
    let time = number.and_then(|number| number.checked_mul(unit)).map(Duration::from_secs);
    time.filter(|time| !time.is_zero() && *time <= LONGEST_DEADLINE).ok_or_else(wrong)
}

/// Runs `penstock score --follow`; true if every line was answered: with success where the input ended by itself.
///
/// # Errors
/// Input, output, broker, server or model cannot be used; the message says what to do.
pub async fn run(args: &ScoreArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let flags = ServerArgs { server: args.server.clone(), api_key: args.api_key.clone() }.flags();
    let flags = flags.set("follow.amqp", "--amqp", args.follow.amqp.clone());
    let own_model = args.model.clone().filter(|_| args.server.is_none());
    let settings = config::load(config, flags.set("serve.model", "--model", own_model))?.config;
    if args.server.is_none() {
        threads::settle(settings.engine.threads)?;
    }
    // What costs nothing to find out comes before the model.
    let source = args.source(&settings).await?;
    let sink = args.sink(&settings).await?;
    let summary = match &args.server {
        Some(_) => on_server(args, &settings, source, sink).await?,
        None => in_process(args, &settings, source, sink).await?,
    };
    Ok(summary.is_well())
}

async fn on_server(args: &ScoreArgs, settings: &Config, source: Source, sink: Sink) -> anyhow::Result<Summary> {
    let server = Server::new(&settings.client)?;
    let model = remote::find_model(&server, args.model.as_deref()).await?;
    let mut work = args.work(settings, source, sink, model.id, model.release);
    let scorer = Scorer::Remote(Remote { server, deadline: args.deadline() });
    work.source.begin();
    let worked = work.turn(&scorer, None, u64::MAX).await;
    let summary = work.close().await;
    worked?;
    Ok(summary)
}

/// By the engine in this process. Its store keeps every job until it goes, so it is made anew now and then.
async fn in_process(args: &ScoreArgs, settings: &Config, source: Source, sink: Sink) -> anyhow::Result<Summary> {
    let mut model = embedded::find_model(&settings.serve.model).await?;
    let release = model.served.release.clone();
    let mut work = args.work(settings, source, sink, model.served.name.clone(), release.to_string());
    let worked = loop {
        match in_one_store(args, settings, model, &mut work).await {
            Ok(Turn::Full) => {}
            ended => break ended,
        }
        model = match embedded::find_model(&settings.serve.model).await {
            Ok(model) if model.served.release == release => model,
            Ok(_) => break Err(anyhow::anyhow!("the model's file has changed since the run began")),
            Err(error) => break Err(error),
        };
    };
    let summary = work.close().await;
    worked?;
    Ok(summary)
}

async fn in_one_store(args: &ScoreArgs, settings: &Config, model: Model, work: &mut Work) -> anyhow::Result<Turn> {
    let scratch = Scratch::make().context("a temporary folder cannot be made (variable TMPDIR)")?;
    work.scratch = Some(scratch.path().to_owned());
    let served = model.served.clone();
    let backends = embedded::open_embedded(&scratch.data(), settings).await?;
    let (stop, stopped) = watch::channel(false);
    let mut own = settings.clone();
    // Nobody waits for what is still under way when the worker is told.
    own.serve.drain = Duration::from_secs(1);
    let running = embedded::start(model, &backends, embedded::shared_ports(&backends), &own, stopped)?;
    let turn = match until_loaded(&running, work).await {
        Ok(true) => {
            let scorer = Scorer::Embedded(Embedded::new(backends, served, args.deadline()).await);
            work.source.begin();
            work.turn(&scorer, Some(&running), args.follow.store_lines.get()).await
        }
        Ok(false) => Ok(Turn::Ended),
        Err(error) => Err(error),
    };
    let _worker_is_gone = stop.send(true);
    let joined = running.join().await;
    let turn = turn?;
    joined?;
    Ok(turn)
}

/// Waits until the model is loaded: a line's time does not begin before. False when the run was stopped meanwhile.
async fn until_loaded(running: &Running, work: &mut Work) -> anyhow::Result<bool> {
    let mut engine = running.engine.clone();
    tokio::select! {
        loaded = engine.wait_for(Option::is_some) => drop(loaded.context("the engine ended before it was ready")?),
        () = embedded::ended(running) => bail!("the engine ended before it was ready"),
        asked = &mut work.asked => {
            asked?;
            work.summary.is_stopped = true;
            return Ok(false);
        }
    }
    Ok(true)
}

impl ScoreArgs {
    fn concurrency(&self, settings: &Config) -> u16 {
        let usual = || u16::try_from(settings.engine.max_sequences.get() * 2).unwrap_or(u16::MAX);
        // The most that a quorum queue gives to one consumer.
        self.follow.concurrency.map_or_else(usual, NonZeroU16::get).min(2_000)
    }

    fn deadline(&self) -> Duration {
        self.follow.deadline.unwrap_or(DEADLINE)
    }

    fn amqp(&self, settings: &Config) -> anyhow::Result<String> {
        let url = settings.follow.amqp.as_ref().or(settings.queue.url.as_ref()).map(|url| url.reveal().to_owned());
        url.context("a queue or an exchange needs its broker: give its URL with PENSTOCK_FOLLOW__AMQP or --amqp")
    }

    async fn source(&self, settings: &Config) -> anyhow::Result<Source> {
        if let Some(queue) = &self.follow.from_queue {
            let options =
                FollowOptions { url: self.amqp(settings)?, queue: queue.clone(), prefetch: self.concurrency(settings) };
            return Ok(Source::queue(FollowedQueue::open(options).await?));
        }
        if self.input.as_path() != Path::new("-") {
            bail!(
                "--follow reads the standard input (`-`) or a queue (--from-queue); for a file that grows: \
                 tail -n +1 -F {} | penstock score --follow",
                self.input.display()
            );
        }
        Source::standard_input()
    }

    async fn sink(&self, settings: &Config) -> anyhow::Result<Sink> {
        if let Some(exchange) = &self.follow.to_exchange {
            let routing_key = self.follow.routing_key.clone().unwrap_or_default();
            let options = AnswersOptions { url: self.amqp(settings)?, exchange: exchange.clone(), routing_key };
            return Ok(Sink::exchange(Answers::open(options).await?));
        }
        if self.output.as_path() == Path::new("-") { Sink::standard_output() } else { Sink::file(&self.output) }
    }

    fn work(&self, settings: &Config, source: Source, sink: Sink, model: String, release: String) -> Work {
        Work {
            is_ordered: !self.follow.unordered && self.follow.to_exchange.is_none(),
            summary: Summary { is_queue: source.is_queue(), ..Summary::default() },
            source,
            sink,
            reading: Reading { model, release, any_model: self.any_model, defaults: Defaults::of(self) },
            concurrency: usize::from(self.concurrency(settings)),
            drain: settings.serve.drain,
            scratch: None,
            n_read: 0,
            shown: Shown::new(),
            asked: Box::pin(embedded::asked_to_stop()),
        }
    }
}
