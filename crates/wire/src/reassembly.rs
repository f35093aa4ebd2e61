//! Messages that arrive in fragments.
//!
//! A fragment says which message it belongs to, how long that is, and where in it the fragment stands. Those of
//! one message come in order; those of others may come between them.

use crate::frame::FRAME_PAYLOAD_MAX;
use crate::{FRAGMENTED_MAX, WireError};
use bytes::Bytes;
use stdx::codec::Reader;

/// Length of a fragment's header, in bytes.
pub(crate) const FRAGMENT_HEADER_LEN: usize = 12;

/// The most of a message that one fragment carries, in bytes.
pub(crate) const FRAGMENT_DATA_MAX: usize = FRAME_PAYLOAD_MAX - FRAGMENT_HEADER_LEN;

/// What a fragment begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentHeader {
    /// Names the message among those that travel at the same time.
    pub(crate) stream: u32,
    /// Length of the message, in bytes.
    pub(crate) total: u32,
    /// Where in it the fragment stands.
    pub(crate) offset: u32,
}

impl FragmentHeader {
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        for field in [self.stream, self.total, self.offset] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { stream: reader.u32()?, total: reader.u32()?, offset: reader.u32()? })
    }
}

/// A message that has come in part.
#[derive(Debug)]
struct Part {
    stream: u32,
    total: usize,
    came: usize,
    /// What came; `None`: there was no room for it, and it is passed over.
    bytes: Option<Vec<u8>>,
}

/// The messages that have come in part.
#[derive(Debug)]
pub(crate) struct Reassembly {
    bytes_max: usize,
    parts: Vec<Part>,
}

impl Reassembly {
    /// Of messages that are at most `bytes_max` long, all together.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, parts: Vec::new() }
    }

    /// What the messages that are kept will be, all together, in bytes.
    pub(crate) fn promised_bytes(&self) -> usize {
        self.parts.iter().filter(|part| part.bytes.is_some()).map(|part| part.total).sum()
    }

    /// Takes in the payload of a fragment; the message, if it is whole now. `has_room` says whether one that begins is
    /// kept, by what will be promised then.
    pub(crate) fn add(
        &mut self,
        payload: &[u8],
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Bytes>, WireError> {
        let mut reader = Reader::new(payload);
        let header = FragmentHeader::read(&mut reader)?;
        let data = reader.rest();
        let index = match self.parts.iter().position(|part| part.stream == header.stream) {
            Some(index) => index,
            None => self.begin(header, has_room)?,
        };
        let part = &mut self.parts[index];
        let fits = header.total as usize == part.total
            && header.offset as usize == part.came
            && (1..=part.total - part.came).contains(&data.len());
        if !fits {
            return Err(WireError::Fragment);
        }
        part.came += data.len();
        if let Some(bytes) = &mut part.bytes {
            bytes.extend_from_slice(data);
        }
        if part.came < part.total {
            return Ok(None);
        }
        Ok(self.parts.swap_remove(index).bytes.map(Bytes::from))
    }

    /// Makes room for a message; its place.
    fn begin(
        &mut self,
        header: FragmentHeader,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<usize, WireError> {
        let total = header.total as usize;
        let promised: usize = self.parts.iter().map(|part| part.total).sum();
        if total > self.bytes_max {
            return Err(WireError::MessageLength { bytes: total });
        }
        if self.parts.len() == FRAGMENTED_MAX || promised + total > self.bytes_max {
            return Err(WireError::TooManyFragmented);
        }
        // No memory is touched before the bytes come.
        let bytes = has_room(self.promised_bytes() + total).then(|| Vec::with_capacity(total));
        self.parts.push(Part { stream: header.stream, total, came: 0, bytes });
        Ok(self.parts.len() - 1)
    }
}
