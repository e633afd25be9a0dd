//! API keys.

use std::time::Duration;

use contract::{KeyId, KeyText, NewKey, Scope, TenantId, Timestamp};
use uuid::Uuid;

use crate::help::*;

fn new_key(tenant: &str, nth: u8) -> (NewKey, KeyText) {
    let text = KeyText::new([nth; 30]);
    let key = NewKey {
        id: KeyId(Uuid::now_v7()),
        tenant: TenantId::from(tenant),
        name: "null \0 and ü".into(),
        prefix: text.prefix().to_owned(),
        hash: text.hash(),
        scopes: [Scope::Submit, Scope::Read].into(),
        expires_in: None,
    };
    (key, text)
}

pub async fn a_key_is_found_by_its_prefix(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    let (new, text) = new_key("acme", 7);
    let kept = admin.add_key(&new).await.unwrap();
    let found = admin.find_key(text.prefix()).await.unwrap().unwrap();
    assert_eq!((&found.key, found.hash), (&kept, text.hash()));
    assert_eq!((kept.id, kept.tenant, kept.name, kept.scopes), (new.id, new.tenant, new.name, new.scopes));
    assert_eq!((kept.created_at, kept.expires_at, kept.revoked_at), (found.now, None, None));
    assert_eq!(admin.find_key("000000000000").await.unwrap(), None);
    t.reopen().await;
    assert!(t.admin().find_key(text.prefix()).await.unwrap().is_some());
}

pub async fn an_installation_knows_whether_it_ever_had_a_key(t: &mut dyn StoreUnderTest) {
    assert!(!t.admin().has_keys().await.unwrap());
    let key = t.admin().add_key(&new_key("acme", 1).0).await.unwrap();
    assert!(t.admin().has_keys().await.unwrap());
    t.admin().revoke_key(&key.id).await.unwrap();
    assert!(t.admin().has_keys().await.unwrap(), "revoked ones count: nothing opens again by itself");
}

pub async fn a_key_ends_at_its_time(t: &mut dyn StoreUnderTest) {
    let (new, text) = new_key("acme", 1);
    let kept = t.admin().add_key(&NewKey { expires_in: Some(secs(60)), ..new }).await.unwrap();
    assert_eq!(kept.expires_at, Some(Timestamp(kept.created_at.0 + 60_000)));
    t.advance(Duration::from_millis(59_999)).await;
    let found = t.admin().find_key(text.prefix()).await.unwrap().unwrap();
    assert!(found.key.is_good(found.now));
    t.advance(Duration::from_millis(1)).await;
    let found = t.admin().find_key(text.prefix()).await.unwrap().unwrap();
    assert!(!found.key.is_good(found.now));
}

pub async fn the_first_revocation_counts(t: &mut dyn StoreUnderTest) {
    let (new, text) = new_key("acme", 1);
    let kept = t.admin().add_key(&new).await.unwrap();
    t.advance(secs(5)).await;
    let revoked = t.admin().revoke_key(&kept.id).await.unwrap().unwrap();
    assert_eq!(revoked.revoked_at, Some(Timestamp(kept.created_at.0 + 5_000)));
    t.advance(secs(5)).await;
    assert_eq!(t.admin().revoke_key(&kept.id).await.unwrap().unwrap(), revoked);
    assert_eq!(t.admin().find_key(text.prefix()).await.unwrap().unwrap().key, revoked);
    assert_eq!(t.admin().revoke_key(&KeyId(Uuid::now_v7())).await.unwrap(), None);
}

pub async fn keys_are_listed_by_tenant_newest_first(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    let mut kept = Vec::new();
    for (nth, tenant) in (1..).zip(["acme", "globex", "acme"]) {
        kept.push(admin.add_key(&new_key(tenant, nth).0).await.unwrap());
    }
    let [first, other, second] = kept.try_into().unwrap();
    assert_eq!(admin.keys(Some(&tenant())).await.unwrap(), [second.clone(), first.clone()]);
    assert_eq!(admin.keys(None).await.unwrap(), [second, other, first]);
    assert_eq!(admin.keys(Some(&TenantId::from("nobody"))).await.unwrap(), []);
}

pub async fn a_prefix_is_of_one_key(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    let (new, text) = new_key("acme", 1);
    admin.add_key(&new).await.unwrap();
    assert!(
        admin.add_key(&NewKey { id: KeyId(Uuid::now_v7()), tenant: TenantId::from("globex"), ..new }).await.is_err()
    );
    assert_eq!(admin.find_key(text.prefix()).await.unwrap().unwrap().key.tenant, tenant());
}
