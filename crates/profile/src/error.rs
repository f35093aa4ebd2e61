//! Why a profile cannot be taken.

use std::io;

/// Why a profile cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// One of the kind is being taken: the buffers are its.
    #[error("another profile is being taken in this process; try again when it has ended")]
    Busy,
    /// The program's allocator is another.
    #[error("this program was built without the allocator that takes samples")]
    NoAllocator,
    /// The system refuses.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}
