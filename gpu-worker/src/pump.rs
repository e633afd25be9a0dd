//! Takes what the engine gives at each step and passes it on: tokens to the publisher's buffer, finished jobs to the
//! committer. It does no I/O itself, so it always keeps up with the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use contract::{Bus, JobEvent, JobEventBody, Lease};
use tokio::sync::{Notify, mpsc};

use crate::collect::{Collected, Running};
use crate::commit::Finished;
use crate::engine::planner::{Ended, StepOutput};
use crate::live::Live;
use crate::text::TextTokenizer;

/// Events that wait for the bus before the oldest are dropped: the bus is best effort, memory is not.
const BUFFERED_EVENTS: usize = 65_536;

/// How long events are offered to a bus that does not take them; what comes meanwhile waits in the buffer.
const RETRIED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// The jobs in the engine; entered before the engine hears of them.
pub type Collecting = Arc<Mutex<HashMap<Running, Collected>>>;

/// Events on their way to the bus.
#[derive(Debug, Default)]
pub struct EventBuffer {
    events: Mutex<Vec<JobEvent>>,
    filled: Notify,
}

impl EventBuffer {
    /// Appends events, in order.
    pub fn push(&self, events: impl IntoIterator<Item = JobEvent>) {
        let mut buffer = self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        buffer.extend(events);
        let surplus = buffer.len().saturating_sub(BUFFERED_EVENTS);
        if surplus > 0 {
            buffer.drain(..surplus);
        }
        drop(buffer);
        self.filled.notify_one();
    }

    /// Sends what is there to the bus whenever there is something, again while the bus is away for a moment; never ends.
    pub async fn publish(&self, bus: &dyn Bus) {
        loop {
            self.filled.notified().await;
            let events = std::mem::take(&mut *self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            if events.is_empty() {
                continue;
            }
            // Again, until it works or the wait is no use to a reader any more: events that arrive twice are read once.
            let since = Instant::now();
            while let Err(err) = bus.append(&events).await {
                if since.elapsed() > RETRIED {
                    tracing::warn!(
                        error = &err as &dyn std::error::Error,
                        events = events.len(),
                        "tokens could not be published; readers get the result from the store"
                    );
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// What the pump needs.
pub struct Pump {
    /// What the engine gives.
    pub outputs: mpsc::Receiver<StepOutput>,
    /// The jobs in the engine.
    pub collecting: Collecting,
    /// For log-probabilities.
    pub tokenizer: Arc<TextTokenizer>,
    /// Where events go.
    pub events: Arc<EventBuffer>,
    /// Where finished jobs go.
    pub finished: mpsc::UnboundedSender<Finished>,
    /// The held jobs.
    pub live: Arc<Live>,
    /// Told when room became free.
    pub room: Arc<Notify>,
}

impl Pump {
    /// Pumps until the engine ends.
    pub async fn run(mut self) {
        while let Some(output) = self.outputs.recv().await {
            self.pass_on(output);
        }
    }

    fn pass_on(&self, output: StepOutput) {
        let mut collecting = self.collecting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for prompt in output.prompts {
            if let Some(job) = collecting.get_mut(&Running::of(prompt.id).0) {
                job.prompt(prompt, &self.tokenizer);
            }
        }
        let mut events = Vec::with_capacity(output.tokens.len());
        for token in output.tokens {
            if let Some(job) = collecting.get_mut(&Running::of(token.id).0) {
                job.push(token, &self.tokenizer);
                tell(job, &mut events);
            }
        }
        let mut done = Vec::new();
        for Ended { id, ending, prompt_tokens, cached_tokens, output_tokens } in output.ended {
            let (name, choice) = Running::of(id);
            let Some(job) = collecting.get_mut(&name) else { continue };
            let usage = contract::Usage { prompt_tokens, cached_tokens, output_tokens };
            job.end(choice, ending, usage);
            // Others may have waited for the turn of this one.
            tell(job, &mut events);
            if job.has_ended() {
                done.extend(collecting.remove(&name));
            }
        }
        if !events.is_empty() {
            self.events.push(events);
        }
        for job in done {
            self.live.committing(job.lease());
            self.room.notify_one();
            // Unbounded by type, bounded by the live map: a job leaves it only when its commit is answered.
            let _committer_is_gone = self.finished.send(Finished::from_engine(job));
        }
    }
}

/// Appends the events of the tokens whose turn has come.
fn tell(job: &mut Collected, events: &mut Vec<JobEvent>) {
    let Lease { job: id, attempt } = job.lease();
    events.extend(std::iter::from_fn(|| job.told()).map(|token| JobEvent {
        job: id,
        attempt,
        body: JobEventBody::Token(token),
    }));
}
