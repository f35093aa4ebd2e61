//! Merging ordered sources.
//!
//! **Promise.** Every key of the sources is yielded once, in order. Its cell is the one that
//! supersedes all others of the key, with the greatest `from` of all of them. The order of the
//! sources matters only between equal cells.
//!
//! A key that was written for three nodes and then for one has older cells on two more nodes. The
//! newest cell must reach those nodes, or they would show the older cells again. So it takes over
//! the greater `from` before the older cells are dropped.
//!
//! **Mechanism.** The sources that are at an entry form a priority queue, kept as a sorted array:
//! by key, then the newer cell first. The head of the queue is the entry of the merge. When the
//! head has advanced it is inserted again. Usually it stays the head, because sources have runs of
//! adjacent keys; otherwise a binary search finds its position. A following source at the same key
//! is superseded and is advanced before the entry is shown. Each queue item has the first 16 bytes
//! of its key as a number, so comparisons rarely access a source.
//!
//! Only the head needs its value. All other sources release a large value, so a merge holds one of
//! them, however many sources are at one. Values are compared only between cells of one version at
//! the head.
//!
//! A merge for versions reads no value at the head. It compares values only if the metadata of
//! cells of one version differ.
//!
//! **Caveats.** A large value that does not become the head at once is read twice. Inserting moves
//! up to all other items by one position, which is cheap for dozens of sources and not intended for
//! thousands.

use super::{Cursor, OwnedValue};
use crate::Error;
use crate::prefix::prefix;
use std::cmp::Ordering;
use stdx::{CellMeta, CellRef};

/// A cursor over the union of its sources.
pub struct MergeCursor<C: Cursor = Box<dyn Cursor>> {
    pub(super) sources: Vec<C>,
    queue: Vec<QueueItem>,
    /// Whether the value at the head is not needed.
    versions_only: bool,
}

/// A source that is at an entry.
#[derive(Clone, Copy)]
struct QueueItem {
    prefix: u128,
    source: usize,
    /// Greatest `from` of the cells of this key that were skipped; 0 if there were none.
    from: u8,
}

impl<C: Cursor> MergeCursor<C> {
    /// Returns a merge of `sources`, past the last entry until the first seek.
    pub fn new(sources: Vec<C>) -> Self {
        let queue = Vec::with_capacity(sources.len());
        Self { sources, queue, versions_only: false }
    }

    /// Returns a merge for versions: as [`MergeCursor::new`], but it does not load the value at the
    /// head. Which of several values it would load is undefined if only these differ.
    pub fn of_versions(sources: Vec<C>) -> Self {
        Self { versions_only: true, ..Self::new(sources) }
    }

    /// Moves past the last entry.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// The source whose entry is the entry of the merge.
    pub fn head(&self) -> Option<&C> {
        self.queue.first().map(|item| &self.sources[item.source])
    }

    /// Whether the merge shows the head's cell with a greater `from` than the head has.
    pub fn has_raised_from(&self) -> bool {
        self.queue.first().is_some_and(|head| head.from > key_and_meta_of(&self.sources, head).1.from)
    }

    /// The sources, in order. Their positions must not be changed.
    pub(crate) fn sources_mut(&mut self) -> &mut [C] {
        &mut self.sources
    }

    fn head_mut(&mut self) -> Option<&mut C> {
        self.queue.first().map(|item| &mut self.sources[item.source])
    }

    /// Replaces source number `at`, which is at no entry. The new source is past its last entry, or
    /// at an entry not before those that were shown.
    ///
    /// # Errors
    /// Those of sources that are advanced.
    pub fn replace_source(&mut self, at: usize, source: C) -> Result<(), Error> {
        debug_assert!(self.queue.iter().all(|item| item.source != at), "source {at} is at an entry");
        self.sources[at] = source;
        self.enqueue(at);
        self.skip_superseded()
    }

    /// Moves every source by `seek` and fills the queue.
    fn seek_all(&mut self, seek: impl Fn(&mut C) -> Result<(), Error>) -> Result<(), Error> {
        self.queue.clear();
        for source in 0..self.sources.len() {
            self.release_value();
            seek(&mut self.sources[source]).inspect_err(|_| self.queue.clear())?;
            self.enqueue(source);
        }
        self.skip_superseded()
    }

    /// Inserts a source into the queue if it is at an entry.
    fn enqueue(&mut self, source: usize) {
        let Some(item) = queue_item(&self.sources, source) else { return };
        let at = self.queue.partition_point(|other| precedes(&self.sources, other, &item));
        self.queue.insert(at, item);
        // Either the inserted source or the previous head.
        if let Some(behind_head) = self.queue.get(at.max(1)) {
            self.sources[behind_head.source].release_value();
        }
    }

    /// Advances every source at the head's key except the one whose cell supersedes the others.
    /// That one becomes the head and has its value loaded, unless the merge is for versions.
    fn skip_superseded(&mut self) -> Result<(), Error> {
        while let [first, second, ..] = self.queue[..]
            && same_key(&self.sources, &first, &second)
        {
            if is_tied(&self.sources, &first, &second) && !self.is_same_version(&first, &second) {
                self.break_tie(first, second)?;
            }
            self.head_mut().expect("the queue has two items").release_value();
            let superseded = &self.queue[1];
            let from = key_and_meta_of(&self.sources, superseded).1.from.max(superseded.from);
            self.queue[0].from = self.queue[0].from.max(from);
            self.advance_item(1)?;
        }
        if self.versions_only { Ok(()) } else { self.reload_value() }
    }

    /// Whether the merge is for versions and does not distinguish the cells of two items.
    fn is_same_version(&self, first: &QueueItem, second: &QueueItem) -> bool {
        let meta_of = |item| key_and_meta_of(&self.sources, item).1;
        self.versions_only && meta_of(first) == meta_of(second)
    }

    /// Orders the first two items, whose cells have the same version, so that the superseding cell
    /// is first.
    #[cold]
    fn break_tie(&mut self, first: QueueItem, second: QueueItem) -> Result<(), Error> {
        for item in [first, second] {
            self.sources[item.source].reload_value().inspect_err(|_| self.queue.clear())?;
        }
        if entry_of(&self.sources, &second).1.supersedes(&entry_of(&self.sources, &first).1) {
            self.queue.swap(0, 1);
        }
        Ok(())
    }

    /// Advances the source of queue item `at`, and moves the item to its new position.
    fn advance_item(&mut self, at: usize) -> Result<(), Error> {
        let source = self.queue[at].source;
        if let Err(error) = self.sources[source].advance() {
            self.queue.clear();
            return Err(error);
        }
        let Some(item) = queue_item(&self.sources, source) else {
            self.queue.remove(at);
            return Ok(());
        };
        let behind = &self.queue[at + 1..];
        let displaced = match behind.first() {
            Some(next) if precedes(&self.sources, next, &item) => {
                1 + behind[1..].partition_point(|other| precedes(&self.sources, other, &item))
            }
            _ => 0,
        };
        self.queue.copy_within(at + 1..at + 1 + displaced, at);
        self.queue[at + displaced] = item;
        if at + displaced > 0 {
            self.sources[source].release_value();
        }
        Ok(())
    }
}

impl<C: Cursor> Cursor for MergeCursor<C> {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.seek_all(C::seek_to_first)
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.seek_all(|source| source.seek(key))
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.advance_item(0)?;
        self.skip_superseded()
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        let head = self.queue.first()?;
        let (key, mut cell) = self.sources[head.source].entry()?;
        cell.meta.from = cell.meta.from.max(head.from);
        Some((key, cell))
    }

    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        let head = self.queue.first()?;
        let (key, mut meta) = self.sources[head.source].key_and_meta()?;
        meta.from = meta.from.max(head.from);
        Some((key, meta))
    }

    fn holds_value(&self) -> bool {
        self.head().is_some_and(C::holds_value)
    }

    fn release_value(&mut self) {
        if let Some(head) = self.head_mut() {
            head.release_value();
        }
    }

    fn reload_value(&mut self) -> Result<(), Error> {
        let Some(head) = self.head_mut() else { return Ok(()) };
        head.reload_value().inspect_err(|_| self.queue.clear())
    }

    fn take_value(&mut self) -> Option<OwnedValue> {
        self.head_mut()?.take_value()
    }
}

/// Returns the queue item of a source; `None` if it is past its last entry.
fn queue_item<C: Cursor>(sources: &[C], source: usize) -> Option<QueueItem> {
    let (key, _) = sources[source].key_and_meta()?;
    Some(QueueItem { prefix: prefix(key), source, from: 0 })
}

/// Whether `a` sorts before `b`: a lesser key, or a newer cell of the same key.
fn precedes<C: Cursor>(sources: &[C], a: &QueueItem, b: &QueueItem) -> bool {
    if a.prefix != b.prefix {
        return a.prefix < b.prefix;
    }
    let ((a_key, a_meta), (b_key, b_meta)) = (key_and_meta_of(sources, a), key_and_meta_of(sources, b));
    match a_key.cmp(b_key).then_with(|| b_meta.rank().cmp(&a_meta.rank())) {
        Ordering::Less => true,
        Ordering::Greater => false,
        Ordering::Equal => a.source < b.source,
    }
}

fn same_key<C: Cursor>(sources: &[C], a: &QueueItem, b: &QueueItem) -> bool {
    a.prefix == b.prefix && key_and_meta_of(sources, a).0 == key_and_meta_of(sources, b).0
}

/// Whether version and kind do not determine which of two cells of a key supersedes the other.
fn is_tied<C: Cursor>(sources: &[C], a: &QueueItem, b: &QueueItem) -> bool {
    key_and_meta_of(sources, a).1.rank() == key_and_meta_of(sources, b).1.rank()
}

fn key_and_meta_of<'a, C: Cursor>(sources: &'a [C], item: &QueueItem) -> (&'a [u8], CellMeta) {
    sources[item.source].key_and_meta().expect("a source in the queue is at an entry")
}

fn entry_of<'a, C: Cursor>(sources: &'a [C], item: &QueueItem) -> (&'a [u8], CellRef<'a>) {
    sources[item.source].entry().expect("a source in the queue is at an entry")
}
