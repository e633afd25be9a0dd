//! The services that tests run on: those of the test run, and instances of their own for tests that break them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A variable of the test run's services.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run tests/run, or deploy/services up and eval \"$(deploy/services env)\"")
    })
}

/// One service that belongs to one test.
pub struct Instance {
    service: &'static str,
    folder: PathBuf,
}

impl Instance {
    /// Starts the service in a folder named after the test. It begins without data.
    pub fn start(service: &'static str, test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("services-{service}-{test}"));
        let instance = Self { service, folder };
        // One that a killed test run has left.
        instance.run(&["kill", service]);
        instance.up();
        instance
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.run(&["kill", self.service]);
    }

    /// Starts it again, at the same place.
    pub fn up(&self) {
        self.run(&["up", self.service]);
    }

    /// Freezes it, as a machine that stands still would, or lets it go on.
    pub fn freeze(&self, frozen: bool) {
        let status = self.try_run(&["status"]).1;
        let pid = status
            .lines()
            .find_map(|line| line.strip_prefix(self.service)?.strip_prefix(" running ")?.split(' ').next());
        let signal = if frozen { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, pid.unwrap()]).status().unwrap().success());
    }

    /// The variable that names it.
    pub fn url(&self, variable: &str) -> String {
        let shell = self.run(&["env"]);
        let value =
            |line: &str| Some(line.strip_prefix("export ")?.strip_prefix(variable)?.strip_prefix('=')?.to_owned());
        shell.lines().find_map(value).unwrap_or_else(|| panic!("deploy/services env names no {variable}"))
    }

    fn run(&self, arguments: &[&str]) -> String {
        let (output, said) = self.try_run(arguments);
        assert!(output.status.success(), "deploy/services {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        said
    }

    fn try_run(&self, arguments: &[&str]) -> (Output, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/services");
        let output = Command::new(script).args(arguments).env("PENSTOCK_SERVICES_DIR", &self.folder).output().unwrap();
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        (output, said)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A failure here is mended by the next start, which kills what is left.
        let _ = self.try_run(&["kill", self.service]);
    }
}
