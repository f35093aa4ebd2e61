//! The operations under way, bounded, each findable by id and all in the order of their deadlines.
//!
//! **Promise.** Insert, find, remove and "which is oldest" take constant time and allocate nothing once the
//! table has grown. An [`OperationId`] is never used twice, so an answer that comes too late finds nothing
//! rather than another operation.
//!
//! **Mechanism.** A slab. An id is a slot's index and how often the slot was used before: 16 and 48 bits, which
//! lasts for years at a million operations a second. A doubly linked list through the slots keeps the order of
//! insertion, which is the order of the deadlines as every operation has the same time.

use crate::{RequestId, StoreId, Tally};
use stdx::Instant;

/// Stands for "no slot" in the links.
const NONE: u16 = u16::MAX;

/// Names an operation; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationId {
    generation: u64,
    index: u16,
}

impl OperationId {
    /// The id of the store request that this operation makes.
    pub(super) const fn store_id(self) -> StoreId {
        StoreId(self.generation << 16 | self.index as u64)
    }

    /// The operation that made this store request; `None` for ids of [`own_store_id`].
    pub(super) const fn of(id: StoreId) -> Option<Self> {
        let index = id.0 as u16;
        if index == NONE { None } else { Some(Self { generation: id.0 >> 16, index }) }
    }
}

/// The id of the `count`th store request that belongs to no operation.
pub(super) const fn own_store_id(count: u64) -> StoreId {
    StoreId(count << 16 | NONE as u64)
}

/// A command on its way to its reply.
#[derive(Debug)]
pub(super) struct Operation<W> {
    /// Who waits for the reply.
    pub(super) to: RequestId,
    /// Until when.
    pub(super) deadline: Instant,
    /// Who answered.
    pub(super) tally: Tally,
    /// What is being done.
    pub(super) work: W,
}

#[derive(Debug)]
struct Slot<W> {
    generation: u64,
    older: u16,
    /// The next newer operation; of a free slot, the next free one.
    newer: u16,
    operation: Option<Operation<W>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct OperationTable<W> {
    slots: Vec<Slot<W>>,
    free: u16,
    oldest: u16,
    newest: u16,
    len: u16,
    operations_max: u16,
}

impl<W> OperationTable<W> {
    /// An empty table for at most `operations_max` operations.
    pub(super) const fn new(operations_max: u16) -> Self {
        Self { slots: Vec::new(), free: NONE, oldest: NONE, newest: NONE, len: 0, operations_max }
    }

    /// Operations under way.
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether another one does not fit.
    pub(super) const fn is_full(&self) -> bool {
        self.len == self.operations_max
    }

    /// Takes in an operation, the newest.
    ///
    /// # Panics
    /// When the table is full.
    pub(super) fn insert(&mut self, operation: Operation<W>) -> OperationId {
        assert!(!self.is_full(), "{} operations are under way already", self.len);
        let index = self.take_free_slot();
        let slot = &mut self.slots[usize::from(index)];
        slot.operation = Some(operation);
        slot.older = self.newest;
        slot.newer = NONE;
        let generation = slot.generation;
        match self.newest {
            NONE => self.oldest = index,
            newest => self.slots[usize::from(newest)].newer = index,
        }
        self.newest = index;
        self.len += 1;
        OperationId { generation, index }
    }

    /// The operation of this id, if it is still under way.
    pub(super) fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation<W>> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        if slot.generation == id.generation { slot.operation.as_mut() } else { None }
    }

    /// Takes out the operation of this id, if it is still under way.
    pub(super) fn remove(&mut self, id: OperationId) -> Option<Operation<W>> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        if slot.generation != id.generation {
            return None;
        }
        let operation = slot.operation.take()?;
        let (older, newer) = (slot.older, slot.newer);
        slot.generation += 1;
        slot.newer = self.free;
        self.free = id.index;
        self.len -= 1;
        self.link(older, newer);
        Some(operation)
    }

    /// The operation whose deadline comes first.
    pub(super) fn oldest(&self) -> Option<(OperationId, &Operation<W>)> {
        let slot = self.slots.get(usize::from(self.oldest))?;
        let id = OperationId { generation: slot.generation, index: self.oldest };
        slot.operation.as_ref().map(|operation| (id, operation))
    }

    fn take_free_slot(&mut self) -> u16 {
        if self.free == NONE {
            let index = self.slots.len() as u16;
            self.slots.push(Slot { generation: 0, older: NONE, newer: NONE, operation: None });
            return index;
        }
        let index = self.free;
        self.free = self.slots[usize::from(index)].newer;
        index
    }

    /// Makes neighbours of the two sides of a slot that left the list.
    fn link(&mut self, older: u16, newer: u16) {
        match older {
            NONE => self.oldest = newer,
            older => self.slots[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[usize::from(newer)].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuorumChoice;
    use proptest::prelude::*;
    use std::num::NonZeroU8;

    fn operation(number: u64) -> Operation<()> {
        let quorum = QuorumChoice::default().resolve(NonZeroU8::MIN, 1).expect("1/1 is a quorum");
        Operation {
            to: RequestId(number),
            deadline: Instant::from_nanos(number),
            tally: Tally::new(quorum),
            work: (),
        }
    }

    proptest! {
        /// Against a plain list: `Some(i)` removes the `i`th of those under way, `None` inserts.
        #[test]
        fn it_is_a_list_in_order_of_insertion(steps: Vec<Option<prop::sample::Index>>) {
            const OPERATIONS_MAX: u16 = 8;
            let mut table = OperationTable::new(OPERATIONS_MAX);
            let mut model: Vec<(OperationId, u64)> = Vec::new();
            let mut gone: Vec<OperationId> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u64;
                match step {
                    None if !table.is_full() => model.push((table.insert(operation(number)), number)),
                    Some(index) if !model.is_empty() => {
                        let (id, number) = model.remove(index.index(model.len()));
                        prop_assert_eq!(table.remove(id).map(|operation| operation.to), Some(RequestId(number)));
                        gone.push(id);
                    }
                    _ => {}
                }
                let oldest = table.oldest().map(|(id, operation)| (id, operation.to.0));
                prop_assert_eq!(oldest, model.first().copied());
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.is_full(), model.len() == usize::from(OPERATIONS_MAX));
                for &id in &gone {
                    prop_assert!(table.get_mut(id).is_none() && table.remove(id).is_none());
                    prop_assert!(model.iter().all(|(live, _)| live.store_id() != id.store_id()));
                }
            }
        }

        #[test]
        fn ids_round_trip_and_own_ids_name_no_operation(generation in 0u64..1 << 48, index in 0..NONE) {
            let id = OperationId { generation, index };
            prop_assert_eq!(OperationId::of(id.store_id()), Some(id));
            prop_assert_eq!(OperationId::of(own_store_id(generation)), None);
        }
    }
}
