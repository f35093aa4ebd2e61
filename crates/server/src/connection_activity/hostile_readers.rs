//! A model of responses in virtual time. Hostile clients of one address take memory for ranges or
//! large values, read nothing, and request again when they are disconnected. A client of another
//! address sends one request after the other, and sometimes hangs up while it waits.
//!
//! The model uses the real [`Budget`], [`MemoryHolders`] and [`Connections`]. A step is
//! 50 ms, the interval in which a waiting client tries to get memory.

use super::*;
use limits::{LargestValue, Reservation};

const STEPS_PER_SECOND: u64 = 20;
/// Longest wait of a request for memory, as in `memory_holders`.
const WAIT_STEPS: u64 = 5 * STEPS_PER_SECOND;
/// Longest time until a client that reads nothing counts as slow: two sweeps after the next one.
const SLOW_STEPS: u64 = 3 * STEPS_PER_SECOND;
/// Steps for which a polite response is sent.
const SENDING_STEPS: u64 = 4;

/// A response that holds memory.
struct Sending {
    entry: ConnectionEntry,
    holding: HoldsMemory,
    reservation: Reservation,
}

struct World {
    holders: Arc<MemoryHolders>,
    connections: Rc<Connections>,
    category: MemoryCategory,
    bytes: u64,
    hostile: Vec<Option<Sending>>,
    step: u64,
}

impl World {
    /// A world with 24 MiB for `category`, in which responses hold `bytes` each, with `hostile`
    /// clients of one address.
    fn new(category: MemoryCategory, bytes: u64, hostile: usize) -> Self {
        let limits = Limits { memory_bytes: 48 << 20, ..Limits::default() };
        let memory = Arc::new(Budget::new(limits.memory_bytes, 0, LargestValue::default()));
        let (holders, connections) = (Arc::new(MemoryHolders::new(memory)), Rc::default());
        let hostile = std::iter::repeat_with(|| None).take(hostile).collect();
        Self { holders, connections, category, bytes, hostile, step: 0 }
    }

    /// A response of a client of this address, without memory yet.
    fn response(&self, address: u8) -> Sending {
        let client = ClientAddress::of(IpAddr::from([10, 0, 0, address]));
        let entry = self.connections.register(client, Instant::now());
        entry.activity.requests.set(1);
        entry.activity.handling.set(true);
        let holding = HoldsMemory::begin(&entry.activity, self.category, 0, &self.holders);
        let reservation = self.holders.budget().empty_reservation(self.category);
        Sending { entry, holding, reservation }
    }

    /// A step of the hostile clients and of the sweep.
    fn step(&mut self) {
        self.step += 1;
        let mut hostile = std::mem::take(&mut self.hostile);
        for client in &mut hostile {
            if let Some(sending) = client {
                sending.entry.activity.obey_memory_eviction();
                if sending.entry.activity.close_order().is_some() {
                    *client = None;
                }
            } else {
                let mut sending = self.response(1);
                if sending.holding.entry().grow(&mut sending.reservation, self.bytes) {
                    sending.entry.activity.write_blocked.set(true);
                    *client = Some(sending);
                }
            }
        }
        self.hostile = hostile;
        if self.step.is_multiple_of(STEPS_PER_SECOND) {
            self.connections.seconds.set(self.step / STEPS_PER_SECOND);
            self.connections.check_all(&Limits::default(), self.holders.budget());
        }
    }

    /// Sends a response to a client of another address, which hangs up after `patience` steps of
    /// waiting. Returns the steps for which the client waited; `None`: it was refused.
    fn answer_polite(&mut self, address: u8, patience: u64) -> Option<u64> {
        let Sending { entry, holding, mut reservation } = self.response(address);
        let mut waited = 0;
        if !holding.entry().grow(&mut reservation, self.bytes) {
            let waiting = holding.entry().wait(&reservation, self.bytes, self.bytes)?;
            loop {
                if waited == patience {
                    return Some(waited);
                }
                self.step();
                waited += 1;
                match waiting.attempt(&mut reservation) {
                    Some(true) => break,
                    None if waited < WAIT_STEPS => {}
                    _ => return None,
                }
            }
        }
        for _ in 0..SENDING_STEPS {
            entry.activity.count_moved(self.bytes as usize / SENDING_STEPS as usize);
            self.step();
            assert!(entry.activity.close_order().is_none(), "a client that reads is not evicted");
        }
        Some(waited)
    }
}

/// Sizes of responses: a long range, a compressed one, and a large value.
const RESPONSES: [(MemoryCategory, u64); 3] = [
    (MemoryCategory::Ranges, 320 << 10),
    (MemoryCategory::Ranges, 1_856 << 10),
    (MemoryCategory::Replies, 8 << 20),
];

#[test]
fn unread_responses_of_one_address_leave_memory_for_others() {
    for (category, bytes) in RESPONSES {
        for hostile in [80, 400] {
            let mut world = World::new(category, bytes, hostile);
            (0..5 * STEPS_PER_SECOND).for_each(|_| world.step());
            for request in 0..50 {
                let waited = world.answer_polite(2 + request % 3, u64::MAX);
                let waited = waited.unwrap_or_else(|| panic!("{category:?} {bytes}: {request} was refused"));
                assert!(waited <= SLOW_STEPS + 1, "{category:?} {bytes}: {waited} steps");
                (0..STEPS_PER_SECOND / 2).for_each(|_| world.step());
            }
        }
    }
}

#[test]
fn after_one_wait_memory_is_left_for_other_clients() {
    let mut world = World::new(MemoryCategory::Ranges, 320 << 10, 400);
    (0..5 * STEPS_PER_SECOND).for_each(|_| world.step());
    assert!(world.answer_polite(2, u64::MAX).is_some());
    for request in 0..100 {
        assert_eq!(world.answer_polite(2 + request % 3, u64::MAX), Some(0), "{request}");
        (0..STEPS_PER_SECOND / 2).for_each(|_| world.step());
    }
}

#[test]
fn clients_that_hang_up_while_they_wait_leave_nothing_behind() {
    for (category, bytes) in RESPONSES {
        let mut world = World::new(category, bytes, 400);
        (0..5 * STEPS_PER_SECOND).for_each(|_| world.step());
        for patience in 0..20 {
            assert!(world.answer_polite(2, patience).is_some(), "{patience}");
        }
        assert!(world.answer_polite(3, u64::MAX).is_some());
        world.hostile.clear();
        let max = world.holders.budget().category_max(category);
        assert_eq!(world.holders.budget().available(category), max, "all memory is free again");
        let mut alone: Vec<_> = (0..max / bytes).map(|_| world.response(1)).collect();
        let grown = alone.iter_mut().filter_map(|sending| {
            let entry = sending.holding.entry();
            entry.grow(&mut sending.reservation, bytes).then_some(())
        });
        assert!(grown.count() as u64 >= max / bytes - max / bytes / 8 - 1, "{category:?}");
    }
}
