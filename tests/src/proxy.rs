//! A TCP proxy that cuts and delays: the network between processes and services, in the hands of a test.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::services::Services;

/// Where a URL leads: host and port.
fn target(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    rest.split('/').next().unwrap_or(rest)
}

/// One in front of each service.
pub struct Proxies {
    /// Postgres.
    pub store: Proxy,
    /// RabbitMQ.
    pub queue: Proxy,
    /// Redis.
    pub bus: Proxy,
    /// The S3-compatible server.
    pub objects: Proxy,
}

impl Proxies {
    /// Proxies for these services.
    ///
    /// # Panics
    /// As [`Proxy::to`].
    pub async fn to(services: &Services) -> Self {
        let proxy = async |name: &str| Proxy::to(target(services.get(name))).await;
        Self {
            store: proxy("PENSTOCK_TEST_STORE").await,
            queue: proxy("PENSTOCK_TEST_QUEUE").await,
            bus: proxy("PENSTOCK_TEST_BUS").await,
            objects: proxy("PENSTOCK_TEST_S3_ENDPOINT").await,
        }
    }

    /// All of them: store, queue, bus, objects.
    pub fn all(&self) -> [&Proxy; 4] {
        [&self.store, &self.queue, &self.bus, &self.objects]
    }

    /// The URL of a service, or its endpoint, through its proxy.
    ///
    /// # Panics
    /// When it leads to none of the services.
    pub fn way(&self, url: &str) -> String {
        let proxy = self.all().into_iter().find(|proxy| proxy.target == target(url));
        let port = proxy.expect("every service is proxied").port;
        url.replacen(target(url), &format!("127.0.0.1:{port}"), 1)
    }
}

/// One proxied address; ends when dropped.
pub struct Proxy {
    /// Where it listens, on loopback.
    pub port: u16,
    /// Where it leads, `host:port`.
    target: String,
    delay_ms: Arc<AtomicU64>,
    /// Connections of an older generation end.
    generation: watch::Sender<u64>,
    /// While true, connections are accepted and closed at once.
    refusing: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Passes connections on to `target` (`host:port`).
    ///
    /// # Panics
    /// When there is no port left on loopback.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let (generation, generations) = watch::channel(0);
        let (refusing, is_refusing) = watch::channel(false);
        let delay_ms = Arc::new(AtomicU64::new(0));
        let accepting = tokio::spawn({
            let (target, delay_ms) = (target.to_owned(), Arc::clone(&delay_ms));
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if *is_refusing.borrow() {
                        continue;
                    }
                    let (target, delay_ms, cut) = (target.clone(), Arc::clone(&delay_ms), generations.clone());
                    tokio::spawn(async move {
                        // The end of a connection is what the test asked for, or what either side did.
                        let _ended = pass(client, &target, &delay_ms, cut).await;
                    });
                }
            }
        });
        Self { port, target: target.to_owned(), delay_ms, generation, refusing, accepting }
    }

    /// Cuts every connection that there is; new ones pass.
    pub fn cut(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Cuts every connection and lets no new one through, or lets them through again.
    pub fn refuse(&self, refuse: bool) {
        self.refusing.send_replace(refuse);
        if refuse {
            self.cut();
        }
    }

    /// Holds every piece of data back for so long, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn pass(
    client: TcpStream,
    target: &str,
    delay_ms: &AtomicU64,
    mut generation: watch::Receiver<u64>,
) -> io::Result<()> {
    generation.mark_unchanged();
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        // Also when the proxy is gone.
        _ = generation.changed() => Ok(()),
        ended = copy(&mut from_client, &mut to_server, delay_ms) => ended,
        ended = copy(&mut from_server, &mut to_client, delay_ms) => ended,
    }
}

async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    delay_ms: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        let delay = delay_ms.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        to.write_all(&buffer[..n]).await?;
    }
}
