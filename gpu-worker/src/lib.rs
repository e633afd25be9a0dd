//! The GPU worker: the engine (model, paged KV cache, continuous batching, sampling, text) and the loop that pulls
//! jobs, leases them, runs them and commits what they gave.
//!
//! It knows the ports of `contract`, and no adapter of them: which store, queue or bus is behind is the wiring's affair.

pub mod calls;
pub mod collect;
pub mod commit;
pub mod conversation;
pub mod engine;
pub mod forward;
pub mod grammar;
pub mod heartbeat;
pub mod live;
pub mod load;
pub mod model;
pub mod prepare;
pub mod puller;
pub mod pump;
pub mod release;
pub mod scopes;
pub mod stage;
pub mod text;
pub mod worker;

pub use heartbeat::{BeatPorts, OpenBeatPorts};
pub use release::{Identified, LoadedRelease, ReleaseError, identify, trivial};
pub use scopes::{PrefixCache, TenantGroups};
pub use worker::{Deps, WorkerConfig, WorkerError, run};
