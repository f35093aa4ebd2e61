//! Table of the operations in progress: bounded, indexed by id, and ordered by deadline.
//!
//! **Promise.** Insert, find, remove and the query for the oldest take constant time and allocate
//! nothing once the table has grown. An [`OperationId`] is never used twice, so an answer that
//! comes too late finds nothing rather than another operation.
//!
//! **Mechanism.** A slab; an id is a slot and the number of its earlier uses. A doubly linked list
//! through the slots keeps the order of insertion, which is the order of the deadlines because
//! every operation has the same time limit; an operation that gets new time moves to the end. A
//! second list holds the operations that have replied and still wait for replicas, in the order of
//! their replies.

use super::request_number::{OperationId, USES_MASK};
use stdx::Instant;

/// Stands for "no slot" in the lists.
const NONE: u16 = u16::MAX;
/// The list of all operations, in the order of their deadlines.
const BY_DEADLINE: usize = 0;
/// The list of operations that have replied, in the order of their replies.
const BY_REPLY: usize = 1;
const LISTS: usize = 2;

#[derive(Debug)]
struct Slot<W> {
    uses: u64,
    /// Its neighbours in each list.
    links: [Link; LISTS],
    /// For a free slot: the next free one.
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

/// Operations in progress, with their deadlines.
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
    /// Creates an empty table for at most `waiting_max` operations without a reply, and
    /// `replied_max` with one.
    ///
    /// # Panics
    /// If these are more than there are slots.
    pub(super) fn new(waiting_max: u16, replied_max: u16) -> Self {
        let slots_max = u32::from(waiting_max) + u32::from(replied_max) + 1;
        assert!(slots_max < u32::from(NONE), "{waiting_max} operations and {replied_max} replied operations");
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

    /// Number of operations without a reply.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Whether another operation without a reply does not fit.
    pub(super) const fn is_full(&self) -> bool {
        self.waiting == self.waiting_max
    }

    /// Inserts an operation, whose deadline is the last of all.
    ///
    /// # Panics
    /// If the table is full.
    #[inline]
    pub(super) fn insert(&mut self, deadline: Instant, operation: W) -> OperationId {
        assert!(!self.is_full(), "{} operations are in the table already", self.waiting);
        let slot = self.take_free_slot();
        self.slots[usize::from(slot)].occupant = Some(Occupant { deadline, has_replied: false, operation });
        self.push(BY_DEADLINE, slot);
        self.waiting += 1;
        OperationId { uses: self.slots[usize::from(slot)].uses, slot }
    }

    /// The operation with this id, if it is still in the table.
    #[inline]
    pub(super) fn get_mut(&mut self, id: OperationId) -> Option<&mut W> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        if slot.uses != id.uses {
            return None;
        }
        slot.occupant.as_mut().map(|occupant| &mut occupant.operation)
    }

    /// Whether the operation with this id is still in the table and has not replied.
    pub(super) fn is_waiting(&self, id: OperationId) -> bool {
        let slot = self.slots.get(usize::from(id.slot));
        let occupant = slot.filter(|slot| slot.uses == id.uses).and_then(|slot| slot.occupant.as_ref());
        occupant.is_some_and(|occupant| !occupant.has_replied)
    }

    /// Removes the operation with this id, if it is still in the table.
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

    /// Records that an operation has replied. If too many have, returns the oldest of them, which
    /// the caller removes.
    ///
    /// # Panics
    /// If it has replied before, or is not in the table.
    pub(super) fn mark_replied(&mut self, id: OperationId) -> Option<OperationId> {
        let slot = &mut self.slots[usize::from(id.slot)];
        let occupant = slot.occupant.as_mut().expect("the operation is in the table");
        assert!(slot.uses == id.uses && !occupant.has_replied, "{id:?} has replied before");
        occupant.has_replied = true;
        self.push(BY_REPLY, id.slot);
        self.waiting -= 1;
        self.replied += 1;
        let oldest = self.ends[BY_REPLY].oldest;
        let too_many = self.replied > self.replied_max;
        too_many.then(|| OperationId { uses: self.slots[usize::from(oldest)].uses, slot: oldest })
    }

    /// Gives an operation another id, so that answers to its former requests find nothing. It keeps
    /// its deadline.
    ///
    /// # Panics
    /// If it is not in the table.
    pub(super) fn renew(&mut self, id: OperationId) -> OperationId {
        let slot = &mut self.slots[usize::from(id.slot)];
        assert!(slot.uses == id.uses && slot.occupant.is_some(), "{id:?} is not in the table");
        slot.uses = (slot.uses + 1) & USES_MASK;
        OperationId { uses: slot.uses, slot: id.slot }
    }

    /// Gives an operation the last of all deadlines.
    ///
    /// # Panics
    /// If it is not in the table.
    pub(super) fn postpone(&mut self, id: OperationId, deadline: Instant) {
        self.unlink(BY_DEADLINE, id.slot);
        let slot = &mut self.slots[usize::from(id.slot)];
        assert_eq!(slot.uses, id.uses, "it is not in the table");
        slot.occupant.as_mut().expect("the operation is in the table").deadline = deadline;
        self.push(BY_DEADLINE, id.slot);
    }

    /// The operation with the earliest deadline, and that deadline.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(OperationId, Instant)> {
        let oldest = self.ends[BY_DEADLINE].oldest;
        let slot = self.slots.get(usize::from(oldest))?;
        let id = OperationId { uses: slot.uses, slot: oldest };
        slot.occupant.as_ref().map(|occupant| (id, occupant.deadline))
    }

    /// The deadline of an operation, if it is still in the table.
    #[inline]
    pub(super) fn deadline(&self, id: OperationId) -> Option<Instant> {
        let slot = self.slots.get(usize::from(id.slot)).filter(|slot| slot.uses == id.uses)?;
        slot.occupant.as_ref().map(|occupant| occupant.deadline)
    }

    /// Number of slots ever used, which bounds the argument of [`OperationTable::at`].
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

    /// Links the two neighbours of a slot in a list.
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
        Renew(prop::sample::Index),
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![
            3 => Just(Action::Insert),
            2 => any::<prop::sample::Index>().prop_map(Action::Remove),
            1 => any::<prop::sample::Index>().prop_map(Action::MarkReplied),
            1 => any::<prop::sample::Index>().prop_map(Action::Postpone),
            1 => any::<prop::sample::Index>().prop_map(Action::Renew),
        ]
    }

    const WAITING_MAX: u16 = 6;
    const REPLIED_MAX: u16 = 3;

    proptest! {
        /// Compares the table with two plain lists: all operations by deadline, and those that have
        /// replied.
        #[test]
        fn the_table_behaves_like_two_lists(actions in prop::collection::vec(any_action(), 1..100)) {
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
                        replied.retain(|other| *other != id);
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
                    Action::Renew(index) if !all.is_empty() => {
                        let at = index.index(all.len());
                        let former = &mut all[at].0;
                        let id = table.renew(*former);
                        replied.iter_mut().filter(|other| *other == former).for_each(|other| *other = id);
                        gone.push(std::mem::replace(former, id));
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
