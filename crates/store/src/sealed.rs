//! Small text files of the data directory: for a person to read, closed by a CRC32C of all before it.
//!
//! **Promise.** Once [`replace`] has returned, the file holds the new text, whatever crashes; before that, the old
//! or the new one, whole.
//!
//! **Mechanism.** It is written under another name, synced, renamed, and the directory synced.

use crate::error::StoreError;
use env::{Fs, OpenMode};
use std::path::Path;

/// A longer file is none of these: many times what the largest cluster needs.
const FILE_BYTES_MAX: u64 = 1 << 20;
const CHECKSUM: &str = "crc32c ";

/// Lets the file `name` in `dir` hold `text`, which ends with a line.
pub(crate) fn replace(fs: &dyn Fs, dir: &Path, name: &str, text: &str) -> Result<(), StoreError> {
    let (new, path) = (dir.join(format!("{name}.new")), dir.join(name));
    let file = fs.open(&new, OpenMode::CreateOrTruncate).map_err(StoreError::io("create", &new))?;
    file.write_at(&seal(text), 0).map_err(StoreError::io("write", &new))?;
    file.sync_data().map_err(StoreError::io("sync", &new))?;
    fs.rename(&new, &path).map_err(StoreError::io("rename", &new))?;
    fs.sync_dir(dir).map_err(StoreError::io("sync", dir))
}

/// The bytes of the file at `path`, as far as they can be one of these.
pub(crate) fn read(fs: &dyn Fs, path: &Path) -> Result<Vec<u8>, StoreError> {
    let file = fs.open(path, OpenMode::Read).map_err(StoreError::io("open", path))?;
    let len = file.len().map_err(StoreError::io("read", path))?;
    let mut bytes = vec![0; len.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(StoreError::io("read", path))?;
    Ok(bytes)
}

/// `text` with its checksum.
pub(crate) fn seal(text: &str) -> Vec<u8> {
    format!("{text}{CHECKSUM}{:08x}\n", crc32c(text.as_bytes())).into_bytes()
}

/// The inverse of [`seal`], for a text whose first line is `header` or that of another version of the format; the
/// error says what is wrong.
pub(crate) fn unseal<'a>(bytes: &'a [u8], header: &str) -> Result<&'a str, String> {
    unseal_version(bytes, &[header]).map(|(_, body)| body)
}

/// The same, for a format with several versions, at least one. Returns the index of the header that was found, too.
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

/// What stands behind `name` in a line.
pub(crate) fn field<'a>(line: Option<&'a str>, name: &str) -> Result<&'a str, String> {
    line.and_then(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .ok_or_else(|| format!("its line {name:?} is missing"))
}

/// The number that stands behind `name` in a line.
pub(crate) fn number<T: std::str::FromStr>(line: Option<&str>, name: &str) -> Result<T, String> {
    let digits = field(line, name)?;
    digits.parse().map_err(|_| format!("{digits:?} is not a number of {name:?}"))
}

/// That `decode` refuses these bytes with any bit flipped and cut short anywhere.
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
    // The algorithm has 32 bits; the function's type has room for the longest it knows.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
