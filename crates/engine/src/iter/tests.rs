//! Tests of the merge against a model, and with failing sources.

use super::{Cursor, MergeCursor};
use crate::Error;
use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use stdx::{Cell, CellMeta, CellRef, Hlc, NodeTag, Version};

type Entries = Vec<(Vec<u8>, Cell)>;

/// A cursor over a list. Move number `fails_at`, counted from 0, fails. Reloading a value counts as
/// a move.
struct ListCursor {
    entries: Entries,
    position: usize,
    moves: usize,
    fails_at: usize,
    is_released: bool,
}

impl ListCursor {
    fn new(entries: Entries) -> Self {
        let position = entries.len();
        Self { entries, position, moves: 0, fails_at: usize::MAX, is_released: false }
    }

    fn move_to(&mut self, position: usize) -> Result<(), Error> {
        self.moves += 1;
        self.position = position;
        self.is_released = false;
        if self.moves > self.fails_at {
            self.position = self.entries.len();
            return Err(Error::Invalid("planned".to_owned()));
        }
        Ok(())
    }
}

impl ListCursor {
    /// Whether it holds a value that could be released.
    fn holds_much(&self) -> bool {
        !self.is_released && self.entries.get(self.position).is_some_and(|(_, cell)| *cell.value == [1])
    }
}

impl Cursor for ListCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.move_to(0)
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.move_to(self.entries.partition_point(|(other, _)| other.as_slice() < key))
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.move_to(self.position + 1)
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        assert!(!self.is_released, "the value is released");
        self.entries.get(self.position).map(|(key, cell)| (key.as_slice(), cell.as_ref()))
    }

    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        self.entries.get(self.position).map(|(key, cell)| (key.as_slice(), cell.meta))
    }

    fn release_value(&mut self) {
        self.is_released |= self.holds_much();
    }

    fn reload_value(&mut self) -> Result<(), Error> {
        if self.is_released { self.move_to(self.position) } else { Ok(()) }
    }
}

/// Keys that share their first 16 bytes, end within them, or differ only in trailing zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(prop::sample::select(vec![0u8, 1, 0xff]), 0..4),
        (0u8..20).prop_map(|end| [b"sixteen bytes or".as_slice(), &[end]].concat()),
        (0usize..20).prop_map(|zeros| [b"a".as_slice(), &vec![0; zeros]].concat()),
    ]
}

fn cell() -> impl Strategy<Value = Cell> {
    (0u64..4, any::<bool>(), 0u8..2, 1u8..4).prop_map(|(hlc, tombstone, value, from)| {
        let version = Version::new(Hlc::from_bits(hlc), NodeTag(0));
        if tombstone {
            Cell::tombstone(version, from)
        } else {
            Cell::value(version, from, Bytes::from(vec![value]))
        }
    })
}

fn source() -> impl Strategy<Value = Entries> {
    btree_map(key(), cell(), 0..40).prop_map(|entries| entries.into_iter().collect())
}

fn rest(merge: &mut MergeCursor<ListCursor>) -> Entries {
    let mut entries = Vec::new();
    while let Some((key, cell)) = merge.entry() {
        entries.push((key.to_vec(), cell.to_cell()));
        assert!(merge.sources.iter().filter(|source| source.holds_much()).count() <= 1);
        if entries.len() % 3 == 0 {
            merge.release_value();
            assert!(!merge.sources.iter().any(ListCursor::holds_much));
        }
        if entries.len() % 6 == 0 {
            merge.reload_value().expect("no failure is planned");
            assert_eq!(
                merge.entry().map(|(key, cell)| (key.to_vec(), cell.to_cell())),
                entries.last().cloned()
            );
        }
        merge.advance().expect("no failure is planned");
    }
    entries
}

proptest! {
    #[test]
    fn a_merge_yields_each_key_with_its_superseding_cell(
        sources in vec(source(), 0..9),
        from in vec(key(), 0..4),
    ) {
        let mut model = BTreeMap::<Vec<u8>, Cell>::new();
        for (key, cell) in sources.iter().flatten() {
            let newest = model.entry(key.clone()).or_insert_with(|| cell.clone());
            let from = newest.meta.from.max(cell.meta.from);
            if cell.as_ref().supersedes(&newest.as_ref()) {
                *newest = cell.clone();
            }
            newest.meta.from = from;
        }
        let mut merge = MergeCursor::new(sources.into_iter().map(ListCursor::new).collect());
        prop_assert_eq!(merge.entry(), None);
        merge.seek_to_first().expect("no failure is planned");
        prop_assert_eq!(rest(&mut merge), model.clone().into_iter().collect::<Entries>());
        for from in from {
            merge.seek(&from).expect("no failure is planned");
            let expected: Entries =
                model.range(from..).map(|(key, cell)| (key.clone(), cell.clone())).collect();
            prop_assert_eq!(rest(&mut merge), expected);
        }
    }

    #[test]
    fn a_merge_with_a_failed_source_is_past_its_last_entry(
        sources in vec(source(), 1..4),
        failing: prop::sample::Index,
        fails_at in 0usize..10,
    ) {
        let mut sources: Vec<_> = sources.into_iter().map(ListCursor::new).collect();
        let failing = failing.index(sources.len());
        sources[failing].fails_at = fails_at;
        let mut merge = MergeCursor::new(sources);
        let mut outcome = merge.seek_to_first();
        while outcome.is_ok() && merge.entry().is_some() {
            outcome = merge.advance();
        }
        if outcome.is_err() {
            prop_assert_eq!(merge.entry(), None);
        }
    }
}
