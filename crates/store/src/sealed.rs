//! Sealed files: small, readable text files of the data directory that end with a CRC32C of their
//! content.
//!
//! **Promise.** Once [`replace`] has returned, the file contains the new text, also after a crash.
//! Before that, it contains the old or the new text, whole.
//!
//! **Mechanism.** The text is written under a temporary name, synced and renamed, and the directory
//! is synced.

use crate::error::StoreError;
use env::{Fs, OpenMode};
use std::path::Path;

/// Maximum length of a file that is read, in bytes: that of a vote with a layout record, the
/// largest one.
const FILE_BYTES_MAX: u64 = cluster::LAYOUT_RECORD_BYTES_MAX as u64 + 4_096;
const CHECKSUM: &str = "crc32c ";

/// Replaces the content of the file `name` in `dir` by `text`, which ends with a newline.
pub(crate) fn replace(fs: &dyn Fs, dir: &Path, name: &str, text: &str) -> Result<(), StoreError> {
    replace_bytes(fs, dir, name, &seal(text))
}

/// Replaces the content of the file `name` in `dir` by `bytes`, which have their own checksum.
pub(crate) fn replace_bytes(fs: &dyn Fs, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (new, path) = (dir.join(format!("{name}.new")), dir.join(name));
    let file = fs.open(&new, OpenMode::CreateOrTruncate).map_err(StoreError::io("create", &new))?;
    file.write_at(bytes, 0).map_err(StoreError::io("write", &new))?;
    file.sync_data().map_err(StoreError::io("sync", &new))?;
    fs.rename(&new, &path).map_err(StoreError::io("rename", &new))?;
    fs.sync_dir(dir).map_err(StoreError::io("sync", dir))
}

/// Reads the file at `path`, up to the maximum length.
pub(crate) fn read(fs: &dyn Fs, path: &Path) -> Result<Vec<u8>, StoreError> {
    let file = fs.open(path, OpenMode::Read).map_err(StoreError::io("open", path))?;
    let len = file.len().map_err(StoreError::io("read", path))?;
    let mut bytes = vec![0; len.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(StoreError::io("read", path))?;
    Ok(bytes)
}

/// Appends the checksum to `text`.
pub(crate) fn seal(text: &str) -> Vec<u8> {
    format!("{text}{CHECKSUM}{:08x}\n", crc32c(text.as_bytes())).into_bytes()
}

/// Inverse of [`seal`], for a text whose first line is `header`. The error describes the defect.
pub(crate) fn unseal<'a>(bytes: &'a [u8], header: &str) -> Result<&'a str, String> {
    unseal_version(bytes, &[header]).map(|(_, body)| body)
}

/// Same as [`unseal`] for a format with at least one version. Also returns the index of the header
/// that was found.
pub(crate) fn unseal_version<'a>(bytes: &'a [u8], headers: &[&str]) -> Result<(usize, &'a str), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let kind = headers.first().and_then(|header| header.split_inclusive(' ').next()).unwrap_or_default();
    if !text.starts_with(kind) {
        return Err(format!("it does not begin with {kind:?}"));
    }
    let len = text.rfind(CHECKSUM).ok_or("its checksum is missing")?;
    let (sealed, checksum) = text.split_at(len);
    if checksum != format!("{CHECKSUM}{:08x}\n", crc32c(sealed.as_bytes())) {
        return Err("its checksum does not match".to_owned());
    }
    let found = sealed.split_once('\n').and_then(|(first, body)| {
        let version = headers.iter().position(|header| *header == first)?;
        Some((version, body))
    });
    found.ok_or_else(|| "its format is of another version than this build reads".to_owned())
}

/// The value behind `name` in a line.
pub(crate) fn field<'a>(line: Option<&'a str>, name: &str) -> Result<&'a str, String> {
    line.and_then(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .ok_or_else(|| format!("its line {name:?} is missing"))
}

/// The number behind `name` in a line.
pub(crate) fn number<T: std::str::FromStr>(line: Option<&str>, name: &str) -> Result<T, String> {
    let digits = field(line, name)?;
    digits.parse().map_err(|_| format!("{digits:?} is not a number of {name:?}"))
}

/// Checks that `decode` refuses these bytes with any bit flipped and with any truncation.
#[cfg(test)]
pub(crate) fn assert_finds_damage<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, String>) {
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The algorithm has 32 bits; the function returns the widest type.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
