//! Keys and values of every size that a batch accepts, in memtables of every capacity.

use bytes::Bytes;
use engine::Batch;
use engine::internals::Sequence;
use engine::internals::memtable::{Memtable, hash_key};
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};

/// Lengths around every power of two up to 1 MiB, with a margin for the cell header.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=20).flat_map(|power| {
        let around = 1usize << power;
        [0, 1, 8, 16, 24, 32, 40, 41, 48, 64]
            .into_iter()
            .flat_map(move |by| [around.saturating_sub(by), around + by])
    })
}

#[test]
fn values_of_every_size_are_kept() {
    for capacity in (10..=30).map(|power| 1u64 << power) {
        let memtable = Memtable::new(0, capacity);
        for (number, length) in (1..).zip(lengths()) {
            let key = format!("{number}").into_bytes();
            let mut cell = Cell::value(
                Version::new(Hlc::from_bits(number), NodeTag(1)),
                1,
                Bytes::from(vec![7; length]),
            );
            cell.meta.expires_at = (number % 2 == 0).then_some(WallTime::EPOCH_2020);
            memtable.insert(Sequence(number), &key, cell.as_ref());
            assert_eq!(
                memtable.get(&key, hash_key(&key), Sequence::MAX),
                Some(cell),
                "{length} bytes in {capacity}"
            );
        }
    }
}

#[test]
fn keys_of_every_size_are_kept() {
    for capacity in (10..=30).map(|power| 1u64 << power) {
        let memtable = Memtable::new(0, capacity);
        for (number, length) in
            (1..).zip(lengths().filter(|length| (1..=Batch::KEY_BYTES_MAX).contains(length)))
        {
            let key = vec![number as u8; length];
            let cell = Cell::tombstone(Version::new(Hlc::from_bits(number), NodeTag(1)), 1);
            memtable.insert(Sequence(number), &key, cell.as_ref());
            assert_eq!(
                memtable.get(&key, hash_key(&key), Sequence::MAX),
                Some(cell),
                "{length} bytes in {capacity}"
            );
        }
    }
}
