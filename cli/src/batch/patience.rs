//! A server that answered before may be restarting: what it holds survives that.

use std::time::{Duration, Instant};

use crate::client::server::ServerError;
use crate::terminal;

/// How long a server that had answered may be away.
const LONGEST: Duration = Duration::from_secs(60);
/// Between two tries.
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(1) };

/// Bears with a server for a minute, once it has answered.
#[derive(Debug, Default)]
pub struct Patience {
    met: bool,
    lost_at: Option<Instant>,
}

impl Patience {
    /// Asks until there is an answer. Only for requests that may be repeated.
    ///
    /// # Errors
    /// The first request of all fails; the server refuses; it stays away for a minute.
    pub async fn ask<T>(&mut self, mut request: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        loop {
            match request().await {
                Ok(answer) => {
                    self.met = true;
                    if self.lost_at.take().is_some() {
                        terminal::say("the server is back");
                    }
                    return Ok(answer);
                }
                Err(error) => self.bear(error).await?,
            }
        }
    }

    async fn bear(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let may_pass = error.downcast_ref::<ServerError>().is_some_and(|error| match error {
            ServerError::Unreachable { .. } => true,
            ServerError::Refused(refusal) => matches!(refusal.status, 429 | 503),
            // A proxy says that nobody is behind it.
            ServerError::Foreign { status, .. } => matches!(status, 502..=504),
        });
        if !may_pass || !self.met {
            return Err(error);
        }
        let is_new = self.lost_at.is_none();
        let lost_at = *self.lost_at.get_or_insert_with(Instant::now);
        if lost_at.elapsed() >= LONGEST {
            return Err(error);
        }
        if is_new {
            terminal::say(&format!("the server is away; trying again for {} s", LONGEST.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::server::Refusal;

    fn refused(status: u16) -> anyhow::Error {
        ServerError::Refused(Refusal { status, ..Refusal::default() }).into()
    }

    #[tokio::test]
    async fn only_a_server_that_was_there_is_waited_for() {
        let mut patience = Patience::default();
        assert!(patience.ask(async || Err::<(), _>(refused(503))).await.is_err(), "it was never there");
        patience.ask(async || Ok(())).await.unwrap();
        let mut tries = 0;
        let answer = patience
            .ask(async || {
                tries += 1;
                if tries < 4 { Err(refused(503)) } else { Ok(tries) }
            })
            .await;
        assert_eq!(answer.unwrap(), 4);
        let refusal = patience.ask(async || Err::<(), _>(refused(404))).await.unwrap_err();
        assert!(refusal.to_string().contains("404"), "a refusal is final");
    }
}
