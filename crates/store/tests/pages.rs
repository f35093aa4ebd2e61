//! Pages of a range are read from one snapshot, are bounded, and match their request.

mod common;
mod paging;

use cluster::{Cut, Key, KeyRange, Page, PageContent, ScanLimit, StoreFault, StoreRequest, StoreResponse};
use common::{ALL, carry_out, key, open, value, version, write};
use engine::ReadMemory;
use env::MemFs;
use limits::{Budget, LargestValue, MemoryCategory};
use paging::{
    EVERYTHING, NOW, SECOND, at, clock, end, entries, fault, few, opened_at, page, read_all, request, written,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use stdx::{Cell, CellMeta, Rng, WallTime};
use store::{SNAPSHOT_AGE_DEFAULT, SNAPSHOTS_MAX, TryAnswer};

#[test]
fn a_range_is_read_as_of_its_first_page() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for name in [b"a", b"b", b"c"] {
        carry_out(&store, &write(key(name), value(1, b"old")));
    }
    let first = request(1, EVERYTHING, few(1), NOW);
    assert_eq!(store.try_answer(&StoreRequest::ReadPage(first.clone())), TryAnswer::WouldWait);
    let (read, rest) = page(&store, &first);
    assert_eq!(entries(&read), [(key(b"a"), value(1, b"old"))]);
    assert_eq!(rest, Some(Cut::Before(key(b"b"))));

    carry_out(&store, &write(key(b"b"), value(2, b"new")));
    carry_out(&store, &write(key(b"bb"), value(2, b"new")));
    carry_out(&store, &write(key(b"c"), Cell::tombstone(version(2), 1)));
    store.engine().flush().unwrap();
    let behind = |number| request(number, EVERYTHING.rest(Cut::After(key(b"a"))), ALL, NOW);
    let old = vec![(key(b"b"), value(1, b"old")), (key(b"c"), value(1, b"old"))];
    assert_eq!(entries(&page(&store, &behind(1)).0), old, "the cursor is elsewhere, the snapshot the same");
    let new = vec![(key(b"b"), value(2, b"new")), (key(b"bb"), value(2, b"new"))];
    assert_eq!(entries(&page(&store, &behind(2)).0), new);
}

#[test]
fn an_oversized_last_page_can_be_read_again() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    static LARGE: [u8; Page::USUAL_BYTES_MAX + 1] = [7; Page::USUAL_BYTES_MAX + 1];
    carry_out(&store, &write(key(b"a"), value(1, &LARGE)));
    let ahead = request(1, EVERYTHING, ALL, NOW);
    let (read, rest) = page(&store, &ahead);
    assert!(read.is_oversized() && rest.is_none());
    carry_out(&store, &write(key(b"a"), value(2, b"new")));
    assert_eq!(page(&store, &ahead), (read, None), "the same moment");
    end(&store, 1);
    assert_eq!(store.snapshot_count(), 0);
    page(&store, &request(2, EVERYTHING, ALL, NOW));
    assert_eq!(store.snapshot_count(), 0, "a page of the usual size is not read again");
}

#[test]
fn two_ranges_of_one_snapshot_do_not_disturb_each_other() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for name in [b"a", b"b", b"c", b"d"] {
        carry_out(&store, &write(key(name), value(1, b"")));
    }
    let rest_of = |range: &KeyRange, cut| request(1, range.rest(cut), few(1), NOW);
    let (_, source) = page(&store, &request(1, EVERYTHING, few(1), NOW));
    carry_out(&store, &write(key(b"bb"), value(2, b"late")));
    // Reads of a checker: versions only, in sections of the range, each to its end.
    let versions = PageContent::Cells {
        at: WallTime::EPOCH_2020,
        dead_since: WallTime::EPOCH_2020,
        versions_only: true,
    };
    let part = |from: &[u8], to: &[u8]| KeyRange {
        from: Some(Cut::Before(key(from))),
        to: Some(Cut::Before(key(to))),
    };
    let checked = |range| {
        let (read, rest) = page(&store, &request(1, range, ALL, versions));
        assert_eq!((rest, store.snapshot_count()), (None, 1));
        entries(&read).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(checked(part(b"a", b"bb")), [key(b"a"), key(b"b")]);
    let (read, source) = page(&store, &rest_of(&EVERYTHING, source.unwrap()));
    assert_eq!((entries(&read)[0].0.clone(), &source), (key(b"b"), &Some(Cut::Before(key(b"c")))));
    assert_eq!(checked(part(b"bb", b"d")), [key(b"c")], "the same moment");
    assert_eq!(checked(part(b"d", b"a")), [], "a range without keys");
    assert_eq!(checked(part(b"d", b"e")), [key(b"d")]);
    let (read, _) = page(&store, &rest_of(&EVERYTHING, source.unwrap()));
    assert_eq!(entries(&read)[0].0, key(b"c"));
    end(&store, 1);
    assert_eq!(store.snapshot_count(), 0);
}

#[test]
fn threads_that_read_one_snapshot_at_once_read_the_same() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for number in 0..2_000_u32 {
        carry_out(&store, &write(key(&number.to_be_bytes()), value(1, b"old")));
    }
    let (_, rest) = page(&store, &request(1, EVERYTHING, few(1), NOW));
    let behind = request(1, EVERYTHING.rest(rest.unwrap()), few(50), NOW);
    let lens = std::thread::scope(|scope| {
        let readers = [(); 4].map(|()| scope.spawn(|| read_all(&store, behind.clone()).len()));
        for number in 0..2_000_u32 {
            carry_out(&store, &write(key(&number.to_be_bytes()), Cell::tombstone(version(2), 1)));
        }
        readers.map(|reader| reader.join().unwrap())
    });
    // The first reader at the end closes the snapshot, and the others may continue in a new one.
    assert!(lens.contains(&1_999) && lens.iter().all(|len| *len <= 1_999), "{lens:?}");
}

#[test]
fn a_snapshot_that_is_too_old_is_dropped_and_the_range_continues_in_a_new_one() {
    let clock = clock();
    let store = opened_at(MemFs::new(), &clock);
    for name in [b"a", b"b", b"c"] {
        carry_out(&store, &write(key(name), value(1, b"old")));
    }
    let next = |number, from: &[u8]| request(number, EVERYTHING.rest(Cut::Before(key(from))), few(1), NOW);
    page(&store, &next(1, b"a"));
    page(&store, &next(2, b"a"));
    carry_out(&store, &write(key(b"b"), value(2, b"new")));
    clock.advance(SNAPSHOT_AGE_DEFAULT - SECOND);
    store.expire_snapshots();
    assert_eq!(store.snapshot_count(), 2);
    assert_eq!(entries(&page(&store, &next(1, b"b")).0), [(key(b"b"), value(1, b"old"))]);
    clock.advance(SECOND);
    assert_eq!(entries(&page(&store, &next(1, b"b")).0), [(key(b"b"), value(2, b"new"))], "none told it");
    assert_eq!(store.snapshot_count(), 2);
    store.expire_snapshots();
    assert_eq!(store.snapshot_count(), 1, "the other one is as old as it may be");
    end(&store, 2);
    end(&store, 1);
    assert_eq!(store.snapshot_count(), 0);
}

#[test]
fn the_oldest_snapshots_are_dropped_when_all_pin_too_much_memory() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let first = |number| request(number, EVERYTHING, few(1), NOW);
    let rest = |number| request(number, EVERYTHING.rest(Cut::Before(key(b"b"))), few(1), NOW);
    let write_at = |clock: u64| {
        carry_out(&store, &write(key(b"a"), Cell::value(version(clock), 1, vec![7; 1 << 20].into())));
        carry_out(
            &store,
            &write(key(b"b"), Cell::value(version(clock), 1, clock.to_be_bytes().to_vec().into())),
        );
    };
    let bytes_max = store.engine().pinned_memtable_bytes_max();
    let mut rounds = 0;
    while store.engine().pinned_memtable_bytes() <= bytes_max {
        rounds += 1;
        write_at(rounds);
        page(&store, &first(rounds));
        store.engine().flush().unwrap();
    }
    write_at(rounds + 1);
    assert_eq!(store.expire_snapshots(), 1);
    assert_eq!(store.snapshots_dropped_for_memory(), 1);
    assert!(store.engine().pinned_memtable_bytes() <= bytes_max);
    assert_eq!(store.snapshot_count() as u64, rounds - 1, "no more than must be");
    let seen = |number| entries(&page(&store, &rest(number)).0).remove(0).1.meta.version;
    assert_eq!(seen(rounds), version(rounds), "the newest is kept");
    assert_eq!(seen(1), version(rounds + 1), "the oldest goes on afresh");
}

#[test]
fn the_number_of_open_snapshots_is_limited() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for name in [b"a", b"b"] {
        carry_out(&store, &write(key(name), value(1, b"")));
    }
    let first = |number| request(number, EVERYTHING, few(1), NOW);
    for number in 0..SNAPSHOTS_MAX as u64 {
        page(&store, &first(number));
    }
    let refused = first(SNAPSHOTS_MAX as u64);
    assert!(matches!(fault(&store, &refused), StoreFault::Overloaded { .. }));
    page(&store, &first(3));
    end(&store, 3);
    page(&store, &refused);
    assert_eq!(store.snapshot_count(), SNAPSHOTS_MAX);
}

#[test]
fn a_page_shows_the_requested_content() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let expiring = |expires_at| {
        let meta = CellMeta { expires_at: Some(at(expires_at)), ..CellMeta::value(written(10), 1) };
        Cell { meta, value: "value".into() }
    };
    let cells = [
        (key(b"deleted at 20"), Cell::tombstone(written(20), 1)),
        (key(b"expired at 30"), expiring(30)),
        (key(b"expires at 40"), expiring(40)),
        (key(b"lives"), Cell::value(written(10), 1, "value".into())),
    ];
    for (key, cell) in &cells {
        carry_out(&store, &write(key.clone(), cell.clone()));
    }
    let shown = |content| {
        let read = read_all(&store, request(1, EVERYTHING, few(2), content));
        read.iter().for_each(|(key, cell)| {
            let (_, stored) = cells.iter().find(|(stored, _)| stored == key).unwrap();
            assert_eq!(cell.meta, stored.meta);
            assert!(cell.value.is_empty() || cell.value == stored.value);
        });
        let name = |(key, cell): &(Key, Cell)| {
            let name = String::from_utf8_lossy(key.as_bytes()).into_owned();
            (name, !cell.value.is_empty())
        };
        read.iter().map(name).collect::<Vec<_>>()
    };
    let of = |names: &[(&str, bool)]| -> Vec<(String, bool)> {
        names.iter().map(|(name, has_value)| ((*name).to_owned(), *has_value)).collect()
    };
    let live = of(&[("expires at 40", true), ("lives", true)]);
    assert_eq!(shown(PageContent::Live { at: at(30) }), live);
    assert_eq!(shown(PageContent::Live { at: at(40) }), live[1..]);
    let cells = |dead_since, versions_only| PageContent::Cells {
        at: at(30),
        dead_since: at(dead_since),
        versions_only,
    };
    let all = of(&[("deleted at 20", false), ("expired at 30", false)]);
    let all = [all, live.clone()].concat();
    assert_eq!(shown(cells(20, false)), all);
    assert_eq!(shown(cells(21, false)), all[1..], "dead for longer");
    assert_eq!(shown(cells(30, false)), all[1..]);
    assert_eq!(shown(cells(31, false)), all[2..]);
    assert_eq!(shown(cells(41, false)), of(&[("lives", true)]), "dead from a time that is to come");
    let bare: Vec<_> = all.iter().map(|(name, _)| (name.clone(), false)).collect();
    assert_eq!(shown(cells(20, true)), bare);
}

#[test]
fn a_page_ends_at_its_limit_and_a_larger_entry_has_its_own_page() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let larger: &'static [u8] = &[7; 100];
    for (name, bytes) in [(b"a", &larger[..8]), (b"b", &larger[..8]), (b"c", larger), (b"d", &larger[..8])] {
        carry_out(&store, &write(key(name), value(1, bytes)));
    }
    let pages = |limit| {
        let mut request = request(1, EVERYTHING, limit, NOW);
        let mut lens = Vec::new();
        loop {
            let (read, rest) = page(&store, &request);
            assert!(read.bytes().len() <= limit.bytes || read.len() == 1);
            lens.push(read.len());
            match rest {
                Some(rest) => request.range.from = Some(rest),
                None => return lens,
            }
        }
    };
    assert_eq!(pages(ALL), [4]);
    assert_eq!(pages(few(3)), [3, 1]);
    assert_eq!(pages(few(0)), [1, 1, 1, 1]);
    let bytes = |bytes| ScanLimit { entries: usize::MAX, bytes };
    assert_eq!(pages(bytes(20)), [2, 1, 1], "keys, values, and what stands between");
    assert_eq!(pages(bytes(19)), [1, 1, 1, 1]);
    assert_eq!(pages(bytes(0)), [1, 1, 1, 1]);
    let (read, rest) = page(&store, &request(2, EVERYTHING, few(4), NOW));
    assert_eq!((read.len(), rest), (4, None), "nothing is left: the end is known at once");
}

#[test]
fn a_page_over_dead_cells_is_bounded() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    const DEAD: u64 = 50_000;
    let mut group = store.write_group();
    for number in 0..DEAD {
        let meta = CellMeta { expires_at: Some(at(5)), ..CellMeta::value(written(1), 1) };
        let expired = Cell { meta, value: "expired".into() };
        let cell = if number % 2 == 0 { Cell::tombstone(written(1), 1) } else { expired };
        group.add(cluster::StoreId(number), &write(key(&number.to_be_bytes()), cell));
    }
    common::commit(&store, group);
    carry_out(&store, &write(key(b"z"), value(1, b"lives")));
    for flushes in [false, true] {
        if flushes {
            store.engine().flush().unwrap();
        }
        let mut next = request(1, EVERYTHING, ALL, PageContent::Live { at: at(9) });
        let mut looked_at = Vec::new();
        while let (read, Some(rest)) = page(&store, &next) {
            assert!(read.is_empty());
            let number = u64::from_be_bytes(rest.key().as_bytes().try_into().expect("one of the dead"));
            looked_at.push(number - looked_at.iter().sum::<u64>());
            next.range.from = Some(rest);
        }
        assert!(
            looked_at.len() >= 3 && looked_at.iter().all(|entries| *entries <= DEAD / 3),
            "{looked_at:?}"
        );
        assert_eq!(entries(&page(&store, &next).0), [(key(b"z"), value(1, b"lives"))]);
    }
}

#[test]
fn a_page_over_unrequested_values_that_are_read_is_bounded() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    // Larger ones are not read.
    for number in 0..200_u8 {
        let cell = Cell::value(version(1), 1, vec![number; 60 << 10].into());
        carry_out(&store, &write(key(&[number + 1]), cell));
        if number % 20 == 19 {
            store.engine().flush().unwrap();
        }
    }
    let versions = PageContent::Cells { at: at(1), dead_since: at(0), versions_only: true };
    let (read, rest) = page(&store, &request(1, EVERYTHING, ALL, versions));
    assert!(rest.is_some() && (1..=100).contains(&read.len()), "{} entries", read.len());
    assert_eq!(read_all(&store, request(2, EVERYTHING, ALL, versions)).len(), 200);
}

#[test]
fn keys_and_values_may_be_any_bytes_and_large() {
    let disk = MemFs::new();
    let (store, _) = open(disk, 1).unwrap();
    let mut large = vec![0; 16 << 20];
    Rng::new(1).fill(&mut large);
    let all: BTreeMap<Key, Cell> = [
        (key(b"\0"), b"\n".to_vec()),
        (key(b"\0\0"), Vec::new()),
        (key(b"\n"), b"\0\n\0".to_vec()),
        (key(b"\n\n"), b"\n\n".to_vec()),
        (key(b"a\nb"), large),
        (key(&[255; 8_192]), vec![0]),
    ]
    .into_iter()
    .map(|(key, value)| (key, Cell::value(version(1), 1, value.into())))
    .collect();
    for (key, cell) in &all {
        let written = carry_out(&store, &write(key.clone(), cell.clone()));
        assert!(common::is_stored(&written), "{written:?}");
        // The large value exceeds the memtables of this store, so the next write has to wait for
        // it.
        store.engine().flush().unwrap();
    }
    for (number, limit) in [(1, ALL), (2, few(1)), (3, ScanLimit { entries: 9, bytes: 64 })] {
        store.engine().flush().unwrap();
        let read = read_all(&store, request(number, EVERYTHING, limit, NOW));
        assert!(read.into_iter().eq(all.clone()), "{limit:?}");
    }
    let rest = EVERYTHING.rest(Cut::After(key(b"\n")));
    let first = read_all(&store, request(4, rest, few(1), NOW)).remove(0);
    assert_eq!(first.0, key(b"\n\n"));
}

#[test]
fn concurrent_pages_of_large_values_are_limited_and_all_are_read() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let cell = |number: u8| {
        let mut value = vec![number; 5 << 20];
        Rng::new(u64::from(number)).fill(&mut value[..1 << 20]);
        Cell::value(version(1), 1, value.into())
    };
    let all: Vec<_> = (1..4).map(|number| (key(&[number]), cell(number))).collect();
    for (key, cell) in &all {
        carry_out(&store, &write(key.clone(), cell.clone()));
        store.engine().flush().unwrap();
    }
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (store, all) = (&store, &all);
            scope.spawn(move || {
                assert!(read_all(store, request(number, EVERYTHING, few(1), NOW)) == *all, "{number}");
            });
        }
    });
    assert_eq!(store.snapshot_count(), 0);
}

#[test]
fn a_page_that_was_refused_for_memory_is_read_again_from_the_same_moment() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let mut large = vec![7; 2 << 20];
    Rng::new(1).fill(&mut large);
    let old = value(1, Box::leak(large.into_boxed_slice()));
    carry_out(&store, &write(key(b"a"), value(1, b"small")));
    carry_out(&store, &write(key(b"b"), old.clone()));
    store.engine().flush().unwrap();
    let (_, rest) = page(&store, &request(1, EVERYTHING, few(1), NOW));
    let next = request(1, EVERYTHING.rest(rest.expect("an entry follows")), few(1), NOW);
    let none_left = Arc::new(Budget::new(0, 0, LargestValue::default()));
    let mut held = none_left.empty_reservation(MemoryCategory::Replies);
    assert!(held.cover(1), "one value is read in overcommit");
    let memory = Arc::new(ReadMemory::reserving(none_left.empty_reservation(MemoryCategory::Replies)));
    let refused = store.answer_covered(&StoreRequest::ReadPage(next.clone()), &memory);
    assert!(matches!(refused, StoreResponse::Failed(StoreFault::NoMemory { .. })), "{refused:?}");
    carry_out(&store, &write(key(b"b"), value(2, b"new")));
    assert_eq!(entries(&page(&store, &next).0), [(key(b"b"), old)]);
}

#[test]
fn damage_is_reported_and_entries_before_it_are_read() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let mut noise = vec![0; 60_000];
    Rng::new(1).fill(&mut noise);
    for (name, bytes) in [(b"a", &noise[..20_000]), (b"b", &noise[20_000..40_000]), (b"c", &noise[40_000..])]
    {
        carry_out(&store, &write(key(name), Cell::value(version(1), 1, bytes.to_vec().into())));
    }
    store.engine().flush().unwrap();
    drop(store);
    let pattern = &noise[30_000..30_064];
    let place = disk.file_names().into_iter().find_map(|path| {
        let bytes = disk.read_file(&path).unwrap();
        let at = bytes.windows(pattern.len()).position(|window| window == pattern);
        at.filter(|_| path.to_string_lossy().contains("tables")).map(|at| (path, at as u64))
    });
    let (path, at) = place.expect("the value is in a table");
    disk.corrupt(&path, at, 3).unwrap();
    let (store, _) = open(disk, 1).unwrap();
    let from = |name| EVERYTHING.rest(Cut::Before(key(name)));
    let StoreFault::Corrupt { detail } = fault(&store, &request(1, from(b"a"), ALL, NOW)) else {
        panic!("it is not found")
    };
    assert!(detail.contains(&*path.to_string_lossy()), "{detail}");
    assert_eq!(store.snapshot_count(), 0, "what failed is let go");
    let behind = entries(&page(&store, &request(1, from(b"c"), ALL, NOW)).0);
    assert_eq!(behind.len(), 1, "what lies elsewhere is read");
}
