//! Whether the files that the next start needs still have their names.
//!
//! **Promise.** [`Engine::find_missing_file`] tells when somebody has removed a file or a directory of a running engine that
//! it goes on to write to. Its open descriptors would otherwise take writes into files that no start finds again.
//!
//! **Mechanism.** A few questions to the file system, and one small read: are the directories, `CURRENT`, the manifest
//! that it names, and the segment that takes groups there by their names? The engine itself replaces `CURRENT` and
//! the manifest, and begins segments, at any moment. So a manifest or a segment counts as missing only if it is
//! still the present one after it was not found.
//!
//! **Caveats.** Live tables and older segments are not looked for: there may be thousands. Who removes one of these
//! removes no place of future writes, and the next start notices it.

use crate::Engine;
use crate::manifest;
use env::Fs;
use std::io;
use std::path::{Path, PathBuf};

impl Engine {
    /// The directories that keep their names and their places for as long as the engine is open.
    pub fn directories(&self) -> [PathBuf; 3] {
        let paths = &self.shared.paths;
        [paths.root().to_owned(), paths.wal(), paths.tables()]
    }

    /// A file or directory that the next start needs and that has no name any more, if there is one. Waits for the
    /// disk; costs a few system calls.
    ///
    /// # Errors
    /// The disk does not answer, so it is not known.
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
