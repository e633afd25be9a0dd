//! Where the binary and the repository are.

use std::path::PathBuf;
use std::process::Command;

/// The repository's root.
pub fn repository() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}

/// A command that runs the `penstock` binary built beside this test.
///
/// # Panics
/// When it was not built: `cargo build --release` makes it, and `tests/run` does so first.
pub fn penstock() -> Command {
    let test = std::env::current_exe().expect("a running test has a path");
    let binary = test.ancestors().nth(2).map(|folder| folder.join("penstock")).filter(|path| path.is_file());
    let binary = binary.expect("the penstock binary is not built: run tests/run, or cargo build --release first");
    let mut command = Command::new(binary);
    // The developer's own settings must not reach a test; the model cache may.
    for (name, _) in std::env::vars() {
        if name.starts_with("PENSTOCK_") && name != "PENSTOCK_CACHE" {
            command.env_remove(name);
        }
    }
    command
}
