//! Takes jobs while there is room: messages by weight of their class, then the lease, then the acknowledgement at once.
//!
//! Blame for lost workers is narrowed here: a job that lost one runs only among its like, eight at most; a job that
//! lost two runs alone. While such jobs wait for the others to leave, nothing more is taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::{Bus, Class, Delivery, Fingerprint, JobStore, Lease, Leased, Queue, QueueId, Signal, WorkerId};
use futures::StreamExt;
use tokio::sync::{Notify, mpsc, watch};

use crate::engine::EngineStatus;
use crate::engine::sequence::DropMark;
use crate::heartbeat::PATIENCE;
use crate::live::Live;

/// Most jobs that run together after each lost one worker.
const COHORT: usize = 8;
/// Behind every wake-up stands a poll.
const POLL: Duration = Duration::from_millis(200);
/// Without room for so long, what was fetched ahead goes back to the queue, where an idle worker gets it: with the poll,
/// within 400 ms. A busy worker whose jobs are short keeps it, since it has room again sooner.
const REST_AFTER: Duration = Duration::from_millis(200);
/// Jobs given back because another must run alone first are due again after this.
const STAND_ASIDE: Duration = Duration::from_secs(1);

/// A leased job on its way to the engine, with the mark that ends it.
pub struct Start {
    /// The job.
    pub leased: Leased,
    /// Its mark in the live map.
    pub mark: DropMark,
    /// When the lease was answered.
    pub leased_at: Instant,
}

/// What the puller needs.
pub struct Puller {
    /// Who leases.
    pub worker: WorkerId,
    /// What it serves.
    pub release: Fingerprint,
    /// Where jobs are leased.
    pub store: Arc<dyn JobStore>,
    /// Where wake-ups are.
    pub queue: Arc<dyn Queue>,
    /// Where signals come from.
    pub bus: Arc<dyn Bus>,
    /// The held jobs.
    pub live: Arc<Live>,
    /// The engine's counters: a stuck engine is given nothing more.
    pub status: Arc<EngineStatus>,
    /// Told when room became free.
    pub room: Arc<Notify>,
    /// Sequences the engine takes at once.
    pub capacity: usize,
    /// Life of a lease.
    pub lease_ttl: Duration,
    /// Where leased jobs go.
    pub starts: mpsc::Sender<Start>,
    /// True once nothing more is to be taken.
    pub draining: watch::Receiver<bool>,
}

/// Whether messages can be taken: a line for each change, and not one for each look.
#[derive(Debug, Default)]
struct Trouble {
    since: Option<Instant>,
}

impl Trouble {
    fn goes_on(&mut self, err: &(dyn std::error::Error + 'static)) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::warn!(error = err, "no messages can be taken; the worker goes on looking");
        }
    }

    fn ends(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(away_ms = since.elapsed().as_millis(), "messages can be taken again");
        }
    }
}

/// Smooth weighted round robin over the classes.
#[derive(Debug, Clone, Copy, Default)]
struct Turns {
    credit: [i64; 3],
}

impl Turns {
    /// The class whose turn it is among those that may have messages.
    fn next(&mut self, may_have: &[bool; 3]) -> Option<usize> {
        let eligible = || (0..3).filter(|idx| may_have[*idx]);
        let total: i64 = eligible().map(|idx| i64::from(Class::ALL[idx].weight())).sum();
        for idx in eligible() {
            self.credit[idx] += i64::from(Class::ALL[idx].weight());
        }
        // The most urgent of equals.
        let chosen = eligible().rev().max_by_key(|idx| self.credit[*idx])?;
        self.credit[chosen] -= total;
        Some(chosen)
    }

    /// The turn was for nothing: the class has no message. The others' credit is as `before` it, and its own starts anew, so
    /// that an idle class saves nothing up.
    fn was_empty(&mut self, idx: usize, before: Turns) {
        *self = before;
        self.credit[idx] = 0;
    }
}

impl Puller {
    /// Pulls until draining; then hands back what was taken and not started.
    pub async fn run(mut self) {
        let mut signals = self.bus.signals().await;
        let mut turns = Turns::default();
        let mut suspects: VecDeque<Start> = VecDeque::new();
        let mut isolated = false;
        let mut backoff = Duration::from_millis(50);
        let mut took_at = Instant::now();
        let mut resting = false;
        let mut trouble = Trouble::default();
        loop {
            if *self.draining.borrow() {
                self.queue.rest().await;
                let leases: Vec<Lease> = suspects.drain(..).map(|start| start.leased.lease).collect();
                return self.give_back(&leases, Duration::ZERO).await;
            }
            // Suspects hold entries in the live map, but no room in the engine.
            self.retire_unwanted(&mut suspects);
            let aside: usize = suspects.iter().map(|start| n_sequences(&start.leased)).sum();
            let active = self.live.n_active().saturating_sub(aside);
            // What is done and not committed would be lost with a suspect's worker: it is not alone until then.
            let held = self.live.n_held().saturating_sub(suspects.len());
            isolated &= held > 0;
            let takes =
                suspects.is_empty() && !isolated && active < self.capacity && self.status.is_progressing(PATIENCE);
            if !suspects.is_empty() && held == 0 {
                isolated = true;
                self.start_cohort(&mut suspects).await;
            } else if takes {
                (took_at, resting) = (Instant::now(), false);
                match self.take(self.capacity - active, &mut turns, &mut suspects, &mut trouble).await {
                    Ok(0) => {}
                    Ok(_) => {
                        backoff = Duration::from_millis(50);
                        continue;
                    }
                    Err(()) => {
                        tokio::time::sleep(backoff).await;
                        backoff = (backoff * 2).min(Duration::from_secs(2));
                    }
                }
            }
            if !takes && !resting && took_at.elapsed() >= REST_AFTER {
                self.queue.rest().await;
                resting = true;
            }
            tokio::select! {
                () = self.queue.arrived(), if takes => {}
                signal = signals.next() => match signal {
                    Some(Signal::Cancelled { job } | Signal::Ended { job, .. }) => self.live.mark_job(job),
                    Some(Signal::Due { .. } | Signal::Ready { .. }) => {}
                    None => {
                        tokio::time::sleep(POLL).await;
                        signals = self.bus.signals().await;
                    }
                },
                () = self.room.notified() => {}
                () = self.live.left(), if isolated || !suspects.is_empty() => {}
                _ = self.draining.changed() => {}
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Takes up to `room` messages and leases them. Answers how many messages there were.
    async fn take(
        &self,
        room: usize,
        turns: &mut Turns,
        suspects: &mut VecDeque<Start>,
        trouble: &mut Trouble,
    ) -> Result<usize, ()> {
        let mut may_have = [true; 3];
        let mut deliveries: Vec<Delivery> = Vec::new();
        while deliveries.len() < room {
            let before = *turns;
            let Some(idx) = turns.next(&may_have) else { break };
            let queue = QueueId { release: self.release.clone(), class: Class::ALL[idx] };
            match self.queue.take(&queue, 1).await {
                Ok(mut taken) if !taken.is_empty() => {
                    trouble.ends();
                    deliveries.append(&mut taken);
                }
                Ok(_) => {
                    trouble.ends();
                    may_have[idx] = false;
                    turns.was_empty(idx, before);
                }
                Err(err) => {
                    trouble.goes_on(&err);
                    may_have[idx] = false;
                }
            }
        }
        if deliveries.is_empty() {
            return Ok(0);
        }
        let n_taken = deliveries.len();
        let mut marks: Vec<(Lease, DropMark)> = Vec::new();
        let mut fresh: Vec<Delivery> = Vec::new();
        for delivery in deliveries {
            let lease = Lease { job: delivery.wake.job, attempt: delivery.wake.attempt + 1 };
            match self.live.enter(lease) {
                Some(mark) => {
                    marks.push((lease, mark));
                    fresh.push(delivery);
                }
                // A second message for a job that is held here: the first one is enough.
                None => self.queue.ack(delivery).await,
            }
        }
        let deliveries = fresh;
        let wakes: Vec<_> = deliveries.iter().map(|delivery| delivery.wake).collect();
        match self.store.lease(&wakes, &self.worker, self.lease_ttl).await {
            Ok(answers) => {
                for delivery in deliveries {
                    self.queue.ack(delivery).await;
                }
                self.start_leased(answers, marks, suspects).await;
                Ok(n_taken)
            }
            Err(err) => {
                tracing::warn!(error = &err as &dyn std::error::Error, "jobs could not be leased");
                if err.surely_not_applied() {
                    for (lease, _) in marks {
                        self.live.leave(lease);
                    }
                    for delivery in deliveries {
                        self.queue.put_back(delivery).await;
                    }
                } else {
                    // The leases may have been written: they are given back, so that nobody is charged for a job not run.
                    let leases: Vec<Lease> = marks.iter().map(|(lease, _)| *lease).collect();
                    self.give_back(&leases, Duration::ZERO).await;
                    for delivery in deliveries {
                        self.queue.ack(delivery).await;
                    }
                }
                Err(())
            }
        }
    }

    async fn start_leased(
        &self,
        answers: Vec<Option<Leased>>,
        marks: Vec<(Lease, DropMark)>,
        suspects: &mut VecDeque<Start>,
    ) {
        let leased_at = Instant::now();
        for (answer, (lease, mark)) in answers.into_iter().zip(marks) {
            let Some(leased) = answer else {
                self.live.leave(lease);
                continue;
            };
            self.live.leased(lease, n_sequences(&leased));
            let start = Start { leased, mark, leased_at };
            if start.leased.losses > 0 {
                suspects.push_back(start);
            } else {
                self.start(start).await;
            }
        }
    }

    /// Lets go of suspects that were cancelled or lost, or whose deadline passed, while they waited.
    fn retire_unwanted(&self, suspects: &mut VecDeque<Start>) {
        suspects.retain(|start| {
            let unwanted = start.mark.is_set() || start.leased_at.elapsed() >= start.leased.deadline_in;
            if unwanted {
                // The store has ended it, or its reaper will; nothing of it has run here.
                self.live.leave(start.leased.lease);
            }
            !unwanted
        });
    }

    async fn start(&self, start: Start) {
        // The receiver ends only with the worker, and then everything leased is handed back.
        let _worker_is_gone = self.starts.send(start).await;
    }

    /// Nobody runs: one twice-suspect job goes alone, or up to eight once-suspect ones together. The rest are given
    /// back, so that a loss is not charged to jobs that only waited.
    async fn start_cohort(&self, suspects: &mut VecDeque<Start>) {
        let cohort: Vec<Start> = match suspects.iter().position(|start| start.leased.losses > 1) {
            Some(idx) => suspects.remove(idx).into_iter().collect(),
            None => suspects.drain(..suspects.len().min(COHORT)).collect(),
        };
        let rest: Vec<Lease> = suspects.drain(..).map(|start| start.leased.lease).collect();
        self.give_back(&rest, STAND_ASIDE).await;
        for start in cohort {
            tracing::info!(
                job.id = %start.leased.lease.job,
                losses = start.leased.losses,
                "a job whose worker was lost runs apart from others"
            );
            self.start(start).await;
        }
    }

    async fn give_back(&self, leases: &[Lease], delay: Duration) {
        if leases.is_empty() {
            return;
        }
        if let Err(err) = self.store.hand_back(leases, delay).await {
            tracing::warn!(error = &err as &dyn std::error::Error, "jobs could not be handed back; their leases end");
        }
        for lease in leases {
            self.live.leave(*lease);
        }
    }
}

/// Sequences that a job takes in the engine: one for each answer.
fn n_sequences(leased: &Leased) -> usize {
    usize::from(leased.request.sampling.n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_the_weights_and_nobody_starves() {
        let mut turns = Turns::default();
        let mut counts = [0; 3];
        let mut longest_wait = 0;
        let mut since_bulk = 0;
        for _ in 0..1_200 {
            let idx = turns.next(&[true; 3]).unwrap();
            counts[idx] += 1;
            since_bulk = if idx == 2 { 0 } else { since_bulk + 1 };
            longest_wait = longest_wait.max(since_bulk);
        }
        assert_eq!(counts, [800, 300, 100]);
        assert!(longest_wait <= 12, "bulk waited {longest_wait} turns");
    }

    #[test]
    fn an_empty_class_gives_its_turn_away_and_saves_nothing_up() {
        let mut turns = Turns::default();
        for _ in 0..50 {
            let before = turns;
            let idx = turns.next(&[true; 3]).unwrap();
            if idx == 0 {
                turns.was_empty(0, before);
            }
        }
        let firsts: Vec<usize> = (0..12).map(|_| turns.next(&[true; 3]).unwrap()).collect();
        assert!(firsts.iter().filter(|idx| **idx == 0).count() <= 9, "{firsts:?}");
        assert_eq!(turns.next(&[false, false, true]), Some(2));
        assert_eq!(turns.next(&[false; 3]), None);
    }
}
