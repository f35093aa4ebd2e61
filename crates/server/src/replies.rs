//! Slots in which the request handlers of one I/O thread wait for replies.
//!
//! A slab of slots replaces a channel per request, so no request allocates once the slab has grown.
//! A handler that stops waiting leaves its slot to the reply, which frees it. An id therefore names
//! one request until its reply has arrived, as the coordinator requires.

use crate::stages::{CommandStart, LatencyTrace};
use cluster::{Reply, RequestId};
use slab::Slab;
use std::task::{Poll, Waker};

/// A reply, with the latency trace of its request if that was recorded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replied {
    pub(crate) reply: Reply,
    pub(crate) trace: Option<Box<LatencyTrace>>,
}

#[derive(Debug)]
enum Slot {
    /// The reply is pending. The waker is woken when it arrives.
    Waiting(CommandStart, Option<Waker>),
    Replied(Replied),
    /// The handler has stopped waiting.
    Abandoned(CommandStart),
}

/// The reply slots of an I/O thread. The coordinator bounds their number.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    slots: Slab<Slot>,
}

impl Replies {
    /// Opens a slot for a request.
    pub(crate) fn open(&mut self, start: CommandStart) -> RequestId {
        RequestId(self.slots.insert(Slot::Waiting(start, None)) as u64)
    }

    /// Delivers the reply to `id`. Returns the value with which the slot was opened. `trace` makes
    /// the latency trace of the request.
    ///
    /// # Panics
    /// If the reply was delivered before.
    pub(crate) fn put(
        &mut self,
        id: RequestId,
        reply: Reply,
        trace: impl FnOnce(CommandStart) -> Option<Box<LatencyTrace>>,
    ) -> CommandStart {
        let slot = &mut self.slots[id.0 as usize];
        match slot {
            Slot::Waiting(start, waker) => {
                let (start, waker) = (*start, waker.take());
                *slot = Slot::Replied(Replied { reply, trace: trace(start) });
                waker.into_iter().for_each(Waker::wake);
                start
            }
            Slot::Abandoned(start) => {
                let start = *start;
                self.slots.remove(id.0 as usize);
                start
            }
            Slot::Replied(_) => panic!("a second reply to {id:?}"),
        }
    }

    /// Takes the reply to `id` and frees the slot; `None` while the reply is pending.
    pub(crate) fn take(&mut self, id: RequestId) -> Option<Replied> {
        if let Slot::Waiting(..) = self.slots[id.0 as usize] {
            return None;
        }
        match self.slots.remove(id.0 as usize) {
            Slot::Replied(replied) => Some(replied),
            slot => panic!("{id:?} is asked for after its end: {slot:?}"),
        }
    }

    /// Takes the reply to `id` and frees the slot. While the reply is pending, it registers
    /// `waker`.
    pub(crate) fn poll(&mut self, id: RequestId, waker: &Waker) -> Poll<Replied> {
        if let Slot::Waiting(_, waiting) = &mut self.slots[id.0 as usize] {
            match waiting {
                Some(present) => present.clone_from(waker),
                None => *waiting = Some(waker.clone()),
            }
        }
        self.take(id).map_or(Poll::Pending, Poll::Ready)
    }

    /// Notes that the handler has stopped waiting for the reply to `id`.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        let slot = &mut self.slots[id.0 as usize];
        match slot {
            Slot::Waiting(start, _) => *slot = Slot::Abandoned(*start),
            Slot::Replied(_) | Slot::Abandoned(_) => {
                self.slots.remove(id.0 as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::RequestKind;
    use cluster::Acks;
    use stdx::Instant;

    const REPLY: Reply = Reply::Missing { acks: Acks { got: 1, from: 1 } };

    #[test]
    fn a_slot_is_free_after_its_reply_and_its_reader_in_any_order() {
        let mut replies = Replies::default();
        let waker = Waker::noop();
        let start =
            [1, 2, 3].map(|nanos| CommandStart { kind: RequestKind::Get, at: Instant::from_nanos(nanos) });
        let [waits, leaves_before, leaves_after] = start.map(|start| replies.open(start));
        assert_eq!(replies.poll(waits, waker), Poll::Pending);
        assert_eq!(replies.take(waits), None);
        replies.abandon(leaves_before);
        for (id, start) in [waits, leaves_before, leaves_after].into_iter().zip(start) {
            assert_eq!(replies.put(id, REPLY, |_| None), start);
        }
        replies.abandon(leaves_after);
        assert_eq!(replies.poll(waits, waker), Poll::Ready(Replied { reply: REPLY, trace: None }));
        assert!(replies.slots.is_empty());
    }
}
