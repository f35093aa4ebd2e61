//! Stress test with real threads on a real disk: writers, readers and all workers.

mod support;

use bytes::Bytes;
use engine::{Batch, Durability, Engine, Options, workers};
use env::Env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use stdx::{Cell, Hlc, NodeTag, Version};

const WRITERS: u64 = 4;
const WRITES_EACH: u64 = 3_000;

fn options() -> Options {
    Options {
        memtable_bytes: Some(256 << 10),
        table_bytes: 256 << 10,
        level1_bytes: 1 << 20,
        durability: Durability::Os,
        ..support::small_options()
    }
}

fn version(number: u64) -> Version {
    Version::new(Hlc::from_bits(number), NodeTag(1))
}

fn write_of(writer: u64, number: u64) -> (Vec<u8>, Cell) {
    let key = format!("writer-{writer}/key-{:04}", number % 500).into_bytes();
    let value = Bytes::from(format!("{writer}:{number}:").repeat(10));
    (key, Cell::value(version(number + 1), 1, value))
}

#[test]
fn each_thread_reads_its_own_writes_and_never_goes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, _) = Engine::open(Env::os(), dir.path(), options()).expect("open");
    let workers = workers::start(&engine, workers::WorkerOptions::default()).expect("start");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let engine = engine.clone();
            scope.spawn(move || {
                for number in 0..WRITES_EACH {
                    let (key, cell) = write_of(writer, number);
                    let mut batch = Batch::new();
                    batch.put(&key, cell.as_ref());
                    engine.write(batch).expect("write");
                    assert_eq!(engine.get(&key).expect("get"), Some(cell));
                }
            });
        }
    });
    workers.stop();
    engine.close().expect("close");
    drop(engine);

    let (engine, _) = Engine::open(Env::os(), dir.path(), options()).expect("open again");
    for writer in 0..WRITERS {
        for number in WRITES_EACH - 500..WRITES_EACH {
            let (key, cell) = write_of(writer, number);
            assert_eq!(engine.get(&key).expect("get"), Some(cell), "after opening again");
        }
    }
}

#[test]
fn a_submitted_batch_becomes_visible_as_a_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, _) = Engine::open(Env::os(), dir.path(), options()).expect("open");
    let workers = workers::start(&engine, workers::WorkerOptions::default()).expect("start");
    let done = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let keys: Vec<Vec<u8>> = (0..8).map(|number| format!("part-{number}").into_bytes()).collect();

    let reader = std::thread::spawn({
        let (engine, done, keys, acknowledged) =
            (engine.clone(), Arc::clone(&done), keys.clone(), Arc::clone(&acknowledged));
        move || {
            let mut seen_max = 0;
            while !done.load(Ordering::SeqCst) {
                let floor = acknowledged.load(Ordering::SeqCst);
                let snapshot = engine.snapshot();
                let mut cursor = snapshot.cursor();
                engine::Cursor::seek_to_first(&mut cursor).expect("seek");
                let mut versions = Vec::new();
                while let Some((_, cell)) = engine::Cursor::entry(&cursor) {
                    versions.push(cell.meta.version);
                    engine::Cursor::advance(&mut cursor).expect("advance");
                }
                assert!(versions.is_empty() || versions.len() == keys.len(), "half a batch: {versions:?}");
                assert!(
                    versions.windows(2).all(|pair| pair[0] == pair[1]),
                    "parts of two batches: {versions:?}"
                );
                let seen = versions.first().map_or(0, |version| version.hlc.to_bits());
                assert!(seen >= floor && seen >= seen_max, "saw {seen} after {floor} and {seen_max}");
                seen_max = seen;
            }
        }
    });

    let (tell, told) = mpsc::channel();
    for number in 1..=4_000 {
        let mut batch = Batch::new();
        for key in &keys {
            batch.put(key, Cell::value(version(number), 1, Bytes::from_static(b"v")).as_ref());
        }
        let tell = tell.clone();
        engine.submit(batch, Box::new(move |result| tell.send(result.map(|_| number)).expect("told")));
        let number = told.recv().expect("one answer").expect("committed");
        acknowledged.store(number, Ordering::SeqCst);
    }
    done.store(true, Ordering::SeqCst);
    reader.join().expect("the reader found nothing wrong");
    workers.stop();
}
