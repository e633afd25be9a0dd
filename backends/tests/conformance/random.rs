//! Random operations against a plain model: after each one the store and the model must agree on every job.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::{AuditFilter, Day, Tally, UsageFilter, UsageLine};
use contract::{
    CancelAnswer, ErrorCode, Filter, JobError, JobId, JobState as S, Lease, NewJob, OnFailure, Outcome, Sequence,
    SequenceBlock, TenantId, Timestamp, Wake,
};

use crate::help::*;

const SEEDS: u64 = 200;
const OPERATIONS: usize = 40;
const BOUND: usize = 6;
const SEQUENCES: usize = 2;

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

/// What the model knows of a job.
struct Model {
    id: JobId,
    state: S,
    attempt: u32,
    errors: u32,
    losses: u32,
    is_line: bool,
    sequence: Option<usize>,
    on_failure: OnFailure,
    /// Nothing holds it: it is in no sequence, or its turn has come.
    free: bool,
    deadline: u64,
    started: u64,
    lease_until: u64,
    worker: String,
}

/// One world per seed: its own tenant and workers, in a store that others used before.
struct World<'t> {
    t: &'t dyn StoreUnderTest,
    random: Random,
    tenant: TenantId,
    /// Seconds since the world began.
    now: u64,
    /// By the store's clock, once a job was accepted.
    began: Timestamp,
    jobs: Vec<Model>,
    /// Worker, time, job.
    lost: Vec<(String, u64, JobId)>,
    /// By sequence: since when it is blocked, and by which job.
    blocks: BTreeMap<usize, (u64, usize)>,
    seed: u64,
}

pub async fn random_lives_follow_the_model(t: &mut dyn StoreUnderTest) {
    for seed in 0..SEEDS {
        let tenant = TenantId(format!("tenant-{seed}"));
        let mut world = World {
            t,
            random: Random(seed),
            tenant,
            now: 0,
            began: Timestamp(0),
            jobs: vec![],
            lost: vec![],
            blocks: BTreeMap::new(),
            seed,
        };
        for step in 0..OPERATIONS {
            let what = world.operate(step).await;
            world.give_turns();
            world.check(&format!("seed {seed}, step {step}: {what}")).await;
        }
        world.end().await;
    }
    let from: Day = "2025-11-29".parse().unwrap();
    let audit = t.admin().audit(&AuditFilter { tenant: None, from, to: from.plus(1) }).await.unwrap();
    assert!(audit.holds() && audit.days.len() >= SEEDS as usize, "{:?}", audit.breaches);
    // The ledger, which was written change by change, has come to the same.
    let filter = UsageFilter { tenant: None, from, to: from.plus(1), limit: 100_000 };
    let used = t.admin().usage_lines(&filter).await.unwrap();
    let sums: [fn(&UsageLine) -> u64; 5] =
        [|line| line.accepted, |line| line.succeeded, |line| line.failed, |line| line.cancelled, |line| line.expired];
    let found: [fn(&Tally) -> u64; 5] = [
        |tally| tally.accepted,
        |tally| tally.succeeded,
        |tally| tally.failed,
        |tally| tally.cancelled,
        |tally| tally.expired,
    ];
    assert_eq!(
        sums.map(|figure| used.iter().map(figure).sum::<u64>()),
        found.map(|figure| audit.days.iter().map(|day| figure(&day.tally)).sum::<u64>())
    );
}

impl World<'_> {
    fn is_held(&self, n: usize) -> bool {
        !self.jobs[n].free
    }

    /// The first unfinished job of a sequence that is not blocked has its turn, and keeps it.
    fn give_turns(&mut self) {
        for sequence in 0..SEQUENCES {
            let first = |job: &&mut Model| job.sequence == Some(sequence) && !job.state.is_terminal();
            if !self.blocks.contains_key(&sequence)
                && let Some(first) = self.jobs.iter_mut().find(first)
            {
                first.free = true;
            }
        }
    }

    /// A job ends.
    fn end_as(&mut self, n: usize, state: S) {
        self.jobs[n].state = state;
        let (Some(sequence), OnFailure::Block) = (self.jobs[n].sequence, self.jobs[n].on_failure) else { return };
        if matches!(state, S::Failed | S::Expired) {
            // The first block stays; of several at one time, that of the job accepted first.
            let block = self.blocks.entry(sequence).or_insert((self.now, n));
            *block = (*block).min((self.now, n));
        }
    }

    /// A lease that is the live one most of the time, of a job that is running most of the time.
    fn some_lease(&mut self) -> Option<(usize, Lease, bool)> {
        let running: Vec<usize> = (0..self.jobs.len()).filter(|n| self.jobs[*n].state == S::Running).collect();
        let n = match (self.random.below(5), running.len(), self.jobs.len()) {
            (_, _, 0) => return None,
            (0, _, all) | (_, 0, all) => self.random.below(all),
            (_, some, _) => running[self.random.below(some)],
        };
        let job = &self.jobs[n];
        let stale = u32::from(self.random.below(5) == 0);
        let live = job.state == S::Running && stale == 0;
        Some((n, Lease { job: job.id, attempt: job.attempt + stale }, live))
    }

    async fn operate(&mut self, step: usize) -> &'static str {
        match self.random.below(13) {
            0..=2 => self.accept(u32::try_from(step).unwrap()).await,
            3 | 4 => self.lease().await,
            5 => self.finish().await,
            6 => self.retry().await,
            7 => self.hand_back().await,
            8 => self.cancel().await,
            9 => self.pass_time().await,
            10 => self.renew().await,
            11 => self.resume().await,
            _ => self.feed().await,
        }
    }

    async fn accept(&mut self, step: u32) -> &'static str {
        let sequence = Some(self.random.below(5)).filter(|key| *key < SEQUENCES);
        let on_failure = OnFailure::ALL[self.random.below(2)];
        let is_line = self.random.below(4) == 0;
        let deadline = 20 + self.random.below(60) as u64;
        let new = NewJob {
            tenant: self.tenant.clone(),
            bound: BOUND as u64,
            deadline_in: secs(deadline),
            batch_line: is_line.then(|| (uuid::Uuid::from_u128(u128::from(self.seed)), step)),
            sequence_key: sequence.map(|key| key.to_string()),
            on_failure,
            ..job()
        };
        let id = new.id;
        let answer = self.t.store().accept(&[new]).await.unwrap().remove(0);
        let unfinished = self.jobs.iter().filter(|job| !job.is_line && !job.state.is_terminal()).count();
        let fits = is_line || unfinished < BOUND;
        assert_eq!(answer.is_ok(), fits, "seed {}: {answer:?}", self.seed);
        if fits {
            let deadline = self.now + deadline;
            self.jobs.push(Model {
                id,
                state: S::Queued,
                attempt: 0,
                errors: 0,
                losses: 0,
                is_line,
                sequence,
                on_failure,
                free: sequence.is_none(),
                deadline,
                started: 0,
                lease_until: 0,
                worker: String::new(),
            });
            self.give_turns();
            let answer = answer.unwrap();
            self.began = Timestamp(answer.at.unwrap().0 - i64::try_from(self.now * 1_000).unwrap());
            assert_eq!(answer.held, self.is_held(self.jobs.len() - 1), "seed {}", self.seed);
        }
        "accept"
    }

    async fn lease(&mut self) -> &'static str {
        if self.jobs.is_empty() {
            return "nothing";
        }
        let n = self.random.below(self.jobs.len());
        let stale = u32::from(self.random.below(5) == 0);
        let worker = format!("w{}-{}", self.seed, self.random.below(3));
        let (held, now) = (self.is_held(n), self.now);
        let job = &mut self.jobs[n];
        let leased = lease(&*self.t.store(), job.id, job.attempt + stale, &worker).await;
        let expected = job.state == S::Queued && stale == 0 && !held && job.deadline > now;
        assert_eq!(leased.is_some(), expected, "seed {}", self.seed);
        if let Some(leased) = leased {
            (job.state, job.attempt, job.worker) = (S::Running, job.attempt + 1, worker);
            (job.started, job.lease_until) = (now, now + TTL.as_secs());
            assert_eq!((leased.lease.attempt, leased.losses), (job.attempt, job.losses));
        }
        "lease"
    }

    async fn finish(&mut self) -> &'static str {
        let Some((n, lease, live)) = self.some_lease() else { return "nothing" };
        let late = self.jobs[n].deadline <= self.now;
        let (outcome, ok, state) = match self.random.below(3) {
            0 => (success(), live && !late, S::Succeeded),
            1 => (
                Outcome::Failed { error: JobError::new(ErrorCode::NotFinite, "nan"), usage: usage(1) },
                live,
                S::Failed,
            ),
            _ => (Outcome::Expired { usage: usage(1) }, live, S::Expired),
        };
        assert_eq!(finish(&*self.t.store(), lease, outcome).await, ok, "seed {}", self.seed);
        if ok {
            self.end_as(n, state);
        }
        "finish"
    }

    async fn retry(&mut self) -> &'static str {
        let Some((n, lease, live)) = self.some_lease() else { return "nothing" };
        let error = JobError::new(ErrorCode::EngineFailed, "step");
        assert_eq!(self.t.store().retry(&lease, &error).await.unwrap().is_ok(), live, "seed {}", self.seed);
        if live {
            let job = &mut self.jobs[n];
            job.errors += 1;
            job.state = S::Queued;
            if job.errors == 3 {
                self.end_as(n, S::Failed);
            }
        }
        "retry"
    }

    async fn hand_back(&mut self) -> &'static str {
        let Some((n, lease, live)) = self.some_lease() else { return "nothing" };
        self.t.store().hand_back(&[lease], Duration::ZERO).await.unwrap();
        if live {
            self.jobs[n].state = S::Queued;
        }
        "hand back"
    }

    async fn cancel(&mut self) -> &'static str {
        if self.jobs.is_empty() {
            return "nothing";
        }
        let n = self.random.below(self.jobs.len());
        let job = &mut self.jobs[n];
        let answer = self.t.store().cancel(&self.tenant, &job.id).await.unwrap();
        let expected = match job.state {
            S::Queued | S::Cancelled => CancelAnswer::Cancelled { was_running: false },
            S::Running => CancelAnswer::Cancelled { was_running: true },
            state => CancelAnswer::AlreadyEnded(state),
        };
        assert_eq!(answer, expected, "seed {}", self.seed);
        if !job.state.is_terminal() {
            job.state = S::Cancelled;
        }
        "cancel"
    }

    async fn resume(&mut self) -> &'static str {
        let key = self.random.below(SEQUENCES);
        let answer = self.t.store().resume_sequence(&self.tenant, &key.to_string()).await.unwrap();
        let was_blocked = self.blocks.remove(&key).is_some();
        let own = |job: &&Model| job.sequence == Some(key) && !job.state.is_terminal();
        assert_eq!(answer.is_some(), was_blocked || self.jobs.iter().any(|job| own(&job)), "seed {}", self.seed);
        let Some(resumed) = answer else { return "resume nothing" };
        let next = self.jobs.iter().find(own);
        assert_eq!(resumed.due, next.filter(|job| was_blocked && !job.free).map(|_| queue()), "seed {}", self.seed);
        assert_eq!(resumed.sequence, self.sequence(key), "seed {}", self.seed);
        "resume"
    }

    /// A sequence as it is shown.
    fn sequence(&self, key: usize) -> Sequence {
        let own = self.jobs.iter().filter(|job| job.sequence == Some(key) && !job.state.is_terminal());
        Sequence {
            key: key.to_string(),
            block: self.blocks.get(&key).map(|(at, n)| {
                let at = Timestamp(self.began.0 + i64::try_from(at * 1_000).unwrap());
                SequenceBlock { job: self.jobs[*n].id, at }
            }),
            unfinished: own.clone().count() as u64,
            next: own.clone().next().map(|job| (job.id, job.state)),
        }
    }

    async fn renew(&mut self) -> &'static str {
        let Some((n, lease, live)) = self.some_lease() else { return "nothing" };
        let lost = self.t.store().renew(&[lease], TTL).await.unwrap();
        assert_eq!(lost.is_empty(), live, "seed {}", self.seed);
        if live {
            self.jobs[n].lease_until = self.now + TTL.as_secs();
        }
        "renew"
    }

    async fn feed(&mut self) -> &'static str {
        let limit = 1 + self.random.below(4);
        let store = self.t.store();
        let wakes: Vec<Wake> = store.due(&queue(), u32::try_from(limit).unwrap()).await.unwrap();
        assert!(wakes.len() <= limit);
        for wake in wakes {
            let n = self.jobs.iter().position(|job| job.id == wake.job).unwrap();
            let job = &self.jobs[n];
            assert_eq!(
                (job.state, job.attempt, self.is_held(n)),
                (S::Queued, wake.attempt, false),
                "seed {}",
                self.seed
            );
        }
        "feed"
    }

    /// Time passes, and the reaper looks.
    async fn pass_time(&mut self) -> &'static str {
        let by = 1 + self.random.below(12) as u64;
        self.t.advance(secs(by)).await;
        self.now += by;
        let now = self.now;
        self.t.store().reap(1_000).await.unwrap();
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for job in self.jobs.iter().filter(|job| job.state == S::Running) {
            *running.entry(job.worker.clone()).or_default() += 1;
        }
        let lost_before = self.lost.clone();
        for n in 0..self.jobs.len() {
            let job = &mut self.jobs[n];
            if job.state.is_terminal() {
                continue;
            }
            if job.deadline <= now {
                self.end_as(n, S::Expired);
            } else if job.state == S::Running && job.lease_until <= now {
                let beside = |(worker, at, id): &(String, u64, JobId)| {
                    *worker == job.worker && *at >= job.started && *id != job.id
                };
                let alone = running[&job.worker] == 1 && !lost_before.iter().any(beside);
                self.lost.push((job.worker.clone(), now, job.id));
                (job.state, job.losses) = match (job.losses, alone) {
                    (2, true) => (S::Failed, 3),
                    (2, false) => (S::Queued, 2),
                    (losses, _) => (S::Queued, losses + 1),
                };
                if job.state == S::Failed {
                    self.end_as(n, S::Failed);
                }
            }
        }
        "pass time"
    }

    async fn check(&self, context: &str) {
        let filter = Filter { limit: 1_000, ..Filter::default() };
        let shown = self.t.store().list(&self.tenant, &filter).await.unwrap().jobs;
        assert_eq!(shown.len(), self.jobs.len(), "{context}");
        for (shown, job) in shown.iter().rev().zip(&self.jobs) {
            assert_eq!(shown.id, job.id, "{context}");
            let life = (shown.state, shown.attempt, shown.errors, shown.losses);
            assert_eq!(life, (job.state, job.attempt, job.errors, job.losses), "{context}: {}", job.id);
            assert_eq!(shown.finished_at.is_some(), job.state.is_terminal(), "{context}");
        }
        let blocked: Vec<Sequence> = self.blocks.keys().map(|key| self.sequence(*key)).collect();
        let listed = self.t.store().blocked_sequences(&self.tenant, None, 10).await.unwrap();
        assert_eq!(listed, (blocked, false), "{context}");
        let count = |is_line| {
            let unfinished = self.jobs.iter().filter(|job| job.is_line == is_line && !job.state.is_terminal());
            i64::try_from(unfinished.count()).unwrap()
        };
        let mut expected = BTreeMap::new();
        expected.insert(format!("queue:{}:standard", release()), count(false));
        expected.insert(format!("tenant:{}", self.tenant), count(false));
        expected.insert(format!("lines:{}", self.tenant), count(true));
        expected.retain(|_, n| *n > 0);
        assert_eq!(self.t.counters().await, expected, "{context}");
    }

    /// Leaves nothing unfinished behind, and looks at every job's events.
    async fn end(mut self) {
        for job in self.jobs.iter_mut().filter(|job| !job.state.is_terminal()) {
            self.t.store().cancel(&self.tenant, &job.id).await.unwrap();
            job.state = S::Cancelled;
        }
        self.check(&format!("seed {}: the end", self.seed)).await;
        for job in &self.jobs {
            let events = self.t.events(job.id).await;
            let (mut state, mut attempt) = ("", 0);
            for (kind, next, n) in &events {
                let from = match kind.as_str() {
                    "accepted" => "",
                    "leased" => "queued",
                    "cancelled" | "expired" => state,
                    _ => "running",
                };
                attempt += u32::from(kind == "leased");
                assert_eq!((state, *n), (from, attempt), "seed {}: {events:?}", self.seed);
                state = next;
            }
            assert_eq!(state, job.state.as_str(), "seed {}: {events:?}", self.seed);
            let terminal = |text: &str| text.parse::<S>().unwrap().is_terminal();
            assert_eq!(events.iter().filter(|(_, state, _)| terminal(state)).count(), 1, "seed {}", self.seed);
        }
    }
}
