//! Errors of recording a profile.

use std::io;

/// Reason why a profile cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Another profile is being recorded and uses the queue.
    #[error("another profile is being taken in this process; try again when it has ended")]
    Busy,
    /// The program's global allocator does not take samples.
    #[error("this program was built without the allocator that takes samples")]
    NoAllocator,
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}
