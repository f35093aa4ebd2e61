//! Configuration of a session. It is drawn at random, and printed if the session fails.

use crate::model::LOCAL_KEYS_END;
use engine::{Compression, Durability, HorizonSource, LogEnd, Options};
use std::time::Duration;
use stdx::Rng;

/// Order of the writes of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrder {
    /// The versions of a register reach the engine one after the other, each after the previous
    /// write has ended. So tombstones need no grace period: the horizon is far in the future, and
    /// they are dropped as soon as possible.
    Serial,
    /// The versions of a register reach the engine in any order, and old ones are written again.
    /// Nothing is dropped for its age.
    Concurrent,
}

/// Configuration of a session, which lasts from the opening of the engine to its closing.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Options of the engine.
    pub options: Options,
    /// Number of client threads.
    pub clients: usize,
    /// Number of compaction threads.
    pub compaction_threads: usize,
    /// Order of the writes of one register.
    pub order: WriteOrder,
    /// Whether the log gets its closing record at the end of the session.
    pub is_closed: bool,
}

impl SessionConfig {
    /// Draws a configuration. `log_end` is an end that the log is known to have had.
    pub fn draw(rng: &mut Rng, log_end: Option<LogEnd>) -> Self {
        let order = if rng.chance(0.5) { WriteOrder::Serial } else { WriteOrder::Concurrent };
        let has_local_keys = order == WriteOrder::Serial && rng.chance(0.3);
        let compressions = [
            Compression::None,
            Compression::Lz4,
            Compression::Lz4,
            Compression::Zstd(1),
            Compression::Zstd(9),
        ];
        let options = Options {
            durability: if rng.chance(0.5) { Durability::Sync } else { Durability::Os },
            memory_bytes: pick(rng, &[16 << 20, 64 << 20]),
            memtable_bytes: Some(pick(rng, &[8 << 10, 64 << 10, 512 << 10])),
            memtables_max: pick(rng, &[2, 3, 6]) as usize,
            block_bytes: pick(rng, &[256, 1_024, 16 << 10]) as usize,
            compression: compressions[rng.below(compressions.len() as u64) as usize],
            filter_bits_per_key: pick(rng, &[1, 10, 20]) as u32,
            table_bytes: pick(rng, &[4 << 10, 32 << 10, 1 << 20]),
            level0_tables: pick(rng, &[1, 2, 4]) as usize,
            level1_bytes: pick(rng, &[16 << 10, 256 << 10]),
            level_growth: pick(rng, &[2, 4, 10]),
            tombstone_grace: Duration::ZERO,
            local_keys_end: has_local_keys.then(|| vec![LOCAL_KEYS_END]),
            horizon: HorizonSource::Host,
            wal_segment_bytes: pick(rng, &[64 << 10, 256 << 10, 2 << 20]),
            table_files_max: pick(rng, &[1, 4, 512]) as usize,
            tower_seed: rng.next_u64(),
            scrub_period: rng.chance(0.5).then_some(Duration::from_secs(1)),
            known_log_end: if rng.chance(0.5) { log_end } else { None },
        };
        Self {
            options,
            clients: pick(rng, &[2, 4, 6]) as usize,
            compaction_threads: pick(rng, &[1, 2, 3]) as usize,
            order,
            is_closed: rng.chance(0.5),
        }
    }
}

fn pick(rng: &mut Rng, choices: &[u64]) -> u64 {
    choices[rng.below(choices.len() as u64) as usize]
}

/// Options for inspecting a directory: the engine does nothing by itself.
pub fn inspection_options() -> Options {
    Options { memory_bytes: 16 << 20, horizon: HorizonSource::Host, ..Options::default() }
}
