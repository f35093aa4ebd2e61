//! Targets of requests: an address with the authority that the user stated.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

const SCHEME: &str = "http://";
const PORT_DEFAULT: u16 = 80;

/// A server. Its text is `http://host:port` or `host:port`. A host name is resolved once, to its
/// first address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    authority: String,
    address: SocketAddr,
}

impl Target {
    /// Value of the `Host` header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Address to connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { authority: address.to_string(), address }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let authority = authority_of(text)?;
        let mut addresses =
            authority.to_socket_addrs().map_err(|error| format!("{text:?} has no address: {error}"))?;
        let address = addresses.next().ok_or_else(|| format!("{text:?} has no address"))?;
        Ok(Self { authority, address })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.authority)
    }
}

/// Parses `host:port`. A URL without a port gets the default port.
fn authority_of(text: &str) -> Result<String, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (is_url, authority) = match lower.strip_prefix(SCHEME) {
        Some(authority) => (true, authority.strip_suffix('/').unwrap_or(authority)),
        None => (false, lower.as_str()),
    };
    if authority.is_empty() || authority.contains(['/', '@', '?', '#', ' ']) {
        return Err(format!("{text:?} is not a target; write http://host:port"));
    }
    match authority.rsplit_once(':') {
        // The colons of a bracketed IPv6 address belong to the host.
        Some((_, port)) if !port.ends_with(']') => Ok(authority.to_owned()),
        _ if is_url => Ok(format!("{authority}:{PORT_DEFAULT}")),
        _ => Err(format!("{text:?} has no port; write http://host:port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_or_host_and_port() {
        for (text, authority) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("HTTP://127.0.0.1:8080/", "127.0.0.1:8080"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://127.0.0.1", "127.0.0.1:80"),
            ("http://[::1]:8080", "[::1]:8080"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert_eq!(text.parse::<Target>().map(|target| target.authority), Ok(authority.to_owned()));
        }
        for text in
            ["", "https://127.0.0.1:1", "127.0.0.1", "http://127.0.0.1:1/path", "http://u@127.0.0.1:1"]
        {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
