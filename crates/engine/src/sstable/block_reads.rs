//! Reading the blocks of a table from its file: past the cache, whole, and only if they are what was written.
//!
//! What reading a block takes in memory is known before it is taken. Where that is much, there are turns
//! ([`LargeReads`](super::LargeReads)), of which a read holds one at a time: whoever held one and waited for another
//! could wait for ever. A host that reads for others is asked first ([`consent`](super::consent)).
//!
//! **Caveats.** Compaction takes no turns: of its jobs there are few, and each reads one block at a time.

use super::Wait;
use super::block::Block;
use super::consent;
use super::data_block::DataBlock;
use super::format::Extent;
use super::frame::{self, FRAME_BYTES, FrameKind, Place, Stored, Trailer};
use super::table::{Root, Table, cut_short, read_exact};
use super::window::Window;
use crate::Error;
use std::borrow::Cow;

/// Blocks up to this size are read on an I/O thread if the system has them in memory; a larger one would keep
/// the thread busy too long with copying and decompressing.
const NOWAIT_BYTES_MAX: u64 = 256 << 10;

impl Table {
    /// The uncompressed bytes of a block.
    pub(super) fn read(
        &self,
        root: &Root,
        extent: Extent,
        kind: FrameKind,
        wait: Wait,
    ) -> Result<Option<Vec<u8>>, Error> {
        if extent.bytes > NOWAIT_BYTES_MAX {
            return match wait {
                Wait::Allowed => self.read_large(root, extent, kind).map(Some),
                Wait::Never => Ok(None),
            };
        }
        let mut stored = vec![0; extent.bytes as usize];
        if wait == Wait::Allowed {
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
        let unpacking_bytes = trailer.unpacking_bytes();
        let is_large = unpacking_bytes > NOWAIT_BYTES_MAX;
        if is_large && wait == Wait::Never {
            return Ok(None);
        }
        let begin = || consent::begin(self.cache.large_reads(), unpacking_bytes, unpacking_bytes);
        let _turn = is_large.then(begin).transpose()?;
        self.unpack(Cow::Owned(stored), trailer, extent).map(Some)
    }

    /// The same of a block that is large as it is stored: what it takes in all is known, and waited for, before it is read.
    fn read_large(&self, root: &Root, extent: Extent, kind: FrameKind) -> Result<Vec<u8>, Error> {
        let mut end = [0; FRAME_BYTES];
        read_exact(&*root.file, self.path(), &mut end, extent.end() - FRAME_BYTES as u64)?;
        let unpacking_bytes = frame::claimed_unpacking_bytes(end);
        let left_bytes = if unpacking_bytes > 0 { unpacking_bytes } else { extent.bytes };
        let bytes = extent.bytes + unpacking_bytes;
        let _turn = consent::begin(self.cache.large_reads(), bytes, left_bytes)?;
        let mut stored = vec![0; extent.bytes as usize];
        read_exact(&*root.file, self.path(), &mut stored, extent.offset)?;
        self.unframe(Cow::Owned(stored), extent, kind)
    }

    /// A block by itself, past the cache.
    pub(super) fn read_alone<B: Block>(&self, root: &Root, extent: Extent) -> Result<B, Error> {
        let raw = self.read(root, extent, B::FRAME, Wait::Allowed)?;
        let raw = raw.expect("a read that may wait does not say that it would");
        B::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }

    /// A block among its neighbours, past the cache.
    pub(super) fn read_uncached<B: Block>(&self, window: &mut Window, extent: Extent) -> Result<B, Error> {
        let stored = window.read(extent)?;
        let raw = self.unframe(stored, extent, B::FRAME)?;
        B::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }

    /// A data block among its neighbours, past the cache; if it is huge, as it is stored too.
    pub(super) fn read_with_stored(
        &self,
        window: &mut Window,
        extent: Extent,
    ) -> Result<(DataBlock, Option<KeptFrame>), Error> {
        let stored = window.read(extent)?;
        let trailer = self.check(&stored, extent, FrameKind::Data)?;
        let (raw, compressed) = match trailer.is_compressed() {
            true => (self.unpack(Cow::Borrowed(&stored), trailer, extent)?, Some(stored)),
            false => (self.unpack(stored, trailer, extent)?, None),
        };
        let block = DataBlock::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))?;
        let kept =
            block.is_huge().then(|| KeptFrame { trailer, compressed: compressed.map(Cow::into_owned) });
        Ok((block, kept))
    }

    pub(super) fn unframe(
        &self,
        stored: Cow<'_, [u8]>,
        extent: Extent,
        kind: FrameKind,
    ) -> Result<Vec<u8>, Error> {
        let trailer = self.check(&stored, extent, kind)?;
        self.unpack(stored, trailer, extent)
    }

    fn check(&self, stored: &[u8], extent: Extent, kind: FrameKind) -> Result<Trailer, Error> {
        let place = Place { table: self.id(), offset: extent.offset };
        Trailer::check(stored, kind, place).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }

    fn unpack(&self, stored: Cow<'_, [u8]>, trailer: Trailer, extent: Extent) -> Result<Vec<u8>, Error> {
        trailer.unpack(stored).map_err(|malformed| self.corrupt(extent.offset, malformed))
    }
}

/// What of the frame of a block is kept beside the block, so that both make up the frame again.
pub(super) struct KeptFrame {
    trailer: Trailer,
    /// The frame, if the payload is not the block itself.
    compressed: Option<Vec<u8>>,
}

impl KeptFrame {
    /// `block`, of whose frame this was kept, as it is stored.
    pub(super) fn stored<'a>(&'a self, block: &'a DataBlock) -> Stored<'a> {
        let payload = self.compressed.as_deref().map_or(block.as_ref(), frame::payload);
        Stored { payload, trailer: self.trailer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compression;
    use crate::cache::BlockCache;
    use crate::sstable::{Lookup, TableFiles, TableId, TableOptions, TableWriter, read_with_consent};
    use env::{Fs, MemFs, OpenMode};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;
    use stdx::{Cell, Hlc, NodeTag, Rng, Version};
    use xxhash_rust::xxh3::xxh3_64;

    const KEY: &[u8] = b"key";
    const MIB: usize = 1 << 20;

    /// A table of one value: so much of it is noise, and all the rest compresses to nothing.
    fn table(len: usize, noisy: usize) -> Table {
        let (fs, path, id) = (MemFs::new(), PathBuf::from("table.sst"), TableId(1));
        let file = fs.open(&path, OpenMode::CreateNew).expect("a new file");
        let options = TableOptions { compression: Compression::Lz4, ..TableOptions::default() };
        let mut value = vec![0; len];
        Rng::new(1).fill(&mut value[..noisy]);
        let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, value.into());
        let mut writer = TableWriter::new(file, path.clone(), id, options);
        writer.add(KEY, cell.as_ref()).expect("there is room");
        let meta = Arc::new(writer.finish().expect("there is room"));
        let files = Arc::new(TableFiles::new(Arc::new(fs), 1));
        Table::open(&files, path, meta, Arc::new(BlockCache::new(1 << 20)), Arc::new(|_| ()))
    }

    fn get(table: &Table, wait: Wait) -> Lookup {
        table.get(KEY, xxh3_64(KEY), wait).expect("the table is whole")
    }

    #[test]
    fn a_read_takes_its_turn_by_what_it_takes_in_memory() {
        // What else is being read, beside which there is room for a value or not.
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
                let turn = reads.wait(taken as u64);
                let reader = scope.spawn(|| get(&table, Wait::Allowed));
                while reads.came_and_began().0 < 2 {
                    std::thread::yield_now();
                }
                if has_room {
                    reader.join().expect("it does not wait");
                    drop(turn);
                } else {
                    assert_eq!(reads.came_and_began().1, 1, "{noisy} of {len} beside {taken}");
                    drop(turn);
                    reader.join().expect("it has its turn");
                }
            });
        }
    }

    #[test]
    fn a_host_is_asked_how_much_there_is_room_for_before_it_is_read() {
        for noisy in [8 * MIB, 4 * MIB, 0] {
            let table = table(8 * MIB, noisy);
            let reads = table.cache.large_reads();
            let is_value = |bytes: u64| (8 * MIB as u64..8 * MIB as u64 + 100).contains(&bytes);
            let refuse = move |bytes| {
                assert!(is_value(bytes), "{noisy}: {bytes}");
                Err(Duration::from_secs(1))
            };
            let (found, turn) = read_with_consent(refuse, || table.get(KEY, xxh3_64(KEY), Wait::Allowed));
            assert!(matches!(found, Err(Error::NoRoom { .. })) && turn.is_none(), "{noisy}");
            assert_eq!(reads.came_and_began(), (0, 0), "{noisy}: it was not read");
            let (found, turn) = read_with_consent(|_| Ok(()), || get(&table, Wait::Allowed));
            assert!(matches!(found, Lookup::Found(_)));
            assert!(turn.expect("it is large").bytes() >= 8 * MIB as u64);
        }
    }

    #[test]
    fn who_does_not_wait_does_not_unpack_what_is_large() {
        let (large, small) = (table(8 * MIB, 0), table(100 << 10, 0));
        for table in [&large, &small] {
            assert!(matches!(get(table, Wait::Allowed), Lookup::Found(_)));
        }
        assert_eq!(get(&large, Wait::Never), Lookup::WouldWait);
        assert!(matches!(get(&small, Wait::Never), Lookup::Found(_)));
    }
}
