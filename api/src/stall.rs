//! Cuts a connection whose peer stops taking what is there to send: a stuck reader holds no place for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Wraps a connection; a write that makes no progress for `patience` is an error.
pub(crate) struct StallGuard<S> {
    inner: S,
    patience: Duration,
    /// Set while a write waits for room.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    pub fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience, alarm: None }
    }

    /// Passes `polled` on; while it is pending, the alarm runs.
    fn watch(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.alarm = None;
            return polled;
        }
        let patience = self.patience;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(alarm.as_mut().poll(cx));
        alarm.as_mut().reset(Instant::now() + patience);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.watch(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush: it always succeeds, which is no progress of the peer's.
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_cut() {
        let (ours, mut theirs) = duplex(8);
        let mut guarded = StallGuard::new(ours, Duration::from_millis(30));
        guarded.write_all(b"12345678").await.unwrap();
        assert_eq!(guarded.write_all(b"9").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // One that reads again is served again.
        let mut taken = [0; 8];
        theirs.read_exact(&mut taken).await.unwrap();
        guarded.write_all(b"9").await.unwrap();
    }
}
