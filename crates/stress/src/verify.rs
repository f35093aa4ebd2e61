//! Checks of a whole engine against the expected state.

use crate::config::inspection_options;
use crate::expected::{Expected, Floors, Permitted};
use crate::model::RegisterId;
use engine::{Cursor, Engine, LogEnd, Snapshot};
use env::Env;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stdx::Cell;

/// A snapshot, and the versions that it may show.
pub struct CheckedSnapshot {
    snapshot: Snapshot,
    permitted: Vec<Permitted>,
}

impl CheckedSnapshot {
    /// Takes a snapshot of an engine during concurrent writes.
    pub fn take(engine: &Engine, expected: &Expected) -> Self {
        let floors = expected.floors();
        let snapshot = engine.snapshot();
        Self { snapshot, permitted: permitted_since(expected, &floors) }
    }

    /// Scans all keys, and checks that each register is as it was at the moment of the snapshot.
    /// Returns the version of each register.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise.
    pub fn check(&self) -> Result<Vec<Option<u64>>, String> {
        let cells = scan(&self.snapshot, &[], usize::MAX)?;
        check_registers(&cells, &self.permitted)
    }

    /// Scans up to `count` keys from `start` on, and checks each by itself.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise.
    pub fn check_range(&self, start: &[u8], count: usize) -> Result<(), String> {
        let cells = scan(&self.snapshot, start, count)?;
        let end = if cells.len() < count { None } else { cells.last_key_value().map(|(key, _)| key.clone()) };
        for (key, (register, index)) in all_keys() {
            if key.as_slice() >= start && end.as_ref().is_none_or(|end| key <= *end) {
                self.permitted[register.0].check(register, index, cells.get(&key))?;
            }
        }
        Ok(())
    }
}

/// Versions that a reader may see that began with these floors and ends now.
pub fn permitted_since(expected: &Expected, floors: &Floors) -> Vec<Permitted> {
    RegisterId::all().zip(&floors.0).map(|(register, floor)| expected.permitted(register, *floor)).collect()
}

fn all_keys() -> impl Iterator<Item = (Vec<u8>, (RegisterId, usize))> {
    let keys = |register: RegisterId| {
        (0..register.keys()).map(move |index| (register.key(index), (register, index)))
    };
    RegisterId::all().flat_map(keys)
}

fn scan(snapshot: &Snapshot, start: &[u8], count: usize) -> Result<BTreeMap<Vec<u8>, Cell>, String> {
    let failed = |error| format!("a scan failed: {error}");
    let mut cells = BTreeMap::new();
    let mut last: Option<Vec<u8>> = None;
    let mut cursor = snapshot.cursor();
    cursor.seek(start).map_err(failed)?;
    while cells.len() < count {
        let Some((key, cell)) = cursor.entry() else { break };
        if key < start || last.as_deref().is_some_and(|last| last >= key) {
            return Err(format!("a scan shows {} out of order", key.escape_ascii()));
        }
        if RegisterId::of_key(key).is_none() {
            return Err(format!("a scan shows {}, which was never written", key.escape_ascii()));
        }
        last = Some(key.to_vec());
        cells.insert(key.to_vec(), cell.to_cell());
        cursor.advance().map_err(failed)?;
    }
    Ok(cells)
}

fn check_registers(
    cells: &BTreeMap<Vec<u8>, Cell>,
    permitted: &[Permitted],
) -> Result<Vec<Option<u64>>, String> {
    let versions = RegisterId::all().map(|register| {
        let seen: Vec<_> =
            (0..register.keys()).map(|index| cells.get(&register.key(index)).cloned()).collect();
        permitted[register.0].check_all(register, &seen)
    });
    versions.collect()
}

/// Checks all keys of an engine that was just opened, by point reads and by a scan, and settles the
/// pending writes.
///
/// # Errors
/// A sentence: the engine has broken a promise.
pub fn check_and_settle(engine: &Engine, expected: &Expected) -> Result<(), String> {
    let versions = CheckedSnapshot::take(engine, expected).check()?;
    for (register, scanned) in RegisterId::all().zip(&versions) {
        for index in 0..register.keys() {
            let seen = engine.get(&register.key(index)).map_err(|error| format!("a read failed: {error}"))?;
            let permitted = expected.permitted(register, expected.floor_of(register));
            let read = permitted.check(register, index, seen.as_ref())?;
            if read.is_some() && read != *scanned {
                return Err(format!("{register:?} key {index}: a read shows {read:?}, a scan {scanned:?}"));
            }
        }
        expected.settle(register, *scanned);
    }
    Ok(())
}

/// Paths of the files of a run.
#[derive(Clone, Debug)]
pub struct RunFiles {
    root: PathBuf,
}

impl RunFiles {
    /// Paths below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// File of the expected state.
    pub fn expected(&self) -> PathBuf {
        self.root.join("expected")
    }

    /// Directory of the engine.
    pub fn engine(&self) -> PathBuf {
        self.root.join("engine")
    }

    /// Directory of checkpoint `number`.
    pub fn checkpoint(&self, number: u64) -> PathBuf {
        self.root.join("checkpoints").join(number.to_string())
    }

    /// File with the floors of all registers before checkpoint `number` was begun.
    pub fn floors_of(&self, number: u64) -> PathBuf {
        self.root.join(format!("floors-{number}"))
    }

    /// Directory of all checkpoints.
    fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Removes checkpoint `number`. `before` is called with its new name.
    ///
    /// The checkpoint is renamed first: a process killed in between leaves no incomplete checkpoint
    /// under a valid name.
    ///
    /// # Errors
    /// A sentence: the error of the system.
    pub fn remove_checkpoint(&self, number: u64, before: impl FnOnce(&Path)) -> Result<(), String> {
        let removed = self.checkpoint(number).with_added_extension("removed");
        let failed = |error| format!("cannot remove {}: {error}", removed.display());
        std::fs::rename(self.checkpoint(number), &removed).map_err(failed)?;
        before(&removed);
        std::fs::remove_dir_all(&removed).map_err(failed)?;
        std::fs::remove_file(self.floors_of(number)).map_err(failed)
    }
}

/// Writes floors to a file, for a check after this process has ended.
///
/// # Errors
/// A sentence: the error of the system.
pub fn write_floors(floors: &Floors, path: &Path) -> Result<(), String> {
    let bytes: Vec<u8> = floors.0.iter().flat_map(|floor| floor.to_le_bytes()).collect();
    std::fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn read_floors(path: &Path) -> Result<Floors, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(Floors(words.iter().map(|word| u64::from_le_bytes(*word)).collect()))
}

/// Opens a checkpoint as an engine, and checks that it shows one moment within `permitted`.
///
/// # Errors
/// A sentence: the engine has broken a promise.
pub fn check_checkpoint(dir: &Path, permitted: &[Permitted]) -> Result<(), String> {
    let opened = Engine::open(Env::os(), dir, inspection_options());
    let (engine, _) = opened.map_err(|error| format!("the checkpoint does not open: {error}"))?;
    let cells = scan(&engine.snapshot(), &[], usize::MAX)?;
    let checked = check_registers(&cells, permitted);
    checked.map(drop).map_err(|error| format!("in the checkpoint {}: {error}", dir.display()))
}

/// Checks and removes the checkpoints of earlier rounds. Must be called after [`check_and_settle`]
/// and before any write.
///
/// # Errors
/// A sentence: the engine has broken a promise.
pub fn check_and_remove_checkpoints(files: &RunFiles, expected: &Expected) -> Result<(), String> {
    let dir = files.checkpoints();
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot list {}: {error}", dir.display())),
    };
    for entry in entries.flatten() {
        match entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            Some(number) => {
                let floors = read_floors(&files.floors_of(number))?;
                check_checkpoint(&entry.path(), &permitted_since(expected, &floors))?;
                files.remove_checkpoint(number, |_| ())?;
            }
            // The checkpoint was being made or removed when the process died.
            None => std::fs::remove_dir_all(entry.path())
                .map_err(|error| format!("cannot remove {}: {error}", entry.path().display()))?,
        }
    }
    Ok(())
}

/// Checks a directory that no process has open: each block, and then the keys of an engine that
/// opens it. With `with_log_end`, also checks that the log is not shorter than it is known to have
/// been.
///
/// # Errors
/// A sentence: the engine has broken a promise.
pub fn check_directory(root: &Path, with_log_end: bool) -> Result<(), String> {
    let files = RunFiles::new(root);
    let expected =
        Expected::open(&files.expected()).map_err(|error| format!("no expected state: {error}"))?;
    // A process may have died before it had created all files of the directory.
    let is_begun = expected.floors().0.iter().any(|floor| *floor > 0);
    if is_begun {
        let log_end = expected.log_end().filter(|_| with_log_end);
        verify_files(&files, log_end)?;
    }
    let opened = Engine::open(Env::os(), &files.engine(), inspection_options());
    let (engine, _) = opened.map_err(|error| format!("the engine does not open: {error}"))?;
    check_and_settle(&engine, &expected)
}

fn verify_files(files: &RunFiles, log_end: Option<LogEnd>) -> Result<(), String> {
    let verified = engine::verify(&Env::os(), &files.engine(), log_end, &mut |_| ());
    verified.map(drop).map_err(|damage| format!("the directory does not verify: {damage:?}"))
}
