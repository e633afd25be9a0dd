//! Where trajectories come from: a server's route, or a file of lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, bail};
use contract::Trajectory;
use contract::record::RecordError;

use crate::client::server::{Server, ServerError};
use crate::config::Client;

/// What a zstd file begins with.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Longest line: as large as a record can be.
const LONGEST: u64 = 256 << 20;

/// One trajectory that was asked for.
#[derive(Debug)]
pub struct Asked {
    /// The job's id, or where its line is.
    pub name: String,
    /// It, or why it cannot be had.
    pub found: Result<Trajectory, String>,
}

/// Asks the server for each job.
///
/// # Errors
/// The server cannot be reached.
pub async fn from_server(settings: &Client, jobs: &[String]) -> anyhow::Result<Vec<Asked>> {
    let server = Server::new(settings)?;
    let mut asked = Vec::with_capacity(jobs.len());
    for job in jobs {
        let found = match server.get(&["v1", "jobs", job, "trajectory"], &[]).await {
            Ok(answer) => serde_json::to_vec(&answer["record"])
                .map_err(RecordError::Parse)
                .and_then(|line| Trajectory::from_json(&line))
                .map_err(|err| unreadable(&err)),
            Err(err @ ServerError::Unreachable { .. }) => return Err(err.into()),
            Err(err) => Err(err.to_string()),
        };
        asked.push(Asked { name: job.clone(), found });
    }
    Ok(asked)
}

/// Reads a file of trajectories, all of it or only these jobs.
///
/// # Errors
/// The file cannot be read, holds no line, or lacks a job that was asked for.
pub fn from_file(path: &Path, jobs: &[String]) -> anyhow::Result<Vec<Asked>> {
    let failed = || format!("{} cannot be read", path.display());
    let mut file = BufReader::new(File::open(path).with_context(failed)?);
    let lines: Box<dyn Read> = if file.fill_buf().with_context(failed)?.starts_with(&ZSTD) {
        // Reads one frame after another.
        Box::new(zstd::stream::read::Decoder::with_buffer(file).with_context(failed)?)
    } else {
        Box::new(file)
    };
    let mut lines = BufReader::new(lines);
    let mut asked = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let n_bytes = lines.by_ref().take(LONGEST).read_until(b'\n', &mut line).with_context(failed)?;
        if n_bytes == 0 {
            break;
        }
        if n_bytes as u64 == LONGEST {
            bail!("{}: line {number} is longer than any trajectory", path.display());
        }
        let place = format!("{}:{number}", path.display());
        let (name, found) = match Trajectory::from_json(&line) {
            Ok(trajectory) => (trajectory.job().to_string(), Ok(trajectory)),
            Err(err) => (place, Err(unreadable(&err))),
        };
        if jobs.is_empty() || jobs.contains(&name) {
            asked.push(Asked { name, found });
        }
    }
    for job in jobs {
        if !asked.iter().any(|asked| asked.name == *job) {
            bail!("{} has no trajectory of {job}", path.display());
        }
    }
    if asked.is_empty() {
        bail!("{} has no line", path.display());
    }
    Ok(asked)
}

fn unreadable(err: &RecordError) -> String {
    let cause = std::error::Error::source(err).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("it is no trajectory of this version{cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn redacted(n: u32) -> String {
        format!(
            r#"{{"v":1,"redacted":true,"job":"job_{n:032x}","attempt":1,"release":"ab","kind":"chat","request":{{"model":"m","sampling":{{"temperature":1.0,"top_p":1.0,"min_p":0.0}},"min_tokens":0,"ignore_eos":false,"n_stop":0,"n_stop_token_ids":0}},"seed":1,"choices":[],"usage":{{"prompt_tokens":1,"cached_tokens":0,"output_tokens":0}},"timings":{{"prepared_ms":0,"first_token_ms":0,"finished_ms":0}}}}"#
        ) + "\n"
    }

    #[test]
    fn plain_and_compressed_files_read_the_same() {
        let lines = [redacted(1), redacted(2)];
        let frames: Vec<u8> =
            lines.iter().flat_map(|line| zstd::stream::encode_all(line.as_bytes(), 3).unwrap()).collect();
        for bytes in [lines.concat().into_bytes(), frames] {
            let (_folder, path) = file(&bytes);
            let asked = from_file(&path, &[]).unwrap();
            let names: Vec<&str> = asked.iter().map(|asked| asked.name.as_str()).collect();
            assert_eq!(names, [format!("job_{:032x}", 1), format!("job_{:032x}", 2)]);
            assert!(asked.iter().all(|asked| asked.found.is_ok()));
            let second = from_file(&path, &[names[1].to_owned()]).unwrap();
            assert_eq!((second.len(), second[0].name.as_str()), (1, names[1]));
            assert!(from_file(&path, &["job_3".to_owned()]).unwrap_err().to_string().contains("job_3"));
        }
    }

    #[test]
    fn bad_lines_are_named_and_cut_files_refused() {
        let (_folder, path) = file(format!("{}{{}}\n", redacted(1)).as_bytes());
        let asked = from_file(&path, &[]).unwrap();
        assert!(asked[0].found.is_ok());
        assert!(asked[1].name.ends_with("some.jsonl:2") && asked[1].found.is_err());
        let whole = zstd::stream::encode_all(redacted(1).as_bytes(), 3).unwrap();
        let (_folder, path) = file(&whole[..whole.len() - 5]);
        assert!(from_file(&path, &[]).is_err());
        let (_folder, path) = file(b"");
        assert!(from_file(&path, &[]).unwrap_err().to_string().contains("no line"));
    }
}
