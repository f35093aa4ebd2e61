//! Addresses of nodes, and their resolution.
//!
//! **Promise.** Every dial resolves the name again, because addresses change. No serving thread
//! blocks on the resolution. A name server that hangs costs one thread per name, regardless of the
//! number of dials.
//!
//! **Mechanism.** The system's resolver blocks, possibly for minutes. It runs on a detached thread.
//! Concurrent requests for the same name wait for the same resolution.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Address of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerAddress {
    host: String,
    port: u16,
}

/// A name that is not `http://host:port`.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is not http://host:port, the address of a node")]
pub struct InvalidAddress {
    name: String,
}

impl PeerAddress {
    /// Parses the address in the name of a node.
    pub(crate) fn of(name: &str) -> Result<Self, InvalidAddress> {
        let parse = || {
            let (host, port) = name.strip_prefix("http://")?.trim_end_matches('/').rsplit_once(':')?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            Some(Self { host: (!host.is_empty()).then(|| host.to_owned())?, port: port.parse().ok()? })
        };
        parse().ok_or_else(|| InvalidAddress { name: name.to_owned() })
    }

    /// The address in the form of the `Host` header.
    pub(crate) fn to_host_header(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

type Resolved = Result<Vec<SocketAddr>, String>;

/// Resolves names. Clones share the resolutions in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolver {
    waiting: Arc<Mutex<BTreeMap<PeerAddress, Vec<oneshot::Sender<Resolved>>>>>,
}

impl Resolver {
    /// Resolves `address` to at least one socket address. There is no time limit.
    ///
    /// # Errors
    /// The error of the system's resolver, or that the name has no address.
    pub(crate) async fn resolve(&self, address: &PeerAddress) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = address.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, address.port)]);
        }
        let found = self.ask(address)?.await.map_err(io::Error::other)?;
        found.map_err(io::Error::other)
    }

    fn ask(&self, address: &PeerAddress) -> io::Result<oneshot::Receiver<Resolved>> {
        let (answer, answered) = oneshot::channel();
        let is_first = match self.waiting.lock().entry(address.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(vec![answer]);
                true
            }
            Entry::Occupied(mut occupied) => {
                occupied.get_mut().retain(|answer| !answer.is_closed());
                occupied.get_mut().push(answer);
                false
            }
        };
        if is_first && let Err(error) = self.resolve_on_thread(address.clone()) {
            self.waiting.lock().remove(address);
            return Err(error);
        }
        Ok(answered)
    }

    fn resolve_on_thread(&self, address: PeerAddress) -> io::Result<()> {
        let resolver = self.clone();
        let thread = std::thread::Builder::new().name("veche-resolve".to_owned());
        thread.spawn(move || {
            let found = resolve_blocking(&address);
            let waiting = resolver.waiting.lock().remove(&address).unwrap_or_default();
            for answer in waiting {
                let _ = answer.send(found.clone());
            }
        })?;
        Ok(())
    }
}

fn resolve_blocking(address: &PeerAddress) -> Resolved {
    let found = (address.host.as_str(), address.port).to_socket_addrs().map_err(|error| error.to_string())?;
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err("the name has no address".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (name, host) in [
            ("http://a:1", "a:1"),
            ("http://127.0.0.1:8080/", "127.0.0.1:8080"),
            ("http://[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(PeerAddress::of(name).unwrap().to_host_header(), host);
        }
        for name in ["a:1", "http://a", "http://:1", "http://a:b", "http://a:65536"] {
            assert!(PeerAddress::of(name).is_err(), "{name}");
        }
    }

    #[test]
    fn names_are_resolved_and_ip_addresses_are_parsed() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let resolver = Resolver::default();
        let resolve = |name: &str| {
            let address = PeerAddress::of(name).unwrap();
            runtime.block_on(resolver.resolve(&address))
        };
        assert_eq!(resolve("http://[::1]:7").unwrap(), [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 7))]);
        assert!(resolve("http://localhost:7").unwrap().iter().all(|found| found.ip().is_loopback()));
        assert!(resolver.waiting.lock().is_empty());
    }
}
