//! Python scripts that use what `python/requirements.txt` lists.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::binary::repository;
use crate::tools::{made_once, must, without_own_settings};

/// A command that runs a script of `tests/python`.
///
/// # Panics
/// When there is no Python, or what the script needs cannot be installed.
pub fn python(script: &str) -> Command {
    let mut command = without_own_settings(Command::new(environment().join("bin/python")));
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(repository().join("tests/python").join(script));
    command
}

/// A command that is installed with what `tests/python/requirements.txt` lists.
///
/// # Panics
/// As [`python`].
pub fn installed(name: &str) -> Command {
    without_own_settings(Command::new(environment().join("bin").join(name)))
}

fn environment() -> &'static PathBuf {
    static ENVIRONMENT: OnceLock<PathBuf> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let listed = repository().join("tests/python/requirements.txt");
        made_once("python-venv", &listed, |environment| {
            must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment));
            let mut pip = Command::new(environment.join("bin/python"));
            must(pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&listed));
        })
    })
}
