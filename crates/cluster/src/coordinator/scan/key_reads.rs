//! Reads of single keys in a window on which the replicas disagree. They are read with a quorum,
//! like a client's reads.
//!
//! **Promise.** The completed reads suffice for a page, or are all there are, and do not exceed
//! that by more than the reads in flight when they became sufficient. Of further keys, no more are
//! known than the sources' pages contain, and the checkers' last answers named.
//!
//! **Mechanism.** Keys are read in order, and only up to the frontier that every checker has
//! reported: no further key before the completed ones can appear. The completed reads therefore
//! make a page up to the first key that was not read.
//!
//! **Caveats.** A read that found a replica too busy is retried after a pause, behind others that
//! were queued after it. These may then be read before it, though the page does not need them.

use super::request_state::PAUSE;
use super::scan_context::ScanContext;
use super::sources::Frontier;
use crate::{CommandFailure, Cut, Key, Quorum, Reply, ScanLimit, Shortfall};
use std::collections::{BTreeMap, BTreeSet};
use stdx::{Cell, Instant};

/// Greatest number of keys of one scan that are read at the same time.
const IN_FLIGHT_MAX: usize = 16;

/// The amount that suffices for a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageTarget {
    /// Number of cells, dead ones included, or their bytes; either suffices.
    pub(super) cells: ScanLimit,
    /// Number of live entries that suffices.
    pub(super) entries: Option<u64>,
}

/// Reads of the keys of a window. Each key is queued, in flight or completed.
#[derive(Debug, Default)]
pub(super) struct KeyReads {
    queued: BTreeSet<Key>,
    in_flight: BTreeMap<u64, Key>,
    completed: CompletedReads,
    /// Start of the wait for the next result.
    since: Option<Instant>,
    paused_until: Option<Instant>,
}

/// The results of reads.
#[derive(Debug, Default)]
pub(super) struct CompletedReads {
    /// The live cell of each key, if there is one.
    pub(super) cells: BTreeMap<Key, Option<Cell>>,
    /// Size of the keys and values, in bytes.
    pub(super) bytes: usize,
    live: u64,
}

impl KeyReads {
    /// Queues reads of these keys, each once.
    pub(super) fn enqueue(&mut self, keys: impl IntoIterator<Item = Key>) {
        for key in keys {
            let is_known =
                self.completed.cells.contains_key(&key) || self.in_flight.values().any(|other| *other == key);
            if !is_known {
                self.queued.insert(key);
            }
        }
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.queued.len() + self.in_flight.len() + self.completed.cells.len()
    }

    /// Whether a read of a key before the frontier is queued.
    pub(super) fn has_queued(&self, checked: &Frontier) -> bool {
        self.queued.first().is_some_and(|key| checked.reaches(key.as_bytes()))
    }

    /// Whether this read is in flight.
    pub(super) fn awaits(&self, serial: u64) -> bool {
        self.in_flight.contains_key(&serial)
    }

    /// Start of the wait for a result.
    pub(super) const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Time at which paused reads continue.
    pub(super) const fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Starts reads before the frontier that all checkers have reported, if they are due.
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

    /// Handles the result of a read. Returns the failure of the scan, if it has failed.
    pub(super) fn take_result(
        &mut self,
        now: Instant,
        serial: u64,
        reply: Reply,
    ) -> Result<(), CommandFailure> {
        let Some(key) = self.in_flight.remove(&serial) else {
            return Ok(());
        };
        let cell = match reply {
            Reply::Found { cell, .. } => Some(cell),
            Reply::Missing { .. } => None,
            Reply::Failed(CommandFailure::Overloaded { .. } | CommandFailure::NoMemory { .. }) => {
                self.paused_until = Some(now + PAUSE);
                self.queued.insert(key);
                return Ok(());
            }
            Reply::Failed(CommandFailure::NotEnoughReplicas {
                acks,
                ack,
                shortfall: Shortfall::Unreachable | Shortfall::Refused,
            }) => {
                // The scan has sent requests, unlike the read.
                return Err(CommandFailure::NotEnoughReplicas {
                    acks,
                    ack,
                    shortfall: Shortfall::Unanswered,
                });
            }
            Reply::Failed(failure) => return Err(failure),
            reply => unreachable!("a read was answered with {reply:?}"),
        };
        self.completed.insert(key, cell);
        self.since = Some(now);
        Ok(())
    }

    /// The frontier up to which no reads are left: the whole window, or a part of it that suffices.
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

    /// Takes the completed reads. Queued ones start when the next page is wanted.
    ///
    /// # Panics
    /// If reads are in flight.
    pub(super) fn take_completed(&mut self) -> CompletedReads {
        assert!(self.in_flight.is_empty(), "a read in flight may precede the completed ones");
        (self.since, self.paused_until) = (None, None);
        std::mem::take(&mut self.completed)
    }

    /// Whether the first queued key can be read, and is needed.
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
    fn completed_reads_end_before_the_next_read_and_before_the_unchecked_range() {
        let target = PageTarget { cells: ScanLimit { entries: 1, bytes: 100 }, entries: None };
        let mut reads = KeyReads::default();
        reads.completed.insert(key("a"), None);
        reads.enqueue([key("c")]);
        assert_eq!(reads.completed_to(&before("b"), target), before("b"));
        assert_eq!(reads.completed_to(&before("d"), target), before("c"));
        assert_eq!(reads.completed_to(&Frontier::All, target), before("c"));
        // A paused read precedes the completed ones: it is needed.
        reads.enqueue([key("0")]);
        assert_eq!(reads.completed_to(&Frontier::All, target), Frontier::Nothing);
    }
}
