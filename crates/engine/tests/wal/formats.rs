//! Files of earlier releases can still be read, and the present ones equal them byte for byte.

use crate::support::{append, new_disk, open_mem, record, segment_path};
use engine::internals::wal::SegmentId;
use engine::internals::wal::replay::{SegmentEnd, replay_bytes};
use std::path::Path;

fn pinned() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/wal-v1.wal")
}

/// Two segments, the second linked to the first; then the bytes of the second.
fn written_today() -> Vec<u8> {
    let disk = new_disk();
    append(&mut open_mem(&disk).wal, 1, 10).unwrap();
    let mut log = open_mem(&disk);
    log.wal.append(&[&record(2, 0), &record(3, 200)]).unwrap();
    append(&mut log.wal, 4, 1).unwrap();
    log.wal.idle().unwrap();
    disk.read_file(segment_path(SegmentId(1))).unwrap()
}

#[test]
fn format_1_is_still_read_and_written() {
    if std::env::var_os("UPDATE").is_some() && !pinned().exists() {
        std::fs::write(pinned(), written_today()).unwrap();
    }
    let bytes = std::fs::read(pinned()).expect("UPDATE=1 writes the pinned file");
    let contents = replay_bytes(&bytes, SegmentEnd::Torn).unwrap();
    assert_eq!((contents.groups, contents.records, contents.cells), (3, 3, 9));
    assert_eq!((contents.header.id, contents.header.previous.unwrap().id), (SegmentId(1), SegmentId(0)));
    assert_eq!((contents.durable, contents.len), (bytes.len() as u64 - 48, bytes.len() as u64));
    let cells: Vec<Vec<_>> = contents.iter().map(Iterator::collect).collect();
    for (cells, (number, len)) in cells.iter().zip([(2, 0), (3, 200), (4, 1)]) {
        assert_eq!(*cells, record(number, len).iter().collect::<Vec<_>>());
    }
    assert_eq!(bytes, written_today());
}
