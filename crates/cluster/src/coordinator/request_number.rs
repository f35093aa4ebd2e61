//! Numbers of requests, which identify the operation or scan that an answer belongs to.
//!
//! A request to the store and one to a peer carry the same kind of number. It consists of the
//! operation's slot in the table, the number of earlier uses of that slot, and the step of the
//! operation. An answer thus finds its operation in constant time, and one that comes too late
//! finds nothing rather than another operation. Scans have a table of their own, and all their
//! requests share one counter.
//!
//! From the highest bit: one 0, 43 bits of uses or of the counter, 4 of [`Step`] or [`SCAN_BITS`],
//! 16 of the slot. The uses of a slot wrap around after months of only the shortest operations; no
//! answer is that late.

use crate::StoreId;

/// The slot of requests that belong to no operation.
const NO_SLOT: u16 = u16::MAX;
const SLOT_BITS: u32 = 16;
const STEP_BITS: u32 = 4;
/// Takes the place of a step in the numbers of scans.
const SCAN_BITS: u64 = 4;
pub(super) const USES_MASK: u64 = (1 << 43) - 1;

/// Greatest number of rounds in which a read may send a newer cell to replicas that lack it.
pub(super) const WRITE_ROUNDS_MAX: u8 = 8;

/// Identifies an operation; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationId {
    /// Number of earlier uses of the slot.
    pub(super) uses: u64,
    /// The slot in the table of operations.
    pub(super) slot: u16,
}

/// A step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads the cell.
    Cell,
    /// Reads version and kind.
    Meta,
    /// Keeps hints, in the first or the second attempt.
    Hints { attempt: u8 },
    /// Reads whether a write of this node's store was superseded.
    SupersededCheck,
    /// Writes the cell of this round.
    Write { round: u8 },
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOwner {
    /// A step of an operation.
    Operation(OperationId, Step),
    /// A request of the scan in a slot.
    Scan { slot: u16, serial: u64 },
}

impl Step {
    /// Whether the store is asked to write.
    pub(super) const fn is_write(self) -> bool {
        matches!(self, Self::Hints { .. } | Self::Write { .. })
    }

    const fn to_bits(self) -> u64 {
        match self {
            Self::Cell => 0,
            Self::Meta => 1,
            Self::Hints { attempt } => 2 + attempt as u64,
            Self::SupersededCheck => 5,
            Self::Write { round } => 8 + round as u64,
        }
    }

    const fn from_bits(bits: u64) -> Option<Self> {
        Some(match bits as u8 {
            0 => Self::Cell,
            1 => Self::Meta,
            attempt @ 2..=3 => Self::Hints { attempt: attempt - 2 },
            5 => Self::SupersededCheck,
            round @ 8..=15 => Self::Write { round: round - 8 },
            _ => return None,
        })
    }
}

/// The number of a request of an operation.
pub(super) const fn number(id: OperationId, step: Step) -> u64 {
    id.uses << (SLOT_BITS + STEP_BITS) | step.to_bits() << SLOT_BITS | id.slot as u64
}

/// The number of a request of the scan in this slot.
pub(super) const fn scan_number(slot: u16, serial: u64) -> u64 {
    (serial & USES_MASK) << (SLOT_BITS + STEP_BITS) | SCAN_BITS << SLOT_BITS | slot as u64
}

/// The owner that the number identifies; `None` for numbers of [`own_store_id`], and for invalid
/// ones.
pub(super) const fn parse(number: u64) -> Option<RequestOwner> {
    let slot = number as u16;
    if slot == NO_SLOT {
        return None;
    }
    let uses = number >> (SLOT_BITS + STEP_BITS);
    match number >> SLOT_BITS & ((1 << STEP_BITS) - 1) {
        SCAN_BITS => Some(RequestOwner::Scan { slot, serial: uses }),
        step => match Step::from_bits(step) {
            Some(step) => Some(RequestOwner::Operation(OperationId { uses, slot }, step)),
            None => None,
        },
    }
}

/// The id of the `count`th store request that belongs to no operation.
pub(super) const fn own_store_id(count: u64) -> StoreId {
    StoreId((count & USES_MASK) << (SLOT_BITS + STEP_BITS) | NO_SLOT as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Cell),
            Just(Step::Meta),
            Just(Step::SupersededCheck),
            (0u8..2).prop_map(|attempt| Step::Hints { attempt }),
            (0..WRITE_ROUNDS_MAX).prop_map(|round| Step::Write { round }),
        ]
    }

    proptest! {
        #[test]
        fn numbers_round_trip_and_own_ids_have_no_owner(
            uses in 0..=USES_MASK, slot in 0..NO_SLOT, step in any_step(),
        ) {
            let id = OperationId { uses, slot };
            prop_assert_eq!(parse(number(id, step)), Some(RequestOwner::Operation(id, step)));
            prop_assert_eq!(parse(scan_number(slot, uses)), Some(RequestOwner::Scan { slot, serial: uses }));
            for number in [number(id, step), scan_number(slot, uses)] {
                prop_assert!(number >> 63 == 0, "the highest bit is the replica's");
            }
            prop_assert_eq!(parse(own_store_id(uses).0), None);
        }
    }
}
