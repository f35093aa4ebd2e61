//! The components of the engine, for its tests, examples and fuzz targets.
//!
//! Hosts use the types at the root of the crate. Nothing here is a stable interface.

pub use crate::sequence::Sequence;

/// The block cache.
pub mod cache {
    pub use crate::cache::*;
}

/// The choice of compactions, and their execution.
pub mod compaction {
    pub use crate::compaction::*;
}

/// Cursors over levels and over several sources.
pub mod iter {
    pub use crate::iter::*;
}

/// The set of live tables and its file.
pub mod manifest {
    pub use crate::manifest::*;
}

/// The memtable.
pub mod memtable {
    pub use crate::memtable::*;
}

/// The filter of disowned keys.
pub mod ownership {
    pub use crate::ownership::*;
}

/// Sorted tables.
pub mod sstable {
    pub use crate::sstable::*;
}

/// The write-ahead log.
pub mod wal {
    pub use crate::wal::*;
}
