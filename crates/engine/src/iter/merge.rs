//! Merging ordered sources into one.
//!
//! **Promise.** Every key that a source holds comes once, in order, with the cell that supersedes all others
//! of it, for the greatest `from` of all of them. The order of the sources decides nothing but between cells that are equal.
//!
//! A key that was written for three nodes and then for one has older cells on two more nodes. The newest cell must reach
//! them, or they would show the older ones again; so it takes over the greater `from` before the older cells are dropped.
//!
//! **Mechanism.** The sources that are at an entry stand in a *line-up*, sorted by where they are: by key, then
//! the newer cell first. The head of the line is the entry of the merge. When the head has moved it is
//! put back in its place: mostly that is the head again (sources have runs of neighbours), else a binary
//! search finds it. A source next in line that is at the same key as the head is superseded, and is moved on
//! before the entry is shown. The first 16 bytes of each key are kept in the line-up, as a number, so that
//! comparing seldom asks a source.
//!
//! Only the head needs its value: all others set theirs aside if it is large, so a merge holds one of them however many
//! sources stand at one. Values are compared only where cells of one version meet at the head.
//!
//! **Caveats.** A large value that does not come to the head at once is read twice. Putting back moves up to all other
//! sources by one place, which is cheap for the dozens that a store has, and not meant for thousands.

use super::{Cursor, TakenValue};
use crate::Error;
use crate::prefix::prefix;
use std::cmp::Ordering;
use stdx::{CellMeta, CellRef};

/// A cursor over the union of its sources. See the module.
pub struct MergeCursor<C: Cursor = Box<dyn Cursor>> {
    pub(super) sources: Vec<C>,
    lineup: Vec<Place>,
}

/// A source that is at an entry.
#[derive(Clone, Copy)]
struct Place {
    prefix: u128,
    source: usize,
    /// The greatest `from` of the cells of this key that were passed; 0: none was.
    from: u8,
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

    /// The source whose entry is that of the merge.
    pub fn head(&self) -> Option<&C> {
        self.lineup.first().map(|place| &self.sources[place.source])
    }

    /// Whether the entry of the merge is not that of its head: it took over a greater `from`.
    pub fn is_raised(&self) -> bool {
        self.lineup.first().is_some_and(|head| head.from > place_at(&self.sources, head).1.from)
    }

    fn head_mut(&mut self) -> Option<&mut C> {
        self.lineup.first().map(|place| &mut self.sources[place.source])
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

    /// Moves every source by `seek` and lines it up.
    fn line_up(&mut self, seek: impl Fn(&mut C) -> Result<(), Error>) -> Result<(), Error> {
        self.lineup.clear();
        for source in 0..self.sources.len() {
            self.set_aside();
            seek(&mut self.sources[source]).inspect_err(|_| self.lineup.clear())?;
            self.insert(source);
        }
        self.pass_superseded()
    }

    /// Takes a source into the line-up, if it is at an entry.
    fn insert(&mut self, source: usize) {
        let Some(place) = place_of(&self.sources, source) else { return };
        let at = self.lineup.partition_point(|other| precedes(&self.sources, other, &place));
        self.lineup.insert(at, place);
        // The newcomer, or the head that was.
        if let Some(behind_head) = self.lineup.get(at.max(1)) {
            self.sources[behind_head.source].set_aside();
        }
    }

    /// Moves every source on that is at the key of the head, but the one whose cell supersedes the others: it is the
    /// head then, and has its value.
    fn pass_superseded(&mut self) -> Result<(), Error> {
        while let [first, second, ..] = self.lineup[..]
            && same_key(&self.sources, &first, &second)
        {
            if is_tied(&self.sources, &first, &second) {
                self.decide(first, second)?;
            }
            self.head_mut().expect("two are lined up").set_aside();
            let passed = &self.lineup[1];
            let from = place_at(&self.sources, passed).1.from.max(passed.from);
            self.lineup[0].from = self.lineup[0].from.max(from);
            self.move_on(1)?;
        }
        self.bring_back()
    }

    /// Of two cells of one version, which stand first, puts the one first that supersedes the other.
    #[cold]
    fn decide(&mut self, first: Place, second: Place) -> Result<(), Error> {
        for place in [first, second] {
            self.sources[place.source].bring_back().inspect_err(|_| self.lineup.clear())?;
        }
        if entry_at(&self.sources, &second).1.supersedes(&entry_at(&self.sources, &first).1) {
            self.lineup.swap(0, 1);
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
        if at + passes > 0 {
            self.sources[source].set_aside();
        }
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
        let head = self.lineup.first()?;
        let (key, mut cell) = self.sources[head.source].entry()?;
        cell.meta.from = cell.meta.from.max(head.from);
        Some((key, cell))
    }

    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        let head = self.lineup.first()?;
        let (key, mut meta) = self.sources[head.source].key_and_meta()?;
        meta.from = meta.from.max(head.from);
        Some((key, meta))
    }

    fn set_aside(&mut self) {
        if let Some(head) = self.head_mut() {
            head.set_aside();
        }
    }

    fn bring_back(&mut self) -> Result<(), Error> {
        let Some(head) = self.head_mut() else { return Ok(()) };
        head.bring_back().inspect_err(|_| self.lineup.clear())
    }

    fn take_value(&mut self) -> Option<TakenValue> {
        self.head_mut()?.take_value()
    }
}

/// Where a source is; `None` when it is past its last entry.
fn place_of<C: Cursor>(sources: &[C], source: usize) -> Option<Place> {
    let (key, _) = sources[source].key_and_meta()?;
    Some(Place { prefix: prefix(key), source, from: 0 })
}

/// Whether `a` stands before `b`: it has the lesser key, or a newer cell of the same key.
fn precedes<C: Cursor>(sources: &[C], a: &Place, b: &Place) -> bool {
    if a.prefix != b.prefix {
        return a.prefix < b.prefix;
    }
    let ((a_key, a_meta), (b_key, b_meta)) = (place_at(sources, a), place_at(sources, b));
    match a_key.cmp(b_key).then_with(|| b_meta.rank().cmp(&a_meta.rank())) {
        Ordering::Less => true,
        Ordering::Greater => false,
        Ordering::Equal => a.source < b.source,
    }
}

fn same_key<C: Cursor>(sources: &[C], a: &Place, b: &Place) -> bool {
    a.prefix == b.prefix && place_at(sources, a).0 == place_at(sources, b).0
}

/// Whether it takes more than versions and kinds to tell which of two cells of a key supersedes the other.
fn is_tied<C: Cursor>(sources: &[C], a: &Place, b: &Place) -> bool {
    place_at(sources, a).1.rank() == place_at(sources, b).1.rank()
}

fn place_at<'a, C: Cursor>(sources: &'a [C], place: &Place) -> (&'a [u8], CellMeta) {
    sources[place.source].key_and_meta().expect("a source in the line-up is at an entry")
}

fn entry_at<'a, C: Cursor>(sources: &'a [C], place: &Place) -> (&'a [u8], CellRef<'a>) {
    sources[place.source].entry().expect("a source in the line-up is at an entry")
}
