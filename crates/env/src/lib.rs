//! The outside world as traits: [`Fs`] and [`File`] with the durability of each call, and
//! [`Clock`].
//!
//! **Promise.** Code written against these traits runs unchanged on a real disk ([`OsFs`]), in
//! memory with crashes ([`MemFs`]) and under injected faults ([`FaultFs`]). [`MemFs::crash`] keeps
//! exactly the data that a trait method promises to be durable, and nothing else with certainty.
//!
//! **Caveats.** A file system that lies about `fdatasync` is not modelled. Reads are positional: no
//! cursor is shared.

#![warn(missing_docs)]

mod clock;
mod fault;
mod fs;
mod mem;
mod os;

pub use clock::{Clock, ManualClock};
pub use fault::{Fault, FaultFs, FaultPlan, FsCall, OperationKind, OperationMatch};
pub use fs::{DirLock, File, Fs, IoCounters, IoCounts, OpenMode, is_out_of_descriptors};
pub use mem::MemFs;
pub use os::process as os_process;
pub use os::{OsClock, OsFs};

use std::sync::Arc;

/// A file system and a clock: the engine's whole environment.
#[derive(Clone)]
pub struct Env {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The wall clock and the monotonic clock.
    pub clock: Arc<dyn Clock>,
}

impl Env {
    /// The real file system and the real clock.
    pub fn os() -> Self {
        Self { fs: Arc::new(OsFs::new()), clock: Arc::new(OsClock::new()) }
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
