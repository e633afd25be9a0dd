//! The run itself: parts out, answers in, lines in the order of the input.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use contract::BatchState;
use contract::openai::batches::{OutputLine, endpoint};
use serde::Deserialize;
use serde_json::json;

use super::super::lines::Dataset;
use super::super::output::{Line, Output, Place};
use super::super::reading::Reading;
use super::super::shown::Shown;
use super::parts::{Cut, Cutter, FORMAT, Ledger, Made, line_of};
use super::spool::Spool;
use crate::batch::patience::Patience;
use crate::batch::view::{self, BatchView, Page};
use crate::batch::{form, key};
use crate::client::server::Server;
use crate::model::Progress;

/// Parts at the server at once: the next one must be there before one is done.
const PARTS_AHEAD: usize = 3;
/// Milliseconds between two looks: soon while something happens, seldom while nothing does.
const LOOK_MS: [u64; 4] = [100, 250, 500, 1_000];

/// A dataset on its way through a server.
pub struct Run<'s> {
    /// The server.
    pub server: &'s Server,
    /// How items become requests.
    pub reading: Reading,
    /// The time that batches have.
    pub window: String,
    /// Everything that decides what is sent.
    pub options: Vec<u8>,
    /// Where parts and answers wait.
    pub folder: PathBuf,
    /// The walk that sends.
    pub cutter: Cutter,
    /// The walk with the output.
    pub reader: Dataset,
    /// The item whose turn it is.
    pub head: Option<Head>,
    /// The output, with what earlier runs wrote.
    pub output: Output,
    /// Parts at the server, in order.
    pub parts: VecDeque<Part>,
    /// Which batches were made.
    pub ledger: Ledger,
    /// With a server that restarts.
    pub patience: Patience,
    /// How far it is.
    pub shown: Shown,
}

/// The item whose turn it is.
pub struct Head {
    place: Place,
    end: u64,
    /// Its answer, where it is no request.
    ready: Option<Line>,
}

/// A part at the server.
pub struct Part {
    end: u64,
    batches: Vec<Sent>,
    spool: Spool,
}

/// A batch of a part.
struct Sent {
    id: String,
    lines: u64,
    came: u64,
    after: Option<String>,
    is_over: bool,
}

impl Run<'_> {
    /// Scores what is not written yet.
    ///
    /// # Errors
    /// Input or output fail; the server refuses, or stays away for a minute. The same command then goes on.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.output.written {
            if self.reader.next()?.is_none() {
                bail!("the output has more lines than the input; pass --overwrite to begin anew");
            }
        }
        let (mut all_sent, mut idle) = (false, 0);
        loop {
            let mut moved = false;
            if !all_sent && self.parts.len() < PARTS_AHEAD {
                all_sent = !self.send().await?;
                moved = true;
            }
            moved |= self.collect().await?;
            moved |= self.write()?;
            if all_sent && self.parts.is_empty() {
                return Ok(());
            }
            idle = if moved { 0 } else { (idle + 1).min(LOOK_MS.len() - 1) };
            if !moved {
                tokio::time::sleep(Duration::from_millis(LOOK_MS[idle])).await;
            }
        }
    }

    /// Ids of the batches that have not ended.
    pub fn running(&self) -> Vec<String> {
        self.parts
            .iter()
            .flat_map(|part| &part.batches)
            .filter(|sent| !sent.is_over)
            .map(|sent| sent.id.clone())
            .collect()
    }

    /// Cuts the next part and makes its batches; false at the end of the dataset.
    async fn send(&mut self) -> anyhow::Result<bool> {
        let known = self.ledger.batches(self.cutter.next_number()).map(<[Made]>::to_vec);
        let Some(cut) = self.cutter.cut(&self.reading, &self.folder, known.is_some())? else { return Ok(false) };
        if cut.end > self.output.written {
            let made = match known {
                Some(made) => made,
                None => self.make(&cut).await?,
            };
            let sent = |Made { id, lines }| Sent { id, lines, came: 0, after: None, is_over: false };
            let spool = Spool::new(&self.folder.join(format!("part-{:05}-answers.jsonl", cut.number)))?;
            let batches = made.into_iter().map(sent).collect();
            self.parts.push_back(Part { end: cut.end, batches, spool });
        }
        for (_, path, _) in &cut.files {
            // What stays goes with the folder.
            let _removed = std::fs::remove_file(path);
        }
        Ok(true)
    }

    async fn make(&mut self, cut: &Cut) -> anyhow::Result<Vec<Made>> {
        let mut made = Vec::new();
        for (kind, path, lines) in &cut.files {
            let route = endpoint(*kind);
            let number = cut.number.to_le_bytes();
            let key = |what: &str| {
                key::derive(&[FORMAT.as_bytes(), what.as_bytes(), &self.options, &number, route.as_bytes()])
            };
            let (file_key, batch_key) = (key("file"), key("batch"));
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let server = self.server;
            // The bar of the run stands where that of the upload would.
            let silent = Arc::new(Progress::silent());
            let upload = async || form::upload(server, path, &name, Some(&file_key), &silent).await;
            let file = self.patience.ask(upload).await?;
            let body = json!({"input_file_id": file.id, "endpoint": route, "completion_window": self.window,
                "metadata": {"made_by": "penstock score", "part": cut.number.to_string()}});
            let create = async || Ok(server.post_once(&["v1", "batches"], &body, Some(&batch_key)).await?);
            let batch = BatchView::of(self.patience.ask(create).await?)?;
            made.push(Made { id: batch.about.id, lines: *lines });
        }
        self.ledger.note(cut.number, made.clone())?;
        Ok(made)
    }

    /// Fetches the answers that are there; true if some came.
    async fn collect(&mut self) -> anyhow::Result<bool> {
        let (server, mut any) = (self.server, false);
        for Part { batches, spool, .. } in &mut self.parts {
            for sent in batches.iter_mut().filter(|sent| !sent.is_over) {
                let before = sent.came;
                let page = self.patience.ask(async || fetch(server, sent, spool).await).await?;
                any |= sent.came > before || page.has_more;
                if page.is_last() {
                    if sent.came < sent.lines {
                        self.patience.ask(async || fetch_rest(server, &sent.id, page.status, spool).await).await?;
                    }
                    sent.is_over = true;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    /// Writes the lines whose turn it is; true if some were.
    fn write(&mut self) -> anyhow::Result<bool> {
        let before = self.output.written;
        while let Some(part) = self.parts.front_mut() {
            if self.output.written >= part.end {
                self.parts.pop_front();
                continue;
            }
            let head = match self.head.take() {
                Some(head) => head,
                None => {
                    let item = self.reader.next()?.context("the input became shorter while it was read")?;
                    let (end, (place, body)) = (item.end, self.reading.read(item));
                    Head { place, end, ready: body.err() }
                }
            };
            let line = match (&head.ready, part.spool.get(head.place.line)?) {
                (Some(line), _) => line.clone(),
                (None, Some(bytes)) => {
                    let answer: OutputLine =
                        serde_json::from_slice(&bytes).context("the server sent something else than a result")?;
                    Line::of_server(&head.place, answer)
                }
                (None, None) if part.batches.iter().all(|sent| sent.is_over) => {
                    let ids: Vec<_> = part.batches.iter().map(|sent| sent.id.as_str()).collect();
                    bail!("the server has no answer to line {} in {}", head.place.line, ids.join(" or "))
                }
                (None, None) => {
                    self.head = Some(head);
                    break;
                }
            };
            self.output.write(&line)?;
            self.shown.at(head.end, &self.output.totals);
        }
        if self.output.written > before {
            self.output.flush()?;
        }
        Ok(self.output.written > before)
    }
}

/// Which line an answer belongs to.
#[derive(Deserialize)]
struct Name {
    id: String,
    custom_id: String,
}

impl Name {
    fn of(answer: &[u8]) -> anyhow::Result<(Self, u64)> {
        let name: Name = serde_json::from_slice(answer).context("the server sent something else than a result")?;
        let line = line_of(&name.custom_id).context("the server sent a result of another batch")?;
        Ok((name, line))
    }
}

/// One page of a batch's answers.
async fn fetch(server: &Server, sent: &mut Sent, spool: &mut Spool) -> anyhow::Result<Page> {
    let Sent { id, after, came, .. } = sent;
    let from = after.clone();
    let take = |answer: &[u8]| {
        let (name, line) = Name::of(answer)?;
        spool.put(line, answer)?;
        *after = Some(name.id);
        *came += 1;
        Ok(())
    };
    view::page(server, id, from.as_deref(), take).await
}

/// The lines of an ended batch that never became jobs: only its file of errors has them.
async fn fetch_rest(server: &Server, id: &str, status: BatchState, spool: &mut Spool) -> anyhow::Result<()> {
    let batch = BatchView::fetch(server, id).await?;
    if status == BatchState::Failed {
        bail!("the server refuses batch {id}: {}; pass --overwrite to begin anew", batch.errors().join("; "));
    }
    let Some(file) = &batch.about.error_file_id else { return Ok(()) };
    view::content(server, file, |answer| spool.put(Name::of(answer)?.1, answer)).await
}
