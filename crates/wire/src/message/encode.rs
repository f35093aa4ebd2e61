//! Encoding of messages.

use super::fields::{put_head, put_heartbeat_payload, put_key, put_meta, put_optional_key, put_u64};
use super::scan::{put_page_head, put_scan_request, put_snapshot};
use super::{ABSENT, DETAIL_BYTES_MAX, PRESENT, TIME_LEFT_SINCE, fault, kind, range_flag};
use bytes::Bytes;
use cluster::{
    Cut, Key, Message, PeerAnswer, PeerFault, PeerRequest, RangeAnswer, RangeRequest, ScanAnswer,
    ScanRequest, StoreFault,
};
use std::time::Duration;
use stdx::codec::put_version;
use stdx::{Cell, CellMeta, nanos};

/// Upper bound of the length of a message in bytes, without its keys, values and entries.
const FIXED_LEN_MAX: usize = 128;
/// Upper bound of the length of an entry of a range or page in bytes, without its key and value.
const ENTRY_LEN_MAX: usize = 40;

/// Upper bound of the length of `message` in bytes, close to the actual length.
pub(crate) fn len_max(message: &Message) -> usize {
    let variable = match message {
        Message::Request { request, .. } => match request {
            PeerRequest::ReadCell { key } | PeerRequest::ReadMeta { key } => key.as_bytes().len(),
            PeerRequest::KeepHints { key, .. } => key.as_bytes().len(),
            PeerRequest::Write { key, cell, .. } => key.as_bytes().len() + cell.value.len(),
            PeerRequest::Heartbeat(_) => 0,
            PeerRequest::Range(request) => key_len(request.after.as_ref()) + key_len(request.until.as_ref()),
            PeerRequest::Scan(request) => scan_request_len_max(request),
            PeerRequest::EndScan { .. } => 0,
        },
        Message::Answer { answer, .. } => match answer {
            PeerAnswer::Cell(cell) => cell.as_ref().map_or(0, |cell| cell.value.len()),
            PeerAnswer::Range(answer) => range_answer_len_max(answer),
            PeerAnswer::Failed(_) => DETAIL_BYTES_MAX,
            PeerAnswer::Scan(answer) => scan_answer_len_max(answer),
            PeerAnswer::Meta(_)
            | PeerAnswer::Written { .. }
            | PeerAnswer::ScanEnded
            | PeerAnswer::HintsKept
            | PeerAnswer::Heartbeat(_) => 0,
        },
    };
    FIXED_LEN_MAX + variable
}

fn key_len(key: Option<&Key>) -> usize {
    key.map_or(0, |key| key.as_bytes().len())
}

fn range_answer_len_max(answer: &RangeAnswer) -> usize {
    match answer {
        RangeAnswer::Same => 0,
        RangeAnswer::Versions { entries, until } => {
            let entries = entries.iter().map(|(key, _)| ENTRY_LEN_MAX + key.as_bytes().len());
            key_len(until.as_ref()) + entries.sum::<usize>()
        }
        RangeAnswer::Cells { entries, until } => {
            let entries =
                entries.iter().map(|(key, cell)| ENTRY_LEN_MAX + key.as_bytes().len() + cell.value.len());
            key_len(until.as_ref()) + entries.sum::<usize>()
        }
    }
}

fn cut_len(cut: Option<&Cut>) -> usize {
    key_len(cut.map(Cut::key))
}

fn scan_request_len_max(request: &ScanRequest) -> usize {
    cut_len(request.range.from.as_ref()) + cut_len(request.range.to.as_ref()) + request.roles.order.len()
}

fn scan_answer_len_max(answer: &ScanAnswer) -> usize {
    match answer {
        ScanAnswer::Page { page, rest } => {
            cut_len(rest.as_ref()) + page.len() * ENTRY_LEN_MAX + page.bytes().len()
        }
        ScanAnswer::Same => 0,
    }
}

/// The value or the bytes of a page at the end of `message`.
pub(crate) const fn tail(message: &Message) -> Option<&Bytes> {
    match message {
        Message::Request { request: PeerRequest::Write { cell, .. }, .. }
        | Message::Answer { answer: PeerAnswer::Cell(Some(cell)), .. } => Some(&cell.value),
        Message::Answer { answer: PeerAnswer::Scan(ScanAnswer::Page { page, .. }), .. } => Some(page.bytes()),
        _ => None,
    }
}

/// Appends `message` without its [`tail`] in this version of the protocol; returns the tail.
pub(crate) fn encode_head<'a>(out: &mut Vec<u8>, message: &'a Message, version: u8) -> Option<&'a Bytes> {
    match message {
        Message::Request { id, request, within } => {
            let kind = match request {
                PeerRequest::ReadCell { .. } => kind::READ_CELL,
                PeerRequest::ReadMeta { .. } => kind::READ_META,
                PeerRequest::Write { .. } => kind::WRITE,
                PeerRequest::KeepHints { .. } => kind::KEEP_HINTS,
                PeerRequest::Heartbeat(_) => kind::HEARTBEAT,
                PeerRequest::Range(_) => kind::RANGE,
                PeerRequest::Scan(_) => kind::SCAN,
                PeerRequest::EndScan { .. } => kind::END_SCAN,
            };
            put_head(out, kind, *id);
            if version >= TIME_LEFT_SINCE {
                put_time_left(out, *within);
            }
            put_request(out, request, version);
        }
        Message::Answer { id, answer } => {
            let kind = match answer {
                PeerAnswer::Cell(_) => kind::CELL,
                PeerAnswer::Meta(_) => kind::META,
                PeerAnswer::Written { .. } => kind::WRITTEN,
                PeerAnswer::HintsKept => kind::HINTS_KEPT,
                PeerAnswer::Heartbeat(_) => kind::HEARTBEAT_ANSWER,
                PeerAnswer::Range(RangeAnswer::Same) => kind::RANGE_SAME,
                PeerAnswer::Range(RangeAnswer::Versions { .. }) => kind::RANGE_VERSIONS,
                PeerAnswer::Range(RangeAnswer::Cells { .. }) => kind::RANGE_CELLS,
                PeerAnswer::Failed(_) => kind::FAILED,
                PeerAnswer::Scan(ScanAnswer::Page { .. }) => kind::SCAN_PAGE,
                PeerAnswer::Scan(ScanAnswer::Same) => kind::SCAN_SAME,
                PeerAnswer::ScanEnded => kind::SCAN_ENDED,
            };
            put_head(out, kind, *id);
            put_answer(out, answer, version);
        }
    }
    tail(message)
}

/// Appends the remaining time, rounded up to milliseconds so that no request is dropped early.
fn put_time_left(out: &mut Vec<u8>, within: Option<Duration>) {
    let millis =
        within.map_or(0, |within| within.as_nanos().div_ceil(1_000_000).clamp(1, u128::from(u32::MAX)));
    put_count(out, millis as usize);
}

fn put_request(out: &mut Vec<u8>, request: &PeerRequest, version: u8) {
    match request {
        PeerRequest::ReadCell { key } | PeerRequest::ReadMeta { key } => put_key(out, key),
        PeerRequest::Write { key, cell, hints } => {
            put_key(out, key);
            put_u64(out, hints.to_bits());
            put_meta(out, &cell.meta);
        }
        PeerRequest::KeepHints { key, version, targets } => {
            put_key(out, key);
            put_version(out, *version);
            put_u64(out, targets.to_bits());
        }
        PeerRequest::Heartbeat(heartbeat_payload) => put_heartbeat_payload(out, heartbeat_payload, version),
        PeerRequest::Range(request) => put_range_request(out, request),
        PeerRequest::Scan(request) => put_scan_request(out, request),
        PeerRequest::EndScan { snapshot } => put_snapshot(out, *snapshot),
    }
}

fn put_range_request(out: &mut Vec<u8>, request: &RangeRequest) {
    let digest = if request.digest.is_some() { range_flag::DIGEST } else { 0 };
    let cells = if request.cells { range_flag::CELLS } else { 0 };
    out.push(digest | cells);
    put_u64(out, request.cutoff.to_bits());
    if let Some(digest) = request.digest {
        put_u64(out, digest.keys);
        put_u64(out, digest.sum);
    }
    put_optional_key(out, request.after.as_ref());
    put_optional_key(out, request.until.as_ref());
}

fn put_answer(out: &mut Vec<u8>, answer: &PeerAnswer, version: u8) {
    match answer {
        PeerAnswer::Cell(None) | PeerAnswer::Meta(None) => out.push(ABSENT),
        PeerAnswer::Cell(Some(cell)) => {
            out.push(PRESENT);
            put_meta(out, &cell.meta);
        }
        PeerAnswer::Meta(Some(meta)) => {
            out.push(PRESENT);
            put_meta(out, meta);
        }
        PeerAnswer::Written { superseded } => out.push(u8::from(*superseded)),
        PeerAnswer::HintsKept
        | PeerAnswer::Range(RangeAnswer::Same)
        | PeerAnswer::Scan(ScanAnswer::Same)
        | PeerAnswer::ScanEnded => {}
        PeerAnswer::Heartbeat(heartbeat_payload) => put_heartbeat_payload(out, heartbeat_payload, version),
        PeerAnswer::Range(RangeAnswer::Versions { entries, until }) => {
            put_versions(out, entries, until.as_ref());
        }
        PeerAnswer::Range(RangeAnswer::Cells { entries, until }) => {
            put_cells(out, entries, until.as_ref());
        }
        PeerAnswer::Scan(ScanAnswer::Page { page, rest }) => put_page_head(out, page, rest.as_ref()),
        PeerAnswer::Failed(fault) => put_fault(out, fault, version),
    }
}

fn put_versions(out: &mut Vec<u8>, entries: &[(Key, CellMeta)], until: Option<&Key>) {
    put_optional_key(out, until);
    put_count(out, entries.len());
    for (key, meta) in entries {
        put_key(out, key);
        put_meta(out, meta);
    }
}

fn put_cells(out: &mut Vec<u8>, entries: &[(Key, Cell)], until: Option<&Key>) {
    put_optional_key(out, until);
    put_count(out, entries.len());
    for (key, cell) in entries {
        put_key(out, key);
        put_meta(out, &cell.meta);
        put_count(out, cell.value.len());
        out.extend_from_slice(&cell.value);
    }
}

/// Appends a count that fits a `u32`: of entries or bytes, which a message bounds, or of
/// milliseconds.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_fault(out: &mut Vec<u8>, peer_fault: &PeerFault, version: u8) {
    match peer_fault {
        // Earlier versions have no such fault; `Busy` is the closest one.
        PeerFault::Store(StoreFault::Expired) if version < TIME_LEFT_SINCE => out.push(fault::BUSY),
        PeerFault::Store(StoreFault::Expired) => out.push(fault::STORE_EXPIRED),
        PeerFault::Store(StoreFault::Full) => out.push(fault::STORE_FULL),
        PeerFault::Store(StoreFault::Overloaded { retry_after }) => {
            out.push(fault::STORE_OVERLOADED);
            put_u64(out, nanos(*retry_after));
        }
        PeerFault::Store(StoreFault::Corrupt { detail }) => put_detail(out, fault::STORE_CORRUPT, detail),
        PeerFault::Store(StoreFault::Io { detail }) => put_detail(out, fault::STORE_IO, detail),
        PeerFault::NotReadEligible => out.push(fault::NOT_READ_ELIGIBLE),
        PeerFault::ClockAhead { wall } => {
            out.push(fault::CLOCK_AHEAD);
            put_u64(out, wall.micros_since_unix_epoch());
        }
        PeerFault::Busy => out.push(fault::BUSY),
        PeerFault::NotServing => out.push(fault::NOT_SERVING),
    }
}

/// Appends a fault with its text, truncated to the limit.
fn put_detail(out: &mut Vec<u8>, fault: u8, detail: &str) {
    out.push(fault);
    out.extend_from_slice(&detail.as_bytes()[..detail.floor_char_boundary(DETAIL_BYTES_MAX)]);
}
