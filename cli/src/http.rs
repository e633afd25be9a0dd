//! The one way this program makes HTTP clients: rustls with ring, the system's proxies and certificates.

use std::time::Duration;

/// How long a connection may take to come about, before something else is tried or said.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that honours `HTTPS_PROXY`, `NO_PROXY`, the system's certificates and `SSL_CERT_FILE`. Without a bound on the
/// whole request, since downloads and long polls last; `quiet` bounds the time in which nothing at all arrives.
///
/// # Errors
/// When the system's certificates cannot be read.
pub fn client(quiet: Duration) -> Result<reqwest::Client, reqwest::Error> {
    // An error says that a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(quiet)
        .build()
}

/// The innermost reason of a failed request: the layers above it only repeat that it failed.
pub fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
