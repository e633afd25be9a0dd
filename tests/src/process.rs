//! A process of the `penstock` binary in the hands of a test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long loading a model may take on a busy machine.
const START: Duration = Duration::from_secs(120);

/// A running process; killed when dropped.
pub struct Process {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts it, with its log kept.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(mut command: Command) -> Self {
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
        Self { child, log }
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits for its own end; answers the exit status, `None` after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal, by the name that `kill` knows: `TERM`, `STOP`, `CONT`.
    ///
    /// # Panics
    /// When there is no `kill` command.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let told = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(told.is_ok_and(|status| status.success()), "kill -{name} {pid} works");
    }

    /// Asks it to stop with SIGTERM.
    ///
    /// # Panics
    /// When there is no `kill` command.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    fn end(&mut self) {
        // Already ended is as good.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
