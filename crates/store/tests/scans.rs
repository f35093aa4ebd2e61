//! Scans read a range in chunks: bounded, in order, and without missing a key that exists
//! throughout.

mod common;

use cluster::{Key, ReplicaRequest, ScanLimit, StoreRequest, StoreResponse};
use common::{ALL, carry_out, key, nodes, open, value, version, write};
use env::MemFs;
use proptest::prelude::*;
use std::collections::BTreeMap;
use stdx::Cell;
use store::{Store, TryAnswer};

fn scan(after: Option<&Key>, until: Option<&Key>, limit: ScanLimit, values: bool) -> StoreRequest {
    StoreRequest::Scan { after: after.cloned(), until: until.cloned(), limit, values }
}

fn chunk(store: &Store, request: &StoreRequest) -> (Vec<(Key, Cell)>, Option<Key>) {
    match store.answer_blocking(request) {
        StoreResponse::Scanned { entries, until } => (entries, until),
        other => panic!("not a scan: {other:?}"),
    }
}

#[test]
fn a_scan_shows_tombstones_and_empty_values_and_no_system_cells() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let hinted = StoreRequest::Replica(ReplicaRequest::Write {
        key: key(b"b"),
        cell: value(2, b""),
        hints: nodes(&[0, 63]),
    });
    carry_out(&store, &hinted);
    carry_out(&store, &write(key(b"a"), Cell::tombstone(version(1), 2)));
    carry_out(&store, &write(key(&[0]), value(3, b"least")));
    carry_out(&store, &write(key(&[255; 8_192]), value(4, b"greatest")));
    carry_out(&store, &StoreRequest::RaiseClockBound { bound: stdx::Hlc::from_bits(9) });
    let expected = vec![
        (key(&[0]), value(3, b"least")),
        (key(b"a"), Cell::tombstone(version(1), 2)),
        (key(b"b"), value(2, b"")),
        (key(&[255; 8_192]), value(4, b"greatest")),
    ];
    let all = scan(None, None, ALL, true);
    assert_eq!(store.try_answer(&all), TryAnswer::WouldWait);
    assert_eq!(chunk(&store, &all), (expected.clone(), None));
    store.engine().flush().unwrap();
    assert_eq!(chunk(&store, &all), (expected, None));
    let (bare, _) = chunk(&store, &scan(None, None, ALL, false));
    assert!(bare.iter().all(|(_, cell)| cell.value.is_empty()));
    assert_eq!(bare[3].1.meta, value(4, b"greatest").meta);
}

#[test]
fn a_chunk_ends_at_its_limit_and_visits_at_least_one_entry() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for name in [b"a", b"b", b"c"] {
        carry_out(&store, &write(key(name), value(1, b"123456789")));
    }
    let ends_with = |entries, bytes, values| {
        let (entries, until) = chunk(&store, &scan(None, None, ScanLimit { entries, bytes }, values));
        assert_eq!(until.is_some(), entries.len() < 3);
        assert!(until.is_none_or(|until| until == entries.last().unwrap().0));
        entries.len()
    };
    assert_eq!(ends_with(2, 1_000, true), 2);
    assert_eq!(ends_with(0, 0, true), 1);
    assert_eq!(ends_with(9, 19, true), 1);
    assert_eq!(ends_with(9, 20, true), 2);
    assert_eq!(ends_with(9, 20, false), 2, "values count also when they are left out");
    assert_eq!(ends_with(3, 30, true), 3, "nothing is left: the end is known at once");
    let until = key(b"b");
    let limit = ScanLimit { entries: 2, bytes: 1_000 };
    assert_eq!(chunk(&store, &scan(None, Some(&until), limit, true)).1, None, "the range ends there");
    assert_eq!(chunk(&store, &scan(Some(&until), Some(&until), limit, true)), (vec![], None));
}

/// A write of this key, before the chunk with this number.
#[derive(Clone, Debug)]
struct Change {
    before_chunk: usize,
    name: Vec<u8>,
    deletes: bool,
    flushes: bool,
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0x61), Just(255)], 1..4)
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = (0usize..12, names(), any::<bool>(), proptest::bool::weighted(0.1));
    let change = change.prop_map(|(before_chunk, name, deletes, flushes)| Change {
        before_chunk,
        name,
        deletes,
        flushes,
    });
    proptest::collection::vec(change, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn permanent_keys_are_visited_exactly_once_and_in_order(
        changes in changes(),
        after in proptest::option::of(names()),
        until in proptest::option::of(names()),
        entries in 1usize..6,
        bytes in 1usize..40,
    ) {
        let (store, _) = open(MemFs::new(), 1).unwrap();
        let (after, until) = (after.map(|name| key(&name)), until.map(|name| key(&name)));
        let limit = ScanLimit { entries, bytes };
        let mut model: BTreeMap<Key, Cell> = BTreeMap::new();
        let mut hlc = 0;
        let mut apply = |model: &mut BTreeMap<Key, Cell>, chunk: Option<usize>| {
            let due = |change: &&Change| chunk.is_none_or(|chunk| change.before_chunk == chunk);
            for change in changes.iter().filter(due) {
                hlc += 1;
                let cell = match change.deletes {
                    true => Cell::tombstone(version(hlc), 1),
                    false => Cell::value(version(hlc), 1, change.name.clone().into()),
                };
                carry_out(&store, &write(key(&change.name), cell.clone()));
                model.insert(key(&change.name), cell);
                if change.flushes {
                    store.engine().flush().unwrap();
                }
            }
        };
        apply(&mut model, Some(0));
        let at_begin = model.clone();
        let mut met: Vec<(Key, Cell)> = Vec::new();
        let mut position = after.clone();
        for number in 1.. {
            let request = scan(position.as_ref(), until.as_ref(), limit, true);
            let (entries, end) = chunk(&store, &request);
            prop_assert!(entries.len() <= limit.entries);
            for (key, cell) in &entries {
                prop_assert_eq!(model.get(key), Some(cell), "chunk {}", number);
            }
            met.extend(entries);
            let Some(end) = end else { break };
            prop_assert!(position.is_none_or(|position| position < end), "it goes on");
            position = Some(end);
            apply(&mut model, Some(number));
        }
        prop_assert!(met.is_sorted_by(|(a, _), (b, _)| a < b));
        let in_range = |key: &Key| {
            after.as_ref().is_none_or(|after| key > after) && until.as_ref().is_none_or(|until| key <= until)
        };
        prop_assert!(met.iter().all(|(key, _)| in_range(key)));
        for name in at_begin.keys().filter(|key| in_range(key)) {
            prop_assert!(met.iter().any(|(key, _)| key == name), "{:?} is missing", name);
        }
    }
}
