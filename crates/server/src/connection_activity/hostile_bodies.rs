//! A model of bodies in virtual time. Hostile clients of one address send most of a body and then
//! only as much as is needed not to count as silent, again and again. A client of another address
//! sends one body after the other.
//!
//! The model uses the real [`Budget`], [`MemoryHolders`] and [`Connections`]. A step is
//! 50 ms, the interval in which a waiting client tries to get memory.

use super::*;
use limits::{LargestValue, Reservation};

const STEPS_PER_SECOND: u64 = 20;
/// Longest wait of a body for memory, as in `memory_holders`.
const WAIT_STEPS: u64 = 5 * STEPS_PER_SECOND;
const BODY_BYTES: u64 = 2_000_000;
/// Bytes of a hostile body that arrive without delay.
const HOSTILE_BYTES: u64 = 1_700_000;
/// Bytes of a body that arrive in a step.
const FAST_BYTES: u64 = 400_000;
/// Bytes of a slow body that arrive in a step: 12 KB/s.
const SLOW_BYTES: u64 = 600;

/// A body that is being received.
struct Body {
    entry: ConnectionEntry,
    holding: HoldsMemory,
    reservation: Reservation,
    received: u64,
}

struct World {
    holders: Arc<MemoryHolders>,
    connections: Rc<Connections>,
    /// The bodies of hostile clients, each with the last number of its address.
    hostile: Vec<(u8, Body)>,
    step: u64,
}

impl World {
    /// A world with a budget of 24 MiB for bodies, and with hostile clients of these addresses.
    fn new(addresses: impl IntoIterator<Item = u8>) -> Self {
        let limits = Limits { memory_bytes: 48 << 20, ..Limits::default() };
        let memory = Arc::new(Budget::new(limits.memory_bytes, 0, LargestValue::default()));
        let (holders, connections) = (Arc::new(MemoryHolders::new(memory)), Rc::default());
        let mut world = Self { holders, connections, hostile: Vec::new(), step: 0 };
        world.hostile = addresses.into_iter().map(|address| (address, world.body(address))).collect();
        world
    }

    fn body(&self, address: u8) -> Body {
        let client = ClientAddress::of(IpAddr::from([10, 0, 0, address]));
        let entry = self.connections.register(client, Instant::now());
        let activity = &entry.activity;
        activity.requests.set(1);
        activity.handling.set(true);
        activity.waits_for_body.set(true);
        let holding = HoldsMemory::begin(activity, MemoryCategory::Bodies, 0, &self.holders);
        let reservation = self.holders.budget().empty_reservation(MemoryCategory::Bodies);
        Body { entry, holding, reservation, received: 0 }
    }

    /// A step of the hostile clients and of the sweep.
    fn step(&mut self) {
        self.step += 1;
        let mut hostile = std::mem::take(&mut self.hostile);
        for (address, body) in &mut hostile {
            let bytes = if body.received < HOSTILE_BYTES { FAST_BYTES } else { SLOW_BYTES };
            let is_over = body.received >= BODY_BYTES || !body.receive(bytes);
            body.entry.activity.obey_memory_eviction();
            if is_over || body.entry.activity.close_order().is_some() {
                *body = self.body(*address);
            }
        }
        self.hostile = hostile;
        if self.step.is_multiple_of(STEPS_PER_SECOND) {
            self.connections.seconds.set(self.step / STEPS_PER_SECOND);
            self.connections.check_all(&Limits::default(), self.holders.budget());
        }
    }

    /// Receives a body of another address. `false`: it was refused.
    fn receive_polite(&mut self, address: u8) -> bool {
        let mut body = self.body(address);
        while body.received < BODY_BYTES {
            if !body.receive(FAST_BYTES) && !self.wait(&mut body) {
                return false;
            }
            assert!(body.entry.activity.close_order().is_none(), "a client that sends is not evicted");
            self.step();
        }
        true
    }

    fn wait(&mut self, body: &mut Body) -> bool {
        let Body { holding, reservation, received, entry } = body;
        let bytes = *received + FAST_BYTES;
        let Some(waiting) = holding.entry().wait(reservation, bytes, BODY_BYTES) else {
            return false;
        };
        entry.activity.waits_for_body.set(false);
        for _ in 0..WAIT_STEPS {
            self.step();
            if let Some(grown) = waiting.attempt(reservation) {
                *received = bytes;
                entry.activity.waits_for_body.set(true);
                return grown;
            }
        }
        false
    }

    fn reserved(&self) -> u64 {
        self.holders.budget().reserved_bytes(MemoryCategory::Bodies)
    }
}

impl Body {
    fn receive(&mut self, bytes: u64) -> bool {
        let grown = self.holding.entry().grow(&mut self.reservation, self.received + bytes);
        if grown {
            self.received += bytes;
            self.entry.activity.count_moved(bytes as usize);
        }
        grown
    }
}

/// Numbers of bodies of another address that were received, and of those that were refused.
fn served_beside(hostile: usize) -> (usize, usize) {
    let mut world = World::new(std::iter::repeat_n(1, hostile));
    (0..5 * STEPS_PER_SECOND).for_each(|_| world.step());
    let received = (0..50).filter(|_| world.receive_polite(2)).count();
    (received, 50 - received)
}

#[test]
fn trickling_bodies_of_one_address_leave_memory_for_others() {
    for hostile in [12, 16, 40, 200] {
        assert_eq!(served_beside(hostile), (50, 0), "{hostile} hostile clients");
    }
}

#[test]
fn one_address_alone_may_hold_all_memory_and_does_not_wait() {
    let world = World::new([]);
    let max = world.holders.budget().category_max(MemoryCategory::Bodies);
    let mut bodies: Vec<_> = (0..max / BODY_BYTES + 1).map(|_| world.body(1)).collect();
    let received = bodies.iter_mut().filter_map(|body| body.receive(BODY_BYTES).then_some(())).count();
    assert_eq!(received as u64, max / BODY_BYTES);
    assert!(world.reserved() + BODY_BYTES > max);
    let mut late = world.body(1);
    assert!(!late.receive(BODY_BYTES));
    let waiting = late.holding.entry().wait(&late.reservation, BODY_BYTES, BODY_BYTES);
    assert!(waiting.is_none(), "another client of the address is refused at once");
}

#[test]
fn a_fast_client_of_a_greedy_address_is_not_evicted() {
    let world = World::new([]);
    let max = world.holders.budget().category_max(MemoryCategory::Bodies);
    let mut fast: Vec<_> = (0..max / BODY_BYTES).map(|_| world.body(1)).collect();
    fast.iter_mut().for_each(|body| assert!(body.receive(BODY_BYTES)));
    let mut late = world.body(2);
    let waiting = late.holding.entry().wait(&late.reservation, BODY_BYTES, BODY_BYTES);
    let waiting = waiting.expect("it waits for memory that the other address holds");
    assert!(fast.iter().all(|body| !body.holding.entry().holder.is_evicted()));
    assert_eq!(waiting.attempt(&mut late.reservation), None);
    let mut another = world.body(1);
    fast.pop();
    assert!(!another.receive(BODY_BYTES), "clients of other addresses come first");
    assert_eq!(waiting.attempt(&mut late.reservation), Some(true));
    drop(waiting);
    fast.pop();
    assert!(!another.receive(BODY_BYTES), "memory is left for others for a while");
    fast.truncate(fast.len() - 2);
    assert!(another.receive(BODY_BYTES), "enough is left");
}

#[test]
fn a_client_is_stalled_if_it_is_slow_for_the_memory_that_it_holds() {
    let holders = World::new([]).holders;
    let slow_sweeps = |held, bytes| {
        let activity = Rc::new(ConnectionActivity::default());
        activity.write_blocked.set(true);
        let _holding = HoldsMemory::begin(&activity, MemoryCategory::Replies, held, &holders);
        (0..10)
            .map(|_| {
                activity.count_moved(bytes);
                activity.count_stalled_sweep()
            })
            .max()
    };
    assert_eq!(slow_sweeps(16 << 20, 100 << 10), Some(10));
    assert_eq!(slow_sweeps(16 << 20, 1 << 20), Some(1));
    assert_eq!(slow_sweeps(100 << 10, 10 << 10), Some(1));
}
