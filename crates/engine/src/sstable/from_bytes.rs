//! Reading a table from bytes in memory: the entry point of fuzzers and of tests that damage
//! tables.

use super::table::{Table, read_meta};
use super::{Lookup, ReadMode, TableMeta, Wait};
use crate::Error;
use crate::cache::BlockCache;
use crate::iter::Cursor;
use bytes::Bytes;
use env::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Reads a table in every way: its footer, all blocks, by cursor, by seek and by key, with and
/// without values.
///
/// # Errors
/// If the bytes are not a valid table.
///
/// # Panics
/// If a valid table has one version for a reader of versions and another one for a reader of
/// values.
pub fn check_bytes(bytes: &[u8]) -> Result<TableMeta, Error> {
    let path = PathBuf::from("bytes.sst");
    let file: Arc<dyn File> = Arc::new(BytesFile(Bytes::copy_from_slice(bytes)));
    let meta = Arc::new(read_meta(&*file, &path)?);
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Arc::new(Table::from_file(file, path, meta.clone(), cache, Arc::new(|_| ())));
    let differing = walk(&table)?;
    table.verify(&mut |_| ())?;
    assert_eq!(differing, 0, "cells of a valid table have other versions in its index");
    Ok((*meta).clone())
}

/// Reads all cells. Returns the number of those whose versions differ from their values' ones.
fn walk(table: &Arc<Table>) -> Result<u64, Error> {
    let mut differing = 0;
    let mut versions = table.cursor(ReadMode::Versions);
    versions.seek_to_first()?;
    let mut cursor = table.cursor(ReadMode::Scan);
    let mut other = table.cursor(ReadMode::Bulk);
    cursor.seek_to_first()?;
    while let Some((key, cell)) = cursor.entry() {
        let hash = xxh3_64(key);
        let is_same_version =
            match (table.get(key, hash, Wait::Never)?, table.get_meta(key, hash, Wait::Never)?) {
                (Lookup::Found(cell), Lookup::Found(meta)) => cell.meta == meta,
                (Lookup::Absent, Lookup::Found(_)) | (Lookup::Found(_), Lookup::Absent) => false,
                _ => true,
            };
        let is_same_walk = versions.key_and_meta() == Some((key, cell.meta));
        differing += u64::from(!is_same_version || !is_same_walk);
        table.may_contain(key, hash)?;
        other.seek(key)?;
        versions.advance()?;
        cursor.advance()?;
    }
    Ok(differing)
}

/// Bytes as a read-only file.
struct BytesFile(Bytes);

impl File for BytesFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let len = buf.len().min(self.0.len() - start);
        buf[..len].copy_from_slice(&self.0[start..start + len]);
        Ok(len)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.read_at(buf, offset).map(Some)
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn start_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn prefetch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}
