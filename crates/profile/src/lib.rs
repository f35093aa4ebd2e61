//! Profiles of the own process, and their pictures.
//!
//! **Promise.** What a profile says was there: each weight of a [`Capture`] comes from a sample, what could not be kept
//! is counted, never dropped in silence, and the sum over stacks is what was recorded. A profile takes bounded memory,
//! whatever the process does meanwhile, and nothing when none is taken.
//!
//! **Mechanism.** A [`Capture`] is stacks of named frames, each with its weights by slice of time; a
//! [`CaptureBuilder`] gathers it. [`cpu`] and [`alloc`] record captures of this process, on the thread that asks for them.
//! [`flame_graph`] draws one as a picture, [`page`] as a page on which any moment can be looked at, [`greatest_frames`] as lists.
//!
//! **Caveats.** This crate knows nothing of who uses it: what a slice of time or a frame means is the recorder's. Stacks are
//! walked by frame pointers, so the program must be built with them.

mod aggregate;
pub mod alloc;
mod capture;
pub mod cpu;
mod error;
mod flame;
mod greatest;
mod page;
mod periodic;
mod queue;
mod shared_queue;
mod stack;
mod symbols;
mod threads;
mod weight_table;

pub use capture::{Capture, CaptureBuilder, CaptureError, Kind, OTHER, Stack, Weight};
pub use error::ProfileError;
pub use flame::flame_graph;
pub use greatest::{FrameWeight, GreatestFrames, greatest_frames};
pub use page::page;
