//! What every object store does, and what only one beyond the process can do wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::objects::{local_objects, s3_objects_with};
use contract::JobId;
use futures::future::join_all;
use futures::stream::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart};

use crate::instance::{Instance, variable};

const MIB: usize = 1 << 20;

fn s3(url: &str, endpoint: &str, key: &str, secret: &str) -> Arc<dyn ObjectStore> {
    let settings = [
        ("endpoint_url", endpoint),
        ("access_key_id", key),
        ("secret_access_key", secret),
        ("region", "us-east-1"),
        ("allow_http", "true"),
    ];
    s3_objects_with(url, &settings).unwrap()
}

/// A store in the test run's S3, with nothing in it.
fn fresh_s3() -> Arc<dyn ObjectStore> {
    let url = format!("{}/test-{}", variable("PENSTOCK_TEST_OBJECTS"), JobId::new());
    let [endpoint, key, secret] =
        ["ENDPOINT", "ACCESS_KEY", "SECRET_KEY"].map(|name| variable(&format!("PENSTOCK_TEST_S3_{name}")));
    s3(&url, &endpoint, &key, &secret)
}

macro_rules! on_every_object_store {
    ($($case:ident),+ $(,)?) => { mod object_cases { $( mod $case {
        #[tokio::test]
        async fn files() {
            let folder = tempfile::tempdir().unwrap();
            crate::objects::$case(&crate::objects::local_objects(&folder.path().join("new/objects")).unwrap()).await;
        }
        #[tokio::test]
        async fn s3() {
            crate::objects::$case(&*crate::objects::fresh_s3()).await;
        }
    } )+ } };
}

on_every_object_store!(
    objects_round_trip_under_nested_keys,
    a_part_of_an_object_can_be_read,
    what_is_missing_is_not_found,
    a_deleted_object_is_gone,
    a_put_replaces,
    an_object_is_created_once,
    lists_are_under_a_prefix,
    puts_do_not_mix,
    a_large_object_comes_in_parts,
    an_aborted_upload_leaves_nothing,
);

/// Bytes that differ from place to place.
fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

async fn get(store: &dyn ObjectStore, key: &Key) -> Result<Vec<u8>, Error> {
    Ok(store.get(key).await?.bytes().await?.to_vec())
}

async fn list(store: &dyn ObjectStore, prefix: Option<&str>) -> Vec<(String, u64)> {
    let prefix = prefix.map(Key::from);
    let found: Vec<_> = store.list(prefix.as_ref()).try_collect().await.unwrap();
    let mut found: Vec<_> = found.into_iter().map(|object| (object.location.to_string(), object.size)).collect();
    found.sort();
    found
}

pub async fn objects_round_trip_under_nested_keys(store: &dyn ObjectStore) {
    for (key, content) in
        [("records/job_1/2", bytes(1, 100_000)), ("records/job_1/3", vec![]), ("a b+ü%2F=", bytes(2, 7))]
    {
        let key = Key::from(key);
        store.put(&key, PutPayload::from(content.clone())).await.unwrap();
        assert_eq!(store.head(&key).await.unwrap().size, content.len() as u64);
        assert_eq!(get(store, &key).await.unwrap(), content, "{key}");
    }
}

pub async fn a_part_of_an_object_can_be_read(store: &dyn ObjectStore) {
    let (key, content) = (Key::from("object"), bytes(3, 1000));
    store.put(&key, PutPayload::from(content.clone())).await.unwrap();
    for range in [0..1, 10..500, 999..1000, 0..1000] {
        let expected = &content[range.clone()];
        assert_eq!(store.get_range(&key, range.start as u64..range.end as u64).await.unwrap(), expected);
    }
    let parts = store.get_ranges(&key, &[5..6, 900..1000]).await.unwrap();
    assert_eq!((&parts[0][..], &parts[1][..]), (&content[5..6], &content[900..1000]));
    assert!(store.get_range(&key, 1000..1001).await.is_err());
}

pub async fn what_is_missing_is_not_found(store: &dyn ObjectStore) {
    store.put(&Key::from("there/object"), PutPayload::from_static(b"x")).await.unwrap();
    for key in ["none", "there/none"].map(Key::from) {
        assert!(matches!(get(store, &key).await, Err(Error::NotFound { .. })), "{key}");
        assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })), "{key}");
        assert!(matches!(store.get_range(&key, 0..1).await, Err(Error::NotFound { .. })), "{key}");
        // S3 does not say whether there was something.
        assert!(matches!(store.delete(&key).await, Ok(()) | Err(Error::NotFound { .. })), "{key}");
    }
    assert_eq!(list(store, Some("none")).await, []);
}

pub async fn a_deleted_object_is_gone(store: &dyn ObjectStore) {
    let (key, beside) = (Key::from("folder/a"), Key::from("folder/b"));
    for key in [&key, &beside] {
        store.put(key, PutPayload::from_static(b"x")).await.unwrap();
    }
    store.delete(&key).await.unwrap();
    assert!(matches!(get(store, &key).await, Err(Error::NotFound { .. })));
    assert_eq!(list(store, None).await, [("folder/b".to_owned(), 1)]);
    store.put(&key, PutPayload::from_static(b"again")).await.unwrap();
    assert_eq!(get(store, &key).await.unwrap(), b"again");
}

pub async fn a_put_replaces(store: &dyn ObjectStore) {
    let key = Key::from("object");
    for len in [10, 5000, 0, 3] {
        store.put(&key, PutPayload::from(bytes(len, len as usize))).await.unwrap();
        assert_eq!(get(store, &key).await.unwrap(), bytes(len, len as usize));
    }
    assert_eq!(list(store, None).await, [("object".to_owned(), 3)]);
}

pub async fn an_object_is_created_once(store: &dyn ObjectStore) {
    let key = Key::from("segments/1");
    let create = || PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    store.put_opts(&key, PutPayload::from_static(b"first"), create()).await.unwrap();
    let second = store.put_opts(&key, PutPayload::from_static(b"second"), create()).await;
    assert!(matches!(second, Err(Error::AlreadyExists { .. })), "{second:?}");
    assert_eq!(get(store, &key).await.unwrap(), b"first");
}

pub async fn lists_are_under_a_prefix(store: &dyn ObjectStore) {
    let keys = ["a/1", "a/b/2", "a/b/c/3", "ab/4", "z"];
    for (len, key) in (1..).zip(keys) {
        store.put(&Key::from(key), PutPayload::from(bytes(0, len))).await.unwrap();
    }
    let named = |lens: &[usize]| -> Vec<(String, u64)> {
        lens.iter().map(|len| (keys[len - 1].to_owned(), *len as u64)).collect()
    };
    assert_eq!(list(store, None).await, named(&[1, 2, 3, 4, 5]));
    assert_eq!(list(store, Some("a")).await, named(&[1, 2, 3]));
    assert_eq!(list(store, Some("a/b")).await, named(&[2, 3]));
    // A prefix is made of whole names, and an object is not under itself.
    assert_eq!(list(store, Some("a/b/")).await, named(&[2, 3]));
    assert_eq!(list(store, Some("z")).await, []);
}

pub async fn puts_do_not_mix(store: &dyn ObjectStore) {
    let content = |nth: u32| bytes(nth, 10_000 + nth as usize);
    let key = |nth: u32| Key::from(format!("parallel/{nth}"));
    let same = Key::from("same");
    join_all((0..32).map(|nth| {
        let same = &same;
        async move {
            store.put(&key(nth), PutPayload::from(content(nth))).await.unwrap();
            store.put(same, PutPayload::from(content(nth))).await.unwrap();
        }
    }))
    .await;
    for nth in 0..32 {
        assert_eq!(get(store, &key(nth)).await.unwrap(), content(nth));
    }
    let last = get(store, &same).await.unwrap();
    assert!((0..32).any(|nth| last == content(nth)), "one of them, whole");
    assert_eq!(list(store, None).await.len(), 33);
}

pub async fn a_large_object_comes_in_parts(store: &dyn ObjectStore) {
    let (key, content) = (Key::from("large/object"), bytes(9, 20 * MIB + 1));
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(&key).await.unwrap(), 5 * MIB);
    for piece in content.chunks(777_777) {
        upload.wait_for_capacity(2).await.unwrap();
        upload.write(piece);
    }
    assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })), "complete or not there");
    upload.finish().await.unwrap();
    assert_eq!(list(store, Some("large")).await, [("large/object".to_owned(), content.len() as u64)]);
    assert!(get(store, &key).await.unwrap() == content);
    let (from, to) = (15 * MIB - 3, 15 * MIB + 3);
    assert_eq!(store.get_range(&key, from as u64..to as u64).await.unwrap(), &content[from..to]);
}

pub async fn an_aborted_upload_leaves_nothing(store: &dyn ObjectStore) {
    let key = Key::from("large/aborted");
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(&key).await.unwrap(), 5 * MIB);
    upload.write(&bytes(1, 6 * MIB));
    upload.abort().await.unwrap();
    assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })));
    assert_eq!(list(store, None).await, []);
}

#[tokio::test]
async fn prefixes_are_apart() {
    let [a, b] = [fresh_s3(), fresh_s3()];
    let key = Key::from("object");
    a.put(&key, PutPayload::from_static(b"a")).await.unwrap();
    assert!(matches!(get(&*b, &key).await, Err(Error::NotFound { .. })));
    assert_eq!(list(&*b, None).await, []);
}

#[tokio::test]
async fn a_wrong_key_is_told_at_once() {
    let [endpoint, key] = ["ENDPOINT", "ACCESS_KEY"].map(|name| variable(&format!("PENSTOCK_TEST_S3_{name}")));
    let began = Instant::now();
    let object = Key::from("object");
    let wrong = s3(&variable("PENSTOCK_TEST_OBJECTS"), &endpoint, &key, "wrong");
    let refused = wrong.put(&object, PutPayload::from_static(b"x")).await.unwrap_err();
    assert!(matches!(refused, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_store_that_is_away_fails_in_time_and_works_again() {
    let mut service = Instance::start("s3", "away");
    let [endpoint, key, secret] =
        ["ENDPOINT", "ACCESS_KEY", "SECRET_KEY"].map(|name| service.url(&format!("PENSTOCK_TEST_S3_{name}")));
    let store = s3("s3://penstock/away", &endpoint, &key, &secret);
    let object = Key::from("object");
    store.put(&object, PutPayload::from_static(b"kept")).await.unwrap();
    service.kill();
    let began = Instant::now();
    let failed = store.get(&object).await.map(drop).unwrap_err();
    assert!(!matches!(failed, Error::NotFound { .. }), "away is not missing: {failed:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // A restart within the retries goes unnoticed.
    let (read, _service) = tokio::join!(get(&*store, &object), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let starts = move || {
            service.up();
            service
        };
        tokio::task::spawn_blocking(starts).await.unwrap()
    });
    assert_eq!(read.unwrap(), b"kept");
}

#[tokio::test]
async fn a_store_that_stays_silent_fails_in_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = s3("s3://penstock", &format!("http://{}", silent.local_addr().unwrap()), "key", "secret");
    let began = Instant::now();
    assert!(store.get(&Key::from("object")).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
