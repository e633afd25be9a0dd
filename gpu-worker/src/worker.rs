//! The worker's whole: puller → prepare → engine → pump → committer, with the heartbeat beside them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contract::{Bus, JobEvent, JobEventBody, JobStore, Lease, Queue, WorkerId};
use object_store::ObjectStore;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::collect::{Collected, Running};
use crate::commit::{Committer, Finished};
use crate::engine::fault::FaultPoint;
use crate::engine::planner::Limits;
use crate::engine::{self, Command, EngineStatus};
use crate::grammar::Grammars;
use crate::heartbeat::{Beating, Heartbeat, Identity, OpenBeatPorts};
use crate::live::Live;
use crate::prepare::Preparer;
use crate::puller::{Puller, Start};
use crate::pump::{Collecting, EventBuffer, Pump};
use crate::release::LoadedRelease;
use crate::scopes::{CacheScopes, PrefixCache};
use crate::stage::Stager;

/// The ports a worker needs.
#[derive(Clone)]
pub struct Deps {
    /// Where jobs are leased and finished.
    pub store: Arc<dyn JobStore>,
    /// Where wake-ups are.
    pub queue: Arc<dyn Queue>,
    /// Where tokens and signals go.
    pub bus: Arc<dyn Bus>,
    /// Where large records are staged.
    pub objects: Arc<dyn ObjectStore>,
}

/// How a worker runs.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Sequences and tokens the engine takes at once.
    pub limits: Limits,
    /// Which requests share beginnings of prompts.
    pub prefix_cache: PrefixCache,
    /// Life of a lease; renewed at a third of it.
    pub lease_ttl: Duration,
    /// At the end: how long running jobs may take to finish before they are handed back.
    pub drain_grace: Duration,
    /// Requests rendered and tokenised at once.
    pub preparing: usize,
}

/// Why a worker ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A thread could not be started.
    #[error("the worker could not start a thread")]
    Thread(#[source] std::io::Error),
    /// Without it tenants could guess what others sent.
    #[error("the system has no randomness for the keys of the prefix cache")]
    NoRandomness(#[source] getrandom::Error),
    /// The engine's thread is gone: its jobs are leased elsewhere once their leases end.
    #[error("the engine has died")]
    EngineDied,
    /// A part of the worker ended before it should; the worker is no use without it.
    #[error("the worker's {0} has died")]
    Ended(&'static str),
}

/// Runs a worker until `shutdown`; then drains: takes nothing more, lets running jobs finish within the grace period, and
/// hands the rest back without spending an attempt. `on_ready` is called once, when the engine takes jobs.
/// `beat` opens the store and the bus of the heartbeat.
///
/// # Errors
/// [`WorkerError`]; the process should end then, so that somebody starts it anew.
pub async fn run(
    deps: Deps,
    beat: OpenBeatPorts,
    release: LoadedRelease,
    config: WorkerConfig,
    on_ready: impl FnOnce(Arc<EngineStatus>),
    shutdown: impl Future<Output = ()>,
) -> Result<(), WorkerError> {
    let worker = WorkerId::unique();
    let LoadedRelease { served, tokenizer, prompts, forward, cache_tokens } = release;
    let scopes = CacheScopes::new(&config.prefix_cache).map_err(WorkerError::NoRandomness)?;
    let preparer = Preparer {
        prompts,
        grammars: Arc::new(Grammars::new(Arc::clone(&tokenizer))),
        scopes: scopes.map(Arc::new),
        tokenizer: Arc::clone(&tokenizer),
        context_tokens: forward.context_tokens(),
        vocab_size: forward.vocab_size(),
        cache_tokens,
    };
    let mut engine = engine::spawn(forward, config.limits, FaultPoint::from_env()).map_err(WorkerError::Thread)?;
    let outputs = std::mem::replace(&mut engine.outputs, mpsc::channel(1).1);
    let live = Arc::new(Live::default());
    let events = Arc::new(EventBuffer::default());
    let collecting: Collecting = Arc::new(Mutex::new(HashMap::new()));
    let room = Arc::new(Notify::new());
    let (draining, is_draining) = watch::channel(false);
    let (starts, to_start) = mpsc::channel(config.limits.max_sequences.max(1));
    let (finished, to_commit) = mpsc::unbounded_channel();
    let finished_again = finished.downgrade();

    let heartbeat = Heartbeat {
        open: beat,
        live: Arc::clone(&live),
        status: Arc::clone(&engine.status),
        identity: Identity {
            id: worker.clone(),
            release: served.release.clone(),
            model: served.name.clone(),
            capacity: config.limits.max_sequences as u32,
        },
        lease_ttl: config.lease_ttl,
        draining: is_draining.clone(),
    };
    let beating = heartbeat.start().map_err(WorkerError::Thread)?;
    let puller = Puller {
        worker: worker.clone(),
        release: served.release.clone(),
        store: Arc::clone(&deps.store),
        queue: Arc::clone(&deps.queue),
        bus: Arc::clone(&deps.bus),
        live: Arc::clone(&live),
        status: Arc::clone(&engine.status),
        room: Arc::clone(&room),
        capacity: config.limits.max_sequences,
        lease_ttl: config.lease_ttl,
        starts,
        draining: is_draining,
    };
    let starter = Starter {
        to_start,
        preparer,
        commands: engine.commands.clone(),
        collecting: Arc::clone(&collecting),
        events: Arc::clone(&events),
        finished: finished.clone(),
        permits: Arc::new(Semaphore::new(config.preparing.max(1))),
        rule_permits: Arc::new(Semaphore::new(config.preparing.max(1))),
        live: Arc::clone(&live),
        room: Arc::clone(&room),
    };
    let pump =
        Pump { outputs, collecting, tokenizer, events: Arc::clone(&events), finished, live: Arc::clone(&live), room };
    let committer = Committer {
        finished: to_commit,
        store: Arc::clone(&deps.store),
        stager: Stager::new(Arc::clone(&deps.objects), Arc::clone(&live), finished_again),
        bus: Arc::clone(&deps.bus),
        events: Arc::clone(&events),
        live: Arc::clone(&live),
        release: served.release.clone(),
    };
    tracing::info!(worker = %worker, release = served.release.short(), model = %served.name, "worker ready");
    on_ready(Arc::clone(&engine.status));

    let mut parts = Parts {
        pulling: tokio::spawn(puller.run()),
        starting: tokio::spawn(starter.run()),
        committing: tokio::spawn(committer.run()),
        pumping: tokio::spawn(pump.run()),
        publishing: tokio::spawn({
            let bus = Arc::clone(&deps.bus);
            async move { events.publish(bus.as_ref()).await }
        }),
    };
    let failed = tokio::select! {
        () = shutdown => None,
        failed = parts.first_to_end(&beating) => Some(failed),
    };
    // Nobody listens any more only if the puller and the heartbeat are gone.
    let _nobody_pulls = draining.send(true);
    if failed.is_none() {
        let_end(&mut parts.pulling).await;
        drain(&deps, &live, config.drain_grace).await;
    }
    // The engine stops when told, or is gone already. Only a stuck one leaves the rest unfinished.
    let _engine_is_gone = engine.commands.try_send(Command::Stop);
    let (joined, has_joined) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait for a blocking task, and a stuck engine never comes back.
    std::thread::spawn(move || joined.send(engine.join()));
    let ended_well = matches!(tokio::time::timeout(LAST_GRACE, has_joined).await, Ok(Ok(true)));
    for part in [&mut parts.pumping, &mut parts.starting, &mut parts.committing] {
        let_end(part).await;
    }
    parts.publishing.abort();
    drop(beating);
    match failed {
        Some(part) => Err(WorkerError::Ended(part)),
        None if !ended_well => Err(WorkerError::EngineDied),
        None => Ok(()),
    }
}

/// How long each part may take to end once it is told.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// Gives a task a while to end.
async fn let_end(part: &mut JoinHandle<()>) {
    if !part.is_finished() {
        let _ended_or_late = tokio::time::timeout(LAST_GRACE, part).await;
    }
}

/// The worker's tasks; none may end before the worker does.
struct Parts {
    pulling: JoinHandle<()>,
    starting: JoinHandle<()>,
    committing: JoinHandle<()>,
    pumping: JoinHandle<()>,
    publishing: JoinHandle<()>,
}

impl Parts {
    /// Waits until one has ended, by a panic or because what it listens to is gone; names it.
    async fn first_to_end(&mut self, beating: &Beating) -> &'static str {
        let heartbeat = async {
            while beating.is_beating() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        tokio::select! {
            _ = &mut self.pumping => "engine",
            _ = &mut self.committing => "committer",
            _ = &mut self.pulling => "puller",
            _ = &mut self.starting => "starter",
            _ = &mut self.publishing => "publisher",
            () = heartbeat => "heartbeat",
        }
    }
}

/// Waits for running jobs, then hands back what is left.
async fn drain(deps: &Deps, live: &Live, grace: Duration) {
    let deadline = tokio::time::Instant::now() + grace;
    while !live.is_empty() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left: Vec<Lease> = live.leases();
    if left.is_empty() {
        return;
    }
    tracing::info!(jobs = left.len(), "the grace period is over: handing jobs back");
    // First the store, then the mark: a job is queued again before its sequence ends, and a result that comes in
    // between meets the fence.
    if let Err(err) = deps.store.hand_back(&left, Duration::ZERO).await {
        tracing::warn!(error = &err as &dyn std::error::Error, "jobs could not be handed back; their leases end");
    }
    for lease in left {
        live.mark_lease(lease);
    }
}

/// Prepares leased jobs and starts them in the engine.
struct Starter {
    to_start: mpsc::Receiver<Start>,
    preparer: Preparer,
    commands: mpsc::Sender<Command>,
    collecting: Collecting,
    events: Arc<EventBuffer>,
    finished: mpsc::UnboundedSender<Finished>,
    permits: Arc<Semaphore>,
    /// For requests whose rule may have to be compiled: seconds, at worst, in which all others go on.
    rule_permits: Arc<Semaphore>,
    live: Arc<Live>,
    room: Arc<Notify>,
}

/// Names are unique in this process.
static NEXT_NAME: AtomicU64 = AtomicU64::new(1);

impl Starter {
    async fn run(mut self) {
        while let Some(start) = self.to_start.recv().await {
            let lease = start.leased.lease;
            self.events.push([JobEvent { job: lease.job, attempt: lease.attempt, body: JobEventBody::Started }]);
            // Who waits to compile a rule waits aside, and not at the head of the line.
            let request = &start.leased.request;
            let has_rule = request.constraint.is_some() || request.tools.as_ref().is_some_and(|t| t.is_constrained());
            let aside = has_rule.then(|| Arc::clone(&self.rule_permits));
            let permit = match aside {
                Some(_) => None,
                None => match Arc::clone(&self.permits).acquire_owned().await {
                    Ok(permit) => Some(permit),
                    Err(_) => return,
                },
            };
            let preparer = self.preparer.clone();
            let ending =
                Ending { finished: self.finished.clone(), live: Arc::clone(&self.live), room: Arc::clone(&self.room) };
            let commands = self.commands.clone();
            let collecting = Arc::clone(&self.collecting);
            tokio::spawn(async move {
                let permit = match aside {
                    Some(permits) => permits.acquire_owned().await.ok(),
                    None => permit,
                };
                let prepared = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    prepare(&preparer, start)
                });
                let prepared = prepared.await.unwrap_or_else(|panic| {
                    let message = format!("the worker failed while it prepared the request: {panic}");
                    let error = contract::JobError::new(contract::ErrorCode::EngineFailed, message);
                    Err(Finished::not_prepared(lease, error))
                });
                match prepared {
                    Ok((name, job, prepared)) => {
                        let entry = |collecting: &Collecting, job| {
                            let mut jobs = collecting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                            jobs.insert(name, job);
                        };
                        entry(&collecting, job);
                        for sequence in prepared {
                            // A closed channel means that the engine is gone, and with it the process.
                            let _engine_is_gone = commands.send(Command::Start(Box::new(sequence))).await;
                        }
                    }
                    Err(finished) => ending.tell(lease, finished),
                }
            });
        }
    }
}

/// How a job ends that never reaches the engine.
struct Ending {
    finished: mpsc::UnboundedSender<Finished>,
    live: Arc<Live>,
    room: Arc<Notify>,
}

impl Ending {
    fn tell(&self, lease: Lease, finished: Finished) {
        self.live.committing(lease);
        self.room.notify_one();
        let _committer_is_gone = self.finished.send(finished);
    }
}

/// A job on its way into the engine.
type Entering = (Running, Collected, Vec<engine::sequence::Prepared>);

fn prepare(preparer: &Preparer, start: Start) -> Result<Entering, Finished> {
    let Start { leased, mark, leased_at } = start;
    let lease = leased.lease;
    if mark.is_set() {
        return Err(Finished::not_wanted(lease));
    }
    if leased_at.elapsed() >= leased.deadline_in {
        return Err(Finished::deadline_passed(lease));
    }
    let name = Running(NEXT_NAME.fetch_add(1, Ordering::Relaxed));
    let ready =
        preparer.prepare(name, &leased, mark, leased_at).map_err(|error| Finished::not_prepared(lease, error))?;
    let job = Collected::new(leased, leased_at, ready.prompt_text, ready.prompt_ids).read_as(ready.reading);
    Ok((name, job, ready.prepared))
}
