//! Bytes to entries.

use super::binary::BinaryReader;
use super::byte_queue::ByteQueue;
use super::json_entry::JsonReader;
use super::{BatchEntry, EntryError, Format};
use bytes::Bytes;
use std::borrow::Cow;
use stdx::Version;

/// Reads entries from a stream that comes in pieces.
///
/// It holds what it is fed: whoever feeds it takes out all entries before he feeds more. Then it holds no more than one
/// unfinished entry: its key, and a value of at most the given size (in JSON, in base64).
#[derive(Debug)]
pub struct EntryDecoder {
    pieces: ByteQueue,
    reader: Reader,
    value_bytes_max: usize,
    needs_end: bool,
    /// How many entries have come, those that were too large too.
    entries: u64,
    failed: Option<EntryError>,
}

#[derive(Debug)]
enum Reader {
    Json(JsonReader),
    Binary(BinaryReader),
}

/// What is wrong with an entry, before it is known which one it is.
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
    /// Of a batch with values of at most this size. The end record of the binary format may be left out.
    ///
    /// # Panics
    /// When the format is [`Format::Lines`], which cannot be decoded.
    pub fn new(format: Format, value_bytes_max: usize) -> Self {
        let reader = match format {
            Format::Lines => panic!("nothing tells where an entry ends"),
            Format::Ndjson => Reader::Json(JsonReader::new(value_bytes_max)),
            Format::Binary => Reader::Binary(BinaryReader::new(value_bytes_max)),
        };
        let (pieces, needs_end) = (ByteQueue::default(), false);
        Self { pieces, reader, value_bytes_max, needs_end, entries: 0, failed: None }
    }

    /// The same of an export, which in the binary format is complete only with its end record.
    ///
    /// # Panics
    /// As [`EntryDecoder::new`].
    pub fn of_export(format: Format, value_bytes_max: usize) -> Self {
        Self { needs_end: format == Format::Binary, ..Self::new(format, value_bytes_max) }
    }

    /// Takes in the next piece.
    pub fn feed(&mut self, piece: Bytes) {
        if self.failed.is_none() {
            self.pieces.feed(piece);
        }
    }

    /// The next entry; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`EntryError`]. After one that is not final, go on; after a final one, it is always the same.
    #[expect(clippy::should_implement_trait, reason = "it ends for now, not for ever, and it can fail")]
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

    /// That nothing follows what was fed. ResponseContext when [`EntryDecoder::next`] has no more entries.
    ///
    /// # Errors
    /// A final [`EntryError`]: the last entry is not whole, or the end record is missing where there must be one.
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

    /// The version of the entry that [`EntryDecoder::next`] gave last, if the stream says it. What a batch says is passed
    /// over, so text that is no version is none.
    pub const fn last_version(&self) -> Option<Version> {
        match &self.reader {
            Reader::Json(reader) => reader.last_version(),
            Reader::Binary(reader) => reader.last_version(),
        }
    }

    /// How many bytes it holds: what was fed and not read, and the entry that has come in part.
    pub fn held_bytes(&self) -> usize {
        let unfinished = match &self.reader {
            Reader::Json(reader) => reader.held_bytes(),
            Reader::Binary(_) => 0,
        };
        self.pieces.len() + unfinished
    }

    /// How many entries have come, those that were too large too.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    fn fail(&mut self, error: EntryError) -> EntryError {
        self.pieces = ByteQueue::default();
        self.failed = Some(error.clone());
        error
    }
}
