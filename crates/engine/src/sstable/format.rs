//! The two ends of a table file, and the meta block.
//!
//! ```text
//! header:  magic 8 | format version u32 | table id u64 | crc u32
//! tail:    top offset u64 | top length u32 | meta offset u64 | meta length u32 | table id u64
//!          | crc u32 | format version u32 | magic 8
//! ```

use super::malformed::Malformed;
use super::meta::{TableId, TableMeta};
use bytes::Bytes;
use stdx::codec::{Reader, Truncated, put_bytes, put_varint, put_version};
use stdx::{Version, WallTime};

const MAGIC: [u8; 8] = *b"vechesst";
/// Length of the header in bytes, and offset of the first data block.
pub(super) const HEADER_BYTES: u64 = 24;
/// Length of the checksum, format version and magic, which the tail's checksum does not cover, in
/// bytes.
const UNCOVERED_BYTES: usize = 16;
/// Length of the tail, in bytes.
pub(super) const TAIL_BYTES: u64 = 48;

/// Version of the format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum FormatVersion {
    /// The indexes contain no cells.
    V1 = 1,
    /// The indexes contain the metadata of each oversized cell. All else is as in version 1.
    V2 = 2,
}

impl FormatVersion {
    fn decode(version: u32) -> Result<Self, Malformed> {
        match version {
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            _ => Err(Malformed("the format version is unknown")),
        }
    }
}

/// Location of a framed block in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Extent {
    /// The extent between two offsets, which must be in order and within `HEADER_BYTES..=limit`.
    pub(super) fn between(start: u64, end: u64, limit: u64) -> Result<Self, Malformed> {
        if HEADER_BYTES <= start && start < end && end <= limit {
            return Ok(Self { offset: start, bytes: end - start });
        }
        Err(Malformed("the index locates a block outside of the file"))
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Encodes the header of the table `id`.
pub(super) fn header(id: TableId, format: FormatVersion) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&(format as u32).to_le_bytes());
    out.extend_from_slice(&id.0.to_le_bytes());
    out.extend_from_slice(&crc_fast::crc32_iscsi(&out).to_le_bytes());
    out
}

/// Content of the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) top: Extent,
    pub(super) meta: Extent,
    pub(super) id: TableId,
    pub(super) format: FormatVersion,
}

impl Tail {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TAIL_BYTES as usize);
        for extent in [self.top, self.meta] {
            out.extend_from_slice(&extent.offset.to_le_bytes());
            out.extend_from_slice(&(extent.bytes as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&crc_fast::crc32_iscsi(&out).to_le_bytes());
        out.extend_from_slice(&(self.format as u32).to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out
    }

    /// Decodes the tail of a file of `file_bytes` bytes.
    pub(super) fn decode(bytes: &[u8; TAIL_BYTES as usize], file_bytes: u64) -> Result<Self, Malformed> {
        Self::fields(bytes, file_bytes).unwrap_or(Err(Malformed("the tail is too short")))
    }

    fn fields(bytes: &[u8], file_bytes: u64) -> Result<Result<Self, Malformed>, Truncated> {
        let mut reader = Reader::new(bytes);
        let covered = &bytes[..bytes.len() - UNCOVERED_BYTES];
        let (top, top_len) = (reader.u64()?, u64::from(reader.u32()?));
        let (meta, meta_len) = (reader.u64()?, u64::from(reader.u32()?));
        let id = TableId(reader.u64()?);
        let (crc, format, magic) = (reader.u32()?, reader.u32()?, reader.array::<8>()?);
        if magic != MAGIC {
            return Ok(Err(Malformed("the file does not end with the tail of a table")));
        }
        let format = match FormatVersion::decode(format) {
            Ok(format) => format,
            Err(unknown) => return Ok(Err(unknown)),
        };
        if crc_fast::crc32_iscsi(covered) != crc {
            return Ok(Err(Malformed("the checksum of the tail does not match")));
        }
        let limit = file_bytes.saturating_sub(TAIL_BYTES);
        let extent = |offset: u64, len: u64| Extent::between(offset, offset.saturating_add(len), limit);
        let extents = extent(top, top_len).and_then(|top| Ok((top, extent(meta, meta_len)?)));
        Ok(extents.map(|(top, meta)| Self { top, meta, id, format }))
    }
}

/// Encodes the meta block: all of `meta` except the id, which the tail contains, and the length of
/// the file.
pub(super) fn encode_meta(meta: &TableMeta) -> Vec<u8> {
    let mut out = Vec::new();
    for count in [meta.data_bytes, meta.cells, meta.tombstones, meta.expiring] {
        put_varint(&mut out, count);
    }
    put_bytes(&mut out, &meta.key_min);
    put_bytes(&mut out, &meta.key_max);
    put_version(&mut out, meta.version_min);
    put_version(&mut out, meta.version_max);
    out.push(u8::from(meta.droppable_from.is_some()));
    let droppable_from = meta.droppable_from.map_or(0, WallTime::micros_since_unix_epoch);
    out.extend_from_slice(&droppable_from.to_le_bytes());
    out
}

/// Inverse of [`encode_meta`].
pub(super) fn decode_meta(bytes: &[u8], id: TableId, file_bytes: u64) -> Result<TableMeta, Malformed> {
    let mut reader = Reader::new(bytes);
    let meta = read_meta(&mut reader, id, file_bytes);
    match meta {
        Ok(meta) if reader.is_empty() => Ok(meta),
        _ => Err(Malformed("the meta block is malformed")),
    }
}

fn read_meta(reader: &mut Reader<'_>, id: TableId, file_bytes: u64) -> Result<TableMeta, Truncated> {
    let [data_bytes, cells, tombstones, expiring] =
        [reader.varint()?, reader.varint()?, reader.varint()?, reader.varint()?];
    let [key_min, key_max] =
        [reader.length_prefixed()?, reader.length_prefixed()?].map(Bytes::copy_from_slice);
    let [version_min, version_max]: [Version; 2] = [reader.version()?, reader.version()?];
    let (droppable, at) = (reader.u8()? != 0, reader.u64()?);
    Ok(TableMeta {
        id,
        file_bytes,
        data_bytes,
        cells,
        tombstones,
        expiring,
        key_min,
        key_max,
        version_min,
        version_max,
        droppable_from: droppable.then(|| WallTime::from_micros_since_unix_epoch(at)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_flipped_bit_of_a_tail_is_detected() {
        let (top, meta) = (Extent { offset: 100, bytes: 50 }, Extent { offset: 150, bytes: 60 });
        for format in [FormatVersion::V1, FormatVersion::V2] {
            let tail = Tail { top, meta, id: TableId(3), format };
            let bytes: [u8; TAIL_BYTES as usize] = tail.encode().try_into().unwrap();
            let file_bytes = 210 + TAIL_BYTES;
            assert_eq!(Tail::decode(&bytes, file_bytes), Ok(tail));
            assert!(
                Tail::decode(&bytes, file_bytes - 1).is_err(),
                "the meta block would reach into the tail"
            );
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(Tail::decode(&flipped, file_bytes).is_err(), "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn metas_round_trip(counts: [u64; 4], keys: [Vec<u8>; 2], versions: [[u8; 16]; 2], droppable: Option<u64>) {
            let [data_bytes, cells, tombstones, expiring] = counts;
            let [key_min, key_max] = keys.map(Bytes::from);
            let [version_min, version_max] = versions.map(Version::from_bytes);
            let droppable_from = droppable.map(WallTime::from_micros_since_unix_epoch);
            let meta = TableMeta {
                id: TableId(9), file_bytes: 77, data_bytes, cells, tombstones, expiring, key_min, key_max,
                version_min, version_max, droppable_from,
            };
            let bytes = encode_meta(&meta);
            prop_assert_eq!(decode_meta(&bytes, meta.id, meta.file_bytes), Ok(meta));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes: Vec<u8>) {
            let _ = decode_meta(&bytes, TableId(1), 1);
        }
    }
}
