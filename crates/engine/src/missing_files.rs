//! Detection of files that were removed from the directory of a running engine.
//!
//! **Promise.** [`Engine::find_missing_file`] reports when a file or directory that the engine
//! still writes to was removed. Through its open descriptors the engine would otherwise write to
//! files that the next start does not find.
//!
//! **Mechanism.** A few lookups and one small read: do the directories, `CURRENT`, the manifest
//! that it names, and the active log segment exist under their names? The engine itself replaces
//! `CURRENT` and the manifest, and begins segments, at any time. So a manifest or segment counts as
//! missing only if it is still the current one after the lookup failed.
//!
//! **Caveats.** Live tables and older segments are not checked: there may be thousands. No future
//! writes go to them, and the next start detects that one is missing.

use crate::Engine;
use crate::manifest;
use env::Fs;
use std::io;
use std::path::{Path, PathBuf};

impl Engine {
    /// The directories whose paths must not change while the engine is open.
    pub fn directories(&self) -> [PathBuf; 3] {
        let paths = &self.shared.paths;
        [paths.root().to_owned(), paths.wal(), paths.tables()]
    }

    /// The path of a file or directory that the next start needs and that does not exist any more.
    /// Blocks on the disk for a few system calls.
    ///
    /// # Errors
    /// The file system failed to answer; the state is unknown.
    pub fn find_missing_file(&self) -> io::Result<Option<PathBuf>> {
        let fs = &*self.shared.env.fs;
        for directory in self.directories() {
            if !is_there(fs, &directory)? {
                return Ok(Some(directory));
            }
        }
        if let Some(missing) = manifest::find_missing_file(&self.shared.env.fs, self.shared.paths.root())? {
            return Ok(Some(missing));
        }
        self.missing_segment(fs)
    }

    fn missing_segment(&self, fs: &dyn Fs) -> io::Result<Option<PathBuf>> {
        let active = || self.shared.wal_status.active();
        let Some(segment) = active() else { return Ok(None) };
        let path = crate::wal::segment_path(&self.shared.paths.wal(), segment);
        // A segment that was released meanwhile has no name, and another one is active.
        Ok((!is_there(fs, &path)? && active() == Some(segment)).then_some(path))
    }
}

fn is_there(fs: &dyn Fs, path: &Path) -> io::Result<bool> {
    match fs.exists(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        found => found,
    }
}
