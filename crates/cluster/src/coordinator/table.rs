//! The operations under way, bounded, each findable by id and all in the order of their deadlines.
//!
//! **Promise.** Insert, find, remove and "which is oldest" take constant time and allocate nothing once the
//! table has grown. An [`OperationId`] is never used twice, so an answer that comes too late finds nothing
//! rather than another operation.
//!
//! **Mechanism.** A slab; an id is a slot and how often the slot was used before. A doubly linked list through
//! the slots keeps the order of insertion, which is the order of the deadlines as every operation has the same
//! time; one that gets new time goes to the end. A second list holds the *stragglers*, the operations whose reply
//! has left, in the order in which they became it.

use super::request_number::USES_MASK;
use stdx::Instant;

/// Stands for "no slot" in the lists.
const NONE: u16 = u16::MAX;
/// The list of all operations, in the order of their deadlines.
const BY_DEADLINE: usize = 0;
/// The list of stragglers, in the order of their replies.
const BY_REPLY: usize = 1;
const LISTS: usize = 2;

/// Names an operation; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationId {
    /// How often the slot was used before.
    pub(super) uses: u64,
    /// Where it stands.
    pub(super) slot: u16,
}

#[derive(Debug)]
struct Slot<W> {
    uses: u64,
    /// Its neighbours in each list.
    links: [Link; LISTS],
    /// Of a free slot: the next free one.
    next_free: u16,
    occupant: Option<Occupant<W>>,
}

#[derive(Debug)]
struct Occupant<W> {
    deadline: Instant,
    has_replied: bool,
    operation: W,
}

/// A slot's neighbours in a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    older: u16,
    newer: u16,
}

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u16,
    newest: u16,
}

/// See the module.
#[derive(Debug)]
pub(super) struct OperationTable<W> {
    slots: Vec<Slot<W>>,
    free: u16,
    ends: [Ends; LISTS],
    waiting: u16,
    replied: u16,
    waiting_max: u16,
    replied_max: u16,
}

impl Link {
    const NONE: Self = Self { older: NONE, newer: NONE };
}

impl Ends {
    const NONE: Self = Self { oldest: NONE, newest: NONE };
}

impl<W> OperationTable<W> {
    /// An empty table for at most `waiting_max` operations without a reply, and `stragglers_max` with.
    ///
    /// # Panics
    /// When these are more than there are slots.
    pub(super) fn new(waiting_max: u16, replied_max: u16) -> Self {
        let slots_max = u32::from(waiting_max) + u32::from(replied_max) + 1;
        assert!(slots_max < u32::from(NONE), "{waiting_max} operations and {replied_max} stragglers");
        Self {
            slots: Vec::new(),
            free: NONE,
            ends: [Ends::NONE; LISTS],
            waiting: 0,
            replied: 0,
            waiting_max,
            replied_max,
        }
    }

    /// Operations without a reply.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Whether another one does not fit.
    pub(super) const fn is_full(&self) -> bool {
        self.waiting == self.waiting_max
    }

    /// Takes in an operation, the one with the last deadline.
    ///
    /// # Panics
    /// When the table is full.
    #[inline]
    pub(super) fn insert(&mut self, deadline: Instant, operation: W) -> OperationId {
        assert!(!self.is_full(), "{} operations are under way already", self.waiting);
        let slot = self.take_free_slot();
        self.slots[usize::from(slot)].occupant = Some(Occupant { deadline, has_replied: false, operation });
        self.push(BY_DEADLINE, slot);
        self.waiting += 1;
        OperationId { uses: self.slots[usize::from(slot)].uses, slot }
    }

    /// The operation of this id, if it is still under way.
    #[inline]
    pub(super) fn get_mut(&mut self, id: OperationId) -> Option<&mut W> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        if slot.uses != id.uses {
            return None;
        }
        slot.occupant.as_mut().map(|occupant| &mut occupant.operation)
    }

    /// Whether the operation of this id is still under way and waits for its reply.
    pub(super) fn is_waiting(&self, id: OperationId) -> bool {
        let slot = self.slots.get(usize::from(id.slot));
        let occupant = slot.filter(|slot| slot.uses == id.uses).and_then(|slot| slot.occupant.as_ref());
        occupant.is_some_and(|occupant| !occupant.has_replied)
    }

    /// Takes out the operation of this id, if it is still under way.
    #[inline]
    pub(super) fn remove(&mut self, id: OperationId) -> Option<W> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        if slot.uses != id.uses {
            return None;
        }
        let occupant = slot.occupant.take()?;
        slot.uses = (slot.uses + 1) & USES_MASK;
        slot.next_free = self.free;
        self.free = id.slot;
        self.unlink(BY_DEADLINE, id.slot);
        if occupant.has_replied {
            self.unlink(BY_REPLY, id.slot);
            self.replied -= 1;
        } else {
            self.waiting -= 1;
        }
        Some(occupant.operation)
    }

    /// Makes a straggler of an operation whose reply has left. The oldest of them is named when there are too many.
    ///
    /// # Panics
    /// When it is one already, or not under way.
    pub(super) fn mark_replied(&mut self, id: OperationId) -> Option<OperationId> {
        let slot = &mut self.slots[usize::from(id.slot)];
        let occupant = slot.occupant.as_mut().expect("it is under way");
        assert!(slot.uses == id.uses && !occupant.has_replied, "{id:?} has been replied to before");
        occupant.has_replied = true;
        self.push(BY_REPLY, id.slot);
        self.waiting -= 1;
        self.replied += 1;
        let oldest = self.ends[BY_REPLY].oldest;
        let too_many = self.replied > self.replied_max;
        too_many.then(|| OperationId { uses: self.slots[usize::from(oldest)].uses, slot: oldest })
    }

    /// Gives an operation the last of all deadlines.
    ///
    /// # Panics
    /// When it is not under way.
    pub(super) fn postpone(&mut self, id: OperationId, deadline: Instant) {
        self.unlink(BY_DEADLINE, id.slot);
        let slot = &mut self.slots[usize::from(id.slot)];
        assert_eq!(slot.uses, id.uses, "it is not under way");
        slot.occupant.as_mut().expect("it is under way").deadline = deadline;
        self.push(BY_DEADLINE, id.slot);
    }

    /// The operation whose deadline comes first, and when that is.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(OperationId, Instant)> {
        let oldest = self.ends[BY_DEADLINE].oldest;
        let slot = self.slots.get(usize::from(oldest))?;
        let id = OperationId { uses: slot.uses, slot: oldest };
        slot.occupant.as_ref().map(|occupant| (id, occupant.deadline))
    }

    /// When the time of an operation is over, if it is still under way.
    #[inline]
    pub(super) fn deadline(&self, id: OperationId) -> Option<Instant> {
        let slot = self.slots.get(usize::from(id.slot)).filter(|slot| slot.uses == id.uses)?;
        slot.occupant.as_ref().map(|occupant| occupant.deadline)
    }

    /// How many slots have ever been used; those of [`OperationTable::at`].
    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The operation in a slot.
    pub(super) fn at(&mut self, slot: usize) -> Option<(OperationId, &mut W)> {
        let Slot { uses, occupant, .. } = &mut self.slots[slot];
        let id = OperationId { uses: *uses, slot: slot as u16 };
        occupant.as_mut().map(|occupant| (id, &mut occupant.operation))
    }

    fn take_free_slot(&mut self) -> u16 {
        if self.free == NONE {
            let slot = self.slots.len() as u16;
            self.slots.push(Slot { uses: 0, links: [Link::NONE; LISTS], next_free: NONE, occupant: None });
            return slot;
        }
        let slot = self.free;
        self.free = self.slots[usize::from(slot)].next_free;
        slot
    }

    /// Makes a slot the newest of a list.
    #[inline]
    fn push(&mut self, list: usize, slot: u16) {
        let newest = self.ends[list].newest;
        self.slots[usize::from(slot)].links[list] = Link { older: newest, newer: NONE };
        match newest {
            NONE => self.ends[list].oldest = slot,
            newest => self.slots[usize::from(newest)].links[list].newer = slot,
        }
        self.ends[list].newest = slot;
    }

    /// Makes neighbours of the two sides of a slot in a list.
    #[inline]
    fn unlink(&mut self, list: usize, slot: u16) {
        let Link { older, newer } = self.slots[usize::from(slot)].links[list];
        match older {
            NONE => self.ends[list].oldest = newer,
            older => self.slots[usize::from(older)].links[list].newer = newer,
        }
        match newer {
            NONE => self.ends[list].newest = older,
            newer => self.slots[usize::from(newer)].links[list].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Action {
        Insert,
        Remove(prop::sample::Index),
        MarkReplied(prop::sample::Index),
        Postpone(prop::sample::Index),
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => Just(Action::Insert),
            2 => any::<prop::sample::Index>().prop_map(Action::Remove),
            1 => any::<prop::sample::Index>().prop_map(Action::MarkReplied),
            1 => any::<prop::sample::Index>().prop_map(Action::Postpone),
        ]
    }

    const WAITING_MAX: u16 = 6;
    const REPLIED_MAX: u16 = 3;

    proptest! {
        /// Against two plain lists: all operations by deadline, and the stragglers among them by reply.
        #[test]
        fn it_is_two_lists(actions in prop::collection::vec(any_action(), 1..100)) {
            let mut table = OperationTable::new(WAITING_MAX, REPLIED_MAX);
            let mut all: Vec<(OperationId, u64)> = Vec::new();
            let mut replied: Vec<OperationId> = Vec::new();
            let mut gone: Vec<OperationId> = Vec::new();
            for (time, action) in actions.into_iter().enumerate() {
                let time = time as u64;
                let at = Instant::from_nanos(time);
                match action {
                    Action::Insert if !table.is_full() => all.push((table.insert(at, time), time)),
                    Action::Remove(index) if !all.is_empty() => {
                        let (id, _) = all.remove(index.index(all.len()));
                        replied.retain(|straggler| *straggler != id);
                        prop_assert!(table.remove(id).is_some());
                        gone.push(id);
                    }
                    Action::MarkReplied(index) if table.waiting() > 0 => {
                        let waiting: Vec<_> =
                            all.iter().filter(|(id, _)| !replied.contains(id)).copied().collect();
                        let (id, _) = waiting[index.index(waiting.len())];
                        replied.push(id);
                        if let Some(oldest) = table.mark_replied(id) {
                            prop_assert!(replied.len() > usize::from(REPLIED_MAX));
                            prop_assert_eq!(oldest, replied.remove(0));
                            all.retain(|(id, _)| *id != oldest);
                            prop_assert!(table.remove(oldest).is_some());
                            gone.push(oldest);
                        }
                    }
                    Action::Postpone(index) if !all.is_empty() => {
                        let (id, _) = all.remove(index.index(all.len()));
                        table.postpone(id, at);
                        all.push((id, time));
                    }
                    _ => {}
                }
                let oldest = table.oldest().map(|(id, deadline)| (id, deadline.as_nanos()));
                prop_assert_eq!(oldest, all.first().copied());
                prop_assert_eq!(table.waiting(), all.len() - replied.len());
                for &(id, _) in &all {
                    prop_assert!(table.get_mut(id).is_some());
                    prop_assert_eq!(table.is_waiting(id), !replied.contains(&id));
                }
                for &id in &gone {
                    prop_assert!(table.get_mut(id).is_none() && table.remove(id).is_none());
                    prop_assert!(!table.is_waiting(id) && all.iter().all(|(live, _)| *live != id));
                }
            }
        }
    }
}
