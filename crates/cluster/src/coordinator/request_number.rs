//! The numbers of requests: whose answer it is that comes.
//!
//! A request to the store and one to a peer carry the same kind of number: which slot of the table the operation
//! stands in, how often that slot was used before, and which of the operation's requests it is. So an answer finds
//! its operation in constant time, and one that comes too late finds nothing rather than another operation. Scans
//! stand in a table of their own, and their requests are counted, all of them together.
//!
//! From the highest bit: one 0, 43 bits of uses or of the count, 4 of [`Step`] or [`SCAN_BITS`], 16 of the slot. Uses of
//! one slot wrap around after months of nothing but the shortest operations; no answer is that late.

use super::table::OperationId;
use crate::StoreId;

/// The slot of requests that belong to no operation.
const NO_SLOT: u16 = u16::MAX;
const SLOT_BITS: u32 = 16;
const STEP_BITS: u32 = 4;
/// Stands in place of a step in the numbers of scans.
const SCAN_BITS: u64 = 4;
pub(super) const USES_MASK: u64 = (1 << 43) - 1;

/// How often an operation of a read may send a newer cell to replicas that lack it.
pub(super) const WRITE_ROUNDS_MAX: u8 = 8;

/// Which of the requests of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads the cell.
    Cell,
    /// Reads version and kind.
    Meta,
    /// Keeps hints; the first or the second attempt.
    Hints { attempt: u8 },
    /// Reads whether a write of this node's store was superseded.
    SupersededCheck,
    /// Writes a cell; which one, by the round.
    Write { round: u8 },
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOwner {
    /// This one of an operation.
    Operation(OperationId, Step),
    /// This one of the scan in a slot.
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

/// The number of this request.
pub(super) const fn number(id: OperationId, step: Step) -> u64 {
    id.uses << (SLOT_BITS + STEP_BITS) | step.to_bits() << SLOT_BITS | id.slot as u64
}

/// The number of the request of this count, which is one of the scan in this slot.
pub(super) const fn scan_number(slot: u16, serial: u64) -> u64 {
    (serial & USES_MASK) << (SLOT_BITS + STEP_BITS) | SCAN_BITS << SLOT_BITS | slot as u64
}

/// What the number stands for; `None` for those of [`own_store_id`], and for what is none of them.
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
        fn numbers_round_trip_and_own_ids_name_nobody(
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
