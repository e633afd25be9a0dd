//! A wake-up as the broker carries it: JSON `{"v":1,"job":"job_…","attempt":0}`, persistent, with
//! `message_id = job:attempt`.

use contract::{JobId, Wake};
use lapin::BasicProperties;
use serde::{Deserialize, Serialize};

/// The version this build writes, and the only one it reads.
const VERSION: u32 = 1;
/// Most bytes of a message. Ours are under 100; what is longer was not written by us.
const MOST_BYTES: usize = 4_096;
/// The broker keeps it over a restart.
const PERSISTENT: u8 = 2;

#[derive(Serialize, Deserialize)]
struct Body {
    v: u32,
    job: JobId,
    attempt: u32,
}

/// Only the version, which is asked first: the rest of a newer message may look different.
#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

/// A message that is no wake-up this build knows.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it has {0} bytes; wake-ups have at most {MOST_BYTES}")]
    TooLong(usize),
    #[error("its version is {0}; this build reads version {VERSION}")]
    Version(u32),
    #[error("it is not the JSON of a wake-up")]
    Json(#[from] serde_json::Error),
}

/// The bytes and properties of a wake-up.
pub(super) fn encode(wake: &Wake) -> (Vec<u8>, BasicProperties) {
    let body = Body { v: VERSION, job: wake.job, attempt: wake.attempt };
    let bytes = serde_json::to_vec(&body).expect("a struct of numbers and an id is JSON");
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT)
        .with_message_id(format!("{}:{}", wake.job, wake.attempt).into());
    (bytes, properties)
}

/// The wake-up of a delivered message.
pub(super) fn decode(bytes: &[u8]) -> Result<Wake, Unreadable> {
    if bytes.len() > MOST_BYTES {
        return Err(Unreadable::TooLong(bytes.len()));
    }
    let Versioned { v } = serde_json::from_slice(bytes)?;
    if v != VERSION {
        return Err(Unreadable::Version(v));
    }
    let Body { job, attempt, .. } = serde_json::from_slice(bytes)?;
    Ok(Wake { job, attempt })
}

/// The wake-up that a returned message's own id names.
pub(super) fn named_by(properties: &BasicProperties) -> Option<Wake> {
    let (job, attempt) = properties.message_id().as_ref()?.as_str().rsplit_once(':')?;
    Some(Wake { job: job.parse().ok()?, attempt: attempt.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "job_0193f0c0d0e07000800000000000abcd";

    #[test]
    fn a_wake_up_has_one_spelling() {
        let wake = Wake { job: JOB.parse().unwrap(), attempt: 7 };
        let (bytes, properties) = encode(&wake);
        assert_eq!(String::from_utf8(bytes.clone()).unwrap(), format!(r#"{{"v":1,"job":"{JOB}","attempt":7}}"#));
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), format!("{JOB}:7"));
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(decode(&bytes).unwrap(), wake);
        assert_eq!(named_by(&properties), Some(wake));
    }

    #[test]
    fn newer_fields_of_the_same_version_are_passed_over() {
        let text = format!(r#"{{"attempt":1,"job":"{JOB}","v":1,"hint":"x"}}"#);
        assert_eq!(decode(text.as_bytes()).unwrap(), Wake { job: JOB.parse().unwrap(), attempt: 1 });
    }

    #[test]
    fn what_is_no_wake_up_is_refused() {
        let other_version = format!(r#"{{"v":2,"work":"{JOB}"}}"#);
        assert!(matches!(decode(other_version.as_bytes()), Err(Unreadable::Version(2))));
        let long = format!(r#"{{"v":1,"job":"{JOB}","attempt":1,"pad":"{}"}}"#, "x".repeat(MOST_BYTES));
        assert!(matches!(decode(long.as_bytes()), Err(Unreadable::TooLong(_))));
        for bad in [
            "",
            "null",
            "{}",
            "[1]",
            "{\"v\":1}",
            "\u{0}",
            r#"{"v":1,"job":"job_1","attempt":1}"#,
            &format!(r#"{{"v":1,"job":"{JOB}"}}"#),
            &format!(r#"{{"v":1,"job":"{JOB}","attempt":-1}}"#),
            &format!(r#"{{"v":1,"job":"{JOB}","attempt":4294967296}}"#),
            &format!(r#"{{"v":1,"job":"{JOB}","attempt":1}}x"#),
        ] {
            assert!(matches!(decode(bad.as_bytes()), Err(Unreadable::Json(_))), "{bad}");
        }
        assert!(matches!(decode(&[0xff, 0xfe]), Err(Unreadable::Json(_))));
    }

    #[test]
    fn an_id_that_names_no_wake_up_names_none() {
        for id in ["", ":", "job_1:1", JOB, &format!("{JOB}:"), &format!("{JOB}:x")] {
            let properties = BasicProperties::default().with_message_id(id.into());
            assert_eq!(named_by(&properties), None, "{id}");
        }
        assert_eq!(named_by(&BasicProperties::default()), None);
    }
}
