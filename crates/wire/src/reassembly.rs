//! Reassembly of messages that arrive in fragments.
//!
//! A fragment states its message, the length of the message, and its own offset in it. The
//! fragments of one message arrive in order and may be interleaved with those of others.

use crate::frame::FRAME_PAYLOAD_MAX;
use crate::{FRAGMENTED_MAX, WireError};
use bytes::Bytes;
use stdx::codec::Reader;

/// Length of a fragment's header in bytes.
pub(crate) const FRAGMENT_HEADER_LEN: usize = 12;

/// Maximum number of bytes of a message in one fragment.
pub(crate) const FRAGMENT_DATA_MAX: usize = FRAME_PAYLOAD_MAX - FRAGMENT_HEADER_LEN;

/// Header of a fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentHeader {
    /// Number of the message among those in fragments at the same time.
    pub(crate) stream: u32,
    /// Length of the message in bytes.
    pub(crate) total: u32,
    /// Offset of the fragment in the message.
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

/// A message of which some fragments have arrived.
#[derive(Debug)]
struct PartialMessage {
    stream: u32,
    total: usize,
    received: usize,
    /// The bytes received. `None`: the message is skipped because it exceeded the memory limit.
    bytes: Option<Vec<u8>>,
}

/// The messages of which some fragments have arrived.
#[derive(Debug)]
pub(crate) struct Reassembly {
    bytes_max: usize,
    partial: Vec<PartialMessage>,
}

impl Reassembly {
    /// Creates an empty reassembly for messages of at most `bytes_max` bytes in total.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, partial: Vec::new() }
    }

    /// Total length in bytes of the incomplete messages that are not skipped.
    pub(crate) fn promised_bytes(&self) -> usize {
        self.partial.iter().filter(|message| message.bytes.is_some()).map(|message| message.total).sum()
    }

    /// Adds the payload of a fragment, and returns the message if it is complete. `has_room`
    /// decides whether a new message is kept, by the total length that would then be expected.
    pub(crate) fn add(
        &mut self,
        payload: &[u8],
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Bytes>, WireError> {
        let mut reader = Reader::new(payload);
        let header = FragmentHeader::read(&mut reader)?;
        let data = reader.rest();
        let index = match self.partial.iter().position(|message| message.stream == header.stream) {
            Some(index) => index,
            None => self.begin(header, has_room)?,
        };
        let message = &mut self.partial[index];
        let fits = header.total as usize == message.total
            && header.offset as usize == message.received
            && (1..=message.total - message.received).contains(&data.len());
        if !fits {
            return Err(WireError::Fragment);
        }
        message.received += data.len();
        if let Some(bytes) = &mut message.bytes {
            bytes.extend_from_slice(data);
        }
        if message.received < message.total {
            return Ok(None);
        }
        Ok(self.partial.swap_remove(index).bytes.map(Bytes::from))
    }

    /// Registers a new message; returns its index.
    fn begin(
        &mut self,
        header: FragmentHeader,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<usize, WireError> {
        let total = header.total as usize;
        let promised: usize = self.partial.iter().map(|message| message.total).sum();
        if total > self.bytes_max {
            return Err(WireError::MessageLength { bytes: total });
        }
        if self.partial.len() == FRAGMENTED_MAX || promised + total > self.bytes_max {
            return Err(WireError::TooManyFragmented);
        }
        // The capacity uses no memory pages before the bytes arrive.
        let bytes = has_room(self.promised_bytes() + total).then(|| Vec::with_capacity(total));
        self.partial.push(PartialMessage { stream: header.stream, total, received: 0, bytes });
        Ok(self.partial.len() - 1)
    }
}
