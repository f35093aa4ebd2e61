//! The queue of connections that wait for a permit, or for the end of their refusal.
//!
//! **Promise.** At most [`WAITING_MAX`] connections wait, and [`REFUSED_MAX`] linger after their
//! refusal. A further connection is always admitted to the queue, so that its first bytes can be
//! examined. It displaces a connection without a complete head or, if all heads are complete, any
//! other: the oldest one of the address with the most of them. Half-sent heads therefore do not
//! keep complete ones from waiting, and neither does one address keep others out.
//!
//! **Mechanism.** Each connection holds a [`QueueTicket`] while it waits, and leaves when
//! [`QueueTicket::displaced`] resolves. A connection with a complete head is then refused: it moves
//! to the refused ones with [`QueueTicket::begin_refusal`], where it displaces the oldest. The
//! queue lives on the control thread.

use crate::connection_limit::ClientAddress;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;

/// Most connections that wait for a permit.
const WAITING_MAX: usize = 48;
/// Most connections that linger after their refusal.
const REFUSED_MAX: usize = 16;

/// A bounded queue of connections without a permit.
#[derive(Debug, Default)]
pub(crate) struct AcceptQueue {
    /// The waiting connections, oldest first.
    waiting: RefCell<VecDeque<Rc<QueuedConnection>>>,
    /// The refused connections, oldest first.
    refused: RefCell<VecDeque<Rc<QueuedConnection>>>,
}

/// A connection in the queue.
#[derive(Debug)]
struct QueuedConnection {
    client: ClientAddress,
    has_whole_head: Cell<bool>,
    displaced: Notify,
}

/// Membership of a connection in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueueTicket {
    queue: Rc<AcceptQueue>,
    connection: Rc<QueuedConnection>,
}

impl AcceptQueue {
    /// Whether no connection waits or lingers.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty() && self.refused.borrow().is_empty()
    }

    /// Adds a connection of `client`. If the queue is full, it displaces another one.
    pub(crate) fn join(self: &Rc<Self>, client: ClientAddress) -> QueueTicket {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= WAITING_MAX {
            displace(&mut waiting, displaced_index);
        }
        let connection = QueuedConnection::of(client);
        waiting.push_back(Rc::clone(&connection));
        QueueTicket { queue: Rc::clone(self), connection }
    }

    fn leave(&self, connection: &Rc<QueuedConnection>) {
        for part in [&self.waiting, &self.refused] {
            part.borrow_mut().retain(|queued| !Rc::ptr_eq(queued, connection));
        }
    }
}

fn displace(
    queue: &mut VecDeque<Rc<QueuedConnection>>,
    choose: impl Fn(&VecDeque<Rc<QueuedConnection>>) -> usize,
) {
    if let Some(displaced) = queue.remove(choose(queue)) {
        displaced.displaced.notify_one();
    }
}

/// Index of the waiting connection that is displaced.
fn displaced_index(waiting: &VecDeque<Rc<QueuedConnection>>) -> usize {
    let are_whole = waiting.iter().all(|connection| connection.has_whole_head.get());
    let is_candidate = |connection: &QueuedConnection| are_whole || !connection.has_whole_head.get();
    let of_client = |client: ClientAddress| {
        waiting.iter().filter(|connection| is_candidate(connection) && connection.client == client).count()
    };
    let candidates = waiting.iter().enumerate().filter(|(_, connection)| is_candidate(connection));
    // The first of equal ones is the oldest.
    let displaced = candidates.rev().max_by_key(|(_, connection)| of_client(connection.client));
    displaced.map_or(0, |(index, _)| index)
}

impl QueuedConnection {
    fn of(client: ClientAddress) -> Rc<Self> {
        Rc::new(Self { client, has_whole_head: Cell::new(false), displaced: Notify::new() })
    }
}

impl QueueTicket {
    /// Notes whether the connection has sent a complete head.
    pub(crate) fn note_head(&self, is_whole: bool) {
        self.connection.has_whole_head.set(is_whole);
    }

    /// Moves the connection to the refused ones. If there are too many, the oldest is displaced.
    pub(crate) fn begin_refusal(&mut self) {
        self.queue.leave(&self.connection);
        self.connection = QueuedConnection::of(self.connection.client);
        let mut refused = self.queue.refused.borrow_mut();
        if refused.len() >= REFUSED_MAX {
            displace(&mut refused, |_| 0);
        }
        refused.push_back(Rc::clone(&self.connection));
    }

    /// Resolves when another connection has displaced this one.
    pub(crate) async fn displaced(&self) {
        self.connection.displaced.notified().await;
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.queue.leave(&self.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::net::IpAddr;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn client(last: u8) -> ClientAddress {
        ClientAddress::of(IpAddr::from([10, 0, 0, last]))
    }

    fn is_displaced(ticket: &QueueTicket) -> bool {
        pin!(ticket.displaced()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn join_whole(queue: &Rc<AcceptQueue>, last: u8) -> QueueTicket {
        let ticket = queue.join(client(last));
        ticket.note_head(true);
        ticket
    }

    #[test]
    fn a_whole_head_is_not_displaced_by_half_sent_ones() {
        let queue = Rc::<AcceptQueue>::default();
        let whole = join_whole(&queue, 1);
        let mut half_sent: VecDeque<_> = (1..WAITING_MAX).map(|_| queue.join(client(1))).collect();
        for _ in 0..100 {
            half_sent.push_back(queue.join(client(1)));
            let oldest = half_sent.pop_front().expect("there are some");
            assert!(is_displaced(&oldest), "the oldest half-sent head is displaced");
            assert!(half_sent.iter().all(|ticket| !is_displaced(ticket)) && !is_displaced(&whole));
        }
    }

    #[test]
    fn a_queue_of_whole_heads_displaces_the_oldest_of_the_address_with_the_most() {
        let queue = Rc::<AcceptQueue>::default();
        let (other, half_sent) = (join_whole(&queue, 2), queue.join(client(3)));
        let most: Vec<_> = (2..WAITING_MAX).map(|_| join_whole(&queue, 1)).collect();
        let further = join_whole(&queue, 4);
        assert!(is_displaced(&half_sent), "it has no whole head");
        let last = join_whole(&queue, 5);
        assert!(is_displaced(&most[0]), "the oldest of the address with the most");
        assert!([&other, &further, &last, &most[1]].into_iter().all(|ticket| !is_displaced(ticket)));
        drop((other, half_sent, most, further, last));
        assert!(queue.is_empty());
    }

    #[test]
    fn refused_connections_displace_the_oldest_refused_one_and_free_a_slot() {
        let queue = Rc::<AcceptQueue>::default();
        let mut tickets: Vec<_> = (0..WAITING_MAX).map(|_| join_whole(&queue, 1)).collect();
        tickets[..=REFUSED_MAX].iter_mut().for_each(QueueTicket::begin_refusal);
        assert!(is_displaced(&tickets[0]) && tickets[1..].iter().all(|ticket| !is_displaced(ticket)));
        let further: Vec<_> = (0..=REFUSED_MAX).map(|_| join_whole(&queue, 2)).collect();
        assert!(tickets[1..].iter().chain(&further).all(|ticket| !is_displaced(ticket)));
        drop((tickets, further));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_displaced_connection_may_begin_its_refusal() {
        let queue = Rc::<AcceptQueue>::default();
        let mut first = join_whole(&queue, 1);
        let rest: Vec<_> = (0..WAITING_MAX).map(|_| join_whole(&queue, 1)).collect();
        assert!(is_displaced(&first));
        first.begin_refusal();
        assert!(!is_displaced(&first) && !is_displaced(&rest[0]));
    }
}
