//! Pages equal the range of a map as of their snapshot, under concurrent writes and other
//! operations.

mod common;
mod paging;

use cluster::{Cut, Key, KeyRange, Layout, PageContent, PageRequest, PartitionSet, ScanLimit};
use common::{ALL, carry_out, key, write};
use env::MemFs;
use paging::{SECOND, at, clock, entries, opened_at, page, request, written};
use proptest::prelude::*;
use std::collections::BTreeMap;
use stdx::{Cell, CellKind, CellMeta};

/// An operation before a page is read.
#[derive(Clone, Debug)]
enum Step {
    Write {
        name: Vec<u8>,
        kind: Kind,
    },
    Flush,
    Jobs,
    /// Time passes: idle cursors are dropped, or also snapshots that are too old.
    Pass {
        seconds: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Value,
    Expiring,
    Tombstone,
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0_u8), Just(10), Just(0x61), Just(255)], 1..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![Just(Kind::Value), Just(Kind::Expiring), Just(Kind::Tombstone)];
    let step = prop_oneof![
        12 => (names(), kind).prop_map(|(name, kind)| Step::Write { name, kind }),
        1 => Just(Step::Flush),
        1 => Just(Step::Jobs),
        1 => prop_oneof![Just(2), Just(30), Just(61)].prop_map(|seconds| Step::Pass { seconds }),
    ];
    proptest::collection::vec(step, 0..6)
}

fn cuts() -> impl Strategy<Value = Option<Cut>> {
    let cut = (any::<bool>(), names()).prop_map(|(before, name)| match before {
        true => Cut::Before(key(&name)),
        false => Cut::After(key(&name)),
    });
    proptest::option::of(cut)
}

fn contents() -> impl Strategy<Value = PageContent> {
    let times = (0_u64..200, 0_u64..200, any::<bool>());
    times.prop_map(|(now, dead_since, versions_only)| match now % 2 {
        0 => PageContent::Live { at: at(now) },
        _ => PageContent::Cells { at: at(now), dead_since: at(dead_since), versions_only },
    })
}

type Model = BTreeMap<Key, Cell>;

/// The cells as of a snapshot, and the ones read of it.
struct Moment {
    model: Model,
    /// The rest of the range.
    range: KeyRange,
    read: Vec<(Key, Cell)>,
}

/// The cells that a page with this content shows, according to the protocol.
fn expected(model: &Model, request: &PageRequest) -> Vec<(Key, Cell)> {
    let shown = |(key, cell): (&Key, &Cell)| {
        let is_in = request.partitions.as_ref().is_none_or(|set| set.contains_key(key.as_bytes()));
        let is_dead = cell.meta.kind == CellKind::Tombstone;
        let (is_shown, has_value) = match request.content {
            PageContent::Live { at } => {
                (!is_dead && cell.meta.expires_at.is_none_or(|expires_at| at < expires_at), true)
            }
            PageContent::Cells { at, dead_since, versions_only } => {
                let long_dead = cell.meta.dead_from().is_some_and(|dead_from| dead_from < dead_since);
                (!long_dead, !versions_only && cell.meta.is_live_at(at))
            }
        };
        let value = if has_value { cell.value.clone() } else { bytes::Bytes::new() };
        (is_in && is_shown && request.range.contains(key.as_bytes()))
            .then(|| (key.clone(), Cell { meta: cell.meta, value }))
    };
    model.iter().filter_map(shown).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn pages_equal_the_map_as_of_their_snapshot(
        at_first in proptest::collection::vec(steps(), 0..8),
        between in proptest::collection::vec(steps(), 0..24),
        (from, to) in (cuts(), cuts()),
        content in contents(),
        some_partitions: bool,
        limits in proptest::collection::vec((1usize..6, 1usize..60), 1..6),
    ) {
        let clock = clock();
        let store = opened_at(MemFs::new(), &clock);
        let mut model = Model::new();
        let mut clock_value = 0;
        let mut take = |model: &mut Model, steps: &[Step]| {
            for step in steps {
                match step {
                    Step::Write { name, kind } => {
                        clock_value += 1;
                        let version = written(clock_value);
                        let expires_at = Some(at(clock_value + 20));
                        let value = bytes::Bytes::copy_from_slice(&[name.as_slice(), b"\n", name].concat());
                        let cell = match kind {
                            Kind::Value => Cell::value(version, 1, value),
                            Kind::Expiring => {
                                Cell { meta: CellMeta { expires_at, ..CellMeta::value(version, 1) }, value }
                            }
                            Kind::Tombstone => Cell::tombstone(version, 1),
                        };
                        carry_out(&store, &write(key(name), cell.clone()));
                        model.insert(key(name), cell);
                    }
                    Step::Flush => store.engine().flush().unwrap(),
                    Step::Jobs => store.engine().run_jobs().unwrap(),
                    Step::Pass { seconds } => {
                        clock.advance(SECOND * u32::try_from(*seconds).unwrap());
                        store.expire_snapshots();
                    }
                }
            }
        };
        at_first.iter().for_each(|steps| take(&mut model, steps));

        let layout = Layout::new(vec!["http://a:1".to_owned()], 16).unwrap();
        let partitions = some_partitions.then(|| PartitionSet::of(&layout, |partition| partition.0 % 3 != 0));
        let range = KeyRange { from, to };
        let mut next = PageRequest { partitions, ..request(1, range.clone(), ALL, content) };
        let whole = next.clone();
        let mut moments: Vec<Moment> = Vec::new();
        for page_number in 0.. {
            let is_fresh = store.snapshot_count() == 0;
            if is_fresh {
                moments.push(Moment { model: model.clone(), range: next.range.clone(), read: Vec::new() });
            }
            let (entries_max, bytes_max) = limits[page_number % limits.len()];
            next.limit = ScanLimit { entries: entries_max, bytes: bytes_max };
            let (read, rest) = page(&store, &next);
            prop_assert!(read.len() <= entries_max);
            prop_assert!(read.bytes().len() <= bytes_max || read.len() == 1);
            moments.last_mut().unwrap().read.extend(entries(&read));
            let Some(rest) = rest else {
                let is_kept = next.continues_at().is_some() && !range.is_empty();
                prop_assert_eq!(store.snapshot_count(), usize::from(is_kept));
                break;
            };
            prop_assert!(next.range.from.as_ref().is_none_or(|from| *from < rest), "it goes on");
            next.range.from = Some(rest);
            take(&mut model, between.get(page_number).map_or(&[], Vec::as_slice));
        }

        let ends = moments.iter().skip(1).map(|moment| moment.range.from.clone()).chain([range.to.clone()]);
        for (moment, to) in moments.iter().zip(ends) {
            let part = PageRequest { range: KeyRange { to, ..moment.range.clone() }, ..whole.clone() };
            prop_assert_eq!(&moment.read, &expected(&moment.model, &part), "as it was then");
        }
        let met: Vec<_> = moments.iter().flat_map(|moment| &moment.read).collect();
        prop_assert!(met.is_sorted_by(|(a, _), (b, _)| a < b), "each once, in order");
        let is_unchanged = |(key, cell): &&(Key, Cell)| model[key].meta == cell.meta;
        for entry in expected(&moments[0].model, &whole).iter().filter(is_unchanged) {
            prop_assert!(met.contains(&entry), "{:?} was there throughout", entry);
        }
    }
}
