//! Requests for parts of scans, and pages.
//!
//! A page is encoded as the heads of its entries, followed by its bytes in one piece. So a long
//! page is sent from its own memory, and its entries are slices of the received bytes.
//! [`Page::assemble`] checks the invariants of pages.

use super::decoder::Decoder;
use super::fields::{
    META_LEN_MIN, cut_len, key, meta, put_key, put_meta, put_u64, requester_from_number, requester_to_number,
    wall,
};
use super::{ABSENT, Head};
use crate::{MESSAGE_BYTES_MAX, WireError};
use cluster::{
    Cut, Incarnation, KeyRange, NODES_MAX, NodeIndex, NodeSet, Page, PageEntryHead, RangeDigest, ScanLimit,
    ScanRequest, ScanRoles, ScanTask, SnapshotId,
};
use stdx::codec::Reader;

/// Kind of the request for a part of a scan.
const SCAN: u8 = 0x07;

/// The first byte of a cut that is present.
mod cut_side {
    pub(super) const BEFORE: u8 = 1;
    pub(super) const AFTER: u8 = 2;
}

/// The first byte of a scan's task.
mod scan_task {
    pub(super) const CELLS: u8 = 0;
    pub(super) const CHECK: u8 = 1;
}

/// Minimum length of the head of a page entry in bytes.
const PAGE_ENTRY_HEAD_LEN_MIN: usize = META_LEN_MIN + 2 + 4;

pub(super) fn put_snapshot(out: &mut Vec<u8>, snapshot: SnapshotId) {
    put_u64(out, snapshot.incarnation.0);
    out.extend_from_slice(&requester_to_number(snapshot.requester).to_le_bytes());
    put_u64(out, snapshot.number);
}

pub(super) fn snapshot(reader: &mut Reader<'_>) -> Result<SnapshotId, WireError> {
    let incarnation = Incarnation(reader.u64()?);
    let requester = requester_from_number(reader.u16()?).ok_or(WireError::Field { field: "requester" })?;
    Ok(SnapshotId { incarnation, requester, number: reader.u64()? })
}

pub(super) fn request_len_max(request: &ScanRequest) -> usize {
    cut_len(request.range.from.as_ref()) + cut_len(request.range.to.as_ref()) + request.roles.order.len()
}

pub(super) fn put_request(out: &mut Vec<u8>, head: Head, request: &ScanRequest) {
    head.put(out, SCAN);
    put_snapshot(out, request.snapshot);
    put_cut(out, request.range.from.as_ref());
    put_cut(out, request.range.to.as_ref());
    put_roles(out, &request.roles);
    put_u64(out, request.at.micros_since_unix_epoch());
    put_u64(out, request.dead_since.micros_since_unix_epoch());
    match request.task {
        ScanTask::Cells { limit } => {
            out.push(scan_task::CELLS);
            put_bounded(out, limit.entries, u32::MAX as usize);
            put_bounded(out, limit.bytes, MESSAGE_BYTES_MAX);
        }
        ScanTask::Check { digest } => {
            out.push(scan_task::CHECK);
            put_u64(out, digest.keys);
            put_u64(out, digest.sum);
        }
    }
}

/// Decodes a request; `None`: it is of another family.
pub(super) fn request(kind: u8, from: &mut Decoder<'_>) -> Result<Option<ScanRequest>, WireError> {
    if kind != SCAN {
        return Ok(None);
    }
    let reader = &mut from.reader;
    Ok(Some(ScanRequest {
        snapshot: snapshot(reader)?,
        range: range(reader)?,
        roles: roles(reader)?,
        at: wall(reader)?,
        dead_since: wall(reader)?,
        task: task(reader)?,
    }))
}

fn task(reader: &mut Reader<'_>) -> Result<ScanTask, WireError> {
    match reader.u8()? {
        scan_task::CELLS => {
            let limit = ScanLimit { entries: reader.u32()? as usize, bytes: reader.u32()? as usize };
            match limit.bytes <= MESSAGE_BYTES_MAX {
                true => Ok(ScanTask::Cells { limit }),
                false => Err(WireError::Field { field: "limit of a page" }),
            }
        }
        scan_task::CHECK => {
            Ok(ScanTask::Check { digest: RangeDigest { keys: reader.u64()?, sum: reader.u64()? } })
        }
        _ => Err(WireError::Field { field: "task of a scan" }),
    }
}

/// Appends a bound, capped at `max`: a greater bound has no further effect.
fn put_bounded(out: &mut Vec<u8>, bound: usize, max: usize) {
    out.extend_from_slice(&(bound.min(max) as u32).to_le_bytes());
}

fn put_cut(out: &mut Vec<u8>, cut: Option<&Cut>) {
    match cut {
        None => out.push(ABSENT),
        Some(Cut::Before(key)) => {
            out.push(cut_side::BEFORE);
            put_key(out, key);
        }
        Some(Cut::After(key)) => {
            out.push(cut_side::AFTER);
            put_key(out, key);
        }
    }
}

fn cut(reader: &mut Reader<'_>) -> Result<Option<Cut>, WireError> {
    Ok(match reader.u8()? {
        ABSENT => None,
        cut_side::BEFORE => Some(Cut::Before(key(reader)?)),
        cut_side::AFTER => Some(Cut::After(key(reader)?)),
        _ => return Err(WireError::Field { field: "side of a cut" }),
    })
}

/// Decodes a range, which must not end before it begins.
fn range(reader: &mut Reader<'_>) -> Result<KeyRange, WireError> {
    let range = KeyRange { from: cut(reader)?, to: cut(reader)? };
    match (&range.from, &range.to) {
        (Some(from), Some(to)) if from > to => Err(WireError::Field { field: "range" }),
        _ => Ok(range),
    }
}

fn put_roles(out: &mut Vec<u8>, roles: &ScanRoles) {
    assert!(roles.order.len() <= NODES_MAX, "each node once");
    out.extend_from_slice(&[roles.ack, roles.from, roles.order.len() as u8]);
    out.extend(roles.order.iter().map(|node| node.0));
}

fn roles(reader: &mut Reader<'_>) -> Result<ScanRoles, WireError> {
    let [ack, from, count] = reader.array()?;
    let order: Vec<_> = reader.bytes(usize::from(count))?.iter().map(|node| NodeIndex(*node)).collect();
    let is_quorum = 1 <= ack && ack <= from && usize::from(from) <= NODES_MAX;
    match is_quorum && is_each_once(&order) {
        true => Ok(ScanRoles { order, ack, from }),
        false => Err(WireError::Field { field: "roles of a scan" }),
    }
}

/// Whether these are valid nodes without repetition.
fn is_each_once(nodes: &[NodeIndex]) -> bool {
    let mut seen = NodeSet::EMPTY;
    nodes.iter().all(|node| node.as_usize() < NODES_MAX && seen.insert(*node))
}

/// Appends an answer with a page, without the bytes of the page, which come last.
pub(super) fn put_page_head(out: &mut Vec<u8>, page: &Page, rest: Option<&Cut>) {
    put_cut(out, rest);
    out.extend_from_slice(&(page.len() as u32).to_le_bytes());
    for head in page.heads() {
        put_meta(out, &head.meta);
        out.extend_from_slice(&(head.key_len as u16).to_le_bytes());
        out.extend_from_slice(&(head.value_len as u32).to_le_bytes());
    }
}

/// Decodes an answer with a page, and the end of the part of the range that was read.
pub(super) fn page(from: &mut Decoder<'_>) -> Result<(Page, Option<Cut>), WireError> {
    let rest = cut(&mut from.reader)?;
    let count = from.count_of(PAGE_ENTRY_HEAD_LEN_MIN)?;
    let mut heads = Vec::with_capacity(count);
    for _ in 0..count {
        let meta = meta(&mut from.reader)?;
        let key_len = usize::from(from.reader.u16()?);
        heads.push(PageEntryHead { key_len, value_len: from.reader.u32()? as usize, meta });
    }
    let page = Page::assemble(from.tail()?, &heads).ok_or(WireError::Field { field: "page" })?;
    Ok((page, rest))
}

#[cfg(test)]
mod tests {
    use crate::message::{Encoding, decode_owned, encode_head};
    use bytes::Bytes;
    use cluster::{Incarnation, Message, MessageId, PageBuilder, PeerAnswer, ReplicaResponse, Requester};
    use stdx::{Cell, Version};

    #[test]
    fn a_page_is_a_slice_of_its_message() {
        let mut builder = PageBuilder::default();
        builder.push(b"key", Cell::value(Version::MIN, 1, Bytes::from_static(b"value")).as_ref());
        let answer = PeerAnswer::Replica(ReplicaResponse::Page { page: builder.finish(), rest: None });
        let id = MessageId { incarnation: Incarnation(1), requester: Requester::Node, number: 1 };
        let message = Message::Answer { id, answer };
        let mut head = Vec::new();
        let encoding = Encoding { version: crate::PROTOCOL_VERSION, is_fragmented: true };
        let tail = encode_head(&mut head, &message, encoding).expect("a page has bytes");
        let bytes = Bytes::from([&head[..], tail].concat());
        let arrived = decode_owned(&bytes, crate::PROTOCOL_VERSION).expect("a message");
        assert_eq!(arrived, message);
        let Message::Answer { answer: PeerAnswer::Replica(ReplicaResponse::Page { page, .. }), .. } = arrived
        else {
            panic!("another message arrived");
        };
        assert_eq!(page.bytes().as_ptr(), bytes[head.len()..].as_ptr());
    }
}
