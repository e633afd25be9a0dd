//! What the cases are written with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use contract::{
    Accepted, AdminStore, Class, Fingerprint, IdempotencyKey, Input, Job, JobId, JobState, JobStore, Lease, Leased,
    Message, NewJob, Outcome, QueueId, RecordLocation, Request, Role, Sampling, TenantId, Usage, Wake, WorkerId,
};

/// A store in the hands of a test: its clock stands still until the test moves it.
#[async_trait]
pub trait StoreUnderTest: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn JobStore>;
    /// The same one by its other port.
    fn admin(&self) -> Arc<dyn AdminStore>;
    /// Lets time pass.
    async fn advance(&self, by: Duration);
    /// Opens it anew, as after a kill: nothing is ended or cleaned up.
    async fn reopen(&mut self);
    /// The counters that are not zero.
    async fn counters(&self) -> BTreeMap<String, i64>;
    /// The events of a job: kind, state, attempt.
    async fn events(&self, job: JobId) -> Vec<(String, String, u32)>;
    /// Everything in its tables as text; bytes as hexadecimal digits.
    async fn dump(&self) -> String;
    /// Runs statements behind the store's back: those of the adapter under test.
    async fn damage(&self, sqlite: &'static str, postgres: &'static str);
}

pub const TTL: Duration = Duration::from_secs(15);
pub const DEADLINE: Duration = Duration::from_secs(3_600);

pub fn tenant() -> TenantId {
    TenantId::from("acme")
}

pub fn worker(name: &str) -> WorkerId {
    WorkerId::from(name)
}

pub fn release() -> Fingerprint {
    Fingerprint("ab".repeat(32))
}

pub fn queue() -> QueueId {
    QueueId { release: release(), class: Class::Standard }
}

pub fn job() -> NewJob {
    NewJob {
        id: JobId::new(),
        tenant: tenant(),
        release: release(),
        route: "small".into(),
        class: Class::Standard,
        bound: 10_000,
        tenant_bound: None,
        delay: Duration::ZERO,
        deadline_in: DEADLINE,
        seed: 7,
        request: Request {
            model: "small".into(),
            input: Input::Chat(vec![Message::of(Role::User, "Grüße \u{1f600}")]),
            sampling: Sampling::default(),
            max_tokens: Some(16),
            min_tokens: 0,
            ignore_eos: false,
            stop: vec!["\n\n".into()],
            include_stop: true,
            stop_token_ids: vec![],
            logprobs: Some(2),
            constraint: None,
            tools: None,
        },
        metadata: BTreeMap::new(),
        batch_line: None,
        custom_id: None,
        webhook: None,
        sequence_key: None,
        on_failure: contract::OnFailure::Skip,
        traceparent: None,
        idempotency: None,
        published_by_caller: false,
        trajectory: contract::TrajectoryMode::Full,
        keep: None,
    }
}

pub fn job_of(tenant: &str) -> NewJob {
    NewJob { tenant: TenantId::from(tenant), ..job() }
}

pub fn in_sequence(key: &str) -> NewJob {
    NewJob { sequence_key: Some(key.into()), ..job() }
}

pub fn with_key(key: &str, body: u8) -> NewJob {
    NewJob { idempotency: Some(IdempotencyKey { key: key.into(), body_hash: [body; 32] }), ..job() }
}

pub fn usage(output_tokens: u32) -> Usage {
    Usage { prompt_tokens: 10, cached_tokens: 0, output_tokens }
}

pub fn success() -> Outcome {
    Outcome::Succeeded { record: RecordLocation::Inline(vec![1, 2, 3]), usage: usage(5), first_token_ms: Some(40) }
}

/// Accepts one job that must be accepted.
pub async fn accept(store: &dyn JobStore, job: NewJob) -> Accepted {
    store.accept(&[job]).await.unwrap().remove(0).unwrap()
}

/// Accepts one job and leases it.
pub async fn running(store: &dyn JobStore, name: &str) -> Lease {
    let accepted = accept(store, job()).await;
    lease(store, accepted.job, 0, name).await.unwrap().lease
}

/// Tries to lease a job at an attempt.
pub async fn lease(store: &dyn JobStore, job: JobId, attempt: u32, name: &str) -> Option<Leased> {
    store.lease(&[Wake { job, attempt }], &worker(name), TTL).await.unwrap().remove(0)
}

pub async fn finish(store: &dyn JobStore, lease: Lease, outcome: Outcome) -> bool {
    store.finish(&[(lease, outcome)]).await.unwrap().remove(0).is_ok()
}

pub async fn get(store: &dyn JobStore, job: JobId) -> Job {
    store.get(&tenant(), &job).await.unwrap().unwrap()
}

pub async fn state(store: &dyn JobStore, job: JobId) -> JobState {
    get(store, job).await.state
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
