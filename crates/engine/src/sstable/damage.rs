//! What of a table cannot be read.

use super::TableMeta;

/// So many ranges are told apart; what lies between the last and further ones counts as lost with them.
const RANGES_MAX: usize = 64;

/// A range of keys of which a table cannot say what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostKeys {
    /// It begins behind this key, which no lost cell has; `None`: at the first key of all.
    pub after: Option<Vec<u8>>,
    /// It ends with this key.
    pub until: Vec<u8>,
}

impl LostKeys {
    /// All that a table can hold.
    pub(crate) fn all_of(meta: &TableMeta) -> Self {
        Self { after: before(&meta.key_min), until: meta.key_max.to_vec() }
    }

    /// Whether every key of the other range is in this one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.after <= other.after && other.until <= self.until
    }
}

/// What a cursor met that it could not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Where cells are lost, in key order.
    pub lost: Vec<LostKeys>,
    /// A filter is lost, with which no cell is.
    pub filters: bool,
    /// What frames the blocks in the file is lost, and no cell as long as the table is open.
    pub ends: bool,
}

impl Damage {
    /// Whether all could be read.
    pub fn is_none(&self) -> bool {
        self.lost.is_empty() && !self.filters && !self.ends
    }

    /// Takes note of a range behind those noted so far.
    pub(super) fn note(&mut self, keys: LostKeys) {
        let ranges = self.lost.len();
        match self.lost.last_mut() {
            Some(last) if ranges == RANGES_MAX || Some(&last.until) >= keys.after.as_ref() => {
                last.until = keys.until;
            }
            _ => self.lost.push(keys),
        }
    }
}

/// A key before `key` with as little in between as is cheap; `None` when there is none.
fn before(key: &[u8]) -> Option<Vec<u8>> {
    let (&last, rest) = key.split_last()?;
    let mut before = rest.to_vec();
    // Without a zero at its end a key follows right behind what is left.
    before.extend(last.checked_sub(1));
    Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(after: u8, until: u8) -> LostKeys {
        LostKeys { after: Some(vec![after]), until: vec![until] }
    }

    proptest! {
        #[test]
        fn what_is_before_a_key_is_less(key: Vec<u8>) {
            match before(&key) {
                Some(before) => prop_assert!(before < key),
                None => prop_assert!(key.is_empty()),
            }
        }
    }

    #[test]
    fn neighbours_become_one_range_and_too_many_ranges_too() {
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
