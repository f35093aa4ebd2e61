//! A file that is there when it is whole, or not at all.

use crate::error::CtlError;
use crate::files;
use env::{Env, File, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ends the name of the file while it is not whole.
const PARTIAL: &str = ".partial";

/// A file under a name of its own, until [`PartialFile::finish`] gives it the right one. Dropped before, it is removed.
pub struct PartialFile {
    fs: Arc<dyn Fs>,
    file: Arc<dyn File>,
    partial: PathBuf,
    path: PathBuf,
    len: u64,
    is_finished: bool,
}

impl PartialFile {
    /// What will be `path`, where nothing is yet.
    ///
    /// # Errors
    /// [`CtlError::Taken`]: there is something; [`CtlError::Io`].
    pub fn create(env: &Env, path: &Path) -> Result<Self, CtlError> {
        if env.fs.exists(path).map_err(CtlError::io("look for", path))? {
            return Err(CtlError::Taken { path: path.to_owned() });
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let file = files::create_anew(&*env.fs, &partial)?;
        let (fs, path) = (Arc::clone(&env.fs), path.to_owned());
        Ok(Self { fs, file, partial, path, len: 0, is_finished: false })
    }

    /// It is whole: durably makes it the file that it was to be.
    ///
    /// # Errors
    /// [`CtlError::Full`], [`CtlError::Io`]; then the file is not there.
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
            // What stays behind is not taken for a file that is whole, and the next attempt writes over it.
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
    fn it_is_there_whole_or_not_at_all() {
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
        assert!(matches!(PartialFile::create(&env, path), Err(CtlError::Taken { .. })));
    }
}
