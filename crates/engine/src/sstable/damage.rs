//! Unreadable parts of a table.

use super::TableMeta;

/// Maximum number of separate ranges. Beyond it, the last range is extended and covers the gaps.
const RANGES_MAX: usize = 64;

/// A range of keys whose cells, if the table holds any, are unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRange {
    /// Exclusive lower bound: a key that no lost cell has; `None` for an unbounded range.
    pub after: Option<Vec<u8>>,
    /// Inclusive upper bound.
    pub until: Vec<u8>,
}

impl UnreadableRange {
    /// The whole key range of a table.
    pub(crate) fn all_of(meta: &TableMeta) -> Self {
        Self { after: before(&meta.key_min), until: meta.key_max.to_vec() }
    }

    /// Whether this range contains the other one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.after <= other.after && other.until <= self.until
    }
}

/// Unreadable parts that a cursor has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Key ranges of lost cells, in key order.
    pub lost: Vec<UnreadableRange>,
    /// Whether a filter is unreadable. No cell is lost with it.
    pub filter: bool,
    /// Whether the header or the footer is unreadable. No cell is lost as long as the table is
    /// open.
    pub header_or_footer: bool,
}

impl Damage {
    /// Whether everything was readable.
    pub fn is_none(&self) -> bool {
        self.lost.is_empty() && !self.filter && !self.header_or_footer
    }

    /// Adds a range behind the ranges recorded so far.
    pub(super) fn note(&mut self, keys: UnreadableRange) {
        let ranges = self.lost.len();
        match self.lost.last_mut() {
            Some(last) if ranges == RANGES_MAX || Some(&last.until) >= keys.after.as_ref() => {
                last.until = keys.until;
            }
            _ => self.lost.push(keys),
        }
    }
}

/// A key less than `key` and close to it; `None` if `key` is empty.
fn before(key: &[u8]) -> Option<Vec<u8>> {
    let (&last, rest) = key.split_last()?;
    let mut before = rest.to_vec();
    // If the last byte is zero, the rest of the key is its immediate predecessor.
    before.extend(last.checked_sub(1));
    Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(after: u8, until: u8) -> UnreadableRange {
        UnreadableRange { after: Some(vec![after]), until: vec![until] }
    }

    proptest! {
        #[test]
        fn the_key_before_a_key_is_less(key: Vec<u8>) {
            match before(&key) {
                Some(before) => prop_assert!(before < key),
                None => prop_assert!(key.is_empty()),
            }
        }
    }

    #[test]
    fn adjacent_ranges_merge_and_so_do_excess_ranges() {
        let mut damage = Damage::default();
        damage.note(range(1, 3));
        damage.note(range(3, 4));
        damage.note(range(6, 7));
        assert_eq!(damage.lost, [range(1, 4), range(6, 7)]);
        (4..100).for_each(|i| damage.note(range(2 * i, 2 * i + 1)));
        assert_eq!(damage.lost.len(), RANGES_MAX);
        assert_eq!(damage.lost.last().expect("there is one").until, [199]);
    }
}
