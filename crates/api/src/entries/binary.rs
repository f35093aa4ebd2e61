//! The binary format: records with lengths and checksums.
//!
//! ```text
//! stream:  8  VECHEEN1                  record:  4  length of the payload
//!             records                            4  CRC32C of the payload
//!                                                   payload
//! payload: 1  kind: 1 value, 2 delete   end:     1  255
//!          1  bits: optional fields              8  count of entries before it
//!          2  length of the key
//!          8  expiry    if bit 0
//!          8  lifetime  if bit 1
//!         16  version   if bit 2
//!             key
//!             value, to the end
//! ```

use super::byte_queue::ByteQueue;
use super::decoder::EntryFault;
use super::{BatchAction, BatchEntry};
use bytes::{Buf, Bytes};
use cluster::{Key, Lifetime};
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use std::time::Duration;
use stdx::codec::{Reader, Truncated};
use stdx::{Version, WallTime};

/// First bytes of a stream of entries in the binary format.
pub const MAGIC: &[u8; 8] = b"VECHEEN1";

/// First byte of a payload.
mod kind {
    pub(super) const VALUE: u8 = 1;
    pub(super) const DELETE: u8 = 2;
    pub(super) const END: u8 = 0xff;
}

/// Bits of the second byte of a payload.
mod flag {
    pub(super) const EXPIRES_AT: u8 = 1 << 0;
    pub(super) const TTL: u8 = 1 << 1;
    pub(super) const VERSION: u8 = 1 << 2;
    pub(super) const ALL: u8 = EXPIRES_AT | TTL | VERSION;
}

/// Length of a record's header, in bytes: length and checksum of the payload.
const RECORD_HEADER_LEN: usize = 8;
/// Length of the fixed part of a payload, in bytes: kind, bits, length of the key.
const PAYLOAD_HEADER_LEN: usize = 4;
/// Greatest length of a payload without its value, in bytes.
const PAYLOAD_HEAD_LEN_MAX: usize = PAYLOAD_HEADER_LEN + 8 + 8 + Version::ENCODED_LEN + Key::LEN_MAX;

/// Optional fields of a record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attributes {
    pub(super) expires_at_ms: Option<u64>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) version: Option<Version>,
}

pub(super) fn put_value(out: &mut Vec<u8>, key: &[u8], attributes: Attributes, value: &[u8]) {
    out.reserve(RECORD_HEADER_LEN + PAYLOAD_HEADER_LEN + 32 + key.len() + value.len());
    put_record(out, |out| {
        put_payload_head(out, kind::VALUE, key, attributes);
        out.extend_from_slice(value);
    });
}

pub(super) fn put_delete(out: &mut Vec<u8>, key: &[u8]) {
    put_record(out, |out| put_payload_head(out, kind::DELETE, key, Attributes::default()));
}

/// Appends the end record of a stream of `entries` entries.
pub(super) fn put_end(out: &mut Vec<u8>, entries: u64) {
    put_record(out, |out| {
        out.push(kind::END);
        out.extend_from_slice(&entries.to_le_bytes());
    });
}

fn put_record(out: &mut Vec<u8>, put_payload: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; RECORD_HEADER_LEN]);
    put_payload(out);
    let (header, payload) = out[begin..].split_at_mut(RECORD_HEADER_LEN);
    let len = u32::try_from(payload.len()).expect("an entry has less than 4 GiB");
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..].copy_from_slice(&crc32_iscsi(payload).to_le_bytes());
}

fn put_payload_head(out: &mut Vec<u8>, kind: u8, key: &[u8], attributes: Attributes) {
    const { assert!(Key::LEN_MAX <= u16::MAX as usize) };
    let Attributes { expires_at_ms, ttl_ms, version } = attributes;
    let bit = |is_there, bit| if is_there { bit } else { 0 };
    let flags = bit(expires_at_ms.is_some(), flag::EXPIRES_AT)
        | bit(ttl_ms.is_some(), flag::TTL)
        | bit(version.is_some(), flag::VERSION);
    let [low, high] = (key.len() as u16).to_le_bytes();
    out.extend_from_slice(&[kind, flags, low, high]);
    for number in [expires_at_ms, ttl_ms].into_iter().flatten() {
        out.extend_from_slice(&number.to_le_bytes());
    }
    if let Some(version) = version {
        out.extend_from_slice(&version.to_bytes());
    }
    out.extend_from_slice(key);
}

/// Decoder of the binary format.
#[derive(Debug)]
pub(super) struct BinaryReader {
    value_bytes_max: usize,
    state: State,
    last_version: Option<Version>,
}

#[derive(Debug)]
enum State {
    /// Before the first byte.
    Begin,
    /// Before the header of a record.
    Record,
    /// Before the payload of a record.
    Payload { len: usize, crc: u32 },
    /// Inside a payload that is too long and is skipped.
    Skipped { left: usize, crc: u32, digest: Box<Digest> },
    /// After the end record.
    Ended,
}

impl BinaryReader {
    pub(super) const fn new(value_bytes_max: usize) -> Self {
        Self { value_bytes_max, state: State::Begin, last_version: None }
    }

    /// Version of the last entry, if it had one.
    pub(super) const fn last_version(&self) -> Option<Version> {
        self.last_version
    }

    /// Whether the stream may end in this state. The caller also checks that no byte of the next
    /// record has arrived.
    pub(super) const fn is_between_entries(&self) -> bool {
        matches!(self.state, State::Begin | State::Record | State::Ended)
    }

    /// Whether the end record has arrived.
    pub(super) const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Decodes the next entry. `entries` is the number of entries before it.
    pub(super) fn next(
        &mut self,
        pieces: &mut ByteQueue,
        entries: u64,
    ) -> Result<Option<BatchEntry>, EntryFault> {
        loop {
            match &mut self.state {
                State::Begin => match pieces.take_array() {
                    None => return Ok(None),
                    Some(magic) if magic == *MAGIC => self.state = State::Record,
                    Some(_) => return Err("the stream does not begin with VECHEEN1".into()),
                },
                State::Record => match pieces.take_array() {
                    None => return Ok(None),
                    Some(header) => self.begin_record(header),
                },
                State::Payload { len, crc } => {
                    let Some(payload) = pieces.take(*len) else { return Ok(None) };
                    if crc32_iscsi(&payload) != *crc {
                        return Err(CHECKSUM);
                    }
                    self.state = State::Record;
                    if let Some(entry) = self.entry_of(payload, entries)? {
                        return Ok(Some(entry));
                    }
                }
                State::Skipped { left: 0, crc, digest } => {
                    let is_right = digest.finalize() == u64::from(*crc);
                    self.state = State::Record;
                    return Err(if is_right { EntryFault::TooLarge } else { CHECKSUM });
                }
                State::Skipped { left, digest, .. } => {
                    let front = pieces.front();
                    let passed = front.len().min(*left);
                    if passed == 0 {
                        return Ok(None);
                    }
                    digest.update(&front[..passed]);
                    *left -= passed;
                    pieces.advance(passed);
                }
                State::Ended if pieces.len() > 0 => return Err("bytes follow the end record".into()),
                State::Ended => return Ok(None),
            }
        }
    }

    fn begin_record(&mut self, header: [u8; RECORD_HEADER_LEN]) {
        let [a, b, c, d, crc @ ..] = header;
        let (len, crc) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(crc));
        self.state = match len <= PAYLOAD_HEAD_LEN_MAX + self.value_bytes_max {
            true => State::Payload { len, crc },
            false => {
                let digest = Box::new(Digest::new(CrcAlgorithm::Crc32Iscsi));
                State::Skipped { left: len, crc, digest }
            }
        };
    }

    /// Decodes the entry of a payload; `None` for the end record.
    fn entry_of(&mut self, mut payload: Bytes, entries: u64) -> Result<Option<BatchEntry>, EntryFault> {
        if payload.first() == Some(&kind::END) {
            return self.end(&payload, entries).map(|()| None);
        }
        let head = PayloadHead::read(&payload)?;
        self.last_version = head.version;
        payload.advance(head.key_at);
        let key = Key::new(payload.split_to(head.key_len))
            .map_err(|error| EntryFault::malformed(error.to_string()))?;
        let action = match head.kind {
            kind::VALUE if payload.len() > self.value_bytes_max => return Err(EntryFault::TooLarge),
            kind::VALUE => BatchAction::Put { value: payload, lifetime: head.lifetime()? },
            kind::DELETE if !payload.is_empty() => return Err("a delete has a value".into()),
            kind::DELETE if head.has_lifetime() => return Err("a delete has a lifetime".into()),
            kind::DELETE => BatchAction::Delete,
            kind => return Err(EntryFault::malformed(format!("there are no records of kind {kind}"))),
        };
        Ok(Some(BatchEntry { key, action }))
    }

    fn end(&mut self, payload: &[u8], entries: u64) -> Result<(), EntryFault> {
        let count: [u8; 8] =
            payload[1..].try_into().map_err(|_| "the end record is too long or too short")?;
        match u64::from_le_bytes(count) {
            count if count == entries => self.state = State::Ended,
            count => {
                let detail = format!("the end record counts {count} entries, but {entries} have come");
                return Err(EntryFault::malformed(detail));
            }
        }
        Ok(())
    }
}

const CHECKSUM: EntryFault = EntryFault::of("its checksum does not match");

/// Fields before the key of a payload.
struct PayloadHead {
    kind: u8,
    expires_at_ms: Option<u64>,
    ttl_ms: Option<u64>,
    version: Option<Version>,
    key_at: usize,
    key_len: usize,
}

impl PayloadHead {
    fn read(payload: &[u8]) -> Result<Self, EntryFault> {
        let mut reader = Reader::new(payload);
        let [kind, flags] = reader.array()?;
        if flags & !flag::ALL != 0 {
            return Err("it has unknown flag bits".into());
        }
        let key_len = usize::from(reader.u16()?);
        let expires_at_ms = if flags & flag::EXPIRES_AT == 0 { None } else { Some(reader.u64()?) };
        let ttl_ms = if flags & flag::TTL == 0 { None } else { Some(reader.u64()?) };
        let version = if flags & flag::VERSION == 0 { None } else { Some(reader.version()?) };
        let key_at = payload.len() - reader.rest().len();
        reader.bytes(key_len)?;
        Ok(Self { kind, expires_at_ms, ttl_ms, version, key_at, key_len })
    }

    const fn has_lifetime(&self) -> bool {
        self.expires_at_ms.is_some() || self.ttl_ms.is_some()
    }

    fn lifetime(&self) -> Result<Lifetime, EntryFault> {
        lifetime_of(self.expires_at_ms, self.ttl_ms)
    }
}

impl From<Truncated> for EntryFault {
    fn from(Truncated: Truncated) -> Self {
        "its record ends inside one of its fields".into()
    }
}

/// The latest expiry in whole milliseconds, in the year 586,524. A later one means the same.
const EXPIRES_AT_MS_MAX: u64 = u64::MAX / 1_000;

/// Lifetime that an expiry and a time to live define.
pub(super) fn lifetime_of(expires_at_ms: Option<u64>, ttl_ms: Option<u64>) -> Result<Lifetime, EntryFault> {
    match (expires_at_ms, ttl_ms) {
        (None, None) => Ok(Lifetime::Forever),
        (Some(millis), None) => {
            let micros = millis.min(EXPIRES_AT_MS_MAX) * 1_000;
            Ok(Lifetime::Until(WallTime::from_micros_since_unix_epoch(micros)))
        }
        (None, Some(0)) => Err("its ttl is 0; the least is 1 millisecond".into()),
        (None, Some(millis)) => Ok(Lifetime::For(Duration::from_millis(millis))),
        (Some(_), Some(_)) => Err("it has both an expiry and a ttl".into()),
    }
}
