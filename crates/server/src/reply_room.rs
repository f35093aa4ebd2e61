//! Room for large values on their way to their readers.
//!
//! **Promise.** A value that is too large to be copied into a response has its bytes taken of the memory budget
//! ([`Part::Replies`]) before the first byte of its answer leaves, until its last byte has. Where there is no room the
//! answer is `503`: nothing that has begun is broken off for it. Readers that stand still make room (`vitals`). One that is
//! read from disk has room before it is read ([`ReadValues`]), so that a refusal costs no read; it keeps it until its reader
//! has it. Readers who share it in memory share its room, which goes back with the last of them.
//!
//! Whoever only wants to know about a value, and not have it, is answered where there is no room too. Nobody knows before it
//! is read who that is: so one value at a time is read without room, as a *guest*. It keeps the turn in which it was read
//! until its I/O thread has seen it ([`read_with_consent`]).
//!
//! **Mechanism.** The room of a value that was read is found by where the value is in memory, as long as anybody who read it
//! there has it. Those are counted; a reader whose answer leaves holds the room, too.
//!
//! **Caveats.** A value that is found in memory is there when it is looked at. So is one of up to 256 KiB, of each thread that
//! reads. Readers who find one value in memory that nobody has just read each count all of it. Of a key that is in several
//! tables two values are there for a moment, and one is counted.

use crate::admission::Admission;
use crate::budget::{MemoryBudget, Part, Taken};
use crate::counters::Refusal;
use crate::process::Process;
use crate::vitals::{Holding, Vitals};
use api::{Action, ResponseContext};
use bytes::Bytes;
use cluster::{Failure, Reply, StoreFault, StoreResponse};
use engine::{LargeRead, read_with_consent};
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
pub(crate) struct ReplyRoom {
    _taken: Arc<Taken>,
    _holding: Holding,
}

/// The reply with its room, if it needs any; a refusal in its place, if there is none.
pub(crate) fn find(
    process: &Process,
    vitals: &Rc<Vitals>,
    reply: Reply,
    asked: &ResponseContext,
) -> (Reply, Option<ReplyRoom>) {
    let value = match &reply {
        Reply::Found { cell, .. } if sends_value(asked, cell.meta.version) => &cell.value,
        _ => return (reply, None),
    };
    if value.len() <= LARGE_BYTES {
        return (reply, None);
    }
    let shared = process.read_values.room_of(value);
    match shared.or_else(|| process.memory.take(Part::Replies, value.len() as u64).map(Arc::new)) {
        Some(taken) => {
            (reply, Some(ReplyRoom { _taken: taken, _holding: Holding::begin(vitals, Part::Replies) }))
        }
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
    has_guest: Arc<AtomicBool>,
    /// By where they are.
    shared: Mutex<HashMap<usize, Shared>>,
}

/// Leave for a value to be in memory.
#[derive(Debug)]
enum Leave {
    Room(Taken),
    Guest(Guest),
}

/// A value that is there without room, of which there is one at a time.
#[derive(Debug)]
struct Guest {
    is_there: Arc<AtomicBool>,
}

/// A value that is in memory once, whoever has read it.
#[derive(Debug)]
struct Shared {
    room: Option<Arc<Taken>>,
    _guest: Option<Guest>,
    /// How many have it.
    held: usize,
}

/// A value that somebody has.
struct Held {
    value: Bytes,
    values: Arc<ReadValues>,
}

impl ReadValues {
    /// None yet.
    pub(crate) fn new(memory: &Arc<MemoryBudget>, admission: &Arc<Admission>) -> Self {
        let (memory, admission) = (Arc::clone(memory), Arc::clone(admission));
        Self { memory, admission, has_guest: Arc::default(), shared: Mutex::default() }
    }

    /// Carries out a read of one key, in which a large value has room before it is read, and until all who share it have let
    /// it go. Where there is none the read is refused. Returns the turn of a guest.
    pub(crate) fn read(
        self: &Arc<Self>,
        read: impl FnOnce() -> StoreResponse,
    ) -> (StoreResponse, Option<LargeRead>) {
        let leave = Rc::<RefCell<Option<Leave>>>::default();
        let consent = {
            let (values, leave) = (Arc::clone(self), Rc::clone(&leave));
            move |bytes| values.see_to_leave(&mut leave.borrow_mut(), bytes)
        };
        let (response, turn) = read_with_consent(consent, read);
        let leave = leave.take();
        let turn = turn.filter(|_| matches!(leave, Some(Leave::Guest(_))));
        let StoreResponse::Cell(Some(cell)) = response else {
            return (response, None);
        };
        match self.hold(cell.value, leave) {
            Ok(value) => (StoreResponse::Cell(Some(Cell { value, ..cell })), turn),
            Err(retry_after) => (StoreResponse::Failed(StoreFault::Overloaded { retry_after }), None),
        }
    }

    /// The value with this leave, until all who share it have let it go, if it is large. An error: there is none, and when to
    /// try again.
    fn hold(self: &Arc<Self>, value: Bytes, mut leave: Option<Leave>) -> Result<Bytes, Duration> {
        if value.len() <= READ_BYTES {
            return Ok(value);
        }
        let mut values = self.shared.lock();
        let place = value.as_ptr() as usize;
        if let Some(shared) = values.get_mut(&place) {
            shared.held += 1;
        } else {
            let bytes = value.len() as u64;
            self.see_to_leave(&mut leave, bytes)?;
            let (room, guest) = match leave.expect("it was seen to") {
                Leave::Room(mut taken) => {
                    assert!(taken.hold(bytes), "less is always to be had");
                    (Some(Arc::new(taken)), None)
                }
                Leave::Guest(guest) => (None, Some(guest)),
            };
            values.insert(place, Shared { room, _guest: guest, held: 1 });
        }
        drop(values);
        Ok(Bytes::from_owner(Held { value, values: Arc::clone(self) }))
    }

    /// Sees that there is leave for a value of so many bytes. An error: there is none, and when to try again.
    fn see_to_leave(&self, leave: &mut Option<Leave>, bytes: u64) -> Result<(), Duration> {
        let is_there = match leave {
            Some(Leave::Guest(_)) => true,
            // Of what was read before it, as from another table, one is kept.
            Some(Leave::Room(taken)) => taken.bytes() >= bytes || taken.hold(bytes),
            None => false,
        };
        if is_there {
            return Ok(());
        }
        let room = self.memory.take(Part::Replies, bytes).map(Leave::Room);
        *leave = room.or_else(|| Guest::enter(&self.has_guest).map(Leave::Guest));
        if leave.is_none() {
            self.admission.count(Refusal::Replies);
            return Err(RETRY_AFTER);
        }
        Ok(())
    }

    /// The room of a value that is held, if it has any.
    fn room_of(&self, value: &Bytes) -> Option<Arc<Taken>> {
        if value.len() <= READ_BYTES {
            return None;
        }
        let values = self.shared.lock();
        values.get(&(value.as_ptr() as usize))?.room.clone()
    }
}

impl Guest {
    /// A guest, if there is none.
    fn enter(is_there: &Arc<AtomicBool>) -> Option<Self> {
        let was_there = is_there.swap(true, Ordering::Acquire);
        (!was_there).then(|| Self { is_there: Arc::clone(is_there) })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.is_there.store(false, Ordering::Release);
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let place = self.value.as_ptr() as usize;
        let mut values = self.values.shared.lock();
        let Entry::Occupied(mut entry) = values.entry(place) else {
            return;
        };
        entry.get_mut().held -= 1;
        let last = (entry.get().held == 0).then(|| entry.remove());
        drop(values);
        // What has room goes before its room does.
        self.value = Bytes::new();
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Largest;
    use crate::config::Limits;
    use engine::{Engine, Error, Options};
    use env::{Env, ManualClock, MemFs};
    use std::path::Path;
    use stdx::{Hlc, NodeTag, WallTime};

    const LARGE: usize = 1 << 20;

    /// With room for three of them.
    fn values() -> Arc<ReadValues> {
        let limits = Limits { memory_bytes: 6 << 20, ..Limits::default() };
        let memory = Arc::new(MemoryBudget::new(&limits, 0, Largest::default()));
        Arc::new(ReadValues::new(&memory, &Arc::new(Admission::new(1))))
    }

    impl ReadValues {
        /// Takes a value that was read without asking.
        fn found(self: &Arc<Self>, value: Bytes) -> Option<Bytes> {
            self.hold(value, None).ok()
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
        let taken = || values.memory.taken(Part::Replies);
        let reads = RefCell::new(0);
        let read = |block_bytes: u64, len: usize| {
            let (response, turn) = values.read(|| {
                match engine.begin_copy(block_bytes) {
                    Ok(_) => {}
                    Err(Error::NoRoom { retry_after }) => {
                        return StoreResponse::Failed(StoreFault::Overloaded { retry_after });
                    }
                    Err(error) => panic!("{error}"),
                }
                *reads.borrow_mut() += 1;
                assert!(taken() >= block_bytes || values.has_guest.load(Ordering::Relaxed));
                StoreResponse::Cell(Some(cell(len)))
            });
            (value_of(response), turn)
        };
        let more_than_large = LARGE as u64 + 100;
        let (first, turn) = read(more_than_large, LARGE);
        assert!(turn.is_none(), "it is in an account");
        assert_eq!(taken(), LARGE as u64, "what is left of its block");
        let held = [first, read(more_than_large, LARGE).0];
        let (guest, turn) = read(2 * more_than_large, 2 * LARGE);
        assert!(turn.is_some() && guest.is_some() && values.room_of(&guest.clone().expect("it")).is_none());
        assert_eq!((taken(), *reads.borrow()), (2 * LARGE as u64, 3));
        let (refused, no_turn) = read(2 * more_than_large, 2 * LARGE);
        assert!(refused.is_none() && no_turn.is_none());
        assert_eq!((values.admission.refused(Refusal::Replies), *reads.borrow()), (1, 3), "not read");
        drop(turn);
        let small = read(LARGE as u64, 10).0.expect("there is room for its block");
        assert_eq!((taken(), small.len()), (2 * LARGE as u64, 10), "what is small needs none");
        drop((guest, held));
        assert_eq!((taken(), values.shared.lock().len()), (0, 0));
        assert!(read(2 * more_than_large, 2 * LARGE).1.is_none(), "there is room again");
        assert!(!values.has_guest.load(Ordering::Relaxed));
    }

    #[test]
    fn of_two_values_of_one_key_one_is_counted() {
        let (values, engine) = (values(), engine());
        let taken = || values.memory.taken(Part::Replies);
        let (response, turn) = values.read(|| {
            for (bytes, most) in [(1, 1), (2, 2), (1, 2)] {
                engine.begin_copy(bytes * LARGE as u64).expect("room");
                assert_eq!(taken(), most * LARGE as u64);
            }
            StoreResponse::Cell(Some(cell(LARGE)))
        });
        assert!(turn.is_none());
        assert_eq!(taken(), LARGE as u64);
        drop(response);
        assert_eq!(taken(), 0);
    }

    #[test]
    fn what_was_read_has_room_until_its_answer_has_left_and_it_is_let_go() {
        let values = values();
        let taken = || values.memory.taken(Part::Replies);
        let small = values.found(Bytes::from(vec![1; READ_BYTES])).expect("it needs none");
        assert_eq!((taken(), values.room_of(&small).is_none()), (0, true));
        let value = values.found(Bytes::from(vec![2; LARGE])).expect("room");
        let copy = value.clone();
        assert_eq!(taken(), LARGE as u64);
        let room = values.room_of(&value).expect("it has room");
        drop((value, copy));
        assert_eq!(taken(), LARGE as u64, "it is with the answer");
        drop(room);
        assert_eq!(taken(), 0);
        drop(values.found(Bytes::from(vec![3; LARGE])));
        assert_eq!((taken(), values.shared.lock().len()), (0, 0));
    }

    #[test]
    fn of_what_finds_no_room_one_is_there_at_a_time() {
        let values = values();
        let read = || values.found(Bytes::from(vec![0; LARGE]));
        let held: Vec<_> = (0..3).map(|_| read().expect("room")).collect();
        let guest = read().expect("the one without");
        assert!(read().is_none() && values.room_of(&guest).is_none());
        assert_eq!(values.admission.refused(Refusal::Replies), 1);
        drop(guest);
        assert!(read().is_some());
        drop(held);
        assert_eq!(values.memory.taken(Part::Replies), 0);
    }

    #[test]
    fn a_value_that_is_shared_has_room_once_until_the_last_lets_it_go() {
        let values = values();
        let taken = || values.memory.taken(Part::Replies);
        let in_memory = Bytes::from(vec![0; LARGE]);
        let read = || values.found(in_memory.clone()).expect("room");
        let (first, second) = (read(), read());
        assert_eq!(taken(), LARGE as u64);
        let answer = values.room_of(&first);
        drop((first, answer));
        assert_eq!(taken(), LARGE as u64, "the second has it still");
        let answer = values.room_of(&second).expect("it has room");
        let third = read();
        drop((second, answer));
        assert_eq!(taken(), LARGE as u64, "so has one who came when an answer was leaving");
        drop(third);
        assert_eq!((taken(), values.shared.lock().len()), (0, 0));
    }
}
