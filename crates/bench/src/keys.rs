//! Keys of a load, and the order in which they are drawn.
//!
//! Keys are numbers `0..count`. Their text is 16 hexadecimal digits of *twice* the number, so that
//! the odd texts are missing keys that lie between stored ones. A store cannot reject them by the
//! key range of its tables; it needs its filters.
//!
//! **Caveats.** Threads share the position of sequential keys and the end of the key space. With
//! several threads the *set* of keys is reproducible, but not which thread draws which key. With
//! [`KeyOrder::Latest`] a read may overtake the write of its key, and is then answered with `404`.

use crate::zipf::Zipf;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::Rng;

/// Length of a key, in bytes.
pub const KEY_LEN: usize = 16;

/// Prime greater than any number of keys. Multiplying by it scatters neighbouring ranks.
const SCATTER: u64 = 0xffff_ffff_ffff_ffc5;

/// A key, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyNumber(pub u64);

impl KeyNumber {
    /// Text of the key.
    pub fn stored_key(self) -> [u8; KEY_LEN] {
        hex(self.0 << 1)
    }

    /// Text of the key that follows directly in key order, and that is never stored.
    pub fn missing_key(self) -> [u8; KEY_LEN] {
        hex(self.0 << 1 | 1)
    }
}

fn hex(number: u64) -> [u8; KEY_LEN] {
    std::array::from_fn(|i| b"0123456789abcdef"[(number >> (60 - 4 * i) & 0xf) as usize])
}

/// Order in which keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// Ascending from 0, repeated.
    Sequential,
    /// Each key once in a scattered order, repeated.
    Scattered,
    /// Uniformly distributed.
    Uniform,
    /// Zipf-distributed; frequent keys are scattered over the key space.
    Zipf,
    /// Writes append new keys; reads prefer the newest keys, Zipf-distributed by age.
    Latest,
}

impl FromStr for KeyOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sequential" => Ok(Self::Sequential),
            "scattered" => Ok(Self::Scattered),
            "uniform" => Ok(Self::Uniform),
            "zipf" => Ok(Self::Zipf),
            "latest" => Ok(Self::Latest),
            _ => Err(format!("{text:?} is not a key order: sequential, scattered, uniform, zipf or latest")),
        }
    }
}

impl KeyOrder {
    /// All orders.
    pub const ALL: [Self; 5] = [Self::Sequential, Self::Scattered, Self::Uniform, Self::Zipf, Self::Latest];
}

impl fmt::Display for KeyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::Scattered => "scattered",
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Latest => "latest",
        })
    }
}

/// State of the key space that the threads of a run share.
#[derive(Debug)]
pub struct KeySpace {
    count: AtomicU64,
    next: AtomicU64,
}

impl KeySpace {
    /// Creates a key space of the keys `0..count`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(count: u64) -> Arc<Self> {
        assert!(count > 0, "a load needs at least one key");
        Arc::new(Self { count: AtomicU64::new(count), next: AtomicU64::new(0) })
    }

    fn sequential(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) % self.count.load(Ordering::Relaxed)
    }

    fn append(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }
}

/// Draws keys in an order.
#[derive(Debug)]
pub struct KeyPicker {
    order: KeyOrder,
    space: Arc<KeySpace>,
    zipf: Option<Arc<Zipf>>,
    count: u64,
    rng: Rng,
}

impl KeyPicker {
    /// Creates a picker for one thread. The same `rng` draws the same keys, except that threads
    /// share positions as described in the module documentation.
    pub fn new(order: KeyOrder, space: Arc<KeySpace>, rng: Rng) -> Self {
        let count = space.count.load(Ordering::Relaxed);
        let zipf = matches!(order, KeyOrder::Zipf | KeyOrder::Latest).then(|| Arc::new(Zipf::new(count)));
        Self { order, space, zipf, count, rng }
    }

    /// Key of the next read.
    pub fn for_read(&mut self) -> KeyNumber {
        match (self.order, &self.zipf) {
            (KeyOrder::Latest, Some(zipf)) => {
                let newest = self.space.count.load(Ordering::Relaxed) - 1;
                KeyNumber(newest - zipf.rank(&mut self.rng))
            }
            _ => self.existing(),
        }
    }

    /// Key of the next write; a new one with [`KeyOrder::Latest`].
    pub fn for_write(&mut self) -> KeyNumber {
        if self.order == KeyOrder::Latest { KeyNumber(self.space.append()) } else { self.existing() }
    }

    fn existing(&mut self) -> KeyNumber {
        KeyNumber(match (self.order, &self.zipf) {
            (KeyOrder::Sequential, _) => self.space.sequential(),
            (KeyOrder::Scattered, _) => scatter(self.space.sequential(), self.count),
            (_, Some(zipf)) => scatter(zipf.rank(&mut self.rng), self.count),
            (_, None) => self.rng.below(self.count),
        })
    }
}

/// Permutes `0..count`, by multiplication with a prime that does not divide `count`.
fn scatter(rank: u64, count: u64) -> u64 {
    (u128::from(rank) * u128::from(SCATTER) % u128::from(count)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn drawn(order: KeyOrder, seed: u64) -> Vec<u64> {
        let mut picker = KeyPicker::new(order, KeySpace::new(1_000), Rng::new(seed));
        (0..500).map(|i| if i % 3 == 0 { picker.for_write().0 } else { picker.for_read().0 }).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_keys_and_another_seed_others() {
        for order in [KeyOrder::Uniform, KeyOrder::Zipf, KeyOrder::Latest] {
            assert_eq!(drawn(order, 1), drawn(order, 1), "{order}");
            assert_ne!(drawn(order, 1), drawn(order, 2), "{order}");
        }
    }

    #[test]
    fn sequential_keys_come_once_each_and_then_again() {
        let space = KeySpace::new(10);
        let mut one = KeyPicker::new(KeyOrder::Sequential, space.clone(), Rng::new(1));
        let mut other = KeyPicker::new(KeyOrder::Sequential, space, Rng::new(2));
        let keys: Vec<u64> = (0..10).flat_map(|_| [one.for_read().0, other.for_write().0]).collect();
        assert_eq!(keys, (0..10).chain(0..10).collect::<Vec<_>>());
    }

    #[test]
    fn latest_writes_new_keys_and_reads_mostly_those() {
        let mut picker = KeyPicker::new(KeyOrder::Latest, KeySpace::new(1_000), Rng::new(3));
        let written: BTreeSet<u64> = (0..500).map(|_| picker.for_write().0).collect();
        assert_eq!(written, (1_000..1_500).collect());
        let reads: Vec<u64> = (0..1_000).map(|_| picker.for_read().0).collect();
        assert!(reads.iter().all(|key| *key < 1_500));
        assert!(reads.iter().filter(|key| **key >= 1_000).count() > 700);
    }

    #[test]
    fn scattering_loses_no_key() {
        for count in [1, 2, 7, 1_000] {
            let all: BTreeSet<u64> = (0..count).map(|rank| scatter(rank, count)).collect();
            assert_eq!(all, (0..count).collect());
        }
    }

    #[test]
    fn texts_are_ordered_as_numbers_are_and_missing_ones_lie_between() {
        assert_eq!(&KeyNumber(5).stored_key(), b"000000000000000a");
        assert!(KeyNumber(5).stored_key() < KeyNumber(5).missing_key());
        assert!(KeyNumber(5).missing_key() < KeyNumber(6).stored_key());
    }
}
