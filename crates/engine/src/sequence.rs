//! Sequences: the local order of commits.

/// Position of a cell in the order in which this engine accepted its writes. It is never written to
/// tables, and is unrelated to the version of the cell: a late write has a small version and a
/// large sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The sequence before the first write: a reader at this sequence sees nothing.
    pub const ZERO: Self = Self(0);
    /// The greatest sequence: a reader at this sequence sees everything.
    pub const MAX: Self = Self(u64::MAX);

    /// The sequence `count` after this one.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}
