//! Pages: a range of a snapshot, as many entries at a time as its reader wants.
//!
//! **Promise.** A page is bounded work, whatever lies in the range: it ends at its limit, or when too much had to be
//! passed over that is not for it: what is dead, what is of other partitions, values that are not wanted. It always
//! passes over one entry at least, so pages that go on where the last one ended come to the end of the range.
//!
//! **Mechanism.** A cursor of the snapshot goes from entry to entry; what is wanted is copied, once, from the block that
//! holds it to the page. The page ends *before* the first entry that it has no room for. There the cursor stays: a
//! page that begins there needs no search, and that there is more is known without being told by an empty page.
//!
//! A page of large values is made while no other is: until it is done, its maker holds two of them, the one in the page and
//! the one that is looked at.
//!
//! What is dead is decided by the asker's clock, which comes with the request, and by no other.

use crate::keyspace::ENTITIES;
use bytes::Bytes;
use cluster::{Cut, Key, Page, PageBuilder, PageContent, PageRequest, ScanLimit};
use engine::Error;
use engine::iter::Cursor;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use stdx::CellRef;

/// No page has more bytes, whatever limit is asked for, but for one entry that alone is larger.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// A page begins with room for so many bytes and doubles it as it grows: most are far shorter than they may be, and keep
/// the room they have for as long as they are on their way.
const PAGE_BYTES_START: usize = 4 << 10;
/// So many entries are passed over for one page.
const PASSED_ENTRIES_MAX: usize = 16 << 10;
/// So many bytes are passed over for one page; one entry may pass this.
const PASSED_BYTES_MAX: usize = 4 << 20;

/// From this size on a value is so large that pages of such are made one at a time.
const LARGE_BYTES: usize = 4 << 20;

/// Whose turn it is to make a page of large values.
#[derive(Default)]
pub(crate) struct LargePages(Mutex<()>);

impl LargePages {
    /// Waits for a turn. Meanwhile the value that `cursor` stands at is not held.
    fn begin(&self, cursor: &mut impl Cursor) -> Result<MutexGuard<'_, ()>, Error> {
        match self.0.try_lock() {
            Ok(turn) => return Ok(turn),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => cursor.set_aside(),
        }
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cursor.bring_back()?;
        Ok(turn)
    }
}

/// A page, and where what was looked at ends; `None`: at the end of the range.
pub(crate) struct Filled {
    pub(crate) page: Page,
    pub(crate) rest: Option<Cut>,
}

/// Moves the cursor to where the range begins.
pub(crate) fn seek(cursor: &mut impl Cursor, from: Option<&Cut>) -> Result<(), Error> {
    cursor.seek(&match from {
        None => vec![ENTITIES],
        Some(Cut::Before(key)) => [&[ENTITIES], key.as_bytes()].concat(),
        // No key lies between this one and the one it is to be behind.
        Some(Cut::After(key)) => [&[ENTITIES], key.as_bytes(), &[0]].concat(),
    })
}

/// The next page of the range, from where the cursor stands. It is left at the first entry that was not looked at. May wait
/// for its turn in `large`.
pub(crate) fn fill(
    cursor: &mut impl Cursor,
    request: &PageRequest,
    large: &LargePages,
) -> Result<Filled, Error> {
    let limit = ScanLimit { bytes: request.limit.bytes.min(PAGE_BYTES_MAX), ..request.limit };
    let mut page = PageBuilder::with_capacity(limit.bytes.min(PAGE_BYTES_START));
    let mut passed = Passed::default();
    let mut turn = None;
    while let Some((key, cell)) = cursor.entry() {
        if turn.is_none() && cell.value.len() >= LARGE_BYTES {
            turn = Some(large.begin(cursor)?);
            continue;
        }
        let Some(key) = key.strip_prefix(&[ENTITIES]).filter(|key| !request.range.is_passed_by(key)) else {
            break;
        };
        let shown = shown(cell, request.content).filter(|_| is_of_partitions(key, request));
        let has_room = shown.is_none_or(|cell| has_room(&page, limit, line_len(key, cell)));
        if !has_room || passed.is_enough() {
            return Ok(Filled { page: page.finish(), rest: Some(Cut::Before(user_key(key))) });
        }
        match shown {
            Some(shown) => {
                page.push(key, shown);
                passed.bytes += cell.value.len() - shown.value.len();
            }
            None => passed.add(key.len() + cell.value.len()),
        }
        cursor.advance()?;
    }
    Ok(Filled { page: page.finish(), rest: None })
}

/// What a page of this content shows of a cell, if anything.
fn shown(cell: CellRef<'_>, content: PageContent) -> Option<CellRef<'_>> {
    match content {
        PageContent::Live { at } => cell.meta.is_live_at(at).then_some(cell),
        PageContent::Cells { at, dead_since, versions_only } => {
            let is_long_dead = cell.meta.dead_from().is_some_and(|dead_from| dead_from < dead_since);
            let with_value = !versions_only && cell.meta.is_live_at(at);
            let value = if with_value { cell.value } else { &[] };
            (!is_long_dead).then_some(CellRef { value, ..cell })
        }
    }
}

fn is_of_partitions(key: &[u8], request: &PageRequest) -> bool {
    request.partitions.as_ref().is_none_or(|partitions| partitions.contains_key(key))
}

/// How many bytes of a page an entry takes.
fn line_len(key: &[u8], cell: CellRef<'_>) -> usize {
    key.len() + 1 + cell.value.len()
}

fn has_room(page: &PageBuilder, limit: ScanLimit, line_len: usize) -> bool {
    page.is_empty() || (page.len() < limit.entries && page.bytes_len() + line_len <= limit.bytes)
}

fn user_key(bytes: &[u8]) -> Key {
    Key::new(Bytes::copy_from_slice(bytes)).expect("what stands in the space of entities is a user's key")
}

/// What was passed over for a page.
#[derive(Default)]
struct Passed {
    entries: usize,
    bytes: usize,
}

impl Passed {
    fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes;
    }

    const fn is_enough(&self) -> bool {
        self.entries >= PASSED_ENTRIES_MAX || self.bytes >= PASSED_BYTES_MAX
    }
}
