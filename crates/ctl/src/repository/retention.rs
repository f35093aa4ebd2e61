//! Removing old backups.

use super::Repository;
use crate::error::CtlError;
use std::collections::BTreeSet;

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// How many backups.
    pub backups: usize,
    /// How many objects that no backup names any more.
    pub objects: usize,
}

impl Repository {
    /// Removes all but the newest `count` backups, and all objects that none of these names.
    ///
    /// # Errors
    /// [`CtlError`], also when one of the backups that are to stay has a damaged manifest, which does not tell what it
    /// needs: then nothing is removed. After another error some may be removed, and those that are there are whole.
    pub fn keep_newest(&self, count: usize) -> Result<Removed, CtlError> {
        let fs = &**self.fs();
        let backups = self.backups()?;
        let (old, kept) = backups.split_at(backups.len().saturating_sub(count));
        let mut needed = BTreeSet::new();
        for number in kept {
            needed.extend(self.manifest(*number)?.files.into_iter().map(|file| file.object));
        }
        let manifests = self.manifests();
        for number in old {
            let path = manifests.join(number.to_string());
            fs.remove_file(&path).map_err(CtlError::io("remove", &path))?;
        }
        // No manifest may come back whose objects are gone.
        fs.sync_dir(&manifests).map_err(CtlError::io("sync", &manifests))?;
        let mut unneeded = self.object_names()?;
        unneeded.retain(|name| !needed.contains(name));
        for name in &unneeded {
            let path = self.object(name);
            fs.remove_file(&path).map_err(CtlError::io("remove", &path))?;
        }
        let objects = self.objects();
        fs.sync_dir(&objects).map_err(CtlError::io("sync", &objects))?;
        Ok(Removed { backups: old.len(), objects: unneeded.len() })
    }
}
