//! Processes of their own on the shared services: a database, queues, keys and objects that no other test sees.

use std::process::Command;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::binary::{penstock, repository};
use crate::client::Client;
use crate::process::Process;
use crate::services::Services;

/// One installation. Its database is dropped with it; queues and keys are left to the services' own end.
pub struct Cluster {
    /// What its processes are told by the environment.
    pub env: Vec<(String, String)>,
    /// URL of its database.
    pub database: String,
    name: String,
    /// URL of the server's own database.
    server: String,
}

/// An API process and where it listens.
pub struct Api {
    /// The process.
    pub process: Process,
    /// A client for it.
    pub client: Client,
    /// `http://127.0.0.1:PORT`
    pub address: String,
}

/// The model file that answers nonsense at once.
pub fn tiny_model() -> String {
    repository().join("fixtures/tiny/tiny.gguf").display().to_string()
}

impl Cluster {
    /// An installation on the shared services.
    ///
    /// # Panics
    /// When they are not there.
    pub async fn new() -> Self {
        let services = Services::shared();
        Self::on(&services, |url| url.to_owned()).await
    }

    /// An installation on these services: makes the database and its tables. `way` says how processes reach a URL or an
    /// endpoint, through a proxy perhaps; the test itself goes straight there.
    ///
    /// # Panics
    /// When a service does not answer.
    pub async fn on(services: &Services, way: impl Fn(&str) -> String) -> Self {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let server = services.get("PENSTOCK_TEST_STORE").to_owned();
        let mut admin = PgConnection::connect(&server).await.expect("the test's Postgres answers");
        let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(create).execute(&mut admin).await.expect("a database can be made");
        let (address, _) = server.rsplit_once('/').expect("a URL ends in the database's name");
        let database = format!("{address}/{name}");
        let set = |name: &str, value: String| (name.to_owned(), value);
        let env = vec![
            set("PENSTOCK_STORE__URL", way(&database)),
            set("PENSTOCK_QUEUE__URL", way(services.get("PENSTOCK_TEST_QUEUE"))),
            set("PENSTOCK_QUEUE__PREFIX", name.clone()),
            set("PENSTOCK_BUS__URL", way(services.get("PENSTOCK_TEST_BUS"))),
            set("PENSTOCK_BUS__PREFIX", name.clone()),
            set("PENSTOCK_OBJECTS__URL", format!("{}/{name}", services.get("PENSTOCK_TEST_OBJECTS"))),
            set("AWS_ENDPOINT_URL", way(services.get("PENSTOCK_TEST_S3_ENDPOINT"))),
            set("AWS_ACCESS_KEY_ID", services.get("PENSTOCK_TEST_S3_ACCESS_KEY").to_owned()),
            set("AWS_SECRET_ACCESS_KEY", services.get("PENSTOCK_TEST_S3_SECRET_KEY").to_owned()),
            set("AWS_REGION", "us-east-1".to_owned()),
            set("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        let cluster = Self { env, database, name, server };
        let migrated = cluster.command(&["migrate"]).output().expect("the penstock binary starts");
        assert!(migrated.status.success(), "penstock migrate: {}", String::from_utf8_lossy(&migrated.stderr));
        cluster
    }

    /// Adds a variable for processes that are started from now on.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// A command of the binary with this installation's settings.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = penstock();
        command.args(arguments).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts an API process on a free port and waits until it listens.
    ///
    /// # Panics
    /// When it does not come up; its log is in the message.
    pub fn api(&self) -> Api {
        self.api_at("127.0.0.1:0")
    }

    /// Starts an API process at an address.
    ///
    /// # Panics
    /// As [`Cluster::api`].
    pub fn api_at(&self, listen: &str) -> Api {
        let mut process = Process::spawn(self.command(&["api", "--listen", listen]));
        let address = process.wait_for_line("Penstock's API is ready on ");
        let Some(address) = address else { panic!("the api did not come up:\n{}", process.log()) };
        Api { process, client: Client::new(&address), address }
    }

    /// Starts a scheduler and waits until it runs.
    ///
    /// # Panics
    /// When it does not come up; its log is in the message.
    pub fn scheduler(&self) -> Process {
        let mut process = Process::spawn(self.command(&["scheduler"]));
        let runs = process.wait_for_line("Penstock's scheduler is running").is_some();
        assert!(runs, "the scheduler did not come up:\n{}", process.log());
        process
    }

    /// Starts a worker with the tiny model and waits until it is ready.
    ///
    /// # Panics
    /// When it does not come up; its log is in the message.
    pub fn worker(&self) -> Process {
        let mut process = Process::spawn(self.command(&["worker", "--model", &tiny_model()]));
        let ready = process.wait_for_line("Penstock's worker is ready").is_some();
        assert!(ready, "the worker did not come up:\n{}", process.log());
        process
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // By a command, since this may run inside a runtime. A database that stays is gone with the services' folder.
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _dropped_or_left = Command::new("psql").args([&self.server, "-qc", &drop]).output();
    }
}
