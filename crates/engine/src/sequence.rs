//! The local order of commits.

/// The position of a cell in the order in which this engine took its writes. Never written to tables, and
/// unrelated to the version of the cell: a late write has a small version and a great sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

impl Sequence {
    /// Before the first write: a reader at this sequence sees nothing.
    pub const ZERO: Self = Self(0);
    /// A reader at this sequence sees everything.
    pub const MAX: Self = Self(u64::MAX);

    /// The sequence `count` after this one.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}
