//! Decoding of a segment: which of its groups are valid.
//!
//! **Promise.** Given the bytes of a segment, [`replay_bytes`] returns every durable group, or
//! reports that one is damaged. It never returns a partial group, a group of an earlier use of the
//! file, or a group behind a gap. It does no I/O, never panics, and allocates no memory that
//! depends on the bytes.
//!
//! **Mechanism.** Groups are decoded from the header on. The first group that is not whole is
//! either damage or the torn tail of a crash. The log itself distinguishes the two: a group header
//! names the offset below which everything was durable when it was written. So the rest is searched
//! for headers of the same epoch. If one names an offset beyond the bad group, that group had been
//! acknowledged and is damaged. If a later segment names the durable length of this one, there is
//! no tail: everything below that length must be whole.
//!
//! **Caveats.** Damage to the last durable group of the last segment cannot be distinguished from a
//! torn tail, unless a closing record follows. A value that contains a forged header (its author
//! must guess the epoch and the offset) can make a torn tail look like damage; it can never make
//! damage look whole.

use super::checksum::Digest;
use super::format::{Epoch, GROUP_HEADER_LEN, GroupHeader, SEGMENT_HEADER_LEN, SegmentHeader, group_start};
use super::record::{self, RecordCells};
use memchr::memmem;

/// The end of the groups of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentEnd {
    /// The groups end at this offset, which the next segment names.
    Known(u64),
    /// The groups end before the first one that is not whole. No segment follows.
    Torn,
    /// The groups end at this offset, which the next segment names, or before the first that is not
    /// whole: power loss may have taken the end before it was durable.
    Unsynced(u64),
}

/// A segment whose groups were all verified.
#[derive(Clone, Debug)]
pub struct SegmentContents<'a> {
    bytes: &'a [u8],
    /// Header of the segment.
    pub header: SegmentHeader,
    /// Number of groups, closing records included.
    pub groups: u64,
    /// Number of records in the groups.
    pub records: u64,
    /// Number of cells in the records.
    pub cells: u64,
    /// End of the last group, in bytes.
    pub len: u64,
    /// Greatest durable offset in any group header, in bytes.
    pub durable: u64,
    /// Bytes from `len` to the end of the last torn group that can be recognised.
    pub cut_bytes: u64,
    /// Header of the last group.
    pub(super) last_group: Option<GroupHeader>,
}

/// Damage to a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {detail}")]
pub struct SegmentDamage {
    /// Offset of the damaged part, in bytes.
    pub offset: u64,
    /// Description of the damage.
    pub detail: String,
}

/// Verifies one segment up to its end. `bytes` may continue behind it.
///
/// # Errors
/// When durable data is not whole.
pub fn replay_bytes(bytes: &[u8], end: SegmentEnd) -> Result<SegmentContents<'_>, SegmentDamage> {
    let header = SegmentHeader::decode(bytes).map_err(|detail| SegmentDamage { offset: 0, detail })?;
    let mut contents = SegmentContents::empty(bytes, header);
    match end {
        SegmentEnd::Known(len) => contents.walk_to(len)?,
        SegmentEnd::Torn => contents.walk_to_tail(u64::MAX)?,
        SegmentEnd::Unsynced(len) => contents.walk_to_tail(len)?,
    }
    Ok(contents)
}

impl<'a> SegmentContents<'a> {
    /// The records, in the order in which they were written.
    pub fn iter(&self) -> SegmentRecords<'a> {
        SegmentRecords {
            bytes: &self.bytes[..self.len as usize],
            epoch: self.header.epoch,
            at: SEGMENT_HEADER_LEN,
            records: 0,
        }
    }

    /// The bytes from this offset to the end of the last group.
    pub(super) fn bytes_from(&self, offset: u64) -> &'a [u8] {
        &self.bytes[offset as usize..self.len as usize]
    }

    fn empty(bytes: &'a [u8], header: SegmentHeader) -> Self {
        let len = SEGMENT_HEADER_LEN as u64;
        Self {
            bytes,
            header,
            groups: 0,
            records: 0,
            cells: 0,
            len,
            durable: len,
            cut_bytes: 0,
            last_group: None,
        }
    }

    /// Decodes groups up to exactly `len`.
    fn walk_to(&mut self, len: u64) -> Result<(), SegmentDamage> {
        while self.len != len {
            let group = self.next_group().map_err(|detail| SegmentDamage { offset: self.len, detail })?;
            if group.header.end() > len {
                let detail = format!("a group ends at {}, the next segment says {len}", group.header.end());
                return Err(SegmentDamage { offset: self.len, detail });
            }
            self.take(&group);
        }
        self.durable = len;
        Ok(())
    }

    /// Decodes groups while they are whole, at most up to `len`; then checks that no durable data
    /// follows.
    fn walk_to_tail(&mut self, len: u64) -> Result<(), SegmentDamage> {
        let flaw = loop {
            if self.len == len {
                return Ok(());
            }
            match self.next_group() {
                Ok(group) if group.header.end() > len => {
                    break format!("a group ends at {}, the next segment says {len}", group.header.end());
                }
                Ok(group) => self.take(&group),
                Err(flaw) => break flaw,
            }
        };
        let mut tail_end = self.len;
        for header in headers_from(self.bytes, self.len as usize, self.header.epoch) {
            if header.durable > self.len {
                let detail = format!("{flaw}, yet the group at {} names it as durable", header.offset);
                return Err(SegmentDamage { offset: self.len, detail });
            }
            tail_end = tail_end.max(header.end().min(self.bytes.len() as u64));
        }
        self.cut_bytes = tail_end - self.len;
        Ok(())
    }

    fn next_group(&self) -> Result<Group, String> {
        let header = GroupHeader::decode(self.bytes, self.len as usize, self.header.epoch)
            .ok_or_else(|| "no group begins here".to_owned())?;
        let records = (usize::try_from(header.end()).ok())
            .and_then(|end| self.bytes.get(self.len as usize + GROUP_HEADER_LEN..end))
            .ok_or_else(|| format!("a group of {} bytes ends beyond the segment", header.length))?;
        let cells = check_records(&header, records)?;
        Ok(Group { header, cells })
    }

    fn take(&mut self, group: &Group) {
        self.groups += 1;
        self.records += u64::from(group.header.records);
        self.cells += group.cells;
        self.len = group.header.end();
        self.durable = self.durable.max(group.header.durable);
        self.last_group = Some(group.header);
    }
}

impl<'a> IntoIterator for &SegmentContents<'a> {
    type Item = RecordCells<'a>;
    type IntoIter = SegmentRecords<'a>;

    fn into_iter(self) -> SegmentRecords<'a> {
        self.iter()
    }
}

/// Iterator over the records of a verified segment.
#[derive(Clone, Debug)]
pub struct SegmentRecords<'a> {
    /// The segment up to the end of its last group.
    bytes: &'a [u8],
    epoch: Epoch,
    /// Offset of the next record, or of the next group when this one has none left.
    at: usize,
    /// Remaining records of the current group.
    records: u32,
}

impl<'a> Iterator for SegmentRecords<'a> {
    type Item = RecordCells<'a>;

    fn next(&mut self) -> Option<RecordCells<'a>> {
        while self.records == 0 {
            self.records = GroupHeader::decode(self.bytes, self.at, self.epoch)?.records;
            self.at += GROUP_HEADER_LEN;
        }
        self.records -= 1;
        let (cells, len) = record::decode_checked(&self.bytes[self.at..]);
        self.at += len;
        Some(cells)
    }
}

/// Whole group headers of this epoch at `from` or later. Their records may be damaged.
fn headers_from(bytes: &[u8], from: usize, epoch: Epoch) -> impl Iterator<Item = GroupHeader> {
    let finder = memmem::Finder::new(&group_start(epoch)).into_owned();
    let mut at = from;
    std::iter::from_fn(move || {
        loop {
            let found = at + finder.find(bytes.get(at..)?)?;
            at = found + 1;
            if let Some(header) = GroupHeader::decode(bytes, found, epoch) {
                return Some(header);
            }
        }
    })
}

/// A whole group.
struct Group {
    header: GroupHeader,
    cells: u64,
}

/// Verifies a group's records, which must fill `bytes` exactly and match the header. Returns their
/// number of cells.
fn check_records(header: &GroupHeader, bytes: &[u8]) -> Result<u64, String> {
    let mut rest = bytes;
    let mut cells = 0;
    let mut digest = Digest::new();
    for number in 0..header.records {
        let record =
            record::decode(rest).map_err(|error| format!("record {number} of the group: {error}"))?;
        cells += record.cells.len() as u64;
        digest.add(record.crc);
        rest = &rest[record.len..];
    }
    match rest.is_empty() && digest.finish() == header.digest {
        true => Ok(cells),
        false => Err("the records are not those of the group's header".to_owned()),
    }
}
