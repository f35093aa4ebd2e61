//! What arrives over a link.
//!
//! **Promise.** Whatever pieces the bytes of a link come in, [`Inbox::next`] hands out the messages that were
//! sent, each whole, or an error, after which the link is of no use. Nothing is handed out of a frame before its
//! checksum has matched.
//!
//! **Mechanism.** Bytes wait until their frame is whole. Keys and values of short messages are copied out into
//! memory of their own: a slice of the frame would keep all of it alive. So is the page of a short message, in one
//! piece. The one value or page of a long message stays where the fragments were put together.
//!
//! Whoever feeds an inbox may bound what long messages take while they come ([`Inbox::next_if`]): one without room is
//! passed over, as if it had been lost on its way.
//!
//! **Caveats.** An inbox holds what it is fed: whoever feeds it takes out all messages before he feeds more.

use crate::frame::{FRAME_HEADER_LEN, FrameKind, first_frame};
use crate::message::{decode, decode_owned};
use crate::outbox::LENGTH_LEN;
use crate::reassembly::Reassembly;
use crate::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION, WireError};
use cluster::Message;
use stdx::Hlc;

/// How much an inbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Bytes of messages that arrive in fragments, all together, at most. Peers send as much as
    /// [`MESSAGE_BYTES_MAX`], the default; with less, a link that they use up breaks.
    pub fragmented_bytes_max: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { fragmented_bytes_max: MESSAGE_BYTES_MAX }
    }
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it comes out; a box would be made for each message"
)]
pub enum Incoming {
    /// The sender's version clock; once for each frame, before what the frame carries.
    Clock(Hlc),
    /// A message.
    Message(Message),
}

/// See the module.
#[derive(Debug)]
pub struct Inbox {
    /// What was fed, from `begin` on.
    bytes: Vec<u8>,
    begin: usize,
    /// Messages of the first frame are handed out up to this place; `begin` stands at the next of them.
    messages_end: usize,
    /// The version of the protocol that the first frame is of.
    version: u8,
    reassembly: Reassembly,
    /// A message whose last fragment has come, behind the clock of its frame.
    whole: Option<Message>,
    failed: Option<WireError>,
}

impl Inbox {
    /// An empty one.
    pub fn new(limits: InboxLimits) -> Self {
        Self {
            bytes: Vec::new(),
            begin: 0,
            messages_end: 0,
            version: PROTOCOL_VERSION,
            reassembly: Reassembly::new(limits.fragmented_bytes_max),
            whole: None,
            failed: None,
        }
    }

    /// Takes in bytes as they were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.begin > 0 {
            self.bytes.drain(..self.begin);
            self.messages_end = self.messages_end.saturating_sub(self.begin);
            self.begin = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next of what came; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`WireError`], and the same again from then on.
    #[expect(clippy::should_implement_trait, reason = "it ends for now, not for ever, and it can fail")]
    pub fn next(&mut self) -> Result<Option<Incoming>, WireError> {
        self.next_if(|_| true)
    }

    /// As [`Inbox::next`]. When a message begins that comes in fragments, `has_room` is asked, with the length of all
    /// that will be held then; if there is no room, this message is passed over.
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

    /// What the messages that are coming in fragments will be, all together, in bytes.
    pub fn fragmented_bytes(&self) -> usize {
        self.reassembly.promised_bytes()
    }

    fn advance(&mut self, has_room: &mut dyn FnMut(usize) -> bool) -> Result<Option<Incoming>, WireError> {
        if let Some(message) = self.whole.take() {
            return Ok(Some(Incoming::Message(message)));
        }
        if self.begin < self.messages_end {
            return self.next_of_frame().map(|message| Some(Incoming::Message(message)));
        }
        self.next_frame(has_room)
    }

    fn next_of_frame(&mut self) -> Result<Message, WireError> {
        let frame = &self.bytes[self.begin..self.messages_end];
        let (length, rest) = frame.split_first_chunk::<LENGTH_LEN>().ok_or(WireError::Truncated)?;
        let len = u32::from_le_bytes(*length) as usize;
        let message = decode(rest.get(..len).ok_or(WireError::Truncated)?, self.version)?;
        self.begin += LENGTH_LEN + len;
        Ok(message)
    }

    fn next_frame(&mut self, has_room: &mut dyn FnMut(usize) -> bool) -> Result<Option<Incoming>, WireError> {
        let Some(frame) = first_frame(&self.bytes[self.begin..])? else { return Ok(None) };
        match frame.kind {
            FrameKind::Messages => {
                self.version = frame.version;
                self.messages_end = self.begin + FRAME_HEADER_LEN + frame.payload.len();
                self.begin += FRAME_HEADER_LEN;
            }
            FrameKind::Fragment => {
                if let Some(message) = self.reassembly.add(frame.payload, has_room)? {
                    self.whole = Some(decode_owned(&message, frame.version)?);
                }
                self.begin += FRAME_HEADER_LEN + frame.payload.len();
            }
        }
        Ok(Some(Incoming::Clock(frame.clock)))
    }
}
