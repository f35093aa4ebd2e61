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

use super::desk::Desk;
use super::progress::PAUSE;
use super::sources::Known;
use crate::{Cut, Failure, Key, Quorum, Reply, ScanLimit, Shortfall};
use std::collections::{BTreeMap, BTreeSet};
use stdx::{Cell, Instant};

/// Keys of one scan that are read at once.
const UNDER_WAY_MAX: usize = 16;

/// How much is enough for a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Enough {
    /// So many cells, dead ones counted too, or bytes of them, ...
    pub(super) cells: ScanLimit,
    /// ... or so many entries.
    pub(super) entries: Option<u64>,
}

/// See the module. Each key is in one of these.
#[derive(Debug, Default)]
pub(super) struct Reads {
    to_do: BTreeSet<Key>,
    under_way: BTreeMap<u64, Key>,
    done: Done,
    /// Since when the next result is waited for.
    since: Option<Instant>,
    paused_until: Option<Instant>,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// What lives there, if anything does.
    pub(super) cells: BTreeMap<Key, Option<Cell>>,
    /// How much that is.
    pub(super) bytes: usize,
    live: u64,
}

impl Reads {
    /// Has these keys read, each once.
    pub(super) fn want(&mut self, keys: impl IntoIterator<Item = Key>) {
        for key in keys {
            let is_known =
                self.done.cells.contains_key(&key) || self.under_way.values().any(|other| *other == key);
            if !is_known {
                self.to_do.insert(key);
            }
        }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.to_do.len() + self.under_way.len() + self.done.cells.len()
    }

    /// Whether a key up to there has not been begun to be read.
    pub(super) fn has_to_do(&self, checked: &Known) -> bool {
        self.to_do.first().is_some_and(|key| checked.reaches(key.as_bytes()))
    }

    /// Whether this read is under way.
    pub(super) fn awaits(&self, serial: u64) -> bool {
        self.under_way.contains_key(&serial)
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
    pub(super) fn advance(&mut self, desk: &mut Desk<'_>, quorum: Quorum, checked: &Known, enough: Enough) {
        if self.paused_until.is_some_and(|until| desk.now.mono < until) {
            return;
        }
        self.paused_until = None;
        while self.under_way.len() < UNDER_WAY_MAX
            && self.goes_on(checked, enough)
            && let Some(key) = self.to_do.pop_first()
        {
            self.since.get_or_insert(desk.now.mono);
            self.under_way.insert(desk.read(key.clone(), quorum), key);
        }
        if self.under_way.is_empty() {
            self.since = None;
        }
    }

    /// Takes the result of a read; why the scan has failed, if it has.
    pub(super) fn take(&mut self, now: Instant, serial: u64, reply: Reply) -> Result<(), Failure> {
        let Some(key) = self.under_way.remove(&serial) else {
            return Ok(());
        };
        let cell = match reply {
            Reply::Found { cell, .. } => Some(cell),
            Reply::Missing { .. } => None,
            Reply::Failed(Failure::Overloaded { .. }) => {
                self.paused_until = Some(now + PAUSE);
                self.to_do.insert(key);
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
        self.done.insert(key, cell);
        self.since = Some(now);
        Ok(())
    }

    /// Up to where there is nothing left to be read: all, or if that is enough, a part.
    pub(super) fn done_to(&self, checked: &Known, enough: Enough) -> Known {
        if !self.under_way.is_empty() || self.goes_on(checked, enough) {
            return Known::Nothing;
        }
        match self.to_do.first() {
            None if *checked == Known::All => Known::All,
            _ if !self.done.is(enough) => Known::Nothing,
            None => checked.clone(),
            Some(key) => Known::To(Cut::Before(key.clone())).min(checked.clone()),
        }
    }

    /// Takes out what was read; what is left is begun when the next page is wanted.
    pub(super) fn take_done(&mut self) -> Done {
        assert!(self.under_way.is_empty(), "what is under way may belong to what was read");
        (self.since, self.paused_until) = (None, None);
        std::mem::take(&mut self.done)
    }

    /// Whether the first key that is to be read can be and is needed.
    fn goes_on(&self, checked: &Known, enough: Enough) -> bool {
        let is_needed = |key: &Key| {
            let last = self.done.cells.last_key_value();
            !self.done.is(enough) || last.is_some_and(|(last, _)| key < last)
        };
        self.has_to_do(checked) && self.to_do.first().is_some_and(is_needed)
    }
}

impl Done {
    fn insert(&mut self, key: Key, cell: Option<Cell>) {
        self.bytes += key.as_bytes().len() + cell.as_ref().map_or(0, |cell| cell.value.len());
        self.live += u64::from(cell.is_some());
        self.cells.insert(key, cell);
    }

    fn is(&self, enough: Enough) -> bool {
        let Enough { cells, entries } = enough;
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

    fn before(name: &'static str) -> Known {
        Known::To(Cut::Before(key(name)))
    }

    #[test]
    fn what_is_done_ends_before_the_next_read_and_before_what_is_not_checked() {
        let enough = Enough { cells: ScanLimit { entries: 1, bytes: 100 }, entries: None };
        let mut reads = Reads::default();
        reads.done.insert(key("a"), None);
        reads.want([key("c")]);
        assert_eq!(reads.done_to(&before("b"), enough), before("b"));
        assert_eq!(reads.done_to(&before("d"), enough), before("c"));
        assert_eq!(reads.done_to(&Known::All, enough), before("c"));
        // One that had to wait comes before what was read: it is needed.
        reads.want([key("0")]);
        assert_eq!(reads.done_to(&Known::All, enough), Known::Nothing);
    }
}
