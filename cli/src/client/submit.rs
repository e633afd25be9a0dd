//! `penstock submit`

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use super::ServerArgs;
use super::job::JobView;
use super::server::Server;
use super::wait;
use crate::terminal;

/// Submit a job and print its id.
///
/// The job runs on when this command ends; with --wait its result is printed instead. For example:
///
///     penstock submit --chat "Name three rivers." --max-tokens 40
///     penstock submit --prompt "fn main() {" --class bulk --metadata run=7
///     penstock submit --prompt "Step 1" --sequence-key order-17 --on-failure block
///     penstock submit --file body.json --wait
///     echo '{"messages": [{"role": "user", "content": "Hi"}]}' | penstock submit --file - --wait=30
#[derive(Debug, Clone, Default, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["chat", "prompt", "file"])))]
pub struct SubmitArgs {
    /// A chat with this one message of the user.
    #[arg(long, value_name = "TEXT")]
    pub(super) chat: Option<String>,
    /// A completion of this text.
    #[arg(long, value_name = "TEXT")]
    pub(super) prompt: Option<String>,
    /// A JSON body from a file, or from the standard input with `-`: an OpenAI body with `messages` or `prompt`, or a
    /// whole job {"type": …, "request": …}. The flags below win over what it says.
    #[arg(long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Model name. Without it, and without one in the file, the one the server has.
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// How urgent it is [server's default: standard]
    #[arg(long, value_parser = ["interactive", "standard", "bulk"])]
    pub(super) class: Option<String>,
    /// The job ends as expired when it is not done by then [server's default: by class]
    #[arg(long, value_name = "SECONDS")]
    pub(super) deadline_seconds: Option<u64>,
    /// Most tokens to generate.
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: Option<u32>,
    /// 0 takes the likeliest token each time.
    #[arg(long, value_name = "T")]
    pub(super) temperature: Option<f64>,
    /// The same seed, release and request give the same tokens.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) seed: Option<i64>,
    /// A pair of your own, shown with the job; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) metadata: Vec<(String, String)>,
    /// How long after its end request, result and trajectory are kept [server's default: its setting trajectories.keep_days]
    #[arg(long, value_name = "SECONDS")]
    pub(super) keep_seconds: Option<u64>,
    /// Keep nothing: request and result are removed five minutes after the end, and there is no trajectory.
    #[arg(long, conflicts_with = "keep_seconds")]
    pub(super) no_store: bool,
    /// Jobs of one key run one at a time, in order of acceptance.
    #[arg(long, value_name = "KEY")]
    pub(super) sequence_key: Option<String>,
    /// When it fails or expires, run the next job of its sequence, or none until `penstock sequences resume` [server's
    /// default: skip]
    #[arg(long, value_parser = ["skip", "block"])]
    pub(super) on_failure: Option<String>,
    /// Wait for the end (at most so many seconds) and print the result's text; exit status as of `penstock wait`.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    pub(super) wait: Option<Option<u64>>,
    /// Print the job object as JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Reads `KEY=VALUE`.
///
/// # Errors
/// There is no `=`, or nothing before it.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

pub async fn run(args: &SubmitArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let from_file = args.file.as_deref().map(read_body).transpose()?;
    let mut job = job_body(args, from_file)?;
    if job["request"]["model"].is_null() {
        job["request"]["model"] = only_model(server).await?.into();
    }
    let accepted = JobView(server.post(&["v1", "jobs"], Some(&job)).await?);
    match args.wait {
        None if args.json => terminal::print_json(&accepted.0)?,
        None => terminal::print(&format!("{}\n", accepted.id()))?,
        Some(seconds) => {
            // Whoever breaks off here can come back with it.
            terminal::say(&format!("job {}", accepted.id()));
            let ended = wait::until_ended(server, accepted.id(), seconds.map(Duration::from_secs)).await?;
            return wait::report(&ended, args.json);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_body(path: &Path) -> anyhow::Result<Value> {
    let (name, text) = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("could not read the standard input")?;
        ("the standard input".to_owned(), text)
    } else {
        let name = path.display().to_string();
        (name.clone(), std::fs::read_to_string(path).with_context(|| format!("could not read {name}"))?)
    };
    serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))
}

/// The body of `POST /v1/jobs`. Values are left to the server to judge: it knows the limits.
pub(super) fn job_body(args: &SubmitArgs, from_file: Option<Value>) -> anyhow::Result<Value> {
    let mut job = match (&args.chat, &args.prompt, from_file) {
        (Some(text), _, _) => json!({"type": "chat", "request": {"messages": [{"role": "user", "content": text}]}}),
        (_, Some(text), _) => json!({"type": "completion", "request": {"prompt": text}}),
        (_, _, Some(body)) if body.get("request").is_some() => body,
        (_, _, Some(body)) if body.get("messages").is_some() => json!({"type": "chat", "request": body}),
        (_, _, Some(body)) if body.get("prompt").is_some() => json!({"type": "completion", "request": body}),
        _ => bail!("the body has neither `messages` nor `prompt` nor `request`: it is no OpenAI body and no job"),
    };
    let request = object(&mut job["request"], "`request` of the body")?;
    if args.max_tokens.is_some() {
        // The newer name of the same limit: the flag wins over it too.
        request.remove("max_completion_tokens");
    }
    if args.keep_seconds.is_some() {
        // Nor can a request that is not stored be kept.
        request.remove("store");
    }
    set(request, "model", args.model.as_deref());
    set(request, "max_tokens", args.max_tokens);
    set(request, "temperature", args.temperature);
    set(request, "seed", args.seed);
    let fields = object(&mut job, "the body")?;
    set(fields, "class", args.class.as_deref());
    set(fields, "deadline_seconds", args.deadline_seconds);
    if args.keep_seconds.is_some() {
        fields.remove("store");
    }
    set(fields, "keep_seconds", args.keep_seconds);
    if args.no_store {
        fields.remove("keep_seconds");
        set(fields, "store", Some(false));
    }
    set(fields, "sequence_key", args.sequence_key.as_deref());
    set(fields, "on_failure", args.on_failure.as_deref());
    if !args.metadata.is_empty() {
        let pairs = args.metadata.iter().map(|(key, value)| (key.clone(), Value::from(value.clone())));
        fields.insert("metadata".to_owned(), Value::Object(pairs.collect()));
    }
    Ok(job)
}

fn object<'a>(value: &'a mut Value, what: &str) -> anyhow::Result<&'a mut Map<String, Value>> {
    value.as_object_mut().with_context(|| format!("{what} is not an object"))
}

fn set<T: Into<Value>>(fields: &mut Map<String, Value>, name: &str, value: Option<T>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), value.into());
    }
}

/// The name of the one model the server has.
pub(super) async fn only_model(server: &Server) -> anyhow::Result<String> {
    let models = server.get(&["v1", "models"], &[]).await?;
    let names: Vec<_> =
        models["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
    match names.as_slice() {
        [name] => Ok((*name).to_owned()),
        [] => bail!(
            "the server has no model; `penstock serve --model NAME` gives it one, and where the parts are processes of their own, `penstock worker`"
        ),
        names => bail!("the server has several models: name one with --model ({})", names.join(", ")),
    }
}
