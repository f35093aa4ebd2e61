//! Requests to a replica and its responses.

use super::decoder::Decoder;
use super::fields::{cut_len, is_present, meta, put_key, put_meta, put_u64};
use super::scan::{page, put_page_head, put_snapshot, snapshot};
use super::{ABSENT, ENTRY_LEN_MAX, Head, PRESENT};
use crate::WireError;
use bytes::Bytes;
use cluster::{NodeSet, ReplicaRequest, ReplicaResponse};
use stdx::CellMeta;
use stdx::codec::put_version;

mod kind {
    pub(super) const READ_CELL: u8 = 0x01;
    pub(super) const READ_META: u8 = 0x02;
    pub(super) const WRITE: u8 = 0x03;
    pub(super) const KEEP_HINTS: u8 = 0x04;
    pub(super) const END_SCAN: u8 = 0x08;

    pub(super) const CELL: u8 = 0x81;
    pub(super) const META: u8 = 0x82;
    pub(super) const WRITTEN: u8 = 0x83;
    pub(super) const HINTS_KEPT: u8 = 0x84;
    pub(super) const SCAN_PAGE: u8 = 0x89;
    pub(super) const SCAN_SAME: u8 = 0x8a;
    pub(super) const SCAN_ENDED: u8 = 0x8b;
}

pub(super) fn request_len_max(request: &ReplicaRequest) -> usize {
    match request {
        ReplicaRequest::Read { key } | ReplicaRequest::ReadMeta { key } => key.as_bytes().len(),
        ReplicaRequest::KeepHints { key, .. } => key.as_bytes().len(),
        ReplicaRequest::Write { key, cell, .. } => key.as_bytes().len() + cell.value.len(),
        ReplicaRequest::EndSnapshot { .. } => 0,
    }
}

pub(super) const fn request_tail(request: &ReplicaRequest) -> Option<&Bytes> {
    match request {
        ReplicaRequest::Write { cell, .. } => Some(&cell.value),
        _ => None,
    }
}

/// Appends a request without its tail.
pub(super) fn put_request(out: &mut Vec<u8>, head: Head, request: &ReplicaRequest) {
    match request {
        ReplicaRequest::Read { key } => {
            head.put(out, kind::READ_CELL);
            put_key(out, key);
        }
        ReplicaRequest::ReadMeta { key } => {
            head.put(out, kind::READ_META);
            put_key(out, key);
        }
        ReplicaRequest::Write { key, cell, hints } => {
            head.put(out, kind::WRITE);
            put_key(out, key);
            put_u64(out, hints.to_bits());
            put_meta(out, &cell.meta);
        }
        ReplicaRequest::KeepHints { key, version, targets } => {
            head.put(out, kind::KEEP_HINTS);
            put_key(out, key);
            put_version(out, *version);
            put_u64(out, targets.to_bits());
        }
        ReplicaRequest::EndSnapshot { id } => {
            head.put(out, kind::END_SCAN);
            put_snapshot(out, *id);
        }
    }
}

/// Decodes a request; `None`: it is of another family.
pub(super) fn request(kind: u8, from: &mut Decoder<'_>) -> Result<Option<ReplicaRequest>, WireError> {
    Ok(Some(match kind {
        kind::READ_CELL => ReplicaRequest::Read { key: from.key()? },
        kind::READ_META => ReplicaRequest::ReadMeta { key: from.key()? },
        kind::WRITE => {
            let key = from.key()?;
            let hints = NodeSet::from_bits(from.reader.u64()?);
            ReplicaRequest::Write { key, cell: from.last_cell()?, hints }
        }
        kind::KEEP_HINTS => {
            let key = from.key()?;
            let version = from.reader.version()?;
            ReplicaRequest::KeepHints { key, version, targets: NodeSet::from_bits(from.reader.u64()?) }
        }
        kind::END_SCAN => ReplicaRequest::EndSnapshot { id: snapshot(&mut from.reader)? },
        _ => return Ok(None),
    }))
}

pub(super) fn response_len_max(response: &ReplicaResponse) -> usize {
    match response {
        ReplicaResponse::Cell(cell) => cell.as_ref().map_or(0, |cell| cell.value.len()),
        ReplicaResponse::Page { page, rest } => {
            cut_len(rest.as_ref()) + page.len() * ENTRY_LEN_MAX + page.bytes().len()
        }
        ReplicaResponse::Meta(_)
        | ReplicaResponse::Written { .. }
        | ReplicaResponse::HintsKept
        | ReplicaResponse::SamePage
        | ReplicaResponse::SnapshotEnded => 0,
    }
}

pub(super) const fn response_tail(response: &ReplicaResponse) -> Option<&Bytes> {
    match response {
        ReplicaResponse::Cell(Some(cell)) => Some(&cell.value),
        ReplicaResponse::Page { page, .. } => Some(page.bytes()),
        _ => None,
    }
}

/// Appends a response without its tail.
pub(super) fn put_response(out: &mut Vec<u8>, head: Head, response: &ReplicaResponse) {
    match response {
        ReplicaResponse::Cell(cell) => {
            head.put(out, kind::CELL);
            put_optional_meta(out, cell.as_ref().map(|cell| &cell.meta));
        }
        ReplicaResponse::Meta(meta) => {
            head.put(out, kind::META);
            put_optional_meta(out, meta.as_ref());
        }
        ReplicaResponse::Written { superseded } => {
            head.put(out, kind::WRITTEN);
            out.push(u8::from(*superseded));
        }
        ReplicaResponse::HintsKept => head.put(out, kind::HINTS_KEPT),
        ReplicaResponse::Page { page, rest } => {
            head.put(out, kind::SCAN_PAGE);
            put_page_head(out, page, rest.as_ref());
        }
        ReplicaResponse::SamePage => head.put(out, kind::SCAN_SAME),
        ReplicaResponse::SnapshotEnded => head.put(out, kind::SCAN_ENDED),
    }
}

fn put_optional_meta(out: &mut Vec<u8>, meta: Option<&CellMeta>) {
    match meta {
        None => out.push(ABSENT),
        Some(meta) => {
            out.push(PRESENT);
            put_meta(out, meta);
        }
    }
}

/// Decodes a response; `None`: it is of another family.
pub(super) fn response(kind: u8, from: &mut Decoder<'_>) -> Result<Option<ReplicaResponse>, WireError> {
    Ok(Some(match kind {
        kind::CELL => ReplicaResponse::Cell(match is_present(&mut from.reader)? {
            true => Some(from.last_cell()?),
            false => None,
        }),
        kind::META => ReplicaResponse::Meta(match is_present(&mut from.reader)? {
            true => Some(meta(&mut from.reader)?),
            false => None,
        }),
        kind::WRITTEN => ReplicaResponse::Written {
            superseded: match from.reader.u8()? {
                0 => false,
                1 => true,
                _ => return Err(WireError::Field { field: "answer to a write" }),
            },
        },
        kind::HINTS_KEPT => ReplicaResponse::HintsKept,
        kind::SCAN_PAGE => {
            let (page, rest) = page(from)?;
            ReplicaResponse::Page { page, rest }
        }
        kind::SCAN_SAME => ReplicaResponse::SamePage,
        kind::SCAN_ENDED => ReplicaResponse::SnapshotEnded,
        _ => return Ok(None),
    }))
}
