//! Weights by key and time slice, in bounded memory.
//!
//! **Promise.** At most [`Bounds::keys_max`] keys are distinguished; the weights of further keys
//! are added to the key passed to [`WeightTable::new`]. At most [`Bounds::weights_max`] weights are
//! stored; beyond that the time resolution is halved: two slices become one. The sum of the weights
//! always equals the sum of the added weights.

use crate::capture::Weight;
use std::collections::HashMap;
use std::hash::Hash;

/// Bounds of a [`WeightTable`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of keys, including the one for all further keys; at least 1.
    pub(crate) keys_max: usize,
    /// Maximum number of weights of all keys together; not fewer than the keys.
    pub(crate) weights_max: usize,
}

/// Bounds of a profile.
pub(crate) const PROFILE_BOUNDS: Bounds = Bounds { keys_max: 16_384, weights_max: 1 << 20 };

/// Weights by key and time slice.
#[derive(Debug)]
pub(crate) struct WeightTable<K> {
    bounds: Bounds,
    indices: HashMap<K, usize>,
    /// Weights by index of the key, each list in the order of slices.
    weights: Vec<Vec<Weight>>,
    /// Key that stands for the keys beyond the bound.
    other: K,
    count: usize,
    slices: u32,
    /// Number of the caller's slices that form one stored slice; a power of two.
    coarseness: u32,
}

impl<K: Hash + Eq + Clone> WeightTable<K> {
    /// Creates an empty table. `other` stands for the keys beyond the bound.
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

    /// Adds `weight` to `key` in a slice, counted from 0.
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

    /// Number of stored slices in use.
    pub(crate) const fn slices(&self) -> u32 {
        self.slices
    }

    /// Number of the caller's slices that form one stored slice; a power of two.
    pub(crate) const fn coarseness(&self) -> u32 {
        self.coarseness
    }

    /// All keys with their weights, in the order in which the keys were added.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (K, Vec<Weight>)> {
        let mut keys: Vec<(K, usize)> = self.indices.into_iter().collect();
        keys.sort_unstable_by_key(|(_, index)| *index);
        keys.into_iter().map(|(key, _)| key).zip(self.weights)
    }

    fn index_of(&mut self, key: K) -> usize {
        if let Some(index) = self.indices.get(&key) {
            return *index;
        }
        // The last index is reserved for `other`.
        let is_full = self.weights.len() + 1 >= self.bounds.keys_max;
        let key = if is_full { self.other.clone() } else { key };
        *self.indices.entry(key).or_insert_with(|| {
            self.weights.push(Vec::new());
            self.weights.len() - 1
        })
    }

    /// Merges each pair of slices into one.
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
