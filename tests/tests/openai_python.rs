//! The official `openai` Python package as a client: `python/openai_client.py` holds the checks.

use tests::client::MODEL;
use tests::python::python;
use tests::server::data_dir;
use tests::tools::run_checks;
use tests::{Server, Settings, repository};

#[test]
fn the_openai_package_gets_answers_streams_and_typed_errors() {
    check("answers", &Settings::default());
}

#[test]
fn the_openai_package_is_told_that_the_queue_is_full() {
    check("full-queue", &Settings::default().with("PENSTOCK_LIMITS__INTERACTIVE", 1));
}

fn check(mode: &str, settings: &Settings) {
    let mut script = python("openai_client.py");
    let (_folder, data) = data_dir();
    let server = Server::start(&data, settings);
    script.args([mode, &server.address, MODEL]).arg(repository().join("fixtures/golden/chat.jsonl"));
    run_checks(&mut script, &server);
}
