//! Files of a manifest: its name, its header, and `CURRENT`, which names the current manifest.

use crate::Error;
use env::{Fs, OpenMode};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CURRENT: &str = "CURRENT";
const CURRENT_NEXT: &str = "CURRENT.tmp";
const PREFIX: &str = "manifest-";

/// Length of a manifest header in bytes: magic, format version, number, checksum.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 8 + 4;
const MAGIC: [u8; 8] = *b"vechemft";
const FORMAT_VERSION: u32 = 1;
/// Greatest length of a manifest, in bytes.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// The path of manifest `number`.
pub(super) fn manifest_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(manifest_name(number))
}

fn manifest_name(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

/// The path of `CURRENT`.
pub(super) fn current_path(dir: &Path) -> PathBuf {
    dir.join(CURRENT)
}

fn manifest_number(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
    (manifest_name(number) == name).then_some(number)
}

/// The numbers of all manifests in the directory, current or not.
pub(super) fn manifest_numbers(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Vec<u64>, Error> {
    let names = fs.read_dir(dir).map_err(|error| Error::io("list", dir, error))?;
    Ok(names.iter().filter_map(|name| manifest_number(name)).collect())
}

/// The number of the current manifest; `None` when there was never one.
pub(super) fn read_current(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Option<u64>, Error> {
    let path = current_path(dir);
    let Some(bytes) = read_file(fs, &path)? else { return Ok(None) };
    let named = std::str::from_utf8(&bytes).ok().and_then(|text| text.split_once(' '));
    let number =
        named.and_then(|(name, _)| manifest_number(name)).filter(|number| bytes == current_text(*number));
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(Error::corrupt(&path, 0, "it does not name a manifest with the checksum of that name")),
    }
}

/// Failure of a switch to another manifest.
pub(super) struct SwitchError {
    pub(super) error: Error,
    /// Whether the previous manifest is durably the current one. If not, either may be: both files
    /// must stay.
    pub(super) is_undone: bool,
}

impl From<Error> for SwitchError {
    /// A failure before anything could change.
    fn from(error: Error) -> Self {
        Self { error, is_undone: true }
    }
}

/// The path of `CURRENT`, or of the manifest that it names, if the file does not exist. `dir` is
/// that of an open engine.
pub(crate) fn find_missing_file(fs: &Arc<dyn Fs>, dir: &Path) -> io::Result<Option<PathBuf>> {
    let current = current_path(dir);
    if !fs.exists(&current)? {
        return Ok(Some(current));
    }
    // Other faults of the file are damage, which this check does not report.
    let number = || read_current(fs, dir).ok().flatten();
    let Some(named) = number() else { return Ok(None) };
    let path = manifest_path(dir, named);
    // The engine may have replaced the manifest meanwhile.
    Ok((!fs.exists(&path)? && number() == Some(named)).then_some(path))
}

/// Makes manifest `number` the current one. Durable once the directory is synced.
///
/// A failed rename may have taken effect all the same. So `CURRENT` is read again before the result
/// is decided.
pub(super) fn write_current(fs: &Arc<dyn Fs>, dir: &Path, number: u64) -> Result<(), SwitchError> {
    let next = dir.join(CURRENT_NEXT);
    let written = fs.open(&next, OpenMode::CreateOrTruncate).and_then(|file| {
        file.write_at(&current_text(number), 0)?;
        file.sync_data()
    });
    written.map_err(|error| Error::io("write", &next, error))?;
    let path = current_path(dir);
    let Err(error) = fs.rename(&next, &path) else { return Ok(()) };
    let is_undone = match read_current(fs, dir) {
        Ok(Some(named)) if named == number => {
            tracing::warn!(%error, path = %path.display(), "a rename failed, but took effect");
            return Ok(());
        }
        Ok(_) => fs.sync_dir(dir).is_ok(),
        Err(_) => false,
    };
    Err(SwitchError { error: Error::io("replace", &path, error), is_undone })
}

fn current_text(number: u64) -> Vec<u8> {
    let name = manifest_name(number);
    let checksum = crc_fast::crc32_iscsi(name.as_bytes());
    format!("{name} {checksum:08x}\n").into_bytes()
}

/// The header of manifest `number`.
pub(super) fn header(number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[12..20].copy_from_slice(&number.to_le_bytes());
    let checksum = crc_fast::crc32_iscsi(&header[..20]);
    header[20..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Description of the fault in the header of manifest `number`, if there is one.
pub(super) fn header_fault(bytes: &[u8], number: u64) -> Option<&'static str> {
    let Some(found) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Some("it is shorter than its header");
    };
    let sealed = crc_fast::crc32_iscsi(&found[..20]).to_le_bytes() == found[20..];
    match () {
        () if found[..8] != MAGIC => Some("it is not a manifest"),
        () if !sealed => Some("the checksum of its header does not match"),
        () if found[8..12] != FORMAT_VERSION.to_le_bytes() => Some("its format version is not known"),
        () if *found != header(number) => Some("it is another manifest than its name says"),
        () => None,
    }
}

/// Contents of a file; `None` when it does not exist.
pub(super) fn read_file(fs: &Arc<dyn Fs>, path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let file = match fs.open(path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("open", path, error)),
    };
    let len = file.len().map_err(|error| Error::io("measure", path, error))?;
    if len > FILE_BYTES_MAX {
        return Err(Error::corrupt(path, 0, format!("it has {len} bytes, more than any manifest")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| Error::io("read", path, error))?;
    Ok(Some(bytes))
}

/// Removes all manifests but `number`. A failure is harmless.
pub(super) fn remove_others(fs: &Arc<dyn Fs>, dir: &Path, number: u64) {
    for other in manifest_numbers(fs, dir).unwrap_or_default() {
        if other != number {
            let _stale_and_harmless = fs.remove_file(&manifest_path(dir, other));
        }
    }
}
