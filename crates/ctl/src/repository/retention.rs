//! Removal of old backups.

use super::Repository;
use crate::error::CtlError;
use std::collections::BTreeSet;

/// Numbers of removed items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Number of backups.
    pub backups: usize,
    /// Number of objects that no remaining backup uses.
    pub objects: usize,
}

impl Repository {
    /// Removes all but the newest `count` backups, and the objects that none of the remaining ones
    /// names.
    ///
    /// # Errors
    /// [`CtlError::Damaged`]: a manifest is damaged, an old or a new one. Its objects are unknown,
    /// so nothing is removed, neither backups nor objects. After any other error some backups may
    /// be removed; the remaining ones are whole.
    pub fn keep_newest(&self, count: usize) -> Result<RetentionReport, CtlError> {
        let fs = &**self.fs();
        let backups = self.backups()?;
        let old = &backups[..backups.len().saturating_sub(count)];
        let mut needed = BTreeSet::new();
        for (at, number) in backups.iter().enumerate() {
            let manifest = self.manifest(*number)?;
            if at >= old.len() {
                needed.extend(manifest.files.into_iter().map(|file| file.object));
            }
        }
        let manifests = self.manifests();
        for number in old {
            let path = manifests.join(number.to_string());
            fs.remove_file(&path).map_err(CtlError::io("remove", &path))?;
        }
        // Sync first: a removed manifest must not reappear after a crash, when its objects are
        // gone.
        fs.sync_dir(&manifests).map_err(CtlError::io("sync", &manifests))?;
        let mut unneeded = self.object_names()?;
        unneeded.retain(|name| !needed.contains(name));
        for name in &unneeded {
            let path = self.object(name);
            fs.remove_file(&path).map_err(CtlError::io("remove", &path))?;
        }
        let objects = self.objects();
        fs.sync_dir(&objects).map_err(CtlError::io("sync", &objects))?;
        Ok(RetentionReport { backups: old.len(), objects: unneeded.len() })
    }
}
