//! Chaos: every process killed and every service restarted at random while clients submit, wait, stream and cancel; then a
//! ledger that the clients kept is held against the database and the API.
//!
//! The suite runs about three minutes. The long form: `PENSTOCK_CHAOS_SECONDS=900 cargo test --release -p tests --test
//! chaos -- --nocapture`; `PENSTOCK_CHAOS_SEED` repeats a run's choices (not its timing).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod check;
mod clients;
mod faults;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tests::cluster::Cluster;
use tests::proxy::Proxies;
use tests::services::Services;

use crate::clients::{Clients, Ledger};
use crate::faults::{Faults, Installation};

/// Jobs that may be unfinished in each class: small, so that the bound is met.
const BOUND: u64 = 150;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_made_up() {
    let seconds = setting("PENSTOCK_CHAOS_SECONDS", 100);
    let seed = setting("PENSTOCK_CHAOS_SEED", u64::from(std::process::id()));
    println!("chaos: seed {seed}, {seconds} s");
    let services = Services::own("chaos-services");
    let proxies = Proxies::to(&services).await;
    let cluster = Cluster::on(&services, |url| proxies.way(url))
        .await
        .with("PENSTOCK_LIMITS__INTERACTIVE", BOUND)
        .with("PENSTOCK_LIMITS__STANDARD", BOUND)
        .with("PENSTOCK_LIMITS__BULK", BOUND)
        .with("PENSTOCK_WORKER__LEASE_SECONDS", 5)
        .with("PENSTOCK_SERVE__DRAIN_SECONDS", 2)
        .with("PENSTOCK_TRAJECTORIES__SEGMENT_SECONDS", 5)
        .with("PENSTOCK_LOG__LEVEL", "warn");
    let installation = Installation::start(&cluster).await;
    let ledger = Arc::new(Ledger::default());
    let clients = Clients::start(&installation.addresses, Arc::clone(&ledger), seed, 16);
    let watch = check::watch_bounds(cluster.database.clone());

    let mut faults = Faults::new(seed, &services, proxies, installation);
    let begin = Instant::now();
    // Whole decks, so that every fault came as often as it should.
    loop {
        let is_used_up = faults.strike(&cluster).await;
        if is_used_up && begin.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
    println!("chaos: {:.0} s of faults: {}", begin.elapsed().as_secs_f64(), faults.summary());
    faults.heal(&cluster).await;
    clients.stop().await;
    println!("chaos: {}", ledger.summary());
    let most = watch.stop().await;
    println!("chaos: at most {most} unfinished in a class, bound {BOUND}");
    assert!(most <= BOUND, "the bound was overrun: {most}");
    assert!(most > BOUND * 2 / 3, "the bound was never near: {most}");
    check::all(&cluster, &ledger, faults.addresses()).await;
}
