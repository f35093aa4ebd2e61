//! Places for the connections of clients, and which connections lose theirs when places run short.
//!
//! **Promise.** A client that sends whole requests and reads its answers gets a place, however many
//! connections other clients hold without doing either: connections that rest, that stay in the
//! middle of a request's head or body, or whose clients do not read. Under pressure, which begins
//! before the last place is taken, such connections are closed. Clients of one address have at most
//! a quarter of the places then; without pressure they may have all of them, since a proxy has one
//! address for many clients. Requests about the node itself (status, readiness, metrics, repair,
//! checkpoints, profiles) get a place even when no other request does.
//!
//! **Mechanism.** A [`ConnectionPermit`] is counted with the address of its client, for as long as the
//! connection lives. There are two degrees of pressure:
//!
//! * The node is *crowded* for an address when half of the places are taken, a quarter of all by
//!   that address. Each new connection of the address then evicts connections of the same address
//!   whose head is not finished, oldest first. So a flood of half-sent heads from one address stays
//!   at half of the places. The other half is free for all clients, of that address too. A proxy is
//!   not affected, because its requests are whole.
//! * Places are *tight* when an eighth is free. Each new connection then evicts connections of the
//!   address that has the most, if it has more than a quarter, else of all addresses. `activity` says
//!   in which order.
//!
//! In both cases the listener sends an [`Eviction`] to each I/O thread, which picks the
//! connections. A connection without a place waits in the listener for at most a second. The
//! reserved places are beside the others. They are given to whole heads only, and a connection with
//! one ends after its first request.
//!
//! **Caveats.** An IPv6 client is counted by its network of 64 bits, which one person has as a
//! rule. A connection is not evicted while the node works on its request, nor in the 2 seconds
//! after its last request. So a client that sends a request every 2 seconds on each of its
//! connections keeps those that it has; under pressure it gets no more. A body or a reader is taken
//! for still after 2 to 3 seconds. A flood of slow bodies can therefore keep other clients of *its
//! own address* out for that time; clients of other addresses have the last eighth of the places
//! meanwhile. A connection without a byte counts as unfinished after 200 ms. A client that opens so
//! many in that time that they fill the places keeps other clients of its own address out for as
//! long as it does so.

use crate::budget::{MemoryBudget, MemoryCategory, Reservation};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// What a connection takes in memory while it rests: its task, its socket's registration, what the sweep knows of it.
const CONNECTION_BYTES: u64 = 8 << 10;
/// Pressure begins when less than one of so many places is free.
const SHORT_FREE_DIVISOR: usize = 8;
/// The node is crowded when less than one place in this number is free.
const CROWDED_FREE_DIVISOR: usize = 2;
/// Under pressure the clients of one address have one of so many places, at most.
const ADDRESS_DIVISOR: usize = 4;
/// Places for requests about the node itself.
const RESERVED_MAX: usize = 16;
/// When pressure is relieved, one of so many places more is made free, so that it does not begin again at once, ...
const SURPLUS_DIVISOR: usize = 64;
/// ... but so many at most.
const SURPLUS_MAX: usize = 64;
/// The paths of requests about the node itself.
const ADMINISTRATION: [&str; 9] = [
    "/v0/status",
    "/v0/ready",
    "/metrics",
    "/v0/slow",
    "/v0/profile",
    "/v0/repair",
    "/v0/checkpoint",
    "/",
    "*",
];

/// A client, as far as places are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientAddress(IpAddr);

/// The places of a process.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    max: usize,
    memory: Arc<MemoryBudget>,
    counts: Mutex<PermitCounts>,
}

#[derive(Debug, Default)]
struct PermitCounts {
    ordinary: usize,
    reserved: usize,
    by_address: HashMap<ClientAddress, usize>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    client: ClientAddress,
    /// `None`: the place is a reserved one.
    reservation: Option<Reservation>,
}

/// Which connections are to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Those of this client alone; `None`: those of all.
    pub(crate) client: Option<ClientAddress>,
    /// So many at most.
    pub(crate) count: usize,
    pub(crate) scope: EvictionScope,
}

/// The states in which a connection may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionScope {
    /// Connections with an unfinished head.
    UnfinishedHeads,
    /// All connections whose request does not make progress.
    Inactive,
}

/// What a connection gets, and what is to be done for those that come later.
#[derive(Debug)]
pub(crate) struct ConnectionAdmission {
    /// `None`: there is no place, or under pressure the client has its share.
    pub(crate) permit: Option<ConnectionPermit>,
    /// The connections to evict; `None`: there are places enough.
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
    /// So many places at most, fewer where the memory budget has no room for them.
    pub(crate) fn new(connections_max: usize, memory: &Arc<MemoryBudget>) -> Self {
        let of_memory = memory.category_max(MemoryCategory::Connections) / CONNECTION_BYTES;
        let max = connections_max.min(usize::try_from(of_memory).unwrap_or(usize::MAX));
        Self { max, memory: Arc::clone(memory), counts: Mutex::default() }
    }

    /// How many places there are, beside the reserved ones.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// A place for a connection of this client, and the connections to evict where places or memory are short.
    pub(crate) fn admit(self: &Arc<Self>, client: ClientAddress) -> ConnectionAdmission {
        let reservation = self.memory.reserve(MemoryCategory::Connections, CONNECTION_BYTES);
        let mut counts = self.counts.lock();
        let held = counts.by_address.get(&client).copied().unwrap_or(0);
        let is_short = self.is_short(counts.ordinary);
        let eviction = if is_short || reservation.is_none() {
            Some(self.eviction(&counts, client))
        } else {
            self.crowding_eviction(counts.ordinary, held, client)
        };
        let is_full = counts.ordinary >= self.max || (is_short && held >= self.address_max());
        let Some(reservation) = reservation.filter(|_| !is_full) else {
            return ConnectionAdmission { permit: None, eviction };
        };
        counts.ordinary += 1;
        counts.by_address.insert(client, held + 1);
        let permit = ConnectionPermit { limiter: Arc::clone(self), client, reservation: Some(reservation) };
        ConnectionAdmission { permit: Some(permit), eviction }
    }

    /// A place for a request about the node itself.
    pub(crate) fn admit_reserved(self: &Arc<Self>, client: ClientAddress) -> Option<ConnectionPermit> {
        let mut counts = self.counts.lock();
        if counts.reserved == RESERVED_MAX {
            return None;
        }
        counts.reserved += 1;
        Some(ConnectionPermit { limiter: Arc::clone(self), client, reservation: None })
    }

    /// The connections to evict when the node is crowded for `client`, which holds `held` of the
    /// `ordinary` places taken.
    fn crowding_eviction(&self, ordinary: usize, held: usize, client: ClientAddress) -> Option<Eviction> {
        let excess = (ordinary + self.max / CROWDED_FREE_DIVISOR).checked_sub(self.max)?;
        let count = excess + self.surplus();
        let scope = EvictionScope::UnfinishedHeads;
        (held >= self.address_max()).then_some(Eviction { client: Some(client), count, scope })
    }

    /// The connections to evict for one of the client `requester`.
    fn eviction(&self, counts: &PermitCounts, requester: ClientAddress) -> Eviction {
        let excess = (counts.ordinary + self.max / SHORT_FREE_DIVISOR).saturating_sub(self.max);
        let (count, scope) = (excess + self.surplus(), EvictionScope::Inactive);
        let held = |client: &ClientAddress| counts.by_address.get(client).copied().unwrap_or(0);
        if held(&requester) >= self.address_max() {
            return Eviction { client: Some(requester), count, scope };
        }
        let greatest = counts.by_address.iter().max_by_key(|(_, held)| **held);
        let client = greatest.filter(|(_, held)| **held > self.address_max()).map(|(client, _)| *client);
        Eviction { client, count, scope }
    }

    /// Connections that are evicted beyond the excess.
    fn surplus(&self) -> usize {
        (self.max / SURPLUS_DIVISOR).clamp(1, SURPLUS_MAX)
    }

    fn is_short(&self, ordinary: usize) -> bool {
        self.max.saturating_sub(ordinary) <= self.max / SHORT_FREE_DIVISOR
    }

    fn address_max(&self) -> usize {
        (self.max / ADDRESS_DIVISOR).max(1)
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

    /// Whether its connection ends after one request.
    pub(crate) const fn is_reserved(&self) -> bool {
        self.reservation.is_none()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.release(self.client, self.reservation.is_none());
    }
}

/// Whether a head that begins like this is that of a request about the node itself.
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
    use crate::budget::LargestValue;
    use crate::config::Limits;

    fn limiter(max: usize) -> Arc<ConnectionLimiter> {
        let memory = Arc::new(MemoryBudget::new(&Limits::default(), 0, LargestValue::default()));
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
    fn one_address_may_have_all_places_until_they_run_short() {
        let limiter = limiter(64);
        let mut held: Vec<_> = (0..56).map(|_| take(&limiter, client(1)).expect("a free place")).collect();
        let greedy = limiter.admit(client(1));
        assert_eq!(greedy.eviction, Some(inactive(Some(client(1)), 1)));
        assert!(greedy.permit.is_none(), "it has more than a quarter");
        let other = take(&limiter, client(2)).expect("others have not");
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
    fn a_crowd_of_one_address_loses_unfinished_heads_and_no_other_address_does() {
        let limiter = limiter(64);
        let _held: Vec<_> = (0..32).map(|_| take(&limiter, client(1)).expect("a free place")).collect();
        let expected = Eviction { client: Some(client(1)), count: 1, scope: EvictionScope::UnfinishedHeads };
        let crowded = limiter.admit(client(1));
        assert!(crowded.permit.is_some());
        assert_eq!(crowded.eviction, Some(expected));
        let other = limiter.admit(client(2));
        assert!(other.permit.is_some() && other.eviction.is_none());
    }

    #[test]
    fn without_a_greedy_address_all_are_looked_at() {
        let limiter = limiter(64);
        let _held: Vec<_> =
            (0..60).map(|number| take(&limiter, client(number)).expect("a free place")).collect();
        assert_eq!(limiter.admit(client(99)).eviction, Some(inactive(None, 5)));
    }

    #[test]
    fn where_memory_is_short_connections_are_evicted_before_places_run_out() {
        let memory = Arc::new(MemoryBudget::new(&Limits::default(), 0, LargestValue::default()));
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
    fn requests_about_the_node_have_places_of_their_own() {
        let limiter = limiter(1);
        let ordinary = take(&limiter, client(1)).expect("the only one");
        assert!(!ordinary.is_reserved() && take(&limiter, client(2)).is_none());
        let reserved: Vec<_> =
            (0..RESERVED_MAX).map(|_| limiter.admit_reserved(client(2)).expect("one")).collect();
        assert!(
            reserved.iter().all(ConnectionPermit::is_reserved) && limiter.admit_reserved(client(2)).is_none()
        );
        drop(reserved);
        assert!(limiter.admit_reserved(client(2)).is_some());
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let of = |text: &str| ClientAddress::of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), client(1));
    }

    #[test]
    fn requests_about_the_node_are_known_by_their_beginning() {
        for begin in [
            "GET /v0/status HTTP/1.1",
            "HEAD /v0/ready HT",
            "GET /metrics?x HTTP/1.1",
            "OPTIONS * HTTP/1.0",
            "POST /v0/checkpoint?name=a ",
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
