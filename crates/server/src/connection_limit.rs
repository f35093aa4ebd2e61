//! Permits for client connections, and the choice of evictions when permits run short.
//!
//! **Promise.** A client that sends complete requests and reads its responses gets a permit,
//! regardless of other clients' connections that do neither: connections that are idle, that stop
//! in the middle of a request's head or body, or whose clients do not read. Under pressure, which
//! begins before the last permit is taken, such connections are closed. Clients of one address then
//! get no more than their share of the permits. Without pressure they may hold all of them, because
//! a proxy has one address for many clients. An address that holds less than its share gets permits
//! of the address that holds the most, even if all connections of that address are in use. Requests
//! about the node itself (status, readiness, metrics, repair, checkpoints, profiles) get a permit
//! even when no other request does.
//!
//! **Mechanism.** A [`ConnectionPermit`] is counted under the address of its client while the
//! connection lives. There are two degrees of pressure:
//!
//! * The node is *crowded* for an address when half of the permits are taken and that address holds
//!   a quarter of all. Each new connection of the address then evicts connections of the same
//!   address with an unfinished head, oldest first. A flood of half-sent heads from one address
//!   therefore stays at half of the permits. The other half is free for all clients, including
//!   others of that address. A proxy is not affected, because its requests are complete.
//! * Permits are *short* when at most an eighth of them is free. The *share* of an address is then
//!   an equal part of all permits for each address that holds any and for one more, at most a
//!   quarter. An address gets a permit only up to its share and to twice the number of free
//!   permits. Some permits therefore stay free for addresses that hold few or none. Each new
//!   connection evicts inactive connections of the address that holds the most, if it holds more
//!   than its share, else of all addresses. `connection_activity` defines the order. An address
//!   below its share may find no permit while the one with the most holds more than its share. Then
//!   the eviction also closes a connection of that one between two requests, if it has no inactive
//!   one, on each I/O thread.
//!
//! In both cases the listener sends an [`Eviction`] to each I/O thread, which selects the
//! connections. A connection without a permit waits in the listener for at most a second. The
//! reserved permits are additional. They are given to complete heads only, and a connection with a
//! reserved permit ends after its first request.
//!
//! **Caveats.** An IPv6 client is identified by its 64-bit network, which usually belongs to one
//! customer. Shares are equal between addresses: a client with as many addresses as there are
//! permits can hold all of them. A connection is not evicted while the node executes its request.
//! Unless an address below its share lacks a permit, it is not evicted in the 2 seconds after its
//! last request either. A client that sends a request every 2 seconds on each of its connections
//! therefore keeps its share; under pressure it gets no more. A body or a reader counts as stalled
//! after 2 to 3 seconds. A flood of slow bodies can therefore block other clients of *its own
//! address* for that time; meanwhile clients of other addresses use the last eighth of the permits.
//! A connection without a byte counts as unfinished after 200 ms. A client that opens enough
//! connections in that time to use up the permits blocks other clients of its own address while it
//! does so.

use limits::{Budget, MemoryCategory, Reservation};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Memory of an idle connection in bytes: its task, the registration of its socket, and its record
/// for the sweep.
const CONNECTION_BYTES: u64 = 8 << 10;
/// Permits are short when at most this fraction is free: 1 / 8.
const SHORT_FREE_DIVISOR: usize = 8;
/// The node is crowded when at most this fraction of the permits is free: 1 / 2.
const CROWDED_FREE_DIVISOR: usize = 2;
/// The share of one address is at most this fraction of the permits: 1 / 4.
const ADDRESS_DIVISOR: usize = 4;
/// While permits are short, an address gets no further one if it holds this many times as many as
/// are free.
const FREE_FACTOR: usize = 2;
/// Number of additional permits for requests about the node itself.
const RESERVED_MAX: usize = 16;
/// An eviction frees this fraction of the permits beyond the excess, so that the pressure does not
/// return at once: 1 / 64.
const SURPLUS_DIVISOR: usize = 64;
/// Most permits that an eviction frees beyond the excess.
const SURPLUS_MAX: usize = 64;
/// Paths of the requests about the node itself.
const ADMINISTRATION: [&str; 10] = [
    "/v0/status",
    "/v0/ready",
    "/metrics",
    "/v0/slow",
    "/v0/profile",
    "/v0/repair",
    "/v0/layout",
    "/v0/checkpoint",
    "/",
    "*",
];

/// The address by which the connections of a client are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientAddress(IpAddr);

/// The permits of a process.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    max: usize,
    memory: Arc<Budget>,
    counts: Mutex<PermitCounts>,
}

#[derive(Debug, Default)]
struct PermitCounts {
    ordinary: usize,
    reserved: usize,
    by_address: HashMap<ClientAddress, usize>,
}

/// The permit of a connection. Dropping it releases the permit.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    client: ClientAddress,
    /// Memory of the connection. `None`: the permit is a reserved one.
    reservation: Option<Reservation>,
}

/// A request to evict connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// The client whose connections are evicted; `None`: connections of all clients.
    pub(crate) client: Option<ClientAddress>,
    /// Most connections that are evicted.
    pub(crate) count: usize,
    pub(crate) scope: EvictionScope,
}

/// The states in which a connection may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionScope {
    /// Connections with an unfinished head.
    UnfinishedHeads,
    /// All connections whose request makes no progress.
    Inactive,
    /// As `Inactive`. If there is none, one connection between two requests.
    BetweenRequests,
}

/// The decision about a new connection, with the eviction that makes room for later ones.
#[derive(Debug)]
pub(crate) struct ConnectionAdmission {
    /// `None`: no permit is free, or the client holds its share under pressure.
    pub(crate) permit: Option<ConnectionPermit>,
    /// The connections to evict; `None`: enough permits are free.
    pub(crate) eviction: Option<Eviction>,
}

impl ClientAddress {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Self(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

impl ConnectionLimiter {
    /// A limiter with at most `connections_max` permits, and fewer if the memory budget is too
    /// small for them.
    pub(crate) fn new(connections_max: usize, memory: &Arc<Budget>) -> Self {
        let of_memory = memory.category_max(MemoryCategory::Connections) / CONNECTION_BYTES;
        let max = connections_max.min(usize::try_from(of_memory).unwrap_or(usize::MAX));
        Self { max, memory: Arc::clone(memory), counts: Mutex::default() }
    }

    /// Number of permits without the reserved ones.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Decides about a connection of `client`. Requests an eviction if permits or memory are short.
    pub(crate) fn admit(self: &Arc<Self>, client: ClientAddress) -> ConnectionAdmission {
        let reservation = self.memory.reserve(MemoryCategory::Connections, CONNECTION_BYTES);
        let mut counts = self.counts.lock();
        let held = counts.by_address.get(&client).copied().unwrap_or(0);
        let is_short = self.is_short(counts.ordinary);
        let is_full = counts.ordinary >= self.max || (is_short && held >= self.further_max(&counts));
        let is_without_memory = reservation.is_none();
        let reservation = reservation.filter(|_| !is_full);
        let eviction = if is_short || is_without_memory {
            Some(self.eviction(&counts, client, reservation.is_none()))
        } else {
            self.crowding_eviction(counts.ordinary, held, client)
        };
        let Some(reservation) = reservation else {
            return ConnectionAdmission { permit: None, eviction };
        };
        counts.ordinary += 1;
        counts.by_address.insert(client, held + 1);
        let permit = ConnectionPermit { limiter: Arc::clone(self), client, reservation: Some(reservation) };
        ConnectionAdmission { permit: Some(permit), eviction }
    }

    /// The eviction when the process has no descriptor for a further connection.
    pub(crate) fn evict_for_descriptor(&self) -> Eviction {
        let client = self.greatest(&self.counts.lock());
        Eviction { client, count: 1 + self.surplus(), scope: EvictionScope::Inactive }
    }

    /// A reserved permit, for a request about the node itself.
    pub(crate) fn admit_reserved(self: &Arc<Self>, client: ClientAddress) -> Option<ConnectionPermit> {
        let mut counts = self.counts.lock();
        if counts.reserved == RESERVED_MAX {
            return None;
        }
        counts.reserved += 1;
        Some(ConnectionPermit { limiter: Arc::clone(self), client, reservation: None })
    }

    /// The eviction when the node is crowded for `client`, which holds `held` of the `ordinary`
    /// permits taken.
    fn crowding_eviction(&self, ordinary: usize, held: usize, client: ClientAddress) -> Option<Eviction> {
        let excess = (ordinary + self.max / CROWDED_FREE_DIVISOR).checked_sub(self.max)?;
        let count = excess + self.surplus();
        let scope = EvictionScope::UnfinishedHeads;
        let is_crowd = held >= (self.max / ADDRESS_DIVISOR).max(1);
        is_crowd.then_some(Eviction { client: Some(client), count, scope })
    }

    /// The eviction when permits or memory are short and `requester` opens a connection, which gets
    /// a permit unless `is_refused`.
    fn eviction(&self, counts: &PermitCounts, requester: ClientAddress, is_refused: bool) -> Eviction {
        let excess = (counts.ordinary + self.max / SHORT_FREE_DIVISOR).saturating_sub(self.max);
        let count = excess + self.surplus();
        let held = counts.by_address.get(&requester).copied().unwrap_or(0);
        if held >= self.share(counts) {
            return Eviction { client: Some(requester), count, scope: EvictionScope::Inactive };
        }
        let client = self.greatest(counts);
        let scope = match is_refused && client.is_some() {
            true => EvictionScope::BetweenRequests,
            false => EvictionScope::Inactive,
        };
        Eviction { client, count, scope }
    }

    /// The client that holds the most permits, if it holds more than its share.
    fn greatest(&self, counts: &PermitCounts) -> Option<ClientAddress> {
        let greatest = counts.by_address.iter().max_by_key(|(_, held)| **held);
        greatest.filter(|(_, held)| **held > self.share(counts)).map(|(client, _)| *client)
    }

    /// Number of connections that are evicted beyond the excess.
    fn surplus(&self) -> usize {
        (self.max / SURPLUS_DIVISOR).clamp(1, SURPLUS_MAX)
    }

    fn is_short(&self, ordinary: usize) -> bool {
        self.max.saturating_sub(ordinary) <= self.max / SHORT_FREE_DIVISOR
    }

    /// Number of permits from which on an address gets no further one while permits are short. The
    /// fewer are free, the less an address may hold: a dynamic threshold, as for shared buffers
    /// (Choudhury and Hahne, 1998).
    fn further_max(&self, counts: &PermitCounts) -> usize {
        let free = self.max.saturating_sub(counts.ordinary);
        self.share(counts).min(FREE_FACTOR * free)
    }

    /// The share of an address while permits are short.
    fn share(&self, counts: &PermitCounts) -> usize {
        (self.max / ADDRESS_DIVISOR.max(counts.by_address.len() + 1)).max(1)
    }

    fn release(&self, client: ClientAddress, is_reserved: bool) {
        let mut counts = self.counts.lock();
        if is_reserved {
            counts.reserved -= 1;
            return;
        }
        counts.ordinary -= 1;
        if let Entry::Occupied(mut held) = counts.by_address.entry(client) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

impl ConnectionPermit {
    pub(crate) const fn client(&self) -> ClientAddress {
        self.client
    }

    /// Whether the connection ends after one request.
    pub(crate) const fn is_reserved(&self) -> bool {
        self.reservation.is_none()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.release(self.client, self.reservation.is_none());
    }
}

/// Whether a head with these first bytes is that of a request about the node itself.
pub(crate) fn is_administration(begin: &[u8]) -> bool {
    let mut words = begin.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(_)) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let is_method = [&b"GET"[..], b"HEAD", b"POST", b"DELETE", b"OPTIONS"].contains(&method);
    is_method && ADMINISTRATION.iter().any(|known| known.as_bytes() == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use limits::LargestValue;

    fn limiter(max: usize) -> Arc<ConnectionLimiter> {
        let memory = Arc::new(Budget::new(Limits::default().memory_bytes, 0, LargestValue::default()));
        Arc::new(ConnectionLimiter::new(max, &memory))
    }

    fn client(last: u8) -> ClientAddress {
        ClientAddress::of(IpAddr::from([10, 0, 0, last]))
    }

    fn inactive(client: Option<ClientAddress>, count: usize) -> Eviction {
        Eviction { client, count, scope: EvictionScope::Inactive }
    }

    fn take(limiter: &Arc<ConnectionLimiter>, client: ClientAddress) -> Option<ConnectionPermit> {
        limiter.admit(client).permit
    }

    #[test]
    fn one_address_may_hold_all_permits_until_they_run_short() {
        let limiter = limiter(64);
        let mut held: Vec<_> = (0..56).map(|_| take(&limiter, client(1)).expect("a free permit")).collect();
        let greedy = limiter.admit(client(1));
        assert_eq!(greedy.eviction, Some(inactive(Some(client(1)), 1)));
        assert!(greedy.permit.is_none(), "the address holds more than a quarter");
        let other = take(&limiter, client(2)).expect("other addresses hold less");
        let third = limiter.admit(client(3));
        assert_eq!(third.eviction, Some(inactive(Some(client(1)), 2)));
        drop(third);
        held.truncate(48);
        let again = limiter.admit(client(1));
        assert!(again.permit.is_some());
        assert_eq!(again.eviction.map(|eviction| eviction.scope), Some(EvictionScope::UnfinishedHeads));
        drop((other, held, again));
        let counts = limiter.counts.lock();
        assert!(counts.ordinary == 0 && counts.by_address.is_empty());
    }

    #[test]
    fn several_addresses_leave_permits_for_one_that_holds_none() {
        let limiter = limiter(64);
        let mut held: Vec<_> = (0..100).filter_map(|index| take(&limiter, client(1 + index % 5))).collect();
        assert_eq!(held.len(), 56, "each holds more than a sixth when permits run short");
        held.extend((0..8).filter_map(|_| take(&limiter, client(9))));
        assert_eq!(held.len(), 62, "an address holds at most twice as many as are free");
        held.extend([10, 11].map(|last| take(&limiter, client(last)).expect("it holds none")));
        let refused = limiter.admit(client(12));
        assert!(refused.permit.is_none(), "all are taken");
        let eviction = refused.eviction.expect("permits are short");
        assert_eq!(eviction.scope, EvictionScope::BetweenRequests);
        assert!(eviction.client.is_some_and(|greatest| (1..=5).any(|last| greatest == client(last))));
        let greedy = limiter.admit(client(1));
        assert_eq!(greedy.eviction, Some(inactive(Some(client(1)), eviction.count)));
        assert!(greedy.permit.is_none());
    }

    #[test]
    fn a_crowd_of_one_address_loses_unfinished_heads_and_no_other_address_does() {
        let limiter = limiter(64);
        let _held: Vec<_> = (0..32).map(|_| take(&limiter, client(1)).expect("a free permit")).collect();
        let expected = Eviction { client: Some(client(1)), count: 1, scope: EvictionScope::UnfinishedHeads };
        let crowded = limiter.admit(client(1));
        assert!(crowded.permit.is_some());
        assert_eq!(crowded.eviction, Some(expected));
        let other = limiter.admit(client(2));
        assert!(other.permit.is_some() && other.eviction.is_none());
    }

    #[test]
    fn without_a_greedy_address_connections_of_all_addresses_are_evicted() {
        let limiter = limiter(64);
        let _held: Vec<_> =
            (0..60).map(|number| take(&limiter, client(number)).expect("a free permit")).collect();
        assert_eq!(limiter.admit(client(99)).eviction, Some(inactive(None, 5)));
    }

    #[test]
    fn a_lack_of_memory_evicts_connections_before_permits_run_out() {
        let memory = Arc::new(Budget::new(Limits::default().memory_bytes, 0, LargestValue::default()));
        let limiter = Arc::new(ConnectionLimiter::new(64, &memory));
        assert!(limiter.admit(client(1)).eviction.is_none());
        let mut all = memory.empty_reservation(MemoryCategory::Connections);
        let mut step = memory.category_max(MemoryCategory::Connections);
        while step > 0 {
            while all.grow(step) {}
            step /= 2;
        }
        let refused = limiter.admit(client(1));
        assert!(refused.permit.is_none() && refused.eviction.is_some());
        drop(all);
        assert!(limiter.admit(client(1)).permit.is_some());
    }

    #[test]
    fn requests_about_the_node_have_reserved_permits() {
        let limiter = limiter(1);
        let ordinary = take(&limiter, client(1)).expect("the only permit");
        assert!(!ordinary.is_reserved() && take(&limiter, client(2)).is_none());
        let reserved: Vec<_> = (0..RESERVED_MAX)
            .map(|_| limiter.admit_reserved(client(2)).expect("a reserved permit"))
            .collect();
        assert!(
            reserved.iter().all(ConnectionPermit::is_reserved) && limiter.admit_reserved(client(2)).is_none()
        );
        drop(reserved);
        assert!(limiter.admit_reserved(client(2)).is_some());
    }

    #[test]
    fn an_ipv6_client_is_counted_by_its_network() {
        let of = |text: &str| ClientAddress::of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), client(1));
    }

    #[test]
    fn requests_about_the_node_are_recognised_by_their_first_bytes() {
        for begin in [
            "GET /v0/status HTTP/1.1",
            "HEAD /v0/ready HT",
            "GET /metrics?x HTTP/1.1",
            "OPTIONS * HTTP/1.0",
            "POST /v0/checkpoint?name=a ",
            "POST /v0/layout HTTP/1.1",
        ] {
            assert!(is_administration(begin.as_bytes()), "{begin}");
        }
        for begin in [
            "",
            "GET /v0/status",
            "GET /v0/entity?id=k HTTP",
            "GET /v0/statusX HTTP",
            "PUT /v0/status H",
            " / ",
        ] {
            assert!(!is_administration(begin.as_bytes()), "{begin}");
        }
    }
}
