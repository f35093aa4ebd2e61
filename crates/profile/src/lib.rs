//! Profiles of the current process, and their visualisation.
//!
//! **Promise.** Each weight of a [`Capture`] comes from samples. Samples that could not be kept are
//! counted in [`Capture::lost`], never dropped silently. The sum over the stacks equals the sum of
//! the recorded samples. A profile uses bounded memory, and none while no profile is recorded.
//!
//! **Mechanism.** A [`Capture`] holds stacks of named frames, each with its weights per slice of
//! time; a [`CaptureBuilder`] builds it. [`cpu`] and [`alloc`] record captures of this process on
//! the calling thread. [`flame_graph`] draws a capture as a picture, [`page`] as an interactive
//! page, and [`greatest_frames`] ranks its frames.
//!
//! **Caveats.** The recorder defines the meaning of frames and slices. Stacks are walked by frame
//! pointers, so the program must be built with them.

mod aggregate;
pub mod alloc;
mod capture;
pub mod cpu;
mod error;
mod flame;
mod greatest;
pub mod html;
mod page;
mod periodic;
mod queue;
mod shared_queue;
mod stack;
mod symbols;
mod threads;
mod weight_table;

pub use capture::{Capture, CaptureBuilder, CaptureError, CaptureKind, OTHER, Stack, Weight};
pub use error::ProfileError;
pub use flame::flame_graph;
pub use greatest::{FrameWeight, GreatestFrames, greatest_frames};
pub use page::page;
