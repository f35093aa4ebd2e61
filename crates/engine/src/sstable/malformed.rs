//! The error of decoders of blocks.

/// A defect in a block whose checksum matches: a bug of the writer, or fabricated content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);
