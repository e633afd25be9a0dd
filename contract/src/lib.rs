//! The words every room of Penstock shares: ids, requests and their validation, the job's life as a pure state machine,
//! outcomes, records, events, releases, the wire bodies of the OpenAI-compatible and native routes, and the ports.
//!
//! There is no I/O here, no async runtime, and nothing reads the environment.

pub mod audit;
pub mod batch;
pub mod constraint;
pub mod event;
pub mod file;
pub mod guard;
pub mod ids;
pub mod job;
pub mod key;
pub mod ledger;
pub mod life;
pub mod openai;
pub mod outcome;
pub mod ports;
pub mod reading;
pub mod record;
pub mod release;
pub mod request;
pub mod retention;
pub mod schedule;
pub mod sequence;
pub mod tenant;
pub mod time;
pub mod tools;
pub mod trajectory;
pub mod webhook;

pub use audit::{Audit, AuditFilter, AuditedBatch, AuditedDay, Auditor, Breach, BreachKind, Tally, TracedJob};
pub use batch::{
    Batch, BatchCancel, BatchEnd, BatchError, BatchId, BatchProgress, BatchState, Cursor, Line, LineCounts, LineId,
    LineSet, NewBatch, RefusedLine,
};
pub use constraint::{Constraint, Rule, RuleKind};
pub use event::{JobEvent, JobEventBody, Signal, TokenEvent, WorkerInfo};
pub use file::{FileDeletion, FileFilter, FileId, KeyReused, Made, NewFile, Purpose, StoredFile};
pub use ids::{Class, Fingerprint, JobId, QueueId, TenantId, WorkerId};
pub use job::{
    Accepted, CancelAnswer, Filter, IdempotencyKey, Job, Lease, Leased, NewJob, Page, Reaped, Refused, Unarchived, Wake,
};
pub use key::{FoundKey, Key, KeyId, KeyText, NewKey, Scope};
pub use ledger::{Day, TokenSums, UsageFilter, UsageLine};
pub use life::{Budgets, IllegalTransition, JobState, Life, Transition, transition};
pub use outcome::{ErrorCode, FinishReason, JobError, Outcome, Usage};
pub use ports::{
    AdminStore, Bus, BusError, Delivery, Gone, JobStore, LeaseLost, Published, Queue, QueueError, ScheduleStore,
    StoreError,
};
pub use reading::{CallSyntax, Reading, ThoughtSyntax};
pub use record::{ChoiceRecord, Record, RecordLocation, SegmentPlace, TokenLogprob, Trajectories, TrajectoryMode};
pub use release::ServedModel;
pub use request::{Input, Kind, MAX_CHOICES, Message, Prompt, Request, Role, Sampling};
pub use retention::{ExpiredJob, Storage};
pub use schedule::{
    BatchTemplate, CatchUp, Cron, Fired, NewSchedule, Overlap, Schedule, ScheduleChange, ScheduleId, ScheduleRefused,
    Zone,
};
pub use sequence::{OnFailure, Resumed, Sequence, SequenceBlock, SequenceState};
pub use tenant::{LimitChange, Tenant, TenantChange, TenantLimits, TenantPolicy};
pub use time::Timestamp;
pub use tools::{Tool, ToolCall, ToolChoice, ToolUse};
pub use trajectory::{RedactedRecord, SegmentBuilder, Trajectory, TrajectoryObject};
pub use webhook::{
    AttemptEnd, DeliveryAttempt, DeliveryFilter, DeliveryId, DeliveryState, DueDelivery, Hook, NewWebhook, Secret,
    Subject, Then, Webhook, WebhookChange, WebhookDelivery, WebhookEvent, WebhookId,
};
