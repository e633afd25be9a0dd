//! A way to the broker that a test can cut, slow down, or let go silent.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// Bytes stay where they are, and nobody is told.
    Silent,
    /// Each piece of data is held back for so long.
    Slow(Duration),
    /// What is connected is cut, and newcomers too.
    Cut,
}

pub struct Proxy {
    way: watch::Sender<Way>,
}

impl Proxy {
    /// In front of the broker of a URL; answers the URL that goes through it.
    pub async fn before(url: &str) -> (Self, String) {
        let (credentials, rest) = url.rsplit_once('@').unwrap();
        let (to, vhost) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (way, ways) = watch::channel(Way::Open);
        tokio::spawn(accept(listener, Arc::from(to), ways));
        (Self { way }, format!("{credentials}@127.0.0.1:{port}/{vhost}"))
    }

    pub fn cut(&self) {
        self.way.send_replace(Way::Cut);
    }

    pub fn silence(&self) {
        self.way.send_replace(Way::Silent);
    }

    pub fn slow(&self, delay: Duration) {
        self.way.send_replace(Way::Slow(delay));
    }

    pub fn open(&self) {
        self.way.send_replace(Way::Open);
    }
}

async fn accept(listener: TcpListener, to: Arc<str>, ways: watch::Receiver<Way>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(carry(client, to.clone(), ways.clone()));
    }
}

async fn carry(client: TcpStream, to: Arc<str>, mut ways: watch::Receiver<Way>) {
    let Ok(broker) = TcpStream::connect(&*to).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_broker, to_broker) = broker.into_split();
    tokio::select! {
        () = copy(from_client, to_broker, ways.clone()) => {}
        () = copy(from_broker, to_client, ways.clone()) => {}
        _ = ways.wait_for(|way| *way == Way::Cut) => {}
    }
}

async fn copy(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, mut ways: watch::Receiver<Way>) {
    let mut bytes = [0; 16_384];
    while let Ok(n_bytes @ 1..) = from.read(&mut bytes).await {
        let way = ways.wait_for(|way| matches!(way, Way::Open | Way::Slow(_))).await.map(|way| *way);
        if let Ok(Way::Slow(delay)) = way {
            tokio::time::sleep(delay).await;
        }
        if way.is_err() || to.write_all(&bytes[..n_bytes]).await.is_err() {
            return;
        }
    }
}
