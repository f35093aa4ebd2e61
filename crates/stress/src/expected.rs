//! The expected state: for each register, the versions that a reader may see.
//!
//! **Promise.** The state survives `kill -9` at any instruction. It permits exactly the versions
//! that the engine promises.
//!
//! **Mechanism.** Each register has four words. `issued` is the greatest version for which a write
//! was begun; it is raised *before* the write. `floor` is the greatest version that was
//! acknowledged or read; it is raised *after* the operation. A read that began at `floor` and ended
//! at `issued` may return a version between the two, and nothing else.
//!
//! A write that was pending when the process died is stored or not. The first check after the start
//! finds out which, and *settles* it. Versions above the version that was found, up to `issued`, do
//! not exist then, and must never be seen later. They are the *gap* of the register.
//!
//! A missing cell is permitted if a tombstone or an expired value between `floor` and `issued` may
//! have been dropped.

use crate::mapped_words::MappedWords;
use crate::model::{REGISTERS, RegisterContent, RegisterId};
use engine::{LogEnd, SegmentId};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::Cell;

/// Number of words before those of the registers.
const HEADER: usize = 4;
/// Number of words of a register.
const WORDS: usize = 4;
/// Bits of the length in the packed end of the log. No segment of these tests is as long as 4 GiB.
const LEN_BITS: u32 = 32;

/// The expected state of a directory.
pub struct Expected {
    words: MappedWords,
}

/// Versions that a reader of one register may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// Least version: earlier versions are superseded.
    pub floor: u64,
    /// Greatest version: later versions were not issued.
    pub issued: u64,
    /// Versions above `.0` and up to `.1` were lost with a process that died before they were
    /// acknowledged.
    pub gap: (u64, u64),
}

/// Floors of all registers at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floors(pub Vec<u64>);

impl Expected {
    /// Maps the state in the file `path`, which is created empty if it does not exist.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { words: MappedWords::open(path, HEADER + WORDS * REGISTERS)? })
    }

    fn register(&self, register: RegisterId) -> &[AtomicU64] {
        &self.words.all()[HEADER + WORDS * register.0..][..WORDS]
    }

    fn issued(&self, register: RegisterId) -> &AtomicU64 {
        &self.register(register)[0]
    }

    fn floor(&self, register: RegisterId) -> &AtomicU64 {
        &self.register(register)[1]
    }

    /// Issues the next version of a register, for a write that is about to begin.
    pub fn issue(&self, register: RegisterId) -> u64 {
        self.issued(register).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records that a version was acknowledged or read.
    pub fn raise_floor(&self, register: RegisterId, version: u64) {
        self.floor(register).fetch_max(version, Ordering::SeqCst);
    }

    /// Counts a finished operation. Returns the number of operations before it.
    pub fn count_operation(&self) -> u64 {
        self.words.all()[0].fetch_add(1, Ordering::SeqCst)
    }

    /// Number of finished operations, of all rounds.
    pub fn operations(&self) -> u64 {
        self.words.all()[0].load(Ordering::SeqCst)
    }

    /// Returns a number that no earlier call has returned.
    pub fn next_number(&self) -> u64 {
        self.words.all()[1].fetch_add(1, Ordering::SeqCst)
    }

    /// Records an end that the durable log has reached.
    pub fn set_log_end(&self, end: LogEnd) {
        let packed = end.segment.0 << LEN_BITS | end.len;
        // Packed ends have the same order as ends: by segment, then by length.
        self.words.all()[2].fetch_max(packed, Ordering::SeqCst);
    }

    /// Greatest recorded end of the log.
    pub fn log_end(&self) -> Option<LogEnd> {
        let packed = self.words.all()[2].load(Ordering::SeqCst);
        let end = LogEnd { segment: SegmentId(packed >> LEN_BITS), len: packed & ((1 << LEN_BITS) - 1) };
        (packed > 0).then_some(end)
    }

    /// Present floors, for a reader that begins now.
    pub fn floors(&self) -> Floors {
        Floors(RegisterId::all().map(|register| self.floor(register).load(Ordering::SeqCst)).collect())
    }

    /// Present floor of one register.
    pub fn floor_of(&self, register: RegisterId) -> u64 {
        self.floor(register).load(Ordering::SeqCst)
    }

    /// Versions of a register that a reader may have seen that began at `floor` and has ended now.
    pub fn permitted(&self, register: RegisterId, floor: u64) -> Permitted {
        let words = self.register(register);
        let word = |at: usize| words[at].load(Ordering::SeqCst);
        Permitted { floor, issued: word(0), gap: (word(2), word(3)) }
    }

    /// Settles the writes that were pending when the last process died. `found` is the version that
    /// the first read after the start returned. Must be called before any write.
    pub fn settle(&self, register: RegisterId, found: Option<u64>) {
        if let Some(version) = found {
            self.raise_floor(register, version);
        }
        let words = self.register(register);
        let settled = self.floor_of(register);
        // Order of the stores: a process that dies between the two leaves a smaller gap.
        words[2].store(settled, Ordering::SeqCst);
        words[3].store(self.issued(register).load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

impl Permitted {
    /// Checks the cell `seen` that a reader found at key number `index`. Returns its version.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise.
    pub fn check(
        &self,
        register: RegisterId,
        index: usize,
        seen: Option<&Cell>,
    ) -> Result<Option<u64>, String> {
        let Self { floor, issued, gap } = *self;
        let Some(seen) = seen else {
            return match self.may_be_nothing(register) {
                true => Ok(None),
                false => Err(format!(
                    "{register:?} key {index}: the cell is missing, and version {floor} of {issued} must be there"
                )),
            };
        };
        let version = register.version_of(index, seen)?;
        let fault = if version < floor {
            "is older than an acknowledged or read version"
        } else if version > issued {
            "was never issued"
        } else if version > gap.0 && version <= gap.1 {
            "was missing after the last start and is back"
        } else {
            return Ok(Some(version));
        };
        Err(format!("{register:?} key {index}: version {version} {fault}: {self:?}"))
    }

    /// Whether the register may have no cell.
    fn may_be_nothing(&self, register: RegisterId) -> bool {
        let Self { floor, issued, gap } = *self;
        let exists = |version: &u64| *version > 0 && !(gap.0 + 1..=gap.1).contains(version);
        let mut versions = (floor..=issued).filter(exists);
        floor == 0 || versions.any(|version| register.content(version) != RegisterContent::Value)
    }

    /// Checks the cells that one snapshot shows of all keys of a register. Returns the register's
    /// version.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise.
    pub fn check_all(&self, register: RegisterId, seen: &[Option<Cell>]) -> Result<Option<u64>, String> {
        let mut versions = Vec::new();
        for (index, cell) in seen.iter().enumerate() {
            versions.push(self.check(register, index, cell.as_ref())?);
        }
        let newest = versions.iter().copied().max().flatten();
        // A key without a cell has lost the tombstone or expired value of the version that the
        // other keys have.
        let is_whole = |version: &Option<u64>| match (*version, newest) {
            (Some(version), Some(newest)) => version == newest,
            (None, Some(newest)) => register.content(newest) != RegisterContent::Value,
            (_, None) => true,
        };
        if versions.iter().all(is_whole) {
            return Ok(newest);
        }
        Err(format!("{register:?}: part of a batch: its keys have the versions {versions:?}: {self:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: RegisterId = RegisterId(7);

    fn first(from: u64, content: RegisterContent) -> u64 {
        (from..).find(|version| GROUP.content(*version) == content).expect("each content is drawn")
    }

    fn all(version: u64) -> Vec<Option<Cell>> {
        (0..GROUP.keys()).map(|index| Some(GROUP.cell(index, version))).collect()
    }

    #[test]
    fn a_version_outside_of_the_permitted_ones_is_refused() {
        let permitted = Permitted { floor: 10, issued: 14, gap: (11, 13) };
        let check = |version| permitted.check(GROUP, 0, Some(&GROUP.cell(0, version)));
        assert_eq!((check(10), check(11), check(14)), (Ok(Some(10)), Ok(Some(11)), Ok(Some(14))));
        for (version, says) in [(9, "is older"), (12, "last start"), (13, "last start"), (15, "never issued")]
        {
            assert!(check(version).is_err_and(|error| error.contains(says)), "{version}");
        }
    }

    #[test]
    fn a_missing_cell_is_permitted_only_if_a_delete_may_have_been_dropped() {
        let value = first(1, RegisterContent::Value);
        let permitted = Permitted { floor: value, issued: value, gap: (0, 0) };
        assert!(permitted.check(GROUP, 0, None).is_err());
        let delete = first(1, RegisterContent::Tombstone);
        let permitted = Permitted { floor: delete, issued: delete, gap: (0, 0) };
        assert_eq!(permitted.check(GROUP, 0, None), Ok(None));
        let lost = Permitted { floor: value, issued: delete.max(value), gap: (value, delete.max(value)) };
        assert!(lost.check(GROUP, 0, None).is_err(), "a lost delete was not dropped");
    }

    #[test]
    fn a_part_of_a_batch_is_refused() {
        let (one, other) = (first(1, RegisterContent::Value), first(40, RegisterContent::Value));
        let permitted = Permitted { floor: one, issued: other, gap: (0, 0) };
        assert_eq!(permitted.check_all(GROUP, &all(one)), Ok(Some(one)));
        let mut mixed = all(one);
        mixed[3] = Some(GROUP.cell(3, other));
        assert!(permitted.check_all(GROUP, &mixed).is_err_and(|error| error.contains("part of a batch")));
        let mut holed = all(other);
        holed[2] = None;
        assert!(permitted.check_all(GROUP, &holed).is_err());
    }

    #[test]
    fn a_pending_write_is_stored_or_not_and_stays_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let expected = Expected::open(&dir.path().join("expected")).expect("open");
        let acknowledged = expected.issue(GROUP);
        expected.raise_floor(GROUP, acknowledged);
        let pending = expected.issue(GROUP);
        drop(expected);

        let expected = Expected::open(&dir.path().join("expected")).expect("open again");
        let check = |version| {
            let permitted = expected.permitted(GROUP, expected.floor_of(GROUP));
            permitted.check(GROUP, 0, Some(&GROUP.cell(0, version)))
        };
        assert!(check(acknowledged).is_ok() && check(pending).is_ok());
        expected.settle(GROUP, Some(acknowledged));
        assert!(check(acknowledged).is_ok() && check(pending).is_err());
        let next = expected.issue(GROUP);
        assert!(check(next).is_ok());
    }

    #[test]
    fn the_end_of_the_log_is_kept_and_never_goes_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let expected = Expected::open(&dir.path().join("expected")).expect("open");
        assert_eq!(expected.log_end(), None);
        let end = LogEnd { segment: SegmentId(3), len: 70 };
        expected.set_log_end(end);
        expected.set_log_end(LogEnd { segment: SegmentId(2), len: 900 });
        assert_eq!(expected.log_end(), Some(end));
    }
}
