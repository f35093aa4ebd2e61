//! Profiles of the own process, and their pictures.
//!
//! **Promise.** What a profile says was there: each weight of a [`Capture`] comes from a sample, what could not be kept
//! is counted, never dropped in silence, and the sum over stacks is what was recorded. A profile takes bounded memory,
//! whatever the process does meanwhile, and nothing when none is taken.
//!
//! **Mechanism.** A [`Capture`] is stacks of named frames, each with its weights by slice of time; a
//! [`CaptureBuilder`] gathers it.
//!
//! **Caveats.** This crate knows nothing of who uses it: what a slice of time or a frame means is the recorder's.

mod capture;

pub use capture::{Capture, CaptureBuilder, CaptureError, Kind, OTHER, Stack, Weight};
