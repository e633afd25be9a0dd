//! Which tenants share blocks of the cache: each only with itself, and those of a group that the settings name with one
//! another.

use std::collections::{HashMap, HashSet};
use std::fmt;

use contract::TenantId;
use sha2::{Digest, Sha256};

use crate::engine::prefix::CacheScope;

/// How beginnings of prompts are shared between requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrefixCache {
    /// Not at all: every prompt is computed as a whole.
    Off,
    /// Within each tenant, and within these groups of tenants.
    On(TenantGroups),
}

/// Tenants that find one another's blocks. A tenant is in one group at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantGroups(Vec<Vec<TenantId>>);

/// Why groups cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// With whom it shares would depend on which group is looked at.
    #[error("tenant `{0}` is named twice, and a tenant is in one group at most")]
    NamedTwice(TenantId),
    /// It would share with nobody.
    #[error("a group names at least two tenants, and one names {0}")]
    TooSmall(usize),
}

impl TenantGroups {
    /// Takes the groups as they are configured.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn new(groups: Vec<Vec<TenantId>>) -> Result<Self, GroupError> {
        let mut named = HashSet::new();
        for tenants in &groups {
            if tenants.len() < 2 {
                return Err(GroupError::TooSmall(tenants.len()));
            }
            if let Some(twice) = tenants.iter().find(|tenant| !named.insert(*tenant)) {
                return Err(GroupError::NamedTwice(twice.clone()));
            }
        }
        Ok(Self(groups))
    }

    /// The groups as they were given.
    pub fn as_lists(&self) -> &[Vec<TenantId>] {
        &self.0
    }
}

/// The scope of each tenant in one worker.
#[derive(Debug)]
pub struct CacheScopes {
    secret: Secret,
    /// Numbers of the groups.
    groups: HashMap<TenantId, u64>,
}

/// Drawn anew at every start, so that nobody can work out by what another's blocks are known.
struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl CacheScopes {
    /// Scopes under a new secret; `None` where nothing is shared.
    ///
    /// # Errors
    /// The system has no randomness to give: a key could be guessed.
    pub fn new(cache: &PrefixCache) -> Result<Option<Self>, getrandom::Error> {
        let PrefixCache::On(TenantGroups(groups)) = cache else { return Ok(None) };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        let numbered = (0..).zip(groups);
        let groups = numbered.flat_map(|(nth, tenants)| tenants.iter().map(move |tenant| (tenant.clone(), nth)));
        Ok(Some(Self { secret: Secret(secret), groups: groups.collect() }))
    }

    /// With whom a tenant's sequences share.
    pub fn of(&self, tenant: &TenantId) -> CacheScope {
        let hash = Sha256::new_with_prefix(self.secret.0);
        // The first byte keeps a tenant from having the scope of a group, whatever its name is.
        let key = match self.groups.get(tenant) {
            Some(group) => hash.chain_update([1]).chain_update(group.to_le_bytes()),
            None => hash.chain_update([0]).chain_update(tenant.as_str()),
        };
        CacheScope::from_key(key.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(names: &[&[&str]]) -> Result<TenantGroups, GroupError> {
        let tenants = |names: &&[&str]| names.iter().map(|name| TenantId::from(*name)).collect();
        TenantGroups::new(names.iter().map(tenants).collect())
    }

    #[test]
    fn a_tenant_has_its_own_scope_and_those_of_a_group_have_one() {
        let cache = PrefixCache::On(groups(&[&["acme", "beta"], &["carl", "dora"]]).unwrap());
        let scopes = CacheScopes::new(&cache).unwrap().unwrap();
        let of = |name: &str| scopes.of(&TenantId::from(name));
        assert_eq!(of("acme"), of("beta"));
        assert_eq!(of("carl"), of("dora"));
        assert_eq!(of("eve"), of("eve"));
        let distinct: HashSet<_> = ["acme", "carl", "eve", "fred", "local", ""].map(of).into();
        assert_eq!(distinct.len(), 6);
        // Also not by a name that is made of a group's bytes.
        assert_ne!(of("\0\0\0\0\0\0\0\0"), of("acme"));
        assert!(!format!("{scopes:?}").contains("Secret(["), "the secret is not printed");
    }

    #[test]
    fn another_start_has_other_scopes_and_off_has_none() {
        let cache = PrefixCache::On(TenantGroups::default());
        let scope = || CacheScopes::new(&cache).unwrap().unwrap().of(&TenantId::local());
        assert_ne!(scope(), scope());
        assert!(CacheScopes::new(&PrefixCache::Off).unwrap().is_none());
    }

    #[test]
    fn groups_that_make_no_sense_are_refused_with_the_name() {
        let twice = groups(&[&["acme", "beta"], &["gamma", "acme"]]).unwrap_err().to_string();
        assert!(twice.contains("`acme` is named twice"), "{twice}");
        assert!(matches!(groups(&[&["acme", "acme"]]), Err(GroupError::NamedTwice(_))));
        assert!(matches!(groups(&[&["acme"]]), Err(GroupError::TooSmall(1))));
        assert!(matches!(groups(&[&[]]), Err(GroupError::TooSmall(0))));
        assert_eq!(groups(&[&["a", "b"], &["c", "d"]]).unwrap().as_lists().len(), 2);
    }
}
