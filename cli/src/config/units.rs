//! Settings that are read into types that carry more than they are written with: their unit, or that they were checked.

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

/// `…_ms`: whole milliseconds, read into a `Duration`.
pub mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// A minute is more than any of these waits can mean.
    const MOST: u64 = 60_000;

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        match u64::deserialize(deserializer)? {
            millis @ ..=MOST => Ok(Duration::from_millis(millis)),
            millis => Err(D::Error::custom(format!("{millis} milliseconds is more than a minute ({MOST})"))),
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

/// Lists of tenants' names, read into groups that make sense.
pub mod tenant_groups {
    use contract::TenantId;
    use gpu_worker::TenantGroups;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(groups: &TenantGroups, serializer: S) -> Result<S::Ok, S::Error> {
        groups.as_lists().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TenantGroups, D::Error> {
        TenantGroups::new(Vec::<Vec<TenantId>>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::PathBuf;

    use crate::config::{ConfigError, Flags, Loaded, load_from};

    fn load(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        load_from(Some((PathBuf::from("some.toml"), text.to_owned())), variables, Flags::default())
    }

    #[test]
    fn tenants_that_share_the_cache_are_in_one_group_each() {
        let text = "[engine]\nprefix_cache = false\nshared_cache_groups = [[\"acme\", \"beta\"], [\"c\", \"d\"]]\n";
        let engine = load(text, &[]).unwrap().config.engine;
        let names: Vec<Vec<&str>> = engine
            .shared_cache_groups
            .as_lists()
            .iter()
            .map(|tenants| tenants.iter().map(|tenant| tenant.as_str()).collect())
            .collect();
        assert_eq!((engine.prefix_cache, names), (false, vec![vec!["acme", "beta"], vec!["c", "d"]]));
        let variables = [("PENSTOCK_ENGINE__SHARED_CACHE_GROUPS", "[['acme', 'beta']]")];
        let engine = load("", &variables).unwrap().config.engine;
        assert_eq!(engine.shared_cache_groups.as_lists().len(), 1);
        for (groups, says) in [
            ("[[\"acme\", \"beta\"], [\"acme\", \"c\"]]", "tenant `acme` is named twice"),
            ("[[\"acme\"]]", "a group names at least two tenants"),
            ("[\"acme\", \"beta\"]", "expected a sequence"),
        ] {
            let message = load(&format!("[engine]\nshared_cache_groups = {groups}"), &[]).unwrap_err().to_string();
            let setting = "setting engine.shared_cache_groups (file some.toml): ";
            assert!(message.starts_with(setting) && message.contains(says), "{groups}: {message}");
        }
    }
}
