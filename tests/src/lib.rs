//! Whole-system tests: the real binary as real processes, real models, real faults. This crate holds what they share.

pub mod binary;
pub mod client;
pub mod server;

pub use binary::{penstock, repository};
pub use client::Client;
pub use server::{Server, Settings};
