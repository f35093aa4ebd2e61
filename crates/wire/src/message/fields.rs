//! Encoding and decoding of the fields that several messages share.

use super::{ABSENT, PRESENT};
use crate::WireError;
use bytes::Bytes;
use cluster::{Cut, Incarnation, Key, MessageId, Requester, SyncState};
use stdx::codec::{Reader, put_version};
use stdx::{CellKind, CellMeta, Version, WallTime};

/// Bits of the first byte of a cell.
mod cell_flag {
    pub(super) const TOMBSTONE: u8 = 1 << 0;
    pub(super) const EXPIRES: u8 = 1 << 1;
    pub(super) const ALL: u8 = TOMBSTONE | EXPIRES;
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Length of a message's kind and id in bytes.
const HEAD_LEN: usize = 19;

/// Appends the kind of a message and the id of its request.
pub(super) fn put_head(out: &mut Vec<u8>, kind: u8, id: MessageId) {
    let requester = requester_to_number(id.requester).to_le_bytes();
    let mut head = [0; HEAD_LEN];
    head[0] = kind;
    head[1..9].copy_from_slice(&id.incarnation.0.to_le_bytes());
    head[9..11].copy_from_slice(&requester);
    head[11..].copy_from_slice(&id.number.to_le_bytes());
    out.extend_from_slice(&head);
}

pub(super) fn head(reader: &mut Reader<'_>) -> Result<(u8, MessageId), WireError> {
    let kind = reader.u8()?;
    let incarnation = Incarnation(reader.u64()?);
    let requester = requester_from_number(reader.u16()?).ok_or(WireError::Field { field: "requester" })?;
    Ok((kind, MessageId { incarnation, requester, number: reader.u64()? }))
}

/// Encodes a requester: 0 for the `Node`, 1 and more for the `Coordinator`s.
pub(crate) fn requester_to_number(requester: Requester) -> u16 {
    match requester {
        Requester::Node => 0,
        Requester::Coordinator(number) => u16::from(number) + 1,
    }
}

pub(crate) fn requester_from_number(number: u16) -> Option<Requester> {
    match number.checked_sub(1) {
        None => Some(Requester::Node),
        Some(number) => u8::try_from(number).ok().map(Requester::Coordinator),
    }
}

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_key_bytes(out, key.as_bytes());
}

/// Appends an optional key. Since no key is empty, the length 0 means none.
pub(super) fn put_optional_key(out: &mut Vec<u8>, key: Option<&Key>) {
    put_key_bytes(out, key.map_or(&[], Key::as_bytes));
}

fn put_key_bytes(out: &mut Vec<u8>, key: &[u8]) {
    const { assert!(Key::LEN_MAX <= u16::MAX as usize) };
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
}

pub(super) fn key(reader: &mut Reader<'_>) -> Result<Key, WireError> {
    optional_key(reader)?.ok_or(WireError::Field { field: "key" })
}

pub(super) fn optional_key(reader: &mut Reader<'_>) -> Result<Option<Key>, WireError> {
    let len = usize::from(reader.u16()?);
    if len > Key::LEN_MAX {
        return Err(WireError::Field { field: "key" });
    }
    let bytes = reader.bytes(len)?;
    Ok(Key::new(Bytes::copy_from_slice(bytes)).ok())
}

/// Minimum length of an encoded [`CellMeta`] in bytes.
pub(super) const META_LEN_MIN: usize = 2 + Version::ENCODED_LEN;

pub(super) fn put_meta(out: &mut Vec<u8>, meta: &CellMeta) {
    let tombstone = if meta.kind == CellKind::Tombstone { cell_flag::TOMBSTONE } else { 0 };
    let expires = if meta.expires_at.is_some() { cell_flag::EXPIRES } else { 0 };
    out.extend_from_slice(&[tombstone | expires, meta.from]);
    put_version(out, meta.version);
    if let Some(expires_at) = meta.expires_at {
        put_u64(out, expires_at.micros_since_unix_epoch());
    }
}

pub(super) fn meta(reader: &mut Reader<'_>) -> Result<CellMeta, WireError> {
    let flags = reader.u8()?;
    if flags & !cell_flag::ALL != 0 {
        return Err(WireError::Field { field: "kind of cell" });
    }
    let kind = if flags & cell_flag::TOMBSTONE == 0 { CellKind::Value } else { CellKind::Tombstone };
    let from = reader.u8()?;
    if from == 0 {
        return Err(WireError::Field { field: "count of replicas" });
    }
    let version = reader.version()?;
    let expires_at = match flags & cell_flag::EXPIRES {
        0 => None,
        _ => Some(wall(reader)?),
    };
    Ok(CellMeta { version, kind, expires_at, from })
}

/// Decodes whether an optional field is present.
pub(super) fn is_present(reader: &mut Reader<'_>) -> Result<bool, WireError> {
    match reader.u8()? {
        ABSENT => Ok(false),
        PRESENT => Ok(true),
        _ => Err(WireError::Field { field: "presence of a cell" }),
    }
}

pub(super) fn wall(reader: &mut Reader<'_>) -> Result<WallTime, WireError> {
    Ok(WallTime::from_micros_since_unix_epoch(reader.u64()?))
}

pub(crate) fn sync_state_to_number(sync_state: SyncState) -> u8 {
    match sync_state {
        SyncState::Unsettled => 0,
        SyncState::Rebuilding => 1,
        SyncState::Settled => 2,
    }
}

pub(crate) fn sync_state_from_number(number: u8) -> Option<SyncState> {
    match number {
        0 => Some(SyncState::Unsettled),
        1 => Some(SyncState::Rebuilding),
        2 => Some(SyncState::Settled),
        _ => None,
    }
}

/// Appends a count that fits a `u32`: of entries or bytes, which a message bounds, or of
/// milliseconds.
pub(super) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

/// Length of the bytes of an optional key.
pub(super) fn key_len(key: Option<&Key>) -> usize {
    key.map_or(0, |key| key.as_bytes().len())
}

/// Length of the key of an optional cut.
pub(super) fn cut_len(cut: Option<&Cut>) -> usize {
    key_len(cut.map(Cut::key))
}
