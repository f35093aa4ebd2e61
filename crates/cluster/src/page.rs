//! Pages: consecutive entries of a range in one buffer.
//!
//! **Promise.** The keys of a page ascend, and each has 1 to [`Key::LEN_MAX`] bytes. Tombstones
//! have no value.
//!
//! **Mechanism.** One buffer holds all bytes, entry by entry: the key, a line feed, the value. That
//! is the default format of ranges in HTTP responses, so an entry goes from the page to the socket
//! as a slice, without a copy. Lengths and metadata are kept beside the buffer.
//!
//! A value that is much larger than a page is not copied: its page is built in the buffer that
//! holds the value.
//!
//! **Caveats.** A slice of a page keeps the whole page in memory.

use crate::Key;
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;
use stdx::{Cell, CellKind, CellMeta, CellRef};

/// Usual length of a small entry, by which the capacity for the metadata of a page is chosen.
const ENTRY_BYTES: usize = 128;
/// Separates a key from its value.
const SEPARATOR: u8 = b'\n';

/// Consecutive entries of a range, in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    bytes: Bytes,
    spans: Vec<Span>,
}

/// Position and metadata of an entry in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u32,
    key_len: u32,
    value_len: u32,
    meta: CellMeta,
}

/// An entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The cell.
    pub cell: CellRef<'a>,
}

/// Lengths and metadata of an entry: the part of a page that is encoded beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntryHead {
    /// Length of the key, in bytes.
    pub key_len: usize,
    /// Length of the value, in bytes.
    pub value_len: usize,
    /// Metadata of the cell.
    pub meta: CellMeta,
}

impl Page {
    /// Greatest size of a page in bytes, except for one entry that alone is larger.
    pub const USUAL_BYTES_MAX: usize = 128 << 10;

    /// Whether the page is larger than usual because of one large value. A reader that has not
    /// asked for such a page yet does not keep it in memory, and reads it again later.
    pub fn is_oversized(&self) -> bool {
        self.bytes.len() > Self::USUAL_BYTES_MAX
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// All bytes: for each entry the key, a line feed, and the value.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The entry at index `at`.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    pub fn entry(&self, at: usize) -> PageEntry<'_> {
        let span = &self.spans[at];
        let bytes = &self.bytes[span.range()];
        let (key, value) = (&bytes[..span.key_len as usize], &bytes[span.key_len as usize + 1..]);
        PageEntry { key, cell: CellRef { meta: span.meta, value } }
    }

    /// The entries in the order of their keys.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = PageEntry<'_>> + ExactSizeIterator {
        (0..self.len()).map(|at| self.entry(at))
    }

    /// Lengths and metadata of the entries, in order. Together with [`Page::bytes`] they describe
    /// the whole page.
    pub fn heads(&self) -> impl ExactSizeIterator<Item = PageEntryHead> {
        self.spans.iter().map(|span| PageEntryHead {
            key_len: span.key_len as usize,
            value_len: span.value_len as usize,
            meta: span.meta,
        })
    }

    /// Key, line feed and value of the entry at index `at`, as a slice of the page.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    pub fn line(&self, at: usize) -> Bytes {
        self.bytes.slice(self.spans[at].range())
    }

    /// The key at index `at`, as a slice of the page.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    pub fn key(&self, at: usize) -> Key {
        let span = &self.spans[at];
        let start = span.start as usize;
        Key::new(self.bytes.slice(start..start + span.key_len as usize)).expect("a page holds keys")
    }

    /// The cell at index `at`; its value is a slice of the page.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    pub fn cell(&self, at: usize) -> Cell {
        let span = &self.spans[at];
        let end = span.range().end;
        Cell { meta: span.meta, value: self.bytes.slice(end - span.value_len as usize..end) }
    }

    /// The entries in this range of indexes, as a slice of the page.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let spans = &self.spans[range];
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Self::default();
        };
        let (start, bytes) = (first.start, self.bytes.slice(first.range().start..last.range().end));
        let spans = spans.iter().map(|span| Span { start: span.start - start, ..*span }).collect();
        Self { bytes, spans }
    }

    /// Index of the first entry whose key does not satisfy `is_so`; all entries before it must
    /// satisfy it.
    pub fn partition_point(&self, is_so: impl Fn(&[u8]) -> bool) -> usize {
        let key = |span: &Span| {
            let start = span.start as usize;
            &self.bytes[start..start + span.key_len as usize]
        };
        self.spans.partition_point(|span| is_so(key(span)))
    }

    /// Builds a page of one entry in the buffer that holds its value at `value`. The bytes around
    /// the value are overwritten.
    ///
    /// # Panics
    /// If the length of `key` is out of bounds, `value` is not within `bytes`, or the page exceeds
    /// 4 GiB.
    pub fn of_value(key: &[u8], meta: CellMeta, mut bytes: Vec<u8>, value: Range<usize>) -> Self {
        assert!((1..=Key::LEN_MAX).contains(&key.len()), "a key has 1 to {} bytes", Key::LEN_MAX);
        let span = Span::new(0, key.len(), value.len(), meta).expect("a page has less than 4 GiB");
        let end = span.range().end;
        if let Some(more) = end.checked_sub(bytes.len()) {
            bytes.reserve_exact(more);
            bytes.resize(end, 0);
        }
        bytes.copy_within(value, key.len() + 1);
        bytes[..key.len()].copy_from_slice(key);
        bytes[key.len()] = SEPARATOR;
        bytes.truncate(end);
        Self { bytes: bytes.into(), spans: vec![span] }
    }

    /// Reassembles a page from the heads and bytes of another page. `None` if they form no page:
    /// the lengths do not add up, keys do not ascend or have a length out of bounds, or a tombstone
    /// has a value.
    pub fn assemble(bytes: Bytes, heads: &[PageEntryHead]) -> Option<Self> {
        let mut spans = Vec::with_capacity(heads.len());
        let (mut start, mut last): (usize, &[u8]) = (0, &[]);
        for head in heads {
            let key_end = start.checked_add(head.key_len)?;
            let end = key_end.checked_add(1)?.checked_add(head.value_len)?;
            let key = bytes.get(start..key_end)?;
            let is_key = (1..=Key::LEN_MAX).contains(&key.len()) && key > last;
            let is_cell = head.meta.kind == CellKind::Value || head.value_len == 0;
            if !is_key || !is_cell || end > bytes.len() || bytes[key_end] != SEPARATOR {
                return None;
            }
            spans.push(Span::new(start, head.key_len, head.value_len, head.meta)?);
            (start, last) = (end, key);
        }
        (start == bytes.len()).then_some(Self { bytes, spans })
    }
}

impl Span {
    fn new(start: usize, key_len: usize, value_len: usize, meta: CellMeta) -> Option<Self> {
        let small = |len| u32::try_from(len).ok();
        Some(Self { start: small(start)?, key_len: small(key_len)?, value_len: small(value_len)?, meta })
    }

    fn range(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.key_len as usize + 1 + self.value_len as usize
    }
}

/// Builds a page entry by entry.
#[derive(Debug, Default)]
pub struct PageBuilder {
    bytes: BytesMut,
    spans: Vec<Span>,
}

impl PageBuilder {
    /// Creates a builder with capacity for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: BytesMut::with_capacity(bytes), spans: Vec::with_capacity(bytes / ENTRY_BYTES) }
    }

    /// Appends an entry. A tombstone's value is left out.
    ///
    /// # Panics
    /// If the length of `key` is out of bounds, `key` is not greater than its predecessor, or the
    /// page exceeds 4 GiB.
    pub fn push(&mut self, key: &[u8], cell: CellRef<'_>) {
        assert!((1..=Key::LEN_MAX).contains(&key.len()), "a key has 1 to {} bytes", Key::LEN_MAX);
        assert!(self.last_key().is_none_or(|last| last < key), "the keys of a page ascend");
        let value = if cell.meta.kind == CellKind::Tombstone { &[] } else { cell.value };
        let start = self.bytes.len();
        self.bytes.reserve(key.len() + 1 + value.len());
        self.bytes.put_slice(key);
        self.bytes.put_u8(SEPARATOR);
        self.bytes.put_slice(value);
        let span = Span::new(start, key.len(), value.len(), cell.meta).expect("a page has less than 4 GiB");
        self.spans.push(span);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Size of the page in bytes: keys, values and separators.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Finishes the page.
    pub fn finish(self) -> Page {
        Page { bytes: self.bytes.freeze(), spans: self.spans }
    }

    fn last_key(&self) -> Option<&[u8]> {
        let span = self.spans.last()?;
        Some(&self.bytes[span.start as usize..][..span.key_len as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use stdx::{Hlc, NodeTag, Version};

    fn version(clock: u64) -> Version {
        Version::new(Hlc::from_bits(clock), NodeTag(1))
    }

    fn page(entries: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Page {
        let mut builder = PageBuilder::with_capacity(0);
        for (key, value) in entries {
            let cell = match value {
                Some(value) => Cell::value(version(1), 3, Bytes::copy_from_slice(value)),
                None => Cell::tombstone(version(2), 3),
            };
            builder.push(key, cell.as_ref());
        }
        builder.finish()
    }

    proptest! {
        #[test]
        fn a_page_holds_the_pushed_entries(
            entries: BTreeMap<[u8; 3], Option<Vec<u8>>>,
        ) {
            let entries = entries.into_iter().map(|(key, value)| (key.to_vec(), value)).collect();
            let page = page(&entries);
            prop_assert_eq!(page.len(), entries.len());
            for (at, (key, value)) in entries.iter().enumerate() {
                let entry = page.entry(at);
                prop_assert_eq!(entry.key, &key[..]);
                prop_assert_eq!(entry.cell.value, value.as_deref().unwrap_or_default());
                prop_assert_eq!(entry.cell.meta.kind == CellKind::Value, value.is_some());
                let (own_key, own_cell) = (page.key(at), page.cell(at));
                prop_assert_eq!(own_key.as_bytes(), &key[..]);
                prop_assert_eq!(own_cell.as_ref(), entry.cell);
                prop_assert_eq!(&page.line(at)[..], [entry.key, b"\n", entry.cell.value].concat());
            }
            for cut in 0..=page.len() {
                let (before, behind) = (page.slice(0..cut), page.slice(cut..page.len()));
                prop_assert!(before.entries().chain(behind.entries()).eq(page.entries()));
                prop_assert_eq!([&before.bytes()[..], behind.bytes()].concat(), &page.bytes()[..]);
                let found = behind.entries().next();
                let found = page.partition_point(|key| found.is_none_or(|found| key < found.key));
                prop_assert_eq!(found, cut);
            }
            let heads: Vec<_> = page.heads().collect();
            prop_assert_eq!(Page::assemble(page.bytes().clone(), &heads), Some(page));
        }
    }

    #[test]
    fn a_page_of_one_value_equals_its_copy() {
        let value = b"some value";
        for (before, behind) in [(0, 0), (1, 0), (3, 2), (17, 9), (40, 40)] {
            for key in [&b"k"[..], b"key", &[b'k'; 30]] {
                let bytes = [&vec![b'<'; before][..], value, &vec![b'>'; behind]].concat();
                let meta = CellMeta::value(version(1), 3);
                let page = Page::of_value(key, meta, bytes, before..before + value.len());
                let mut copied = PageBuilder::with_capacity(0);
                copied.push(key, CellRef { meta, value });
                assert_eq!(page, copied.finish(), "{before}, {behind}, {}", key.len());
            }
        }
    }

    #[test]
    fn inconsistent_heads_form_no_page() {
        let bytes = Bytes::from_static(b"a\n1b\n2");
        let head =
            |key_len, value_len| PageEntryHead { key_len, value_len, meta: CellMeta::value(version(1), 1) };
        assert!(Page::assemble(bytes.clone(), &[head(1, 1), head(1, 1)]).is_some());
        assert!(Page::assemble(bytes.clone(), &[head(1, 1)]).is_none(), "bytes are left over");
        assert!(Page::assemble(bytes.clone(), &[head(1, 1), head(1, 2)]).is_none(), "bytes are missing");
        assert!(Page::assemble(bytes.clone(), &[head(1, usize::MAX), head(1, 1)]).is_none());
        assert!(Page::assemble(bytes.clone(), &[head(2, 0), head(1, 1)]).is_none(), "no line feed");
        let dead = PageEntryHead { meta: CellMeta::tombstone(version(1), 1), ..head(1, 1) };
        assert!(Page::assemble(bytes, &[dead, head(1, 1)]).is_none(), "a tombstone has no value");
        let descending = Bytes::from_static(b"b\n1a\n2");
        assert!(Page::assemble(descending, &[head(1, 1), head(1, 1)]).is_none(), "keys ascend");
    }
}
