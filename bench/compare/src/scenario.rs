//! Scenarios: data sets, with the memory that all stores get for them.

use crate::store::Settings;
use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;
/// Divisor of the number of keys in a smoke run.
const QUICK_PART: u64 = 50;

/// A data set with its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Number of keys.
    pub keys: u64,
    /// Size of each value, in bytes; it compresses to half of that.
    pub value_bytes: usize,
    /// Sizes of memtables, cache and blocks.
    pub settings: Settings,
    /// Memory of the whole process, page cache included, where a cgroup can limit it.
    pub memory_bytes: Option<u64>,
}

/// All scenarios: data in cache, and data larger than memtable, cache and memory.
pub fn all(block_bytes: Option<u32>, quick: bool) -> Vec<Scenario> {
    let part = if quick { QUICK_PART } else { 1 };
    let settings = |memtable: u64, cache: u64| Settings {
        sync: false,
        memtable_bytes: memtable * MIB,
        cache_bytes: cache * MIB,
        block_bytes,
    };
    let scenario = |name: &str, keys: u64, value_bytes, settings, memory: Option<u64>| Scenario {
        name: name.to_owned(),
        keys: keys / part,
        value_bytes,
        settings,
        memory_bytes: memory.map(|mib| mib * MIB),
    };
    vec![
        scenario("cached-100", 1_000_000, 100, settings(64, 512), None),
        scenario("large-100", 5_000_000, 100, settings(16, 32), Some(256)),
        scenario("large-1k", 1_000_000, 1024, settings(16, 32), Some(256)),
    ]
}
