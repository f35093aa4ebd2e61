//! Results of a batch: one for each entry, in the order of the entries.
//!
//! In JSON, each result is a line: `{"status":201,"version":"<32 hexadecimal digits>"}`, with
//! `"superseded":true` if a greater version was there already; or
//! `{"status":503,"detail":"...","retry_after":1}`. If only failures are requested, each has the
//! number of its entry, `{"entry":17,"status":503,...}`, and the last line is
//! `{"entries":20,"failed":1}`.
//!
//! ```text
//! stream:   8  VECHERE1                 failed:  1  3
//!              results                           1  0
//!                                                2  status
//! done:     1  1 written, 2 deleted              4  retry after, in seconds; 0: none
//!           1  bit 0: superseded                 2  length of the detail
//!          16  version                              detail, UTF-8
//!
//!                                       end:     1  255
//!                                                8  count of results before it
//! ```

use super::byte_queue::ByteQueue;
use super::json::put_string;
use super::{EntryError, Format};
use crate::Problem;
use crate::encode::{FailedOperation, problem_of, version_digits};
use bytes::Bytes;
use cluster::Reply;
use http::StatusCode;
use serde::Deserialize;
use std::borrow::Cow;
use stdx::Version;

/// First bytes of a stream of results in the binary format.
pub const RESULTS_MAGIC: &[u8; 8] = b"VECHERE1";

/// Greatest length of an encoded detail, in bytes.
const DETAIL_BYTES_MAX: usize = 1_024;
/// Bound of the length of a line, in bytes. It is greater than any result.
const LINE_BYTES_MAX: usize = 16 << 10;

/// First byte of a result.
mod kind {
    pub(super) const WRITTEN: u8 = 1;
    pub(super) const DELETED: u8 = 2;
    pub(super) const FAILED: u8 = 3;
    pub(super) const END: u8 = 0xff;
}

const SUPERSEDED: u8 = 1;

/// Result of an entry, as of a single request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryResult {
    /// The value was written (`201`), or the key was deleted (`202`).
    Done {
        /// Whether the entry was a delete.
        is_delete: bool,
        /// Version of the write.
        version: Version,
        /// Whether a greater version was there already.
        superseded: bool,
    },
    /// The entry failed.
    Failed {
        /// Status that a single request would have got.
        status: StatusCode,
        /// Description of the failure, and advice.
        detail: Cow<'static, str>,
        /// Time after which the client should try again, in seconds.
        retry_after_secs: Option<u32>,
    },
}

impl EntryResult {
    /// Converts the coordinator's reply to an entry.
    ///
    /// # Panics
    /// If the reply is not a reply to a write.
    pub fn of_reply(reply: Reply, is_delete: bool) -> Self {
        match reply {
            Reply::Written { version, superseded, .. } => Self::Done { is_delete, version, superseded },
            Reply::Failed(failure) => problem_of(failure, FailedOperation::Write).into(),
            Reply::Found { .. } | Reply::Missing { .. } | Reply::Page { .. } => {
                unreachable!("entries of a batch are writes")
            }
        }
    }

    /// Status that a single request would have got.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Done { is_delete: false, .. } => StatusCode::CREATED,
            Self::Done { is_delete: true, .. } => StatusCode::ACCEPTED,
            Self::Failed { status, .. } => *status,
        }
    }
}

impl From<Problem> for EntryResult {
    fn from(problem: Problem) -> Self {
        let retry_after_secs = problem.retry_after_secs().map(|secs| secs as u32);
        Self::Failed { status: problem.status(), detail: problem.into_detail(), retry_after_secs }
    }
}

impl From<&EntryError> for EntryResult {
    fn from(error: &EntryError) -> Self {
        error.to_problem().into()
    }
}

/// Requested results of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultScope {
    /// One result for each entry.
    All,
    /// Failures, and the number of entries. Only as [`Format::Ndjson`].
    Errors,
}

/// Encodes results.
#[derive(Debug)]
pub struct ResultEncoder {
    format: Format,
    scope: ResultScope,
    has_begun: bool,
    results: u64,
    failed: u64,
}

impl ResultEncoder {
    /// Creates an encoder.
    ///
    /// # Panics
    /// If the format has no such results: [`Format::Lines`] has none, and [`Format::Binary`] has no
    /// entry numbers.
    pub fn new(format: Format, scope: ResultScope) -> Self {
        assert!(format != Format::Lines, "lines have no results");
        assert!(scope == ResultScope::All || format == Format::Ndjson, "entry numbers are in JSON only");
        Self { format, scope, has_begun: false, results: 0, failed: 0 }
    }

    /// Appends a result, if it is requested.
    pub fn put(&mut self, result: &EntryResult, out: &mut Vec<u8>) {
        self.begin(out);
        self.results += 1;
        let is_failed = matches!(result, EntryResult::Failed { .. });
        self.failed += u64::from(is_failed);
        match (self.format, self.scope) {
            (Format::Binary, _) => put_binary(out, result),
            (Format::Ndjson | Format::Lines, ResultScope::All) => put_json(out, None, result),
            (Format::Ndjson | Format::Lines, ResultScope::Errors) if is_failed => {
                put_json(out, Some(self.results), result);
            }
            (Format::Ndjson | Format::Lines, ResultScope::Errors) => {}
        }
    }

    /// Appends the end of the stream, after all results.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        self.begin(out);
        if self.format == Format::Binary {
            out.push(kind::END);
            out.extend_from_slice(&self.results.to_le_bytes());
        }
        if self.scope == ResultScope::Errors {
            let Self { results, failed, .. } = self;
            out.extend_from_slice(format!("{{\"entries\":{results},\"failed\":{failed}}}\n").as_bytes());
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !self.has_begun && self.format == Format::Binary {
            out.extend_from_slice(RESULTS_MAGIC);
        }
        self.has_begun = true;
    }
}

fn cut_detail(detail: &str) -> &str {
    &detail[..detail.floor_char_boundary(DETAIL_BYTES_MAX)]
}

fn put_binary(out: &mut Vec<u8>, result: &EntryResult) {
    match result {
        EntryResult::Done { is_delete, version, superseded } => {
            let kind = if *is_delete { kind::DELETED } else { kind::WRITTEN };
            out.extend_from_slice(&[kind, if *superseded { SUPERSEDED } else { 0 }]);
            out.extend_from_slice(&version.to_bytes());
        }
        EntryResult::Failed { status, detail, retry_after_secs } => {
            let detail = cut_detail(detail);
            out.extend_from_slice(&[kind::FAILED, 0]);
            out.extend_from_slice(&status.as_u16().to_le_bytes());
            out.extend_from_slice(&retry_after_secs.unwrap_or(0).to_le_bytes());
            out.extend_from_slice(&(detail.len() as u16).to_le_bytes());
            out.extend_from_slice(detail.as_bytes());
        }
    }
}

fn put_json(out: &mut Vec<u8>, entry: Option<u64>, result: &EntryResult) {
    out.push(b'{');
    if let Some(entry) = entry {
        out.extend_from_slice(format!("\"entry\":{entry},").as_bytes());
    }
    out.extend_from_slice(b"\"status\":");
    out.extend_from_slice(result.status().as_str().as_bytes());
    match result {
        EntryResult::Done { version, superseded, .. } => {
            out.extend_from_slice(b",\"version\":\"");
            out.extend_from_slice(&version_digits(*version));
            out.push(b'"');
            if *superseded {
                out.extend_from_slice(b",\"superseded\":true");
            }
        }
        EntryResult::Failed { detail, retry_after_secs, .. } => {
            out.extend_from_slice(b",\"detail\":");
            put_string(out, cut_detail(detail));
            if let Some(secs) = retry_after_secs {
                out.extend_from_slice(format!(",\"retry_after\":{secs}").as_bytes());
            }
        }
    }
    out.extend_from_slice(b"}\n");
}

/// Decodes results from a stream that arrives in pieces. As for
/// [`EntryDecoder`](super::EntryDecoder), the caller takes out all results before it feeds more.
#[derive(Debug)]
pub struct ResultDecoder {
    pieces: ByteQueue,
    state: State,
    results: u64,
    failed: Option<EntryError>,
}

#[derive(Debug)]
enum State {
    /// JSON: the unfinished line.
    Line(Vec<u8>),
    /// Binary: before the first byte.
    Begin,
    /// Before the kind of a result.
    Kind,
    /// After the kind of a successful result.
    Done { is_delete: bool },
    /// After the kind of a failure.
    Failed,
    /// Before the detail of a failure.
    Detail { status: StatusCode, retry_after_secs: Option<u32>, len: usize },
    /// Before the count of the end.
    Count,
    /// After the end.
    Ended,
}

impl ResultDecoder {
    /// Creates a decoder for `format`.
    ///
    /// # Panics
    /// If the format is [`Format::Lines`], which has no results.
    pub fn new(format: Format) -> Self {
        let state = match format {
            Format::Lines => panic!("lines have no results"),
            Format::Ndjson => State::Line(Vec::new()),
            Format::Binary => State::Begin,
        };
        Self { pieces: ByteQueue::default(), state, results: 0, failed: None }
    }

    /// Decodes a whole stream, which consists of `pieces`. Returns the results before its end or
    /// the first error, and that error.
    ///
    /// # Panics
    /// As [`ResultDecoder::new`].
    pub fn decode_all(
        format: Format,
        pieces: impl IntoIterator<Item = Bytes>,
    ) -> (Vec<EntryResult>, Result<(), EntryError>) {
        let (mut decoder, mut results) = (Self::new(format), Vec::new());
        for piece in pieces {
            decoder.feed(piece);
            loop {
                match decoder.next() {
                    Ok(Some(result)) => results.push(result),
                    Ok(None) => break,
                    Err(error) => return (results, Err(error)),
                }
            }
        }
        (results, decoder.end())
    }

    /// Adds the next piece of the stream.
    pub fn feed(&mut self, piece: Bytes) {
        if self.failed.is_none() {
            self.pieces.feed(piece);
        }
    }

    /// Decodes the next result. Returns `None` if more bytes are needed.
    ///
    /// # Errors
    /// A final [`EntryError`], which each later call returns too.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means that more bytes are needed, and the call can fail"
    )]
    pub fn next(&mut self) -> Result<Option<EntryResult>, EntryError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = match self.state {
            State::Line(_) => self.next_line(),
            _ => self.next_binary(),
        };
        match result {
            Ok(result) => {
                self.results += u64::from(result.is_some());
                Ok(result)
            }
            Err(detail) => {
                let error = EntryError::Malformed { entry: self.results + 1, detail: detail.into() };
                Err(self.fail(error))
            }
        }
    }

    /// Checks that the stream may end here. Must be called when [`ResultDecoder::next`] has no more
    /// results.
    ///
    /// # Errors
    /// [`EntryError::CutShort`]: a result is incomplete, or the binary format lacks its end.
    pub fn end(&mut self) -> Result<(), EntryError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let may_end = self.pieces.len() == 0
            && match &self.state {
                State::Line(line) => line.is_empty(),
                state => matches!(state, State::Ended),
            };
        match may_end {
            true => Ok(()),
            false => Err(self.fail(EntryError::CutShort { entries: self.results })),
        }
    }

    fn fail(&mut self, error: EntryError) -> EntryError {
        self.pieces = ByteQueue::default();
        self.failed = Some(error.clone());
        error
    }

    fn next_line(&mut self) -> Result<Option<EntryResult>, &'static str> {
        let State::Line(line) = &mut self.state else { unreachable!("called for JSON only") };
        while !self.pieces.front().is_empty() {
            let front = self.pieces.front();
            let end = memchr::memchr(b'\n', front);
            let passed = end.map_or(front.len(), |end| end + 1);
            line.extend_from_slice(&front[..passed]);
            self.pieces.advance(passed);
            if line.len() > LINE_BYTES_MAX {
                return Err("its line is too long");
            }
            if end.is_some() {
                let result = if line.trim_ascii().is_empty() { None } else { Some(result_of_line(line)?) };
                line.clear();
                if result.is_some() {
                    return Ok(result);
                }
            }
        }
        Ok(None)
    }

    fn next_binary(&mut self) -> Result<Option<EntryResult>, &'static str> {
        loop {
            match self.step()? {
                Step::NeedMore => return Ok(None),
                Step::State(state) => self.state = state,
                Step::Result(result) => {
                    self.state = State::Kind;
                    return Ok(Some(result));
                }
            }
        }
    }

    fn step(&mut self) -> Result<Step, &'static str> {
        let pieces = &mut self.pieces;
        let step = match &self.state {
            State::Line(_) => unreachable!("called for the binary format only"),
            State::Begin => pieces.take_array().map(|magic: [u8; 8]| match magic == *RESULTS_MAGIC {
                true => Ok(Step::State(State::Kind)),
                false => Err("the stream does not begin with VECHERE1"),
            }),
            State::Kind => pieces.take_array().map(|[kind]| match kind {
                kind::WRITTEN => Ok(Step::State(State::Done { is_delete: false })),
                kind::DELETED => Ok(Step::State(State::Done { is_delete: true })),
                kind::FAILED => Ok(Step::State(State::Failed)),
                kind::END => Ok(Step::State(State::Count)),
                _ => Err("its kind is unknown"),
            }),
            State::Done { is_delete } => pieces.take_array().map(|[flags, version @ ..]: [u8; 17]| {
                let version = Version::from_bytes(version);
                match flags & !SUPERSEDED {
                    0 => Ok(Step::Result(EntryResult::Done {
                        is_delete: *is_delete,
                        version,
                        superseded: flags == SUPERSEDED,
                    })),
                    _ => Err("it has unknown flag bits"),
                }
            }),
            State::Failed => pieces.take_array().map(failure_head),
            State::Detail { status, retry_after_secs, len } => pieces.take(*len).map(|detail| {
                let detail = std::str::from_utf8(&detail).map_err(|_| "its detail is not UTF-8")?;
                Ok(Step::Result(EntryResult::Failed {
                    status: *status,
                    detail: detail.to_owned().into(),
                    retry_after_secs: *retry_after_secs,
                }))
            }),
            State::Count => {
                pieces.take_array().map(|count| match u64::from_le_bytes(count) == self.results {
                    true => Ok(Step::State(State::Ended)),
                    false => Err("the end does not count the results that have come"),
                })
            }
            State::Ended if pieces.len() > 0 => Some(Err("bytes follow the end")),
            State::Ended => None,
        };
        step.unwrap_or(Ok(Step::NeedMore))
    }
}

/// Effect of decoding the next bytes.
enum Step {
    NeedMore,
    State(State),
    Result(EntryResult),
}

fn failure_head(head: [u8; 9]) -> Result<Step, &'static str> {
    let [flags, status @ .., a, b, c, d, low, high] = head;
    let status = StatusCode::from_u16(u16::from_le_bytes(status)).map_err(|_| "it has no status")?;
    let len = usize::from(u16::from_le_bytes([low, high]));
    if flags != 0 || len > DETAIL_BYTES_MAX {
        return Err("it is malformed");
    }
    let retry_after_secs = Some(u32::from_le_bytes([a, b, c, d])).filter(|secs| *secs > 0);
    Ok(Step::State(State::Detail { status, retry_after_secs, len }))
}

/// A result on a line. Unknown fields are ignored.
#[derive(Deserialize)]
struct Line {
    status: u16,
    version: Option<String>,
    #[serde(default)]
    superseded: bool,
    detail: Option<String>,
    retry_after: Option<u32>,
}

fn result_of_line(line: &[u8]) -> Result<EntryResult, &'static str> {
    let line: Line = serde_json::from_slice(line).map_err(|_| "it is not a result in JSON")?;
    let status = StatusCode::from_u16(line.status).map_err(|_| "it has no status")?;
    match status {
        StatusCode::CREATED | StatusCode::ACCEPTED => {
            let version = line.version.ok_or("it has no version")?;
            Ok(EntryResult::Done {
                is_delete: status == StatusCode::ACCEPTED,
                version: version.parse().map_err(|_| "its version is malformed")?,
                superseded: line.superseded,
            })
        }
        _ => {
            let detail = line.detail.unwrap_or_default().into();
            Ok(EntryResult::Failed { status, detail, retry_after_secs: line.retry_after })
        }
    }
}
