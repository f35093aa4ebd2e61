//! The write-ahead log.

mod checksum;
pub mod record;

pub use record::{Record, RecordBuilder, RecordCells};

/// Names a segment of the log; ids grow and are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentId(pub u64);
