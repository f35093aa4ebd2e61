//! How much there was of what, by slice of time, within bounds.
//!
//! **Promise.** At most so many keys are told apart, the rest counts for one named [`other`](WeightTable::new); at most so many
//! weights are kept, and past that time gets coarser: two slices become one. The sum is always what was added.

use crate::capture::Weight;
use std::collections::HashMap;
use std::hash::Hash;

/// How much a [`WeightTable`] may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Keys that are told apart; at least 1, for the rest.
    pub(crate) keys_max: usize,
    /// Weights, of all keys; not fewer than the keys.
    pub(crate) weights_max: usize,
}

/// Of a whole profile.
pub(crate) const PROFILE_BOUNDS: Bounds = Bounds { keys_max: 16_384, weights_max: 1 << 20 };

/// How much there was of each key, by slice.
#[derive(Debug)]
pub(crate) struct WeightTable<K> {
    bounds: Bounds,
    indices: HashMap<K, usize>,
    /// By index; each in the order of time.
    weights: Vec<Vec<Weight>>,
    /// What there are more keys for than may be.
    other: K,
    count: usize,
    slices: u32,
    /// How many of the slices that callers count make one of those that are kept: a power of two.
    coarseness: u32,
}

impl<K: Hash + Eq + Clone> WeightTable<K> {
    /// An empty one, in which `other` stands for keys that are too many.
    pub(crate) fn new(other: K, bounds: Bounds) -> Self {
        Self {
            bounds,
            indices: HashMap::new(),
            weights: Vec::new(),
            other,
            count: 0,
            slices: 0,
            coarseness: 1,
        }
    }

    /// Adds so much of `key` in a slice, counted from 0.
    pub(crate) fn add(&mut self, key: K, slice: u32, weight: u64) {
        if weight == 0 {
            return;
        }
        let index = self.index_of(key);
        let slice = slice / self.coarseness;
        self.slices = self.slices.max(slice.saturating_add(1));
        let weights = &mut self.weights[index];
        let at = weights.partition_point(|weight| weight.slice < slice);
        match weights.get_mut(at) {
            Some(there) if there.slice == slice => there.weight = there.weight.saturating_add(weight),
            _ => {
                weights.insert(at, Weight { slice, weight });
                self.count += 1;
            }
        }
        while self.count > self.bounds.weights_max && self.slices > 1 {
            self.coarsen();
        }
    }

    /// How many slices were used, as they are kept.
    pub(crate) const fn slices(&self) -> u32 {
        self.slices
    }

    /// How many of the slices that callers count make one that is kept.
    pub(crate) const fn coarseness(&self) -> u32 {
        self.coarseness
    }

    /// All there is, in the order in which the keys came.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (K, Vec<Weight>)> {
        let mut keys: Vec<(K, usize)> = self.indices.into_iter().collect();
        keys.sort_unstable_by_key(|(_, index)| *index);
        keys.into_iter().map(|(key, _)| key).zip(self.weights)
    }

    fn index_of(&mut self, key: K) -> usize {
        if let Some(index) = self.indices.get(&key) {
            return *index;
        }
        // The last index is kept for what is lumped together.
        let is_full = self.weights.len() + 1 >= self.bounds.keys_max;
        let key = if is_full { self.other.clone() } else { key };
        *self.indices.entry(key).or_insert_with(|| {
            self.weights.push(Vec::new());
            self.weights.len() - 1
        })
    }

    /// Makes one slice of two.
    fn coarsen(&mut self) {
        self.coarseness = self.coarseness.saturating_mul(2);
        self.slices = self.slices.div_ceil(2);
        self.count = 0;
        for weights in &mut self.weights {
            weights.iter_mut().for_each(|weight| weight.slice /= 2);
            weights.dedup_by(|later, earlier| {
                let is_same = later.slice == earlier.slice;
                if is_same {
                    earlier.weight = earlier.weight.saturating_add(later.weight);
                }
                is_same
            });
            self.count += weights.len();
        }
    }
}
