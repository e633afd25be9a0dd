//! What the engine shows of itself to other threads: counters, no locks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The engine's counters, written by its thread after every step.
#[derive(Debug)]
pub struct EngineStatus {
    started: Instant,
    steps: AtomicU64,
    last_progress_ms: AtomicU64,
    busy: AtomicBool,
    alive: AtomicBool,
    running: AtomicU64,
    waiting: AtomicU64,
    used_blocks: AtomicU64,
    cached_blocks: AtomicU64,
    total_blocks: AtomicU64,
    preemptions: AtomicU64,
}

/// A reading of [`EngineStatus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineReading {
    /// Steps since the start.
    pub steps: u64,
    /// Sequences in the cache.
    pub running: u64,
    /// Sequences that wait for room in it.
    pub waiting: u64,
    /// KV blocks in use.
    pub used_blocks: u64,
    /// KV blocks that nobody uses and that keep their content while there is room.
    pub cached_blocks: u64,
    /// KV blocks of the pool.
    pub total_blocks: u64,
    /// Sequences preempted since the start.
    pub preemptions: u64,
}

impl EngineStatus {
    pub(super) fn new(total_blocks: usize) -> Self {
        Self {
            started: Instant::now(),
            steps: AtomicU64::new(0),
            last_progress_ms: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            alive: AtomicBool::new(true),
            running: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            used_blocks: AtomicU64::new(0),
            cached_blocks: AtomicU64::new(0),
            total_blocks: AtomicU64::new(total_blocks as u64),
            preemptions: AtomicU64::new(0),
        }
    }

    /// After a turn of the loop; `gathers`: somebody waits for company to be computed with.
    pub(super) fn progress(&self, stepped: bool, gathers: bool, planner: &super::planner::Planner) {
        if stepped {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        self.running.store(planner.n_running() as u64, Ordering::Relaxed);
        self.waiting.store(planner.n_waiting() as u64, Ordering::Relaxed);
        self.used_blocks.store(planner.pool().n_used() as u64, Ordering::Relaxed);
        self.cached_blocks.store(planner.pool().n_cached() as u64, Ordering::Relaxed);
        self.preemptions.store(planner.preemptions(), Ordering::Relaxed);
        self.last_progress_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Release);
        self.busy.store(gathers || !planner.is_idle(), Ordering::Release);
    }

    pub(super) fn wake(&self) {
        // From here on the engine owes a step: the clock of `is_progressing` starts.
        self.last_progress_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Release);
        self.busy.store(true, Ordering::Release);
    }

    pub(super) fn ended(&self) {
        self.alive.store(false, Ordering::Release);
    }

    /// Whether the engine is idle, or has stepped within `patience`. False also when its thread has ended: then
    /// nobody runs these jobs, and their leases must not be renewed.
    pub fn is_progressing(&self, patience: Duration) -> bool {
        if !self.alive.load(Ordering::Acquire) {
            return false;
        }
        if !self.busy.load(Ordering::Acquire) {
            return true;
        }
        let last = Duration::from_millis(self.last_progress_ms.load(Ordering::Acquire));
        self.started.elapsed().saturating_sub(last) <= patience
    }

    /// Whether the engine's thread runs.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The counters as they stand.
    pub fn read(&self) -> EngineReading {
        EngineReading {
            steps: self.steps.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            used_blocks: self.used_blocks.load(Ordering::Relaxed),
            cached_blocks: self.cached_blocks.load(Ordering::Relaxed),
            total_blocks: self.total_blocks.load(Ordering::Relaxed),
            preemptions: self.preemptions.load(Ordering::Relaxed),
        }
    }
}
