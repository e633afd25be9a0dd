//! `penstock batch submit`

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use contract::batch::MAX_INPUT_BYTES;
use contract::openai::batches::endpoint;
use contract::request::Kind;
use serde_json::{Map, Value, json};

use super::patience::Patience;
use super::sink::Sink;
use super::view::BatchView;
use super::{follow, form, key, results};
use crate::client::server::Server;
use crate::client::{ServerArgs, pair};
use crate::model::Progress;
use crate::terminal;

/// Most bytes of a first line that is looked at.
const MAX_LINE_BYTES: u64 = 8 * 1024 * 1024;

/// Upload a file of requests and make a batch of it; prints the batch's id.
///
/// The file has one request a line: {"custom_id", "method": "POST", "url", "body"}. At most 50,000
/// lines and 200 MB, one endpoint and one model; `penstock score --server` takes datasets of any
/// size and cuts them. The batch goes on when this command ends. For example:
///
///     penstock batch submit requests.jsonl
///     penstock batch submit requests.jsonl --window 2h --metadata run=7 --idempotency-key
///     penstock batch submit requests.jsonl --wait -o results.jsonl
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct SubmitArgs {
    /// The requests: a JSON object a line
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Which route the lines call [default: the `url` of the first line]
    #[arg(long, value_name = "ROUTE")]
    endpoint: Option<String>,
    /// The time it has, from 1m to 30d: what is not done by then expires, what is done is kept
    #[arg(long, value_name = "TIME", default_value = "24h")]
    window: String,
    /// A pair of your own, shown with the batch; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Make a repeat of this command the same file and batch, by a key derived from the file's content and the options.
    /// Another TEXT makes another batch of the same
    #[arg(long, value_name = "TEXT", num_args = 0..=1, require_equals = true)]
    idempotency_key: Option<Option<String>>,
    /// Follow it to its end; exit status 0 only if every line succeeded
    #[arg(long)]
    wait: bool,
    /// Write results here as they come, in the order in which they come
    #[arg(short, long, value_name = "FILE", requires = "wait")]
    output: Option<PathBuf>,
    /// Print the batch object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &SubmitArgs, server: &Server) -> anyhow::Result<ExitCode> {
    check(&args.file)?;
    let route = match &args.endpoint {
        Some(route) => route.clone(),
        None => route_of(&args.file)?,
    };
    let known = Kind::ALL.map(endpoint);
    ensure!(known.contains(&route.as_str()), "{route} cannot be called by a batch: {} can", known.join(", "));
    // A file that cannot be written is found before the upload.
    let mut sink = match &args.output {
        Some(output) => Some(args.sink(output)?),
        None => None,
    };
    let progress = Arc::new(Progress::on_stderr());
    let keys = match &args.idempotency_key {
        None => None,
        Some(text) => {
            let content = key::of_content(&args.file, &progress).await?;
            Some(args.keys(&route, &content, text.as_deref().unwrap_or_default())?)
        }
    };
    let (file_key, batch_key) = keys.as_ref().map_or((None, None), |[file, batch]| (Some(file), Some(batch)));
    let filename = args.file.file_name().map_or_else(Default::default, |name| name.to_string_lossy());
    let file = form::upload(server, &args.file, &filename, file_key.map(String::as_str), &progress).await?;
    let mut body = args.body(&route);
    body.insert("input_file_id".to_owned(), file.id.clone().into());
    let made = server.post_once(&["v1", "batches"], &body.into(), batch_key.map(String::as_str)).await;
    let batch =
        BatchView::of(made.with_context(|| format!("the file is there as {}, but no batch is made", file.id))?)?;
    if !args.wait {
        return show(&batch, args.json);
    }
    // Whoever breaks off here can come back with it.
    terminal::say(&format!("batch {}", batch.about.id));
    let mut patience = Patience::default();
    let ended = follow::until_ended(server, &batch.about.id, sink.as_mut(), &mut patience).await?;
    results::report(&ended, args.json)
}

/// Prints a batch that was made.
pub fn show(batch: &BatchView, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        terminal::print_json(&batch.raw)?;
    } else {
        terminal::print(&format!("{}\n", batch.about.id))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The body of `metadata`.
pub fn pairs(metadata: &[(String, String)]) -> Value {
    metadata.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect::<Map<_, _>>().into()
}

/// Finds what the server would refuse before anything is sent.
///
/// # Errors
/// The file cannot be the input of a batch.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let about = std::fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?;
    ensure!(!about.is_dir(), "{} is a folder; give a file of requests", path.display());
    ensure!(about.len() > 0, "{} is empty: a batch needs at least one line", path.display());
    ensure!(
        about.len() <= MAX_INPUT_BYTES,
        "{} has {}, and a batch at most {}: make several files of it, or let `penstock score --server` do it",
        path.display(),
        terminal::bytes(about.len()),
        terminal::bytes(MAX_INPUT_BYTES)
    );
    Ok(())
}

/// The route that the first line names.
///
/// # Errors
/// It names none, or cannot be read.
pub fn route_of(path: &Path) -> anyhow::Result<String> {
    let mut reader = BufReader::new(File::open(path).with_context(|| format!("{} cannot be read", path.display()))?);
    let mut line = Vec::new();
    while line.trim_ascii().is_empty() {
        line.clear();
        if (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            bail!("{} has only blank lines: a batch needs at least one request", path.display());
        }
    }
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
    let url = serde_json::from_slice::<Value>(line).ok().and_then(|line| Some(line["url"].as_str()?.to_owned()));
    url.with_context(|| {
        format!(
            "the first line of {} is no request of a batch, which has custom_id, method, url and body: `penstock score \
             --server` takes datasets of other forms",
            path.display()
        )
    })
}

impl SubmitArgs {
    fn body(&self, route: &str) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("endpoint".to_owned(), route.into());
        body.insert("completion_window".to_owned(), self.window.clone().into());
        if !self.metadata.is_empty() {
            body.insert("metadata".to_owned(), pairs(&self.metadata));
        }
        body
    }

    /// The output. Without a key the batch is a new one, and what is in the file cannot be its results.
    fn sink(&self, path: &Path) -> anyhow::Result<Sink> {
        let sink = Sink::file(path)?;
        ensure!(
            sink.after.is_none() || self.idempotency_key.is_some(),
            "{} has results already, and this makes another batch: name another file with -o, or go on with \
             `penstock batch results ID -o {}`",
            path.display(),
            path.display()
        );
        Ok(sink)
    }

    /// The keys of the file and of the batch.
    fn keys(&self, route: &str, content: &str, text: &str) -> anyhow::Result<[String; 2]> {
        // The server keeps the name with the file, so that a file of another name is another one.
        let name = self.file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let options = serde_json::to_vec(&json!([self.body(route), name, text]))?;
        let of = |what: &str| key::derive(&[b"batch submit", what.as_bytes(), content.as_bytes(), &options]);
        Ok(["file", "batch"].map(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        args: SubmitArgs,
    }

    fn typed(arguments: &[&str]) -> SubmitArgs {
        Typed::try_parse_from([&["penstock", "dir/in.jsonl"], arguments].concat()).unwrap().args
    }

    #[test]
    fn the_route_is_that_of_the_first_line() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("in.jsonl");
        let read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            route_of(&path).map_err(|error| error.to_string())
        };
        assert_eq!(read("\n \n{\"url\": \"/v1/completions\"}\n{").unwrap(), "/v1/completions");
        assert_eq!(read("\u{feff}{\"url\": \"/v1/other\"}").unwrap(), "/v1/other");
        assert!(read("{\"prompt\": \"x\"}\n").unwrap_err().contains("penstock score --server"));
        assert!(read("\n\n").unwrap_err().contains("blank lines"));
    }

    #[test]
    fn keys_follow_content_and_options_and_nothing_else() {
        let keys = |arguments: &[&str], content: &str, text: &str| typed(arguments).keys("/r", content, text).unwrap();
        let first = keys(&[], "c", "");
        assert_ne!(first[0], first[1], "file and batch are two things");
        assert_eq!(keys(&["--wait", "--json", "--server", "http://x"], "c", ""), first);
        for other in [
            keys(&[], "d", ""),
            keys(&[], "c", "again"),
            keys(&["--window", "2h"], "c", ""),
            keys(&["--metadata", "a=b"], "c", ""),
        ] {
            assert!(other.iter().all(|key| !first.contains(key)));
        }
    }

    #[test]
    fn flags_become_the_body() {
        assert_eq!(
            Value::from(typed(&["--metadata", "a=b=c"]).body("/r")),
            json!({"endpoint": "/r", "completion_window": "24h", "metadata": {"a": "b=c"}})
        );
        assert_eq!(typed(&["--idempotency-key"]).idempotency_key, Some(None));
        assert_eq!(typed(&["--idempotency-key=x"]).idempotency_key, Some(Some("x".to_owned())));
        assert!(Typed::try_parse_from(["penstock", "f", "-o", "x"]).is_err(), "an output needs the wait");
    }
}
