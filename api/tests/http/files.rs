//! Files: uploads, contents, lists and deletion.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use contract::{AdminStore, BatchError, BatchId, FileId, JobId, NewFile, Purpose, TenantId};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::support::{Answer, Choices, World};

pub const FILES: &str = "/v1/files";
const BOUNDARY: &str = "aBoundaryOfTheClient";
const LINES: &[u8] = b"{\"custom_id\": \"a\"}\n{\"custom_id\": \"b\"}\n";

/// A part of a form: its name, its file's name if it is one, and what is in it.
type Part<'p> = (&'p str, Option<&'p str>, &'p [u8]);

const PURPOSE: Part<'_> = ("purpose", None, b"batch");

fn file(content: &[u8]) -> Part<'_> {
    ("file", Some("in.jsonl"), content)
}

/// A body as RFC 7578 says.
fn form(parts: &[Part<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, filename, content) in parts {
        body.extend(format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"").into_bytes());
        if let Some(filename) = filename {
            let rest = format!("; filename=\"{filename}\"\r\ncontent-type: application/octet-stream");
            body.extend(rest.into_bytes());
        }
        body.extend(b"\r\n\r\n");
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").into_bytes());
    body
}

fn upload(headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::post(FILES).header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

/// The request that uploads a file for batches.
pub fn upload_of(headers: &[(&str, &str)], content: &[u8]) -> Request<Body> {
    upload(headers, form(&[PURPOSE, file(content)]))
}

/// Uploads a file for batches and gives its id.
pub async fn uploaded(world: &World, content: &[u8]) -> String {
    let answer = world.call(upload_of(&[], content)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()["id"].as_str().unwrap().to_owned()
}

pub async fn delete(world: &World, path: &str) -> Answer {
    world.call(Request::delete(path).body(Body::empty()).unwrap()).await
}

/// `error.code` and `error.param` of what is refused with this status.
#[track_caller]
pub fn refused(answer: &Answer, status: u16) -> (String, Option<String>) {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
    let error = &answer.json()["error"];
    assert!(error["type"].is_string() && !error["message"].as_str().unwrap().is_empty(), "{error}");
    (error["code"].as_str().unwrap().to_owned(), error["param"].as_str().map(str::to_owned))
}

/// The names of an object's members.
pub fn members(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The ids of a list's objects, in order.
pub fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|object| object["id"].as_str().unwrap()).collect()
}

async fn content(world: &World, id: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
    let request = Request::get(format!("{FILES}/{id}/content")).body(Body::empty()).unwrap();
    let response = world.router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, axum::body::to_bytes(body, 64 << 20).await.unwrap().to_vec())
}

async fn n_objects(world: &World) -> usize {
    world.objects.list(None).try_collect::<Vec<_>>().await.unwrap().len()
}

/// Neither a file nor bytes.
async fn nothing_is_kept(world: &World, why: &str) {
    assert_eq!(world.get(FILES).await.json()["data"], json!([]), "{why}");
    assert_eq!(n_objects(world).await, 0, "{why}");
}

/// All that lies in a folder, whatever made it.
fn lies_in(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { lies_in(&entry.path()) } else { 1 }).sum()
}

/// Waits until a folder is empty.
async fn empties(folder: &Path) {
    for _ in 0..1_000 {
        if lies_in(folder) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} objects stay", lies_in(folder));
}

/// A world whose objects lie in a folder that the test sees: there also unfinished uploads show.
async fn world_over(folder: &Path, body_pause: Duration) -> World {
    let mut choices = Choices::default();
    choices.limits.body_pause = body_pause;
    let mut world = World::with(choices).await;
    world.objects = Arc::new(backends::local_objects(folder).unwrap());
    world.deps.objects = world.objects.clone();
    world.router = api::router(world.deps.clone());
    world
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

#[tokio::test]
async fn an_upload_comes_back_byte_for_byte() {
    let world = World::new().await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    // What begins like a boundary is none.
    let tricky = format!("\r\n--{}\r\n--\r\nx--{BOUNDARY}\n--{BOUNDARY}", &BOUNDARY[..19]);
    // More than one piece of the object store.
    let large: Vec<u8> = (0..6_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for sent in [LINES, &all_bytes, tricky.as_bytes(), b"\r\n", &large] {
        for parts in [[file(sent), PURPOSE], [PURPOSE, file(sent)]] {
            let (before, body) = (now(), form(&parts));
            let pieces: Vec<_> = body.chunks(100_003).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
            let answer = world.call(upload(&[], Body::from_stream(futures::stream::iter(pieces)))).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            let object = answer.json();
            // https://platform.openai.com/docs/api-reference/files/object
            let expected = ["id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status"];
            assert_eq!(members(&object), expected.into());
            assert_eq!((&object["object"], &object["purpose"]), (&json!("file"), &json!("batch")));
            assert_eq!((&object["bytes"], &object["filename"]), (&json!(sent.len()), &json!("in.jsonl")));
            assert_eq!(object["status"], "processed");
            let created = object["created_at"].as_i64().unwrap();
            assert!((before..=now()).contains(&created), "{object}");
            // Files of batches live for 30 days unless asked otherwise.
            assert_eq!(object["expires_at"].as_i64().unwrap() - created, 30 * 24 * 3_600);
            let id = object["id"].as_str().unwrap();
            assert!(id.starts_with("file-"), "{id}");
            assert_eq!(world.get(&format!("{FILES}/{id}")).await.json(), object);
            let (status, headers, got) = content(&world, id).await;
            assert_eq!(
                (status, headers["content-length"].to_str().unwrap()),
                (StatusCode::OK, &*sent.len().to_string())
            );
            assert!(got == sent, "{} bytes came back of {}", got.len(), sent.len());
        }
    }
    assert_eq!(n_objects(&world).await, 10);
}

#[tokio::test]
async fn a_file_is_called_as_the_client_calls_it_without_its_path() {
    let world = World::new().await;
    let long = "é".repeat(300);
    for (sent, kept) in [
        ("in.jsonl", "in.jsonl"),
        ("/data/in.jsonl", "in.jsonl"),
        ("C:\\data\\in.jsonl", "in.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("größe 日本.jsonl", "größe 日本.jsonl"),
        (&long, &"é".repeat(255)),
    ] {
        let answer = world.call(upload(&[], form(&[("file", Some(sent), LINES), PURPOSE]))).await;
        assert_eq!(answer.json()["filename"], kept, "{}", answer.text);
    }
    for nameless in [None, Some(""), Some("folder/")] {
        let answer = world.call(upload(&[], form(&[("file", nameless, LINES), PURPOSE]))).await;
        assert!(!answer.json()["filename"].as_str().unwrap().is_empty(), "{nameless:?}: {}", answer.text);
    }
}

#[tokio::test]
async fn wrong_parts_are_named_and_nothing_is_kept() {
    let world = World::new().await;
    let created = ("expires_after[anchor]", None, b"created_at".as_slice());
    let seconds = |text: &'static str| ("expires_after[seconds]", None, text.as_bytes());
    let long = "x".repeat(2_000);
    let (missing, invalid) = ("missing_required_parameter", "invalid_value");
    let (anchor_of, seconds_of) = ("expires_after[anchor]", "expires_after[seconds]");
    #[rustfmt::skip]
    let cases: Vec<(Vec<Part<'_>>, &str, &str)> = vec![
        (vec![], missing, "file"),
        (vec![PURPOSE], missing, "file"),
        (vec![file(LINES)], missing, "purpose"),
        (vec![file(LINES), ("purpose", None, b"")], invalid, "purpose"),
        (vec![file(LINES), ("purpose", None, b"Batch")], invalid, "purpose"),
        (vec![file(LINES), ("purpose", None, b"fine-tune")], invalid, "purpose"),
        (vec![("purpose", None, b"batch_output"), file(LINES)], invalid, "purpose"),
        (vec![file(LINES), ("purpose", None, b"\xff\xfe")], invalid, "purpose"),
        (vec![file(LINES), ("purpose", None, long.as_bytes())], invalid, "purpose"),
        (vec![file(LINES), PURPOSE, ("model", None, b"tiny")], "unknown_parameter", "model"),
        (vec![("files", Some("in.jsonl"), LINES), PURPOSE], "unknown_parameter", "files"),
        (vec![file(LINES), PURPOSE, file(LINES)], invalid, "file"),
        (vec![PURPOSE, file(LINES), PURPOSE], invalid, "purpose"),
        (vec![file(LINES), PURPOSE, created, created, seconds("3600")], invalid, anchor_of),
        (vec![file(LINES), PURPOSE, created, seconds("3600"), seconds("3600")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created], missing, seconds_of),
        (vec![file(LINES), PURPOSE, seconds("3600")], missing, anchor_of),
        (vec![file(LINES), PURPOSE, (anchor_of, None, b"last_active_at"), seconds("3600")], invalid, anchor_of),
        (vec![file(LINES), PURPOSE, created, seconds("3599")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created, seconds("2592001")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created, seconds("99999999999999999999")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created, seconds("-3600")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created, seconds("3600.5")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created, seconds("an hour")], invalid, seconds_of),
        (vec![file(LINES), PURPOSE, created, seconds("")], invalid, seconds_of),
    ];
    for (parts, code, param) in cases {
        let names: Vec<_> = parts.iter().map(|(name, _, text)| (name, String::from_utf8_lossy(text))).collect();
        let answer = world.call(upload(&[], form(&parts))).await;
        assert_eq!(refused(&answer, 400), (code.to_owned(), Some(param.to_owned())), "{names:?}");
        nothing_is_kept(&world, &format!("{names:?}")).await;
    }
}

#[tokio::test]
async fn a_file_lives_as_long_as_asked() {
    let world = World::new().await;
    for (text, seconds) in [("3600", 3_600), ("2592000", 2_592_000)] {
        let parts = [
            ("expires_after[anchor]", None, b"created_at".as_slice()),
            ("expires_after[seconds]", None, text.as_bytes()),
            PURPOSE,
            file(LINES),
        ];
        let object = world.call(upload(&[], form(&parts))).await.json();
        assert_eq!(object["expires_at"].as_i64().unwrap() - object["created_at"].as_i64().unwrap(), seconds);
        let id = object["id"].as_str().unwrap();
        let to_the_end = seconds * 1_000;
        world.ahead.store(to_the_end - 60_000, Ordering::Relaxed);
        assert_eq!(content(&world, id).await.0, StatusCode::OK);
        world.ahead.store(to_the_end + 1_000, Ordering::Relaxed);
        let gone = world.get(&format!("{FILES}/{id}/content")).await;
        assert_eq!(refused(&gone, 410).0, "file_expired");
        // What there is to know of it stays.
        assert_eq!(world.get(&format!("{FILES}/{id}")).await.json(), object);
        world.ahead.store(0, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn what_is_no_form_is_a_415() {
    let world = World::new().await;
    let body = form(&[file(LINES), PURPOSE]);
    let types = [
        None,
        Some("multipart/form-data"),
        Some("multipart/form-data; boundary="),
        Some("application/json"),
        Some("application/x-www-form-urlencoded"),
        Some("application/octet-stream"),
    ];
    for content_type in types {
        let request = Request::post(FILES);
        let request = content_type.into_iter().fold(request, |request, text| request.header("content-type", text));
        let answer = world.call(request.body(Body::from(body.clone())).unwrap()).await;
        assert_eq!(refused(&answer, 415).0, "unsupported_media_type", "{content_type:?}");
    }
    nothing_is_kept(&world, "no form").await;
}

#[tokio::test]
async fn nothing_is_kept_of_a_body_that_breaks_off() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_over(folder.path(), Duration::from_secs(30)).await;
    for parts in [[file(LINES), PURPOSE], [PURPOSE, file(LINES)]] {
        let whole = form(&parts);
        // The last two bytes are the end of a line, which may be left out.
        for cut in 0..whole.len() - 2 {
            let answer = world.call(upload(&[], whole[..cut].to_vec())).await;
            assert_eq!(answer.status.as_u16(), 400, "cut at {cut}: {}", answer.text);
            let pieces = [Ok(whole[..cut].to_vec()), Err(std::io::Error::other("gone"))];
            let answer = world.call(upload(&[], Body::from_stream(futures::stream::iter(pieces)))).await;
            assert_eq!(answer.status.as_u16(), 400, "broken at {cut}: {}", answer.text);
        }
    }
    let other = String::from_utf8(form(&[file(LINES), PURPOSE])).unwrap().replace(BOUNDARY, "anotherBoundary");
    assert_eq!(world.call(upload(&[], other)).await.status.as_u16(), 400);
    // A name that no database keeps.
    let hostile = [("file", Some("a\0b"), LINES), PURPOSE];
    assert_eq!(world.call(upload(&[], form(&hostile))).await.status.as_u16(), 400);
    // More than one piece is with the object store when it ends.
    let large = vec![b'x'; 12_000_000];
    let pieces = [Ok(form(&[PURPOSE, file(&large)])[..11_000_000].to_vec()), Err(std::io::Error::other("gone"))];
    let answer = world.call(upload(&[], Body::from_stream(futures::stream::iter(pieces)))).await;
    assert_eq!(answer.status.as_u16(), 400, "{}", answer.text);
    nothing_is_kept(&world, "broken off").await;
    empties(folder.path()).await;
}

#[tokio::test]
async fn a_body_that_stalls_is_a_408_and_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_over(folder.path(), Duration::from_millis(50)).await;
    let whole = form(&[file(LINES), PURPOSE]);
    for sent in [0, 40, 150, whole.len() - 20] {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(whole[..sent].to_vec())]);
        let body = Body::from_stream(first.chain(futures::stream::pending()));
        let answer = tokio::time::timeout(Duration::from_secs(10), world.call(upload(&[], body))).await.unwrap();
        assert_eq!(refused(&answer, 408).0, "request_timeout", "{sent}");
        assert_eq!(answer.header("connection"), Some("close"));
    }
    nothing_is_kept(&world, "stalled").await;
    empties(folder.path()).await;
}

#[tokio::test]
async fn nothing_is_kept_when_the_call_is_given_up_behind_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_over(folder.path(), Duration::from_millis(500)).await;
    // All of the file, and a part that never ends.
    let mut sent = form(&[file(LINES), ("purpose", None, b"bat")]);
    sent.truncate(sent.len() - BOUNDARY.len() - 8);
    let body = futures::stream::iter([Ok::<_, std::io::Error>(sent)]).chain(futures::stream::pending());
    let calling = world.start(upload(&[], Body::from_stream(body)));
    for _ in 0..1_000 {
        if n_objects(&world).await > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(n_objects(&world).await, 1, "the file is there before the form has ended");
    calling.abort();
    empties(folder.path()).await;
    nothing_is_kept(&world, "given up").await;
}

#[tokio::test]
async fn hanging_up_never_leaves_bytes_without_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_over(folder.path(), Duration::from_secs(30)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(api::run(listener, world.deps.clone(), std::future::pending()));
    let body = form(&[file(&[b'x'; 200_000]), PURPOSE]);
    let head = format!(
        "POST {FILES} HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary={BOUNDARY}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // Half of the bodies come whole.
    for round in 0..20 {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        let sent = if round % 2 == 0 { body.len() } else { round * 10_000 };
        client.write_all(&body[..sent]).await.unwrap();
        tokio::time::sleep(Duration::from_micros(100 * round as u64)).await;
    }
    // The last one is not hung up.
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(head.replace("host: x", "host: x\r\nconnection: close").as_bytes()).await.unwrap();
    client.write_all(&body).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // All is quiet once nothing changes for a while.
    let mut quiet = 0;
    for _ in 0..1_000 {
        let listed = ids(&world.get(FILES).await.json()).len();
        quiet = if listed == lies_in(folder.path()) { quiet + 1 } else { 0 };
        if quiet == 20 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let listed = world.get(FILES).await.json();
    assert_eq!(ids(&listed).len(), lies_in(folder.path()));
    assert!((1..=11).contains(&ids(&listed).len()), "{}", ids(&listed).len());
    for id in ids(&listed) {
        assert_eq!(content(&world, id).await.2.len(), 200_000);
    }
    server.abort();
}

#[tokio::test]
async fn what_is_too_large_for_a_batch_is_a_413() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_over(folder.path(), Duration::from_secs(30)).await;
    let whole = form(&[PURPOSE, file(b"?")]);
    let at = whole.iter().position(|byte| *byte == b'?').unwrap();
    // 200 MB and a byte.
    let megabyte = Bytes::from(vec![b'x'; 1_000_000]);
    let file = std::iter::repeat_n(megabyte, 200).chain([Bytes::from_static(b"x")]);
    let head = Bytes::copy_from_slice(&whole[..at]);
    let end = Bytes::copy_from_slice(&whole[at + 1..]);
    let pieces = std::iter::once(head).chain(file).chain([end]).map(Ok::<_, std::io::Error>);
    let answer = world.call(upload(&[], Body::from_stream(futures::stream::iter(pieces)))).await;
    assert_eq!(refused(&answer, 413).0, "body_too_large");
    nothing_is_kept(&world, "too large").await;
    empties(folder.path()).await;
}

#[tokio::test]
async fn a_store_that_cannot_write_keeps_no_bytes() {
    // Room for the tables and little more.
    let world = World::with(Choices { max_bytes: Some(500_000), ..Choices::default() }).await;
    let name = "n".repeat(255);
    let body = form(&[("file", Some(&name), LINES), PURPOSE]);
    let mut kept = 0;
    let answer = loop {
        let answer = world.call(upload(&[], body.clone())).await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        kept += 1;
        assert!(kept < 2_000, "the file never got full");
    };
    assert_eq!(refused(&answer, 503).0, "store_unavailable");
    assert!(answer.header("retry-after").is_some());
    assert_eq!((ids(&world.get(FILES).await.json()).len(), n_objects(&world).await), (kept, kept));
}

#[tokio::test]
async fn without_the_object_store_an_upload_is_a_503() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_over(folder.path(), Duration::from_secs(30)).await;
    // Where the folder of files belongs.
    std::fs::write(folder.path().join("files"), "in the way").unwrap();
    for parts in [[file(LINES), PURPOSE], [PURPOSE, file(LINES)]] {
        let answer = world.call(upload(&[("idempotency-key", "k")], form(&parts))).await;
        assert_eq!(refused(&answer, 503).0, "store_unavailable");
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(world.get(FILES).await.json()["data"], json!([]));
    // Once it is back, the same call does what it should have done.
    std::fs::remove_file(folder.path().join("files")).unwrap();
    let answer = world.call(upload_of(&[("idempotency-key", "k")], LINES)).await;
    assert_eq!((answer.status, answer.header("idempotency-replayed")), (StatusCode::OK, None), "{}", answer.text);
    assert_eq!(content(&world, answer.json()["id"].as_str().unwrap()).await.2, LINES);
}

#[tokio::test]
async fn a_repeat_with_the_same_key_gives_the_same_file() {
    let world = World::new().await;
    let keyed = async |parts: &[Part<'_>]| world.call(upload(&[("idempotency-key", "k")], form(parts))).await;
    let first = keyed(&[file(LINES), PURPOSE]).await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (StatusCode::OK, None));
    let object = first.json();
    // The order of the parts is no content.
    for parts in [[file(LINES), PURPOSE], [PURPOSE, file(LINES)]] {
        let repeat = keyed(&parts).await;
        assert_eq!((repeat.status, repeat.header("idempotency-replayed")), (StatusCode::OK, Some("true")));
        assert_eq!(repeat.json(), object);
    }
    let life = [("expires_after[anchor]", None, b"created_at".as_slice()), ("expires_after[seconds]", None, b"3600")];
    for parts in [
        vec![file(b"{}\n"), PURPOSE],
        vec![("file", Some("other.jsonl"), LINES), PURPOSE],
        vec![file(LINES), PURPOSE, life[0], life[1]],
    ] {
        assert_eq!(refused(&keyed(&parts).await, 422).0, "idempotency_key_reused");
    }
    // The bytes of the repeats are gone, and those of the file are not.
    assert_eq!(n_objects(&world).await, 1);
    assert_eq!(content(&world, object["id"].as_str().unwrap()).await.2, LINES);
    assert_eq!(ids(&world.get(FILES).await.json()), [object["id"].as_str().unwrap()]);
    let other = world.call(upload_of(&[("idempotency-key", "another")], LINES)).await;
    assert_ne!(other.json()["id"], object["id"]);
    for bad in ["", &"k".repeat(256)] {
        let answer = world.call(upload_of(&[("idempotency-key", bad)], LINES)).await;
        assert_eq!(refused(&answer, 400).0, "invalid_header");
    }
    assert_eq!(n_objects(&world).await, 2);
}

#[tokio::test]
async fn files_are_listed_in_pages() {
    let world = World::new().await;
    let empty = world.get(FILES).await.json();
    assert_eq!(empty, json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false}));
    let mut made = Vec::new();
    for n in 0..5_u8 {
        made.push(uploaded(&world, &[n]).await);
    }
    let newest_first: Vec<&str> = made.iter().rev().map(String::as_str).collect();
    let all = world.get(FILES).await.json();
    assert_eq!(ids(&all), newest_first);
    assert_eq!(all["data"][0], world.get(&format!("{FILES}/{}", made[4])).await.json());
    for query in ["?order=desc", "?limit=10000", "?purpose=batch", "?limit=5"] {
        let same = world.get(&format!("{FILES}{query}")).await.json();
        assert_eq!((&same["has_more"], &same), (&json!(false), &all), "{query}");
    }
    for (order, expected) in [("desc", newest_first.clone()), ("asc", made.iter().map(String::as_str).collect())] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        for (page, n) in [2, 2, 1].into_iter().enumerate() {
            let list = world.get(&format!("{FILES}?order={order}&limit=2{after}")).await.json();
            assert_eq!((list["data"].as_array().unwrap().len(), list["has_more"].as_bool()), (n, Some(page < 2)));
            assert_eq!((&list["first_id"], &list["last_id"]), (&list["data"][0]["id"], &list["data"][n - 1]["id"]));
            seen.extend(ids(&list).into_iter().map(str::to_owned));
            after = format!("&after={}", list["last_id"].as_str().unwrap());
        }
        assert_eq!(seen, expected, "{order}");
    }
    // What a batch made is another purpose.
    let output = NewFile {
        id: FileId::new(),
        tenant: TenantId::local(),
        filename: "out.jsonl".into(),
        purpose: Purpose::BatchOutput,
        bytes: 1,
        expires_in: None,
        idempotency: None,
    };
    world.store.add_file(&output).await.unwrap().unwrap();
    let outputs = world.get(&format!("{FILES}?purpose=batch_output")).await.json();
    assert_eq!(ids(&outputs), [output.id.to_string()]);
    assert_eq!(
        (&outputs["data"][0]["purpose"], &outputs["data"][0]["expires_at"]),
        (&json!("batch_output"), &json!(null))
    );
    assert_eq!(world.get(&format!("{FILES}?purpose=batch")).await.json(), all);
    assert_eq!(ids(&world.get(FILES).await.json()).len(), 6);
}

#[tokio::test]
async fn wrong_parameters_of_a_list_are_named() {
    let world = World::new().await;
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("order=up", "order"),
        ("order=", "order"),
        ("after=file-1", "after"),
        ("after=batch_00000000000000000000000000000000", "after"),
        ("purpose=fine-tune", "purpose"),
        ("before=file-00000000000000000000000000000000", "before"),
    ] {
        let answer = world.get(&format!("{FILES}?{query}")).await;
        assert_eq!(refused(&answer, 400).1.as_deref(), Some(param), "{query}");
    }
}

#[tokio::test]
async fn a_deleted_file_is_gone() {
    let world = World::new().await;
    let (id, other) = (uploaded(&world, LINES).await, uploaded(&world, b"other").await);
    let path = format!("{FILES}/{id}");
    let deleted = delete(&world, &path).await;
    assert_eq!(
        (deleted.status, deleted.json()),
        (StatusCode::OK, json!({"id": id, "object": "file", "deleted": true}))
    );
    for answer in [delete(&world, &path).await, world.get(&path).await, world.get(&format!("{path}/content")).await] {
        assert_eq!(refused(&answer, 404).0, "file_not_found");
    }
    assert_eq!(ids(&world.get(FILES).await.json()), [other.as_str()]);
    assert_eq!((n_objects(&world).await, content(&world, &other).await.2), (1, b"other".to_vec()));
}

#[tokio::test]
async fn a_file_stays_while_a_batch_reads_it() {
    let world = World::new().await;
    let id = uploaded(&world, LINES).await;
    let body = json!({"input_file_id": id, "endpoint": "/v1/completions", "completion_window": "24h"});
    let batch = world.post("/v1/batches", &body).await.json();
    let batch: BatchId = batch["id"].as_str().unwrap().parse().unwrap();
    let path = format!("{FILES}/{id}");
    assert_eq!(refused(&delete(&world, &path).await, 409).0, "file_in_use");
    assert_eq!(content(&world, &id).await.2, LINES);
    let wrong = BatchError { code: "invalid_line".into(), message: "wrong".into(), param: None, line: Some(1) };
    assert!(world.store.fail_batch(&batch, &[wrong]).await.unwrap());
    assert_eq!(delete(&world, &path).await.status, StatusCode::OK);
    assert_eq!(n_objects(&world).await, 0);
    // The batch still says what it read.
    assert_eq!(world.get(&format!("/v1/batches/{batch}")).await.json()["input_file_id"], id.as_str());
}

#[tokio::test]
async fn what_is_no_file_is_a_404() {
    let world = World::new().await;
    let hex = "0".repeat(32);
    let long = "x".repeat(5_000);
    let nobody = FileId::new().to_string();
    let (job, batch) = (JobId::new().to_string(), BatchId::new().to_string());
    let shouted = uploaded(&world, LINES).await.to_uppercase();
    for id in [
        &nobody,
        "file-1",
        "file-",
        &hex,
        &format!("file_{hex}"),
        &job,
        &batch,
        "%FF",
        "%00",
        "%C3%A9",
        &long,
        &shouted,
    ] {
        for (method, rest) in [(Method::GET, ""), (Method::GET, "/content"), (Method::DELETE, "")] {
            let request = Request::builder().method(method).uri(format!("{FILES}/{id}{rest}"));
            let answer = world.call(request.body(Body::empty()).unwrap()).await;
            assert_eq!(refused(&answer, 404).0, "file_not_found", "{id}{rest}");
            assert!(answer.text.len() < 1_000, "what is shown of an id has its limits");
        }
    }
    assert_eq!(n_objects(&world).await, 1);
}

#[tokio::test]
async fn a_body_without_its_boundary_is_not_kept_in_memory() {
    let world = World::new().await;
    // As much as the server wants, in pieces of 64 KiB: it says no long before all of it.
    let taken = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = taken.clone();
    let pieces = futures::stream::iter(0..4_096).map(move |_| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b'x'; 64 * 1024]))
    });
    let request = Request::post(FILES)
        .header("content-type", "multipart/form-data; boundary=never")
        .body(Body::from_stream(pieces))
        .unwrap();
    let answer = world.call(request).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    let taken = taken.load(std::sync::atomic::Ordering::Relaxed);
    assert!(taken < 80, "{taken} pieces of 64 KiB were taken");
}
