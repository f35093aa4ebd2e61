//! The queue of connections that wait for a permit.
//!
//! **Promise.** At most a fixed number of connections wait. A further connection is always admitted
//! to the queue, so that its first bytes can be examined. It displaces the oldest connection
//! without a complete head, or, if all heads are complete, the oldest connection. Half-sent heads
//! therefore do not keep complete ones from waiting.
//!
//! **Mechanism.** Each connection holds a [`QueueTicket`] while it waits, and leaves when
//! [`QueueTicket::displaced`] resolves. The queue lives on the control thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;

/// A bounded queue of waiting connections.
#[derive(Debug)]
pub(crate) struct AcceptQueue {
    len_max: usize,
    /// The waiting connections, oldest first.
    waiting: RefCell<VecDeque<Rc<QueuedConnection>>>,
}

/// A connection in the queue.
#[derive(Debug, Default)]
struct QueuedConnection {
    has_whole_head: Cell<bool>,
    displaced: Notify,
}

/// Membership of a connection in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueueTicket {
    queue: Rc<AcceptQueue>,
    waiting: Rc<QueuedConnection>,
}

impl AcceptQueue {
    /// A queue of at most `len_max` connections, at least 1.
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, waiting: RefCell::default() }
    }

    /// Whether no connection waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Adds a connection. If the queue is full, it displaces another one.
    pub(crate) fn join(self: &Rc<Self>) -> QueueTicket {
        let mut queue = self.waiting.borrow_mut();
        if queue.len() >= self.len_max {
            let unfinished = queue.iter().position(|waiting| !waiting.has_whole_head.get());
            if let Some(displaced) = queue.remove(unfinished.unwrap_or(0)) {
                displaced.displaced.notify_one();
            }
        }
        let waiting = Rc::<QueuedConnection>::default();
        queue.push_back(Rc::clone(&waiting));
        QueueTicket { queue: Rc::clone(self), waiting }
    }
}

impl QueueTicket {
    /// Notes whether the connection has sent a complete head.
    pub(crate) fn note_head(&self, is_whole: bool) {
        self.waiting.has_whole_head.set(is_whole);
    }

    /// Resolves when another connection has displaced this one.
    pub(crate) async fn displaced(&self) {
        self.waiting.displaced.notified().await;
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.queue.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, &self.waiting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_displaced(ticket: &QueueTicket) -> bool {
        pin!(ticket.displaced()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_whole_head_is_not_displaced_by_half_sent_ones() {
        let queue = Rc::new(AcceptQueue::new(4));
        let whole = queue.join();
        whole.note_head(true);
        let mut half_sent: VecDeque<_> = (0..3).map(|_| queue.join()).collect();
        for _ in 0..100 {
            half_sent.push_back(queue.join());
            let oldest = half_sent.pop_front().expect("there are four");
            assert!(is_displaced(&oldest), "the oldest half-sent head is displaced");
            assert!(half_sent.iter().all(|ticket| !is_displaced(ticket)) && !is_displaced(&whole));
        }
    }

    #[test]
    fn a_queue_of_whole_heads_displaces_the_oldest() {
        let queue = Rc::new(AcceptQueue::new(2));
        let tickets = [queue.join(), queue.join()];
        tickets.iter().for_each(|ticket| ticket.note_head(true));
        let third = queue.join();
        assert!(is_displaced(&tickets[0]) && !is_displaced(&tickets[1]) && !is_displaced(&third));
        drop((tickets, third));
        assert!(queue.waiting.borrow().is_empty());
    }
}
