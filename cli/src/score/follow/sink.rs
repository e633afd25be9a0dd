//! Where answers go: a file or the standard output, written on a thread of its own, or an exchange.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, mpsc as std_mpsc};

use anyhow::{Context, bail};
use backends::rabbitmq::{Answer, Answers, MessageTag};
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::super::output::hold;

/// What a whole line of ours begins with; what is torn begins so too.
const LINE_BEGINS: &[u8] = b"{\"id\":\"batch_req_";
/// How much of a file's end is looked at: more than the longest line of ours.
const TAIL: u64 = 64 << 20;

/// Which line an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Counts the lines of this run.
    pub number: u64,
    /// For its acknowledgement.
    pub tag: Option<MessageTag>,
    /// Whether it was answered with 200.
    pub has_succeeded: bool,
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is durable.
    Durable(Ticket),
    /// Nobody waits for it any more: its line comes again.
    NotWanted(Ticket),
}

/// See the module.
pub enum Sink {
    /// Lines.
    Lines(Lines),
    /// Messages, and those under way.
    Exchange(Arc<Answers>, FuturesUnordered<LocalBoxFuture<'static, Put>>),
}

impl Sink {
    /// The standard output. Where that is a file, what is written is durable.
    ///
    /// # Errors
    /// It is closed.
    pub fn standard_output() -> anyhow::Result<Self> {
        let output = std::io::stdout().as_fd().try_clone_to_owned().context("the standard output cannot be written")?;
        Ok(Self::Lines(Lines::to(File::from(output))))
    }

    /// A file, to whose end answers are written. Nobody else may follow into it meanwhile.
    ///
    /// # Errors
    /// It cannot be written, another run writes to it, or it ends in something that no run left there.
    pub fn file(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("{} cannot be written", path.display());
        let is_new = !path.exists();
        // Before anything else: what looks torn may be a line that another run is writing.
        let mut file = hold(path)?;
        let torn = torn_bytes(&mut file).with_context(cannot)?;
        let Some(whole) = torn else {
            bail!(
                "{} does not end in a whole line, and not in one that a killed run left: name another file",
                path.display()
            )
        };
        file.set_len(whole).and_then(|()| file.seek(SeekFrom::End(0))).with_context(cannot)?;
        if is_new && let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            // The file's name must survive too.
            File::open(folder).and_then(|folder| folder.sync_all()).with_context(cannot)?;
        }
        Ok(Self::Lines(Lines::to(file)))
    }

    /// An exchange.
    pub fn exchange(answers: Answers) -> Self {
        Self::Exchange(Arc::new(answers), FuturesUnordered::new())
    }

    /// Sends an answer on its way. `lost` ends when nobody waits for it any more.
    pub fn put(&mut self, ticket: Ticket, answer: Answer, lost: impl Future<Output = ()> + 'static) {
        match self {
            Self::Lines(lines) => lines.put(ticket, answer.body),
            Self::Exchange(answers, under_way) => {
                let answers = Arc::clone(answers);
                under_way.push(Box::pin(async move {
                    tokio::select! {
                        // A confirm that is there counts, whatever else happened.
                        biased;
                        () = answers.publish(&answer) => Put::Durable(ticket),
                        () = lost => Put::NotWanted(ticket),
                    }
                }));
            }
        }
    }

    /// The next answer that is done with. Cancel-safe; waits for ever while there is none under way.
    ///
    /// # Errors
    /// The output cannot be written.
    pub async fn done(&mut self) -> anyhow::Result<Put> {
        match self {
            Self::Lines(lines) => lines.done().await,
            Self::Exchange(_, under_way) => match under_way.next().await {
                Some(put) => Ok(put),
                None => std::future::pending().await,
            },
        }
    }

    /// Why answers wait, if they do.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Lines(_) => None,
            Self::Exchange(answers, _) => answers.trouble(),
        }
    }
}

/// Bytes of the file that are whole lines; `None` where what follows them is no torn line of ours.
fn torn_bytes(file: &mut File) -> io::Result<Option<u64>> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.read_to_end(&mut tail)?;
    let rest_at = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let rest = &tail[rest_at..];
    let is_ours = rest.starts_with(LINE_BEGINS) || LINE_BEGINS.starts_with(rest);
    Ok(is_ours.then_some(from + rest_at as u64))
}

/// Lines on their way to a file or a pipe: whatever waits is written together, and made durable together.
pub struct Lines {
    to: std_mpsc::Sender<(Ticket, Vec<u8>)>,
    written: mpsc::UnboundedReceiver<io::Result<Ticket>>,
}

impl Lines {
    fn to(file: File) -> Self {
        let (to, lines) = std_mpsc::channel();
        let (tell, written) = mpsc::unbounded_channel();
        // Not one of the runtime's: a reader that has stopped must not keep the process.
        std::thread::spawn(move || write(file, &lines, &tell));
        Self { to, written }
    }

    fn put(&self, ticket: Ticket, mut line: Vec<u8>) {
        line.push(b'\n');
        // The thread ends after an error alone, which `done` tells.
        let _sent = self.to.send((ticket, line));
    }

    async fn done(&mut self) -> anyhow::Result<Put> {
        match self.written.recv().await {
            Some(Ok(ticket)) => Ok(Put::Durable(ticket)),
            Some(Err(err)) if err.kind() == io::ErrorKind::BrokenPipe => {
                bail!("nobody reads the standard output any more")
            }
            Some(Err(err)) => Err(err).context("the output cannot be written"),
            None => bail!("the output cannot be written"),
        }
    }
}

fn write(
    mut file: File,
    lines: &std_mpsc::Receiver<(Ticket, Vec<u8>)>,
    tell: &mpsc::UnboundedSender<io::Result<Ticket>>,
) {
    let is_durable = file.metadata().is_ok_and(|metadata| metadata.is_file());
    while let Ok((ticket, mut bytes)) = lines.recv() {
        let mut tickets = vec![ticket];
        for (ticket, line) in lines.try_iter() {
            tickets.push(ticket);
            bytes.extend_from_slice(&line);
        }
        let written = file.write_all(&bytes).and_then(|()| if is_durable { file.sync_data() } else { Ok(()) });
        if let Err(err) = written {
            let _told = tell.send(Err(err));
            return;
        }
        for ticket in tickets {
            // Whoever is gone has no use for it.
            let _told = tell.send(Ok(ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(content: &[u8]) -> Option<u64> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        torn_bytes(&mut file).unwrap()
    }

    #[test]
    fn only_a_torn_line_of_a_run_is_cut_off() {
        assert_eq!(whole(b""), Some(0));
        assert_eq!(whole(b"{}\n"), Some(3));
        assert_eq!(whole(b"{}\n{\"id\":\"batch_req_job_1\",\"cus"), Some(3));
        assert_eq!(whole(b"{}\n{\"i"), Some(3));
        assert_eq!(whole(b"{\"id\":\"batch_req_"), Some(0));
        assert_eq!(whole(b"{}\nsomebody's last words"), None);
    }

    #[test]
    fn a_file_that_another_run_writes_to_is_refused_and_left_as_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out.jsonl");
        let first = Sink::file(&path).unwrap();
        // The first run is in the middle of a line.
        let half = "{}\n{\"id\":\"batch_req_job_1\",\"cus";
        std::fs::write(&path, half).unwrap();
        let said = Sink::file(&path).err().unwrap().to_string();
        assert!(said.contains("another penstock is writing to") && said.contains("out.jsonl"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), half);
        drop(first);
        // Its thread closes the file a moment later.
        let begin = std::time::Instant::now();
        while Sink::file(&path).is_err() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(30), "the lock outlives its run");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    }

    #[tokio::test]
    async fn answers_are_appended_and_told_of_in_their_order() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out.jsonl");
        std::fs::write(&path, "{\"earlier\":1}\n{\"id\":\"batch_").unwrap();
        let mut sink = Sink::file(&path).unwrap();
        let ticket = |number| Ticket { number, tag: None, has_succeeded: true };
        for number in 0..3 {
            let answer =
                Answer { body: format!("{number}").into_bytes(), message_id: String::new(), correlation_id: None };
            sink.put(ticket(number), answer, std::future::pending());
        }
        for number in 0..3 {
            assert_eq!(sink.done().await.unwrap(), Put::Durable(ticket(number)));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"earlier\":1}\n0\n1\n2\n");
    }
}
