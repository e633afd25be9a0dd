//! Uploads: a form with the file in it, of which no more than a piece is in memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail, ensure};
use contract::openai::files::FileObject;
use tokio::io::AsyncReadExt;

use super::key::hex;
use crate::client::server::{Server, Upload};
use crate::model::Progress;

/// Bytes read at once.
const PIECE: usize = 256 * 1024;

/// What stands around the file in a form of `multipart/form-data`.
#[derive(Debug, PartialEq, Eq)]
struct Envelope {
    content_type: String,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Envelope {
    /// Around a file of purpose `batch`. `boundary` must not occur in the file.
    fn new(filename: &str, boundary: &str) -> Self {
        // As the HTML standard has it; a line end would begin another header.
        let name = filename.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{boundary}\r\n\
             content-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             content-type: application/jsonl\r\n\r\n"
        );
        Self {
            content_type: format!("multipart/form-data; boundary={boundary}"),
            head: head.into_bytes(),
            tail: format!("\r\n--{boundary}--\r\n").into_bytes(),
        }
    }
}

/// Uploads a file for batches under this name, and shows how far it is.
///
/// # Errors
/// The file cannot be read, or changes meanwhile; the server cannot be reached or refuses ([`ServerError`] in the chain).
///
/// [`ServerError`]: crate::client::server::ServerError
pub async fn upload(
    server: &Server,
    path: &Path,
    filename: &str,
    key: Option<&str>,
    progress: &Arc<Progress>,
) -> anyhow::Result<FileObject> {
    let cannot = || format!("{} cannot be read", path.display());
    let file = tokio::fs::File::open(path).await.with_context(cannot)?;
    let bytes = file.metadata().await.with_context(cannot)?.len();
    let mut random = [0; 16];
    getrandom::fill(&mut random)?;
    let Envelope { content_type, head, tail } = Envelope::new(filename, &format!("penstock-{}", hex(&random)));
    let length = head.len() as u64 + bytes + tail.len() as u64;
    let moved = Arc::new(AtomicU64::new(0));
    progress.begin("upload", bytes, 0);
    let pieces = futures::stream::try_unfold(Body::Head(head, Rest { file, left: bytes, tail }), {
        let (moved, progress) = (Arc::clone(&moved), Arc::clone(progress));
        move |body| {
            if let Body::File(rest) = &body {
                progress.at(bytes - rest.left);
            }
            next(body, Arc::clone(&moved))
        }
    });
    let body = reqwest::Body::wrap_stream(pieces);
    let sent = server.upload(&["v1", "files"], Upload { content_type, length, body, moved }, key).await;
    progress.end();
    let is_same = std::fs::metadata(path).is_ok_and(|now| now.len() == bytes);
    let answer = match sent {
        Err(_) if !is_same => bail!("{} changed while it was uploaded: try again when it is whole", path.display()),
        answer => answer?,
    };
    ensure!(is_same, "{} changed while it was uploaded: try again when it is whole", path.display());
    serde_json::from_value(answer).context("the server answered the upload with something else than a file")
}

/// How far a form is sent.
enum Body {
    Head(Vec<u8>, Rest),
    File(Rest),
    End,
}

/// What is still to come.
struct Rest {
    file: tokio::fs::File,
    left: u64,
    tail: Vec<u8>,
}

/// The next piece.
async fn next(body: Body, moved: Arc<AtomicU64>) -> std::io::Result<Option<(Vec<u8>, Body)>> {
    let (piece, body) = match body {
        Body::Head(head, rest) => (head, Body::File(rest)),
        Body::File(Rest { left: 0, tail, .. }) => (tail, Body::End),
        Body::File(mut rest) => {
            let mut piece = vec![0; PIECE.min(usize::try_from(rest.left).unwrap_or(PIECE))];
            // A file that became shorter is an error here: the length is declared already.
            rest.file.read_exact(&mut piece).await?;
            rest.left -= piece.len() as u64;
            (piece, Body::File(rest))
        }
        Body::End => return Ok(None),
    };
    moved.fetch_add(piece.len() as u64, Ordering::Relaxed);
    Ok(Some((piece, body)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use axum::extract::State;
    use axum::http::HeaderMap;
    use axum::routing::post;
    use axum::{Json, Router};
    use std::sync::Mutex;

    #[test]
    fn the_envelope_is_a_form() {
        let envelope = Envelope::new("a \"b\"\r\n.jsonl", "X");
        assert_eq!(envelope.content_type, "multipart/form-data; boundary=X");
        assert_eq!(
            String::from_utf8(envelope.head).unwrap(),
            "--X\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--X\r\ncontent-disposition: \
             form-data; name=\"file\"; filename=\"a %22b%22%0D%0A.jsonl\"\r\ncontent-type: application/jsonl\r\n\r\n"
        );
        assert_eq!(envelope.tail, b"\r\n--X--\r\n");
    }

    type Seen = Arc<Mutex<Option<(HeaderMap, Bytes)>>>;

    async fn take(State(seen): State<Seen>, headers: HeaderMap, body: Bytes) -> Json<serde_json::Value> {
        *seen.lock().unwrap() = Some((headers, body));
        Json(serde_json::json!({"id": "file-1", "object": "file", "bytes": 3, "created_at": 1, "expires_at": null,
            "filename": "f", "purpose": "batch", "status": "processed"}))
    }

    #[tokio::test]
    async fn files_of_every_length_arrive_whole_and_with_their_length_declared() {
        let seen = Seen::default();
        let app = Router::new().route("/v1/files", post(take)).with_state(Arc::clone(&seen));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let server = Server::new(&crate::config::Client { server: address, api_key: None }).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7] {
            let content: Vec<u8> = (0..length).map(|n| n as u8).collect();
            std::fs::write(&path, &content).unwrap();
            let file = upload(&server, &path, "f", Some("key"), &Arc::new(Progress::silent())).await.unwrap();
            assert_eq!(file.id, "file-1");
            let (headers, body) = seen.lock().unwrap().take().unwrap();
            let boundary = headers["content-type"].to_str().unwrap().rsplit_once('=').unwrap().1.to_owned();
            let Envelope { head, tail, .. } = Envelope::new("f", &boundary);
            assert_eq!(body, [head, content, tail].concat());
            assert_eq!(headers["content-length"].to_str().unwrap(), body.len().to_string());
            assert_eq!(headers["idempotency-key"], "key");
        }
    }
}
