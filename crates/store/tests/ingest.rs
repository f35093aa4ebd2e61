//! Entities that are ingested are read like written ones, beside the cells of the node itself.

mod common;

use cluster::{Key, StoreFault};
use common::{carry_out, is_stored, key, open, read, value, write};
use env::MemFs;
use stdx::Cell;
use store::Store;

fn seen(store: &Store, name: &[u8]) -> Option<Cell> {
    read(store, &key(name))
}

#[test]
fn ingested_entities_are_read_and_the_ingest_continues_after_a_kill() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let mut ingest = store.ingest(b"plan 3, node 7", 1 << 20).unwrap();
    assert_eq!(ingest.position(), None);
    let names: Vec<Key> = (0u8..200).map(|number| key(format!("key-{number:03}").as_bytes())).collect();
    for name in &names {
        ingest.push(name, value(5, b"moved").as_ref()).unwrap();
    }
    ingest.commit(b"half").unwrap();
    ingest.push(&key(b"lost"), value(5, b"lost").as_ref()).unwrap();
    assert!(!ingest.is_full() && !ingest.is_stalled());

    let disk = disk.kill();
    let (store, _) = open(disk, 1).unwrap();
    assert_eq!(store.ingest_positions(), [(b"plan 3, node 7".to_vec(), b"half".to_vec())]);
    for name in &names {
        assert_eq!(read(&store, name), Some(value(5, b"moved")));
    }
    assert_eq!(seen(&store, b"lost"), None);
    let ingest = store.ingest(b"plan 3, node 7", 1 << 20).unwrap();
    assert_eq!(ingest.position(), Some(&b"half"[..]));
    ingest.finish().unwrap();
    assert_eq!(store.ingest_positions(), []);
    store.forget_ingest(b"plan 3, node 7").unwrap();
}

#[test]
fn neither_a_write_nor_an_ingest_hides_a_newer_version() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for (name, written, ingested) in [(b"a", 5, 6), (b"b", 6, 5)] {
        assert!(is_stored(&carry_out(&store, &write(key(name), value(written, b"written")))));
        let mut ingest = store.ingest(b"one", 0).unwrap();
        ingest.push(&key(name), value(ingested, b"ingested").as_ref()).unwrap();
        ingest.commit(name).unwrap();
    }
    assert_eq!(seen(&store, b"a"), Some(value(6, b"ingested")));
    assert_eq!(seen(&store, b"b"), Some(value(6, b"written")));
}

#[test]
fn a_key_out_of_order_discards_the_part() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let mut ingest = store.ingest(b"one", 0).unwrap();
    ingest.push(&key(b"b"), value(5, b"b").as_ref()).unwrap();
    let refused = ingest.push(&key(b"a"), value(5, b"a").as_ref());
    assert!(matches!(refused, Err(StoreFault::Io { .. })), "{refused:?}");
    assert!(ingest.commit(b"p").is_err());
    assert_eq!(ingest.rewind(), None);
    ingest.push(&key(b"a"), value(5, b"a").as_ref()).unwrap();
    ingest.commit(b"p").unwrap();
    assert_eq!((seen(&store, b"a"), seen(&store, b"b")), (Some(value(5, b"a")), None));
}
