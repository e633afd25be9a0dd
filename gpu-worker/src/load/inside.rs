//! Opening the files of a model folder, and none beside it: what a name leads to is looked at before it is read.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::LoadError;

/// Where the file `name` of `folder` lies, links followed; `None` where there is none.
///
/// A link may lead to a file of the folder. It may also lead to the `blobs` beside the `snapshots` that the folder is one
/// of: so the cache of the Hugging Face hub is laid out.
///
/// # Errors
/// [`LoadError::BadFile`] for a link that leads elsewhere, and for what is no plain file: a pipe would be waited for.
pub(crate) fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>, LoadError> {
    let failed = |err: std::io::Error| LoadError::bad_file(name, format!("cannot be read: {err}"));
    let path = match folder.join(name).canonicalize() {
        Ok(path) => path,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(failed(err)),
    };
    let root = folder.canonicalize().map_err(failed)?;
    let is_in_cache = || {
        let snapshots = root.parent().filter(|parent| parent.file_name() == Some(OsStr::new("snapshots")));
        snapshots.and_then(Path::parent).is_some_and(|model| path.starts_with(model.join("blobs")))
    };
    if !path.starts_with(&root) && !is_in_cache() {
        return Err(LoadError::bad_file(name, "is a link that leads out of the folder; put the file itself there"));
    }
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(LoadError::bad_file(name, "cannot be read: it is no file"));
    }
    Ok(Some(path))
}

/// The file `name` of `folder` and its length; `None` where there is none.
///
/// # Errors
/// As [`find`], and for a file that cannot be opened.
pub(crate) fn open(folder: &Path, name: &str) -> Result<Option<(File, u64)>, LoadError> {
    let Some(path) = find(folder, name)? else { return Ok(None) };
    let opened = File::open(path).and_then(|file| {
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    });
    opened.map(Some).map_err(|err| LoadError::bad_file(name, format!("cannot be read: {err}")))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_to_the_folder_or_to_the_blobs_of_its_cache() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--a--b");
        let folder = model.join("snapshots/0123");
        for made in [&folder, &model.join("blobs"), &model.join("refs")] {
            std::fs::create_dir_all(made).unwrap();
        }
        for file in [model.join("blobs/sha"), model.join("refs/main"), folder.join("plain")] {
            std::fs::write(file, "text").unwrap();
        }
        let refusal = |name: &str| open(&folder, name).unwrap_err().to_string();
        for (name, target) in [("cached", "../../blobs/sha"), ("beside", "plain")] {
            symlink(target, folder.join(name)).unwrap();
            assert_eq!(open(&folder, name).unwrap().unwrap().1, 4, "{name}");
        }
        assert!(open(&folder, "gone").unwrap().is_none());
        symlink("../../blobs/none", folder.join("dangling")).unwrap();
        assert!(open(&folder, "dangling").unwrap().is_none());
        let outside = "../../refs/main";
        symlink(outside, folder.join("out")).unwrap();
        symlink("/etc/hostname", folder.join("far")).unwrap();
        for name in ["out", "far"] {
            assert!(refusal(name).contains("leads out of the folder"), "{}", refusal(name));
        }
        // Where the folder is no part of a cache, `blobs` two levels up is nothing special.
        let other = model.join("elsewhere/0123");
        std::fs::create_dir_all(&other).unwrap();
        symlink("../../blobs/sha", other.join("cached")).unwrap();
        assert!(open(&other, "cached").unwrap_err().to_string().contains("leads out of the folder"));
        symlink("loop", folder.join("loop")).unwrap();
        symlink("/dev/zero", other.join("zeros")).unwrap();
        std::fs::create_dir(folder.join("folder")).unwrap();
        assert!(refusal("loop").contains("cannot be read"));
        assert!(refusal("folder").contains("it is no file"));
        assert!(open(&other, "zeros").is_err());
    }

    #[test]
    fn a_pipe_is_refused_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("config.json")).status().unwrap();
        assert!(made.success());
        assert!(open(folder.path(), "config.json").unwrap_err().to_string().contains("it is no file"));
    }
}
