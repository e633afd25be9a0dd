//! The engine: one thread that owns the model and the cache, and loops: admit, plan, forward, sample, emit.
//!
//! Commands come in through a bounded channel; per step one [`StepOutput`] goes out by `try_send`. Nothing a reader does
//! slows a step: what the channel has no room for is kept and sent with the next step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

pub mod adjust;
pub mod blocks;
pub mod fault;
pub mod grammar;
pub mod plan;
pub mod planner;
pub mod prefix;
pub mod random;
pub mod sampler;
pub mod sequence;
pub mod single;
pub mod status;

use fault::FaultPoint;
use plan::{Forward, ForwardError};
use planner::{Limits, Planner, StepOutput};
use sequence::Prepared;
use single::SingleBatcher;
pub use status::{EngineReading, EngineStatus};

/// Commands that may wait for the engine. More than any worker has sequences, so that a send does not wait.
const COMMANDS: usize = 4096;
/// Step outputs that may wait for the pump before they are merged.
const OUTPUTS: usize = 64;

/// How often an engine without work looks whether others have come for a batch that is not due yet.
const LOOK_FOR_COMPANY: std::time::Duration = std::time::Duration::from_micros(200);

/// Stack of the engine's thread: grammars made of strangers' rules are followed on it.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// What the engine is told.
pub enum Command {
    /// Run this sequence.
    Start(Box<Prepared>),
    /// End everybody as dropped, and stop.
    Stop,
}

/// The owner's end of a running engine.
pub struct EngineHandle {
    /// Where commands go.
    pub commands: mpsc::Sender<Command>,
    /// What each step gave; ends when the engine does.
    pub outputs: mpsc::Receiver<StepOutput>,
    /// Its counters.
    pub status: Arc<EngineStatus>,
    thread: std::thread::JoinHandle<()>,
}

impl EngineHandle {
    /// Waits until the thread is over; false if it panicked.
    pub fn join(self) -> bool {
        drop(self.commands);
        self.thread.join().is_ok()
    }
}

/// Starts the engine on a thread of its own.
///
/// # Errors
/// When the system has no thread to give.
pub fn spawn(forward: Box<dyn Forward>, limits: Limits, fault: FaultPoint) -> std::io::Result<EngineHandle> {
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let (outbox, outputs) = mpsc::channel(OUTPUTS);
    let status = Arc::new(EngineStatus::new(forward.n_blocks()));
    let planner = Planner::new(limits, forward.n_blocks());
    let singles = SingleBatcher::new(limits.singles);
    let engine = Engine { forward, planner, singles, inbox, outbox, unsent: StepOutput::default(), fault };
    let thread = std::thread::Builder::new().name("engine".into()).stack_size(STACK_BYTES).spawn({
        let status = Arc::clone(&status);
        move || {
            let _ended = EndedOnDrop(&status);
            engine.run(&status);
        }
    })?;
    Ok(EngineHandle { commands, outputs, status, thread })
}

/// Marks the status as ended however the thread ends.
struct EndedOnDrop<'a>(&'a EngineStatus);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

struct Engine {
    forward: Box<dyn Forward>,
    planner: Planner,
    singles: SingleBatcher,
    inbox: mpsc::Receiver<Command>,
    outbox: mpsc::Sender<StepOutput>,
    unsent: StepOutput,
    fault: FaultPoint,
}

impl Engine {
    fn run(mut self, status: &EngineStatus) {
        while self.admit(status) {
            let mut out = std::mem::take(&mut self.unsent);
            let now = Instant::now();
            for prepared in self.singles.take(self.planner.n_singles(), now) {
                self.planner.admit(prepared);
            }
            self.planner.sweep(now, &mut out);
            let plan = self.planner.plan();
            if let Some(plan) = &plan {
                self.fault.check(&self.planner);
                match self.forward_step(plan) {
                    Ok(logits) => self.planner.commit(plan, &logits, &mut out),
                    Err(err) => self.narrow(plan, &err, &mut out),
                }
            }
            status.progress(plan.is_some(), !self.singles.is_empty(), &self.planner);
            self.emit(out);
        }
        let mut out = std::mem::take(&mut self.unsent);
        for prepared in self.singles.take_all() {
            self.planner.admit(prepared);
        }
        self.planner.abort_all(&mut out);
        status.progress(false, false, &self.planner);
        // The last word may wait for its reader: no step is held up any more.
        let _reader_is_gone = self.outbox.blocking_send(out);
    }

    /// Takes commands in; waits for one when there is nothing to do. False when the engine is to stop.
    fn admit(&mut self, status: &EngineStatus) -> bool {
        if self.planner.is_idle() && self.unsent.is_empty() {
            match self.singles.due_in(Instant::now()) {
                None => match self.inbox.blocking_recv() {
                    Some(Command::Start(prepared)) => {
                        status.wake();
                        self.start(*prepared);
                    }
                    Some(Command::Stop) | None => return false,
                },
                // They wait for company, which the channel cannot be waited for so briefly.
                Some(wait) => std::thread::sleep(wait.min(LOOK_FOR_COMPANY)),
            }
        }
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Start(prepared)) => self.start(*prepared),
                Ok(Command::Stop) => return false,
                Err(mpsc::error::TryRecvError::Empty) => return true,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn start(&mut self, prepared: Prepared) {
        if prepared.is_single_pass() {
            self.singles.push(prepared, Instant::now());
        } else {
            self.planner.admit(prepared);
        }
    }

    /// A step failed: its spans are run one by one, since each gives the same alone, and only those that fail alone end.
    fn narrow(&mut self, plan: &plan::StepPlan, err: &ForwardError, out: &mut StepOutput) {
        tracing::error!(error = %err, sequences = plan.spans.len(), "a step failed");
        if plan.spans.len() == 1 {
            return self.planner.fail(plan, &err.to_string(), out);
        }
        for idx in 0..plan.spans.len() {
            let single = plan.only(idx);
            match self.forward_step(&single) {
                Ok(logits) => self.planner.commit(&single, &logits, out),
                Err(err) => self.planner.fail(&single, &err.to_string(), out),
            }
        }
    }

    /// A panic in a step is an error of that step; other sequences go on.
    fn forward_step(&mut self, plan: &plan::StepPlan) -> Result<plan::Logits, ForwardError> {
        let forward = &mut self.forward;
        catch_unwind(AssertUnwindSafe(|| forward.step(plan))).unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(ForwardError::Device(format!("it panicked: {what}")))
        })
    }

    fn emit(&mut self, out: StepOutput) {
        if out.is_empty() {
            return;
        }
        match self.outbox.try_send(out) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(out)) => {
                self.unsent = out;
                if self.planner.is_idle() {
                    // Nothing else to do: let the pump catch up instead of spinning.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
