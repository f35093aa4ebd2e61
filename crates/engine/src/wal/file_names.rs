//! Names of the log's files.
//!
//! `<id>.wal` is a segment, `<number>.spare` a file that waits to become one, `*.tmp` a file that is being
//! made and is worth nothing after a crash. Ids and numbers are 16 hexadecimal digits.

use super::format::SegmentId;
use std::path::{Path, PathBuf};

/// Numbers the spare files of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpareNumber(pub(super) u64);

/// What a name in the log's directory means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Segment(SegmentId),
    Spare(SpareNumber),
    Unfinished,
}

pub(crate) fn segment_path(dir: &Path, id: SegmentId) -> PathBuf {
    dir.join(format!("{:016x}.wal", id.0))
}

pub(super) fn spare_path(dir: &Path, number: SpareNumber) -> PathBuf {
    dir.join(format!("{:016x}.spare", number.0))
}

/// Where a file is made that will be renamed to `path`.
pub(super) fn unfinished_path(path: &Path) -> PathBuf {
    path.with_added_extension("tmp")
}

/// `None` for names that are not the log's.
pub(super) fn parse(name: &str) -> Option<FileKind> {
    if name.ends_with(".wal.tmp") || name.ends_with(".spare.tmp") {
        return Some(FileKind::Unfinished);
    }
    let (digits, extension) = name.split_once('.')?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != 16 || !digits.bytes().all(is_hex) {
        return None;
    }
    let number = u64::from_str_radix(digits, 16).ok()?;
    match extension {
        "wal" => Some(FileKind::Segment(SegmentId(number))),
        "spare" => Some(FileKind::Spare(SpareNumber(number))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let (id, number) = (SegmentId(0xab), SpareNumber(u64::MAX));
        assert_eq!(parse(&name(segment_path(Path::new("d"), id))), Some(FileKind::Segment(id)));
        assert_eq!(parse(&name(spare_path(Path::new("d"), number))), Some(FileKind::Spare(number)));
        let unfinished = unfinished_path(&segment_path(Path::new("d"), id));
        assert_eq!(parse(&name(unfinished)), Some(FileKind::Unfinished));
    }

    #[test]
    fn other_names_are_left_alone() {
        for name in ["", "lost+found", "1.wal", "00000000000000AB.wal", "+000000000000001.wal", "x.tmp"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
