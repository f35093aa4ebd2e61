//! Ranges of key hashes, and the filter that they form.

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

/// A range of hashes whose keys the engine treats as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisownedRange {
    /// The hashes.
    pub range: HashRange,
    /// Tables with this id or a greater one have no cell of the range. `None` before the jobs leave
    /// out its cells.
    pub purged_from: Option<TableId>,
}

/// The disowned ranges of an engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnershipFilter {
    /// Disjoint, in ascending order.
    ranges: Vec<DisownedRange>,
    /// Exclusive upper bound of the local keys, which no range contains.
    local_end: Bytes,
}

impl OwnershipFilter {
    /// A filter of disjoint ranges.
    pub(crate) fn new(ranges: impl IntoIterator<Item = DisownedRange>, local_end: Bytes) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort_by_key(|disowned| disowned.range);
        Self { ranges, local_end }
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
        let range_of = |disowned: &DisownedRange| disowned.range;
        self.ranges.iter().map(range_of).eq(other.ranges.iter().map(range_of))
    }

    /// Whether the key is treated as absent. Without disowned ranges it costs one comparison.
    #[inline]
    pub(crate) fn hides(&self, key: &[u8]) -> bool {
        !self.ranges.is_empty() && self.finds(key)
    }

    fn finds(&self, key: &[u8]) -> bool {
        if *key < *self.local_end {
            return false;
        }
        let hash = xxh3_64(key.get(1..).unwrap_or_default());
        let at = self.ranges.partition_point(|disowned| disowned.range.last < hash);
        self.ranges.get(at).is_some_and(|disowned| disowned.range.first <= hash)
    }

    /// The least table id from which no table has a cell of any range; `None` while that of a range
    /// is unknown or there are no ranges.
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
        let disowned = |&(first, last)| DisownedRange { range: HashRange { first, last }, purged_from: None };
        OwnershipFilter::new(ranges.iter().map(disowned), Bytes::from_static(&[1]))
    }

    #[test]
    fn a_key_is_hidden_exactly_if_a_range_has_its_hash() {
        let keys: Vec<Vec<u8>> =
            (0..200u32).map(|number| [&[1], &number.to_be_bytes()[..]].concat()).collect();
        for key in &keys {
            let hash = hash_of(key);
            assert!(filter(&[(hash, hash)]).hides(key));
            assert!(filter(&[(0, 0), (hash - 1, hash + 1), (u64::MAX, u64::MAX)]).hides(key));
            assert!(filter(&[(0, u64::MAX)]).hides(key));
            assert!(!filter(&[(0, hash - 1), (hash + 1, u64::MAX)]).hides(key));
            assert!(!filter(&[]).hides(key));
        }
        let quarters = filter(&[(0, u64::MAX / 4), (u64::MAX / 2, u64::MAX / 4 * 3)]);
        let hidden = keys.iter().filter(|key| quarters.hides(key)).count();
        assert!((60..140).contains(&hidden), "{hidden} of {}", keys.len());
    }

    #[test]
    fn local_keys_are_never_hidden() {
        let all = filter(&[(0, u64::MAX)]);
        assert!(!all.hides(b"\0key") && !all.hides(b"") && all.hides(b"\x01") && all.hides(b"\x01key"));
    }
}
