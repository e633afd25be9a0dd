//! Newtype ids and names: who, what, where.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identifies a job; a UUIDv7, so that ids sort by acceptance. Shown as `job_` and 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub Uuid);

impl JobId {
    /// A new id, later in order than all that this process made before.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for JobId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job_{}", self.0.simple())
    }
}

/// A text that is no id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadId {
    /// What was given, cut to 80 characters.
    pub text: String,
    /// What would have been right.
    pub expected: &'static str,
}

impl BadId {
    pub(crate) fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.chars().take(80).collect(), expected }
    }
}

/// The UUID of an id that begins with its kind.
pub(crate) fn tagged(text: &str, tag: &str) -> Option<Uuid> {
    text.strip_prefix(tag).filter(|digits| digits.len() == 32).and_then(|digits| Uuid::try_parse(digits).ok())
}

impl FromStr for JobId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        tagged(text, "job_").map(Self).ok_or_else(|| BadId::new(text, "a job id (`job_` and 32 hexadecimal digits)"))
    }
}

impl Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

name!(
    /// Who a job belongs to. Embedded mode without keys has one tenant, [`TenantId::LOCAL`].
    TenantId
);
name!(
    /// One worker process, unique per start: a restarted worker is another one, so its orphans never look alive.
    WorkerId
);
name!(
    /// SHA-256 (64 hexadecimal digits) of a release's manifest: names everything that changes an answer.
    Fingerprint
);

impl TenantId {
    /// The tenant of an embedded server that has no keys.
    pub const LOCAL: &'static str = "local";

    /// [`TenantId::LOCAL`] as an id.
    pub fn local() -> Self {
        Self::from(Self::LOCAL)
    }
}

impl WorkerId {
    /// A name that no other process start has had.
    pub fn unique() -> Self {
        Self(format!("worker_{}", Uuid::now_v7().simple()))
    }
}

impl Fingerprint {
    /// The first 12 digits: enough for queue names and for people.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

/// How urgent a job is: its own queue, weight, bound and default deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Somebody waits: default of the OpenAI routes. Deadline 120 s, 256 unfinished.
    Interactive,
    /// Default of native jobs. Deadline 1 h, 10,000 unfinished.
    Standard,
    /// Dataset lines. Deadline 24 h, 5,000,000 unfinished.
    Bulk,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Class; 3] = [Class::Interactive, Class::Standard, Class::Bulk];

    /// The word used in JSON, SQL, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Interactive => "interactive",
            Class::Standard => "standard",
            Class::Bulk => "bulk",
        }
    }

    /// Seconds from acceptance to the deadline when the request names none.
    pub fn default_deadline_seconds(self) -> u64 {
        match self {
            Class::Interactive => 120,
            Class::Standard => 3_600,
            Class::Bulk => 86_400,
        }
    }

    /// Unfinished jobs a release may have of this class unless configured otherwise.
    pub fn default_bound(self) -> u64 {
        match self {
            Class::Interactive => 256,
            Class::Standard => 10_000,
            Class::Bulk => 5_000_000,
        }
    }

    /// Share of the worker's starts while all classes wait: 8 to 3 to 1.
    pub fn weight(self) -> u32 {
        match self {
            Class::Interactive => 8,
            Class::Standard => 3,
            Class::Bulk => 1,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Class {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        Class::ALL
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or_else(|| BadId::new(text, "a class (`interactive`, `standard` or `bulk`)"))
    }
}

/// The queue of one release and class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueId {
    /// Which release serves it.
    pub release: Fingerprint,
    /// How urgent its jobs are.
    pub class: Class,
}

impl fmt::Display for QueueId {
    /// `penstock.<fingerprint12>.<class>`, the name a broker shows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "penstock.{}.{}", self.release.short(), self.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_round_trip_and_sort_by_age() {
        let (first, second) = (JobId::new(), JobId::new());
        assert!(first < second);
        assert_eq!(first.to_string().parse::<JobId>().unwrap(), first);
        for bad in ["", "job_", "job_xyz", "0193-", &first.0.to_string(), "job_0193f0c0d0e07000800000000000000"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn queue_names_carry_twelve_digits() {
        let queue = QueueId { release: Fingerprint("abcdef0123456789".into()), class: Class::Bulk };
        assert_eq!(queue.to_string(), "penstock.abcdef012345.bulk");
    }
}
