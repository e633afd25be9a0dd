//! A `penstock serve` of its own for a test.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use crate::binary::penstock;
use crate::client::Client;
use crate::process::Process;

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
    process: Process,
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
        Self { process: Process::spawn(command), address: String::new() }
    }

    /// A client for it.
    pub fn client(&self) -> Client {
        Client::new(&self.address)
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(self) {
        self.process.kill();
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
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
