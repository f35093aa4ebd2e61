//! Encoding of the headers of segments and groups.
//!
//! `docs/storage-format/wal.md` shows the format byte by byte. This module does no I/O.

use super::checksum::crc32c;
use stdx::codec::{Reader, Truncated};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Id of a log segment. Ids ascend and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentId(pub u64);

/// Number that distinguishes the groups of one use of a file from remains of earlier uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of segment `id`. It depends on the whole earlier log: a client that chooses values
    /// cannot predict it, and no two uses of a file have the same.
    pub(super) fn of(id: SegmentId, previous: Option<(Self, Option<GroupHeader>)>) -> Self {
        let (epoch, last_group) = previous.unwrap_or((Self(0), None));
        let seed = match last_group {
            Some(header) => xxh3_64_with_seed(&header.encode(), epoch.0),
            None => epoch.0,
        };
        Self(xxh3_64_with_seed(&id.0.to_le_bytes(), seed))
    }
}

/// The segment before another, with its durable length. Nothing beyond that length is ever read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousSegment {
    /// Id of the segment.
    pub id: SegmentId,
    /// Durable length of the segment, in bytes.
    pub len: u64,
}

/// A position in the log: every byte before it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogEnd {
    /// The last segment.
    pub segment: SegmentId,
    /// Durable length of this segment, in bytes.
    pub len: u64,
}

/// Properties of a log that are known before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownLog {
    /// The first segment that is needed.
    pub floor: SegmentId,
    /// A position up to which the log was durable. A log that ends before it has lost acknowledged
    /// records. `None`: not known.
    pub known_end: Option<LogEnd>,
}

impl From<SegmentId> for KnownLog {
    /// A log of which only the floor is known.
    fn from(floor: SegmentId) -> Self {
        Self { floor, known_end: None }
    }
}

/// Header of a segment. It is one disk sector, so that it is written atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Id of the segment.
    pub id: SegmentId,
    /// Epoch of the groups in the segment.
    pub epoch: Epoch,
    /// The segment before this one, if there was one.
    pub previous: Option<PreviousSegment>,
    /// Whether power loss may take the end of this segment although another follows, and the header
    /// and name of that one. Only under [`Durability::Os`](crate::Durability::Os), until the next
    /// segment is durable.
    pub is_unsynced: bool,
}

/// Header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupHeader {
    /// Epoch of the segment.
    pub(super) epoch: Epoch,
    /// Number of records; 0 for a closing record.
    pub(super) records: u32,
    /// Offset of this header in the file, in bytes.
    pub(super) offset: u64,
    /// Length of the records, in bytes.
    pub(super) length: u64,
    /// Offset below which the segment was durable when the group was written.
    pub(super) durable: u64,
    /// CRC32C over the checksums of the records: binds the header to these records.
    pub(super) digest: u32,
}

/// Length of a segment header, in bytes; the first group follows it.
pub(super) const SEGMENT_HEADER_LEN: usize = 512;
/// Length of a group's header, in bytes.
pub(super) const GROUP_HEADER_LEN: usize = 48;

const SEGMENT_MAGIC: [u8; 8] = *b"vecheWAL";
const FORMAT_VERSION: u32 = 1;
const SEGMENT_CHECKED_LEN: usize = 48;
const FLAG_HAS_PREVIOUS: u32 = 1 << 0;
const FLAG_UNSYNCED: u32 = 1 << 1;

const GROUP_MAGIC: [u8; 4] = *b"vGRP";
const GROUP_CHECKED_LEN: usize = 44;

/// Length of the common prefix of the group headers of a segment, in bytes.
pub(super) const GROUP_START_LEN: usize = 12;

/// Common prefix of the group headers of a segment, to search for them.
pub(super) fn group_start(epoch: Epoch) -> [u8; GROUP_START_LEN] {
    let mut start = [0; GROUP_START_LEN];
    start[..4].copy_from_slice(&GROUP_MAGIC);
    start[4..].copy_from_slice(&epoch.0.to_le_bytes());
    start
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER_LEN] {
        let mut bytes = [0; SEGMENT_HEADER_LEN];
        let has_previous = if self.previous.is_some() { FLAG_HAS_PREVIOUS } else { 0 };
        let unsynced = if self.is_unsynced { FLAG_UNSYNCED } else { 0 };
        let flags = has_previous | unsynced;
        let previous = self.previous.unwrap_or(PreviousSegment { id: SegmentId(0), len: 0 });
        bytes[0..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&previous.id.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&previous.len.to_le_bytes());
        let crc = crc32c(&bytes[..SEGMENT_CHECKED_LEN]);
        bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at the start of `bytes`. The error describes the damage.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let short = |_: Truncated| "the file ends inside the segment's header".to_owned();
        let bytes = bytes.get(..SEGMENT_HEADER_LEN).ok_or_else(|| short(Truncated))?;
        let mut reader = Reader::new(bytes);
        if reader.array().map_err(short)? != SEGMENT_MAGIC {
            return Err("this is not a segment of a write-ahead log".to_owned());
        }
        let version = reader.u32().map_err(short)?;
        if version != FORMAT_VERSION {
            return Err(format!("its format version is {version}, known is {FORMAT_VERSION}"));
        }
        let flags = reader.u32().map_err(short)?;
        let id = SegmentId(reader.u64().map_err(short)?);
        let epoch = Epoch(reader.u64().map_err(short)?);
        let link = PreviousSegment {
            id: SegmentId(reader.u64().map_err(short)?),
            len: reader.u64().map_err(short)?,
        };
        let expected = reader.u32().map_err(short)?;
        let got = crc32c(&bytes[..SEGMENT_CHECKED_LEN]);
        if got != expected {
            return Err(format!(
                "the checksum of the segment's header is {expected:08x}, its bytes give {got:08x}"
            ));
        }
        let unknown = flags & !(FLAG_HAS_PREVIOUS | FLAG_UNSYNCED);
        if unknown != 0 {
            return Err(format!("its header has flags that this version does not know: {unknown:#x}"));
        }
        let previous = (flags & FLAG_HAS_PREVIOUS != 0).then_some(link);
        Ok(Self { id, epoch, previous, is_unsynced: flags & FLAG_UNSYNCED != 0 })
    }
}

impl GroupHeader {
    pub(super) fn encode(&self) -> [u8; GROUP_HEADER_LEN] {
        let mut bytes = [0; GROUP_HEADER_LEN];
        bytes[0..12].copy_from_slice(&group_start(self.epoch));
        bytes[12..16].copy_from_slice(&self.records.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.durable.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.digest.to_le_bytes());
        let crc = crc32c(&bytes[..GROUP_CHECKED_LEN]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of a group of `epoch` at `offset` of `segment`; `None` if there is none.
    pub(super) fn decode(segment: &[u8], offset: usize, epoch: Epoch) -> Option<Self> {
        let bytes = segment.get(offset..)?.get(..GROUP_HEADER_LEN)?;
        let fields = |mut reader: Reader<'_>| -> Result<(Self, u32), Truncated> {
            let records = reader.u32()?;
            let (offset, length, durable) = (reader.u64()?, reader.u64()?, reader.u64()?);
            Ok((Self { epoch, records, offset, length, durable, digest: reader.u32()? }, reader.u32()?))
        };
        let (start, rest) = bytes.split_at(GROUP_START_LEN);
        let (header, crc) = fields(Reader::new(rest)).ok()?;
        let is_ours = start == group_start(epoch)
            && crc == crc32c(&bytes[..GROUP_CHECKED_LEN])
            && header.offset == offset as u64
            && header.durable <= header.offset;
        is_ours.then_some(header)
    }

    /// Offset of the end of the group in the file, in bytes.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(GROUP_HEADER_LEN as u64).saturating_add(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segment_headers_round_trip(id: u64, epoch: u64, link: Option<(u64, u64)>, is_unsynced: bool) {
            let previous = link.map(|(id, len)| PreviousSegment { id: SegmentId(id), len });
            let header = SegmentHeader { id: SegmentId(id), epoch: Epoch(epoch), previous, is_unsynced };
            prop_assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_segment_header_with_an_unknown_flag_is_refused(id: u64, bit in 2u32..32) {
            let header = SegmentHeader { id: SegmentId(id), epoch: Epoch(1), previous: None, is_unsynced: false };
            let mut bytes = header.encode();
            bytes[12..16].copy_from_slice(&(1u32 << bit).to_le_bytes());
            let crc = crc32c(&bytes[..SEGMENT_CHECKED_LEN]);
            bytes[48..52].copy_from_slice(&crc.to_le_bytes());
            let error = SegmentHeader::decode(&bytes).expect_err("the flag has no meaning");
            prop_assert!(error.contains("flags that this version does not know"), "{}", error);
        }

        #[test]
        fn group_headers_round_trip_only_at_their_offset_and_epoch(
            epoch: u64, records: u32, offset in 0usize..200, length: u64, back in 0u64..200, digest: u32,
        ) {
            let durable = (offset as u64).saturating_sub(back);
            let epoch = Epoch(epoch);
            let header = GroupHeader { epoch, records, offset: offset as u64, length, durable, digest };
            let mut segment = vec![0; offset];
            segment.extend_from_slice(&header.encode());
            prop_assert_eq!(GroupHeader::decode(&segment, offset, epoch), Some(header));
            prop_assert_eq!(GroupHeader::decode(&segment, offset, Epoch(!epoch.0)), None);
            segment.insert(0, 0);
            prop_assert_eq!(GroupHeader::decode(&segment, offset + 1, epoch), None);
        }
    }
}
