//! The services that distributed tests use: those that `tests/run` has started, or an instance of a test's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::repository;

const NAMES: [&str; 7] = [
    "PENSTOCK_TEST_STORE",
    "PENSTOCK_TEST_QUEUE",
    "PENSTOCK_TEST_BUS",
    "PENSTOCK_TEST_OBJECTS",
    "PENSTOCK_TEST_S3_ENDPOINT",
    "PENSTOCK_TEST_S3_ACCESS_KEY",
    "PENSTOCK_TEST_S3_SECRET_KEY",
];

/// Where the services are.
pub struct Services {
    variables: BTreeMap<String, String>,
    /// The folder of an instance of its own, which is stopped and removed at the end.
    folder: Option<PathBuf>,
}

impl Services {
    /// Those of the environment. Other tests use them too: never stop them.
    ///
    /// # Panics
    /// When they are not there; says what to do.
    pub fn shared() -> Self {
        let variable = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| {
                panic!("{name} is not set: run tests/run, or deploy/services up and eval \"$(deploy/services env)\"")
            })
        };
        Self { variables: NAMES.iter().map(|name| ((*name).to_owned(), variable(name))).collect(), folder: None }
    }

    /// Starts an instance that nobody else uses, under `target/NAME`.
    ///
    /// # Panics
    /// When it does not start.
    pub fn own(name: &str) -> Self {
        let mut services = Self { variables: BTreeMap::new(), folder: Some(repository().join("target").join(name)) };
        services.run(&["up"]);
        for line in services.run(&["env"]).lines() {
            let Some((name, value)) = line.strip_prefix("export ").and_then(|line| line.split_once('=')) else {
                continue;
            };
            // Written for a shell; its values have no quotes of their own.
            services.variables.insert(name.to_owned(), value.trim_matches(['\'', '"']).to_owned());
        }
        services
    }

    /// The value of a `PENSTOCK_TEST_…` variable.
    ///
    /// # Panics
    /// When there is no such variable.
    pub fn get(&self, name: &str) -> &str {
        self.variables.get(name).unwrap_or_else(|| panic!("deploy/services env prints no {name}"))
    }

    /// Runs `deploy/services` with these arguments on this instance, and answers its output: `kill redis`, `wipe rabbitmq`.
    ///
    /// # Panics
    /// When it fails; shows what it said. When the services are shared.
    pub fn run(&self, arguments: &[&str]) -> String {
        let folder = self.folder.as_ref().expect("shared services are never touched");
        let mut command = Command::new(repository().join("deploy/services"));
        let output = command.args(arguments).env("PENSTOCK_SERVICES_DIR", folder).output();
        let output = output.expect("deploy/services can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "deploy/services {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let mut command = Command::new(repository().join("deploy/services"));
            let _stopped_or_left = command.arg("down").env("PENSTOCK_SERVICES_DIR", folder).output();
            let _removed_or_left = std::fs::remove_dir_all(folder);
        }
    }
}
