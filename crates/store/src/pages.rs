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
//! A large value fills a page of its own, made in the memory that it was read to. Such a page ends *behind* it: the next
//! value, which may be as large, is not read to see that there is no room for it. Whoever copies one, as it stands in a memtable,
//! waits for a turn like those who read one: so all makers together hold little of them.
//!
//! **Caveats.** Whether anything lies behind a large value is told by the next page only, which may be empty.
//!
//! What is dead is decided by the asker's clock, which comes with the request, and by no other.

use crate::keyspace::ENTITIES;
use bytes::Bytes;
use cluster::{Cut, Key, Page, PageBuilder, PageContent, PageRequest, ScanLimit};
use engine::iter::{Cursor, TakenValue};
use engine::{Error, LargeRead};
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

/// A page, and where what was looked at ends: before an entry, or behind a large value; `None`: at the end of the range.
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

/// Moves a cursor on that stands where a page ended: at its last entry, if that was a large one, else behind it.
pub(crate) fn go_on(cursor: &mut impl Cursor, from: Option<&Cut>) -> Result<(), Error> {
    let stands_at = cursor.key_and_meta().and_then(|(key, _)| key.strip_prefix(&[ENTITIES]));
    match from {
        Some(Cut::After(last)) if stands_at == Some(last.as_bytes()) => cursor.advance(),
        _ => cursor.bring_back(),
    }
}

/// The next page of the range, from where the cursor stands. It is left at the first entry that was not looked at, or at a
/// large value that was looked at last ([`go_on`]). Before a large value is copied, `begin_copy` waits for a turn to.
pub(crate) fn fill(
    cursor: &mut impl Cursor,
    request: &PageRequest,
    begin_copy: impl Fn(u64) -> Result<Option<LargeRead>, Error>,
) -> Result<Filled, Error> {
    let limit = ScanLimit { bytes: request.limit.bytes.min(PAGE_BYTES_MAX), ..request.limit };
    let mut page = PageBuilder::with_capacity(limit.bytes.min(PAGE_BYTES_START));
    let mut passed = Passed::default();
    while let Some((key, cell)) = cursor.entry() {
        let Some(key) = key.strip_prefix(&[ENTITIES]).filter(|key| !request.range.is_passed_by(key)) else {
            break;
        };
        let shown = shown(cell, request.content).filter(|_| is_of_partitions(key, request));
        let has_room = shown.is_none_or(|cell| has_room(&page, limit, line_len(key, cell)));
        if !has_room || passed.is_enough() {
            return Ok(Filled { page: page.finish(), rest: Some(Cut::Before(user_key(key))) });
        }
        match shown {
            // There is room for it only because nothing else is in the page.
            Some(shown) if shown.value.len() >= PAGE_BYTES_MAX => {
                let key = user_key(key);
                let page = page_of_value(cursor, &key, begin_copy)?;
                return Ok(Filled { page, rest: Some(Cut::After(key)) });
            }
            Some(shown) => {
                page.push(key, shown);
                passed.bytes += cell.value.len() - shown.value.len();
            }
            None => passed.add(key.len() + cell.value.len()),
        }
        if cell.value.len() >= PAGE_BYTES_MAX && passed.is_enough() {
            return Ok(Filled { rest: Some(Cut::After(user_key(key))), page: page.finish() });
        }
        cursor.advance()?;
    }
    Ok(Filled { page: page.finish(), rest: None })
}

/// The page of the large value at which the cursor stands.
fn page_of_value(
    cursor: &mut impl Cursor,
    key: &Key,
    begin_copy: impl Fn(u64) -> Result<Option<LargeRead>, Error>,
) -> Result<Page, Error> {
    let (_, meta) = cursor.key_and_meta().expect("the cursor stands at a value");
    if let Some(TakenValue { bytes, at }) = cursor.take_value() {
        return Ok(Page::of_value(key.as_bytes(), meta, bytes, at));
    }
    let (_, cell) = cursor.entry().expect("it was not taken");
    let _turn = begin_copy(cell.value.len() as u64)?;
    let mut page = PageBuilder::with_capacity(0);
    page.push(key.as_bytes(), cell);
    Ok(page.finish())
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

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Incarnation, KeyRange, Requester, SnapshotId};
    use stdx::{Cell, CellMeta, Hlc, NodeTag, Version, WallTime};

    const LIVE: PageContent = PageContent::Live { at: WallTime::EPOCH_2020 };
    const LARGE_BYTES: usize = 4 << 20;
    const ALL: ScanLimit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };

    /// Entries whose values are read when the cursor comes to them, as those of tables are.
    struct Entries {
        cells: Vec<(Vec<u8>, Cell)>,
        at: usize,
        is_aside: bool,
        /// Which values were read, and which of them given away.
        read: Vec<usize>,
        taken: Vec<usize>,
        /// Whether somebody else has them too, so that none is given away; the lengths of those that were copied.
        are_shared: bool,
        copied: Vec<usize>,
    }

    impl Entries {
        /// With values of so many bytes, standing at the first.
        fn of(lens: &[usize]) -> Self {
            let cell = |len| Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, vec![7; len].into());
            let cells = lens.iter().enumerate().map(|(at, len)| (vec![ENTITIES, at as u8], cell(*len)));
            let cells = cells.collect();
            let (read, taken, copied) = (vec![0], Vec::new(), Vec::new());
            Self { cells, at: 0, is_aside: false, read, taken, are_shared: false, copied }
        }

        fn go_to(&mut self, at: usize) {
            (self.at, self.is_aside) = (at, false);
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
            assert!(!self.is_aside);
            self.cells.get(self.at).map(|(key, cell)| (&key[..], cell.as_ref()))
        }

        fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
            self.cells.get(self.at).map(|(key, cell)| (&key[..], cell.meta))
        }

        fn set_aside(&mut self) {
            self.is_aside = true;
        }

        fn bring_back(&mut self) -> Result<(), Error> {
            if self.is_aside {
                self.go_to(self.at);
            }
            Ok(())
        }

        fn take_value(&mut self) -> Option<TakenValue> {
            if self.are_shared {
                return None;
            }
            self.is_aside = true;
            self.taken.push(self.at);
            let bytes = self.cells[self.at].1.value.to_vec();
            Some(TakenValue { at: 0..bytes.len(), bytes })
        }
    }

    /// Reads all pages: how many entries each has.
    fn page_lens(cursor: &mut Entries, content: PageContent) -> Vec<usize> {
        let incarnation = Incarnation(1);
        let snapshot = SnapshotId { incarnation, requester: Requester::Coordinator(0), number: 1 };
        let range = KeyRange { from: None, to: None };
        let mut request = PageRequest { snapshot, range, partitions: None, limit: ALL, content };
        let (mut lens, copied) = (Vec::new(), std::cell::RefCell::new(Vec::new()));
        loop {
            let begin_copy = |bytes| {
                copied.borrow_mut().push(bytes as usize);
                Ok(None)
            };
            let Filled { page, rest } = fill(cursor, &request, begin_copy).expect("nothing fails");
            lens.push(page.len());
            let Some(rest) = rest else {
                cursor.copied = copied.into_inner();
                return lens;
            };
            cursor.set_aside();
            request.range.from = Some(rest);
            go_on(cursor, request.range.from.as_ref()).expect("nothing fails");
        }
    }

    #[test]
    fn whoever_copies_a_large_value_waits_for_a_turn() {
        let mut cursor = Entries { are_shared: true, ..Entries::of(&[10, PAGE_BYTES_MAX, 10, LARGE_BYTES]) };
        assert_eq!(page_lens(&mut cursor, LIVE), [1, 1, 1, 1, 0]);
        assert_eq!(cursor.copied, [PAGE_BYTES_MAX, LARGE_BYTES]);
    }

    #[test]
    fn a_page_of_a_large_value_ends_before_the_next_one_is_read() {
        let mut cursor = Entries::of(&[LARGE_BYTES, PAGE_BYTES_MAX, LARGE_BYTES]);
        assert_eq!(page_lens(&mut cursor, LIVE), [1, 1, 1, 0]);
        assert_eq!((cursor.read, cursor.taken), (vec![0, 1, 2], vec![0, 1, 2]), "each once, and none copied");
    }

    #[test]
    fn a_large_value_behind_small_ones_is_read_again_for_a_page_of_its_own() {
        let mut cursor = Entries::of(&[10, 10, LARGE_BYTES, 10, 10]);
        assert_eq!(page_lens(&mut cursor, LIVE), [2, 1, 2]);
        assert_eq!((cursor.read, cursor.taken), (vec![0, 1, 2, 2, 3, 4], vec![2]));
    }

    #[test]
    fn large_values_that_are_not_wanted_are_read_once_and_not_taken() {
        let at = WallTime::EPOCH_2020;
        let content = PageContent::Cells { at, dead_since: at, versions_only: true };
        let mut cursor = Entries::of(&[LARGE_BYTES; 3]);
        assert_eq!(page_lens(&mut cursor, content), [1, 1, 1, 0]);
        assert_eq!((cursor.read, cursor.taken), (vec![0, 1, 2], Vec::new()));
    }
}
