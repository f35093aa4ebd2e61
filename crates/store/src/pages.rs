//! Pages: reading a range of a snapshot in bounded pieces.
//!
//! **Promise.** A page is bounded work, for any content of the range. It ends at its limit, or
//! after skipping too many entries or bytes: dead cells, other partitions, values that are not
//! requested. It always visits at least one entry, so consecutive pages reach the end of the range.
//!
//! **Mechanism.** A cursor of the snapshot visits the entries, and each wanted one is copied once,
//! from its block to the page. The page ends *before* the first entry that does not fit, and the
//! cursor stays there. A page that begins there needs no seek, and the existence of more entries is
//! known without an empty page.
//!
//! A large value fills a page of its own, built in the memory that the value was read into. Such a
//! page ends *after* the value: the next value, which may be as large, is not read only to see that
//! it does not fit. Copying a large value out of a memtable acquires a permit like a large read, so
//! the memory of all pages that are being built is bounded.
//!
//! A page of versions is read with a cursor that does not read oversized values where it can learn
//! their versions without them.
//!
//! The requester's clock, which is part of the request, decides which cells are dead.
//!
//! **Caveats.** Whether there are entries after a large value is known only from the next page,
//! which may be empty.

use crate::keyspace::ENTITIES;
use crate::scan::held_entry;
use bytes::Bytes;
use cluster::{Cut, Key, Page, PageBuilder, PageContent, PageRequest, ScanLimit};
use engine::{Cursor, Error, OwnedValue};
use stdx::CellRef;

/// Maximum size of a page in bytes, for any requested limit. A single larger entry may exceed it.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Initial capacity of the first page of a range, in bytes. It doubles as the page grows. Most
/// ranges are far shorter than the limit, and a page keeps its capacity until it is sent.
const PAGE_BYTES_START: usize = 4 << 10;
/// Maximum number of entries that one page skips.
const SKIPPED_ENTRIES_MAX: usize = 16 << 10;
/// Maximum number of bytes that one page skips. One entry may exceed it.
const SKIPPED_BYTES_MAX: usize = 4 << 20;

/// A page, and the end of the visited range: before an entry, or after a large value. `rest` is
/// `None` at the end of the range.
pub(crate) struct FilledPage {
    pub(crate) page: Page,
    pub(crate) rest: Option<Cut>,
}

/// Moves the cursor to the beginning of the range.
pub(crate) fn seek(cursor: &mut impl Cursor, from: Option<&Cut>) -> Result<(), Error> {
    cursor.seek(&match from {
        None => vec![ENTITIES],
        Some(Cut::Before(key)) => [&[ENTITIES], key.as_bytes()].concat(),
        // The least key after this one.
        Some(Cut::After(key)) => [&[ENTITIES], key.as_bytes(), &[0]].concat(),
    })
}

/// Resumes a cursor that is where the previous page ended: at its last entry if that was large, or
/// else after it. The value there is read if pages show values.
pub(crate) fn resume(cursor: &mut impl Cursor, from: Option<&Cut>, versions_only: bool) -> Result<(), Error> {
    let stands_at = cursor.key_and_meta().and_then(|(key, _)| key.strip_prefix(&[ENTITIES]));
    match from {
        Some(Cut::After(last)) if stands_at == Some(last.as_bytes()) => cursor.advance(),
        _ if versions_only => Ok(()),
        _ => cursor.reload_value(),
    }
}

/// Builds the next page of the range from the cursor's position. The cursor is left at the first
/// entry that was not visited, or at a large value that was visited last (see [`resume`]).
/// `is_next`: the page follows another one, so it is likely to be as long as permitted.
/// `cover_copy` is called before a large value is copied.
pub(crate) fn fill(
    cursor: &mut impl Cursor,
    request: &PageRequest,
    is_next: bool,
    cover_copy: impl Fn(u64) -> Result<(), Error>,
) -> Result<FilledPage, Error> {
    let limit = ScanLimit { bytes: request.limit.bytes.min(PAGE_BYTES_MAX), ..request.limit };
    let capacity = if is_next { limit.bytes } else { limit.bytes.min(PAGE_BYTES_START) };
    let mut page = PageBuilder::with_capacity(capacity);
    let mut skipped = SkippedEntries::default();
    while let Some((key, cell)) = held_entry(cursor) {
        let Some(key) = key.strip_prefix(&[ENTITIES]).filter(|key| !request.range.is_passed_by(key)) else {
            break;
        };
        let shown = shown(cell, request.content).filter(|_| is_of_partitions(key, request));
        let has_room = shown.is_none_or(|cell| has_room(&page, limit, line_len(key, cell)));
        if !has_room || skipped.is_at_limit() {
            return Ok(FilledPage { page: page.finish(), rest: Some(Cut::Before(user_key(key))) });
        }
        match shown {
            // It fits only because the page is empty.
            Some(shown) if shown.value.len() >= PAGE_BYTES_MAX => {
                let key = user_key(key);
                let page = page_of_value(cursor, &key, cover_copy)?;
                return Ok(FilledPage { page, rest: Some(Cut::After(key)) });
            }
            Some(shown) => {
                page.push(key, shown);
                skipped.bytes += cell.value.len() - shown.value.len();
            }
            None => skipped.add(key.len() + cell.value.len()),
        }
        if cell.value.len() >= PAGE_BYTES_MAX && skipped.is_at_limit() {
            return Ok(FilledPage { rest: Some(Cut::After(user_key(key))), page: page.finish() });
        }
        cursor.advance()?;
    }
    Ok(FilledPage { page: page.finish(), rest: None })
}

/// Builds the page of the large value at the cursor.
fn page_of_value(
    cursor: &mut impl Cursor,
    key: &Key,
    cover_copy: impl Fn(u64) -> Result<(), Error>,
) -> Result<Page, Error> {
    let (_, meta) = cursor.key_and_meta().expect("the cursor is at a value");
    if let Some(OwnedValue { bytes, range: at }) = cursor.take_value() {
        return Ok(Page::of_value(key.as_bytes(), meta, bytes, at));
    }
    let (_, cell) = cursor.entry().expect("the value was not taken");
    cover_copy(cell.value.len() as u64)?;
    let mut page = PageBuilder::with_capacity(0);
    page.push(key.as_bytes(), cell);
    Ok(page.finish())
}

/// The part of a cell that a page with this content shows, if any.
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

/// Size of an entry in a page, in bytes.
fn line_len(key: &[u8], cell: CellRef<'_>) -> usize {
    key.len() + 1 + cell.value.len()
}

fn has_room(page: &PageBuilder, limit: ScanLimit, line_len: usize) -> bool {
    page.is_empty() || (page.len() < limit.entries && page.bytes_len() + line_len <= limit.bytes)
}

fn user_key(bytes: &[u8]) -> Key {
    Key::new(Bytes::copy_from_slice(bytes)).expect("keys in the entity space are users' keys")
}

/// Entries and bytes that were skipped for a page.
#[derive(Default)]
struct SkippedEntries {
    entries: usize,
    bytes: usize,
}

impl SkippedEntries {
    fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes;
    }

    const fn is_at_limit(&self) -> bool {
        self.entries >= SKIPPED_ENTRIES_MAX || self.bytes >= SKIPPED_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Incarnation, KeyRange, Requester, SnapshotId};
    use stdx::{Cell, CellMeta, Hlc, NodeTag, Version, WallTime};

    const LIVE: PageContent = PageContent::Live { at: WallTime::EPOCH_2020 };
    const LARGE_BYTES: usize = 4 << 20;
    const ALL: ScanLimit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };

    /// A cursor whose values are read when it reaches them, like those of tables.
    struct Entries {
        cells: Vec<(Vec<u8>, Cell)>,
        at: usize,
        is_released: bool,
        /// Indexes of the values that were read, and of those that were taken.
        read: Vec<usize>,
        taken: Vec<usize>,
        /// Whether the values are shared, so that none can be taken; lengths of the copied values.
        are_shared: bool,
        copied: Vec<usize>,
    }

    impl Entries {
        /// A cursor at the first of several values with these lengths, in bytes.
        fn of(lens: &[usize]) -> Self {
            let cell = |len| Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, vec![7; len].into());
            let cells = lens.iter().enumerate().map(|(at, len)| (vec![ENTITIES, at as u8], cell(*len)));
            let cells = cells.collect();
            let (read, taken, copied) = (vec![0], Vec::new(), Vec::new());
            Self { cells, at: 0, is_released: false, read, taken, are_shared: false, copied }
        }

        fn go_to(&mut self, at: usize) {
            (self.at, self.is_released) = (at, false);
            self.read.extend((at < self.cells.len()).then_some(at));
        }
    }

    impl Cursor for Entries {
        fn seek_to_first(&mut self) -> Result<(), Error> {
            self.go_to(0);
            Ok(())
        }

        fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
            self.go_to(self.cells.partition_point(|(other, _)| &other[..] < key));
            Ok(())
        }

        fn advance(&mut self) -> Result<(), Error> {
            self.go_to(self.at + 1);
            Ok(())
        }

        fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
            assert!(!self.is_released);
            self.cells.get(self.at).map(|(key, cell)| (&key[..], cell.as_ref()))
        }

        fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
            self.cells.get(self.at).map(|(key, cell)| (&key[..], cell.meta))
        }

        fn holds_value(&self) -> bool {
            !self.is_released
        }

        fn release_value(&mut self) {
            self.is_released = true;
        }

        fn reload_value(&mut self) -> Result<(), Error> {
            if self.is_released {
                self.go_to(self.at);
            }
            Ok(())
        }

        fn take_value(&mut self) -> Option<OwnedValue> {
            if self.are_shared {
                return None;
            }
            self.is_released = true;
            self.taken.push(self.at);
            let bytes = self.cells[self.at].1.value.to_vec();
            Some(OwnedValue { range: 0..bytes.len(), bytes })
        }
    }

    /// Reads all pages and returns the number of entries in each.
    fn page_lens(cursor: &mut Entries, content: PageContent) -> Vec<usize> {
        let incarnation = Incarnation(1);
        let snapshot = SnapshotId { incarnation, requester: Requester::Coordinator(0), number: 1 };
        let range = KeyRange { from: None, to: None };
        let mut request = PageRequest { snapshot, range, partitions: None, limit: ALL, content };
        let (mut lens, copied) = (Vec::new(), std::cell::RefCell::new(Vec::new()));
        loop {
            let cover_copy = |bytes| {
                copied.borrow_mut().push(bytes as usize);
                Ok(())
            };
            let FilledPage { page, rest } = fill(cursor, &request, false, cover_copy).expect("nothing fails");
            lens.push(page.len());
            let Some(rest) = rest else {
                cursor.copied = copied.into_inner();
                return lens;
            };
            cursor.release_value();
            request.range.from = Some(rest);
            let versions_only = matches!(content, PageContent::Cells { versions_only: true, .. });
            resume(cursor, request.range.from.as_ref(), versions_only).expect("nothing fails");
        }
    }

    #[test]
    fn the_copy_of_a_large_value_is_covered_first() {
        let mut cursor = Entries { are_shared: true, ..Entries::of(&[10, PAGE_BYTES_MAX, 10, LARGE_BYTES]) };
        assert_eq!(page_lens(&mut cursor, LIVE), [1, 1, 1, 1, 0]);
        assert_eq!(cursor.copied, [PAGE_BYTES_MAX, LARGE_BYTES]);
    }

    #[test]
    fn the_page_of_a_large_value_ends_before_the_next_value_is_read() {
        let mut cursor = Entries::of(&[LARGE_BYTES, PAGE_BYTES_MAX, LARGE_BYTES]);
        assert_eq!(page_lens(&mut cursor, LIVE), [1, 1, 1, 0]);
        assert_eq!((cursor.read, cursor.taken), (vec![0, 1, 2], vec![0, 1, 2]), "each once, and none copied");
    }

    #[test]
    fn a_large_value_after_small_ones_is_read_again_for_its_own_page() {
        let mut cursor = Entries::of(&[10, 10, LARGE_BYTES, 10, 10]);
        assert_eq!(page_lens(&mut cursor, LIVE), [2, 1, 2]);
        assert_eq!((cursor.read, cursor.taken), (vec![0, 1, 2, 2, 3, 4], vec![2]));
    }

    #[test]
    fn unrequested_large_values_are_read_once_and_not_taken() {
        let at = WallTime::EPOCH_2020;
        let content = PageContent::Cells { at, dead_since: at, versions_only: true };
        let mut cursor = Entries::of(&[LARGE_BYTES; 3]);
        assert_eq!(page_lens(&mut cursor, content), [1, 1, 1, 0]);
        assert_eq!((cursor.read, cursor.taken), (vec![0, 1, 2], Vec::new()));
    }
}
