//! Values: a function of their key, so that every reader can verify them.
//!
//! The first half of a value is random, the second half repeats it. LZ4 compresses it to about half
//! its size, like the values of RocksDB's `db_bench`.

use crate::keys::KeyNumber;
use crate::units::parse_bytes;
use std::fmt;
use std::str::FromStr;
use stdx::Rng;

/// Maximum size of a value, in bytes.
const VALUE_BYTES_MAX: u64 = 1 << 30;

/// Distribution of value sizes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSizes {
    /// All values have this size.
    Fixed(usize),
    /// Uniform between both sizes, inclusive.
    Uniform {
        /// Least size.
        min: usize,
        /// Greatest size.
        max: usize,
    },
    /// Log-uniform between both sizes, inclusive: each doubling of the size is equally likely, so
    /// most values are small.
    LogUniform {
        /// Least size; at least 1.
        min: usize,
        /// Greatest size.
        max: usize,
    },
}

impl ValueSizes {
    /// Mean size, in bytes.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Fixed(size) => size as f64,
            Self::Uniform { min, max } => (min + max) as f64 / 2.0,
            Self::LogUniform { min, max } if min == max => min as f64,
            Self::LogUniform { min, max } => (max - min) as f64 / (max as f64 / min as f64).ln(),
        }
    }
}

/// Parses `100`, the inclusive range `100..2000`, or `log:100..2000`; also with units, as in
/// `1KiB..64KiB`.
impl FromStr for ValueSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match parse_bytes(text)? {
            bytes if bytes <= VALUE_BYTES_MAX => Ok(bytes as usize),
            _ => Err(format!("{text:?}: values are at most 1 GiB")),
        };
        let (is_log, range) = text.strip_prefix("log:").map_or((false, text), |range| (true, range));
        match range.split_once("..") {
            None if is_log => Err(format!("{text:?} is not a range; write log:100..2000")),
            None => Ok(Self::Fixed(number(range)?)),
            Some((min, max)) => match (number(min)?, number(max)?) {
                (min, max) if min > max => Err(format!("{text:?}: the range is empty")),
                (0, _) if is_log => Err(format!("{text:?} has to begin at 1 or more")),
                (min, max) if is_log => Ok(Self::LogUniform { min, max }),
                (min, max) => Ok(Self::Uniform { min, max }),
            },
        }
    }
}

impl fmt::Display for ValueSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size} B"),
            Self::Uniform { min, max } => write!(f, "{min}..{max} B"),
            Self::LogUniform { min, max } => write!(f, "log:{min}..{max} B"),
        }
    }
}

/// Generator of the value of each key.
#[derive(Clone, Copy, Debug)]
pub struct ValueGenerator {
    /// Seed of the values.
    pub seed: u64,
    /// Sizes of the values.
    pub sizes: ValueSizes,
}

/// Seed of the standard values. Values depend on the key alone, so that a run can verify values of
/// another run.
const SEED: u64 = 0x0076_6563_6865;

impl ValueGenerator {
    /// Creates the generator that every lane of every run uses.
    pub const fn standard(sizes: ValueSizes) -> Self {
        Self { seed: SEED, sizes }
    }

    /// Appends the value of `key` to `out`.
    pub fn append(&self, key: KeyNumber, out: &mut Vec<u8>) {
        let mut rng = self.rng(key);
        let len = self.draw_len(&mut rng);
        let start = out.len();
        let half = len.div_ceil(2);
        out.resize(start + half, 0);
        rng.fill(&mut out[start..]);
        out.extend_from_within(start..start + (len - half));
    }

    /// Size of the value of `key`, in bytes.
    pub fn len(&self, key: KeyNumber) -> usize {
        self.draw_len(&mut self.rng(key))
    }

    fn rng(&self, key: KeyNumber) -> Rng {
        Rng::new(self.seed ^ key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn draw_len(&self, rng: &mut Rng) -> usize {
        match self.sizes {
            ValueSizes::Fixed(size) => size,
            ValueSizes::Uniform { min, max } => min + rng.below((max - min) as u64 + 1) as usize,
            ValueSizes::LogUniform { min, max } => {
                let drawn = min as f64 * (max as f64 / min as f64).powf(rng.unit());
                (drawn.round() as usize).clamp(min, max)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bench/compare/etcd` generates the same bytes, and has the same test.
    #[test]
    fn the_bytes_under_a_key_never_change() {
        let mut out = Vec::new();
        ValueGenerator::standard(ValueSizes::Fixed(21)).append(KeyNumber(7), &mut out);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "80e9199591619705f8b97680e9199591619705f8b9");
    }

    fn value(sizes: ValueSizes, key: u64) -> Vec<u8> {
        let mut out = Vec::new();
        ValueGenerator { seed: 1, sizes }.append(KeyNumber(key), &mut out);
        out
    }

    #[test]
    fn a_key_has_one_value_of_the_right_size_and_other_keys_have_others() {
        for size in [0, 1, 7, 100, 1_001] {
            let sizes = ValueSizes::Fixed(size);
            assert_eq!(value(sizes, 3).len(), size);
            assert_eq!(value(sizes, 3), value(sizes, 3));
        }
        assert_ne!(value(ValueSizes::Fixed(100), 3), value(ValueSizes::Fixed(100), 4));
    }

    #[test]
    fn ranges_reach_both_ends_and_the_length_is_known_without_the_bytes() {
        let sizes = ValueSizes::Uniform { min: 3, max: 6 };
        let values = ValueGenerator { seed: 1, sizes };
        let lengths: Vec<usize> = (0..100).map(|key| value(sizes, key).len()).collect();
        assert!((0..100).all(|key| lengths[key as usize] == values.len(KeyNumber(key))));
        assert!((3..=6).all(|len| lengths.contains(&len)) && lengths.iter().all(|len| (3..=6).contains(len)));
    }

    #[test]
    fn the_mean_is_that_of_the_drawn_lengths() {
        for sizes in [
            ValueSizes::Fixed(7),
            ValueSizes::Uniform { min: 0, max: 100 },
            ValueSizes::LogUniform { min: 10, max: 10_000 },
        ] {
            let values = ValueGenerator { seed: 1, sizes };
            let sum: usize = (0..20_000).map(|key| values.len(KeyNumber(key))).sum();
            let mean = sum as f64 / 20_000.0;
            assert!((mean / sizes.mean() - 1.0).abs() < 0.05, "{sizes}: {mean} for {}", sizes.mean());
        }
    }

    #[test]
    fn sizes_are_read_from_text() {
        assert_eq!("100".parse(), Ok(ValueSizes::Fixed(100)));
        assert_eq!("1..9".parse(), Ok(ValueSizes::Uniform { min: 1, max: 9 }));
        assert_eq!("1KiB..4KiB".parse(), Ok(ValueSizes::Uniform { min: 1_024, max: 4_096 }));
        assert_eq!("log:10..900".parse(), Ok(ValueSizes::LogUniform { min: 10, max: 900 }));
        for text in ["9..1", "x", "log:5", "log:0..9", "2GiB"] {
            assert!(text.parse::<ValueSizes>().is_err(), "{text}");
        }
    }
}
