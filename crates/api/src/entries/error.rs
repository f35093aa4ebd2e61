//! Errors of streams of entries.

use crate::Problem;
use http::StatusCode;
use std::borrow::Cow;

/// Error of a stream of entries. Entries are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The value of an entry is too large. The entry is skipped; the next entry follows.
    #[error("entry {entry}: its value is larger than {bytes_max} bytes")]
    TooLarge {
        /// Number of the entry.
        entry: u64,
        /// Greatest length of a value, in bytes.
        bytes_max: usize,
    },
    /// An entry is malformed, and the rest of the stream cannot be decoded.
    #[error("entry {entry}: {detail}")]
    Malformed {
        /// Number of the entry.
        entry: u64,
        /// Description of the error.
        detail: Cow<'static, str>,
    },
    /// The stream ends inside an entry, or without its end record.
    #[error("the stream is cut short after {entries} entries")]
    CutShort {
        /// Number of complete entries.
        entries: u64,
    },
}

impl EntryError {
    /// Whether the rest of the stream cannot be decoded.
    pub const fn is_final(&self) -> bool {
        !matches!(self, Self::TooLarge { .. })
    }

    /// Problem to answer with.
    pub fn to_problem(&self) -> Problem {
        match self {
            Self::TooLarge { bytes_max, .. } => Problem::value_too_large(*bytes_max),
            Self::Malformed { entry, detail } => Problem::bad_request(format!(
                "Entry {entry} is malformed: {detail}. It and what follows it was not stored; what was before it was."
            )),
            Self::CutShort { entries } => Problem::bad_request(format!(
                "The stream ends inside an entry, after {entries} whole ones. Those were stored; send the rest again."
            )),
        }
    }

    /// Status of [`EntryError::to_problem`].
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Malformed { .. } | Self::CutShort { .. } => StatusCode::BAD_REQUEST,
        }
    }
}
