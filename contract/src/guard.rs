//! Where webhooks may go: rules over URLs and addresses that keep a client from making this server call its own network.
//!
//! Only a name's addresses say where it leads, and they may change between two looks. So [`Guard::check_url`] judges what
//! is written, and whoever connects asks [`Guard::check_address`] about the very address it connects to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

#[cfg(test)]
mod tests;

/// The longest address of a webhook, in bytes.
pub const MAX_URL_BYTES: usize = 2048;

/// Ports of HTTPS. On any other port of a stranger's host, a request from here might mean something else than a webhook.
const USUAL_PORTS: [u16; 2] = [443, 8443];

/// Endings of names that lead nowhere but inside.
const INTERNAL_ENDINGS: [&str; 3] = ["localhost", "local", "internal"];

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

/// Networks of IPv4 that are not the public internet: IANA's registry of special-purpose addresses, and one of a cloud.
const BLOCKED_V4: [Ipv4Net; 16] = [
    v4(0, 0, 0, 0, 8),        // this network, and this host
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // behind a carrier's NAT
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // Azure's host, from inside a virtual machine
    v4(169, 254, 0, 0, 16),   // link-local, with the clouds' metadata
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 88, 99, 0, 24),   // relays of 6to4
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarks
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, and broadcast
];

/// All that is assigned to hosts of the public internet. Outside are `::`, `::1`, NAT64 (`64:ff9b::/96`,
/// `64:ff9b:1::/48`), SRv6 (`5f00::/16`), unique local (`fc00::/7`), link-local (`fe80::/10`), site-local (`fec0::/10`),
/// multicast (`ff00::/8`), and whatever is assigned next.
const PUBLIC_V6: Ipv6Net = v6(0x2000, 0, 3);

/// Networks inside [`PUBLIC_V6`] that are not public all the same.
const BLOCKED_V6: [Ipv6Net; 4] = [
    v6(0x2001, 0, 23),     // protocol assignments, with Teredo (2001::/32), which carries IPv4
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x2002, 0, 16),     // 6to4, which carries IPv4
    v6(0x3fff, 0, 20),     // documentation
];

/// Decides where webhooks may go. By default to the public internet only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    allowed: Vec<IpNet>,
}

/// A text that is no network, of the setting `webhooks.allowed_networks`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    /// Neither an address nor a network.
    #[error("`{0}` is not a network; write an address and a prefix length, such as `10.0.0.0/8` or `fd00::/8`")]
    Unreadable(String),
    /// Most likely another network is meant than the one that would be allowed.
    #[error("`{written}` has bits set beyond its prefix; write `{meant}` if all of it is meant")]
    BitsBeyondPrefix {
        /// What was given.
        written: IpNet,
        /// The network of that prefix.
        meant: IpNet,
    },
}

/// Why a webhook may not go somewhere. The text is for the client who named the address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// Longer than [`MAX_URL_BYTES`], as written or after normalising.
    #[error("the address of a webhook is at most {MAX_URL_BYTES} bytes long")]
    TooLong,
    /// No URL, no host, or a host that is neither a name nor an address.
    #[error("this is not a URL of the form `https://host/path`, without spaces")]
    NotAUrl,
    /// Neither `https`, nor `http` to a place where that is allowed.
    #[error("a webhook needs `https://`; `http://` only reaches addresses in the setting `webhooks.allowed_networks`")]
    NotHttps,
    /// A user name or a password.
    #[error("the address of a webhook holds no user name and no password; deliveries are signed instead")]
    UserInfo,
    /// A port that webhooks do not reach at a host of the public internet.
    #[error("a webhook goes to port 443 or 8443; others only at addresses in the setting `webhooks.allowed_networks`")]
    Port,
    /// A name that leads nowhere but inside.
    #[error(
        "`{0}` is a name inside a private network; a webhook needs a public name, or an address in the setting \
         `webhooks.allowed_networks`"
    )]
    InternalName(String),
    /// An address outside the public internet.
    #[error(
        "{0} is not an address of the public internet; to allow it, list its network in the setting \
         `webhooks.allowed_networks`"
    )]
    InternalAddress(IpAddr),
}

impl Guard {
    /// A guard that also lets webhooks into `networks`: each `address/prefix length`, or one address.
    ///
    /// # Errors
    /// [`BadNetwork`], of the first text that is none.
    pub fn allowing<T: AsRef<str>>(networks: &[T]) -> Result<Self, BadNetwork> {
        let allowed = networks.iter().map(|text| network(text.as_ref().trim())).collect::<Result<_, _>>()?;
        Ok(Self { allowed })
    }

    /// Whether `address` is in one of the networks that were allowed by name.
    pub fn allows(&self, address: IpAddr) -> bool {
        let carried = carried(address);
        self.allowed.iter().any(|network| network.contains(&address) || network.contains(&carried))
    }

    /// Whether a connection to `address` may be opened.
    ///
    /// # Errors
    /// [`BadTarget::InternalAddress`].
    pub fn check_address(&self, address: IpAddr) -> Result<(), BadTarget> {
        let public = match carried(address) {
            IpAddr::V4(v4) => !BLOCKED_V4.iter().any(|network| network.contains(&v4)),
            IpAddr::V6(v6) => PUBLIC_V6.contains(&v6) && !BLOCKED_V6.iter().any(|network| network.contains(&v6)),
        };
        if public || self.allows(address) { Ok(()) } else { Err(BadTarget::InternalAddress(address)) }
    }

    /// What may be kept as the address of a webhook, normalised and without a fragment. Where a name leads is not known
    /// here, nor is whether [another port than HTTPS's](Self::has_usual_port) is allowed there: see
    /// [`check_address`](Self::check_address) and [`allows`](Self::allows).
    ///
    /// # Errors
    /// [`BadTarget`], with what to do about it.
    pub fn check_url(&self, text: &str) -> Result<Url, BadTarget> {
        if text.len() > MAX_URL_BYTES {
            return Err(BadTarget::TooLong);
        }
        // The parser drops some of these in silence; what somebody else reads here need not be what it reads.
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(BadTarget::NotAUrl);
        }
        let mut url = Url::parse(text).map_err(|_| BadTarget::NotAUrl)?;
        let secure = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(BadTarget::NotHttps),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BadTarget::UserInfo);
        }
        let (listed, may_be_listed) = match url.host().ok_or(BadTarget::NotAUrl)? {
            Host::Ipv4(address) => self.check_literal(address.into())?,
            Host::Ipv6(address) => self.check_literal(address.into())?,
            Host::Domain(name) => self.check_name(name)?,
        };
        if !secure && !listed {
            return Err(BadTarget::NotHttps);
        }
        let usual = secure && Self::has_usual_port(&url);
        if url.port() == Some(0) || !(usual || listed || may_be_listed) {
            return Err(BadTarget::Port);
        }
        url.set_fragment(None);
        // Normalising writes some characters as three bytes or more.
        if url.as_str().len() > MAX_URL_BYTES { Err(BadTarget::TooLong) } else { Ok(url) }
    }

    /// Whether a URL leads to a port of HTTPS: to others, only at an address that the guard [allows](Self::allows).
    pub fn has_usual_port(url: &Url) -> bool {
        url.port_or_known_default().is_some_and(|port| USUAL_PORTS.contains(&port))
    }

    /// Whether an address is among the allowed networks, and whether that may still turn out.
    fn check_literal(&self, address: IpAddr) -> Result<(bool, bool), BadTarget> {
        self.check_address(address)?;
        Ok((self.allows(address), false))
    }

    /// Whether a name leads into the allowed networks, and whether that may still turn out.
    fn check_name(&self, name: &str) -> Result<(bool, bool), BadTarget> {
        let relative = name.strip_suffix('.').unwrap_or(name);
        // Resolvers disagree about names with an empty label, so none is asked.
        if relative.split('.').any(str::is_empty) {
            return Err(BadTarget::NotAUrl);
        }
        if is_localhost(name) && self.allows(Ipv4Addr::LOCALHOST.into()) {
            return Ok((true, true));
        }
        let ending = relative.rsplit('.').next().unwrap_or(relative);
        if INTERNAL_ENDINGS.iter().any(|internal| ending.eq_ignore_ascii_case(internal)) {
            return Err(BadTarget::InternalName(relative.to_owned()));
        }
        Ok((false, !self.allowed.is_empty()))
    }
}

/// Whether a host is `localhost`, which means 127.0.0.1 here and needs no resolver.
pub fn is_localhost(name: &str) -> bool {
    name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case("localhost")
}

fn network(text: &str) -> Result<IpNet, BadNetwork> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let network: IpNet = text.parse().map_err(|_| BadNetwork::Unreadable(text.chars().take(80).collect()))?;
    if network == network.trunc() {
        Ok(network)
    } else {
        Err(BadNetwork::BitsBeyondPrefix { written: network, meant: network.trunc() })
    }
}

/// The IPv4 address in an IPv6 one that is only another spelling of it (`::ffff:a.b.c.d`, `::a.b.c.d`), else the address.
fn carried(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if !v6.is_loopback() && !v6.is_unspecified() => v6.to_ipv4().map_or(address, IpAddr::V4),
        _ => address,
    }
}
