//! Verification of a backup repository.
//!
//! **Promise.** If [`verify_repository`] finds no damage, every existing backup can be restored.
//! Each object that a backup names exists and has the contents that were written. In the newest
//! backup, every block of every table is readable by the engine.
//!
//! **Mechanism.** Each object is read once and compared with its checksum, even if several backups
//! name it. Then the newest backup is verified in place as a data directory. Damage is recorded and
//! verification continues, so that an operator learns of all damage at once. A backup counts as
//! whole only if each of its objects is unchanged and, as far as tables were read, readable.

use crate::backup_fs::{BackupFs, ROOT};
use crate::error::CtlError;
use crate::files;
use crate::progress::{Meter, OperationProgress, ProgressObserver};
use crate::repository::{BackupFile, BackupManifest, Repository};
use engine::{VerifyProgress, VerifyReport};
use env::{Env, Fs};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use store::StoreError;

/// Result of verifying a repository.
#[derive(Debug, Default)]
pub struct RepositoryReport {
    /// Backups with a readable manifest, and whether no damage was found in them.
    pub backups: Vec<(BackupManifest, bool)>,
    /// Number of objects that backups name and that are unchanged.
    pub objects: usize,
    /// Their total length, in bytes.
    pub bytes: u64,
    /// Number of objects that no backup names. An interrupted backup left them; the next one uses
    /// or removes them.
    pub unneeded: usize,
    /// Contents of the newest backup; `None` if there is none, or it is damaged.
    pub newest: Option<VerifyReport>,
    /// All damage that was found.
    pub damage: Vec<CtlError>,
}

/// Verifies all backups of a repository.
///
/// # Errors
/// [`CtlError`] if the repository cannot be read, or the observer cancels. Damage is part of the
/// report.
pub fn verify_repository(
    env: &Env,
    repository: &Repository,
    observer: &mut dyn ProgressObserver,
) -> Result<RepositoryReport, CtlError> {
    let mut report = RepositoryReport::default();
    let mut manifests = Vec::new();
    for number in repository.backups()? {
        match repository.manifest(number) {
            Ok(manifest) => manifests.push(manifest),
            Err(error) => report.damage.push(error),
        }
    }
    let needed = needed_by(&manifests);
    let there = repository.object_names()?;
    report.unneeded = there.iter().filter(|name| !needed.contains_key(name.as_str())).count();

    let objects_bytes: u64 = needed.values().map(|file| file.bytes).sum();
    let blocks_bytes = manifests.last().map_or(0, table_bytes);
    let mut meter = Meter::new(observer, Some(objects_bytes + blocks_bytes));
    let mut damaged = BTreeSet::new();
    for (name, file) in &needed {
        match check_object(repository, file, &mut meter) {
            Ok(()) => {
                report.objects += 1;
                report.bytes += file.bytes;
            }
            Err(CtlError::Cancelled) => return Err(CtlError::Cancelled),
            Err(error) => {
                damaged.insert(*name);
                report.damage.push(error);
            }
        }
    }
    let is_whole =
        |manifest: &BackupManifest| manifest.files.iter().all(|file| !damaged.contains(&*file.object));
    let mut newest_reads_back = true;
    if let Some(newest) = manifests.last().filter(|newest| is_whole(newest)) {
        let checked = check_blocks(env, repository, newest, &mut |blocks| {
            let bytes_done = objects_bytes + blocks.bytes_done;
            let bytes_total = Some(objects_bytes + blocks_bytes);
            observer.on_progress(OperationProgress { bytes_done, bytes_total, entries_done: 0 });
        });
        match checked {
            Ok(verified) => report.newest = Some(verified),
            Err(damage) => {
                newest_reads_back = false;
                let objects =
                    damage.iter().filter_map(object_of).filter_map(|name| needed.get_key_value(name));
                damaged.extend(objects.map(|(name, _)| *name));
                report.damage.extend(damage);
            }
        }
    }
    let is_whole =
        |manifest: &BackupManifest| manifest.files.iter().all(|file| !damaged.contains(&*file.object));
    let mut wholes: Vec<bool> = manifests.iter().map(is_whole).collect();
    if let Some(newest) = wholes.last_mut() {
        *newest &= newest_reads_back;
    }
    report.backups = manifests.into_iter().zip(wholes).collect();
    Ok(report)
}

/// Objects that manifests name, each once.
fn needed_by(manifests: &[BackupManifest]) -> BTreeMap<&str, &BackupFile> {
    let files = manifests.iter().flat_map(|manifest| &manifest.files);
    files.map(|file| (file.object.as_str(), file)).collect()
}

/// Name of the object that an error refers to.
fn object_of(error: &CtlError) -> Option<&str> {
    match error {
        CtlError::Damaged { path, .. } => path.file_name()?.to_str(),
        _ => None,
    }
}

fn table_bytes(manifest: &BackupManifest) -> u64 {
    manifest.files.iter().filter(|file| file.path.ends_with(".sst")).map(|file| file.bytes).sum()
}

/// Reads an object. An error names it if its contents have changed.
fn check_object(repository: &Repository, file: &BackupFile, meter: &mut Meter<'_>) -> Result<(), CtlError> {
    let path = repository.object(&file.object);
    let found = files::checksum(&**repository.fs(), &path, meter).map_err(missing_is_damage)?;
    file.check(&path, &found)
}

/// Verifies every block of a backup's tables in place.
fn check_blocks(
    env: &Env,
    repository: &Repository,
    manifest: &BackupManifest,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport, Vec<CtlError>> {
    let mounted = Arc::new(BackupFs::new(repository, manifest));
    let fs: Arc<dyn Fs> = Arc::clone(&mounted) as _;
    let env = Env { fs, clock: Arc::clone(&env.clock) };
    let checked = store::verify(&env, Path::new(ROOT), progress);
    let of_backup = |error| match error {
        StoreError::Engine(engine::Error::Corrupt { path, offset, detail }) => {
            let object = mounted.object_at(&path).unwrap_or(&path);
            CtlError::damaged(object, format!("{detail} at byte {offset}, although the copy is unchanged"))
        }
        StoreError::Engine(engine::Error::Lost { path, detail }) => {
            CtlError::damaged(&path, format!("it {detail}, although the copy is unchanged"))
        }
        other => CtlError::Store(other),
    };
    checked.map(|checked| checked.data).map_err(|damage| damage.into_iter().map(of_backup).collect())
}

/// Converts a missing file that a manifest names to damage.
pub(crate) fn missing_is_damage(error: CtlError) -> CtlError {
    match error {
        CtlError::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => {
            CtlError::damaged(&path, "it is missing")
        }
        other => other,
    }
}
