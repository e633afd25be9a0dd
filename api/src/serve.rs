//! Serving: connections with timeouts, and an orderly end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Deps;
use crate::routes;
use crate::stall::StallGuard;
use crate::state::AppState;

/// Largest head of a request in bytes; hyper answers a larger one with 431.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How long streams that were told to end may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Pause after the system refused a connection (out of file descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is done, then drains: no new connections; idle ones close; long polls answer what they
/// have; calls and streams go on for [`crate::Limits::grace`], and what is left then ends with an error. Returns when
/// all is quiet.
pub async fn run(listener: TcpListener, deps: Deps, shutdown: impl Future<Output = ()>) {
    let limits = deps.limits;
    let state = AppState::new(deps);
    let app = routes::app(state.clone());
    let slots = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // A slot first, so that a flood waits in the system's backlog and not here.
        let accepted = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            (slot, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = connection(stream, app.clone(), state.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(error = %error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    state.draining.cancel();
    drain(&state, connections, limits.grace).await;
}

async fn drain(state: &AppState, mut connections: JoinSet<()>, grace: Duration) {
    tracing::info!(connections = connections.len(), grace_ms = grace.as_millis() as u64, "draining");
    let all_done = async |connections: &mut JoinSet<()>| while connections.join_next().await.is_some() {};
    if tokio::time::timeout(grace, all_done(&mut connections)).await.is_err() {
        state.closing.cancel();
        if tokio::time::timeout(LAST_WORDS, all_done(&mut connections)).await.is_err() {
            tracing::warn!(connections = connections.len(), "cut the connections that would not end");
        }
    }
    connections.shutdown().await;
    // Accepts that are under way, and cancels of the calls that were cut.
    state.tasks.close();
    if tokio::time::timeout(LAST_WORDS, state.tasks.wait()).await.is_err() {
        tracing::warn!(tasks = state.tasks.len(), "left accepts or cancels unfinished; deadlines end those jobs");
    }
}

async fn connection(stream: TcpStream, app: axum::Router, state: AppState) {
    let limits = state.deps.limits;
    // Tokens are small and each matters now.
    let _: io::Result<()> = stream.set_nodelay(true);
    let io = TokioIo::new(StallGuard::new(stream, limits.write_stall));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).max_buf_size(MAX_HEAD_BYTES);
    let mut serving = pin!(server.serve_connection(io, TowerToHyperService::new(app)));
    let mut draining = pin!(state.draining.cancelled());
    let mut told = false;
    let outcome = loop {
        tokio::select! {
            outcome = &mut serving => break outcome,
            () = &mut draining, if !told => {
                told = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error = %error, "a connection broke off");
    }
}
