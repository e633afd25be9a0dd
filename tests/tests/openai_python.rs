//! The official `openai` Python package as a client: `python/openai_client.py` holds the checks.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use tests::client::MODEL;
use tests::server::data_dir;
use tests::{Server, Settings, repository};

#[test]
fn the_openai_package_gets_answers_streams_and_typed_errors() {
    run_checks("answers", &Settings::default());
}

#[test]
fn the_openai_package_is_told_that_the_queue_is_full() {
    run_checks("full-queue", &Settings::default().with("PENSTOCK_LIMITS__INTERACTIVE", 1));
}

fn run_checks(mode: &str, settings: &Settings) {
    let python = python();
    let (_folder, data) = data_dir();
    let server = Server::start(&data, settings);
    let output = Command::new(python)
        .arg(repository().join("tests/python/openai_client.py"))
        .args([mode, &server.address, MODEL])
        .arg(repository().join("fixtures/golden/chat.jsonl"))
        // A proxy of the developer's must not stand between, nor settings of theirs for another endpoint.
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1")
        .env_remove("OPENAI_BASE_URL")
        .env_remove("OPENAI_ORG_ID")
        .env_remove("OPENAI_PROJECT_ID")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("the environment's python runs");
    assert!(output.status.success(), "{}\n{}", said(&output), server.log());
    println!("{}", said(&output));
}

/// The interpreter of an environment that has what `python/requirements.txt` lists; made once and kept with the build.
fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        let environment = test.ancestors().nth(3).expect("tests run from target/PROFILE/deps").join("python-venv");
        let (python, stamp) = (environment.join("bin/python"), environment.join("requirements.txt"));
        let listed = repository().join("tests/python/requirements.txt");
        let wanted = std::fs::read_to_string(&listed).expect("the list of requirements can be read");
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return python;
        }
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment));
        must(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&listed));
        // Last, so that a broken installation is made again.
        std::fs::write(&stamp, wanted).expect("the environment can be written");
        python
    })
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|err| panic!("{command:?}: {err}"));
    assert!(output.status.success(), "{command:?}:\n{}", said(&output));
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
