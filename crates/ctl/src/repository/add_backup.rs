//! Taking a backup.

use super::object::FileOrigin;
use super::{BackupFile, BackupLayout, BackupManifest, BackupNumber, Repository};
use crate::error::CtlError;
use crate::files::{self, UNFINISHED};
use crate::progress::{Meter, ProgressObserver};
use cluster::{LayoutEpoch, LayoutRecord};
use std::path::Path;
use stdx::WallTime;
use store::{IDENTITY_FILE, Identity};

/// Lock file, which is not part of a data directory's content.
const LOCK: &str = "LOCK";

/// A backup that was taken.
#[derive(Debug)]
pub struct AddedBackup {
    /// Manifest of the backup.
    pub manifest: BackupManifest,
    /// Number of files that were copied.
    pub files_copied: usize,
    /// Total length of the copied files, in bytes.
    pub bytes_copied: u64,
    /// Number of copied files that replaced a damaged object.
    pub objects_replaced: usize,
    /// Errors of older backups' manifests that cannot be read.
    pub unreadable: Vec<CtlError>,
}

impl Repository {
    /// Takes a backup of the data directory `source`, which must not change meanwhile: a checkpoint
    /// of a running node, or the directory of a stopped one. Tables that an earlier backup copied
    /// are not copied again, unless the length or the end of the copy has changed.
    ///
    /// # Errors
    /// [`CtlError`]. The backup then does not exist, and the others are unchanged.
    pub fn add_backup(
        &self,
        source: &Path,
        taken: WallTime,
        observer: &mut dyn ProgressObserver,
    ) -> Result<AddedBackup, CtlError> {
        let fs = &**self.fs();
        let mut paths = files::tree(fs, source)?;
        files::refuse_other_than_plain(fs, &source.join(IDENTITY_FILE))?;
        let identity = Identity::load(fs, source)?;
        let (number, unreadable) = self.next_number(&identity)?;
        self.remove_unfinished()?;

        paths.retain(|path| path.rsplit('/').next() != Some(LOCK));
        let origins = paths
            .iter()
            .map(|path| FileOrigin::of(fs, source, path, identity.tag))
            .collect::<Result<Vec<_>, _>>()?;
        let known = self.object_names()?;
        let fits = |origin: &FileOrigin, name: &str| origin.fits(fs, &self.object(name));
        let find =
            |origin: &FileOrigin| origin.find_in(&known).into_iter().find(|(name, _)| fits(origin, name));
        let found: Vec<_> = origins.iter().map(find).collect();
        let to_copy = || origins.iter().zip(&found).filter(|(_, found)| found.is_none());
        let bytes_copied = to_copy().map(|(origin, _)| origin.bytes).sum();
        let files_copied = to_copy().count();
        self.check_room(bytes_copied)?;

        // Each file is written and read back, so its bytes count twice.
        let mut meter = Meter::new(observer, Some(2 * bytes_copied));
        let mut backup_files = Vec::with_capacity(paths.len());
        let mut objects_replaced = 0;
        for ((path, origin), found) in paths.into_iter().zip(&origins).zip(&found) {
            let (object, contents) = match found {
                Some((object, contents)) => ((*object).to_owned(), *contents),
                None => {
                    let (object, contents) = self.copy_in(&source.join(&path), origin, &mut meter)?;
                    let was_damaged = origin.find_in(&known).iter().any(|(name, _)| *name == object);
                    objects_replaced += usize::from(was_damaged);
                    (object, contents)
                }
            };
            let files::Contents { bytes, checksum } = contents;
            backup_files.push(BackupFile { path, bytes, checksum, object });
        }
        let objects = self.objects();
        fs.sync_dir(&objects).map_err(CtlError::io("sync", &objects))?;

        let (layout, membership) = match store::recorded_layout(fs, source)? {
            Some((record, membership)) => (Some(layout_of(&record)), membership),
            None => (None, identity.membership),
        };
        let manifest = BackupManifest {
            number,
            node: identity.tag,
            own: membership.own.unwrap_or_default(),
            nodes: membership.nodes,
            taken,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            layout,
            files: backup_files,
        };
        files::replace(fs, &self.manifests(), &number.to_string(), &manifest.encode())?;
        Ok(AddedBackup { manifest, files_copied, bytes_copied, objects_replaced, unreadable })
    }

    /// Number of the next backup, and the errors of unreadable manifests. Fails if the repository
    /// belongs to another node. The newest readable manifest names the node, else the names of the
    /// objects.
    fn next_number(&self, identity: &Identity) -> Result<(BackupNumber, Vec<CtlError>), CtlError> {
        let mut unreadable = Vec::new();
        let (mut next, mut holds) = (BackupNumber(1), None);
        for number in self.backups()? {
            next = BackupNumber(number.0.saturating_add(1));
            match self.manifest(number) {
                Ok(manifest) => holds = Some(format!("{:016x}", manifest.node.0)),
                Err(damaged @ CtlError::Damaged { .. }) => unreadable.push(damaged),
                Err(error) => return Err(error),
            }
        }
        let of_objects = || -> Result<_, CtlError> {
            let name = self.object_names()?.pop();
            Ok(name.and_then(|name| Some(name.split_once('-')?.0.to_owned())))
        };
        let found = format!("{:016x}", identity.tag.0);
        if holds.is_none() && !unreadable.is_empty() {
            holds = of_objects()?;
        }
        match holds {
            Some(holds) if holds != found => {
                Err(CtlError::OtherNode { path: self.dir().to_owned(), holds, found })
            }
            _ => Ok((next, unreadable)),
        }
    }

    /// Removes incomplete files of an interrupted backup.
    fn remove_unfinished(&self) -> Result<(), CtlError> {
        for dir in [self.manifests(), self.objects()] {
            for name in files::names(&**self.fs(), &dir)?.iter().filter(|name| name.ends_with(UNFINISHED)) {
                let path = dir.join(name);
                self.fs().remove_file(&path).map_err(CtlError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    fn check_room(&self, needed: u64) -> Result<(), CtlError> {
        let available = self
            .fs()
            .available_bytes(self.dir())
            .map_err(CtlError::io("read the free space of", self.dir()))?;
        if available < needed {
            return Err(CtlError::NoRoom { path: self.dir().to_owned(), needed, available });
        }
        Ok(())
    }

    /// Copies a file to an object, and syncs its data but not its name. Returns the name and the
    /// contents.
    fn copy_in(
        &self,
        source: &Path,
        origin: &FileOrigin,
        meter: &mut Meter<'_>,
    ) -> Result<(String, files::Contents), CtlError> {
        let fs = &**self.fs();
        // Files are copied one at a time, so that one name suffices.
        let unfinished = self.object(&format!("object{UNFINISHED}"));
        let contents = files::copy(fs, source, &unfinished, meter)?;
        if contents.bytes != origin.bytes {
            let (now, before) = (contents.bytes, origin.bytes);
            return Err(CtlError::damaged(
                source,
                format!("its length changed from {before} to {now} bytes during the backup"),
            ));
        }
        let read_back = files::checksum(fs, &unfinished, meter)?;
        if read_back != contents {
            return Err(CtlError::damaged(&unfinished, "the data read back differs from the written data"));
        }
        let name = origin.object(contents.checksum);
        let path = self.object(&name);
        fs.rename(&unfinished, &path).map_err(CtlError::io("rename", &unfinished))?;
        Ok((name, contents))
    }
}

fn layout_of(record: &LayoutRecord) -> BackupLayout {
    BackupLayout {
        epoch: record.epoch.0,
        placement_epoch: record.changed.iter().copied().max().unwrap_or(LayoutEpoch::FIRST).0,
        is_changing: record.plan.is_some(),
        hash: record.hash().to_string(),
    }
}
