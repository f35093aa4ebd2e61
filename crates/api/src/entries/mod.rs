//! Entries in bulk: the formats of ranges and batches.
//!
//! **Promise.** An [`EntryDecoder`] decodes the entries that an [`EntryEncoder`] has encoded,
//! independent of how the stream is split into pieces. The same holds for [`ResultEncoder`] and
//! [`ResultDecoder`]. Bytes from a client are entries or an [`EntryError`], never a panic, and a
//! decoder holds at most one unfinished entry. Damage of the binary format is found by checksums,
//! and a truncated binary export lacks its end record.
//!
//! **Mechanism.** There are three formats, described byte by byte in `docs/entries-format.md`.
//! Lines are the default of ranges: each entry is one chunk of HTTP and a slice of its page. Lines
//! of JSON are for people and scripts. The binary format has lengths and is for machines. Values of
//! the binary format are slices of the pieces in which they arrived, if they lie in one piece. A
//! JSON string is decoded as it arrives, so its escapes take no memory.
//!
//! **Caveats.** Without the chunks, entries of the default format are not delimited, so this module
//! cannot decode them. A file of JSON lines that was truncated between two lines looks complete.
//! Compression is the caller's task.

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

/// Format of entries or results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `key`, a line feed, `value`: the default of ranges. Not available for batches.
    Lines,
    /// One JSON object on each line.
    Ndjson,
    /// Records with lengths and checksums.
    Binary,
}

impl Format {
    /// Media type of entries and results in this format.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/octet-stream",
            Self::Ndjson => "application/x-ndjson",
            Self::Binary => "application/vnd.veche.entries",
        }
    }
}

/// Compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// No compression.
    Identity,
    /// The gzip format, RFC 1952.
    Gzip,
    /// Zstandard, RFC 8878.
    Zstd,
}

impl Coding {
    /// Name in `Content-Encoding`; `None` if the header is left out.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}
