//! A model of connection admission in virtual time. Hostile clients open connections without end,
//! beside clients that send one request each.
//!
//! The model uses the real [`ConnectionLimiter`] and [`Connections`]. A step is a millisecond. As
//! in the listener, an eviction is executed one step after the admission that asked for it, one at
//! a time. A client without a permit tries again every 50 ms.

use super::*;
use crate::connection_limit::{ConnectionLimiter, ConnectionPermit};
use limits::LargestValue;
use std::net::IpAddr;

const PERMITS: usize = 1_024;
const STEP: Duration = Duration::from_millis(1);
const RETRY_STEPS: u64 = 50;
/// Steps between two clients that send a request.
const REQUEST_EVERY: u64 = 20;
/// Steps from the accepted connection to its request, and from the request to the response.
const STEPS_TO_REQUEST: u64 = 2;
const STEPS_TO_ANSWER: u64 = 5;
const HOSTILE_ADDRESS: u8 = 1;
/// The address of clients beside hostile connections of other addresses.
const NEW_ADDRESS: u8 = 2;
/// Steps between two requests of a busy connection: less than the time after which it is idle.
const BUSY_EVERY: u64 = 400;
/// Consecutive refusals after which an address has opened all the connections that it gets.
const REFUSALS: usize = 100;

/// Behaviour of a hostile connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hostility {
    Silent,
    HalfSentHead,
    /// A body of which no byte arrives.
    Body,
    /// A response that is not read.
    Reader,
    /// A small request every [`BUSY_EVERY`] steps, which is answered at once.
    Busy,
}

struct World {
    limiter: Arc<ConnectionLimiter>,
    connections: Rc<Connections>,
    memory: Budget,
    now: Instant,
    eviction: Option<Eviction>,
    hostile: Vec<(ConnectionEntry, ConnectionPermit)>,
    clients: Vec<Client>,
    /// The steps for which each client waited for its permit.
    waits: Vec<u64>,
}

/// A client that sends one request.
struct Client {
    address: u8,
    came: u64,
    /// The connection with its permit and the step of its admission.
    admitted: Option<(ConnectionEntry, ConnectionPermit, u64)>,
}

fn address(last: u8) -> ClientAddress {
    ClientAddress::of(IpAddr::from([10, 0, 0, last]))
}

impl World {
    fn new() -> Self {
        let memory = || Budget::new(Limits::default().memory_bytes, 0, LargestValue::default());
        Self {
            limiter: Arc::new(ConnectionLimiter::new(PERMITS, &Arc::new(memory()))),
            connections: Rc::default(),
            memory: memory(),
            now: Instant::now(),
            eviction: None,
            hostile: Vec::new(),
            clients: Vec::new(),
            waits: Vec::new(),
        }
    }

    fn admit(&mut self, last: u8) -> Option<(ConnectionEntry, ConnectionPermit)> {
        let admission = self.limiter.admit(address(last));
        self.eviction = self.eviction.or(admission.eviction);
        Some((self.connections.register(address(last), self.now), admission.permit?))
    }

    /// Opens a hostile connection. Returns whether it was admitted.
    fn open_hostile(&mut self, hostility: Hostility, address: u8) -> bool {
        let Some((entered, permit)) = self.admit(address) else { return false };
        let activity = &entered.activity;
        match hostility {
            Hostility::Silent => {}
            Hostility::HalfSentHead => activity.position.set(ReadPosition::InHead),
            Hostility::Body => {
                activity.requests.set(1);
                activity.handling.set(true);
                activity.waits_for_body.set(true);
            }
            Hostility::Reader => {
                activity.requests.set(1);
                activity.write_blocked.set(true);
            }
            Hostility::Busy => activity.requests.set(1),
        }
        self.hostile.push((entered, permit));
        true
    }

    /// Opens busy connections of `address` until it gets no more.
    fn fill(&mut self, address: u8) {
        let mut refusals = 0;
        while refusals < REFUSALS {
            refusals = if self.open_hostile(Hostility::Busy, address) { 0 } else { refusals + 1 };
        }
        self.eviction = None;
    }

    /// Lets the busy connections send their requests of this step.
    fn keep_busy(&self, step: u64) {
        for (index, (entered, _)) in self.hostile.iter().enumerate() {
            if (step + index as u64).is_multiple_of(BUSY_EVERY) {
                entered.activity.requests.set(entered.activity.requests.get() + 1);
            }
        }
    }

    fn step(&mut self, step: u64) {
        if let Some(eviction) = self.eviction.take() {
            self.connections.evict(eviction, self.now);
        }
        if step.is_multiple_of(1_000) {
            self.connections.seconds.set(step / 1_000);
            self.connections.check_all(&Limits::default(), &self.memory);
        }
        self.hostile.retain(|(entered, _)| entered.activity.close_order().is_none());
        self.serve_clients(step);
        self.now += STEP;
    }

    fn serve_clients(&mut self, step: u64) {
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| {
            let Some((entered, _, admitted)) = &client.admitted else {
                if (step - client.came).is_multiple_of(RETRY_STEPS) {
                    let admitted = self.admit(client.address);
                    client.admitted = admitted.map(|(entered, permit)| (entered, permit, step));
                }
                return true;
            };
            let activity = &entered.activity;
            if activity.close_order().is_some() {
                assert!(!activity.awaits_head(), "a client that arrived in step {} was evicted", client.came);
                activity.withdraw_close_if_idle();
            }
            if step - admitted == STEPS_TO_REQUEST {
                activity.requests.set(1);
                activity.handling.set(true);
            }
            if step - admitted < STEPS_TO_REQUEST + STEPS_TO_ANSWER {
                return true;
            }
            self.waits.push(admitted - client.came);
            false
        });
        self.clients = clients;
    }

    /// Runs `steps` with `per_step` hostile connections of one address in each, and clients of the
    /// address `client`. Returns the longest wait of a client for its permit, in milliseconds.
    fn run(&mut self, hostility: Hostility, per_step: usize, client: u8, steps: u64) -> u64 {
        self.run_from(&[HOSTILE_ADDRESS], hostility, per_step, client, steps)
    }

    /// As [`World::run`], with hostile connections of several addresses in turn.
    fn run_from(
        &mut self,
        addresses: &[u8],
        hostility: Hostility,
        per_step: usize,
        client: u8,
        steps: u64,
    ) -> u64 {
        let mut next = addresses.iter().cycle();
        for step in 0..steps {
            for address in next.by_ref().take(per_step) {
                self.open_hostile(hostility, *address);
            }
            if hostility == Hostility::Busy {
                self.keep_busy(step);
            }
            if step.is_multiple_of(REQUEST_EVERY) {
                self.clients.push(Client { address: client, came: step, admitted: None });
            }
            self.step(step);
        }
        let waiting = self.clients.iter().filter(|client| client.admitted.is_none());
        let waits = self.waits.iter().copied().chain(waiting.map(|client| steps - client.came));
        waits.max().expect("clients were admitted or wait")
    }
}

#[test]
fn whole_requests_of_any_address_are_admitted_at_once_beside_half_sent_heads() {
    for per_step in [1, 3, 20] {
        for client in [HOSTILE_ADDRESS, 2] {
            let wait = World::new().run(Hostility::HalfSentHead, per_step, client, 5_000);
            assert_eq!(wait, 0, "{per_step} in a millisecond, client {client}");
        }
    }
}

#[test]
fn whole_requests_are_admitted_within_a_second_beside_silent_connections() {
    // A faster flood blocks other clients of its own address: see the caveats of
    // `connection_limit`.
    for (per_step, client) in [(1, HOSTILE_ADDRESS), (3, HOSTILE_ADDRESS), (1, 2), (3, 2), (20, 2)] {
        let wait = World::new().run(Hostility::Silent, per_step, client, 5_000);
        assert!(wait <= 1_000, "{wait} ms: {per_step} in a millisecond, client {client}");
    }
}

#[test]
fn clients_of_other_addresses_are_admitted_beside_stalled_bodies_and_readers() {
    for hostility in [Hostility::Body, Hostility::Reader] {
        let wait = World::new().run(hostility, 3, 2, 10_000);
        assert_eq!(wait, 0, "{hostility:?}");
    }
}

#[test]
fn clients_of_the_same_address_are_admitted_once_bodies_and_readers_have_stalled() {
    for hostility in [Hostility::Body, Hostility::Reader] {
        let wait = World::new().run(hostility, 3, HOSTILE_ADDRESS, 20_000);
        assert!(wait <= 4_000, "{hostility:?}: {wait} ms");
    }
}

#[test]
fn clients_of_a_new_address_are_admitted_beside_busy_connections_of_any_number_of_others() {
    for addresses in [1, 2, 5, 60, 200] {
        let hostile: Vec<u8> = (0..addresses).map(|index| 20 + index).collect();
        let wait = World::new().run_from(&hostile, Hostility::Busy, 3, NEW_ADDRESS, 5_000);
        assert_eq!(wait, 0, "{addresses} hostile addresses");
    }
}

#[test]
fn a_new_address_gets_the_permits_of_the_address_that_holds_the_most() {
    for later in [&[3][..], &[3, 4], &[3, 4, 5, 6]] {
        let mut world = World::new();
        [HOSTILE_ADDRESS].iter().chain(later).for_each(|address| world.fill(*address));
        let hostile: Vec<u8> = [HOSTILE_ADDRESS].iter().chain(later).copied().collect();
        let wait = world.run_from(&hostile, Hostility::Busy, 3, NEW_ADDRESS, 5_000);
        assert!(wait <= 2 * RETRY_STEPS, "{wait} ms: {} hostile addresses", hostile.len());
    }
}

#[test]
fn busy_connections_keep_their_permits_while_no_client_lacks_one() {
    let mut world = World::new();
    world.fill(HOSTILE_ADDRESS);
    let held = world.hostile.len();
    assert!(held >= PERMITS / 2, "{held}");
    assert_eq!(world.run_from(&[], Hostility::Busy, 0, NEW_ADDRESS, 5_000), 0);
    assert_eq!(world.hostile.len(), held, "a permit was free for each client");
}
