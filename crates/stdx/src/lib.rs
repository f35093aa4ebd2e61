//! The small vocabulary that every room of veche shares.
//!
//! Nothing here does I/O, reads a clock, draws entropy or starts a thread; nothing here knows of keys on
//! disk, of nodes or of HTTP. What is here is what two rooms must agree on to talk at all:
//!
//! * [`Version`] and [`Hlc`]: the order of writes within a key;
//! * [`Cell`]: what a key holds at one version;
//! * [`Instant`], [`WallTime`], [`Now`]: time as an argument; [`nanos`]: its spans as numbers;
//! * [`ClockAnchor`]: steps of the wall clock against the monotonic one; [`SteadyWall`]: a clock that believes them late;
//! * [`Rng`]: randomness as an argument;
//! * [`codec`]: integers to and from bytes;
//! * [`histogram`]: counts of values by size;
//! * [`BoundedQueue`]: a queue that says no;
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
