//! Other programs in the hands of a test, with what they need installed once and kept with the build.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::server::Server;

/// The folder `target/NAME`, made once: `make` fills it, and again when the file `listed` is another.
///
/// # Panics
/// When it cannot be made.
pub fn made_once(name: &str, listed: &Path, make: impl FnOnce(&Path)) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test.ancestors().nth(3).expect("tests run from target/PROFILE/deps").join(name);
    let stamp = folder.join("made-from");
    let wanted = std::fs::read_to_string(listed).expect("the list of what is needed can be read");
    if !std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        make(&folder);
        // Last, so that a broken installation is made again.
        std::fs::write(&stamp, wanted).expect("the folder can be written");
    }
    folder
}

/// Leaves out what the developer has set for OpenAI's packages.
pub fn without_own_settings(mut command: Command) -> Command {
    // A proxy of the developer's must not stand between, nor settings of theirs for another endpoint.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    command.env_remove("OPENAI_BASE_URL").env_remove("OPENAI_ORG_ID").env_remove("OPENAI_PROJECT_ID");
    command
}

/// Runs a script of checks against a server and shows what it said.
///
/// # Panics
/// When a check failed; the server's log is in the message.
pub fn run_checks(command: &mut Command, server: &Server) {
    let output = command.output().unwrap_or_else(|err| panic!("{command:?}: {err}"));
    assert!(output.status.success(), "{}\n{}", said(&output), server.log());
    println!("{}", said(&output));
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started, or fails; what it said is in the message.
pub fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|err| panic!("{command:?}: {err}"));
    assert!(output.status.success(), "{command:?}:\n{}", said(&output));
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
