//! Whole-system tests: the real binary as real processes, real models, real faults. This crate holds what they share.

pub mod binary;
pub mod client;
pub mod cluster;
pub mod node;
pub mod process;
pub mod proxy;
pub mod python;
pub mod server;
pub mod services;
pub mod tools;

pub use binary::{penstock, repository};
pub use client::Client;
pub use cluster::Cluster;
pub use process::Process;
pub use server::{Server, Settings};
