//! Room for large values on their way to their readers.
//!
//! **Promise.** A value that is too large to be copied into a response has its bytes taken of the memory budget
//! ([`Part::Replies`]) before the first byte of its answer leaves, until its last byte has. Where there is no room the
//! answer is `503`: nothing that has begun is broken off for it. Readers that stand still make room (`vitals`). One that was
//! read from disk has room from then on ([`ReadValues`]), as it may have to wait for its reader. Readers who share it in
//! memory share its room, which goes back with the last of them.
//!
//! **Mechanism.** The room of a value that was read is found by where the value is in memory, as long as anybody who read it
//! there has it. Those are counted; a reader whose answer leaves holds the room, too.
//!
//! **Caveats.** A value that is found in memory, or alone without room, is there when it is looked at. Readers who find one
//! value in memory that nobody has just read each count all of it.

use crate::admission::Admission;
use crate::budget::{MemoryBudget, Part, Taken};
use crate::counters::Refusal;
use crate::process::Process;
use crate::vitals::{Holding, Vitals};
use api::{Action, Asked};
use bytes::Bytes;
use cluster::{Failure, Reply};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stdx::Version;

/// Values up to this size are copied into their answers, and taken in no account unless they have to wait.
pub(crate) const LARGE_BYTES: usize = 16 << 10;
/// Values up to this size that were read from disk are taken in account only when they leave.
const READ_BYTES: usize = 64 << 10;
/// When to come again for a value that has found no room.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    asked: &Asked,
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
fn sends_value(asked: &Asked, version: Version) -> bool {
    let is_known = asked.if_none_match.as_ref().is_some_and(|condition| condition.matches(version));
    asked.action == Action::Get && !is_known
}

/// Values that were read from disk, as long as their readers have them.
#[derive(Debug)]
pub(crate) struct ReadValues {
    memory: Arc<MemoryBudget>,
    admission: Arc<Admission>,
    /// By where they are.
    shared: Mutex<HashMap<usize, Shared>>,
}

/// A value that is in memory once, whoever has read it.
#[derive(Debug)]
struct Shared {
    /// One value at a time may be there without: whoever wants to know about it, and not have it, needs none for long.
    room: Option<Arc<Taken>>,
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
        Self { memory: Arc::clone(memory), admission: Arc::clone(admission), shared: Mutex::default() }
    }

    /// The value, with room until all who share it have let it go if it is large; `None`: there is no room.
    pub(crate) fn hold(self: &Arc<Self>, value: Bytes) -> Option<Bytes> {
        if value.len() <= READ_BYTES {
            return Some(value);
        }
        let mut values = self.shared.lock();
        let place = value.as_ptr() as usize;
        if let Some(shared) = values.get_mut(&place) {
            shared.held += 1;
        } else {
            let room = self.memory.take(Part::Replies, value.len() as u64).map(Arc::new);
            if room.is_none() && values.values().any(|shared| shared.room.is_none()) {
                self.admission.count(Refusal::Replies);
                return None;
            }
            values.insert(place, Shared { room, held: 1 });
        }
        Some(Bytes::from_owner(Held { value, values: Arc::clone(self) }))
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

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.values.shared.lock().entry(self.value.as_ptr() as usize) {
            entry.get_mut().held -= 1;
            if entry.get().held == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Largest;
    use crate::config::Limits;

    const LARGE: usize = 1 << 20;

    fn values() -> Arc<ReadValues> {
        let limits = Limits { memory_bytes: 6 << 20, ..Limits::default() };
        let memory = Arc::new(MemoryBudget::new(&limits, 0, Largest::default()));
        Arc::new(ReadValues::new(&memory, &Arc::new(Admission::new(1))))
    }

    #[test]
    fn what_was_read_has_room_until_its_answer_has_left_and_it_is_let_go() {
        let values = values();
        let taken = || values.memory.taken(Part::Replies);
        let small = values.hold(Bytes::from(vec![1; READ_BYTES])).expect("it needs none");
        assert_eq!((taken(), values.room_of(&small).is_none()), (0, true));
        let value = values.hold(Bytes::from(vec![2; LARGE])).expect("room");
        let copy = value.clone();
        assert_eq!(taken(), LARGE as u64);
        let room = values.room_of(&value).expect("it has room");
        drop((value, copy));
        assert_eq!(taken(), LARGE as u64, "it is with the answer");
        drop(room);
        assert_eq!(taken(), 0);
        drop(values.hold(Bytes::from(vec![3; LARGE])));
        assert_eq!((taken(), values.shared.lock().len()), (0, 0));
    }

    #[test]
    fn of_what_finds_no_room_one_is_there_at_a_time() {
        let values = values();
        let read = || values.hold(Bytes::from(vec![0; LARGE]));
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
        let read = || values.hold(in_memory.clone()).expect("room");
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
