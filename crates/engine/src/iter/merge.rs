//! Merging ordered sources into one.
//!
//! **Promise.** Every key that a source holds comes once, in order, with the cell that supersedes all others
//! of it. The order of the sources decides nothing but between cells that are equal.
//!
//! **Mechanism.** The sources that are at an entry stand in a *line-up*, sorted by where they are: by key, then
//! the superseding cell first. The head of the line is the entry of the merge. When the head has moved it is
//! put back in its place: mostly that is the head again (sources have runs of neighbours), else a binary
//! search finds it. A source next in line that is at the same key as the head is superseded, and is moved on
//! before the entry is shown. The first 16 bytes of each key are kept in the line-up, as a number, so that
//! comparing seldom asks a source.
//!
//! **Caveats.** Putting back moves up to all other sources by one place, which is cheap for the dozens that a
//! store has, and not meant for thousands.

use super::Cursor;
use crate::Error;
use std::cmp::Ordering;
use stdx::CellRef;

const PREFIX_BYTES: usize = size_of::<u128>();

/// A cursor over the union of its sources. See the module.
pub struct MergeCursor<C: Cursor = Box<dyn Cursor>> {
    sources: Vec<C>,
    lineup: Vec<Place>,
}

/// A source that is at an entry.
#[derive(Clone, Copy)]
struct Place {
    prefix: u128,
    source: usize,
}

impl<C: Cursor> MergeCursor<C> {
    /// A merge of `sources`, past the last entry until it is sought.
    pub fn new(sources: Vec<C>) -> Self {
        let lineup = Vec::with_capacity(sources.len());
        Self { sources, lineup }
    }

    /// Goes past the last entry.
    pub fn clear(&mut self) {
        self.lineup.clear();
    }

    /// Replaces the source number `at`, which is at no entry of this merge, by one that is at an entry not before
    /// those that were shown, or at none.
    ///
    /// # Errors
    /// Those of sources that are moved on.
    pub fn put(&mut self, at: usize, source: C) -> Result<(), Error> {
        debug_assert!(self.lineup.iter().all(|place| place.source != at), "source {at} is at an entry");
        self.sources[at] = source;
        self.insert(at);
        self.pass_superseded()
    }

    /// Moves every source by `seek`, then lines them up.
    fn line_up(&mut self, seek: impl Fn(&mut C) -> Result<(), Error>) -> Result<(), Error> {
        self.lineup.clear();
        self.sources.iter_mut().try_for_each(seek)?;
        (0..self.sources.len()).for_each(|source| self.insert(source));
        self.pass_superseded()
    }

    /// Takes a source into the line-up, if it is at an entry.
    fn insert(&mut self, source: usize) {
        if let Some(place) = place_of(&self.sources, source) {
            let at = self.lineup.partition_point(|other| precedes(&self.sources, other, &place));
            self.lineup.insert(at, place);
        }
    }

    /// Moves every source on that is at the key of the head but the head.
    fn pass_superseded(&mut self) -> Result<(), Error> {
        while self.lineup.len() > 1 && same_key(&self.sources, &self.lineup[0], &self.lineup[1]) {
            self.move_on(1)?;
        }
        Ok(())
    }

    /// Moves the source at this place of the line-up on and puts it where it then belongs.
    fn move_on(&mut self, at: usize) -> Result<(), Error> {
        let source = self.lineup[at].source;
        if let Err(error) = self.sources[source].advance() {
            self.lineup.clear();
            return Err(error);
        }
        let Some(place) = place_of(&self.sources, source) else {
            self.lineup.remove(at);
            return Ok(());
        };
        let behind = &self.lineup[at + 1..];
        let passes = match behind.first() {
            Some(next) if precedes(&self.sources, next, &place) => {
                1 + behind[1..].partition_point(|other| precedes(&self.sources, other, &place))
            }
            _ => 0,
        };
        self.lineup.copy_within(at + 1..at + 1 + passes, at);
        self.lineup[at + passes] = place;
        Ok(())
    }
}

impl<C: Cursor> Cursor for MergeCursor<C> {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.line_up(C::seek_to_first)
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.line_up(|source| source.seek(key))
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.move_on(0)?;
        self.pass_superseded()
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        self.sources[self.lineup.first()?.source].entry()
    }
}

/// Where a source is; `None` when it is past its last entry.
fn place_of<C: Cursor>(sources: &[C], source: usize) -> Option<Place> {
    let (key, _) = sources[source].entry()?;
    Some(Place { prefix: prefix(key), source })
}

/// Whether `a` stands before `b`: it has the lesser key, or a cell of the same key that supersedes.
fn precedes<C: Cursor>(sources: &[C], a: &Place, b: &Place) -> bool {
    if a.prefix != b.prefix {
        return a.prefix < b.prefix;
    }
    let ((a_key, a_cell), (b_key, b_cell)) = (entry_at(sources, a), entry_at(sources, b));
    match a_key.cmp(b_key) {
        Ordering::Less => true,
        Ordering::Greater => false,
        Ordering::Equal if a_cell.supersedes(&b_cell) => true,
        Ordering::Equal => a.source < b.source && !b_cell.supersedes(&a_cell),
    }
}

fn same_key<C: Cursor>(sources: &[C], a: &Place, b: &Place) -> bool {
    a.prefix == b.prefix && entry_at(sources, a).0 == entry_at(sources, b).0
}

fn entry_at<'a, C: Cursor>(sources: &'a [C], place: &Place) -> (&'a [u8], CellRef<'a>) {
    sources[place.source].entry().expect("a source in the line-up is at an entry")
}

/// The first bytes of a key as a number that orders like them; short keys are filled up with zeros.
fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; PREFIX_BYTES];
    match key.first_chunk() {
        Some(first) => bytes = *first,
        None => bytes[..key.len()].copy_from_slice(key),
    }
    u128::from_be_bytes(bytes)
}
