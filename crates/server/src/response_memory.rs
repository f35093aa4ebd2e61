//! Room for large values on their way to their readers.
//!
//! **Promise.** A value that is too large to be copied into a response has its bytes taken of the memory budget
//! ([`MemoryCategory::Replies`]) before the first byte of its answer leaves, until its last byte has. Where there is no room the
//! answer is `503`: nothing that has begun is broken off for it. Readers that stand still make room (`activity`). One that is
//! read from disk has room before it is read ([`ReadValues`]), so that a refusal costs no read; it keeps it until its reader
//! has it. Readers who share it in memory share its room, which goes back with the last of them.
//!
//! Whoever only wants to know about a value, and not have it, is answered where there is no room too. Nobody knows before it
//! is read who that is: so one value at a time is read without room, as a *guest*. It keeps the turn in which it was read
//! until its I/O thread has seen it ([`read_with_admission`]).
//!
//! **Mechanism.** The room of a value that was read is found by where the value is in memory, as long as anybody who read it
//! there has it. Those are counted; a reader whose answer leaves holds the room, too.
//!
//! **Caveats.** A value that is found in memory is there when it is looked at. So is one of up to 256 KiB, of each thread that
//! reads. Readers who find one value in memory that nobody has just read each count all of it. Of a key that is in several
//! tables two values are there for a moment, and one is counted.

use crate::admission::Admission;
use crate::budget::{MemoryBudget, MemoryCategory, Reservation};
use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::counters::Refusal;
use crate::process::Process;
use api::{Action, ResponseContext};
use bytes::Bytes;
use cluster::{Failure, Reply, StoreFault, StoreResponse};
use engine::{LargeReadPermit, read_with_admission};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stdx::{Cell, Version};

/// Values up to this size are copied into their answers, and taken in no account unless they have to wait.
pub(crate) const LARGE_BYTES: usize = 16 << 10;
/// Values up to this size that are read from disk are taken in account only when they leave.
const READ_BYTES: usize = 64 << 10;
/// When to come again for a value that has found no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The room of a large value. It goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct ResponseReservation {
    _reservation: Arc<Reservation>,
    _holds_memory: HoldsMemory,
}

/// The reply with its room, if it needs any; a refusal in its place, if there is none.
pub(crate) fn reserve_for(
    process: &Process,
    activity: &Rc<ConnectionActivity>,
    reply: Reply,
    asked: &ResponseContext,
) -> (Reply, Option<ResponseReservation>) {
    let value = match &reply {
        Reply::Found { cell, .. } if sends_value(asked, cell.meta.version) => &cell.value,
        _ => return (reply, None),
    };
    if value.len() <= LARGE_BYTES {
        return (reply, None);
    }
    let shared = process.read_values.reservation_of(value);
    match shared.or_else(|| process.memory.reserve(MemoryCategory::Replies, value.len() as u64).map(Arc::new))
    {
        Some(reservation) => (
            reply,
            Some(ResponseReservation {
                _reservation: reservation,
                _holds_memory: HoldsMemory::begin(activity, MemoryCategory::Replies),
            }),
        ),
        None => {
            process.admission.count(Refusal::Replies);
            (Reply::Failed(Failure::Overloaded { retry_after: RETRY_AFTER }), None)
        }
    }
}

/// Whether what is found in this version is sent, and not only told of.
fn sends_value(asked: &ResponseContext, version: Version) -> bool {
    let is_known = asked.if_none_match.as_ref().is_some_and(|condition| condition.matches(version));
    asked.action == Action::Get && !is_known
}

/// Values that were read from disk, as long as their readers have them.
#[derive(Debug)]
pub(crate) struct ReadValues {
    memory: Arc<MemoryBudget>,
    admission: Arc<Admission>,
    is_overcommitted: Arc<AtomicBool>,
    /// By where they are.
    shared: Mutex<HashMap<usize, SharedValue>>,
}

/// Leave for a value to be in memory.
#[derive(Debug)]
enum ReadPermit {
    Reserved(Reservation),
    Overcommitted(Overcommit),
}

/// A value that is there without room, of which there is one at a time.
#[derive(Debug)]
struct Overcommit {
    is_overcommitted: Arc<AtomicBool>,
}

/// A value that is in memory once, whoever has read it.
#[derive(Debug)]
struct SharedValue {
    reservation: Option<Arc<Reservation>>,
    _overcommit: Option<Overcommit>,
    /// How many have it.
    holders: usize,
}

/// A value that somebody has.
struct ValueGuard {
    value: Bytes,
    values: Arc<ReadValues>,
}

impl ReadValues {
    /// None yet.
    pub(crate) fn new(memory: &Arc<MemoryBudget>, admission: &Arc<Admission>) -> Self {
        let (memory, admission) = (Arc::clone(memory), Arc::clone(admission));
        Self { memory, admission, is_overcommitted: Arc::default(), shared: Mutex::default() }
    }

    /// Carries out a read of one key, in which a large value has room before it is read, and until all who share it have let
    /// it go. Where there is none the read is refused. Returns the turn of a guest.
    pub(crate) fn read(
        self: &Arc<Self>,
        read: impl FnOnce() -> StoreResponse,
    ) -> (StoreResponse, Option<LargeReadPermit>) {
        let permit = Rc::<RefCell<Option<ReadPermit>>>::default();
        let consent = {
            let (values, permit) = (Arc::clone(self), Rc::clone(&permit));
            move |bytes| values.ensure_permit(&mut permit.borrow_mut(), bytes)
        };
        let (response, large_read) = read_with_admission(consent, read);
        let permit = permit.take();
        let large_read = large_read.filter(|_| matches!(permit, Some(ReadPermit::Overcommitted(_))));
        let StoreResponse::Cell(Some(cell)) = response else {
            return (response, None);
        };
        match self.share(cell.value, permit) {
            Ok(value) => (StoreResponse::Cell(Some(Cell { value, ..cell })), large_read),
            Err(retry_after) => (StoreResponse::Failed(StoreFault::Overloaded { retry_after }), None),
        }
    }

    /// The value with this leave, until all who share it have let it go, if it is large. An error: there is none, and when to
    /// try again.
    fn share(self: &Arc<Self>, value: Bytes, mut permit: Option<ReadPermit>) -> Result<Bytes, Duration> {
        if value.len() <= READ_BYTES {
            return Ok(value);
        }
        let mut values = self.shared.lock();
        let address = value.as_ptr() as usize;
        if let Some(shared) = values.get_mut(&address) {
            shared.holders += 1;
        } else {
            let bytes = value.len() as u64;
            self.ensure_permit(&mut permit, bytes)?;
            let (reservation, overcommit) = match permit.expect("it was seen to") {
                ReadPermit::Reserved(mut reservation) => {
                    assert!(reservation.resize(bytes), "less is always to be had");
                    (Some(Arc::new(reservation)), None)
                }
                ReadPermit::Overcommitted(overcommit) => (None, Some(overcommit)),
            };
            values.insert(address, SharedValue { reservation, _overcommit: overcommit, holders: 1 });
        }
        drop(values);
        Ok(Bytes::from_owner(ValueGuard { value, values: Arc::clone(self) }))
    }

    /// Sees that there is leave for a value of so many bytes. An error: there is none, and when to try again.
    fn ensure_permit(&self, permit: &mut Option<ReadPermit>, bytes: u64) -> Result<(), Duration> {
        let has_permit = match permit {
            Some(ReadPermit::Overcommitted(_)) => true,
            // Of what was read before it, as from another table, one is kept.
            Some(ReadPermit::Reserved(reservation)) => {
                reservation.bytes() >= bytes || reservation.resize(bytes)
            }
            None => false,
        };
        if has_permit {
            return Ok(());
        }
        let reservation = self.memory.reserve(MemoryCategory::Replies, bytes).map(ReadPermit::Reserved);
        *permit = reservation
            .or_else(|| Overcommit::acquire(&self.is_overcommitted).map(ReadPermit::Overcommitted));
        if permit.is_none() {
            self.admission.count(Refusal::Replies);
            return Err(RETRY_AFTER);
        }
        Ok(())
    }

    /// The room of a value that is held, if it has any.
    fn reservation_of(&self, value: &Bytes) -> Option<Arc<Reservation>> {
        if value.len() <= READ_BYTES {
            return None;
        }
        let values = self.shared.lock();
        values.get(&(value.as_ptr() as usize))?.reservation.clone()
    }
}

impl Overcommit {
    /// A guest, if there is none.
    fn acquire(is_overcommitted: &Arc<AtomicBool>) -> Option<Self> {
        let was_overcommitted = is_overcommitted.swap(true, Ordering::Acquire);
        (!was_overcommitted).then(|| Self { is_overcommitted: Arc::clone(is_overcommitted) })
    }
}

impl Drop for Overcommit {
    fn drop(&mut self) {
        self.is_overcommitted.store(false, Ordering::Release);
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
        entry.get_mut().holders -= 1;
        let last = (entry.get().holders == 0).then(|| entry.remove());
        drop(values);
        // What has room goes before its room does.
        self.value = Bytes::new();
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::LargestValue;
    use crate::config::Limits;
    use engine::{Engine, Error, Options};
    use env::{Env, ManualClock, MemFs};
    use std::path::Path;
    use stdx::{Hlc, NodeTag, WallTime};

    const LARGE: usize = 1 << 20;

    /// With room for three of them.
    fn values() -> Arc<ReadValues> {
        let limits = Limits { memory_bytes: 6 << 20, ..Limits::default() };
        let memory = Arc::new(MemoryBudget::new(&limits, 0, LargestValue::default()));
        Arc::new(ReadValues::new(&memory, &Arc::new(Admission::new(1))))
    }

    impl ReadValues {
        /// Takes a value that was read without asking.
        fn found(self: &Arc<Self>, value: Bytes) -> Option<Bytes> {
            self.share(value, None).ok()
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

    /// The value of an answer.
    fn value_of(response: StoreResponse) -> Option<Bytes> {
        match response {
            StoreResponse::Cell(Some(cell)) => Some(cell.value),
            StoreResponse::Failed(StoreFault::Overloaded { retry_after: RETRY_AFTER }) => None,
            response => panic!("{response:?}"),
        }
    }

    #[test]
    fn a_large_value_has_room_before_it_is_read_or_is_not_read() {
        let (values, engine) = (values(), engine());
        let reserved = || values.memory.reserved_bytes(MemoryCategory::Replies);
        let reads = RefCell::new(0);
        let read = |block_bytes: u64, len: usize| {
            let (response, large_read) = values.read(|| {
                match engine.begin_copy(block_bytes) {
                    Ok(_) => {}
                    Err(Error::NoRoom { retry_after }) => {
                        return StoreResponse::Failed(StoreFault::Overloaded { retry_after });
                    }
                    Err(error) => panic!("{error}"),
                }
                *reads.borrow_mut() += 1;
                assert!(reserved() >= block_bytes || values.is_overcommitted.load(Ordering::Relaxed));
                StoreResponse::Cell(Some(cell(len)))
            });
            (value_of(response), large_read)
        };
        let more_than_large = LARGE as u64 + 100;
        let (first, large_read) = read(more_than_large, LARGE);
        assert!(large_read.is_none(), "it is in an account");
        assert_eq!(reserved(), LARGE as u64, "what is left of its block");
        let holders = [first, read(more_than_large, LARGE).0];
        let (overcommit, large_read) = read(2 * more_than_large, 2 * LARGE);
        assert!(
            large_read.is_some()
                && overcommit.is_some()
                && values.reservation_of(&overcommit.clone().expect("it")).is_none()
        );
        assert_eq!((reserved(), *reads.borrow()), (2 * LARGE as u64, 3));
        let (refused, no_large_read) = read(2 * more_than_large, 2 * LARGE);
        assert!(refused.is_none() && no_large_read.is_none());
        assert_eq!((values.admission.refused(Refusal::Replies), *reads.borrow()), (1, 3), "not read");
        drop(large_read);
        let small = read(LARGE as u64, 10).0.expect("there is room for its block");
        assert_eq!((reserved(), small.len()), (2 * LARGE as u64, 10), "what is small needs none");
        drop((overcommit, holders));
        assert_eq!((reserved(), values.shared.lock().len()), (0, 0));
        assert!(read(2 * more_than_large, 2 * LARGE).1.is_none(), "there is room again");
        assert!(!values.is_overcommitted.load(Ordering::Relaxed));
    }

    #[test]
    fn of_two_values_of_one_key_one_is_counted() {
        let (values, engine) = (values(), engine());
        let reserved = || values.memory.reserved_bytes(MemoryCategory::Replies);
        let (response, large_read) = values.read(|| {
            for (bytes, most) in [(1, 1), (2, 2), (1, 2)] {
                engine.begin_copy(bytes * LARGE as u64).expect("room");
                assert_eq!(reserved(), most * LARGE as u64);
            }
            StoreResponse::Cell(Some(cell(LARGE)))
        });
        assert!(large_read.is_none());
        assert_eq!(reserved(), LARGE as u64);
        drop(response);
        assert_eq!(reserved(), 0);
    }

    #[test]
    fn what_was_read_has_room_until_its_answer_has_left_and_it_is_let_go() {
        let values = values();
        let reserved = || values.memory.reserved_bytes(MemoryCategory::Replies);
        let small = values.found(Bytes::from(vec![1; READ_BYTES])).expect("it needs none");
        assert_eq!((reserved(), values.reservation_of(&small).is_none()), (0, true));
        let value = values.found(Bytes::from(vec![2; LARGE])).expect("room");
        let copy = value.clone();
        assert_eq!(reserved(), LARGE as u64);
        let reservation = values.reservation_of(&value).expect("it has room");
        drop((value, copy));
        assert_eq!(reserved(), LARGE as u64, "it is with the answer");
        drop(reservation);
        assert_eq!(reserved(), 0);
        drop(values.found(Bytes::from(vec![3; LARGE])));
        assert_eq!((reserved(), values.shared.lock().len()), (0, 0));
    }

    #[test]
    fn of_what_finds_no_room_one_is_there_at_a_time() {
        let values = values();
        let read = || values.found(Bytes::from(vec![0; LARGE]));
        let holders: Vec<_> = (0..3).map(|_| read().expect("room")).collect();
        let overcommit = read().expect("the one without");
        assert!(read().is_none() && values.reservation_of(&overcommit).is_none());
        assert_eq!(values.admission.refused(Refusal::Replies), 1);
        drop(overcommit);
        assert!(read().is_some());
        drop(holders);
        assert_eq!(values.memory.reserved_bytes(MemoryCategory::Replies), 0);
    }

    #[test]
    fn a_value_that_is_shared_has_room_once_until_the_last_lets_it_go() {
        let values = values();
        let reserved = || values.memory.reserved_bytes(MemoryCategory::Replies);
        let in_memory = Bytes::from(vec![0; LARGE]);
        let read = || values.found(in_memory.clone()).expect("room");
        let (first, second) = (read(), read());
        assert_eq!(reserved(), LARGE as u64);
        let answer = values.reservation_of(&first);
        drop((first, answer));
        assert_eq!(reserved(), LARGE as u64, "the second has it still");
        let answer = values.reservation_of(&second).expect("it has room");
        let third = read();
        drop((second, answer));
        assert_eq!(reserved(), LARGE as u64, "so has one who came when an answer was leaving");
        drop(third);
        assert_eq!((reserved(), values.shared.lock().len()), (0, 0));
    }
}
