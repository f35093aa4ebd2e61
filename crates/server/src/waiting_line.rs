//! Connections that wait for a place.
//!
//! **Promise.** At most a fixed number of connections wait. One more is always let into the line,
//! so that its first bytes can be looked at. It displaces the connection that has waited for
//! longest without having sent a whole head; if there is none, the one that has waited for longest.
//! So half-sent heads do not keep whole ones from waiting.
//!
//! **Mechanism.** Each connection holds a [`Turn`] while it waits, and leaves when
//! [`Turn::displaced`] resolves. All is on the control thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;

/// The line. See the module.
#[derive(Debug)]
pub(crate) struct WaitingLine {
    len_max: usize,
    /// In the order in which they came.
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
}

/// A connection in the line.
#[derive(Debug, Default)]
struct Waiting {
    has_whole_head: Cell<bool>,
    displaced: Notify,
}

/// The turn of a connection that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    line: Rc<WaitingLine>,
    waiting: Rc<Waiting>,
}

impl WaitingLine {
    /// A line of at most `len_max` connections, at least 1.
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, waiting: RefCell::default() }
    }

    /// Lets a connection in, and displaces another one if the line is full.
    pub(crate) fn join(self: &Rc<Self>) -> Turn {
        let mut line = self.waiting.borrow_mut();
        if line.len() >= self.len_max {
            let unfinished = line.iter().position(|waiting| !waiting.has_whole_head.get());
            if let Some(displaced) = line.remove(unfinished.unwrap_or(0)) {
                displaced.displaced.notify_one();
            }
        }
        let waiting = Rc::<Waiting>::default();
        line.push_back(Rc::clone(&waiting));
        Turn { line: Rc::clone(self), waiting }
    }
}

impl Turn {
    /// Notes whether the connection has sent a whole head.
    pub(crate) fn note_head(&self, is_whole: bool) {
        self.waiting.has_whole_head.set(is_whole);
    }

    /// Resolves when another connection has taken the turn.
    pub(crate) async fn displaced(&self) {
        self.waiting.displaced.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.line.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, &self.waiting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_displaced(turn: &Turn) -> bool {
        pin!(turn.displaced()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_whole_head_is_not_displaced_by_half_sent_ones() {
        let line = Rc::new(WaitingLine::new(4));
        let whole = line.join();
        whole.note_head(true);
        let mut half_sent: VecDeque<_> = (0..3).map(|_| line.join()).collect();
        for _ in 0..100 {
            half_sent.push_back(line.join());
            let oldest = half_sent.pop_front().expect("there are four");
            assert!(is_displaced(&oldest), "the oldest of them leaves");
            assert!(half_sent.iter().all(|turn| !is_displaced(turn)) && !is_displaced(&whole));
        }
    }

    #[test]
    fn a_line_of_whole_heads_lets_one_more_in() {
        let line = Rc::new(WaitingLine::new(2));
        let turns = [line.join(), line.join()];
        turns.iter().for_each(|turn| turn.note_head(true));
        let third = line.join();
        assert!(is_displaced(&turns[0]) && !is_displaced(&turns[1]) && !is_displaced(&third));
        drop((turns, third));
        assert!(line.waiting.borrow().is_empty());
    }
}
