//! Entries in bulk: the formats of ranges and batches.
//!
//! **Promise.** What an [`EntryEncoder`] writes, an [`EntryDecoder`] reads as it was, in whatever pieces it comes; the
//! same holds of [`ResultEncoder`] and [`ResultDecoder`]. Bytes from outside are entries or an [`EntryError`], never a
//! panic, and a decoder holds one unfinished entry at most. Damage of the binary format is found by checksum, and a
//! binary export that was cut short lacks its end record.
//!
//! **Mechanism.** Three formats, described byte by byte in `docs/entries-format.md`: lines, the default of ranges,
//! where each entry is one chunk of HTTP and a slice of its page; lines of JSON, for people and scripts; and a binary one
//! behind lengths, for machines. The values of the binary format are slices of the pieces they came in, where they lie
//! in one; a JSON string is decoded while it comes, so that its escapes take no room.
//!
//! **Caveats.** Without the chunks, nothing tells where an entry of the default format ends: it cannot be decoded here.
//! A file of JSON lines that was cut between two of them looks complete. Compression is the caller's.

mod binary;
mod byte_queue;
mod decoder;
mod encoder;
mod entry;
mod error;
mod json;
mod json_entry;
mod results;

pub use binary::MAGIC;
pub use decoder::EntryDecoder;
pub use encoder::EntryEncoder;
pub use entry::{BatchAction, BatchEntry};
pub use error::EntryError;
pub use results::{EntryResult, RESULTS_MAGIC, ResultDecoder, ResultEncoder, ResultScope};

/// How entries or results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `key`, a line feed, `value`: the default of ranges. Not for batches.
    Lines,
    /// A JSON object on each line.
    Ndjson,
    /// Records behind their lengths.
    Binary,
}

impl Format {
    /// The media type of entries and results in it.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/octet-stream",
            Self::Ndjson => "application/x-ndjson",
            Self::Binary => "application/vnd.veche.entries",
        }
    }
}

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Not at all.
    Identity,
    /// RFC 1952.
    Gzip,
    /// Zstandard, RFC 8878.
    Zstd,
}

impl Coding {
    /// Its name in `Content-Encoding`; `None` when that header is left out.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}
