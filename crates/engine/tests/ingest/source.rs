//! Cells as another node sends them.

use super::support::{GRACE, LOCAL_END, World, key_of};
use engine::{Engine, Error, Ingest};
use env::MemFs;
use std::collections::BTreeMap;
use std::path::PathBuf;
use stdx::{Cell, CellMeta};

pub(crate) type Cells = BTreeMap<Vec<u8>, Cell>;

/// Up to `count` random cells of `keys` keys that are not local: new ones and late ones.
pub(crate) fn random_cells(world: &mut World, keys: u64, count: u64) -> Cells {
    let mut cells = Cells::new();
    for _ in 0..count {
        let key = key_of(world.rng.below(keys));
        if key.as_slice() < LOCAL_END {
            continue;
        }
        let version = if world.rng.chance(0.5) { world.late_version() } else { world.next_version() };
        let mut value = vec![0; world.rng.below(100) as usize];
        world.rng.fill(&mut value);
        let cell = match world.rng.below(8) {
            0 => Cell::tombstone(version, 1),
            1 => {
                let expires_at = world.wall().saturating_add(GRACE.mul_f64(world.rng.unit()));
                let meta = CellMeta { expires_at: Some(expires_at), ..CellMeta::value(version, 1) };
                Cell { meta, value: value.into() }
            }
            _ => Cell::value(version, 1, value.into()),
        };
        cells.insert(key, cell);
    }
    cells
}

/// Values under the keys with these numbers, with new versions.
pub(crate) fn values(world: &mut World, numbers: impl IntoIterator<Item = u64>, len: usize) -> Cells {
    let value = |world: &mut World| {
        let mut value = vec![0; len];
        world.rng.fill(&mut value);
        Cell::value(world.next_version(), 1, value.into())
    };
    numbers.into_iter().map(|number| (number_key(number), value(world))).collect()
}

pub(crate) fn number_key(number: u64) -> Vec<u8> {
    format!("number-{number:08}").into_bytes()
}

pub(crate) fn push_all(ingest: &mut Ingest, cells: &Cells) -> Result<(), Error> {
    cells.iter().try_for_each(|(key, cell)| ingest.push(key, cell.as_ref()))
}

/// Ingests the cells under a name, in one commit at this position.
pub(crate) fn ingest_as(engine: &Engine, name: &[u8], cells: &Cells, position: &[u8]) {
    let mut ingest = engine.ingest(name, 0).expect("open");
    push_all(&mut ingest, cells).expect("push");
    ingest.commit(position).expect("commit");
}

pub(crate) fn acknowledge_all(world: &mut World, cells: &Cells) {
    for (key, cell) in cells {
        world.acknowledge(key, cell);
    }
}

/// The levels that have tables.
pub(crate) fn used_levels(engine: &Engine) -> Vec<usize> {
    let levels = engine.stats().levels;
    (0..levels.len()).filter(|level| levels[*level].tables > 0).collect()
}

pub(crate) fn table_files(disk: &MemFs) -> Vec<PathBuf> {
    super::support::damage::tables(disk)
}
