//! Names of objects.
//!
//! An object is named after the origin and the contents of its file:
//!
//! ```text
//! <node's tag>-<path, with - for />-<bytes>-<checksum of the tail>-<checksum>
//! ```
//!
//! The *origin*, which is everything but the checksum, can be computed from the tail of a file
//! alone. A table never changes, and its tail contains its least and greatest versions, which no
//! other table has. A table with a known origin therefore need not be read. Name and length alone
//! would not suffice: a restored node may reuse names of an earlier generation.
//!
//! An object whose length or tail does not match its name is damaged and counts as absent: the file
//! is copied again, and replaces it. Damage elsewhere in an object is found by reading it
//! ([`verify`](crate::verify_repository)).

use crate::checksum::Checksum;
use crate::error::CtlError;
use crate::files::{self, Contents};
use env::Fs;
use std::path::Path;
use stdx::NodeTag;

/// Length of the tail that is part of the origin, in bytes. A table's metadata is shorter, except
/// with very long keys.
const TAIL_BYTES: u64 = 4 << 10;

/// Origin of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileOrigin {
    prefix: String,
    pub(super) bytes: u64,
    /// Checksum of the tail.
    print: Checksum,
    is_immutable: bool,
}

impl FileOrigin {
    /// Computes the origin of the file at `path` below `root`, a data directory of `node`.
    pub(super) fn of(fs: &dyn Fs, root: &Path, path: &str, node: NodeTag) -> Result<Self, CtlError> {
        let (tail, bytes) = files::read_tail(fs, &root.join(path), TAIL_BYTES)?;
        let print = Checksum::of(&tail);
        let prefix = format!("{:016x}-{}-{bytes}-{print}-", node.0, path.replace('/', "-"));
        Ok(Self { prefix, bytes, print, is_immutable: path.ends_with(".sst") })
    }

    /// Name of the object with this content.
    pub(super) fn object(&self, checksum: Checksum) -> String {
        format!("{}{checksum}", self.prefix)
    }

    /// Objects among the sorted `names` with this origin, and their checksums. They have the
    /// contents of the file unless they are damaged. Several objects mean that the file, or a copy
    /// of it, was damaged at some time.
    pub(super) fn find_in<'a>(&self, names: &'a [String]) -> Vec<(&'a str, Contents)> {
        let first = names.partition_point(|name| **name < *self.prefix);
        let candidates =
            names[first..].iter().take_while(|name| self.is_immutable && name.starts_with(&self.prefix));
        let named = candidates.filter_map(|name| {
            let checksum = name.strip_prefix(&self.prefix)?.parse().ok()?;
            Some((name.as_str(), Contents { bytes: self.bytes, checksum }))
        });
        named.collect()
    }

    /// Whether the object at `path` has the length and the tail that its name states.
    pub(super) fn fits(&self, fs: &dyn Fs, path: &Path) -> bool {
        let found = files::read_tail(fs, path, TAIL_BYTES);
        found.is_ok_and(|(tail, bytes)| bytes == self.bytes && Checksum::of(&tail) == self.print)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::MemFs;

    /// Objects of the first release have these names, which later releases must find.
    #[test]
    fn names_of_objects_are_stable() {
        let disk = MemFs::new();
        disk.write_file("/data/shard-000/tables/1.sst", b"a table").unwrap();
        let node = NodeTag(0x0123_4567_89ab_cdef);
        let of = |path| FileOrigin::of(&disk, Path::new("/data"), path, node).unwrap();
        let table = of("shard-000/tables/1.sst");
        let checksum = Checksum::of(b"a table");
        let name = format!("0123456789abcdef-shard-000-tables-1.sst-7-{checksum}-{checksum}");
        assert_eq!(table.object(checksum), name);

        let other = format!("{}{}", &name[..name.len() - 1], if name.ends_with('0') { '1' } else { '0' });
        let contents = Contents { bytes: 7, checksum };
        let mut names = vec!["0".to_owned(), name.clone(), "z".to_owned()];
        assert_eq!(table.find_in(&names), [(&*name, contents)]);
        names[1] = name.replace("-7-", "-8-");
        assert_eq!(table.find_in(&names), [], "another length");
        names[1] = format!("{name}{other}");
        assert_eq!(table.find_in(&names), [], "no checksum");

        disk.write_file("/data/CURRENT", b"a table").unwrap();
        let current = of("CURRENT");
        assert_eq!(current.find_in(&[current.object(checksum)]), [], "a file that can change is always read");
    }
}
