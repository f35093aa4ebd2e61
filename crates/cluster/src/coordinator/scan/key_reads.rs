//! Keys of a window of which the participants do not settle what is shown, read one by one as a user would read them.
//!
//! **Promise.** What was read is enough for a page, or all there is, and not much more: the values of those reads that
//! were under way when it became enough. Of keys beyond, no more are known than the sources' pages have, and the
//! checkers' last answers named.
//!
//! **Mechanism.** Keys are read in their order, and only up to where every checker has said what it holds: no key before
//! those that were read can come to light. So what was read makes a page up to the first key that was not.
//!
//! **Caveats.** A read that found a replica too busy is begun again after a pause, behind others that came after it.
//! These may then be read before it, though they are not needed for the page.

use super::request_state::PAUSE;
use super::scan_context::ScanContext;
use super::sources::Frontier;
use crate::{Cut, Failure, Key, Quorum, Reply, ScanLimit, Shortfall};
use std::collections::{BTreeMap, BTreeSet};
use stdx::{Cell, Instant};

/// Keys of one scan that are read at once.
const IN_FLIGHT_MAX: usize = 16;

/// How much is enough for a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageTarget {
    /// So many cells, dead ones counted too, or bytes of them, ...
    pub(super) cells: ScanLimit,
    /// ... or so many entries.
    pub(super) entries: Option<u64>,
}

/// See the module. Each key is in one of these.
#[derive(Debug, Default)]
pub(super) struct KeyReads {
    queued: BTreeSet<Key>,
    in_flight: BTreeMap<u64, Key>,
    completed: CompletedReads,
    /// Since when the next result is waited for.
    since: Option<Instant>,
    paused_until: Option<Instant>,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct CompletedReads {
    /// What lives there, if anything does.
    pub(super) cells: BTreeMap<Key, Option<Cell>>,
    /// How much that is.
    pub(super) bytes: usize,
    live: u64,
}

impl KeyReads {
    /// Has these keys read, each once.
    pub(super) fn enqueue(&mut self, keys: impl IntoIterator<Item = Key>) {
        for key in keys {
            let is_known =
                self.completed.cells.contains_key(&key) || self.in_flight.values().any(|other| *other == key);
            if !is_known {
                self.queued.insert(key);
            }
        }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.queued.len() + self.in_flight.len() + self.completed.cells.len()
    }

    /// Whether a key up to there has not been begun to be read.
    pub(super) fn has_queued(&self, checked: &Frontier) -> bool {
        self.queued.first().is_some_and(|key| checked.reaches(key.as_bytes()))
    }

    /// Whether this read is under way.
    pub(super) fn awaits(&self, serial: u64) -> bool {
        self.in_flight.contains_key(&serial)
    }

    /// Since when a result is waited for.
    pub(super) const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// When those that had to wait go on.
    pub(super) const fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Begins reads up to where all is checked, if it is time to.
    pub(super) fn advance(
        &mut self,
        cx: &mut ScanContext<'_>,
        quorum: Quorum,
        checked: &Frontier,
        target: PageTarget,
    ) {
        if self.paused_until.is_some_and(|until| cx.now.mono < until) {
            return;
        }
        self.paused_until = None;
        while self.in_flight.len() < IN_FLIGHT_MAX
            && self.needs_next(checked, target)
            && let Some(key) = self.queued.pop_first()
        {
            self.since.get_or_insert(cx.now.mono);
            self.in_flight.insert(cx.read(key.clone(), quorum), key);
        }
        if self.in_flight.is_empty() {
            self.since = None;
        }
    }

    /// Takes the result of a read; why the scan has failed, if it has.
    pub(super) fn take_result(&mut self, now: Instant, serial: u64, reply: Reply) -> Result<(), Failure> {
        let Some(key) = self.in_flight.remove(&serial) else {
            return Ok(());
        };
        let cell = match reply {
            Reply::Found { cell, .. } => Some(cell),
            Reply::Missing { .. } => None,
            Reply::Failed(Failure::Overloaded { .. }) => {
                self.paused_until = Some(now + PAUSE);
                self.queued.insert(key);
                return Ok(());
            }
            Reply::Failed(Failure::NotEnoughReplicas {
                acks,
                ack,
                shortfall: Shortfall::Unreachable | Shortfall::Refused,
            }) => {
                // Of the scan, something was sent.
                return Err(Failure::NotEnoughReplicas { acks, ack, shortfall: Shortfall::Unanswered });
            }
            Reply::Failed(failure) => return Err(failure),
            reply => unreachable!("a read was answered with {reply:?}"),
        };
        self.completed.insert(key, cell);
        self.since = Some(now);
        Ok(())
    }

    /// Up to where there is nothing left to be read: all, or if that is enough, a part.
    pub(super) fn completed_to(&self, checked: &Frontier, target: PageTarget) -> Frontier {
        if !self.in_flight.is_empty() || self.needs_next(checked, target) {
            return Frontier::Nothing;
        }
        match self.queued.first() {
            None if *checked == Frontier::All => Frontier::All,
            _ if !self.completed.reaches(target) => Frontier::Nothing,
            None => checked.clone(),
            Some(key) => Frontier::To(Cut::Before(key.clone())).min(checked.clone()),
        }
    }

    /// Takes out what was read; what is left is begun when the next page is wanted.
    pub(super) fn take_completed(&mut self) -> CompletedReads {
        assert!(self.in_flight.is_empty(), "what is under way may belong to what was read");
        (self.since, self.paused_until) = (None, None);
        std::mem::take(&mut self.completed)
    }

    /// Whether the first key that is to be read can be and is needed.
    fn needs_next(&self, checked: &Frontier, target: PageTarget) -> bool {
        let is_needed = |key: &Key| {
            let last = self.completed.cells.last_key_value();
            !self.completed.reaches(target) || last.is_some_and(|(last, _)| key < last)
        };
        self.has_queued(checked) && self.queued.first().is_some_and(is_needed)
    }
}

impl CompletedReads {
    fn insert(&mut self, key: Key, cell: Option<Cell>) {
        self.bytes += key.as_bytes().len() + cell.as_ref().map_or(0, |cell| cell.value.len());
        self.live += u64::from(cell.is_some());
        self.cells.insert(key, cell);
    }

    fn reaches(&self, target: PageTarget) -> bool {
        let PageTarget { cells, entries } = target;
        self.cells.len() >= cells.entries
            || self.bytes >= cells.bytes
            || entries.is_some_and(|entries| self.live >= entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn key(name: &'static str) -> Key {
        Key::new(Bytes::from_static(name.as_bytes())).expect("a key")
    }

    fn before(name: &'static str) -> Frontier {
        Frontier::To(Cut::Before(key(name)))
    }

    #[test]
    fn what_is_done_ends_before_the_next_read_and_before_what_is_not_checked() {
        let target = PageTarget { cells: ScanLimit { entries: 1, bytes: 100 }, entries: None };
        let mut reads = KeyReads::default();
        reads.completed.insert(key("a"), None);
        reads.enqueue([key("c")]);
        assert_eq!(reads.completed_to(&before("b"), target), before("b"));
        assert_eq!(reads.completed_to(&before("d"), target), before("c"));
        assert_eq!(reads.completed_to(&Frontier::All, target), before("c"));
        // One that had to wait comes before what was read: it is needed.
        reads.enqueue([key("0")]);
        assert_eq!(reads.completed_to(&Frontier::All, target), Frontier::Nothing);
    }
}
