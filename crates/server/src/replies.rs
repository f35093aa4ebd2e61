//! Where the handlers of one I/O thread wait for their replies.
//!
//! A slab of slots instead of a channel for each request: nothing is allocated on the way of a request once the
//! slab has grown. Whoever stops waiting leaves its slot to the reply, which frees it: an id names one request
//! until its reply has come, as the coordinator asks.

use cluster::{Reply, RequestId};
use slab::Slab;
use std::task::{Poll, Waker};

#[derive(Debug)]
enum Slot {
    /// No reply yet; wake this one when it comes.
    Waiting(Option<Waker>),
    Replied(Reply),
    /// Nobody waits any more.
    Left,
}

/// See the module. The coordinator bounds how many wait.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    slots: Slab<Slot>,
}

impl Replies {
    /// A slot for a request.
    pub(crate) fn open(&mut self) -> RequestId {
        RequestId(self.slots.insert(Slot::Waiting(None)) as u64)
    }

    /// The reply to `id` has come.
    ///
    /// # Panics
    /// When it has come before.
    pub(crate) fn put(&mut self, id: RequestId, reply: Reply) {
        let slot = &mut self.slots[id.0 as usize];
        match std::mem::replace(slot, Slot::Replied(reply)) {
            Slot::Waiting(waker) => waker.into_iter().for_each(Waker::wake),
            Slot::Left => {
                self.slots.remove(id.0 as usize);
            }
            Slot::Replied(_) => panic!("a second reply to {id:?}"),
        }
    }

    /// Takes the reply to `id`, which ends the wait; `None` while there is none.
    pub(crate) fn take(&mut self, id: RequestId) -> Option<Reply> {
        if let Slot::Waiting(_) = self.slots[id.0 as usize] {
            return None;
        }
        match self.slots.remove(id.0 as usize) {
            Slot::Replied(reply) => Some(reply),
            slot => panic!("{id:?} is asked for after its end: {slot:?}"),
        }
    }

    /// As [`Replies::take`]; leaves `waker` to be woken while there is none.
    pub(crate) fn poll(&mut self, id: RequestId, waker: &Waker) -> Poll<Reply> {
        if let Slot::Waiting(waiting) = &mut self.slots[id.0 as usize] {
            match waiting {
                Some(present) => present.clone_from(waker),
                None => *waiting = Some(waker.clone()),
            }
        }
        self.take(id).map_or(Poll::Pending, Poll::Ready)
    }

    /// Nobody waits for the reply to `id` any more.
    pub(crate) fn leave(&mut self, id: RequestId) {
        let slot = &mut self.slots[id.0 as usize];
        match slot {
            Slot::Waiting(_) => *slot = Slot::Left,
            Slot::Replied(_) | Slot::Left => {
                self.slots.remove(id.0 as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::Acks;

    const REPLY: Reply = Reply::Missing { acks: Acks { got: 1, from: 1 } };

    #[test]
    fn a_slot_is_free_after_the_reply_and_its_taking_in_any_order() {
        let mut replies = Replies::default();
        let waker = Waker::noop();
        let (waits, leaves_before, leaves_after) = (replies.open(), replies.open(), replies.open());
        assert_eq!(replies.poll(waits, waker), Poll::Pending);
        assert_eq!(replies.take(waits), None);
        replies.leave(leaves_before);
        for id in [waits, leaves_before, leaves_after] {
            replies.put(id, REPLY);
        }
        replies.leave(leaves_after);
        assert_eq!(replies.poll(waits, waker), Poll::Ready(REPLY));
        assert!(replies.slots.is_empty());
    }
}
