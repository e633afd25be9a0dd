//! `penstock score --server`: the same lines from a server's batches.
//!
//! The dataset is cut into parts at places that depend on nothing but its content and the options. Each part becomes one
//! batch for each route it calls, made under a key derived from the same things: a run that was killed finds its batches
//! again. A few parts are at the server at once; answers wait for their turn on disk, and the output is in the order of the
//! input as that of an offline run.

mod parts;
mod run;
mod spool;

use std::sync::Arc;

use anyhow::bail;
use contract::openai::bodies::{ModelBody, ModelList};
use serde_json::json;

use super::reading::Reading;
use super::request::Defaults;
use super::{ScoreArgs, output, shown, state};
use crate::batch::key;
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::{self, ConfigArgs};
use crate::model::Progress;
use crate::{embedded, terminal};
use parts::{Cutter, Ledger};

/// The time that batches have where nobody says: the longest there is, since an offline run's lines do not expire.
const WINDOW: &str = "30d";

/// Runs `penstock score` against a server; true only if every line succeeded.
///
/// # Errors
/// Input, output, server or model cannot be used, or the run was stopped; the message says what to do.
pub async fn run(args: &ScoreArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let flags = ServerArgs { server: args.server.clone(), api_key: args.api_key.clone() }.flags();
    let server = Server::new(&config::load(config, flags)?.config.client)?;
    // Two walks: one ahead, that sends, and one with the output.
    let (ahead, behind) = (args.open()?, args.open()?);
    let model = find_model(&server, args.model.as_deref()).await?;
    let content = key::of_content(&args.input, &Arc::new(Progress::on_stderr())).await?;
    let window = args.window.clone().unwrap_or_else(|| WINDOW.to_owned());
    let plan = state::Plan {
        server: Some(server.address()),
        model: Some(model.id.clone()),
        input_sha256: Some(content.clone()),
        window: Some(window.clone()),
        ..args.plan(model.release.clone(), None)?
    };
    let folder = embedded::folder_beside(&args.output);
    // Before what is in the folder is looked at, which may be another run's, and until it is removed.
    let held = output::hold(&args.output)?;
    if args.overwrite && folder.exists() {
        let earlier: Vec<_> = Ledger::open(&folder)?.ids().map(str::to_owned).collect();
        if !earlier.is_empty() {
            terminal::say(&format!("batches of the run that is discarded: {}", how_to_cancel(&earlier, &server)));
        }
    }
    let begun = state::begin_or_resume(&folder, (&args.output, &held), &plan, args.overwrite)?;
    let ledger = Ledger::open(&folder)?;
    let output = output::Output::open(held.try_clone()?, &args.output)?;
    if output.written > 0 {
        terminal::say(&format!("going on after {} lines", output.written));
    }
    // Everything that decides what is sent, and with it the keys.
    let form = args.input.extension().map(|form| form.to_ascii_lowercase().to_string_lossy().into_owned());
    let salt = begun.is_anew.then_some(begun.batch);
    let options = json!({"content": content, "form": form, "model": model.id, "release": model.release,
        "template": args.template, "chat": args.chat, "max_tokens": args.max_tokens, "temperature": args.temperature,
        "seed": args.seed, "any_model": args.any_model, "window": window, "run": salt});
    let reading =
        Reading { model: model.id, release: model.release, any_model: args.any_model, defaults: Defaults::of(args) };
    let mut run = run::Run {
        server: &server,
        reading,
        window,
        options: serde_json::to_vec(&options)?,
        folder: folder.clone(),
        cutter: Cutter::new(ahead),
        reader: behind,
        head: None,
        output,
        parts: std::collections::VecDeque::new(),
        ledger,
        patience: crate::batch::patience::Patience::default(),
        shown: shown::Shown::new(plan.input_bytes),
    };
    let ran = tokio::select! {
        ran = run.run() => ran,
        asked = embedded::asked_to_stop() => asked.map_err(anyhow::Error::from).and(Err(anyhow::anyhow!("stopped"))),
    };
    let running = run.running();
    let closed = run.output.close();
    drop(run.shown);
    if let Err(error) = ran {
        terminal::say("run the same command again to go on");
        if !running.is_empty() {
            terminal::say(&format!("the server goes on meanwhile; to end that: {}", how_to_cancel(&running, &server)));
        }
        return Err(error);
    }
    let totals = closed?;
    state::finish(&folder)?;
    args.report(&totals);
    Ok(totals.failed == 0)
}

fn how_to_cancel(ids: &[String], server: &Server) -> String {
    format!("penstock batch cancel --server {} {}", server.address(), ids.join(" "))
}

/// The model of this name, or the only one.
///
/// # Errors
/// There is none, or no server.
pub async fn find_model(server: &Server, name: Option<&str>) -> anyhow::Result<ModelBody> {
    let models: ModelList = match serde_json::from_value(server.get(&["v1", "models"], &[]).await?) {
        Ok(models) => models,
        Err(_) => bail!("{} does not list its models as Penstock does", server.address()),
    };
    let names = models.data.iter().map(|model| model.id.as_str()).collect::<Vec<_>>().join(", ");
    match (name, models.data.len()) {
        (_, 0) => bail!("the server has no model; `penstock serve --model NAME` gives it one"),
        (None, 1) => {}
        (None, _) => bail!("the server has several models: name one with --model ({names})"),
        (Some(name), _) if models.data.iter().all(|model| model.id != name) => {
            let what = if name.contains('/') || name.ends_with(".gguf") {
                "a path of a model is for offline runs: with --server, give a name"
            } else {
                "the server has no such model"
            };
            bail!("--model {name}: {what}; it has {names}")
        }
        (Some(_), _) => {}
    }
    let found = models.data.into_iter().find(|model| name.is_none_or(|name| model.id == name));
    found.ok_or_else(|| anyhow::anyhow!("the server has no model"))
}
