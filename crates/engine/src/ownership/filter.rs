//! Ranges of key hashes, and the filter that they form.

use super::sources::{FromElsewhere, OtherSources};
use crate::manifest::VersionEdit;
use crate::sstable::TableId;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// A range of hashes of keys, both ends included. The hash of a key is XXH3-64 of the key without
/// its first byte, which names a key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashRange {
    /// Least hash.
    pub first: u64,
    /// Greatest hash.
    pub last: u64,
}

impl HashRange {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The part of a range that an engine owns: the keys with a cell of at least `stays_from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRange {
    /// The hashes.
    pub range: HashRange,
    /// Least `from` of a cell by which its key stays. At most 1: all keys of the range are owned.
    pub stays_from: u8,
}

impl OwnedRange {
    /// No key of the range.
    pub const fn nothing_of(range: HashRange) -> Self {
        Self { range, stays_from: u8::MAX }
    }

    /// All keys of the range.
    pub const fn all_of(range: HashRange) -> Self {
        Self { range, stays_from: 1 }
    }
}

/// A range of hashes of which the engine treats keys as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisownedRange {
    /// The hashes.
    pub range: HashRange,
    /// A key of the range is hidden exactly if all its cells have a smaller `from`.
    pub stays_from: u8,
    /// Tables with this id or a greater one have no cell of the range with a `from` below
    /// `stays_from`. `None` before the jobs leave out such cells.
    pub purged_from: Option<TableId>,
}

impl DisownedRange {
    /// Decides about a cell of `key` with a `from` below `stays_from`.
    fn judge(&self, key: &[u8], others: &OtherSources) -> Judgement {
        match others.greatest_from(key, self.stays_from) {
            FromElsewhere::Reaches(from) => Judgement::Write(from),
            FromElsewhere::Below => Judgement::LeaveOut,
            FromElsewhere::Unknown => Judgement::Unknown(self.range),
        }
    }
}

/// The disowned ranges of an engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnershipFilter {
    /// Disjoint, in ascending order.
    ranges: Vec<DisownedRange>,
    /// Exclusive upper bound of the local keys, which no range contains.
    local_end: Bytes,
}

/// Decision of a job about the newest cell of a key among its own sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The cell is written with this `from`.
    Write(u8),
    /// The key is hidden.
    LeaveOut,
    /// Whether the key is hidden cannot be told. It is in this range.
    Unknown(HashRange),
}

impl OwnershipFilter {
    /// A filter of disjoint ranges.
    pub(crate) fn new(ranges: impl IntoIterator<Item = DisownedRange>, local_end: Bytes) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort_by_key(|disowned| disowned.range);
        Self { ranges, local_end }
    }

    /// The filter after `edit`; `None` if the edit does not change it.
    pub(crate) fn after(&self, edit: &VersionEdit) -> Option<Self> {
        if edit.disowned.is_empty() && edit.owned.is_empty() && edit.unpurged.is_empty() {
            return None;
        }
        let mut ranges = self.ranges.clone();
        let is_replaced = |range| edit.disowned.iter().any(|disowned| disowned.range == range);
        ranges.retain(|known| !is_replaced(known.range));
        ranges.extend(&edit.disowned);
        ranges.retain(|known| !edit.owned.contains(&known.range));
        for known in ranges.iter_mut().filter(|known| edit.unpurged.contains(&known.range)) {
            known.purged_from = None;
        }
        Some(Self::new(ranges, self.local_end.clone()))
    }

    pub(crate) fn ranges(&self) -> &[DisownedRange] {
        &self.ranges
    }

    /// Whether the filter hides no key.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether both filters hide the same keys.
    pub(crate) fn has_ranges_of(&self, other: &Self) -> bool {
        let part_of = |disowned: &DisownedRange| (disowned.range, disowned.stays_from);
        self.ranges.iter().map(part_of).eq(other.ranges.iter().map(part_of))
    }

    /// Whether the key is treated as absent if `from` is the greatest one of its cells. Without
    /// disowned ranges it costs one comparison.
    #[inline]
    pub(crate) fn hides(&self, key: &[u8], from: u8) -> bool {
        self.range_of(key).is_some_and(|disowned| from < disowned.stays_from)
    }

    /// The disowned range with the key.
    #[inline]
    pub(crate) fn range_of(&self, key: &[u8]) -> Option<&DisownedRange> {
        if self.ranges.is_empty() { None } else { self.find(key) }
    }

    /// Decides about a cell of `key` with this `from`, the greatest one in the sources of a job.
    ///
    /// A cell that stays because of another one takes over the `from` of that one, as it will when
    /// both are merged. So no table with this filter has a cell of a range with a smaller `from`.
    #[inline]
    pub(crate) fn judge(&self, key: &[u8], from: u8, others: &OtherSources) -> Judgement {
        match self.range_of(key) {
            Some(disowned) if from < disowned.stays_from => disowned.judge(key, others),
            _ => Judgement::Write(from),
        }
    }

    fn find(&self, key: &[u8]) -> Option<&DisownedRange> {
        if *key < *self.local_end {
            return None;
        }
        let hash = xxh3_64(key.get(1..).unwrap_or_default());
        let at = self.ranges.partition_point(|disowned| disowned.range.last < hash);
        self.ranges.get(at).filter(|disowned| disowned.range.first <= hash)
    }

    /// The least table id from which no table has a cell that a range leaves out; `None` while that
    /// of a range is unknown or there are no ranges.
    pub(crate) fn purged_from(&self) -> Option<TableId> {
        self.ranges.iter().filter_map(|disowned| disowned.purged_from).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(key: &[u8]) -> u64 {
        xxh3_64(&key[1..])
    }

    fn filter(ranges: &[(u64, u64)]) -> OwnershipFilter {
        let disowned = |&(first, last)| DisownedRange {
            range: HashRange { first, last },
            stays_from: u8::MAX,
            purged_from: None,
        };
        OwnershipFilter::new(ranges.iter().map(disowned), Bytes::from_static(&[1]))
    }

    #[test]
    fn a_key_is_hidden_exactly_if_a_range_has_its_hash() {
        let keys: Vec<Vec<u8>> =
            (0..200u32).map(|number| [&[1], &number.to_be_bytes()[..]].concat()).collect();
        for key in &keys {
            let hash = hash_of(key);
            assert!(filter(&[(hash, hash)]).hides(key, 1));
            assert!(filter(&[(0, 0), (hash - 1, hash + 1), (u64::MAX, u64::MAX)]).hides(key, 1));
            assert!(filter(&[(0, u64::MAX)]).hides(key, 1));
            assert!(!filter(&[(0, hash - 1), (hash + 1, u64::MAX)]).hides(key, 1));
            assert!(!filter(&[]).hides(key, 1));
        }
        let quarters = filter(&[(0, u64::MAX / 4), (u64::MAX / 2, u64::MAX / 4 * 3)]);
        let hidden = keys.iter().filter(|key| quarters.hides(key, 1)).count();
        assert!((60..140).contains(&hidden), "{hidden} of {}", keys.len());
    }

    #[test]
    fn local_keys_are_never_hidden() {
        let all = filter(&[(0, u64::MAX)]);
        assert!(
            !all.hides(b"\0key", 1)
                && !all.hides(b"", 1)
                && all.hides(b"\x01", 1)
                && all.hides(b"\x01key", 1)
        );
    }

    #[test]
    fn a_key_is_hidden_if_its_greatest_from_is_below_that_of_the_range() {
        let range = HashRange { first: 0, last: u64::MAX };
        let disowned = DisownedRange { range, stays_from: 3, purged_from: None };
        let filter = OwnershipFilter::new([disowned], Bytes::from_static(&[1]));
        let hidden: Vec<u8> = (1..=5).filter(|from| filter.hides(b"\x01key", *from)).collect();
        assert_eq!(hidden, [1, 2]);
    }
}
