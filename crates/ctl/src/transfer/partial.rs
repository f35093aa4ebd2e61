//! Files that appear atomically when they are complete.

use crate::error::CtlError;
use crate::files;
use env::{Env, File, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Suffix of the name of an incomplete file.
const PARTIAL: &str = ".partial";

/// A file under a temporary name, until [`PartialFile::finish`] renames it. It is removed if
/// dropped earlier.
pub struct PartialFile {
    fs: Arc<dyn Fs>,
    file: Arc<dyn File>,
    partial: PathBuf,
    path: PathBuf,
    len: u64,
    is_finished: bool,
}

impl PartialFile {
    /// Creates a file that will become `path`, which must not exist.
    ///
    /// # Errors
    /// [`CtlError::FileExists`] if `path` exists; [`CtlError::Io`].
    pub fn create(env: &Env, path: &Path) -> Result<Self, CtlError> {
        // A dangling symbolic link exists as a name only.
        match env.fs.is_symlink(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(CtlError::io("look for", path)(error)),
            Ok(_) => return Err(CtlError::FileExists { path: path.to_owned() }),
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let file = files::create_anew(&*env.fs, &partial)?;
        let (fs, path) = (Arc::clone(&env.fs), path.to_owned());
        Ok(Self { fs, file, partial, path, len: 0, is_finished: false })
    }

    /// Completes the file: syncs and renames it, durably.
    ///
    /// # Errors
    /// [`CtlError::Full`], [`CtlError::Io`]; the file then does not exist.
    pub fn finish(mut self) -> Result<(), CtlError> {
        self.file.sync_data().map_err(CtlError::io("sync", &self.partial))?;
        self.fs.rename(&self.partial, &self.path).map_err(CtlError::io("rename", &self.partial))?;
        self.is_finished = true;
        let parent =
            self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.fs.sync_dir(parent).map_err(CtlError::io("sync", parent))
    }
}

impl io::Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_finished {
            // A remaining file cannot be mistaken for a complete one, and the next attempt replaces
            // it.
            let _ = self.fs.remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{ManualClock, MemFs};
    use io::Write;
    use stdx::{Rng, WallTime};

    #[test]
    fn a_partial_file_appears_complete_or_not_at_all() {
        let disk = MemFs::new();
        let env = Env { fs: Arc::new(disk.clone()), clock: Arc::new(ManualClock::new(WallTime::EPOCH_2020)) };
        let path = Path::new("/file");
        let mut dropped = PartialFile::create(&env, path).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        assert!(disk.file_names().is_empty());

        let mut finished = PartialFile::create(&env, path).unwrap();
        finished.write_all(b"whole").unwrap();
        let before = disk.kill();
        finished.finish().unwrap();
        for seed in 0..20 {
            assert_eq!(disk.crash(&mut Rng::new(seed)).read_file(path).unwrap(), b"whole");
            assert!(!before.crash(&mut Rng::new(seed)).exists(path).unwrap());
        }
        assert!(matches!(PartialFile::create(&env, path), Err(CtlError::FileExists { .. })));
    }
}
