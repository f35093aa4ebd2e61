//! The answers of replicas to a read, reduced to the newest cell and the replicas that hold it.
//!
//! One replica sends the cell, the others send version and kind, so the newest version may be known
//! before its value is. Cells of one version are the same write. If they differ nevertheless, the
//! cell that wins on every replica is the newest; but a value that has expired and the tombstone
//! that compaction makes of it count as equal.

use crate::quorum::{SwappedReplicas, replicas_of_cell};
use crate::replica_set::ReplicaSet;
use std::cmp::Ordering;
use stdx::{Cell, CellMeta, WallTime};

/// The newest cell of the answers, and its holders.
#[derive(Debug, Default)]
pub(super) struct ReadAnswers {
    newest: Option<CellMeta>,
    cell: Option<Cell>,
    /// Replicas that hold the newest cell, an older one, or none.
    holders: ReplicaSet,
    stale: ReplicaSet,
    without_cell: ReplicaSet,
    /// The greatest `from` of all answers.
    greatest_from: u8,
    /// The swap that runs.
    swap: Option<SwappedReplicas>,
}

impl ReadAnswers {
    /// No answers, while this swap runs.
    pub(super) fn during(swap: Option<SwappedReplicas>) -> Self {
        Self { swap, ..Self::default() }
    }

    /// The swap that runs.
    pub(super) const fn swap(&self) -> Option<SwappedReplicas> {
        self.swap
    }

    /// Records the answer of a replica, with the cell if it was sent. A second answer of a replica
    /// replaces its first. Returns whether another cell is the newest now.
    pub(super) fn record(
        &mut self,
        replica_index: u8,
        meta: Option<CellMeta>,
        cell: Option<Cell>,
        wall: WallTime,
    ) -> bool {
        for set in [&mut self.holders, &mut self.stale, &mut self.without_cell] {
            set.remove(replica_index);
        }
        let Some(meta) = meta else {
            self.without_cell.insert(replica_index);
            return false;
        };
        self.greatest_from = self.greatest_from.max(meta.from);
        let order = self.newest.map_or(Ordering::Greater, |newest| order(&meta, &newest, wall));
        match order {
            Ordering::Less => {
                self.stale.insert(replica_index);
            }
            Ordering::Equal => {
                self.holders.insert(replica_index);
                let is_same = self.newest == Some(meta);
                if is_same && cell.is_some() {
                    self.cell = cell;
                } else if !is_same && self.cell().is_none() && (cell.is_some() || is_tombstone(&meta)) {
                    // Both are dead. This cell is complete, and the value of the other may no
                    // longer exist anywhere.
                    self.newest = Some(meta);
                    self.cell = cell;
                    return true;
                }
            }
            Ordering::Greater => {
                self.stale = self.stale.union(self.holders);
                self.holders = ReplicaSet::one(replica_index);
                self.newest = Some(meta);
                self.cell = cell;
            }
        }
        order == Ordering::Greater
    }

    /// The newest cell of all answers; `None`: no replica holds any.
    pub(super) const fn newest(&self) -> Option<CellMeta> {
        self.newest
    }

    /// Replicas that answered that they hold the newest.
    pub(super) const fn holders(&self) -> ReplicaSet {
        self.holders
    }

    /// Whether some replicas answered differently from others.
    pub(super) const fn are_divergent(&self) -> bool {
        self.newest.is_some() && !self.stale.union(self.without_cell).is_empty()
    }

    /// Replicas that need the newest cell: those that should hold it and do not, and those that
    /// hold an older one.
    pub(super) fn stale_replicas(&self) -> ReplicaSet {
        self.stale.union(self.without_cell.intersection(self.intended_replicas()))
    }

    /// The greatest `from` of all versions in the answers. A cell that replaces one of them takes
    /// it over.
    pub(super) const fn greatest_from(&self) -> u8 {
        self.greatest_from
    }

    /// The replicas that should hold the newest cell: those of both sets while a swap runs.
    pub(super) fn intended_replicas(&self) -> ReplicaSet {
        replicas_of_cell(self.newest_from(), self.swap)
    }

    /// The `from` of the newest cell; 0 if there is none.
    pub(super) fn newest_from(&self) -> u8 {
        self.newest.map_or(0, |newest| newest.from)
    }

    /// The newest cell, if its value is known. A tombstone is known by its version.
    pub(super) fn cell(&self) -> Option<Cell> {
        self.cell
            .clone()
            .or_else(|| self.newest.filter(is_tombstone).map(|meta| Cell { meta, value: Default::default() }))
    }

    /// As [`ReadAnswers::cell`] for a cell that was sent, which is removed.
    pub(super) fn take_cell(&mut self) -> Option<Cell> {
        self.cell.take()
    }

    /// Keeps the newest cell.
    pub(super) fn put_cell(&mut self, cell: Cell) {
        self.cell = Some(cell);
    }

    /// Drops a value larger than `bytes_max`.
    pub(super) fn drop_large(&mut self, bytes_max: usize) {
        self.cell.take_if(|cell| cell.value.len() > bytes_max);
    }
}

fn is_tombstone(meta: &CellMeta) -> bool {
    meta.kind == stdx::CellKind::Tombstone
}

/// Order of two cells of a key for a reader at `wall`, the newer as the greater, as far as it is
/// known without the values.
fn order(a: &CellMeta, b: &CellMeta, wall: WallTime) -> Ordering {
    a.version.cmp(&b.version).then_with(|| {
        if !a.is_live_at(wall) && !b.is_live_at(wall) {
            return Ordering::Equal;
        }
        let rank = |meta: &CellMeta| {
            let expiry = meta.expires_at.map_or(u64::MAX, WallTime::micros_since_unix_epoch);
            (meta.rank(), expiry, meta.from)
        };
        rank(a).cmp(&rank(b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag, Version};

    const WALL: WallTime = WallTime::EPOCH_2020;

    fn meta(hlc: u64) -> CellMeta {
        CellMeta::value(Version::new(Hlc::from_bits(hlc), NodeTag(1)), 2)
    }

    fn answers(metas: &[Option<CellMeta>]) -> ReadAnswers {
        let mut answers = ReadAnswers::default();
        for (replica_index, meta) in metas.iter().enumerate() {
            answers.record(replica_index as u8, *meta, None, WALL);
        }
        answers
    }

    #[test]
    fn stale_replicas_are_known_for_any_order_of_answers() {
        for metas in [[Some(meta(1)), Some(meta(2)), None], [None, Some(meta(2)), Some(meta(1))]] {
            let answers = answers(&metas);
            assert_eq!((answers.newest(), answers.holders()), (Some(meta(2)), ReplicaSet::one(1)));
            assert!(answers.are_divergent());
        }
        // Replica 2 should not hold it, and is sent it only where it holds something older.
        assert_eq!(answers(&[Some(meta(1)), Some(meta(2)), None]).stale_replicas(), ReplicaSet::one(0));
        assert_eq!(
            answers(&[None, Some(meta(2)), Some(meta(1))]).stale_replicas(),
            ReplicaSet::one(0).union(ReplicaSet::one(2))
        );
        assert!(!answers(&[None, None]).are_divergent() && !answers(&[Some(meta(1)); 3]).are_divergent());
    }

    #[test]
    fn an_expired_value_and_its_tombstone_are_equal_once_it_has_expired() {
        let expired = CellMeta { expires_at: Some(WALL), ..meta(1) };
        let purged = expired.buried();
        assert!(!answers(&[Some(expired), Some(purged)]).are_divergent());
        let alive = CellMeta { expires_at: Some(WALL.saturating_add_micros(1)), ..meta(1) };
        assert!(answers(&[Some(alive), Some(purged)]).are_divergent());
    }

    #[test]
    fn a_live_value_is_newer_than_its_expiry_tombstone_in_any_order() {
        let value = CellMeta { expires_at: Some(WALL.saturating_add_micros(1)), ..meta(1) };
        for metas in [[Some(value), Some(value.buried())], [Some(value.buried()), Some(value)]] {
            let answers = answers(&metas);
            let holder = u8::from(metas[1] == Some(value));
            assert_eq!((answers.newest(), answers.holders()), (Some(value), ReplicaSet::one(holder)));
            assert_eq!(answers.stale_replicas(), ReplicaSet::one(1 - holder));
        }
    }

    #[test]
    fn the_second_answer_of_a_replica_replaces_its_first() {
        let mut answers = answers(&[Some(meta(1)), Some(meta(2))]);
        let cell = Cell { meta: meta(3), value: Default::default() };
        assert!(answers.record(1, Some(meta(3)), Some(cell.clone()), WALL));
        assert_eq!((answers.cell(), answers.holders()), (Some(cell), ReplicaSet::one(1)));
        assert_eq!(answers.stale_replicas(), ReplicaSet::one(0));
    }
}
