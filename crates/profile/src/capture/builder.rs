//! Gathering a [`Capture`].
//!
//! **Promise.** Bounded, whatever comes: in stacks and in weights as [`weight_table`](crate::weight_table) says, in frames by
//! [`FRAMES_MAX`]. What is past the most there may be is lumped together under [`OTHER`]. The sum of the weights is always
//! the sum of what was added.

use super::{Capture, Kind, Stack};
use crate::weight_table::{Bounds, PROFILE_BOUNDS, WeightTable};
use std::collections::HashMap;
use std::time::Duration;

/// The name of what is not told apart: frames past the most there may be, and stacks past the most there may be.
pub const OTHER: &str = "(other)";
/// The most frames of a stack. Those nearest to the leaf are left out first.
const FRAMES_MAX: usize = 256;
/// The most notes.
const NOTES_MAX: usize = 16;

/// Gathers a capture.
#[derive(Debug)]
pub struct CaptureBuilder {
    kind: Kind,
    started_unix_ms: u64,
    slice_ms: u32,
    lost: u64,
    notes: Vec<String>,
    names: Vec<String>,
    name_indices: HashMap<String, u32>,
    stacks: WeightTable<Vec<u32>>,
}

impl CaptureBuilder {
    /// An empty one, of what began at that time and is told apart by slices of this length: at least a millisecond.
    pub fn new(kind: Kind, slice: Duration, started_unix_ms: u64) -> Self {
        Self::with_bounds(kind, slice, started_unix_ms, PROFILE_BOUNDS)
    }

    pub(super) fn with_bounds(kind: Kind, slice: Duration, started_unix_ms: u64, bounds: Bounds) -> Self {
        Self {
            kind,
            started_unix_ms,
            slice_ms: u32::try_from(slice.as_millis()).unwrap_or(u32::MAX).max(1),
            lost: 0,
            notes: Vec::new(),
            names: vec![OTHER.to_owned()],
            name_indices: HashMap::from([(OTHER.to_owned(), 0)]),
            stacks: WeightTable::new(vec![0], bounds),
        }
    }

    /// Adds so much to a stack, given from the root to the leaf, in a slice counted from 0.
    pub fn add<S: AsRef<str>>(&mut self, slice: u32, frames: impl IntoIterator<Item = S>, weight: u64) {
        let mut stack = Vec::new();
        for frame in frames {
            if stack.len() + 1 == FRAMES_MAX {
                stack.push(self.intern(OTHER));
                break;
            }
            stack.push(self.intern(frame.as_ref()));
        }
        self.stacks.add(stack, slice, weight);
    }

    /// Counts samples that were seen but could not be kept.
    pub fn add_lost(&mut self, samples: u64) {
        self.lost = self.lost.saturating_add(samples);
    }

    /// Adds a sentence for whoever reads the profile.
    pub fn add_note(&mut self, note: impl Into<String>) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note.into());
        }
    }

    /// The capture, of so many slices, or as many as something was added to, if those are more.
    pub fn finish(self, slices: u32) -> Capture {
        let coarseness = self.stacks.coarseness();
        Capture {
            kind: self.kind,
            started_unix_ms: self.started_unix_ms,
            slice_ms: self.slice_ms.saturating_mul(coarseness),
            slices: self.stacks.slices().max(slices.div_ceil(coarseness)),
            lost: self.lost,
            notes: self.notes,
            names: self.names,
            stacks: self.stacks.into_entries().map(|(frames, weights)| Stack { frames, weights }).collect(),
        }
    }

    fn intern(&mut self, name: &str) -> u32 {
        if let Some(index) = self.name_indices.get(name) {
            return *index;
        }
        let index = u32::try_from(self.names.len()).unwrap_or(0);
        self.names.push(name.to_owned());
        self.name_indices.insert(name.to_owned(), index);
        index
    }
}
