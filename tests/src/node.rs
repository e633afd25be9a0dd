//! Node scripts that use what `node/package-lock.json` lists.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::binary::repository;
use crate::tools::{made_once, must, without_own_settings};

/// A command that runs a script of `tests/node`.
///
/// # Panics
/// When there is no Node, or what the script needs cannot be installed.
pub fn node(script: &str) -> Command {
    let folder = packages();
    // Node looks for packages beside the script, and they stay out of the checkout.
    copy(script, folder);
    let mut command = without_own_settings(Command::new("node"));
    command.arg(folder.join(script));
    command
}

fn packages() -> &'static PathBuf {
    static PACKAGES: OnceLock<PathBuf> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        made_once("node-packages", &repository().join("tests/node/package-lock.json"), |folder| {
            std::fs::create_dir_all(folder).expect("the folder can be made");
            copy("package.json", folder);
            copy("package-lock.json", folder);
            must(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(folder));
        })
    })
}

fn copy(name: &str, folder: &Path) {
    std::fs::copy(repository().join("tests/node").join(name), folder.join(name)).expect("the file can be copied");
}
