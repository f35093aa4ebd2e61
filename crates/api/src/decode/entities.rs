//! Ranges and batches: `GET` and `POST` on `/v0/entities`.

use super::negotiation::{accepted_coding, accepted_format, media_type_of};
use super::query::{OptionalKey, Parameters, WholeNumber};
use super::{DecodedRequest, RequestRules, check_body_has_length, check_headers};
use crate::Problem;
use crate::entries::{Coding, Format, ResultScope};
use cluster::{Cut, Key, KeyRange, Quorum, Scan, ScanScope};
use http::request::Parts;
use http::{Method, StatusCode, header};

pub(super) const METHODS: &str = "GET, POST";
const RANGE_PARAMETERS: &[&str] =
    &["start", "end", "prefix", "limit", "keys", "count", "cluster", "ack", "from", "replicas"];
const BATCH_PARAMETERS: &[&str] = &["ack", "from", "replicas", "results"];

/// A request for a range of entities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityRangeRequest {
    /// Range, limit and scope.
    pub scan: Scan,
    /// Requested content of the entries.
    pub content: RangeContent,
    /// Format of the body. Irrelevant for a count.
    pub format: Format,
    /// Compression of the body. The default format and counts are never compressed.
    pub coding: Coding,
}

/// Requested content of the entries of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeContent {
    /// Keys and values.
    Entries,
    /// Keys only. Never as [`Format::Binary`].
    Keys,
    /// Number of entries.
    Count,
}

/// A request to write many entities, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    /// Quorum of each write.
    pub quorum: Quorum,
    /// Format of the entries. Never [`Format::Lines`].
    pub entries: Format,
    /// Format of the results. Never [`Format::Lines`].
    pub results: Format,
    /// Requested results.
    pub scope: ResultScope,
}

pub(super) fn decode(parts: &Parts, rules: &RequestRules) -> Result<DecodedRequest, Problem> {
    match parts.method {
        Method::GET => decode_range(parts, rules).map(DecodedRequest::Range),
        Method::POST => decode_batch(parts, rules).map(DecodedRequest::Batch),
        _ => Err(Problem::method_not_allowed(METHODS)),
    }
}

fn decode_range(parts: &Parts, rules: &RequestRules) -> Result<EntityRangeRequest, Problem> {
    check_headers(parts, false)?;
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default(), RANGE_PARAMETERS)?;
    let range = key_range(&parameters)?;
    let limit = limit(&parameters)?;
    let scope = scope(&parameters, rules)?;
    let content = content(&parameters)?;
    let format = match content {
        RangeContent::Entries => {
            let formats = [Format::Lines, Format::Ndjson, Format::Binary];
            accepted_format(&parts.headers, &formats).or(Format::Lines).ok_or_else(|| {
                not_acceptable(
                    "application/octet-stream, application/x-ndjson and application/vnd.veche.entries",
                )
            })?
        }
        RangeContent::Keys => accepted_format(&parts.headers, &[Format::Lines, Format::Ndjson])
            .or(Format::Lines)
            .ok_or_else(|| not_acceptable("application/octet-stream and application/x-ndjson"))?,
        RangeContent::Count => Format::Lines,
    };
    let coding = match format {
        Format::Lines => Coding::Identity,
        Format::Ndjson | Format::Binary => accepted_coding(&parts.headers).ok_or_else(|| {
            let detail = "Accept-Encoding allows none of zstd, gzip and identity. Allow one of them.";
            Problem::new(StatusCode::NOT_ACCEPTABLE, detail)
        })?,
    };
    Ok(EntityRangeRequest { scan: Scan { range, limit, scope }, content, format, coding })
}

fn key_range(parameters: &Parameters<'_>) -> Result<KeyRange, Problem> {
    let start = match parameters.optional_key("start")? {
        OptionalKey::Absent => None,
        OptionalKey::Empty => return Err(no_start("The parameter start is empty.")),
        OptionalKey::Key(key) => Some(Cut::Before(key)),
    };
    let (prefix_start, prefix_end) = match parameters.optional_key("prefix")? {
        OptionalKey::Absent => (None, None),
        OptionalKey::Empty => return Err(no_start("The parameter prefix is empty.")),
        OptionalKey::Key(prefix) => {
            let end = end_of_prefix(&prefix);
            (Some(Cut::Before(prefix)), end)
        }
    };
    let from = start.max(prefix_start).ok_or_else(|| no_start("The range has no start."))?;
    let end = match parameters.optional_key("end")? {
        OptionalKey::Absent => None,
        // No key is less than the empty key, so the range is empty.
        OptionalKey::Empty => Some(from.clone()),
        OptionalKey::Key(key) => Some(Cut::Before(key)),
    };
    let to = [end, prefix_end].into_iter().flatten().min();
    Ok(KeyRange { from: Some(from), to })
}

fn no_start(fault: &str) -> Problem {
    Problem::bad_request(format!(
        "{fault} Name the first key, ?start=<key>, or the beginning of all keys, ?prefix=<prefix>. ?start=%00 lists \
         everything."
    ))
}

/// First key behind all keys that begin with `prefix`. `None` if all later keys begin with it.
fn end_of_prefix(prefix: &Key) -> Option<Cut> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return Some(Cut::Before(
                Key::new(end.into()).expect("the end is not empty and no longer than the prefix"),
            ));
        }
    }
    None
}

fn content(parameters: &Parameters<'_>) -> Result<RangeContent, Problem> {
    match (parameters.is_set("keys")?, parameters.is_set("count")?) {
        (false, false) => Ok(RangeContent::Entries),
        (true, false) => Ok(RangeContent::Keys),
        (false, true) => Ok(RangeContent::Count),
        (true, true) => Err(Problem::bad_request(
            "The parameters keys and count exclude each other. Give keys=1 for the keys, or count=1 for their number.",
        )),
    }
}

fn limit(parameters: &Parameters<'_>) -> Result<Option<u64>, Problem> {
    let Some(text) = parameters.text("limit")? else { return Ok(None) };
    match WholeNumber::parse(&text) {
        Some(WholeNumber::Fits(limit)) => Ok(Some(limit)),
        Some(WholeNumber::TooLarge) => Err(Problem::bad_request(format!(
            "The parameter limit is too large: the most is {}. Leave it out for all of the range.",
            u64::MAX
        ))),
        None => Err(Problem::bad_request(
            "The parameter limit is not a whole number of entries. Leave it out for all of the range.",
        )),
    }
}

fn scope(parameters: &Parameters<'_>, rules: &RequestRules) -> Result<ScanScope, Problem> {
    if parameters.is_set("cluster")? {
        return parameters.quorum(rules).map(ScanScope::Cluster);
    }
    if parameters.chooses_quorum() {
        return Err(Problem::bad_request(
            "Without cluster=1 only this node's entries are read, and no other node has to answer. \
             Add cluster=1, or leave out ack, from and replicas.",
        ));
    }
    Ok(ScanScope::Node)
}

fn decode_batch(parts: &Parts, rules: &RequestRules) -> Result<BatchRequest, Problem> {
    check_headers(parts, false)?;
    check_body_has_length(parts)?;
    let entries = entries_format(parts)?;
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default(), BATCH_PARAMETERS)?;
    let quorum = parameters.quorum(rules)?;
    let scope = result_scope(&parameters)?;
    let results = match scope {
        ResultScope::All => accepted_format(&parts.headers, &[entries, Format::Ndjson, Format::Binary])
            .or(entries)
            .ok_or_else(|| not_acceptable("application/x-ndjson and application/vnd.veche.entries"))?,
        ResultScope::Errors => accepted_format(&parts.headers, &[Format::Ndjson])
            .or(Format::Ndjson)
            .ok_or_else(|| not_acceptable("application/x-ndjson"))?,
    };
    Ok(BatchRequest { quorum, entries, results, scope })
}

fn result_scope(parameters: &Parameters<'_>) -> Result<ResultScope, Problem> {
    match parameters.text("results")?.as_deref() {
        None | Some(b"all") => Ok(ResultScope::All),
        Some(b"errors") => Ok(ResultScope::Errors),
        Some(_) => Err(Problem::bad_request(
            "The parameter results is neither all, for a result of each entry, nor errors, for those of failed entries.",
        )),
    }
}

/// Format of a batch's body.
fn entries_format(parts: &Parts) -> Result<Format, Problem> {
    let unsupported = |detail: &'static str| Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
    if super::is_content_coded(parts) {
        return Err(Problem::content_coding(
            "The body of a batch is not read compressed. Send it uncompressed, without Content-Encoding.",
        ));
    }
    let mut types = parts.headers.get_all(header::CONTENT_TYPE).iter();
    let format = match (types.next(), types.next()) {
        (Some(media_type), None) => media_type_of(media_type),
        _ => None,
    };
    format.filter(|format| *format != Format::Lines).ok_or_else(|| {
        unsupported(
            "A batch is written in application/x-ndjson or application/vnd.veche.entries. \
             Say in Content-Type which of them it is.",
        )
    })
}

fn not_acceptable(known: &str) -> Problem {
    let detail = format!("Accept allows none of the formats that there are: {known}. Allow one of them.");
    Problem::new(StatusCode::NOT_ACCEPTABLE, detail)
}
