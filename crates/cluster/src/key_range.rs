//! Ranges of keys.
//!
//! A range lies between two cuts, each immediately before or behind a key. One form thus serves
//! ranges that include their first or last key and ranges that do not, and the rest of a range is a
//! range.

use crate::Key;
use std::cmp::Ordering;

/// A position between two adjacent keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Immediately before this key.
    Before(Key),
    /// Immediately behind this key.
    After(Key),
}

impl Cut {
    /// The key next to the cut.
    pub const fn key(&self) -> &Key {
        match self {
            Self::Before(key) | Self::After(key) => key,
        }
    }

    /// Whether `key` is behind the cut.
    pub fn is_passed_by(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(at) => key >= at.as_bytes(),
            Self::After(at) => key > at.as_bytes(),
        }
    }
}

impl Ord for Cut {
    fn cmp(&self, other: &Self) -> Ordering {
        let is_after = |cut: &Self| matches!(cut, Self::After(_));
        self.key().cmp(other.key()).then_with(|| is_after(self).cmp(&is_after(other)))
    }
}

impl PartialOrd for Cut {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The keys between two cuts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// Start of the range; `None`: the first key.
    pub from: Option<Cut>,
    /// End of the range; `None`: after the last key.
    pub to: Option<Cut>,
}

impl KeyRange {
    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        matches!((&self.from, &self.to), (Some(from), Some(to)) if from >= to)
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.from.as_ref().is_none_or(|from| from.is_passed_by(key)) && !self.is_passed_by(key)
    }

    /// Whether `key` is behind the end of the range.
    pub fn is_passed_by(&self, key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| to.is_passed_by(key))
    }

    /// The part of the range behind `cut`.
    #[must_use]
    pub fn rest(&self, cut: Cut) -> Self {
        let from = match &self.from {
            Some(from) if *from > cut => from.clone(),
            _ => cut,
        };
        Self { from: Some(from), to: self.to.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn key(text: &'static str) -> Key {
        Key::new(Bytes::from_static(text.as_bytes())).expect("a short key")
    }

    fn between(from: Cut, to: Cut) -> KeyRange {
        KeyRange { from: Some(from), to: Some(to) }
    }

    #[test]
    fn cuts_are_ordered_by_position() {
        let before_a = Cut::Before(key("a"));
        let after_a = Cut::After(key("a"));
        let before_b = Cut::Before(key("b"));
        assert!(before_a < after_a && after_a < before_b);
    }

    #[test]
    fn a_range_holds_keys_behind_its_first_cut_and_before_its_second() {
        let range = between(Cut::Before(key("b")), Cut::Before(key("d")));
        let held: Vec<_> = ["a", "b", "ba", "c", "d", "e"]
            .into_iter()
            .filter(|key| range.contains(key.as_bytes()))
            .collect();
        assert_eq!(held, ["b", "ba", "c"]);
        let range = between(Cut::After(key("b")), Cut::After(key("d")));
        let held: Vec<_> =
            ["b", "b\0", "d", "d\0"].into_iter().filter(|key| range.contains(key.as_bytes())).collect();
        assert_eq!(held, ["b\0", "d"]);
    }

    #[test]
    fn a_range_that_ends_where_it_begins_is_empty() {
        assert!(between(Cut::Before(key("b")), Cut::Before(key("b"))).is_empty());
        assert!(between(Cut::After(key("b")), Cut::Before(key("b"))).is_empty());
        assert!(!between(Cut::Before(key("b")), Cut::After(key("b"))).is_empty());
        assert!(!KeyRange::default().is_empty());
    }

    #[test]
    fn the_rest_of_a_range_never_begins_before_it() {
        let range = between(Cut::Before(key("b")), Cut::Before(key("d")));
        assert_eq!(range.rest(Cut::After(key("c"))), between(Cut::After(key("c")), Cut::Before(key("d"))));
        assert_eq!(range.rest(Cut::After(key("a"))), range);
        assert!(range.rest(Cut::After(key("x"))).is_empty());
    }
}
