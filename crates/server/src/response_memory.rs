//! Memory for large values on their way to readers.
//!
//! **Promise.** A value that is too large to be copied into a response has its bytes reserved
//! ([`MemoryCategory::Replies`]). The reservation lasts from before the first byte of the response
//! leaves until the last one has left. Without memory the response is `503`; responses that have
//! begun are not broken off for it. If clients of another address hold the memory, the read waits
//! first (`read_execution`). Stalled readers are closed to free memory
//! (`connection_activity`). A value that is read from disk is reserved before it is read
//! ([`ReadValues`]), so a refusal costs no read. The reservation lasts until the reader has
//! received the value. Readers that share a value in memory share its reservation, and the last one
//! releases it.
//!
//! A request that only needs the metadata of a value is answered without a reservation, too. The
//! read cannot distinguish such requests beforehand. One value at a time is therefore read without
//! a reservation, in overcommit ([`Reservation::cover`]). It holds the permit under which it was
//! read until its I/O thread has examined it ([`ReadMemory`]).
//!
//! **Mechanism.** The reservation of a value is found by the value's address while any of its
//! readers holds it. Readers are counted. A response on its way out holds the reservation, too.
//!
//! **Caveats.** A value that is found in memory is present when it is examined, before its
//! reservation. So is one value of up to 256 KiB for each read thread. Readers that find a value in
//! memory that no read has just registered each reserve all of it. If a key is in several tables,
//! two of its values are in memory for a moment, and one of them is counted.

use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::connection_limit::ClientAddress;
use crate::counters::Refusal;
use crate::memory_holders::{Demand, MemoryHolders};
use crate::refusals::Refusals;
use api::{Action, ResponseContext};
use bytes::Bytes;
use cluster::{CommandFailure, ReplicaResponse, Reply, StoreFault, StoreResponse};
use engine::{HeldMemory, LargeReadPermit, ReadMemory};
use limits::{MEMORY_RETRY_AFTER, MemoryCategory, Reservation};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{Cell, Version};

/// Values up to this size are copied into their responses. They are reserved only if they have to
/// wait.
pub(crate) const LARGE_BYTES: usize = 16 << 10;
/// Values up to this size that are read from disk are reserved only when they leave.
const READ_BYTES: usize = 64 << 10;

/// Memory reservation of a large value on its way out. Dropping it releases the reservation.
#[derive(Debug)]
pub(crate) struct ResponseReservation {
    _reservation: Arc<Reservation>,
    _holds_memory: HoldsMemory,
}

/// Whether the response contains the value of this version, and not only its metadata.
fn sends_value(asked: &ResponseContext, version: Version) -> bool {
    let is_known = asked.if_none_match.as_ref().is_some_and(|condition| condition.matches(version));
    asked.action == Action::Get && !is_known
}

/// Large values that were read from disk and still have readers.
#[derive(Debug)]
pub(crate) struct ReadValues {
    memory_holders: Arc<MemoryHolders>,
    refusals: Arc<Refusals>,
    /// Size of the last value that was refused.
    refused_bytes: AtomicU64,
    /// Values by their address.
    shared: Mutex<HashMap<usize, SharedValue>>,
}

/// A value in memory that its readers share.
#[derive(Debug)]
struct SharedValue {
    reservation: Arc<Reservation>,
    /// Number of readers that hold the value.
    readers: usize,
}

/// The owner of a value that a reader holds.
struct ValueGuard {
    value: Bytes,
    values: Arc<ReadValues>,
}

impl ReadValues {
    /// An empty set of values.
    pub(crate) fn new(memory_holders: &Arc<MemoryHolders>, refusals: &Arc<Refusals>) -> Self {
        let (memory_holders, refusals) = (Arc::clone(memory_holders), Arc::clone(refusals));
        Self { memory_holders, refusals, refused_bytes: AtomicU64::new(0), shared: Mutex::default() }
    }

    /// The clients that hold memory, with its budget.
    pub(crate) const fn memory_holders(&self) -> &Arc<MemoryHolders> {
        &self.memory_holders
    }

    /// Reserves memory for the value in `reply`, if it is large. Without memory, or if clients of
    /// another address have precedence, the reply becomes a refusal.
    pub(crate) fn reserve_for(
        &self,
        activity: &Rc<ConnectionActivity>,
        reply: Reply,
        asked: &ResponseContext,
    ) -> (Reply, Option<ResponseReservation>) {
        let value = match &reply {
            Reply::Found { cell, .. }
                if cell.value.len() > LARGE_BYTES && sends_value(asked, cell.meta.version) =>
            {
                &cell.value
            }
            _ => return (reply, None),
        };
        let (holders, bytes) = (&self.memory_holders, value.len() as u64);
        let reservation = match holders.must_yield(activity.client(), MemoryCategory::Replies, bytes) {
            true => None,
            false => self
                .reservation_of(value)
                .or_else(|| holders.budget().reserve(MemoryCategory::Replies, bytes).map(Arc::new)),
        };
        let Some(reservation) = reservation else {
            self.note_refused(bytes);
            return (Reply::Failed(CommandFailure::NoMemory { retry_after: MEMORY_RETRY_AFTER }), None);
        };
        let holding = HoldsMemory::begin(activity, MemoryCategory::Replies, bytes, holders);
        (reply, Some(ResponseReservation { _reservation: reservation, _holds_memory: holding }))
    }

    /// The demand of `client`, whose read was refused. The size of its value is taken for that of
    /// the last refused one, because a read that is refused does not return it.
    pub(crate) fn demand(&self, client: ClientAddress) -> Demand {
        let bytes = self.refused_bytes.load(Ordering::Relaxed);
        self.memory_holders.demand(client, MemoryCategory::Replies, bytes, bytes)
    }

    /// Counts the refusal of a value of `bytes`.
    fn note_refused(&self, bytes: u64) {
        self.refused_bytes.store(bytes, Ordering::Relaxed);
        self.refusals.count(Refusal::Replies);
    }

    /// An empty reservation for the value of one read.
    fn empty_reservation(&self) -> Reservation {
        self.memory_holders.budget().empty_reservation(MemoryCategory::Replies)
    }

    /// Reads one key. Memory for a large value is reserved before it is read, until all its readers
    /// have dropped it. Without memory the read is refused. Also returns the permit of a value in
    /// overcommit.
    pub(crate) fn read(
        self: &Arc<Self>,
        read: impl FnOnce(&Arc<ReadMemory>) -> StoreResponse,
    ) -> (StoreResponse, Option<LargeReadPermit>) {
        let memory = Arc::new(ReadMemory::reserving(self.empty_reservation()));
        let response = read(&memory);
        let HeldMemory { reservation, permit, refused_bytes } = memory.take();
        if refused_bytes > 0 {
            self.note_refused(refused_bytes);
        }
        let StoreResponse::Replica(ReplicaResponse::Cell(Some(cell))) = response else {
            return (response, None);
        };
        let reservation = reservation.unwrap_or_else(|| self.empty_reservation());
        let permit = permit.filter(|_| reservation.is_overcommitted());
        match self.share(cell.value, reservation) {
            Some(value) => {
                (StoreResponse::Replica(ReplicaResponse::Cell(Some(Cell { value, ..cell }))), permit)
            }
            None => {
                let retry_after = MEMORY_RETRY_AFTER;
                (StoreResponse::Failed(StoreFault::NoMemory { retry_after }), None)
            }
        }
    }

    /// Registers a value with its reservation until all its readers have dropped it, if it is
    /// large. `None`: there is no memory.
    fn share(self: &Arc<Self>, value: Bytes, mut reservation: Reservation) -> Option<Bytes> {
        if value.len() <= READ_BYTES {
            return Some(value);
        }
        let mut values = self.shared.lock();
        let address = value.as_ptr() as usize;
        if let Some(shared) = values.get_mut(&address) {
            shared.readers += 1;
        } else {
            let bytes = value.len() as u64;
            if !reservation.cover(bytes) {
                self.note_refused(bytes);
                return None;
            }
            reservation.shrink_to(bytes);
            values.insert(address, SharedValue { reservation: Arc::new(reservation), readers: 1 });
        }
        drop(values);
        Some(Bytes::from_owner(ValueGuard { value, values: Arc::clone(self) }))
    }

    /// The reservation of a registered value, if it has one.
    fn reservation_of(&self, value: &Bytes) -> Option<Arc<Reservation>> {
        if value.len() <= READ_BYTES {
            return None;
        }
        let values = self.shared.lock();
        let shared = values.get(&(value.as_ptr() as usize))?;
        (!shared.reservation.is_overcommitted()).then(|| Arc::clone(&shared.reservation))
    }
}

impl AsRef<[u8]> for ValueGuard {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

impl Drop for ValueGuard {
    fn drop(&mut self) {
        let address = self.value.as_ptr() as usize;
        let mut values = self.values.shared.lock();
        let Entry::Occupied(mut entry) = values.entry(address) else {
            return;
        };
        entry.get_mut().readers -= 1;
        let last = (entry.get().readers == 0).then(|| entry.remove());
        drop(values);
        // The value is freed before its reservation is released.
        self.value = Bytes::new();
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use engine::{Engine, Error, Options};
    use env::{Env, ManualClock, MemFs};
    use limits::{Budget, LargestValue};
    use std::cell::RefCell;
    use std::path::Path;
    use stdx::{Hlc, NodeTag, WallTime};

    const LARGE: usize = 1 << 20;

    /// A budget for three large values.
    fn values() -> Arc<ReadValues> {
        let limits = Limits { memory_bytes: 6 << 20, ..Limits::default() };
        let memory = Arc::new(Budget::new(limits.memory_bytes, 0, LargestValue::default()));
        let holders = Arc::new(MemoryHolders::new(memory));
        Arc::new(ReadValues::new(&holders, &Arc::new(Refusals::new(1))))
    }

    impl ReadValues {
        /// Registers a value that was read without asking for permission.
        fn found(self: &Arc<Self>, value: Bytes) -> Option<Bytes> {
            self.share(value, self.empty_reservation())
        }
    }

    fn engine() -> Engine {
        let clock = Arc::new(ManualClock::new(WallTime::EPOCH_2020));
        let env = Env { fs: Arc::new(MemFs::new()), clock };
        Engine::open(env, Path::new("/data"), Options::default()).expect("an engine").0
    }

    fn cell(len: usize) -> Cell {
        Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, vec![7; len].into())
    }

    /// The value in a response.
    fn value_of(response: StoreResponse) -> Option<Bytes> {
        match response {
            StoreResponse::Replica(ReplicaResponse::Cell(Some(cell))) => Some(cell.value),
            StoreResponse::Failed(StoreFault::NoMemory { retry_after: MEMORY_RETRY_AFTER }) => None,
            response => panic!("{response:?}"),
        }
    }

    #[test]
    fn a_large_value_is_reserved_before_it_is_read_or_not_read() {
        let (values, engine) = (values(), engine());
        let reserved = || values.memory_holders.budget().reserved_bytes(MemoryCategory::Replies);
        let can_overcommit = || values.empty_reservation().cover(u64::MAX);
        let reads = RefCell::new(0);
        let read = |block_bytes: u64, len: usize| {
            let (response, large_read) = values.read(|memory| {
                match engine.cover_copy(block_bytes, memory) {
                    Ok(()) => {}
                    Err(Error::NoRoom { retry_after }) => {
                        return StoreResponse::Failed(StoreFault::NoMemory { retry_after });
                    }
                    Err(error) => panic!("{error}"),
                }
                *reads.borrow_mut() += 1;
                assert!(reserved() >= block_bytes || !can_overcommit());
                StoreResponse::Replica(ReplicaResponse::Cell(Some(cell(len))))
            });
            (value_of(response), large_read)
        };
        let more_than_large = LARGE as u64 + 100;
        let (first, large_read) = read(more_than_large, LARGE);
        assert!(large_read.is_none(), "its memory is reserved");
        assert_eq!(reserved(), LARGE as u64, "the value's part of its block");
        let holders = [first, read(more_than_large, LARGE).0];
        let (overcommit, large_read) = read(2 * more_than_large, 2 * LARGE);
        assert!(
            large_read.is_some()
                && overcommit.is_some()
                && values.reservation_of(&overcommit.clone().expect("a value")).is_none()
        );
        assert_eq!((reserved(), *reads.borrow()), (2 * LARGE as u64, 3));
        let (refused, no_large_read) = read(2 * more_than_large, 2 * LARGE);
        assert!(refused.is_none() && no_large_read.is_none());
        assert_eq!((values.refusals.refused(Refusal::Replies), *reads.borrow()), (1, 3), "not read");
        drop(large_read);
        let small = read(LARGE as u64, 10).0.expect("memory for its block");
        assert_eq!((reserved(), small.len()), (2 * LARGE as u64, 10), "a small value needs no reservation");
        drop((overcommit, holders));
        assert_eq!((reserved(), values.shared.lock().len()), (0, 0));
        assert!(read(2 * more_than_large, 2 * LARGE).1.is_none(), "memory is free again");
        assert!(can_overcommit());
    }

    #[test]
    fn of_two_values_of_one_key_one_is_counted() {
        let (values, engine) = (values(), engine());
        let reserved = || values.memory_holders.budget().reserved_bytes(MemoryCategory::Replies);
        let (response, large_read) = values.read(|memory| {
            for (bytes, most) in [(1, 1), (2, 2), (1, 2)] {
                engine.cover_copy(bytes * LARGE as u64, memory).expect("free memory");
                assert_eq!(reserved(), most * LARGE as u64);
            }
            StoreResponse::Replica(ReplicaResponse::Cell(Some(cell(LARGE))))
        });
        assert!(large_read.is_none());
        assert_eq!(reserved(), LARGE as u64);
        drop(response);
        assert_eq!(reserved(), 0);
    }

    #[test]
    fn a_value_is_reserved_until_its_response_has_left_and_its_readers_dropped_it() {
        let values = values();
        let reserved = || values.memory_holders.budget().reserved_bytes(MemoryCategory::Replies);
        let small = values.found(Bytes::from(vec![1; READ_BYTES])).expect("a small value needs no memory");
        assert_eq!((reserved(), values.reservation_of(&small).is_none()), (0, true));
        let value = values.found(Bytes::from(vec![2; LARGE])).expect("free memory");
        let copy = value.clone();
        assert_eq!(reserved(), LARGE as u64);
        let reservation = values.reservation_of(&value).expect("a reservation");
        drop((value, copy));
        assert_eq!(reserved(), LARGE as u64, "the response holds the reservation");
        drop(reservation);
        assert_eq!(reserved(), 0);
        drop(values.found(Bytes::from(vec![3; LARGE])));
        assert_eq!((reserved(), values.shared.lock().len()), (0, 0));
    }

    #[test]
    fn one_value_at_a_time_is_read_in_overcommit() {
        let values = values();
        let read = || values.found(Bytes::from(vec![0; LARGE]));
        let holders: Vec<_> = (0..3).map(|_| read().expect("free memory")).collect();
        let overcommit = read().expect("the value in overcommit");
        assert!(read().is_none() && values.reservation_of(&overcommit).is_none());
        assert_eq!(values.refusals.refused(Refusal::Replies), 1);
        drop(overcommit);
        assert!(read().is_some());
        drop(holders);
        assert_eq!(values.memory_holders.budget().reserved_bytes(MemoryCategory::Replies), 0);
    }

    #[test]
    fn a_shared_value_is_reserved_once_until_its_last_reader_drops_it() {
        let values = values();
        let reserved = || values.memory_holders.budget().reserved_bytes(MemoryCategory::Replies);
        let in_memory = Bytes::from(vec![0; LARGE]);
        let read = || values.found(in_memory.clone()).expect("free memory");
        let (first, second) = (read(), read());
        assert_eq!(reserved(), LARGE as u64);
        let answer = values.reservation_of(&first);
        drop((first, answer));
        assert_eq!(reserved(), LARGE as u64, "the second reader still holds the value");
        let answer = values.reservation_of(&second).expect("a reservation");
        let third = read();
        drop((second, answer));
        assert_eq!(reserved(), LARGE as u64, "so does a reader that arrived while a response was leaving");
        drop(third);
        assert_eq!((reserved(), values.shared.lock().len()), (0, 0));
    }
}
