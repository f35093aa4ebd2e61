//! A log in memory whose records are numbers.

use engine::internals::wal::record::RecordBuilder;
use engine::internals::wal::{KnownLog, Record, RecordCells, SegmentId, Wal, WalOptions, WalRecovery};
use engine::{Durability, Error, ErrorKind};
use env::{Env, Fs, ManualClock, MemFs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version, WallTime};

/// Directory of the log.
pub(crate) fn dir() -> &'static Path {
    Path::new("/db/wal")
}

/// An empty disk with a directory for the store.
pub(crate) fn new_disk() -> MemFs {
    let disk = MemFs::new();
    disk.create_dir_all(Path::new("/db")).expect("the directory is made");
    disk.sync_dir(Path::new("/")).expect("the directory is synced");
    disk
}

pub(crate) fn segment_path(id: SegmentId) -> PathBuf {
    dir().join(format!("{:016x}.wal", id.0))
}

/// Small segments, so that tests roll.
pub(crate) const OPTIONS: WalOptions =
    WalOptions { segment_bytes: 4096, durability: Durability::Sync, spares_max: 2 };

/// A newly opened log with its replayed records.
pub(crate) struct Opened {
    pub(crate) wal: Wal,
    pub(crate) recovery: WalRecovery,
    /// Numbers of the records, with their segments.
    pub(crate) replayed: Vec<(SegmentId, u64)>,
}

impl Opened {
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.replayed.iter().map(|(_, number)| *number).collect()
    }
}

pub(crate) fn open(
    fs: impl Fs + 'static,
    options: &WalOptions,
    known: impl Into<KnownLog>,
) -> Result<Opened, Error> {
    let env = Env { fs: Arc::new(fs), clock: Arc::new(ManualClock::new(WallTime::EPOCH_2020)) };
    let mut replayed = Vec::new();
    let (wal, recovery) = Wal::open(&env, dir(), options, known.into(), &mut |id, cells| {
        replayed.push((id, number_of(cells)));
        Ok(())
    })?;
    assert_eq!(recovery.records, replayed.len() as u64);
    Ok(Opened { wal, recovery, replayed })
}

pub(crate) fn open_mem(disk: &MemFs) -> Opened {
    open(disk.clone(), &OPTIONS, SegmentId(0)).expect("the log opens")
}

/// The record of a number: three cells, so that a partial replay is detected, about `bytes` long.
pub(crate) fn record(number: u64, bytes: usize) -> Record {
    let version = Version::new(Hlc::from_bits(number), NodeTag(7));
    let value = vec![number as u8; bytes];
    let expires_at = Some(WallTime::from_micros_since_unix_epoch(number));
    let mut builder = RecordBuilder::default();
    builder.push(&number.to_le_bytes(), CellRef { meta: CellMeta::value(version, 1), value: &value });
    builder.push(b"tombstone", CellRef { meta: CellMeta::tombstone(version, 2), value: b"" });
    let meta = CellMeta { expires_at, ..CellMeta::value(version, 3) };
    builder.push(b"expires", CellRef { meta, value: &value });
    builder.seal()
}

/// Appends one group of one record.
pub(crate) fn append(wal: &mut Wal, number: u64, bytes: usize) -> Result<SegmentId, Error> {
    wal.append(&[&record(number, bytes)])
}

/// Steps the spares until there is no work.
pub(crate) fn settle_spares(wal: &Wal) {
    while wal.spares().step(1 << 20).expect("spares can be made") {}
}

/// Tolerates a full disk, which is a valid result.
pub(crate) fn tolerate_full(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == ErrorKind::Full => Ok(()),
        result => result,
    }
}

/// The number of a record, which must be exactly as [`record`] made it.
fn number_of(cells: RecordCells<'_>) -> u64 {
    let cells: Vec<_> = cells.collect();
    let number = cells[0].1.meta.version.hlc.to_bits();
    let expected = record(number, cells[0].1.value.len());
    assert_eq!(cells, expected.iter().collect::<Vec<_>>());
    number
}
