//! Names of objects.
//!
//! An object is named by where its file comes from and what it holds:
//!
//! ```text
//! <node's tag>-<path, with - for />-<bytes>-<print of the tail>-<checksum>
//! ```
//!
//! The *origin*, all but the checksum, can be told of a file without reading more than its tail. A table never changes,
//! and its tail tells its least and greatest versions, which no other table has: so a table whose origin is known
//! need not be read to know what it holds. Name and length alone would not do: a node that was restored gives names
//! again that it gave in another life.

use crate::checksum::Checksum;
use crate::error::CtlError;
use crate::files::{self, Contents};
use env::Fs;
use std::path::Path;
use stdx::NodeTag;

/// So much of the end of a file is part of its origin. What a table tells of itself is in less, but for very long keys.
const TAIL_BYTES: u64 = 4 << 10;

/// Where a file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    prefix: String,
    pub(super) bytes: u64,
    is_immutable: bool,
}

impl Origin {
    /// Of the file at `path` below `root`, a data directory of `node`.
    pub(super) fn of(fs: &dyn Fs, root: &Path, path: &str, node: NodeTag) -> Result<Self, CtlError> {
        let (tail, bytes) = files::read_tail(fs, &root.join(path), TAIL_BYTES)?;
        let print = Checksum::of(&tail);
        let prefix = format!("{:016x}-{}-{bytes}-{print}-", node.0, path.replace('/', "-"));
        Ok(Self { prefix, bytes, is_immutable: path.ends_with(".sst") })
    }

    /// The name of the object with this content.
    pub(super) fn object(&self, checksum: Checksum) -> String {
        format!("{}{checksum}", self.prefix)
    }

    /// That of `names`, which are sorted, that surely holds the same as the file, and the checksum of it.
    pub(super) fn find_in<'a>(&self, names: &'a [String]) -> Option<(&'a str, Contents)> {
        let first = names.partition_point(|name| **name < *self.prefix);
        let name = names.get(first).filter(|_| self.is_immutable)?;
        let checksum = name.strip_prefix(&self.prefix)?.parse().ok()?;
        Some((name, Contents { bytes: self.bytes, checksum }))
    }
}
