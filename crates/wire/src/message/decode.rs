//! Decoding of messages.
//!
//! The bytes come from outside. Every length and count is checked against the available bytes
//! before memory is allocated for it. A message must end with its last field.

use super::fields::{META_LEN_MIN, head, heartbeat_payload, is_present, key, meta, optional_key, wall};
use super::scan::{cut, page_heads, page_of, scan_request, snapshot};
use super::{DETAIL_BYTES_MAX, TIME_LEFT_SINCE, fault, kind, range_flag};
use crate::WireError;
use bytes::Bytes;
use cluster::{
    Key, Message, NodeSet, PeerAnswer, PeerFault, PeerRequest, RangeAnswer, RangeDigest, RangeRequest,
    ScanAnswer, StoreFault,
};
use std::time::Duration;
use stdx::codec::Reader;
use stdx::{Cell, CellKind, CellMeta, Hlc};

/// Decodes a message in this version of the protocol. Keys and values are copied out of `bytes`.
///
/// # Errors
/// [`WireError`].
pub(crate) fn decode(bytes: &[u8], version: u8) -> Result<Message, WireError> {
    Decoder { reader: Reader::new(bytes), version, owner: None }.message()
}

/// Decodes a message like [`decode`], but keeps a value or page at its end as a slice of `bytes`.
///
/// # Errors
/// [`WireError`].
pub(crate) fn decode_owned(bytes: &Bytes, version: u8) -> Result<Message, WireError> {
    Decoder { reader: Reader::new(bytes), version, owner: Some(bytes) }.message()
}

struct Decoder<'a> {
    reader: Reader<'a>,
    /// Version of the protocol.
    version: u8,
    /// The buffer that a value or page at the end may keep as a slice.
    owner: Option<&'a Bytes>,
}

impl Decoder<'_> {
    fn message(mut self) -> Result<Message, WireError> {
        let (kind, id) = head(&mut self.reader)?;
        let message = match kind & kind::ANSWER {
            0 => {
                let within = self.time_left()?;
                Message::Request { id, request: self.request(kind)?, within }
            }
            _ => Message::Answer { id, answer: self.answer(kind)? },
        };
        match self.reader.is_empty() {
            true => Ok(message),
            false => Err(WireError::Field { field: "length" }),
        }
    }

    /// Time for which the requester waits. `None`: unlimited, or not sent by this version.
    fn time_left(&mut self) -> Result<Option<Duration>, WireError> {
        if self.version < TIME_LEFT_SINCE {
            return Ok(None);
        }
        Ok(match self.reader.u32()? {
            0 => None,
            millis => Some(Duration::from_millis(u64::from(millis))),
        })
    }

    fn request(&mut self, kind: u8) -> Result<PeerRequest, WireError> {
        Ok(match kind {
            kind::READ_CELL => PeerRequest::ReadCell { key: self.key()? },
            kind::READ_META => PeerRequest::ReadMeta { key: self.key()? },
            kind::WRITE => self.write()?,
            kind::KEEP_HINTS => self.keep_hints()?,
            kind::HEARTBEAT => PeerRequest::Heartbeat(heartbeat_payload(&mut self.reader, self.version)?),
            kind::RANGE => PeerRequest::Range(self.range_request()?),
            kind::SCAN => PeerRequest::Scan(scan_request(&mut self.reader)?),
            kind::END_SCAN => PeerRequest::EndScan { snapshot: snapshot(&mut self.reader)? },
            kind => return Err(WireError::MessageKind { kind }),
        })
    }

    fn answer(&mut self, kind: u8) -> Result<PeerAnswer, WireError> {
        Ok(match kind {
            kind::CELL => PeerAnswer::Cell(match is_present(&mut self.reader)? {
                true => Some(self.last_cell()?),
                false => None,
            }),
            kind::META => PeerAnswer::Meta(match is_present(&mut self.reader)? {
                true => Some(meta(&mut self.reader)?),
                false => None,
            }),
            kind::WRITTEN => PeerAnswer::Written {
                superseded: match self.reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(WireError::Field { field: "answer to a write" }),
                },
            },
            kind::HINTS_KEPT => PeerAnswer::HintsKept,
            kind::HEARTBEAT_ANSWER => {
                PeerAnswer::Heartbeat(heartbeat_payload(&mut self.reader, self.version)?)
            }
            kind::RANGE_SAME => PeerAnswer::Range(RangeAnswer::Same),
            kind::RANGE_VERSIONS => PeerAnswer::Range(self.versions()?),
            kind::RANGE_CELLS => PeerAnswer::Range(self.cells()?),
            kind::SCAN_PAGE => PeerAnswer::Scan(self.page()?),
            kind::SCAN_SAME => PeerAnswer::Scan(ScanAnswer::Same),
            kind::SCAN_ENDED => PeerAnswer::ScanEnded,
            kind::FAILED => PeerAnswer::Failed(self.fault()?),
            kind => return Err(WireError::MessageKind { kind }),
        })
    }

    fn key(&mut self) -> Result<Key, WireError> {
        key(&mut self.reader)
    }

    fn write(&mut self) -> Result<PeerRequest, WireError> {
        let key = self.key()?;
        let hints = NodeSet::from_bits(self.reader.u64()?);
        Ok(PeerRequest::Write { key, cell: self.last_cell()?, hints })
    }

    fn keep_hints(&mut self) -> Result<PeerRequest, WireError> {
        let key = self.key()?;
        let version = self.reader.version()?;
        Ok(PeerRequest::KeepHints { key, version, targets: NodeSet::from_bits(self.reader.u64()?) })
    }

    fn range_request(&mut self) -> Result<RangeRequest, WireError> {
        let flags = self.reader.u8()?;
        if flags & !range_flag::ALL != 0 {
            return Err(WireError::Field { field: "kind of range" });
        }
        let cutoff = Hlc::from_bits(self.reader.u64()?);
        let digest = match flags & range_flag::DIGEST {
            0 => None,
            _ => Some(RangeDigest { keys: self.reader.u64()?, sum: self.reader.u64()? }),
        };
        let after = optional_key(&mut self.reader)?;
        let until = optional_key(&mut self.reader)?;
        Ok(RangeRequest { after, until, cutoff, digest, cells: flags & range_flag::CELLS != 0 })
    }

    fn versions(&mut self) -> Result<RangeAnswer, WireError> {
        const ENTRY_LEN_MIN: usize = 2 + 1 + META_LEN_MIN;
        let until = optional_key(&mut self.reader)?;
        let count = self.count_of(ENTRY_LEN_MIN)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push((self.key()?, meta(&mut self.reader)?));
        }
        Ok(RangeAnswer::Versions { entries, until })
    }

    fn cells(&mut self) -> Result<RangeAnswer, WireError> {
        const ENTRY_LEN_MIN: usize = 2 + 1 + META_LEN_MIN + 4;
        let until = optional_key(&mut self.reader)?;
        let count = self.count_of(ENTRY_LEN_MIN)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push((self.key()?, self.cell()?));
        }
        Ok(RangeAnswer::Cells { entries, until })
    }

    /// Decodes a number of entries of at least `len_min` bytes each, which must fit the remaining
    /// bytes.
    fn count_of(&mut self, len_min: usize) -> Result<usize, WireError> {
        let count = self.reader.u32()? as usize;
        match count <= self.reader.rest().len() / len_min {
            true => Ok(count),
            false => Err(WireError::Field { field: "count of entries" }),
        }
    }

    /// Decodes a cell that states the length of its value.
    fn cell(&mut self) -> Result<Cell, WireError> {
        let meta = meta(&mut self.reader)?;
        let len = self.reader.u32()? as usize;
        cell_of(meta, Bytes::copy_from_slice(self.reader.bytes(len)?))
    }

    /// Decodes a cell whose value extends to the end of the message.
    fn last_cell(&mut self) -> Result<Cell, WireError> {
        let meta = meta(&mut self.reader)?;
        cell_of(meta, self.tail()?)
    }

    fn page(&mut self) -> Result<ScanAnswer, WireError> {
        let rest = cut(&mut self.reader)?;
        let heads = page_heads(&mut self.reader)?;
        Ok(ScanAnswer::Page { page: page_of(self.tail()?, &heads)?, rest })
    }

    /// Takes the rest of the message.
    fn tail(&mut self) -> Result<Bytes, WireError> {
        let tail = self.reader.bytes(self.reader.rest().len())?;
        Ok(match self.owner {
            Some(owner) => owner.slice_ref(tail),
            None => Bytes::copy_from_slice(tail),
        })
    }

    fn fault(&mut self) -> Result<PeerFault, WireError> {
        Ok(match self.reader.u8()? {
            fault::STORE_FULL => PeerFault::Store(StoreFault::Full),
            fault::STORE_OVERLOADED => {
                let retry_after = Duration::from_nanos(self.reader.u64()?);
                PeerFault::Store(StoreFault::Overloaded { retry_after })
            }
            fault::STORE_CORRUPT => PeerFault::Store(StoreFault::Corrupt { detail: self.detail()? }),
            fault::STORE_IO => PeerFault::Store(StoreFault::Io { detail: self.detail()? }),
            fault::NOT_READ_ELIGIBLE => PeerFault::NotReadEligible,
            fault::CLOCK_AHEAD => PeerFault::ClockAhead { wall: wall(&mut self.reader)? },
            fault::BUSY => PeerFault::Busy,
            fault::NOT_SERVING => PeerFault::NotServing,
            fault::STORE_EXPIRED if self.version >= TIME_LEFT_SINCE => PeerFault::Store(StoreFault::Expired),
            _ => return Err(WireError::Field { field: "fault" }),
        })
    }

    fn detail(&mut self) -> Result<String, WireError> {
        let bytes = self.reader.bytes(self.reader.rest().len())?;
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= DETAIL_BYTES_MAX);
        text.map(str::to_owned).ok_or(WireError::Field { field: "text of a fault" })
    }
}

/// Checks that a tombstone has no value.
fn cell_of(meta: CellMeta, value: Bytes) -> Result<Cell, WireError> {
    match meta.kind == CellKind::Tombstone && !value.is_empty() {
        true => Err(WireError::Field { field: "value of a tombstone" }),
        false => Ok(Cell { meta, value }),
    }
}
