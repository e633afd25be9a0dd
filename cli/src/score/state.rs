//! What a run is, kept beside its output, so that going on does not mix two runs. An input that was edited in place
//! without a change of its size is not noticed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::choices::Choices;

const FILE: &str = "run.json";

/// Everything that decides what the answer lines say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The server that answers; none where this process does.
    pub server: Option<String>,
    /// The name that requests give the server's model.
    pub model: Option<String>,
    /// The dataset.
    pub input: PathBuf,
    /// Its size.
    pub input_bytes: u64,
    /// SHA-256 of its content, where it is read anyway: for a server's keys.
    pub input_sha256: Option<String>,
    /// The release that answers.
    pub release: String,
    /// `--template`.
    pub template: Option<String>,
    /// `--chat`.
    pub chat: bool,
    /// `--max-tokens`.
    pub max_tokens: Option<u32>,
    /// `--temperature`.
    pub temperature: Option<f64>,
    /// `--seed`.
    pub seed: Option<i64>,
    /// `--any-model`.
    pub any_model: bool,
    /// `--window`.
    pub window: Option<String>,
    /// `--choices`, and what belongs to it.
    #[serde(default)]
    pub choices: Option<Choices>,
}

/// A run that was begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The id that its lines share.
    pub batch: Uuid,
    /// Whether it was begun with `--overwrite`: what an earlier run of the same plan left at a server is not its own.
    #[serde(default)]
    pub is_anew: bool,
    plan: Plan,
}

/// Begins a run, or goes on with the one that was begun. `output`: its name and its file, which this run holds.
///
/// # Errors
/// The output has something in it and belongs to no unfinished run; or it was begun with another plan, and the message names
/// the first difference.
pub fn begin_or_resume(
    folder: &Path,
    (output, held): (&Path, &fs::File),
    plan: &Plan,
    overwrite: bool,
) -> anyhow::Result<Run> {
    let replaced = || format!("{} cannot be replaced", output.display());
    if overwrite {
        // Only a folder that a run made is ever removed.
        if folder.join(FILE).exists() {
            finish(folder)?;
        }
        // Emptied and not removed: the lock goes with the file, and who waits for the name would get another one.
        held.set_len(0).with_context(replaced)?;
    }
    let file = folder.join(FILE);
    match fs::read(&file) {
        Ok(bytes) => {
            let run: Run = serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is damaged; --overwrite begins anew", file.display()))?;
            if let Some(difference) = difference(&run.plan, plan) {
                bail!(
                    "{} was begun with another {difference}; repeat the first command to go on, or pass --overwrite to begin anew",
                    output.display()
                );
            }
            Ok(run)
        }
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
            let metadata = held.metadata().with_context(replaced)?;
            if !metadata.is_file() || metadata.len() > 0 {
                bail!("{} exists already; pass --overwrite to replace it", output.display());
            }
            match fs::create_dir(folder) {
                // A kill came between the folder and what belongs in it.
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.with_context(|| format!("{} cannot be made", folder.display()))?,
            }
            let run = Run { batch: Uuid::now_v7(), is_anew: overwrite, plan: plan.clone() };
            write_whole(&file, &serde_json::to_vec_pretty(&run)?)?;
            Ok(run)
        }
        Err(err) => Err(err).with_context(|| format!("{} cannot be read", file.display())),
    }
}

/// The run is done: what it kept is removed.
///
/// # Errors
/// When the folder cannot be removed.
pub fn finish(folder: &Path) -> anyhow::Result<()> {
    // Aside first: a kill in the middle of the removal must not leave half a run under the name.
    let aside = folder.with_extension("penstock-done");
    let failed = || format!("{} cannot be removed", folder.display());
    if aside.exists() {
        fs::remove_dir_all(&aside).with_context(failed)?;
    }
    fs::rename(folder, &aside).with_context(failed)?;
    fs::remove_dir_all(&aside).with_context(failed)
}

/// Written beside and renamed: a kill leaves the whole file or none.
fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let beside = path.with_extension("new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    Ok(())
}

fn difference(begun: &Plan, now: &Plan) -> Option<&'static str> {
    let same = [
        (begun.server == now.server, "server (--server, or none)"),
        (begun.model == now.model, "--model"),
        (begun.input == now.input, "input file"),
        (begun.input_bytes == now.input_bytes, "content of the input file (its size has changed)"),
        (begun.input_sha256 == now.input_sha256, "content of the input file"),
        (begun.release == now.release, "model or engine (the release's fingerprint differs)"),
        (begun.template == now.template, "--template"),
        (begun.chat == now.chat, "--chat"),
        (begun.max_tokens == now.max_tokens, "--max-tokens"),
        (begun.temperature == now.temperature, "--temperature"),
        (begun.seed == now.seed, "--seed"),
        (begun.any_model == now.any_model, "--any-model"),
        (begun.window == now.window, "--window"),
        (begun.choices == now.choices, "--choices, --label or --slice"),
    ];
    same.into_iter().find(|(same, _)| !same).map(|(_, what)| what)
}

#[cfg(test)]
mod tests {
    use super::super::output::hold;
    use super::*;

    fn plan() -> Plan {
        Plan {
            server: None,
            model: None,
            input_sha256: None,
            window: None,
            choices: None,
            input: "/data/in.jsonl".into(),
            input_bytes: 10,
            release: "ab".into(),
            template: None,
            chat: false,
            max_tokens: Some(3),
            temperature: None,
            seed: None,
            any_model: false,
        }
    }

    #[test]
    fn the_same_plan_goes_on_and_another_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (folder, output) = (temp.path().join("out.penstock"), temp.path().join("out"));
        let held = hold(&output).unwrap();
        let begin = |plan: &Plan, overwrite| begin_or_resume(&folder, (&output, &held), plan, overwrite);
        let first = begin(&plan(), false).unwrap();
        assert_eq!(begin(&plan(), false).unwrap(), first);
        let other = Plan { max_tokens: Some(4), ..plan() };
        let refused = begin(&other, false).unwrap_err().to_string();
        assert!(refused.contains("--max-tokens"), "{refused}");
        assert_ne!(begin(&other, true).unwrap(), first);
    }

    #[test]
    fn a_finished_output_is_not_touched_without_being_asked() {
        let temp = tempfile::tempdir().unwrap();
        let (folder, output) = (temp.path().join("out.penstock"), temp.path().join("out"));
        fs::write(&output, "precious").unwrap();
        let held = hold(&output).unwrap();
        let begin = |overwrite| begin_or_resume(&folder, (&output, &held), &plan(), overwrite);
        assert!(begin(false).unwrap_err().to_string().contains("--overwrite"));
        assert_eq!(fs::read_to_string(&output).unwrap(), "precious");
        begin(true).unwrap();
        assert_eq!(fs::read_to_string(&output).unwrap(), "");
    }
}
