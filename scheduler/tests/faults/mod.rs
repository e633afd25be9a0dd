//! An object store and a job store that fail when they are told to.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use contract::{
    Accepted, CancelAnswer, Filter, Job, JobError, JobId, JobState, JobStore, Lease, LeaseLost, Leased, NewJob,
    Outcome, Page, QueueId, Reaped, Refused, Resumed, SegmentPlace, Sequence, ServedModel, StoreError, TenantId,
    Unarchived, Usage, Wake, WorkerId,
};
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Local files that may be away, or keep an answer to themselves.
#[derive(Debug)]
pub struct Objects {
    inner: LocalFileSystem,
    pub is_up: AtomicBool,
    /// Calls that found it away.
    pub refused: AtomicUsize,
    /// One answer to a put is being held.
    pub is_holding: AtomicBool,
    gate: Arc<Semaphore>,
    to_hold: AtomicUsize,
}

impl Objects {
    pub fn new(inner: LocalFileSystem) -> Self {
        let gate = Arc::new(Semaphore::new(1));
        let (is_up, refused, is_holding) = (true.into(), 0.into(), false.into());
        Self { inner, is_up, refused, is_holding, gate, to_hold: 0.into() }
    }

    /// The next put is done, and answered only when what this gives is dropped.
    pub fn hold_after_put(&self) -> OwnedSemaphorePermit {
        self.to_hold.store(1, Ordering::SeqCst);
        self.gate.clone().try_acquire_owned().unwrap()
    }

    fn check(&self) -> Result<()> {
        if self.is_up.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(object_store::Error::Generic { store: "test", source: "it is away".into() })
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.check()?;
        let answer = self.inner.put_opts(at, payload, options).await;
        if self.to_hold.swap(0, Ordering::SeqCst) == 1 {
            self.is_holding.store(true, Ordering::SeqCst);
            let _opened = self.gate.acquire().await.unwrap();
        }
        answer
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.check()?;
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.check()?;
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A store whose first answer to [`JobStore::archived`] gets lost on its way back.
pub struct Unanswering {
    inner: Arc<dyn JobStore>,
    /// Times it was asked.
    pub asked: AtomicUsize,
}

impl Unanswering {
    pub fn new(inner: Arc<dyn JobStore>) -> Self {
        Self { inner, asked: 0.into() }
    }
}

type Answer<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl JobStore for Unanswering {
    async fn archived(&self, places: &[(JobId, SegmentPlace)]) -> Answer<Vec<bool>> {
        let answer = self.inner.archived(places).await;
        match self.asked.fetch_add(1, Ordering::SeqCst) {
            0 => Err(StoreError::Unanswered("cut".into())),
            _ => answer,
        }
    }

    async fn accept(&self, jobs: &[NewJob]) -> Answer<Vec<std::result::Result<Accepted, Refused>>> {
        self.inner.accept(jobs).await
    }
    async fn accept_all(&self, jobs: &[NewJob]) -> Answer<std::result::Result<Vec<Accepted>, (usize, Refused)>> {
        self.inner.accept_all(jobs).await
    }
    async fn due(&self, queue: &QueueId, limit: u32) -> Answer<Vec<Wake>> {
        self.inner.due(queue, limit).await
    }
    async fn wake_now(&self, jobs: &[JobId]) -> Answer<()> {
        self.inner.wake_now(jobs).await
    }
    async fn queued(&self, queue: &QueueId) -> Answer<u64> {
        self.inner.queued(queue).await
    }
    async fn queues(&self) -> Answer<Vec<QueueId>> {
        self.inner.queues().await
    }
    async fn lease(&self, wakes: &[Wake], worker: &WorkerId, ttl: Duration) -> Answer<Vec<Option<Leased>>> {
        self.inner.lease(wakes, worker, ttl).await
    }
    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Answer<Vec<Lease>> {
        self.inner.renew(leases, ttl).await
    }
    async fn finish(&self, finished: &[(Lease, Outcome)]) -> Answer<Vec<std::result::Result<(), LeaseLost>>> {
        self.inner.finish(finished).await
    }
    async fn retry(&self, lease: &Lease, error: &JobError) -> Answer<std::result::Result<JobState, LeaseLost>> {
        self.inner.retry(lease, error).await
    }
    async fn hand_back(&self, leases: &[Lease], delay: Duration) -> Answer<()> {
        self.inner.hand_back(leases, delay).await
    }
    async fn cancel(&self, tenant: &TenantId, job: &JobId) -> Answer<CancelAnswer> {
        self.inner.cancel(tenant, job).await
    }
    async fn reap(&self, limit: u32) -> Answer<Reaped> {
        self.inner.reap(limit).await
    }
    async fn usage(&self, lease: &Lease, usage: Usage) -> Answer<()> {
        self.inner.usage(lease, usage).await
    }
    async fn get(&self, tenant: &TenantId, job: &JobId) -> Answer<Option<Job>> {
        self.inner.get(tenant, job).await
    }
    async fn list(&self, tenant: &TenantId, filter: &Filter) -> Answer<Page> {
        self.inner.list(tenant, filter).await
    }
    async fn lead(&self, name: &str, holder: &WorkerId, ttl: Duration) -> Answer<bool> {
        self.inner.lead(name, holder, ttl).await
    }
    async fn unarchived(&self, limit: u32) -> Answer<Vec<Unarchived>> {
        self.inner.unarchived(limit).await
    }
    async fn blocked_sequences(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Answer<(Vec<Sequence>, bool)> {
        self.inner.blocked_sequences(tenant, after, limit).await
    }
    async fn sequence(&self, tenant: &TenantId, key: &str) -> Answer<Option<Sequence>> {
        self.inner.sequence(tenant, key).await
    }
    async fn resume_sequence(&self, tenant: &TenantId, key: &str) -> Answer<Option<Resumed>> {
        self.inner.resume_sequence(tenant, key).await
    }
    async fn offer(&self, model: &ServedModel) -> Answer<()> {
        self.inner.offer(model).await
    }
    async fn offered(&self) -> Answer<Vec<ServedModel>> {
        self.inner.offered().await
    }
}
