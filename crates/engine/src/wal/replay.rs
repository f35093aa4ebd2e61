//! Reading a segment: which of its groups are to be believed.
//!
//! **Promise.** Given the bytes of a segment, [`replay_bytes`] returns every group that was durable, or says
//! that one of them is damaged; it never returns a part of a group, a group of an earlier use of the file, or
//! a group behind a gap. It does no I/O, never panics, and takes no memory that grows with what the bytes say.
//!
//! **Mechanism.** Groups are walked from the header on. The first that is not whole is either damage or the
//! torn tail of a crash, and the log itself knows which: a group's header names the offset below which all
//! was durable when it was written. So the rest is searched for headers of the same epoch, and when any names
//! an offset beyond the bad group, that group had been acknowledged and is damaged. When a later segment
//! names the durable length of this one, there is no tail: all below it must be whole.
//!
//! **Caveats.** Damage to the last durable group of the last segment cannot be told from a torn tail, unless
//! a closing record follows it. A value that holds a forged header (it must guess the epoch and its own
//! offset) can make a torn tail look like damage; it can never make damage look whole.

use super::checksum::Digest;
use super::format::{Epoch, GROUP_HEADER_LEN, GroupHeader, SEGMENT_HEADER_LEN, SegmentHeader, group_start};
use super::record::{self, RecordCells};
use memchr::memmem;

/// Where the groups of a segment end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentEnd {
    /// At this offset: the next segment says so.
    Known(u64),
    /// At the first group that is not whole: no segment follows.
    Torn,
    /// At this offset, or before it at the first group that is not whole: the next segment names the offset, but power loss
    /// may have taken the end before it was durable.
    Unsynced(u64),
}

/// A segment whose groups were all checked.
#[derive(Clone, Debug)]
pub struct SegmentContents<'a> {
    bytes: &'a [u8],
    /// What the segment begins with.
    pub header: SegmentHeader,
    /// Groups, closing records included.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Cells in these.
    pub cells: u64,
    /// Where the last group ends, in bytes.
    pub len: u64,
    /// The greatest offset that a group names as durable, in bytes.
    pub durable: u64,
    /// From `len` to the end of the last group that can be told to have begun behind it, in bytes.
    pub cut_bytes: u64,
    /// The header of the last group.
    pub(super) last_group: Option<GroupHeader>,
}

/// Bytes of a segment that are not what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {detail}")]
pub struct Damage {
    /// Where the bad part begins.
    pub offset: u64,
    /// What is wrong with it.
    pub detail: String,
}

/// Checks one segment from its first byte to its end. `bytes` may go on behind the end.
///
/// # Errors
/// When something that was durable is not whole.
pub fn replay_bytes(bytes: &[u8], end: SegmentEnd) -> Result<SegmentContents<'_>, Damage> {
    let header = SegmentHeader::decode(bytes).map_err(|detail| Damage { offset: 0, detail })?;
    let mut contents = SegmentContents::empty(bytes, header);
    match end {
        SegmentEnd::Known(len) => contents.walk_to(len)?,
        SegmentEnd::Torn => contents.walk_to_tail(u64::MAX)?,
        SegmentEnd::Unsynced(len) => contents.walk_to_tail(len)?,
    }
    Ok(contents)
}

impl<'a> SegmentContents<'a> {
    /// The records, in the order they were written.
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

    /// Takes groups up to exactly `len`.
    fn walk_to(&mut self, len: u64) -> Result<(), Damage> {
        while self.len != len {
            let group = self.next_group().map_err(|detail| Damage { offset: self.len, detail })?;
            if group.header.end() > len {
                let detail = format!("a group ends at {}, the next segment says {len}", group.header.end());
                return Err(Damage { offset: self.len, detail });
            }
            self.take(&group);
        }
        self.durable = len;
        Ok(())
    }

    /// Takes groups while they are whole, at most up to `len`; then sees to it that nothing behind them had been durable.
    fn walk_to_tail(&mut self, len: u64) -> Result<(), Damage> {
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
                return Err(Damage { offset: self.len, detail });
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

/// Walks the records of a checked segment.
#[derive(Clone, Debug)]
pub struct SegmentRecords<'a> {
    /// The segment up to the end of its last group.
    bytes: &'a [u8],
    epoch: Epoch,
    /// Where the next record begins, or the next group when none is left of this one.
    at: usize,
    /// Records of the current group that are left.
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

/// The headers of this segment's groups, at `from` and behind it, that are whole; their records may not be.
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

/// A group that is whole.
struct Group {
    header: GroupHeader,
    cells: u64,
}

/// Counts the cells of a group's records, which must fill `bytes` exactly and be those of the header.
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
