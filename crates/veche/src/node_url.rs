//! Addresses of nodes in a canonical form, so that they can be compared.

use std::fmt;
use std::str::FromStr;

/// Address `http://host:port`, with scheme and host in lower case and an explicit port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeUrl(String);

/// Text that is not the address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeUrlError(String);

impl fmt::Display for NodeUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not the address of a node; write http://host:port", self.0)
    }
}

impl std::error::Error for NodeUrlError {}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NodeUrl {
    const SCHEME: &str = "http://";

    /// Placeholder for the address of a single node.
    pub(crate) fn unspecified() -> Self {
        Self(format!("{}0.0.0.0:0", Self::SCHEME))
    }

    /// `host:port`.
    pub(crate) fn authority(&self) -> &str {
        &self.0[Self::SCHEME.len()..]
    }
}

impl FromStr for NodeUrl {
    type Err = NodeUrlError;

    fn from_str(text: &str) -> Result<Self, NodeUrlError> {
        let error = || NodeUrlError(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let authority = lower.strip_prefix(Self::SCHEME).ok_or_else(error)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an address in brackets belong to the host.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| error())?),
            _ => (authority, 80u16),
        };
        let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let inner = if is_bracketed { &host[1..host.len() - 1] } else { host };
        let is_host_byte = |byte: u8| {
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'-' | b'_')
                || (is_bracketed && byte == b':')
        };
        if inner.is_empty() || !inner.bytes().all(is_host_byte) || port == 0 {
            return Err(error());
        }
        Ok(Self(format!("{}{host}:{port}", Self::SCHEME)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_canonical_form() {
        let forms = [
            ("http://a:1", "http://a:1"),
            ("HTTP://A.Example:8080/", "http://a.example:8080"),
            ("http://a", "http://a:80"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://[::1]", "http://[::1]:80"),
        ];
        for (text, expected) in forms {
            assert_eq!(text.parse::<NodeUrl>().map(|url| url.to_string()), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in [
            "",
            "a:1",
            "https://a:1",
            "http://",
            "http://:1",
            "http://a:x",
            "http://a:0",
            "http://a/b",
            "http://a,b:1",
            "http://u@a:1",
        ] {
            assert!(text.parse::<NodeUrl>().is_err(), "{text}");
        }
    }
}
