//! Settings that carry their unit in their name, read into types that carry it themselves.

/// `…_seconds`: whole seconds, read into a `Duration`.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// A day is more than any of these waits can mean.
    const MOST: u64 = 86_400;

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.as_secs())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        match u64::deserialize(deserializer)? {
            seconds @ ..=MOST => Ok(Duration::from_secs(seconds)),
            seconds => Err(D::Error::custom(format!("{seconds} seconds is more than a day ({MOST})"))),
        }
    }
}

/// `…_days`: whole days, read into a `Duration`.
pub mod days {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const DAY: u64 = 86_400;
    /// Ten years, as the longest time that a job can ask for.
    const MOST: u64 = 3_650;

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.as_secs() / DAY)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        match u64::deserialize(deserializer)? {
            days @ ..=MOST => Ok(Duration::from_secs(days * DAY)),
            days => Err(D::Error::custom(format!("{days} days is more than ten years ({MOST}); 0 is for ever"))),
        }
    }
}

/// `…_mib`: whole MiB, at least one, read into bytes.
pub mod mib {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const MIB: u64 = 1 << 20;
    /// 64 TiB: no machine has more, and the product still fits anything that counts bytes.
    const MOST: u64 = 1 << 26;

    pub fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(bytes / MIB)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        match u64::deserialize(deserializer)? {
            mib @ 1..=MOST => Ok(mib * MIB),
            mib => Err(D::Error::custom(format!("{mib} MiB is out of range: 1 to {MOST}"))),
        }
    }
}
