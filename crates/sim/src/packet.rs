//! What goes over connections: frames of the shipped `wire`.

use cluster::Message;
use std::fmt;
use stdx::Hlc;
use wire::{Inbox, InboxLimits, Incoming, Outbox, OutboxLimits, WireError};

/// More than a machine sends in a turn.
const BYTES_MAX: usize = 1 << 30;

/// Whole frames: all that one turn of a machine sends over one connection.
#[derive(Clone)]
pub struct Packet(Vec<u8>);

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Packet {
    /// These messages, of a sender whose version clock shows `clock`.
    ///
    /// # Panics
    /// When one of them is longer than any message may be.
    pub fn of(clock: Hlc, messages: &[Message]) -> Self {
        let mut outbox = Outbox::new(OutboxLimits { bytes_max: BYTES_MAX });
        for message in messages {
            outbox.push(message).expect("there is room for all that a turn sends");
        }
        let mut bytes = Vec::new();
        outbox.fill(clock, &mut bytes, BYTES_MAX);
        Self(bytes)
    }

    /// The messages, each with the sender's clock.
    ///
    /// # Errors
    /// Those of [`Inbox::next`]; none for what [`Packet::of`] made.
    pub fn open(&self) -> Result<Vec<(Hlc, Message)>, WireError> {
        // A packet is read by itself: others may come before it or never.
        let mut inbox = Inbox::new(InboxLimits::default());
        inbox.feed(&self.0);
        let mut clock = Hlc::ZERO;
        let mut messages = Vec::new();
        while let Some(incoming) = inbox.next()? {
            match incoming {
                Incoming::Clock(shown) => clock = shown,
                Incoming::Message(message) => messages.push((clock, message)),
            }
        }
        Ok(messages)
    }
}
