//! `backends::open`.

use std::path::Path;

use backends::{BackendUrls, OpenError, open};
use contract::JobState;

use crate::help::*;

fn urls(folder: &Path) -> BackendUrls {
    BackendUrls {
        store: format!("sqlite://{}/data/jobs.db", folder.display()),
        queue: "memory:".into(),
        queue_limit: 256,
        queue_prefix: "penstock".into(),
        bus: "memory:".into(),
        bus_prefix: "penstock".into(),
        objects: format!("file://{}/data/objects", folder.display()),
    }
}

#[tokio::test]
async fn a_data_folder_has_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&urls(folder.path())).await.unwrap();
    let err = open(&urls(folder.path())).await.unwrap_err();
    assert!(matches!(err, OpenError::Locked { .. }), "{err}");
    let text = err.to_string();
    assert!(text.contains(folder.path().join("data").to_str().unwrap()) && text.contains("stop that one"), "{text}");
    drop(first);
    open(&urls(folder.path())).await.unwrap();
}

#[tokio::test]
async fn opening_takes_over_what_the_last_process_ran() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&urls(folder.path())).await.unwrap();
    let held = running(&*first.store, "w").await;
    drop(first);
    let second = open(&urls(folder.path())).await.unwrap();
    let shown = get(&*second.store, held.job).await;
    assert_eq!((shown.state, shown.losses), (JobState::Queued, 1));
    assert_eq!(second.store.due(&queue(), 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_no_adapter_serves_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let base = urls(folder.path());
    let cases = [
        (BackendUrls { store: "mysql://u:secret@h/db".into(), ..base.clone() }, "store", "mysql"),
        (BackendUrls { queue: "kafka://u:secret@h".into(), ..base.clone() }, "queue", "kafka"),
        (BackendUrls { queue: "memory:x".into(), ..base.clone() }, "queue", "memory"),
        (BackendUrls { bus: "nats://secret@h".into(), ..base.clone() }, "bus", "nats"),
        (BackendUrls { objects: "gs://bucket".into(), ..base.clone() }, "objects", "gs"),
    ];
    for (urls, setting, scheme) in cases {
        let text = open(&urls).await.unwrap_err().to_string();
        assert!(text.contains(setting) && text.contains(scheme) && text.contains("use "), "{text}");
        assert!(!text.contains("secret") && !format!("{urls:?}").contains("secret"), "{text}");
    }
    for store in ["sqlite:jobs.db", "sqlite://jobs.db", "sqlite:///", "sqlite://"] {
        let err = open(&BackendUrls { store: store.into(), ..base.clone() }).await.unwrap_err();
        assert!(matches!(err, OpenError::Path { setting: "store", .. }), "{store}: {err}");
    }
}
