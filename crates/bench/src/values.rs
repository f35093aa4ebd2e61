//! The bytes under a key: a function of the key, so that whoever reads them can check them.
//!
//! The first half is random, the second repeats it: what LZ4 makes of it is about half the size, as with the
//! values of RocksDB's `db_bench`.

use crate::keys::KeyNumber;
use std::fmt;
use std::str::FromStr;
use stdx::Rng;

/// How long values are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Fixed(usize),
    /// Uniform between the two, both included.
    Uniform {
        /// The least.
        min: usize,
        /// The greatest.
        max: usize,
    },
}

/// `100`, or `100..2000` with both ends included.
impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number of bytes"));
        let Some((min, max)) = text.split_once("..") else { return Ok(Self::Fixed(number(text)?)) };
        let (min, max) = (number(min)?, number(max)?);
        if min > max { Err(format!("{text:?}: the range is empty")) } else { Ok(Self::Uniform { min, max }) }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size} B"),
            Self::Uniform { min, max } => write!(f, "{min}..{max} B"),
        }
    }
}

/// The values of all keys.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// Other seeds, other values.
    pub seed: u64,
    /// Their sizes.
    pub sizes: Sizes,
}

/// Values depend on the key alone, so that a run can check what another wrote.
const SEED: u64 = 0x0076_6563_6865;

impl Values {
    /// Those that every lane of every run stores.
    pub const fn of_all_runs(sizes: Sizes) -> Self {
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

    /// The length of the value of `key`, in bytes.
    pub fn len(&self, key: KeyNumber) -> usize {
        self.draw_len(&mut self.rng(key))
    }

    fn rng(&self, key: KeyNumber) -> Rng {
        Rng::new(self.seed ^ key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn draw_len(&self, rng: &mut Rng) -> usize {
        match self.sizes {
            Sizes::Fixed(size) => size,
            Sizes::Uniform { min, max } => min + rng.below((max - min) as u64 + 1) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(sizes: Sizes, key: u64) -> Vec<u8> {
        let mut out = Vec::new();
        Values { seed: 1, sizes }.append(KeyNumber(key), &mut out);
        out
    }

    #[test]
    fn a_key_has_one_value_of_the_right_size_and_other_keys_have_others() {
        for size in [0, 1, 7, 100, 1_001] {
            let sizes = Sizes::Fixed(size);
            assert_eq!(value(sizes, 3).len(), size);
            assert_eq!(value(sizes, 3), value(sizes, 3));
        }
        assert_ne!(value(Sizes::Fixed(100), 3), value(Sizes::Fixed(100), 4));
    }

    #[test]
    fn ranges_reach_both_ends_and_the_length_is_known_without_the_bytes() {
        let sizes = Sizes::Uniform { min: 3, max: 6 };
        let values = Values { seed: 1, sizes };
        let lengths: Vec<usize> = (0..100).map(|key| value(sizes, key).len()).collect();
        assert!((0..100).all(|key| lengths[key as usize] == values.len(KeyNumber(key))));
        assert!((3..=6).all(|len| lengths.contains(&len)) && lengths.iter().all(|len| (3..=6).contains(len)));
    }

    #[test]
    fn sizes_are_read_from_text() {
        assert_eq!("100".parse(), Ok(Sizes::Fixed(100)));
        assert_eq!("1..9".parse(), Ok(Sizes::Uniform { min: 1, max: 9 }));
        assert!("9..1".parse::<Sizes>().is_err() && "x".parse::<Sizes>().is_err());
    }
}
