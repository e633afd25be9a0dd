//! The words every room of Penstock shares: ids, requests and their validation, the job's life as a pure state machine,
//! outcomes, records, events, releases, the wire bodies of the OpenAI-compatible and native routes, and the ports.
//!
//! There is no I/O here, no async runtime, and nothing reads the environment.

pub mod event;
pub mod ids;
pub mod job;
pub mod key;
pub mod life;
pub mod openai;
pub mod outcome;
pub mod ports;
pub mod record;
pub mod release;
pub mod request;
pub mod time;
pub mod trajectory;

pub use event::{JobEvent, JobEventBody, Signal, TokenEvent, WorkerInfo};
pub use ids::{Class, Fingerprint, JobId, QueueId, TenantId, WorkerId};
pub use job::{
    Accepted, CancelAnswer, Filter, IdempotencyKey, Job, Lease, Leased, NewJob, Page, Reaped, Refused, Unarchived, Wake,
};
pub use key::{FoundKey, Key, KeyId, KeyText, NewKey, Scope};
pub use life::{Budgets, IllegalTransition, JobState, Life, Transition, transition};
pub use outcome::{ErrorCode, FinishReason, JobError, Outcome, Usage};
pub use ports::{
    AdminStore, Bus, BusError, Delivery, Gone, JobStore, LeaseLost, Published, Queue, QueueError, StoreError,
};
pub use record::{ChoiceRecord, Record, RecordLocation, SegmentPlace, TokenLogprob, TrajectoryMode};
pub use release::ServedModel;
pub use request::{Input, Kind, Message, Prompt, Request, Role, Sampling};
pub use time::Timestamp;
pub use trajectory::{RedactedRecord, SegmentBuilder, Trajectory, TrajectoryObject};
