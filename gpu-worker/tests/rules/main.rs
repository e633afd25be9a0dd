//! Answers that keep to a rule: JSON of a schema, a regular expression, one of some texts. What finishes is checked by
//! crates that share nothing with the engine: `serde_json`, `boon` (JSON Schema), `regex`.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod cases;
mod endings;
mod hostile;
mod mixes;
mod random;
mod real;
mod run;
