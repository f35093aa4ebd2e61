//! The tables that a job writes.

use crate::Error;
use crate::sstable::{Stored, TableId, TableMeta, TableOptions, TableWriter, file_name};
use env::{Env, OpenMode};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::CellRef;

/// Where and how tables are written.
pub(super) struct OutputOptions {
    pub(super) env: Env,
    pub(super) dir: PathBuf,
    pub(super) next_table_id: Arc<AtomicU64>,
    pub(super) table: TableOptions,
    /// A table is cut at this size, in bytes.
    pub(super) table_bytes: u64,
}

/// Writes cells that come in key order to as many tables as it takes.
pub(super) struct Outputs {
    options: OutputOptions,
    writer: Option<TableWriter>,
    written: Vec<TableMeta>,
    /// Of every file that was begun.
    paths: Vec<PathBuf>,
}

impl Outputs {
    pub(super) fn new(options: OutputOptions) -> Self {
        Self { options, writer: None, written: Vec::new(), paths: Vec::new() }
    }

    /// Adds a cell to the present table, or to a new one when that is full; `stored` is its block where it was, if that
    /// is taken over as it is.
    #[inline]
    pub(super) fn add(
        &mut self,
        key: &[u8],
        cell: CellRef<'_>,
        stored: Option<Stored<'_>>,
    ) -> Result<(), Error> {
        if self.writer.as_ref().is_some_and(|writer| writer.file_bytes_estimate() >= self.options.table_bytes)
        {
            self.cut()?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.begin()?,
        };
        match stored {
            Some(stored) => writer.add_stored(key, cell, stored),
            None => writer.add(key, cell),
        }
    }

    fn begin(&mut self) -> Result<&mut TableWriter, Error> {
        let id = TableId(self.options.next_table_id.fetch_add(1, Ordering::Relaxed));
        let path = self.options.dir.join(file_name(id));
        let opened = self.options.env.fs.open(&path, OpenMode::CreateNew);
        let file = opened.map_err(|error| Error::io("create", &path, error))?;
        self.paths.push(path.clone());
        Ok(self.writer.insert(TableWriter::new(file, path, id, self.options.table)))
    }

    /// Ends the present table, if there is one.
    pub(super) fn cut(&mut self) -> Result<(), Error> {
        if let Some(writer) = self.writer.take() {
            self.written.push(writer.finish()?);
        }
        Ok(())
    }

    /// Ends the last table. On return all of them are durable, and their names.
    pub(super) fn finish(&mut self) -> Result<Vec<TableMeta>, Error> {
        self.cut()?;
        if !self.paths.is_empty() {
            let dir = &self.options.dir;
            self.options.env.fs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        }
        Ok(std::mem::take(&mut self.written))
    }

    /// The id that the next table will have.
    pub(super) fn next_table_id(&self) -> TableId {
        TableId(self.options.next_table_id.load(Ordering::Relaxed))
    }

    /// Removes all files that were begun. What cannot be removed is not named by the manifest, and goes at
    /// the next open.
    pub(super) fn discard(&mut self) {
        self.writer = None;
        self.written.clear();
        for path in self.paths.drain(..) {
            let _removed_later_otherwise = self.options.env.fs.remove_file(&path);
        }
    }
}
