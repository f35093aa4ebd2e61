//! Presets: named loads for which others have published results.
//!
//! Flags on the command line override the values of a preset. Values are 2 KiB unless the published
//! load states a size. The data of presets with "1g" and "3g" is stored first, unless it is
//! present.

use crate::keys::KeyOrder;
use crate::units::parse_bytes;
use crate::values::ValueSizes;
use crate::workload::{Mix, QuorumOverride};
use std::str::FromStr;

/// A named load with the results that others published.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Published results, each measured on its author's machine.
    pub published: &'static str,
    /// Connections over all threads.
    pub connections: usize,
    /// Rate, in requests/s.
    pub rate: u64,
    /// Operations and their shares.
    pub mix: &'static str,
    /// Keys that are drawn; `None`: all stored keys.
    pub keys: Option<u64>,
    /// Order in which keys are drawn.
    pub order: KeyOrder,
    /// Sizes of the values.
    pub value_size: &'static str,
    /// Data to store before: a number of keys, or a size.
    pub preload: Option<&'static str>,
    /// Seconds to measure.
    pub duration_s: u64,
    /// Number of replicas and of required acknowledgements.
    pub quorum: QuorumOverride,
    /// Maximum number of entries of a range.
    pub limit: u64,
}

const BASE: Preset = Preset {
    name: "",
    about: "",
    published: "",
    connections: 1,
    rate: 5_000,
    mix: "get",
    keys: None,
    order: KeyOrder::Uniform,
    value_size: "2KiB",
    preload: None,
    duration_s: 60,
    quorum: QuorumOverride { ack: None, from: None },
    limit: 100,
};

const ONE_COPY: QuorumOverride = QuorumOverride { ack: Some(1), from: Some(1) };
const TWO_OF_THREE: QuorumOverride = QuorumOverride { ack: Some(2), from: Some(3) };

/// All presets.
pub const PRESETS: [Preset; 17] = [
    Preset {
        name: "put-small-seq",
        about: "1 connection, PUT, keys in order, a few bytes",
        published: "10k/s: p50 0.7-1.6 ms, p99 2-54 ms, max 52-112 ms; knee 18-21k/s, latency in seconds at 50k/s",
        rate: 10_000,
        mix: "put",
        order: KeyOrder::Sequential,
        value_size: "8",
        keys: Some(1_000_000),
        ..BASE
    },
    Preset {
        name: "put-2k-random",
        about: "1 connection, PUT of 2 KiB, 40,000 keys at random",
        published: "dead at 2,000/s with a flush threshold of 1 MB, at 5,000/s with 20 MB",
        rate: 2_000,
        mix: "put",
        keys: Some(40_000),
        ..BASE
    },
    Preset {
        name: "get-seq-1g",
        about: "1 connection, GET in order over 1 GiB",
        published: "5k/s: p50 2.4 ms, p99 71 ms; 10k/s: p99 215 ms; knee 13k/s",
        order: KeyOrder::Sequential,
        preload: Some("1GiB"),
        ..BASE
    },
    Preset {
        name: "get-random-1g",
        about: "1 connection, GET, 40,000 keys at random in 1 GiB",
        published: "5k/s: p99 38 ms; 10k/s: p99 1.7 s, some 5xx",
        keys: Some(40_000),
        preload: Some("1GiB"),
        ..BASE
    },
    Preset {
        name: "mixed",
        about: "1 connection, PUT and GET alike, values to 8 KiB",
        published: "could not be measured: died at 1,000/s on some runs",
        rate: 1_000,
        mix: "get=50,put=50",
        keys: Some(100_000),
        value_size: "1..8KiB",
        preload: Some("100000"),
        ..BASE
    },
    Preset {
        name: "get-fixed-3g",
        about: "1 connection, GET of one key in 3 GiB",
        published: "5k/s: mean 0.7 ms; knee 8.5k/s (tables of 64 MB)",
        keys: Some(1),
        preload: Some("3GiB"),
        ..BASE
    },
    Preset {
        name: "get-existing-3g",
        about: "1 connection, GET of existing keys at random in 3 GiB",
        published: "4.5k/s: mean 1.1 ms, max 26 ms; 2.5k/s had 8 % over 8 ms; under 100/s before tables knew their least and greatest key",
        rate: 4_500,
        preload: Some("3GiB"),
        ..BASE
    },
    Preset {
        name: "get-missing-3g",
        about: "1 connection, GET of keys that do not exist, between those of 3 GiB",
        published: "5k/s: mean 0.85 ms; knee 7k/s",
        mix: "get-missing",
        preload: Some("3GiB"),
        ..BASE
    },
    Preset {
        name: "get-half-missing-3g",
        about: "1 connection, GET in 3 GiB, half of the keys exist",
        published: "2.5k/s: mean 2 s",
        rate: 2_500,
        mix: "get=50,get-missing=50",
        preload: Some("3GiB"),
        ..BASE
    },
    Preset {
        name: "put-16c",
        about: "16 connections, PUT, keys at random, 5 minutes",
        published: "10k/s: p50 0.86, p99 1.72, p99.9 3.8, max 31 ms with flushes in the background (p90 490 ms, max 1.5 s without)",
        connections: 16,
        rate: 10_000,
        mix: "put",
        keys: Some(1_000_000),
        value_size: "100",
        duration_s: 300,
        ..BASE
    },
    Preset {
        name: "get-16c",
        about: "16 connections, GET, keys at random, 5 minutes",
        published: "10k/s: p50 1.0, p99 2.0, max 10 ms",
        connections: 16,
        rate: 10_000,
        keys: Some(1_000_000),
        value_size: "100",
        preload: Some("1000000"),
        duration_s: 300,
        ..BASE
    },
    Preset {
        name: "cluster3-put",
        about: "3 nodes, one copy, 64 connections to one node, PUT, keys at random",
        published: "8k/s: p50 1.8, p99 5.6, max 18 ms; knee 9.7k/s",
        connections: 64,
        rate: 8_000,
        mix: "put",
        keys: Some(1_000_000),
        value_size: "100",
        quorum: ONE_COPY,
        ..BASE
    },
    Preset {
        name: "cluster3-get",
        about: "3 nodes, one copy, 64 connections to one node, GET, keys at random",
        published: "5.5k/s: p50 2.3, p99 6.9, max 26 ms and 0.04 % errors; knee 6.3k/s",
        connections: 64,
        rate: 5_500,
        keys: Some(1_000_000),
        value_size: "100",
        preload: Some("1000000"),
        quorum: ONE_COPY,
        ..BASE
    },
    Preset {
        name: "quorum-put",
        about: "3 replicas, 2 of 3, 64 connections, PUT, keys at random",
        published: "best 31.5k/s: p50 1.6, p99 4.6, p99.9 8.8 ms; typical 2-10k/s",
        connections: 64,
        rate: 10_000,
        mix: "put",
        keys: Some(1_000_000),
        value_size: "100",
        quorum: TWO_OF_THREE,
        ..BASE
    },
    Preset {
        name: "quorum-get",
        about: "3 replicas, 2 of 3, 64 connections, GET, keys at random",
        published: "best 23.5k/s: p50 1.5, p99 12, p99.9 29 ms; typical 2-10k/s",
        connections: 64,
        rate: 10_000,
        keys: Some(1_000_000),
        value_size: "100",
        preload: Some("1000000"),
        quorum: TWO_OF_THREE,
        ..BASE
    },
    Preset {
        name: "range",
        about: "ranges of 100 entries at random in 1 GiB (--limit 10, 250, ...)",
        published: "10 entries: 10k/s p50 21 ms; 100: 3k/s p50 4.8, p99 80 ms (116 MB/s)",
        connections: 16,
        rate: 3_000,
        mix: "range",
        value_size: "400",
        preload: Some("1GiB"),
        ..BASE
    },
    Preset {
        name: "get-lz4",
        about: "1 connection, GET at random over 900 MB in compressed blocks",
        published: "1k/s (LZ4), 200/s (ZSTD), against 8k/s plain: blocks unpacked on each read, no cache",
        rate: 1_000,
        preload: Some("900MB"),
        ..BASE
    },
];

impl Preset {
    /// Shares of the operations.
    pub fn mix(&self) -> Mix {
        self.mix.parse().expect("the mix of a preset is valid")
    }

    /// Sizes of the values.
    pub fn sizes(&self) -> ValueSizes {
        self.value_size.parse().expect("the sizes of a preset are valid")
    }

    /// Data to store before.
    pub fn preload(&self) -> Option<PreloadSize> {
        self.preload.map(|text| text.parse().expect("the preload of a preset is valid"))
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        PRESETS.iter().find(|preset| preset.name == name).copied().ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            format!("{name:?} is not a preset; the presets are {}", names.join(", "))
        })
    }
}

/// Amount of data to store: `1000000` keys, or `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadSize {
    /// Number of keys.
    Keys(u64),
    /// Bytes of keys and values.
    Bytes(u64),
}

impl PreloadSize {
    /// Number of keys for values of these sizes; at least one.
    pub fn keys(self, key_len: usize, sizes: ValueSizes) -> u64 {
        match self {
            Self::Keys(keys) => keys.max(1),
            Self::Bytes(bytes) => ((bytes as f64 / (key_len as f64 + sizes.mean())).ceil() as u64).max(1),
        }
    }
}

impl FromStr for PreloadSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(keys) = text.parse() {
            return Ok(Self::Keys(keys));
        }
        parse_bytes(text)
            .map(Self::Bytes)
            .map_err(|_| format!("{text:?} is neither a number of keys nor a size such as 1GiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_preset_is_found_by_its_name_and_complete() {
        let names: BTreeSet<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        assert_eq!(names.len(), PRESETS.len());
        for name in names {
            let preset: Preset = name.parse().unwrap();
            let _ = (preset.mix(), preset.sizes());
            assert!(preset.rate > 0 && preset.connections > 0 && !preset.published.is_empty(), "{name}");
            assert!(preset.keys.is_some() || preset.preload().is_some(), "{name}: which keys?");
        }
        assert!("get-random-2g".parse::<Preset>().unwrap_err().contains("get-random-1g"));
    }

    #[test]
    fn a_size_is_as_many_keys_as_fill_it() {
        assert_eq!("1000".parse(), Ok(PreloadSize::Keys(1_000)));
        assert_eq!("1GiB".parse(), Ok(PreloadSize::Bytes(1 << 30)));
        assert!("many".parse::<PreloadSize>().is_err());
        assert_eq!(PreloadSize::Bytes(1 << 20).keys(16, ValueSizes::Fixed(1_008)), 1_024);
        assert_eq!(PreloadSize::Bytes(1).keys(16, ValueSizes::Fixed(100)), 1);
    }
}
