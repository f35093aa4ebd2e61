use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use stdx::{Cell, CellMeta, Hlc, NodeTag, Version, WallTime};

type Cells = BTreeMap<Vec<u8>, Cell>;

fn build(cells: &Cells) -> Vec<u8> {
    let mut builder = DataBlockBuilder::default();
    cells.iter().for_each(|(key, cell)| builder.add(key, cell.as_ref()));
    let (last, _) = cells.last_key_value().unwrap();
    let bytes = builder.bytes();
    let block = builder.finish(last).to_vec();
    assert!(block.len() <= bytes, "the size bound is too small");
    block
}

fn cells() -> impl Strategy<Value = Cells> {
    // Few letters, and keys longer than a head, so that equal heads are frequent.
    let key = prop::collection::vec(b'a'..=b'b', 0..14);
    let cell =
        (any::<u64>(), 0u64..4, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(hlc, tag, value)| {
            Cell::value(Version::new(Hlc::from_bits(hlc), NodeTag(tag)), 1, Bytes::from(value))
        });
    prop::collection::btree_map(key, cell, 1..200)
}

proptest! {
    #[test]
    fn an_oversized_block_equals_the_block_of_the_builder(
        key in prop::collection::vec(any::<u8>(), 0..300),
        hlc in any::<u64>(),
        tag in any::<u64>(),
        expires_at in prop::option::of(any::<u64>()),
        len in 0usize..200_000,
    ) {
        let meta = CellMeta {
            expires_at: expires_at.map(WallTime::from_micros_since_unix_epoch),
            ..CellMeta::value(Version::new(Hlc::from_bits(hlc), NodeTag(tag)), 3)
        };
        let cell = Cell { meta, value: vec![7; len].into() };
        let built = build(&Cells::from([(key.clone(), cell.clone())]));
        let block = OversizedBlock::of(&key, cell.as_ref());
        prop_assert!(block.parts().concat() == built);
        prop_assert!(!is_oversized(&cell.as_ref()) || DataBlock::decode(built).unwrap().is_oversized());
    }

    #[test]
    fn every_key_is_found_and_no_other(cells in cells(), probes in prop::collection::vec("[a-c]{0,14}", 20)) {
        let block = DataBlock::decode(build(&cells)).unwrap();
        for probe in probes.iter().map(String::as_bytes).chain(cells.keys().map(Vec::as_slice)) {
            let found = block.find(probe).map(|entry| (entry.meta, block.slice(&entry.value).to_vec()));
            prop_assert_eq!(found, cells.get(probe).map(|cell| (cell.meta, cell.value.to_vec())));
            let sought = block.entry(block.seek(probe));
            let sought = sought.map(|entry| [block.prefix(), block.slice(&entry.key)].concat());
            prop_assert_eq!(sought.as_ref(), cells.range(probe.to_vec()..).next().map(|(key, _)| key));
        }
    }

    /// Fabricated content behind a valid checksum is refused or read, without a panic.
    #[test]
    fn damaged_blocks_are_refused_or_read(
        cells in cells(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        tail in prop::collection::vec(any::<u8>(), 0..9),
        probes in prop::collection::vec("[a-c]{0,14}", 8),
    ) {
        let mut bytes = build(&cells);
        for (index, byte) in edits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let keep = bytes.len() - tail.len();
        bytes[keep..].copy_from_slice(&tail);
        let Ok(block) = DataBlock::decode(bytes) else { return Ok(()) };
        let (mut at, mut walked) = (0, 0);
        while let Some(entry) = block.entry(at) {
            (at, walked) = (entry.end(), walked + 1);
            block.slice(&entry.value);
        }
        prop_assert_eq!(walked, block.cells());
        for probe in &probes {
            block.find(probe.as_bytes());
            block.entry(block.seek(probe.as_bytes()));
        }
    }
}
