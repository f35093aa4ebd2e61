//! The receiving end of a link.
//!
//! **Promise.** The bytes of a link may arrive in pieces of any size. [`Inbox::next`] returns the
//! messages that were sent, each whole, or an error, after which the link cannot be used. No part
//! of a frame is returned before its checksum has matched.
//!
//! **Mechanism.** Bytes are buffered until their frame is complete. Keys and values of short
//! messages are copied into memory of their own, since a slice would keep the whole frame in
//! memory. The page of a short message is copied as one piece. The single value or page of a long
//! message stays in the buffer in which its fragments were assembled. The markers of `plan_epoch`
//! are not returned.
//!
//! The caller may bound the memory of long messages while they arrive ([`Inbox::next_if`]). A
//! message that exceeds it is skipped, as if it had been lost.
//!
//! **Caveats.** The size of an inbox is not bounded by itself: the caller takes out all messages
//! before it feeds more bytes.

use crate::frame::{FRAME_HEADER_LEN, FrameContent, first_frame};
use crate::message::{decode, decode_owned};
use crate::outbox::LENGTH_LEN;
use crate::plan_epoch;
use crate::reassembly::Reassembly;
use crate::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION, WireError};
use cluster::{LayoutEpoch, Message};
use stdx::Hlc;

/// Memory limits of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Maximum total length in bytes of the messages that are arriving in fragments. Peers send up
    /// to [`MESSAGE_BYTES_MAX`], the default. With a lower limit, a link that exceeds it fails.
    pub fragmented_bytes_max: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { fragmented_bytes_max: MESSAGE_BYTES_MAX }
    }
}

/// A received item.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it comes out; a box would be made for each message"
)]
pub enum Incoming {
    /// The sender's version clock, once for each frame and before the content of the frame.
    Clock(Hlc),
    /// A message.
    Message(Message),
}

/// The receiving end of a link: assembles frames and messages from bytes.
#[derive(Debug)]
pub struct Inbox {
    /// Bytes that were fed. Those before `begin` are consumed.
    bytes: Vec<u8>,
    begin: usize,
    /// End of the messages in the first frame; `begin` is the start of the next one.
    messages_end: usize,
    /// Version of the protocol of the first frame.
    version: u8,
    /// Epoch of the last marker.
    marked: LayoutEpoch,
    reassembly: Reassembly,
    /// A message whose last fragment has arrived. The clock of its frame is returned first.
    assembled: Option<Message>,
    failed: Option<WireError>,
}

impl Inbox {
    /// Creates an empty inbox.
    pub fn new(limits: InboxLimits) -> Self {
        Self {
            bytes: Vec::new(),
            begin: 0,
            messages_end: 0,
            version: PROTOCOL_VERSION,
            marked: LayoutEpoch::FIRST,
            reassembly: Reassembly::new(limits.fragmented_bytes_max),
            assembled: None,
            failed: None,
        }
    }

    /// Appends bytes that were read from the link.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.begin > 0 {
            self.bytes.drain(..self.begin);
            self.messages_end = self.messages_end.saturating_sub(self.begin);
            self.begin = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next received item. `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`WireError`]; every later call returns the same error.
    #[expect(clippy::should_implement_trait, reason = "it ends for now, not for ever, and it can fail")]
    pub fn next(&mut self) -> Result<Option<Incoming>, WireError> {
        self.next_if(|_| true)
    }

    /// Works like [`Inbox::next`], and calls `has_room` when a message in fragments begins. The
    /// argument is the total length of all such messages in bytes. If it returns false, the message
    /// is skipped.
    ///
    /// # Errors
    /// As [`Inbox::next`].
    pub fn next_if(
        &mut self,
        mut has_room: impl FnMut(usize) -> bool,
    ) -> Result<Option<Incoming>, WireError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.advance(&mut has_room).inspect_err(|error| self.failed = Some(*error))
    }

    /// Total length in bytes of the messages that are arriving in fragments.
    pub fn fragmented_bytes(&self) -> usize {
        self.reassembly.promised_bytes()
    }

    fn advance(&mut self, has_room: &mut dyn FnMut(usize) -> bool) -> Result<Option<Incoming>, WireError> {
        if let Some(message) = self.assembled.take() {
            return Ok(Some(Incoming::Message(message)));
        }
        while self.begin < self.messages_end {
            if let Some(message) = self.next_of_frame()? {
                return Ok(Some(Incoming::Message(message)));
            }
        }
        self.next_frame(has_room)
    }

    /// The next message of the frame; `None`: it was a marker.
    fn next_of_frame(&mut self) -> Result<Option<Message>, WireError> {
        let frame = &self.bytes[self.begin..self.messages_end];
        let (length, rest) = frame.split_first_chunk::<LENGTH_LEN>().ok_or(WireError::Truncated)?;
        let len = u32::from_le_bytes(*length) as usize;
        let bytes = rest.get(..len).ok_or(WireError::Truncated)?;
        let marker = plan_epoch::marker(bytes, self.version)?;
        let message = match marker {
            Some(epoch) => {
                self.marked = epoch;
                None
            }
            None => Some(decode(bytes, self.version, self.marked)?),
        };
        self.begin += LENGTH_LEN + len;
        Ok(message)
    }

    fn next_frame(&mut self, has_room: &mut dyn FnMut(usize) -> bool) -> Result<Option<Incoming>, WireError> {
        let Some(frame) = first_frame(&self.bytes[self.begin..])? else { return Ok(None) };
        match frame.kind {
            FrameContent::Messages => {
                self.version = frame.version;
                self.messages_end = self.begin + FRAME_HEADER_LEN + frame.payload.len();
                self.begin += FRAME_HEADER_LEN;
            }
            FrameContent::Fragment => {
                if let Some(message) = self.reassembly.add(frame.payload, has_room)? {
                    self.assembled = Some(decode_owned(&message, frame.version)?);
                }
                self.begin += FRAME_HEADER_LEN + frame.payload.len();
            }
        }
        Ok(Some(Incoming::Clock(frame.clock)))
    }
}
