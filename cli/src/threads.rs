//! Compute threads as configured.
//!
//! The pool takes its size from the environment, once. A process can only change its own environment while nothing else
//! reads it, which no library can promise; so the process starts itself anew with the right variables, before it has
//! done anything else.

use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;

/// What the pool reads first; a value that is there already is the user's own word.
const POOL: &str = "CANDLE_NUM_THREADS";
/// What other parts of the numeric library read.
const OTHERS: &str = "RAYON_NUM_THREADS";
/// Rounds a compute thread spins before it sleeps. The library's own 25,000 make a step several times slower where other
/// programs want the cores, and no quicker where they do not.
const SPIN: (&str, &str) = ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "2000");

/// Makes sure that `wanted` threads compute.
///
/// # Errors
/// When the process cannot start itself anew.
pub fn settle(wanted: NonZeroUsize) -> anyhow::Result<()> {
    if std::env::var_os(POOL).is_some() {
        return Ok(());
    }
    let binary = std::env::current_exe().context("this program cannot find itself to set its compute threads")?;
    let mut again = Command::new(binary);
    again.args(std::env::args_os().skip(1)).env(POOL, wanted.to_string()).env(OTHERS, wanted.to_string());
    if std::env::var_os(SPIN.0).is_none() {
        again.env(SPIN.0, SPIN.1);
    }
    // Returns only when it failed.
    Err(again.exec()).context("this program cannot start itself anew to set its compute threads")
}
