//! Fields that several messages have, both ways.

use super::{ABSENT, LIVES_SINCE, PRESENT, cell_flag, vitals_flag};
use crate::WireError;
use bytes::Bytes;
use cluster::{Asker, Incarnation, Key, Life, LifeNow, MessageId, Standing, Vitals};
use std::num::NonZeroU8;
use stdx::codec::{Reader, put_version};
use stdx::{CellKind, CellMeta, Hlc, Instant, NodeTag, Version, WallTime};

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Length of a message's kind and id, in bytes.
const HEAD_LEN: usize = 19;

/// Appends the kind of a message and the id of its request.
pub(super) fn put_head(out: &mut Vec<u8>, kind: u8, id: MessageId) {
    let asker = asker_to_number(id.asker).to_le_bytes();
    let mut head = [0; HEAD_LEN];
    head[0] = kind;
    head[1..9].copy_from_slice(&id.incarnation.0.to_le_bytes());
    head[9..11].copy_from_slice(&asker);
    head[11..].copy_from_slice(&id.number.to_le_bytes());
    out.extend_from_slice(&head);
}

pub(super) fn head(reader: &mut Reader<'_>) -> Result<(u8, MessageId), WireError> {
    let kind = reader.u8()?;
    let incarnation = Incarnation(reader.u64()?);
    let asker = asker_of_number(reader.u16()?).ok_or(WireError::Field { field: "asker" })?;
    Ok((kind, MessageId { incarnation, asker, number: reader.u64()? }))
}

/// 0 is the `Node`, the others are `Coordinator`s.
pub(crate) fn asker_to_number(asker: Asker) -> u16 {
    match asker {
        Asker::Node => 0,
        Asker::Coordinator(number) => u16::from(number) + 1,
    }
}

pub(crate) fn asker_of_number(number: u16) -> Option<Asker> {
    match number.checked_sub(1) {
        None => Some(Asker::Node),
        Some(number) => u8::try_from(number).ok().map(Asker::Coordinator),
    }
}

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_key_bytes(out, key.as_bytes());
}

/// A key that may be absent: no key is empty.
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

/// The least length of a [`CellMeta`], in bytes.
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

/// Whether something follows that may be absent.
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

pub(super) fn put_vitals(out: &mut Vec<u8>, vitals: &Vitals, version: u8) {
    let remembered_life = vitals.remembered_life_of_you.filter(|_| version >= LIVES_SINCE);
    let mut flags = standing_to_number(vitals.standing);
    flags |= if vitals.draining { vitals_flag::DRAINING } else { 0 };
    flags |= if vitals.disk_full { vitals_flag::DISK_FULL } else { 0 };
    flags |= if vitals.repair_owed { vitals_flag::REPAIR_OWED } else { 0 };
    flags |= if vitals.remembered_tag_of_you.is_some() { vitals_flag::REMEMBERS_TAG } else { 0 };
    flags |= if remembered_life.is_some() { vitals_flag::REMEMBERS_LIFE } else { 0 };
    out.push(flags);
    put_u64(out, vitals.sent.as_nanos());
    put_u64(out, vitals.wall.micros_since_unix_epoch());
    put_u64(out, vitals.hints_for_you);
    if let Some(NodeTag(tag)) = vitals.remembered_tag_of_you {
        put_u64(out, tag);
    }
    if version >= LIVES_SINCE {
        out.push(vitals.default_from.map_or(0, NonZeroU8::get));
        put_u64(out, vitals.life.map_or(0, |life| life.number));
        put_u64(out, vitals.life.map_or(0, |life| life.clock.to_bits()));
    }
    if let Some(Life { number, incarnation, clock }) = remembered_life {
        put_u64(out, number);
        put_u64(out, incarnation.0);
        put_u64(out, clock.to_bits());
    }
}

pub(super) fn vitals(reader: &mut Reader<'_>, version: u8) -> Result<Vitals, WireError> {
    let flags = reader.u8()?;
    let known = if version >= LIVES_SINCE { vitals_flag::ALL } else { vitals_flag::FIRST };
    if flags & !known != 0 {
        return Err(WireError::Field { field: "state of a node" });
    }
    let mut vitals = Vitals {
        sent: Instant::from_nanos(reader.u64()?),
        wall: wall(reader)?,
        standing: standing_of_number(flags & vitals_flag::STANDING)
            .ok_or(WireError::Field { field: "standing" })?,
        draining: flags & vitals_flag::DRAINING != 0,
        disk_full: flags & vitals_flag::DISK_FULL != 0,
        hints_for_you: reader.u64()?,
        repair_owed: flags & vitals_flag::REPAIR_OWED != 0,
        remembered_tag_of_you: match flags & vitals_flag::REMEMBERS_TAG {
            0 => None,
            _ => Some(NodeTag(reader.u64()?)),
        },
        remembered_life_of_you: None,
        life: None,
        default_from: None,
    };
    if version >= LIVES_SINCE {
        vitals.default_from = NonZeroU8::new(reader.u8()?);
        let (number, clock) = (reader.u64()?, Hlc::from_bits(reader.u64()?));
        vitals.life = (number > 0).then_some(LifeNow { number, clock });
        if vitals.life.is_none() && clock != Hlc::ZERO {
            return Err(WireError::Field { field: "life" });
        }
    }
    if flags & vitals_flag::REMEMBERS_LIFE != 0 {
        let number = reader.u64()?;
        let incarnation = Incarnation(reader.u64()?);
        let clock = Hlc::from_bits(reader.u64()?);
        vitals.remembered_life_of_you = Some(Life { number, incarnation, clock });
    }
    Ok(vitals)
}

pub(crate) fn standing_to_number(standing: Standing) -> u8 {
    match standing {
        Standing::Unsettled => 0,
        Standing::Rebuilding => 1,
        Standing::Settled => 2,
    }
}

pub(crate) fn standing_of_number(number: u8) -> Option<Standing> {
    match number {
        0 => Some(Standing::Unsettled),
        1 => Some(Standing::Rebuilding),
        2 => Some(Standing::Settled),
        _ => None,
    }
}
