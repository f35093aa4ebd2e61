//! Reading blocks from a table file, bypassing the cache. A block is returned whole, and only if
//! its checks pass.
//!
//! The memory that a read needs is known before it is allocated. Large reads acquire a permit
//! ([`LargeReadLimit`](super::LargeReadLimit)). A read holds at most one permit at a time, because
//! a holder that waits for another one could deadlock. A host that reads on behalf of clients
//! passes the memory of the read, which covers the block first ([`ReadMemory`](super::ReadMemory)).
//!
//! **Caveats.** Compaction acquires no permits: it has few jobs, and each reads one block at a
//! time.

use super::Wait;
use super::block::Block;
use super::data_block::DataBlock;
use super::format::Extent;
use super::frame::{self, FRAME_BYTES, FrameKind, FrameLocation, StoredBlock, Trailer};
use super::table::{Root, Table, cut_short, read_exact};
use super::window::Window;
use crate::Error;
use std::borrow::Cow;

/// Maximum size of a block that is read on an I/O thread when the page cache has it, in bytes.
/// Copying and decompressing a larger one would occupy the thread for too long.
const NOWAIT_BYTES_MAX: u64 = 256 << 10;

impl Table {
    /// Reads a block and returns its decompressed bytes; `None` if that would block.
    pub(super) fn read(
        &self,
        root: &Root,
        extent: Extent,
        kind: FrameKind,
        wait: Wait<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        if extent.bytes > NOWAIT_BYTES_MAX {
            return match wait {
                Wait::Never => Ok(None),
                _ => self.read_large(root, extent, kind, wait).map(Some),
            };
        }
        let mut stored = vec![0; extent.bytes as usize];
        if wait.is_allowed() {
            read_exact(&*root.file, self.path(), &mut stored, extent.offset)?;
        } else {
            let read = root.file.read_at_nowait(&mut stored, extent.offset);
            match read.map_err(|error| Error::io("read", self.path(), error))? {
                None => return Ok(None),
                Some(read) if read < stored.len() => return Err(cut_short(self.path(), extent.offset)),
                Some(_) => {}
            }
        }
        let trailer = self.check(&stored, extent, kind)?;
        let decompressed_bytes = trailer.decompressed_bytes();
        let is_large = decompressed_bytes > NOWAIT_BYTES_MAX;
        if is_large && !wait.is_allowed() {
            return Ok(None);
        }
        let cover = || wait.cover(self.cache.large_reads(), decompressed_bytes, decompressed_bytes);
        let _permit = is_large.then(cover).transpose()?;
        self.decompress(Cow::Owned(stored), trailer, extent).map(Some)
    }

    /// Reads a block whose stored form is large. The permit for all of its memory is acquired
    /// before the read.
    fn read_large(
        &self,
        root: &Root,
        extent: Extent,
        kind: FrameKind,
        wait: Wait<'_>,
    ) -> Result<Vec<u8>, Error> {
        let mut end = [0; FRAME_BYTES];
        read_exact(&*root.file, self.path(), &mut end, extent.end() - FRAME_BYTES as u64)?;
        let decompressed_bytes = frame::claimed_decompressed_bytes(end);
        let left_bytes = if decompressed_bytes > 0 { decompressed_bytes } else { extent.bytes };
        let bytes = extent.bytes + decompressed_bytes;
        let _permit = wait.cover(self.cache.large_reads(), bytes, left_bytes)?;
        let mut stored = vec![0; extent.bytes as usize];
        read_exact(&*root.file, self.path(), &mut stored, extent.offset)?;
        self.unframe(Cow::Owned(stored), extent, kind)
    }

    /// Reads one block, bypassing the cache. The read may wait.
    pub(super) fn read_block<B: Block>(
        &self,
        root: &Root,
        extent: Extent,
        wait: Wait<'_>,
    ) -> Result<B, Error> {
        let raw = self.read(root, extent, B::FRAME, wait)?;
        let raw = raw.expect("a read that may block returns a block");
        B::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }

    /// Reads one of several consecutive blocks through `window`, bypassing the cache.
    pub(super) fn read_in_window<B: Block>(&self, window: &mut Window, extent: Extent) -> Result<B, Error> {
        let stored = window.read(extent)?;
        let raw = self.unframe(stored, extent, B::FRAME)?;
        B::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }

    /// Reads a data block through `window`, bypassing the cache. An oversized block is returned
    /// with its stored form.
    pub(super) fn read_with_stored_form(
        &self,
        window: &mut Window,
        extent: Extent,
    ) -> Result<(DataBlock, Option<StoredForm>), Error> {
        let stored = window.read(extent)?;
        let trailer = self.check(&stored, extent, FrameKind::Data)?;
        let (raw, compressed) = match trailer.is_compressed() {
            true => (self.decompress(Cow::Borrowed(&stored), trailer, extent)?, Some(stored)),
            false => (self.decompress(stored, trailer, extent)?, None),
        };
        let block = DataBlock::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))?;
        let kept =
            block.is_oversized().then(|| StoredForm { trailer, compressed: compressed.map(Cow::into_owned) });
        Ok((block, kept))
    }

    pub(super) fn unframe(
        &self,
        stored: Cow<'_, [u8]>,
        extent: Extent,
        kind: FrameKind,
    ) -> Result<Vec<u8>, Error> {
        let trailer = self.check(&stored, extent, kind)?;
        self.decompress(stored, trailer, extent)
    }

    fn check(&self, stored: &[u8], extent: Extent, kind: FrameKind) -> Result<Trailer, Error> {
        let location = FrameLocation { table: self.id(), offset: extent.offset };
        Trailer::check(stored, kind, location).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }

    fn decompress(&self, stored: Cow<'_, [u8]>, trailer: Trailer, extent: Extent) -> Result<Vec<u8>, Error> {
        trailer.decompress_payload(stored).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }
}

/// The part of a block's frame that, together with the decoded block, restores its stored form.
pub(super) struct StoredForm {
    trailer: Trailer,
    /// The compressed frame; `None` if the payload is the block itself.
    compressed: Option<Vec<u8>>,
}

impl StoredForm {
    /// The stored form of `block`, whose frame this belongs to.
    pub(super) fn stored<'a>(&'a self, block: &'a DataBlock) -> StoredBlock<'a> {
        let payload = self.compressed.as_deref().map_or(block.as_ref(), frame::payload);
        StoredBlock { payload, trailer: self.trailer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compression;
    use crate::cache::BlockCache;
    use crate::sstable::{Lookup, ReadMemory, TableFiles, TableId, TableOptions, TableWriter};
    use env::{Fs, MemFs, OpenMode};
    use limits::{Budget, LargestValue, MemoryCategory};
    use std::path::PathBuf;
    use std::sync::Arc;
    use stdx::{Cell, Hlc, NodeTag, Rng, Version};
    use xxhash_rust::xxh3::xxh3_64;

    const KEY: &[u8] = b"key";
    const MIB: usize = 1 << 20;

    /// A table with one value of `len` bytes, of which `noisy` bytes do not compress. The rest
    /// compresses to nearly nothing.
    fn table(len: usize, noisy: usize) -> Table {
        let (fs, path, id) = (MemFs::new(), PathBuf::from("table.sst"), TableId(1));
        let file = fs.open(&path, OpenMode::CreateNew).expect("a new file");
        let options = TableOptions { compression: Compression::Lz4, ..TableOptions::default() };
        let mut value = vec![0; len];
        Rng::new(1).fill(&mut value[..noisy]);
        let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, value.into());
        let mut writer = TableWriter::new(file, path.clone(), id, options);
        writer.add(KEY, cell.as_ref()).expect("the disk has space");
        let meta = Arc::new(writer.finish().expect("the disk has space"));
        let files = Arc::new(TableFiles::new(Arc::new(fs), 1));
        Table::open(&files, path, meta, Arc::new(BlockCache::new(1 << 20)), Arc::new(|_| ()))
    }

    fn get(table: &Table, wait: Wait<'_>) -> Lookup {
        table.get(KEY, xxh3_64(KEY), wait).expect("the table is whole")
    }

    #[test]
    fn a_read_acquires_a_permit_for_its_memory() {
        // Bytes of other reads in progress, and whether the limit admits the value beside them.
        for (len, noisy, taken, has_room) in [
            (8 * MIB, 0, 9 * MIB, false),
            (8 * MIB, 0, 7 * MIB, true),
            (8 * MIB, 4 * MIB, 5 * MIB, false),
            (8 * MIB, 4 * MIB, 3 * MIB, true),
            (8 * MIB, 8 * MIB, 7 * MIB, true),
        ] {
            let table = table(len, noisy);
            let reads = table.cache.large_reads();
            std::thread::scope(|scope| {
                let permit = reads.acquire(taken as u64);
                let reader = scope.spawn(|| get(&table, Wait::Allowed));
                while reads.requested_and_granted().0 < 2 {
                    std::thread::yield_now();
                }
                if has_room {
                    reader.join().expect("it does not wait");
                    drop(permit);
                } else {
                    assert_eq!(reads.requested_and_granted().1, 1, "{noisy} of {len} beside {taken}");
                    drop(permit);
                    reader.join().expect("the permit is granted");
                }
            });
        }
    }

    #[test]
    fn a_large_value_is_reserved_before_it_is_read() {
        for noisy in [8 * MIB, 4 * MIB, 0] {
            let table = table(8 * MIB, noisy);
            let reads = table.cache.large_reads();
            let is_value = |bytes: u64| (8 * MIB as u64..8 * MIB as u64 + 100).contains(&bytes);
            let budget = Arc::new(Budget::new(0, 0, LargestValue::default()));
            let reservation = || budget.empty_reservation(MemoryCategory::Replies);
            let mut overcommit = reservation();
            assert!(overcommit.cover(1));
            let memory = ReadMemory::reserving(reservation());
            let found = table.get(KEY, xxh3_64(KEY), Wait::Covered(&memory));
            let held = memory.take();
            assert!(matches!(found, Err(Error::NoRoom { .. })) && held.permit.is_none(), "{noisy}");
            assert!(is_value(held.refused_bytes), "{noisy}: {}", held.refused_bytes);
            assert_eq!(reads.requested_and_granted(), (0, 0), "{noisy}: it was not read");
            let memory = ReadMemory::default();
            assert!(matches!(get(&table, Wait::Covered(&memory)), Lookup::Found(_)));
            assert!(memory.take().permit.expect("it is large").bytes() >= 8 * MIB as u64);
        }
    }

    #[test]
    fn a_read_that_must_not_wait_does_not_decompress_a_large_block() {
        let (large, small) = (table(8 * MIB, 0), table(100 << 10, 0));
        for table in [&large, &small] {
            assert!(matches!(get(table, Wait::Allowed), Lookup::Found(_)));
        }
        assert_eq!(get(&large, Wait::Never), Lookup::WouldWait);
        assert!(matches!(get(&small, Wait::Never), Lookup::Found(_)));
    }
}
