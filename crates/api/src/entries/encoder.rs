//! Encoding of entries to bytes.

use super::binary::{self, Attributes, MAGIC};
use super::json_entry::{put_json_delete, put_json_key, put_json_value};
use super::{BatchAction, BatchEntry, Format};
use crate::encode::expiry_ms;
use cluster::{Lifetime, Page, PageEntry};
use stdx::{CellMeta, Version};

/// Encodes entries: those of ranges, with their versions, or those of batches.
#[derive(Debug)]
pub struct EntryEncoder {
    format: Format,
    has_begun: bool,
    entries: u64,
}

impl EntryEncoder {
    /// Creates an encoder for `format`.
    pub const fn new(format: Format) -> Self {
        Self { format, has_begun: false, entries: 0 }
    }

    /// Appends the entries of a page of live cells.
    ///
    /// In the default format the entries follow each other without delimiters. A caller that sends
    /// each entry as a chunk takes the entries from the page instead.
    pub fn put_page(&mut self, page: &Page, out: &mut Vec<u8>) {
        match self.format {
            Format::Lines => {
                out.extend_from_slice(page.bytes());
                self.entries += page.len() as u64;
            }
            Format::Ndjson | Format::Binary => page.entries().for_each(|entry| self.put(entry, out)),
        }
    }

    /// Appends an entry of a page of live cells.
    pub fn put(&mut self, entry: PageEntry<'_>, out: &mut Vec<u8>) {
        self.put_value(entry.key, attributes_of_cell(&entry.cell.meta), entry.cell.value, out);
    }

    /// Appends the key of an entry of a page of live cells, without its value.
    ///
    /// # Panics
    /// If the format is [`Format::Binary`], whose records have values.
    pub fn put_key(&mut self, entry: PageEntry<'_>, out: &mut Vec<u8>) {
        self.begin(out);
        match self.format {
            Format::Lines => out.extend_from_slice(entry.key),
            Format::Ndjson => put_json_key(out, entry.key, attributes_of_cell(&entry.cell.meta)),
            Format::Binary => panic!("binary records have values"),
        }
        self.entries += 1;
    }

    /// Appends an entry of a batch.
    ///
    /// # Panics
    /// If the entry is a delete and the format is [`Format::Lines`], which has no deletes.
    pub fn put_batch_entry(&mut self, entry: &BatchEntry, out: &mut Vec<u8>) {
        let key = entry.key.as_bytes();
        match &entry.action {
            BatchAction::Put { value, lifetime } => {
                self.put_value(key, attributes_of(*lifetime), value, out);
            }
            BatchAction::Delete => self.put_delete(key, out),
        }
    }

    /// Appends an entry that was decoded from a range, with the version that it had there.
    ///
    /// # Panics
    /// As [`EntryEncoder::put_batch_entry`].
    pub fn put_decoded(&mut self, entry: &BatchEntry, version: Option<Version>, out: &mut Vec<u8>) {
        match &entry.action {
            BatchAction::Put { value, lifetime } => {
                let attributes = Attributes { version, ..attributes_of(*lifetime) };
                self.put_value(entry.key.as_bytes(), attributes, value, out);
            }
            BatchAction::Delete => self.put_delete(entry.key.as_bytes(), out),
        }
    }

    /// Appends the end of the stream.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        self.begin(out);
        if self.format == Format::Binary {
            binary::put_end(out, self.entries);
        }
    }

    /// Number of entries encoded.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    fn put_value(&mut self, key: &[u8], attributes: Attributes, value: &[u8], out: &mut Vec<u8>) {
        self.begin(out);
        match self.format {
            Format::Lines => [key, b"\n", value].iter().for_each(|part| out.extend_from_slice(part)),
            Format::Ndjson => put_json_value(out, key, attributes, value),
            Format::Binary => binary::put_value(out, key, attributes, value),
        }
        self.entries += 1;
    }

    fn put_delete(&mut self, key: &[u8], out: &mut Vec<u8>) {
        self.begin(out);
        match self.format {
            Format::Lines => panic!("lines have no deletes"),
            Format::Ndjson => put_json_delete(out, key),
            Format::Binary => binary::put_delete(out, key),
        }
        self.entries += 1;
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !self.has_begun && self.format == Format::Binary {
            out.extend_from_slice(MAGIC);
        }
        self.has_begun = true;
    }
}

fn attributes_of_cell(meta: &CellMeta) -> Attributes {
    Attributes { expires_at_ms: meta.expires_at.map(expiry_ms), ttl_ms: None, version: Some(meta.version) }
}

fn attributes_of(lifetime: Lifetime) -> Attributes {
    match lifetime {
        Lifetime::Forever => Attributes::default(),
        Lifetime::For(time) => {
            let ttl_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
            Attributes { ttl_ms: Some(ttl_ms), ..Attributes::default() }
        }
        Lifetime::Until(at) => Attributes { expires_at_ms: Some(expiry_ms(at)), ..Attributes::default() },
    }
}
