//! The services that the distributed tests use: `deploy/services` has started them.

use std::process::Command;

use crate::repository;

/// The value of a variable that `deploy/services env` prints.
///
/// # Panics
/// When it is not set; says what to do.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run tests/run, or deploy/services up and eval \"$(deploy/services env)\"")
    })
}

/// Runs `deploy/services` with these arguments.
///
/// # Panics
/// When it fails; shows what it said.
pub fn services(arguments: &[&str]) {
    let output =
        Command::new(repository().join("deploy/services")).args(arguments).output().expect("deploy/services runs");
    assert!(output.status.success(), "deploy/services {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
