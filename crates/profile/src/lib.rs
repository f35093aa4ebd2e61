//! Profiles of the own process, and their pictures.
//!
//! **Promise.** What a profile says was there: each weight of a [`Capture`] comes from a sample, what could not be kept
//! is counted, never dropped in silence, and the sum over stacks is what was recorded. A profile takes bounded memory,
//! whatever the process does meanwhile, and nothing when none is taken.
//!
//! **Mechanism.** A [`Capture`] is stacks of named frames, each with its weights by slice of time; a
//! [`CaptureBuilder`] gathers it. [`cpu`] and [`alloc`] record captures of this process, on the thread that asks for them.
//! [`flame_graph`] draws one as a picture, [`page`] as a page on which any moment can be looked at, [`greatest`] as lists.
//!
//! **Caveats.** This crate knows nothing of who uses it: what a slice of time or a frame means is the recorder's. Stacks are
//! walked by frame pointers, so the program must be built with them.

pub mod alloc;
mod capture;
pub mod cpu;
mod error;
mod flame;
mod gather;
mod greatest;
mod page;
mod samples;
mod session;
mod shared;
mod stack;
mod symbols;
mod tally;
mod threads;

pub use capture::{Capture, CaptureBuilder, CaptureError, Kind, OTHER, Stack, Weight};
pub use error::ProfileError;
pub use flame::flame_graph;
pub use greatest::{Greatest, Share, greatest};
pub use page::page;
