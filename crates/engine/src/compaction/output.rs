//! The output tables of a job.

use crate::Error;
use crate::ownership::{HashRange, JobFilter, Judgement, OtherSources, OwnershipFilter};
use crate::sstable::{StoredBlock, TableId, TableMeta, TableOptions, TableWriter, file_name};
use env::{Env, OpenMode};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{CellMeta, CellRef};

/// Location and options of the tables to write.
pub(super) struct OutputOptions {
    pub(super) env: Env,
    pub(super) dir: PathBuf,
    pub(super) next_table_id: Arc<AtomicU64>,
    pub(super) table: TableOptions,
    /// Size at which a table is cut, in bytes.
    pub(super) table_bytes: u64,
    /// Cells that are left out.
    pub(super) filter: JobFilter,
    /// Where else the keys of these cells may be.
    pub(super) sources: OtherSources,
}

/// Writes cells that arrive in key order to as many tables as needed.
pub(crate) struct Outputs {
    options: OutputOptions,
    writer: Option<TableWriter>,
    /// The filter of the current table, or of the last one.
    filter: Arc<OwnershipFilter>,
    /// Disowned ranges of which hidden cells were kept, because a table could not be read.
    unpurged: BTreeSet<HashRange>,
    written: Vec<TableMeta>,
    /// Paths of all files that were created.
    paths: Vec<PathBuf>,
}

impl Outputs {
    pub(super) fn new(options: OutputOptions) -> Self {
        let filter = options.filter.load();
        Self {
            options,
            writer: None,
            filter,
            unpurged: BTreeSet::new(),
            written: Vec::new(),
            paths: Vec::new(),
        }
    }

    /// Adds a cell to the current table, or to a new one if that is full. The cell of a hidden key
    /// is left out. `stored` is the stored form of its block, if it is copied unchanged.
    #[inline]
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        cell: CellRef<'_>,
        stored: Option<StoredBlock<'_>>,
    ) -> Result<(), Error> {
        let Some(mut from) = self.judge_from(key, cell.meta.from) else { return Ok(()) };
        if self.writer.as_ref().is_some_and(|writer| writer.file_bytes_estimate() >= self.options.table_bytes)
        {
            self.cut()?;
        }
        if self.writer.is_none() {
            let id = TableId(self.options.next_table_id.fetch_add(1, Ordering::SeqCst));
            self.filter = self.options.filter.for_table();
            // The filter of this table may hide the key, which is its first one.
            match self.judge_from(key, cell.meta.from) {
                Some(greatest) => from = greatest,
                None => return Ok(()),
            }
            self.begin(id)?;
        }
        let writer = self.writer.as_mut().expect("there is a table");
        match stored.filter(|_| from == cell.meta.from) {
            Some(stored) => writer.add_stored(key, cell, stored),
            None => writer.add(key, CellRef { meta: CellMeta { from, ..cell.meta }, ..cell }),
        }
    }

    /// The `from` with which a cell of `key` is written; `None` if it is left out.
    #[inline]
    fn judge_from(&mut self, key: &[u8], from: u8) -> Option<u8> {
        match self.filter.judge(key, from, &self.options.sources) {
            Judgement::Write(from) => Some(from),
            Judgement::LeaveOut => None,
            Judgement::Unknown(range) => {
                self.unpurged.insert(range);
                Some(from)
            }
        }
    }

    fn begin(&mut self, id: TableId) -> Result<(), Error> {
        let path = self.options.dir.join(file_name(id));
        let opened = self.options.env.fs.open(&path, OpenMode::CreateNew);
        let file = opened.map_err(|error| Error::io("create", &path, error))?;
        self.paths.push(path.clone());
        self.writer = Some(TableWriter::new(file, path, id, self.options.table));
        Ok(())
    }

    /// Finishes the current table, if there is one.
    pub(crate) fn cut(&mut self) -> Result<(), Error> {
        if let Some(writer) = self.writer.take() {
            self.written.push(writer.finish()?);
        }
        Ok(())
    }

    /// Finishes the last table. On return all tables and their directory entries are durable.
    pub(crate) fn finish(&mut self) -> Result<Vec<TableMeta>, Error> {
        self.cut()?;
        if !self.paths.is_empty() {
            let dir = &self.options.dir;
            self.options.env.fs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        }
        Ok(std::mem::take(&mut self.written))
    }

    /// Disowned ranges of which the tables have hidden cells, because another table could not be
    /// read.
    pub(crate) fn unpurged(&self) -> Vec<HashRange> {
        self.unpurged.iter().copied().collect()
    }

    /// Estimated length of all files that were not returned by [`Outputs::finish`], in bytes.
    pub(crate) fn unfinished_bytes(&self) -> u64 {
        let cut_bytes: u64 = self.written.iter().map(|meta| meta.file_bytes).sum();
        cut_bytes + self.writer.as_ref().map_or(0, TableWriter::file_bytes_estimate)
    }

    /// Id of the next table.
    pub(crate) fn next_table_id(&self) -> TableId {
        TableId(self.options.next_table_id.load(Ordering::Relaxed))
    }

    /// Removes all files that were created. The manifest does not refer to a file that cannot be
    /// removed; the next open removes it.
    pub(crate) fn discard(&mut self) {
        self.writer = None;
        self.written.clear();
        for path in self.paths.drain(..) {
            let _removed_later_otherwise = self.options.env.fs.remove_file(&path);
        }
    }
}
