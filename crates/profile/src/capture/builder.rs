//! Gathering a [`Capture`].
//!
//! **Promise.** Bounded: at most [`STACKS_MAX`] stacks of at most [`FRAMES_MAX`] frames, at most [`WEIGHTS_MAX`] weights.
//! Past the first two, what comes is lumped together under [`OTHER`]; past the last, time gets coarser: two slices
//! become one. The sum of the weights is always the sum of what was added.

use super::{Capture, Kind, Stack, Weight};
use std::collections::HashMap;
use std::time::Duration;

/// The name of what is not told apart: frames past the most there may be, and stacks past the most there may be.
pub const OTHER: &str = "(other)";
/// The most stacks that are told apart.
const STACKS_MAX: usize = 16_384;
/// The most frames of a stack. Those nearest to the leaf are left out first.
const FRAMES_MAX: usize = 256;
/// The most weights, of all stacks.
const WEIGHTS_MAX: usize = 1 << 20;

/// Gathers a capture.
#[derive(Debug)]
pub struct CaptureBuilder {
    kind: Kind,
    started_unix_ms: u64,
    slice_ms: u32,
    /// How many of the slices that callers count make one of those that are kept: a power of two.
    coarseness: u32,
    slices: u32,
    lost: u64,
    names: Vec<String>,
    name_places: HashMap<String, u32>,
    stacks: Vec<Stack>,
    stack_places: HashMap<Vec<u32>, usize>,
    weights: usize,
    weights_max: usize,
    stacks_max: usize,
}

impl CaptureBuilder {
    /// An empty one, of what began at that time and is told apart by slices of this length: at least a millisecond.
    pub fn new(kind: Kind, slice: Duration, started_unix_ms: u64) -> Self {
        let slice_ms = u32::try_from(slice.as_millis()).unwrap_or(u32::MAX).max(1);
        Self {
            kind,
            started_unix_ms,
            slice_ms,
            coarseness: 1,
            slices: 0,
            lost: 0,
            names: Vec::new(),
            name_places: HashMap::new(),
            stacks: Vec::new(),
            stack_places: HashMap::new(),
            weights: 0,
            weights_max: WEIGHTS_MAX,
            stacks_max: STACKS_MAX,
        }
    }

    /// With smaller bounds, for tests.
    #[cfg(test)]
    pub(super) fn with_bounds(mut self, stacks_max: usize, weights_max: usize) -> Self {
        (self.stacks_max, self.weights_max) = (stacks_max, weights_max);
        self
    }

    /// Adds so much to a stack, given from the root to the leaf, in a slice counted from 0.
    pub fn add<S: AsRef<str>>(&mut self, slice: u32, frames: impl IntoIterator<Item = S>, weight: u64) {
        let mut interned = Vec::new();
        for frame in frames {
            if interned.len() + 1 == FRAMES_MAX {
                interned.push(self.intern(OTHER));
                break;
            }
            interned.push(self.intern(frame.as_ref()));
        }
        let place = self.place_of(interned);
        self.put(place, slice, weight);
    }

    /// Counts samples that were seen but could not be kept.
    pub fn lose(&mut self, samples: u64) {
        self.lost = self.lost.saturating_add(samples);
    }

    /// The capture, of so many slices, or as many as something was added to, if those are more.
    pub fn finish(mut self, slices: u32) -> Capture {
        self.slices = self.slices.max(slices.div_ceil(self.coarseness));
        Capture {
            kind: self.kind,
            started_unix_ms: self.started_unix_ms,
            slice_ms: self.slice_ms.saturating_mul(self.coarseness),
            slices: self.slices,
            lost: self.lost,
            names: self.names,
            stacks: self.stacks,
        }
    }

    fn intern(&mut self, name: &str) -> u32 {
        if let Some(place) = self.name_places.get(name) {
            return *place;
        }
        let place = u32::try_from(self.names.len()).expect("the stacks are bounded, and so are their frames");
        self.names.push(name.to_owned());
        self.name_places.insert(name.to_owned(), place);
        place
    }

    /// Where the stack is; one too many is another's.
    fn place_of(&mut self, frames: Vec<u32>) -> usize {
        if let Some(place) = self.stack_places.get(&frames) {
            return *place;
        }
        // The last place is kept for what is lumped together.
        let is_last = self.stacks.len() + 1 >= self.stacks_max;
        let frames = if is_last { vec![self.intern(OTHER)] } else { frames };
        if let Some(place) = self.stack_places.get(&frames) {
            return *place;
        }
        let place = self.stacks.len();
        self.stacks.push(Stack { frames: frames.clone(), weights: Vec::new() });
        self.stack_places.insert(frames, place);
        place
    }

    fn put(&mut self, place: usize, slice: u32, weight: u64) {
        if weight == 0 {
            return;
        }
        let slice = slice / self.coarseness;
        self.slices = self.slices.max(slice.saturating_add(1));
        let weights = &mut self.stacks[place].weights;
        // Time passes: what is added belongs to the last slice or after it, but for a few.
        let at = weights.partition_point(|weight| weight.slice < slice);
        match weights.get_mut(at) {
            Some(there) if there.slice == slice => there.weight = there.weight.saturating_add(weight),
            _ => {
                weights.insert(at, Weight { slice, weight });
                self.weights += 1;
            }
        }
        while self.weights > self.weights_max && self.slices > 1 {
            self.coarsen();
        }
    }

    /// Makes one slice of two.
    fn coarsen(&mut self) {
        self.coarseness = self.coarseness.saturating_mul(2);
        self.slices = self.slices.div_ceil(2);
        self.weights = 0;
        for stack in &mut self.stacks {
            stack.weights.iter_mut().for_each(|weight| weight.slice /= 2);
            stack.weights.dedup_by(|later, earlier| {
                let is_same = later.slice == earlier.slice;
                if is_same {
                    earlier.weight = earlier.weight.saturating_add(later.weight);
                }
                is_same
            });
            self.weights += stack.weights.len();
        }
    }
}
