//! Builder of a [`Capture`].
//!
//! **Promise.** Memory is bounded: [`weight_table`](crate::weight_table) bounds stacks and weights,
//! [`FRAMES_MAX`] bounds the frames of a stack. Anything beyond a bound is counted under [`OTHER`].
//! The sum of the weights always equals the sum of the added weights.

use super::{Capture, CaptureKind, Stack};
use crate::weight_table::{Bounds, PROFILE_BOUNDS, WeightTable};
use std::collections::HashMap;
use std::time::Duration;

/// Name of the frame that stands for the frames and stacks beyond the bounds.
pub const OTHER: &str = "(other)";
/// Maximum number of frames of a stack. Frames nearest to the leaf are dropped first.
const FRAMES_MAX: usize = 256;
/// Maximum number of notes of a capture.
const NOTES_MAX: usize = 16;

/// Builder of a [`Capture`].
#[derive(Debug)]
pub struct CaptureBuilder {
    kind: CaptureKind,
    started_unix_ms: u64,
    slice_ms: u32,
    lost: u64,
    notes: Vec<String>,
    names: Vec<String>,
    name_indices: HashMap<String, u32>,
    stacks: WeightTable<Vec<u32>>,
}

impl CaptureBuilder {
    /// Creates an empty builder. `slice` is the length of a time slice; it is rounded down to whole
    /// milliseconds, and is at least one.
    pub fn new(kind: CaptureKind, slice: Duration, started_unix_ms: u64) -> Self {
        Self::with_bounds(kind, slice, started_unix_ms, PROFILE_BOUNDS)
    }

    pub(super) fn with_bounds(
        kind: CaptureKind,
        slice: Duration,
        started_unix_ms: u64,
        bounds: Bounds,
    ) -> Self {
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

    /// Adds `weight` to a stack, given from the root to the leaf. `slice` counts from 0.
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

    /// Counts samples that were taken but could not be kept.
    pub fn add_lost(&mut self, samples: u64) {
        self.lost = self.lost.saturating_add(samples);
    }

    /// Adds a sentence for the reader of the profile. At most 16 notes are kept.
    pub fn add_note(&mut self, note: impl Into<String>) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note.into());
        }
    }

    /// Finishes the capture. It covers `slices` slices, or more if a weight was added to a later
    /// one.
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
