//! The official `openai` packages make batches: `python/openai_batches.py` and `node/openai_batches.mjs` hold the
//! checks.

use std::process::Command;

use tests::client::MODEL;
use tests::node::node;
use tests::python::python;
use tests::server::data_dir;
use tests::tools::run_checks;
use tests::{Server, Settings};

#[test]
fn the_openai_python_package_makes_batches() {
    check(python("openai_batches.py"));
}

#[test]
fn the_openai_node_package_makes_batches() {
    check(node("openai_batches.mjs"));
}

fn check(mut script: Command) {
    let (_folder, data) = data_dir();
    let server = Server::start(&data, &Settings::default());
    run_checks(script.args([&server.address, MODEL]), &server);
}
