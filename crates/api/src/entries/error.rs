//! What is wrong with entries.

use crate::Problem;
use http::StatusCode;
use std::borrow::Cow;

/// Why bytes are not entries. Entries are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The value of this entry is too large. It was passed over; the next entry follows.
    #[error("entry {entry}: its value is larger than {bytes_max} bytes")]
    TooLarge {
        /// Which entry.
        entry: u64,
        /// The largest value.
        bytes_max: usize,
    },
    /// This entry is none, and what follows it is not understood either.
    #[error("entry {entry}: {detail}")]
    Malformed {
        /// Which entry.
        entry: u64,
        /// What is wrong with it.
        detail: Cow<'static, str>,
    },
    /// The stream ends where it must not.
    #[error("the stream is cut short after {entries} entries")]
    CutShort {
        /// How many entries came whole.
        entries: u64,
    },
}

impl EntryError {
    /// Whether nothing behind it is understood.
    pub const fn is_final(&self) -> bool {
        !matches!(self, Self::TooLarge { .. })
    }

    /// What a user is told.
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

    /// The status of [`EntryError::to_problem`].
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Malformed { .. } | Self::CutShort { .. } => StatusCode::BAD_REQUEST,
        }
    }
}
