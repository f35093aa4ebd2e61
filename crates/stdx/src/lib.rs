//! Basic types that all crates of veche share.
//!
//! This crate does no I/O, reads no clock, draws no entropy and starts no thread. It knows neither
//! files nor nodes nor HTTP. It defines the types that crates exchange:
//!
//! * [`Version`] and [`Hlc`]: the order of writes within a key;
//! * [`Cell`]: the value or tombstone of a key at one version;
//! * [`Instant`], [`WallTime`], [`Now`]: time as an argument; [`nanos`]: durations as numbers;
//! * [`ClockAnchor`]: steps of the wall clock against the monotonic clock; [`SteadyWall`]: a clock
//!   that accepts them after a delay;
//! * [`Rng`]: randomness as an argument;
//! * [`codec`]: integers to and from bytes;
//! * [`histogram`]: distributions of values;
//! * [`BoundedQueue`]: a queue that refuses items when it is full;
//! * [`shell_word`], [`shell_path`]: words for a shell line.

mod cell;
mod clock_anchor;
pub mod codec;
pub mod histogram;
mod queue;
mod rng;
mod shell;
mod steady_wall;
mod time;
mod version;

pub use cell::{Cell, CellKind, CellMeta, CellRef};
pub use clock_anchor::ClockAnchor;
pub use queue::{BoundedQueue, QueueFull};
pub use rng::Rng;
pub use shell::{shell_path, shell_word};
pub use steady_wall::SteadyWall;
pub use time::{Instant, Now, WallTime, nanos};
pub use version::{Hlc, NodeTag, Version, VersionParseError};
