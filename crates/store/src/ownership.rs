//! The parts of partitions that the node owns: the engine treats the other keys as absent and
//! purges them.
//!
//! The engine hashes a key without its first byte, which is the key space. So its ranges are ranges
//! of partitions. Keys of the system space are never disowned.

use crate::group::fault_of;
use crate::store::Store;
use cluster::{DisownedPart, OwnedPart, StoreFault, StoreResponse};
use engine::{ErrorKind, HashRange};

impl Store {
    /// Owns no more than these parts of their ranges, and begins to purge the rest. Blocks on the
    /// disk.
    pub(crate) fn disown(&self, parts: &[OwnedPart]) -> Result<StoreResponse, StoreFault> {
        self.engine.disown(&of_engine(parts)).map_err(|error| fault_of(&error))?;
        Ok(self.disowned())
    }

    /// Owns these parts, if the ranges are purged. Blocks on the disk.
    pub(crate) fn own_again(&self, parts: &[OwnedPart]) -> Result<StoreResponse, StoreFault> {
        match self.engine.own_again(&of_engine(parts)) {
            Err(error) if error.kind() != ErrorKind::Invalid => Err(fault_of(&error)),
            // One is not purged: the answer tells which.
            _ => Ok(self.disowned()),
        }
    }

    /// The ranges that are not owned as a whole.
    pub(crate) fn disowned(&self) -> StoreResponse {
        let parts = self.engine.disowned().into_iter().map(|progress| DisownedPart {
            owned: OwnedPart {
                first_hash: progress.range.first,
                last_hash: progress.range.last,
                stays_from: progress.stays_from,
            },
            bytes_left: progress.bytes_left,
            is_purged: progress.is_purged,
        });
        StoreResponse::Disowned(parts.collect())
    }
}

fn of_engine(parts: &[OwnedPart]) -> Vec<engine::OwnedRange> {
    let range = |part: &OwnedPart| HashRange { first: part.first_hash, last: part.last_hash };
    parts.iter().map(|part| engine::OwnedRange { range: range(part), stays_from: part.stays_from }).collect()
}
