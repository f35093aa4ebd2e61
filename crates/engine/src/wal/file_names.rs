//! File names of the log.
//!
//! `<id>.wal` is a segment, `<number>.spare` a prepared file that can become one. `*.tmp` is a file
//! under construction, worthless after a crash. Ids and numbers have 16 hexadecimal digits.

use super::format::SegmentId;
use std::path::{Path, PathBuf};

/// Number of a spare file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpareNumber(pub(super) u64);

/// Meaning of a file name in the log's directory.
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

/// The path at which a file is built before it is renamed to `path`.
pub(super) fn unfinished_path(path: &Path) -> PathBuf {
    path.with_added_extension("tmp")
}

/// The meaning of a file name; `None` for files that do not belong to the log.
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
    fn other_names_are_ignored() {
        for name in ["", "lost+found", "1.wal", "00000000000000AB.wal", "+000000000000001.wal", "x.tmp"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
