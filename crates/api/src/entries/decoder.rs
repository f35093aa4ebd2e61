//! Decoding of bytes to entries.

use super::binary::BinaryReader;
use super::byte_queue::ByteQueue;
use super::json_entry::JsonReader;
use super::{BatchEntry, EntryError, Format};
use bytes::Bytes;
use std::borrow::Cow;
use stdx::Version;

/// Decodes entries from a stream that arrives in pieces.
///
/// The decoder buffers the pieces that it is fed. The caller takes out all entries before it feeds
/// more. Then the decoder holds at most one unfinished entry: its key, and a value of at most the
/// given size (in JSON, its base64 form).
#[derive(Debug)]
pub struct EntryDecoder {
    pieces: ByteQueue,
    reader: Reader,
    value_bytes_max: usize,
    needs_end: bool,
    /// Number of entries decoded, including those that were too large.
    entries: u64,
    failed: Option<EntryError>,
}

#[derive(Debug)]
enum Reader {
    Json(JsonReader),
    Binary(BinaryReader),
}

/// Error of an entry without the entry's number.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryFault {
    TooLarge,
    Malformed(Cow<'static, str>),
}

impl EntryFault {
    pub(super) const fn of(detail: &'static str) -> Self {
        Self::Malformed(Cow::Borrowed(detail))
    }

    pub(super) const fn malformed(detail: String) -> Self {
        Self::Malformed(Cow::Owned(detail))
    }
}

impl From<&'static str> for EntryFault {
    fn from(detail: &'static str) -> Self {
        Self::of(detail)
    }
}

impl EntryDecoder {
    /// Creates a decoder of a batch with values of at most `value_bytes_max` bytes. The end record
    /// of the binary format may be missing.
    ///
    /// # Panics
    /// If the format is [`Format::Lines`], which cannot be decoded.
    pub fn new(format: Format, value_bytes_max: usize) -> Self {
        let reader = match format {
            Format::Lines => panic!("lines do not delimit entries"),
            Format::Ndjson => Reader::Json(JsonReader::new(value_bytes_max)),
            Format::Binary => Reader::Binary(BinaryReader::new(value_bytes_max)),
        };
        let (pieces, needs_end) = (ByteQueue::default(), false);
        Self { pieces, reader, value_bytes_max, needs_end, entries: 0, failed: None }
    }

    /// Creates a decoder of an export, which in the binary format is complete only with its end
    /// record.
    ///
    /// # Panics
    /// As [`EntryDecoder::new`].
    pub fn of_export(format: Format, value_bytes_max: usize) -> Self {
        Self { needs_end: format == Format::Binary, ..Self::new(format, value_bytes_max) }
    }

    /// Adds the next piece of the stream.
    pub fn feed(&mut self, piece: Bytes) {
        if self.failed.is_none() {
            self.pieces.feed(piece);
        }
    }

    /// Decodes the next entry. Returns `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`EntryError`]. After an error that is not final, the next entry follows. After a final one,
    /// each call returns the same error.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means that more bytes are needed, and the call can fail"
    )]
    pub fn next(&mut self) -> Result<Option<BatchEntry>, EntryError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = match &mut self.reader {
            Reader::Json(reader) => reader.next(&mut self.pieces),
            Reader::Binary(reader) => reader.next(&mut self.pieces, self.entries),
        };
        match result {
            Ok(None) => Ok(None),
            Ok(Some(entry)) => {
                self.entries += 1;
                Ok(Some(entry))
            }
            Err(EntryFault::TooLarge) => {
                self.entries += 1;
                Err(EntryError::TooLarge { entry: self.entries, bytes_max: self.value_bytes_max })
            }
            Err(EntryFault::Malformed(detail)) => {
                Err(self.fail(EntryError::Malformed { entry: self.entries + 1, detail }))
            }
        }
    }

    /// Checks that the stream may end here. Must be called when [`EntryDecoder::next`] has no more
    /// entries.
    ///
    /// # Errors
    /// A final [`EntryError`]: the last entry is incomplete, or a required end record is missing.
    pub fn end(&mut self) -> Result<(), EntryError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let may_end = self.pieces.len() == 0
            && match &self.reader {
                Reader::Json(reader) => reader.is_between_entries(),
                Reader::Binary(reader) => {
                    reader.is_between_entries() && (reader.is_ended() || !self.needs_end)
                }
            };
        match may_end {
            true => Ok(()),
            false => Err(self.fail(EntryError::CutShort { entries: self.entries })),
        }
    }

    /// Version of the entry that [`EntryDecoder::next`] returned last, if the stream contains it.
    /// Batches ignore versions, so malformed versions are `None`.
    pub const fn last_version(&self) -> Option<Version> {
        match &self.reader {
            Reader::Json(reader) => reader.last_version(),
            Reader::Binary(reader) => reader.last_version(),
        }
    }

    /// Number of bytes buffered: pieces that are not decoded yet, and the unfinished entry.
    pub fn held_bytes(&self) -> usize {
        let unfinished = match &self.reader {
            Reader::Json(reader) => reader.held_bytes(),
            Reader::Binary(_) => 0,
        };
        self.pieces.len() + unfinished
    }

    /// Number of entries decoded, including those that were too large.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    fn fail(&mut self, error: EntryError) -> EntryError {
        self.pieces = ByteQueue::default();
        self.failed = Some(error.clone());
        error
    }
}
