//! Adding a backup.

use super::object::Origin;
use super::{BackupFile, BackupNumber, Manifest, Repository};
use crate::error::CtlError;
use crate::files::{self, UNFINISHED};
use crate::progress::{Meter, Observer};
use std::path::Path;
use stdx::WallTime;
use store::Identity;

/// Not part of a data directory's content.
const LOCK: &str = "LOCK";

/// A backup that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What it is made of.
    pub manifest: Manifest,
    /// How many of its files had to be copied.
    pub files_copied: usize,
    /// Their lengths together.
    pub bytes_copied: u64,
}

impl Repository {
    /// Adds a backup of the data directory `source`, which nobody changes meanwhile: a checkpoint of a running node, or
    /// the directory of one that was stopped. Tables that an earlier backup copied are not copied again.
    ///
    /// # Errors
    /// [`CtlError`]; then there is no such backup, and the others are as they were.
    pub fn take(
        &self,
        source: &Path,
        taken: WallTime,
        observer: &mut dyn Observer,
    ) -> Result<Taken, CtlError> {
        let fs = &**self.fs();
        let identity = Identity::load(fs, source)?;
        let number = self.next_number(&identity)?;
        self.remove_unfinished()?;

        let mut paths = files::tree(fs, source)?;
        paths.retain(|path| path.rsplit('/').next() != Some(LOCK));
        let origins = paths
            .iter()
            .map(|path| Origin::of(fs, source, path, identity.tag))
            .collect::<Result<Vec<_>, _>>()?;
        let known = self.object_names()?;
        let found: Vec<_> = origins.iter().map(|origin| origin.find_in(&known)).collect();
        let to_copy = || origins.iter().zip(&found).filter(|(_, found)| found.is_none());
        let bytes_copied = to_copy().map(|(origin, _)| origin.bytes).sum();
        let files_copied = to_copy().count();
        self.check_room(bytes_copied)?;

        // Each is written, and read back.
        let mut meter = Meter::new(observer, Some(2 * bytes_copied));
        let mut backup_files = Vec::with_capacity(paths.len());
        for ((path, origin), found) in paths.into_iter().zip(&origins).zip(&found) {
            let (object, contents) = match found {
                Some((object, contents)) => ((*object).to_owned(), *contents),
                None => self.copy_in(&source.join(&path), origin, &mut meter)?,
            };
            let files::Contents { bytes, checksum } = contents;
            backup_files.push(BackupFile { path, bytes, checksum, object });
        }
        let objects = self.objects();
        fs.sync_dir(&objects).map_err(CtlError::io("sync", &objects))?;

        let manifest = Manifest {
            number,
            node: identity.tag,
            own: identity.membership.own.unwrap_or_default(),
            nodes: identity.membership.nodes,
            taken,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            files: backup_files,
        };
        files::replace(fs, &self.manifests(), &number.to_string(), &manifest.encode())?;
        Ok(Taken { manifest, files_copied, bytes_copied })
    }

    /// The number of the next backup, which is to be of the node of this identity.
    fn next_number(&self, identity: &Identity) -> Result<BackupNumber, CtlError> {
        let Some(newest) = self.backups()?.pop() else { return Ok(BackupNumber(1)) };
        let holds = self.manifest(newest)?.node;
        if holds != identity.tag {
            return Err(CtlError::OtherNode {
                path: self.dir().to_owned(),
                holds: format!("{:016x}", holds.0),
                found: format!("{:016x}", identity.tag.0),
            });
        }
        Ok(BackupNumber(newest.0.saturating_add(1)))
    }

    /// Removes what an interrupted backup was writing.
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
        let available =
            self.fs().available_bytes(self.dir()).map_err(CtlError::io("measure the room in", self.dir()))?;
        if available < needed {
            return Err(CtlError::NoRoom { path: self.dir().to_owned(), needed, available });
        }
        Ok(())
    }

    /// Copies a file to an object, durably but for its name. Returns the name, and what it holds.
    fn copy_in(
        &self,
        source: &Path,
        origin: &Origin,
        meter: &mut Meter<'_>,
    ) -> Result<(String, files::Contents), CtlError> {
        let fs = &**self.fs();
        // One at a time, so one name is enough for all.
        let unfinished = self.object(&format!("object{UNFINISHED}"));
        let contents = files::copy(fs, source, &unfinished, meter)?;
        if contents.bytes != origin.bytes {
            let (now, before) = (contents.bytes, origin.bytes);
            return Err(CtlError::damaged(
                source,
                format!("it has {now} bytes, and had {before} a moment ago"),
            ));
        }
        let read_back = files::sum(fs, &unfinished, meter)?;
        if read_back != contents {
            return Err(CtlError::damaged(&unfinished, "what was written there is not what is read back"));
        }
        let name = origin.object(contents.checksum);
        let path = self.object(&name);
        fs.rename(&unfinished, &path).map_err(CtlError::io("rename", &unfinished))?;
        Ok((name, contents))
    }
}
