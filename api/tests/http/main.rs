//! The HTTP routes over the real embedded backends, with the test as the worker.
#![allow(clippy::unwrap_used, reason = "tests; some helpers are no test functions")]

mod batch_results;
mod batches;
mod bulk;
mod contract_routes;
mod degraded;
mod embeddings;
mod endings;
mod files;
mod jobs;
mod keys;
mod limits;
mod live;
mod refusals;
mod retention;
mod schedules;
mod sequences;
mod shares;
mod streams;
mod support;
mod sync_calls;
mod trajectories;
mod usage;
mod webhooks;
