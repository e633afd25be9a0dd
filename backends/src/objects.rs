//! Large things in local files or in S3, behind the `object_store` crate's own trait.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as S3Key};
use object_store::client::ClientConfigKey;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

/// Pauses and most of the time that a call to S3 is repeated for. With what the last attempt may take, an S3 that is away
/// fails a call within ten seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const RETRY_FOR: Duration = Duration::from_secs(5);
/// So many that the time decides: pauses are random, and may be short.
const RETRIES: usize = 100;
/// What one attempt may take, unless `AWS_…` variables say otherwise: to connect, in silence, and in all.
const TIMEOUTS: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::ConnectTimeout, "2 seconds"),
    (ClientConfigKey::ReadTimeout, "4 seconds"),
    (ClientConfigKey::Timeout, "60 seconds"),
];

/// Longest look at a bucket at start.
const LOOK: Duration = Duration::from_secs(3);

/// The object store could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The folder is missing and could not be made.
    #[error("the folder {} for objects cannot be made", .path.display())]
    Make {
        /// Which folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The folder cannot be an object store.
    #[error("the folder {} cannot hold objects", .path.display())]
    Open {
        /// Which folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: object_store::Error,
    },
    /// The URL names no bucket.
    #[error("`{url}` is no url of a bucket: use `s3://bucket` or `s3://bucket/prefix`")]
    Url {
        /// What was given.
        url: String,
    },
    /// The endpoint is not encrypted, and nobody said that it may be so.
    #[error("the endpoint {endpoint} of S3 is not encrypted: use https, or set AWS_ALLOW_HTTP=true")]
    Plain {
        /// The endpoint.
        endpoint: String,
    },
    /// The endpoint answers that there is no such bucket.
    #[error("objects.url names a bucket that does not exist; make it, or name another")]
    NoBucket,
    /// The settings do not fit together.
    #[error("the bucket `{bucket}` cannot be used with these AWS_… variables")]
    S3 {
        /// The bucket.
        bucket: String,
        /// Why.
        #[source]
        source: object_store::Error,
    },
}

/// An object store in a folder, which is made if missing, as are the folders that keys ask for. An object is synced to
/// the disk before its `put` answers.
///
/// # Errors
/// [`ObjectsError`].
pub fn local_objects(folder: &Path) -> Result<LocalFileSystem, ObjectsError> {
    let failed = |source| ObjectsError::Make { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    LocalFileSystem::new_with_prefix(folder)
        .map(|store| store.with_fsync(true).with_automatic_cleanup(true))
        .map_err(|source| ObjectsError::Open { path: folder.to_owned(), source })
}

/// An object store in a bucket, `s3://bucket` or `s3://bucket/prefix`. Credentials, region and endpoint come from the
/// usual variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP` and
/// the rest of what the `object_store` crate knows. It is not asked for anything yet. Makes ring the process's TLS
/// provider unless there is one.
///
/// # Errors
/// [`ObjectsError`] when the URL or the variables make no sense.
pub fn s3_objects(url: &str) -> Result<Arc<dyn ObjectStore>, ObjectsError> {
    s3_objects_with(url, &[])
}

/// [`s3_objects`] with settings over those of the environment, named without `AWS_`, in lower case: `endpoint_url`,
/// `access_key_id`, `secret_access_key`, `region`, `allow_http` and so on.
///
/// # Errors
/// [`ObjectsError`]; also for a setting that there is not.
pub fn s3_objects_with(url: &str, settings: &[(&str, &str)]) -> Result<Arc<dyn ObjectStore>, ObjectsError> {
    let bad_url = || ObjectsError::Url { url: url.to_owned() };
    let place = url.strip_prefix("s3://").ok_or_else(bad_url)?;
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if bucket.is_empty() || !bucket.chars().all(plain) {
        return Err(bad_url());
    }
    let prefix = object_store::path::Path::parse(prefix).map_err(|_| bad_url())?;

    // The HTTP client wants the process to have one, also for endpoints without TLS. A second call changes nothing.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let failed = |source| ObjectsError::S3 { bucket: bucket.to_owned(), source };
    let mut builder = AmazonS3Builder::from_env();
    for (name, value) in settings {
        builder = builder.with_config(format!("aws_{name}").parse().map_err(failed)?, *value);
    }
    for (timeout, value) in TIMEOUTS {
        if builder.get_config_value(&S3Key::Client(timeout)).is_none() {
            builder = builder.with_config(S3Key::Client(timeout), value);
        }
    }
    let may_be_plain = builder.get_config_value(&S3Key::Client(ClientConfigKey::AllowHttp));
    if let Some(endpoint) = builder.get_config_value(&S3Key::Endpoint)
        && endpoint.starts_with("http:")
        && may_be_plain.is_none_or(|may| may == "false")
    {
        return Err(ObjectsError::Plain { endpoint });
    }
    let backoff = BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 };
    let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_FOR };
    let s3 = builder.with_bucket_name(bucket).with_retry(retry).build().map_err(failed)?;
    Ok(if prefix.as_ref().is_empty() { Arc::new(s3) } else { Arc::new(PrefixStore::new(s3, prefix)) })
}

/// Asks a bucket for one name, to see at start whether it can be used. One that is away or lets us not look is only
/// warned of: what needs it waits.
///
/// # Errors
/// [`ObjectsError::NoBucket`].
pub(crate) async fn look(objects: &dyn ObjectStore) -> Result<(), ObjectsError> {
    let look = async { objects.list(None).next().await };
    let trouble: Box<dyn std::error::Error> = match tokio::time::timeout(LOOK, look).await {
        Ok(None | Some(Ok(_))) => return Ok(()),
        // The client has no error of its own for this code of the protocol, and quotes the answer.
        Ok(Some(Err(err))) if err.to_string().contains("<Code>NoSuchBucket</Code>") => {
            return Err(ObjectsError::NoBucket);
        }
        Ok(Some(Err(err))) => err.into(),
        Err(_) => "it does not answer".into(),
    };
    tracing::warn!(
        error = &*trouble,
        "the object store of objects.url cannot be used now; large records wait for it, and nothing is archived"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_way_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        std::fs::write(&path, "in the way").unwrap();
        assert!(local_objects(&path).unwrap_err().to_string().contains(path.to_str().unwrap()));
    }

    #[test]
    fn urls_without_a_bucket_are_refused() {
        for url in
            ["", "s3:", "s3://", "s3:///prefix", "S3://bucket", "s3://user@bucket", "s3://bucket/a//b", "s3://b/.."]
        {
            assert!(matches!(s3_objects_with(url, &[]), Err(ObjectsError::Url { .. })), "{url}");
        }
        for url in ["s3://bucket", "s3://bucket/", "s3://my-bucket.2/a/b/"] {
            assert!(s3_objects_with(url, &[("region", "eu-west-1")]).is_ok(), "{url}");
        }
    }

    #[test]
    fn an_open_endpoint_must_be_allowed() {
        let open = [("endpoint_url", "http://127.0.0.1:9"), ("allow_http", "false")];
        assert!(matches!(s3_objects_with("s3://bucket", &open), Err(ObjectsError::Plain { .. })));
        assert!(s3_objects_with("s3://bucket", &[open[0], ("allow_http", "true")]).is_ok());
        assert!(matches!(s3_objects_with("s3://bucket", &[("no_such", "1")]), Err(ObjectsError::S3 { .. })));
    }
}
