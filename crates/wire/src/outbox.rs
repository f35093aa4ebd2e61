//! The sending end of a link.
//!
//! **Promise.** Messages are sent in the order in which they were pushed, with two exceptions.
//! Heartbeats are sent first, so that a link full of values never appears dead. Long messages are
//! sent in fragments, so that they do not block others. An outbox never exceeds its limit.
//!
//! **Mechanism.** A short message is encoded when it is pushed, preceded by its length.
//! [`Outbox::fill`] copies as many short messages as fit into one frame at once. The value or page
//! of a long message is kept by reference and copied into the fragments as they are sent. Frames of
//! short messages and fragments alternate. The first [`FRAGMENTED_MAX`] long messages are sent
//! round-robin, as long as the receiver has to assemble at most [`MESSAGE_BYTES_MAX`] in total.
//!
//! Markers among the short messages tell the epochs of their plans (`plan_epoch`).
//!
//! If an answer with data exceeds the limit, a `Busy` answer is sent in its place. Without an
//! answer, the requester would wait until its deadline.
//!
//! **Caveats.** A shorter message may overtake a long one that was pushed before it.

use crate::frame::{FRAME_PAYLOAD_MAX, FrameContent, put_frame};
use crate::message::{Encoding, encode_head, first_version, len_max, tail};
use crate::plan_epoch::{MARKER_LEN, PLAN_EPOCHS_SINCE, put_marker};
use crate::reassembly::{FRAGMENT_DATA_MAX, FragmentHeader};
use crate::{FRAGMENTED_MAX, MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use bytes::Bytes;
use cluster::{LayoutEpoch, Message, NodeRequest, NodeResponse, PeerAnswer, PeerRequest};
use std::collections::VecDeque;
use stdx::Hlc;

/// Maximum number of bytes of waiting heartbeats; further ones are refused. They do not count
/// towards the limit of other messages.
const HEARTBEAT_BYTES_MAX: usize = 4 << 10;

/// Capacity in bytes that an empty outbox keeps.
const IDLE_BYTES_MAX: usize = 256 << 10;

/// Length in bytes of the length before each message.
pub(crate) const LENGTH_LEN: usize = 4;

/// Memory limits of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Maximum number of bytes of encoded messages. An empty outbox accepts one message of any
    /// length.
    pub bytes_max: usize,
}

/// The reason why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// There is no space for the message.
    #[error("the outbox of this link is full")]
    Full,
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("the message is longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// The version of the protocol on this link lacks the kind of the message, or cannot tell the
    /// epoch of its plan.
    #[error("the protocol of this link lacks the kind of the message or the epoch of its plan")]
    UnknownKind,
}

/// Result of pushing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The message was accepted.
    Whole,
    /// The `Busy` answer was accepted in place of the message.
    Refusal,
}

/// The sending end of a link: queues messages and encodes them as frames.
#[derive(Debug)]
pub struct Outbox {
    limits: OutboxLimits,
    /// Version of the protocol that both sides speak.
    version: u8,
    /// Epoch of the last marker among the short messages.
    marked: LayoutEpoch,
    heartbeats: Vec<u8>,
    short: ShortMessages,
    long: VecDeque<LongMessage>,
    /// Number of unsent bytes of long messages.
    long_bytes: usize,
    /// Number of the next message that is sent in fragments.
    next_stream: u32,
    /// The next frame is a fragment, before short messages.
    is_fragment_next: bool,
}

impl Outbox {
    /// Creates an empty outbox that speaks the newest version of the protocol.
    pub fn new(limits: OutboxLimits) -> Self {
        Self {
            limits,
            version: PROTOCOL_VERSION,
            marked: LayoutEpoch::FIRST,
            heartbeats: Vec::new(),
            short: ShortMessages::default(),
            long: VecDeque::new(),
            long_bytes: 0,
            next_stream: 0,
            is_fragment_next: false,
        }
    }

    /// Sets the version of the protocol that both sides speak. Call it before the first push.
    #[must_use]
    pub fn speaking(self, version: u8) -> Self {
        Self { version, ..self }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// [`PushError`]: the message was not queued.
    pub fn push(&mut self, message: &Message) -> Result<(), PushError> {
        self.push_if(message, |_| true)
    }

    /// Works like [`Outbox::push`], and calls `has_room` with the number of waiting bytes including
    /// the message, heartbeats excluded. If it returns false, the outbox counts as full.
    ///
    /// # Errors
    /// As [`Outbox::push`].
    pub fn push_if(
        &mut self,
        message: &Message,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<(), PushError> {
        if is_heartbeat(message) {
            return self.push_heartbeat(message);
        }
        if first_version(message) > self.version {
            return Err(PushError::UnknownKind);
        }
        let len_max = len_max(message);
        if len_max > MESSAGE_BYTES_MAX {
            return Err(PushError::TooLong);
        }
        let is_short = LENGTH_LEN + len_max <= FRAME_PAYLOAD_MAX;
        let marker = if is_short { self.marker_before(message) } else { None };
        let bytes = len_max + marker.map_or(0, |_| LENGTH_LEN + MARKER_LEN);
        let waiting = self.short.bytes() + self.long_bytes;
        let is_full = waiting > 0 && waiting + bytes > self.limits.bytes_max;
        if is_full || !has_room(waiting + bytes) {
            return Err(PushError::Full);
        }
        if is_short {
            self.short.reserve(LENGTH_LEN + bytes);
            if let Some(epoch) = marker {
                self.marked = epoch;
                put_length_of(&mut self.short.bytes, |out| put_marker(out, epoch));
            }
            put_short(&mut self.short.bytes, message, self.version);
        } else {
            let long = LongMessage::new(message, len_max, self.version);
            self.long_bytes += long.left();
            self.long.push_back(long);
        }
        Ok(())
    }

    /// The epoch of the marker that has to precede a short message. `None`: the last marker tells
    /// the epoch of its plan, or it has none.
    #[inline]
    fn marker_before(&self, message: &Message) -> Option<LayoutEpoch> {
        match message {
            Message::Request { epoch, request, .. } if *epoch != self.marked => {
                (request.is_planned() && self.version >= PLAN_EPOCHS_SINCE).then_some(*epoch)
            }
            Message::Request { .. } | Message::Answer { .. } => None,
        }
    }

    /// Works like [`Outbox::push_if`], but replaces an answer with data that does not fit by its
    /// [refusal](Message::refusal). The refusal is so short that `has_room` is not called for it.
    ///
    /// # Errors
    /// As [`Outbox::push`]: the refusal does not fit either, or the message has none.
    pub fn push_or_refuse(
        &mut self,
        message: &Message,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<PushOutcome, PushError> {
        match (self.push_if(message, has_room), message.refusal()) {
            (Ok(()), _) => Ok(PushOutcome::Whole),
            (Err(error), None) => Err(error),
            (Err(_), Some(refusal)) => self.push(&refusal).map(|()| PushOutcome::Refusal),
        }
    }

    fn push_heartbeat(&mut self, message: &Message) -> Result<(), PushError> {
        if self.heartbeats.len() + LENGTH_LEN + len_max(message) > HEARTBEAT_BYTES_MAX {
            return Err(PushError::Full);
        }
        put_short(&mut self.heartbeats, message, self.version);
        Ok(())
    }

    /// Whether no message is waiting.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Number of waiting bytes, without frame headers.
    pub fn bytes(&self) -> usize {
        self.heartbeats.len() + self.short.bytes() + self.long_bytes
    }

    /// Appends whole frames to `out` until they have at least `bytes_target` bytes or no message is
    /// waiting. They exceed that by one frame at most.
    pub fn fill(&mut self, clock: Hlc, out: &mut Vec<u8>, bytes_target: usize) {
        let end = out.len() + bytes_target;
        while out.len() < end && !self.is_empty() {
            let has_short = !self.heartbeats.is_empty() || self.short.bytes() > 0;
            let is_fragment = match self.long.is_empty() {
                true => false,
                false => !has_short || (self.is_fragment_next && self.heartbeats.is_empty()),
            };
            match is_fragment {
                true => self.put_fragment(clock, out),
                false => self.put_messages(clock, out),
            }
            self.is_fragment_next = !is_fragment;
        }
    }

    fn put_messages(&mut self, clock: Hlc, out: &mut Vec<u8>) {
        put_frame(out, self.version, FrameContent::Messages, clock, |out| {
            out.extend_from_slice(&self.heartbeats);
            let room = FRAME_PAYLOAD_MAX - self.heartbeats.len();
            self.heartbeats.clear();
            self.short.take(out, room);
        });
    }

    fn put_fragment(&mut self, clock: Hlc, out: &mut Vec<u8>) {
        if self.long[0].stream.is_none() {
            self.long[0].stream = Some(self.next_stream);
            self.next_stream = self.next_stream.wrapping_add(1);
        }
        let long = &mut self.long[0];
        let sent = long.sent;
        put_frame(out, self.version, FrameContent::Fragment, clock, |out| long.put_fragment(out));
        self.long_bytes -= long.sent - sent;
        self.rotate();
    }

    /// Moves the next long message to the front.
    fn rotate(&mut self) {
        if self.long[0].left() == 0 {
            self.long.pop_front();
            return;
        }
        for place in 1..self.concurrent_long_messages() {
            self.long.swap(place - 1, place);
        }
    }

    /// Number of the first long messages that may be sent at the same time.
    fn concurrent_long_messages(&self) -> usize {
        let mut bytes = 0;
        let fits = |long: &&LongMessage| {
            bytes += long.len();
            bytes <= MESSAGE_BYTES_MAX
        };
        self.long.iter().take(FRAGMENTED_MAX).take_while(fits).count()
    }
}

fn is_heartbeat(message: &Message) -> bool {
    match message {
        Message::Request { request, .. } => matches!(request, PeerRequest::Node(NodeRequest::Heartbeat(_))),
        Message::Answer { answer, .. } => matches!(answer, PeerAnswer::Node(NodeResponse::Heartbeat(_))),
    }
}

/// Appends a message, preceded by its length.
fn put_short(out: &mut Vec<u8>, message: &Message, version: u8) {
    put_length_of(out, |out| {
        if let Some(tail) = encode_head(out, message, Encoding { version, is_fragmented: false }) {
            out.extend_from_slice(tail);
        }
    });
}

/// Appends the bytes that `put` appends, preceded by their length.
fn put_length_of(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; LENGTH_LEN]);
    put(out);
    let len = (out.len() - begin - LENGTH_LEN) as u32;
    out[begin..begin + LENGTH_LEN].copy_from_slice(&len.to_le_bytes());
}

/// Encoded messages, each preceded by its length.
#[derive(Debug, Default)]
struct ShortMessages {
    bytes: Vec<u8>,
    /// Start of the messages that were not sent yet.
    begin: usize,
}

impl ShortMessages {
    fn bytes(&self) -> usize {
        self.bytes.len() - self.begin
    }

    /// Reserves `len` bytes. Removes sent bytes first if they are more than half.
    fn reserve(&mut self, len: usize) {
        if self.bytes.capacity() - self.bytes.len() < len && self.begin > self.bytes() {
            self.bytes.drain(..self.begin);
            self.begin = 0;
        }
        self.bytes.reserve(len);
    }

    /// Moves as many messages to `out` as fit into `room` bytes.
    fn take(&mut self, out: &mut Vec<u8>, room: usize) {
        let waiting = &self.bytes[self.begin..];
        let taken = if waiting.len() <= room { waiting.len() } else { whole_messages(waiting, room) };
        out.extend_from_slice(&waiting[..taken]);
        self.begin += taken;
        if self.begin == self.bytes.len() {
            self.begin = 0;
            self.bytes.clear();
            self.bytes.shrink_to(IDLE_BYTES_MAX);
        }
    }
}

/// Length of the first messages of `bytes` that fit into `room` bytes.
fn whole_messages(bytes: &[u8], room: usize) -> usize {
    let mut end = 0;
    loop {
        let length = bytes[end..].first_chunk().expect("a message is preceded by its length");
        let next = end + LENGTH_LEN + u32::from_le_bytes(*length) as usize;
        if next > room {
            return end;
        }
        end = next;
    }
}

/// A message that is sent in fragments.
#[derive(Debug)]
struct LongMessage {
    /// The message without its tail.
    head: Vec<u8>,
    /// The value or the bytes of a page at the end of the message.
    tail: Bytes,
    sent: usize,
    /// Number of the message on the link once its first fragment is sent.
    stream: Option<u32>,
}

impl LongMessage {
    fn new(message: &Message, len_max: usize, version: u8) -> Self {
        let mut head = Vec::with_capacity(len_max - tail(message).map_or(0, Bytes::len));
        let encoding = Encoding { version, is_fragmented: true };
        let tail = encode_head(&mut head, message, encoding).cloned().unwrap_or_default();
        Self { head, tail, sent: 0, stream: None }
    }

    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn left(&self) -> usize {
        self.len() - self.sent
    }

    /// Appends the next fragment.
    fn put_fragment(&mut self, out: &mut Vec<u8>) {
        let stream = self.stream.expect("a message in fragments has a number");
        FragmentHeader { stream, total: self.len() as u32, offset: self.sent as u32 }.put(out);
        let end = self.sent + self.left().min(FRAGMENT_DATA_MAX);
        let (head, tail) = (self.head.len(), self.tail.len());
        out.extend_from_slice(&self.head[self.sent.min(head)..end.min(head)]);
        out.extend_from_slice(&self.tail[self.sent.saturating_sub(head)..end.saturating_sub(head).min(tail)]);
        self.sent = end;
    }
}
