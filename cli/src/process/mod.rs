//! The parts as processes of their own, as many of each as needed, on backends that they share.

pub mod api;
pub mod migrate;
pub mod scheduler;
pub mod worker;

use anyhow::bail;
use backends::Backends;

use crate::config::Config;
use crate::{embedded, terminal};

/// Opens the backends of a process that is not alone.
///
/// # Errors
/// A backend is one that only its own process can use, or cannot be reached.
async fn shared_backends(settings: &Config) -> anyhow::Result<Backends> {
    let missing: Vec<&str> = [
        ("store.url (postgres://…)", settings.store.url.is_none()),
        ("queue.url (amqp://…)", settings.queue.url.is_none()),
        ("bus.url (redis://…)", settings.bus.url.is_none()),
        ("objects.url (s3://… or file:///… on a shared disk)", settings.objects.url.is_none()),
    ]
    .into_iter()
    .filter_map(|(setting, is_missing)| is_missing.then_some(setting))
    .collect();
    if !missing.is_empty() {
        bail!(
            "processes of their own need backends that they share: set {}, in the settings file or as \
             PENSTOCK_STORE__URL and so on; or run everything in one process with `penstock serve`",
            missing.join(", ")
        );
    }
    let urls = embedded::urls(&settings.serve.data_dir, settings)?;
    if let Some(alone) = urls.only_of_one_process() {
        bail!("{alone} is of one process only, so others cannot share it: see `penstock config`");
    }
    Ok(backends::open(&urls).await?)
}

/// Ends the process at once when it is asked to stop a second time.
fn stop_at_once_when_asked_again() {
    tokio::spawn(async {
        if embedded::asked_to_stop().await.is_ok() {
            terminal::say("stopped at once");
            std::process::exit(130);
        }
    });
}
