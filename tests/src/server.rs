//! A `penstock serve` of its own for a test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::binary::penstock;
use crate::client::Client;

/// How long loading a model may take on a busy machine.
const START: Duration = Duration::from_secs(120);

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `PENSTOCK_…` variables: settings, or a fault point.
    pub env: Vec<(String, String)>,
    /// `--model`; the default model without it.
    pub model: Option<String>,
}

impl Settings {
    /// Adds a variable.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    /// Its address: `http://127.0.0.1:PORT`.
    pub address: String,
}

impl Server {
    /// Starts a server on a free port and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready; its log is in the message.
    pub fn start(data_dir: &Path, settings: &Settings) -> Self {
        let mut server = Self::spawn(data_dir, settings);
        let address = server.wait_for_line("Penstock is ready on ");
        let Some(address) = address else { panic!("the server did not become ready:\n{}", server.log()) };
        server.address = address;
        server
    }

    /// Starts a server and does not wait.
    ///
    /// # Panics
    /// When the process cannot be started.
    pub fn spawn(data_dir: &Path, settings: &Settings) -> Self {
        let mut command = penstock();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        command.args(settings.model.iter().flat_map(|model| ["--model", model]));
        command.envs(settings.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the penstock binary starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().expect("stderr is piped");
        std::thread::spawn({
            let log = Arc::clone(&log);
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    log.lock().expect("no reader panics while it holds the log").push(line);
                }
            }
        });
        Self { child, log, address: String::new() }
    }

    /// Waits for a line that begins with `prefix`, answers the rest of it; `None` when the process ended or took too
    /// long.
    pub fn wait_for_line(&mut self, prefix: &str) -> Option<String> {
        let begin = Instant::now();
        loop {
            // Ended or not first: what it wrote before its end is in the log a moment later.
            let ended = self.child.try_wait().ok().flatten().is_some();
            if ended {
                std::thread::sleep(Duration::from_millis(100));
            }
            let found = {
                let log = self.log.lock().expect("no reader panics while it holds the log");
                log.iter().find_map(|line| line.strip_prefix(prefix).map(str::to_owned))
            };
            if found.is_some() || ended || begin.elapsed() > START {
                return found;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no reader panics while it holds the log").join("\n")
    }

    /// A client for it.
    pub fn client(&self) -> Client {
        Client::new(&self.address)
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits for its own end; answers the exit status, `None` after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Asks it to stop with SIGTERM.
    ///
    /// # Panics
    /// When there is no `kill` command.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        let told = std::process::Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.is_ok_and(|status| status.success()), "kill -TERM {pid} works");
    }

    fn end(&mut self) {
        // Already ended is as good.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A folder for a test's data, removed at its end.
///
/// # Panics
/// When the system has no temporary folder.
pub fn data_dir() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("data");
    (folder, path)
}
