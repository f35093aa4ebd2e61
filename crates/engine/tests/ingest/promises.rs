//! What a host may rely on, without crashes.

use super::source::{
    Cells, acknowledge_all, ingest_as, number_key, push_all, table_files, used_levels, values,
};
use super::support::{World, batch_of, scan, small_options};
use engine::{Batch, Engine, Error, ErrorKind, Ingest, IngestCursor, Options};
use stdx::Cell;

fn of(key: &[u8], cell: &Cell) -> Cells {
    Cells::from([(key.to_vec(), cell.clone())])
}

fn position_of(engine: &Engine, name: &[u8]) -> Option<Vec<u8>> {
    let cursors = engine.ingest_cursors();
    cursors.into_iter().find(|cursor| cursor.name == name).map(|cursor| cursor.position.to_vec())
}

#[test]
fn committed_cells_are_read_and_are_not_in_the_log() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let logged = engine.wal_stats().written_bytes;
    let cells = values(&mut world, 0..200, 100);
    ingest_as(&engine, b"one", &cells, b"all");
    acknowledge_all(&mut world, &cells);
    world.check_all(&engine);
    assert_eq!(engine.wal_stats().written_bytes, logged);
    assert_eq!(engine.version_max(), cells.values().map(|cell| cell.meta.version).max().expect("cells"));
    let stats = engine.stats();
    assert_eq!((stats.ingest.cells, stats.ingest.level0_tables, stats.wal.cells), (200, 0, 0));
    assert!(stats.ingest.tables > 1, "tables are cut at their size: {}", stats.ingest.tables);
    assert_eq!(stats.ingest.file_bytes, stats.table_bytes());
    assert_eq!(stats.written_bytes(), stats.wal.written_bytes + stats.table_bytes());

    drop(engine);
    world.disk = world.disk.crash(&mut stdx::Rng::new(1));
    let engine = world.open(&small_options());
    world.check_all(&engine);
    assert_eq!(position_of(&engine, b"one").as_deref(), Some(&b"all"[..]));
}

#[test]
fn pushed_cells_are_invisible_and_leave_no_file_unless_they_are_committed() {
    let mut world = World::new(2);
    let engine = world.open(&small_options());
    let cells = values(&mut world, 0..200, 100);
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    push_all(&mut ingest, &cells).expect("push");
    assert!(ingest.is_full() && ingest.uncommitted_bytes() > 20_000);
    assert!(scan(&engine).is_empty() && engine.get(&number_key(0)).expect("get").is_none());
    assert!(!table_files(&world.disk).is_empty());
    assert_eq!(ingest.rewind(), None);
    assert!(table_files(&world.disk).is_empty() && !ingest.is_full());
    push_all(&mut ingest, &cells).expect("the same cells again");
    drop(ingest);
    assert!(table_files(&world.disk).is_empty());
    assert_eq!(engine.ingest_cursors(), []);
    assert!(scan(&engine).is_empty());
}

/// Older and newer cells of one key in a memtable, in a table and in an ingest, in every order of
/// arrival.
#[test]
fn the_greatest_version_wins_in_any_order_of_arrival() {
    for kinds in 0..4u32 {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut world = World::new(3);
            let engine = world.open(&small_options());
            let cells: Vec<Cell> = (0..3u32)
                .map(|nth| match kinds >> nth & 1 {
                    0 => Cell::value(world.next_version(), 1, vec![nth as u8].into()),
                    _ => Cell::tombstone(world.next_version(), 1),
                })
                .collect();
            // The first arrives by an ingest, the second by a flush, the third stays in a memtable.
            let [ingested, flushed, buffered] = order.map(|nth: usize| cells[nth].clone());
            for arrival in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 1, 0]] {
                let key = format!("key-{arrival:?}").into_bytes();
                let mut arrived: Vec<&Cell> = Vec::new();
                for step in arrival {
                    arrived.push([&ingested, &flushed, &buffered][step]);
                    match step {
                        0 => ingest_as(&engine, b"one", &of(&key, &ingested), b"p"),
                        1 => {
                            engine.write(batch_of([&(key.clone(), flushed.clone())])).expect("write");
                            engine.flush().expect("flush");
                        }
                        _ => drop(engine.write(batch_of([&(key.clone(), buffered.clone())])).expect("write")),
                    }
                    let greatest = arrived.iter().max_by_key(|cell| cell.meta.version).copied();
                    assert_eq!(engine.get(&key).expect("get").as_ref(), greatest);
                    assert_eq!(scan(&engine).get(&key), greatest);
                }
                world.acknowledge(&key, &cells[2]);
                world.check_key(&engine, &key);
            }
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
            world.check_all(&engine);
        }
    }
}

#[test]
fn snapshots_and_open_scans_do_not_see_later_commits() {
    let mut world = World::new(4);
    let engine = world.open(&small_options());
    let before = values(&mut world, (0..100).map(|number| number * 2), 50);
    ingest_as(&engine, b"one", &before, b"a");
    let snapshot = engine.snapshot();
    let mut cursor = snapshot.cursor();
    engine::Cursor::seek_to_first(&mut cursor).expect("seek");
    let after = values(&mut world, 0..200, 50);
    ingest_as(&engine, b"two", &after, b"b");
    engine.run_jobs().expect("jobs");
    let mut seen = Cells::new();
    while let Some((key, cell)) = engine::Cursor::entry(&cursor) {
        seen.insert(key.to_vec(), cell.to_cell());
        engine::Cursor::advance(&mut cursor).expect("advance");
    }
    assert_eq!(seen, before);
    assert_eq!(scan(&engine), after, "newer versions of all keys");
}

#[test]
fn a_position_is_durable_without_cells_and_until_it_is_removed() {
    let world = World::new(5);
    let mut engine = world.open(&small_options());
    let mut ingest = engine.ingest(b"empty range", 0).expect("open");
    ingest.commit(b"").expect("an empty position");
    assert_eq!(ingest.position(), Some(&b""[..]));
    ingest.commit(b"further").expect("commit");
    drop(ingest);
    assert_eq!(engine.stats().table_bytes(), 0);
    engine.ingest(b"other", 0).expect("open").commit(&[7; Ingest::POSITION_BYTES_MAX]).expect("commit");
    for _ in 0..2 {
        let cursor = |name: &'static [u8], position: &[u8]| IngestCursor {
            name: name.into(),
            position: position.to_vec().into(),
        };
        let expected =
            [cursor(b"empty range", b"further"), cursor(b"other", &[7; Ingest::POSITION_BYTES_MAX])];
        assert_eq!(engine.ingest_cursors(), expected);
        drop(engine);
        engine = world.open(&small_options());
    }
    engine.ingest(b"empty range", 0).expect("open").finish().expect("finish");
    assert_eq!(position_of(&engine, b"empty range"), None);
    engine.remove_ingest_cursor(b"other").expect("remove");
    engine.remove_ingest_cursor(b"other").expect("once more");
    drop(engine);
    assert_eq!(world.open(&small_options()).ingest_cursors(), []);
}

#[test]
fn a_name_is_open_once() {
    let world = World::new(6);
    let engine = world.open(&small_options());
    let invalid =
        |result: Result<(), Error>| assert_eq!(result.expect_err("refused").kind(), ErrorKind::Invalid);
    let ingest = engine.ingest(b"one", 0).expect("open");
    invalid(engine.ingest(b"one", 0).map(drop));
    invalid(engine.remove_ingest_cursor(b"one"));
    invalid(engine.ingest(b"", 0).map(drop));
    invalid(engine.ingest(&[0; Ingest::NAME_BYTES_MAX + 1], 0).map(drop));
    engine.ingest(&[0; Ingest::NAME_BYTES_MAX], 0).map(drop).expect("the longest name");
    drop(ingest);
    let mut ingest = engine.ingest(b"one", 0).expect("open again");
    invalid(ingest.commit(&[0; Ingest::POSITION_BYTES_MAX + 1]));
    assert_eq!(ingest.rewind(), None);
    drop(ingest);
    let names: Vec<_> = (0..Ingest::CURSORS_MAX as u32).map(u32::to_be_bytes).collect();
    for name in &names {
        engine.ingest(name, 0).expect("open").commit(b"p").expect("commit");
    }
    invalid(engine.ingest(b"one more", 0).map(drop));
    engine.remove_ingest_cursor(b"one more").expect("there is none");
    engine.ingest(&names[3], 0).expect("a known one").finish().expect("finish");
    let open = engine.ingest(b"one more", 0).expect("there is space");
    invalid(engine.ingest(b"yet another", 0).map(drop));
    drop(open);
    engine.ingest(b"yet another", 0).map(drop).expect("the other one was never committed");
}

#[test]
fn after_an_error_nothing_is_committed_before_the_host_has_rewound() {
    let mut world = World::new(7);
    let engine = world.open(&small_options());
    let value = Cell::value(world.next_version(), 1, "value".into());
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    let long = vec![b'k'; Batch::KEY_BYTES_MAX + 1];
    for key in [&b""[..], &long, b"\0local", b"b", b"a"] {
        ingest.push(b"b", value.as_ref()).expect("push");
        let refused = ingest.push(key, value.as_ref()).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert_eq!(ingest.push(b"c", value.as_ref()).expect_err("not rewound").kind(), ErrorKind::Invalid);
        assert_eq!(ingest.commit(b"p").expect_err("not rewound").kind(), ErrorKind::Invalid);
        assert_eq!(ingest.rewind(), None);
    }
    assert!(table_files(&world.disk).is_empty() && scan(&engine).is_empty());
    ingest.push(b"b", value.as_ref()).expect("push");
    ingest.commit(b"p").expect("commit");
    ingest.push(b"a", value.as_ref()).expect("a lesser key after a commit");
    assert_eq!(ingest.rewind(), Some(&b"p"[..]));
    assert_eq!(scan(&engine), of(b"b", &value));
}

#[test]
fn oversized_values_are_ingested_and_merged() {
    let mut world = World::new(8);
    let options = Options { memtable_bytes: Some(256 << 10), table_bytes: 1 << 20, ..small_options() };
    let engine = world.open(&options);
    for round in 0..3u64 {
        let mut cells = Cells::new();
        for (number, len) in [0, 100, (64 << 10) - 1, 64 << 10, 300 << 10, 2 << 20].into_iter().enumerate() {
            cells.extend(values(&mut world, [number as u64 * 10 + round % 2], len));
        }
        ingest_as(&engine, b"large", &cells, &round.to_be_bytes());
        acknowledge_all(&mut world, &cells);
        world.check_all(&engine);
        engine.run_jobs().expect("jobs");
        world.check_all(&engine);
    }
    drop(engine);
    world.check_all(&world.open(&options));
}

#[test]
fn ingests_side_by_side_each_get_a_level_of_their_own() {
    let mut world = World::new(9);
    let engine = world.open(&small_options());
    let mut ingests: Vec<_> =
        (0..6u8).map(|source| engine.ingest(&[b's', source], 16 << 10).expect("open")).collect();
    for part in 0..4u64 {
        for (source, ingest) in ingests.iter_mut().enumerate() {
            let numbers = (0..60).map(|number| (part * 60 + number) * 6 + source as u64);
            let cells = values(&mut world, numbers, 60);
            push_all(ingest, &cells).expect("push");
            ingest.commit(&part.to_be_bytes()).expect("commit");
            acknowledge_all(&mut world, &cells);
        }
    }
    drop(ingests);
    world.check_all(&engine);
    assert_eq!(used_levels(&engine), [1, 2, 3, 4, 5, 6]);
    assert_eq!(engine.stats().ingest.level0_tables, 0);
    assert_eq!(engine.ingest_cursors().len(), 6);
    let before = engine.stats().table_bytes();
    ingest_as(&engine, b"a seventh", &values(&mut world, [3, 1_000], 10), b"p");
    assert_eq!(engine.stats().ingest.level0_tables, 1, "it overlaps all others");
    assert!(engine.stats().table_bytes() > before);
}
