//! The bytes of a record, as `docs/storage-format/layout.md` pins them.

use super::{
    ClusterId, FEATURE_LEVEL_PLANS, FORMER_IDS_MAX, LayoutEpoch, LayoutMember, LayoutRecord,
    LayoutRecordError, MemberState, PairSwap, RateLimit, RecordHash, RunningPlan, SWAPS_MAX, SwapPhase,
    URL_BYTES_MAX, ZONE_BYTES_MAX,
};
use crate::layout::{NODES_MAX, NodeIndex, PartitionId};
use stdx::NodeTag;
use stdx::codec::{Reader, Truncated, put_varint};

/// Longest record that is decoded, in bytes: more than the largest one of this release with the
/// default number of partitions.
pub const LAYOUT_RECORD_BYTES_MAX: usize = 8 << 20;

const MAGIC: [u8; 8] = *b"vechelay";
/// Version of the format of records that have no plans.
const FORMAT_FIRST: u32 = 1;
/// Version of the format of records that may have a plan and have former ids.
const FORMAT_PLANS: u32 = 2;
/// Length of the checksum at the end.
const CHECKSUM_LEN: usize = 4;
/// With more members, their positions in preference lists have two bytes.
const NARROW_MEMBERS_MAX: usize = 1 << 8;

const ACTIVE: u8 = 1;
const JOINING: u8 = 2;
const LEAVING: u8 = 3;
const DEAD: u8 = 4;

/// Version of the format of a running plan.
const PLAN_FORMAT: u8 = 1;
/// Bits of the flags of a running plan.
const PAUSED: u8 = 1 << 0;
const HAS_TARGET: u8 = 1 << 1;
const HAS_RATE_LIMIT: u8 = 1 << 2;
const PREPARE: u8 = 1;
const READ_NEW: u8 = 2;
const BACK: u8 = 3;
const NEW: u8 = 4;

/// The reason why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutDecodeError {
    /// The bytes do not begin like a record.
    #[error("they do not begin like a layout record")]
    Magic,
    /// The record has another format.
    #[error(
        "the record has format {format}, and this release reads formats {FORMAT_FIRST} and {FORMAT_PLANS}"
    )]
    Format {
        /// Format of the record.
        format: u32,
    },
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// The bytes end inside of the record, or continue after it.
    #[error("the record is cut short, or bytes follow it")]
    Length,
    /// A field is out of bounds.
    #[error("the field {field} is out of bounds")]
    Field {
        /// Name of the field.
        field: &'static str,
    },
    /// The record has a running plan in another format, which a later release has made.
    #[error("the record has a running plan, which this release does not know: upgrade this node")]
    Plan,
    /// The record breaks a constraint.
    #[error(transparent)]
    Record(#[from] LayoutRecordError),
}

impl From<Truncated> for LayoutDecodeError {
    fn from(Truncated: Truncated) -> Self {
        Self::Length
    }
}

impl LayoutRecord {
    /// SHA-256 of the encoded record.
    pub fn hash(&self) -> RecordHash {
        RecordHash::of(&self.encode())
    }

    /// Encodes the record.
    ///
    /// # Panics
    /// If a slot is not below [`NODES_MAX`], which [`LayoutRecord::check`] refuses.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1_024 + self.lists.len() + 2 * self.changed.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.format().to_le_bytes());
        out.extend_from_slice(&self.cluster.0);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.parent.0);
        out.extend_from_slice(&self.feature_level.to_le_bytes());
        out.extend_from_slice(&self.hash_version.to_le_bytes());
        out.push(self.default_from);
        out.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        self.members.iter().for_each(|member| put_member(&mut out, member));
        out.push(self.voters.len() as u8);
        self.voters.iter().for_each(|voter| put_slot(&mut out, *voter));
        if self.format() == FORMAT_PLANS {
            out.extend_from_slice(&(self.former_ids.len() as u16).to_le_bytes());
            self.former_ids.iter().for_each(|id| out.extend_from_slice(&id.0.to_le_bytes()));
        }
        out.extend_from_slice(&self.partitions().to_le_bytes());
        self.put_lists(&mut out);
        self.changed.iter().for_each(|epoch| put_varint(&mut out, epoch.0));
        let plan = self.plan.as_ref().map_or_else(Vec::new, |plan| self.encode_plan(plan));
        out.extend_from_slice(&(plan.len() as u32).to_le_bytes());
        out.extend_from_slice(&plan);
        let checksum = crc_fast::crc32_iscsi(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Version of the format of this record.
    const fn format(&self) -> u32 {
        if self.feature_level >= FEATURE_LEVEL_PLANS { FORMAT_PLANS } else { FORMAT_FIRST }
    }

    fn put_lists(&self, out: &mut Vec<u8>) {
        let positions = self.positions();
        out.extend(self.lists.iter().map(|slot| positions[slot.as_usize()]));
    }

    /// The position in the list of members, by slot.
    fn positions(&self) -> [u8; NODES_MAX] {
        let mut positions = [0_u8; NODES_MAX];
        for (position, member) in self.members.iter().enumerate() {
            positions[member.slot.as_usize()] = position as u8;
        }
        positions
    }

    fn encode_plan(&self, plan: &RunningPlan) -> Vec<u8> {
        let positions = self.positions();
        let paused = if plan.is_paused { PAUSED } else { 0 };
        let has_target = if plan.target.is_empty() { 0 } else { HAS_TARGET };
        let has_rate_limit = if plan.rate_limit.is_some() { HAS_RATE_LIMIT } else { 0 };
        let mut out = vec![PLAN_FORMAT, paused | has_target | has_rate_limit];
        put_varint(&mut out, plan.began.0);
        plan.rate_limit.iter().for_each(|limit| put_varint(&mut out, limit.bytes_per_second()));
        put_varint(&mut out, plan.swaps.len() as u64);
        for PairSwap { loser, gainer, phase, attempt, since, partitions } in &plan.swaps {
            out.extend([loser, gainer].map(|slot| positions[slot.as_usize()]));
            out.push(match phase {
                SwapPhase::Prepare => PREPARE,
                SwapPhase::ReadNew => READ_NEW,
                SwapPhase::Back => BACK,
                SwapPhase::New => NEW,
            });
            put_varint(&mut out, attempt.0);
            put_varint(&mut out, since.0);
            put_varint(&mut out, partitions.len() as u64);
            let mut next = 0;
            for PartitionId(partition) in partitions {
                put_varint(&mut out, u64::from(partition.wrapping_sub(next)));
                next = partition.wrapping_add(1);
            }
        }
        out.extend(plan.target.iter().map(|slot| positions[slot.as_usize()]));
        out
    }

    /// Decodes and checks a record.
    ///
    /// # Errors
    /// [`LayoutDecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutDecodeError> {
        let (content, checksum) =
            bytes.split_last_chunk::<CHECKSUM_LEN>().ok_or(LayoutDecodeError::Length)?;
        let mut reader = Reader::new(content);
        if reader.array()? != MAGIC {
            return Err(LayoutDecodeError::Magic);
        }
        let format = reader.u32()?;
        if ![FORMAT_FIRST, FORMAT_PLANS].contains(&format) {
            return Err(LayoutDecodeError::Format { format });
        }
        if crc_fast::crc32_iscsi(content).to_le_bytes() != *checksum {
            return Err(LayoutDecodeError::Checksum);
        }
        let record = decode_fields(&mut reader, format)?;
        if !reader.is_empty() {
            return Err(LayoutDecodeError::Length);
        }
        record.check()?;
        match record.format() == format {
            true => Ok(record),
            false => Err(LayoutDecodeError::Field { field: "format version" }),
        }
    }
}

fn put_slot(out: &mut Vec<u8>, slot: NodeIndex) {
    out.extend_from_slice(&u16::from(slot.0).to_le_bytes());
}

fn put_member(out: &mut Vec<u8>, member: &LayoutMember) {
    let LayoutMember { slot, node_id, url, zone, weight, state } = member;
    put_slot(out, *slot);
    out.extend_from_slice(&node_id.map_or(0, |NodeTag(tag)| tag).to_le_bytes());
    out.extend_from_slice(&weight.to_le_bytes());
    out.push(match state {
        MemberState::Active => ACTIVE,
        MemberState::Joining => JOINING,
        MemberState::Leaving => LEAVING,
        MemberState::Dead => DEAD,
    });
    out.extend_from_slice(&(url.len() as u16).to_le_bytes());
    out.extend_from_slice(url.as_bytes());
    out.push(zone.len() as u8);
    out.extend_from_slice(zone.as_bytes());
}

fn decode_fields(reader: &mut Reader<'_>, format: u32) -> Result<LayoutRecord, LayoutDecodeError> {
    let cluster = ClusterId(reader.array()?);
    let epoch = LayoutEpoch(reader.u64()?);
    let parent = RecordHash(reader.array()?);
    let (feature_level, hash_version) = (reader.u32()?, reader.u32()?);
    let default_from = reader.u8()?;
    let count = usize::from(reader.u16()?);
    if count > NODES_MAX {
        return Err(LayoutRecordError::MemberCount { members: count }.into());
    }
    let members = (0..count).map(|_| member(reader)).collect::<Result<Vec<_>, _>>()?;
    let voters = reader.u8()?;
    let voters = (0..voters).map(|_| slot(reader)).collect::<Result<_, _>>()?;
    let former_ids = if format == FORMAT_PLANS { former_ids(reader)? } else { Vec::new() };
    let partitions = reader.u32()? as usize;
    if partitions > super::verify::PARTITIONS_MAX {
        return Err(LayoutRecordError::Partitions { partitions }.into());
    }
    let lists = lists(reader, &members, partitions)?;
    let changed = (0..partitions).map(|_| epoch_of_change(reader)).collect::<Result<_, _>>()?;
    let plan = match reader.u32()? as usize {
        0 => None,
        len => {
            let target_len = partitions * usize::from(default_from);
            Some(plan(&mut Reader::new(reader.bytes(len)?), &members, target_len)?)
        }
    };
    Ok(LayoutRecord {
        cluster,
        epoch,
        parent,
        feature_level,
        hash_version,
        default_from,
        members,
        voters,
        former_ids,
        changed,
        lists,
        plan,
    })
}

fn member(reader: &mut Reader<'_>) -> Result<LayoutMember, LayoutDecodeError> {
    let slot = slot(reader)?;
    let node_id = Some(NodeTag(reader.u64()?)).filter(|node_id| *node_id != NodeTag(0));
    let weight = reader.u16()?;
    let state = match reader.u8()? {
        ACTIVE => MemberState::Active,
        JOINING => MemberState::Joining,
        LEAVING => MemberState::Leaving,
        DEAD => MemberState::Dead,
        _ => return Err(LayoutDecodeError::Field { field: "state" }),
    };
    let url_len = usize::from(reader.u16()?);
    let url = text(reader, "URL", url_len, URL_BYTES_MAX)?;
    let zone_len = usize::from(reader.u8()?);
    let zone = text(reader, "zone", zone_len, ZONE_BYTES_MAX)?;
    Ok(LayoutMember { slot, node_id, url, zone, weight, state })
}

fn former_ids(reader: &mut Reader<'_>) -> Result<Vec<NodeTag>, LayoutDecodeError> {
    let count = usize::from(reader.u16()?);
    if count > FORMER_IDS_MAX {
        return Err(LayoutRecordError::FormerIds.into());
    }
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(NodeTag(reader.u64()?));
    }
    Ok(ids)
}

fn slot(reader: &mut Reader<'_>) -> Result<NodeIndex, LayoutDecodeError> {
    let slot = u8::try_from(reader.u16()?).ok().filter(|slot| usize::from(*slot) < NODES_MAX);
    slot.map(NodeIndex).ok_or(LayoutDecodeError::Field { field: "slot" })
}

fn text(
    reader: &mut Reader<'_>,
    field: &'static str,
    len: usize,
    len_max: usize,
) -> Result<String, LayoutDecodeError> {
    if len > len_max {
        return Err(LayoutDecodeError::Field { field });
    }
    let bytes = reader.bytes(len)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| LayoutDecodeError::Field { field })
}

/// Decodes preference lists: positions in the list of members.
fn lists(
    reader: &mut Reader<'_>,
    members: &[LayoutMember],
    partitions: usize,
) -> Result<Vec<NodeIndex>, LayoutDecodeError> {
    const { assert!(NODES_MAX <= NARROW_MEMBERS_MAX, "two bytes for each position") };
    slots_at(reader.bytes(partitions * members.len())?, members)
        .ok_or(LayoutDecodeError::Field { field: "preference list" })
}

/// The slots of the members at these positions.
fn slots_at(positions: &[u8], members: &[LayoutMember]) -> Option<Vec<NodeIndex>> {
    positions.iter().map(|position| members.get(usize::from(*position)).map(|member| member.slot)).collect()
}

fn epoch_of_change(reader: &mut Reader<'_>) -> Result<LayoutEpoch, LayoutDecodeError> {
    varint(reader, "epoch of a partition").map(LayoutEpoch)
}

/// Decodes a varint, which must have its shortest form: equal records have equal bytes.
fn varint(reader: &mut Reader<'_>, field: &'static str) -> Result<u64, LayoutDecodeError> {
    let len = reader.rest().len();
    let value = reader.varint()?;
    match len - reader.rest().len() == stdx::codec::varint_len(value) {
        true => Ok(value),
        false => Err(LayoutDecodeError::Field { field }),
    }
}

/// Decodes a running plan, which extends to the end of `reader`. `target_len`: length of its
/// target, if it has one.
fn plan(
    reader: &mut Reader<'_>,
    members: &[LayoutMember],
    target_len: usize,
) -> Result<RunningPlan, LayoutDecodeError> {
    if reader.u8()? != PLAN_FORMAT {
        return Err(LayoutDecodeError::Plan);
    }
    let flags = reader.u8()?;
    if flags & !(PAUSED | HAS_TARGET | HAS_RATE_LIMIT) != 0 {
        return Err(LayoutDecodeError::Field { field: "flags of a plan" });
    }
    let began = LayoutEpoch(varint(reader, "epoch of a plan")?);
    let rate_limit = match flags & HAS_RATE_LIMIT {
        0 => None,
        _ => Some(rate_limit(reader)?),
    };
    let count = varint(reader, "number of swaps")?;
    if count > SWAPS_MAX as u64 {
        return Err(LayoutRecordError::PlanBounds.into());
    }
    let swaps = (0..count).map(|_| pair_swap(reader, members)).collect::<Result<_, _>>()?;
    let target_len = if flags & HAS_TARGET != 0 { target_len } else { 0 };
    let target = slots_at(reader.bytes(target_len)?, members)
        .ok_or(LayoutDecodeError::Field { field: "target of a plan" })?;
    match reader.is_empty() {
        true => Ok(RunningPlan { began, is_paused: flags & PAUSED != 0, rate_limit, target, swaps }),
        false => Err(LayoutDecodeError::Length),
    }
}

fn rate_limit(reader: &mut Reader<'_>) -> Result<RateLimit, LayoutDecodeError> {
    const FIELD: &str = "rate limit of a plan";
    RateLimit::new(varint(reader, FIELD)?).ok_or(LayoutDecodeError::Field { field: FIELD })
}

fn pair_swap(reader: &mut Reader<'_>, members: &[LayoutMember]) -> Result<PairSwap, LayoutDecodeError> {
    let mut slot = || {
        let member = members.get(usize::from(reader.u8()?));
        member.map(|member| member.slot).ok_or(LayoutDecodeError::Field { field: "member of a swap" })
    };
    let (loser, gainer) = (slot()?, slot()?);
    let phase = match reader.u8()? {
        PREPARE => SwapPhase::Prepare,
        READ_NEW => SwapPhase::ReadNew,
        BACK => SwapPhase::Back,
        NEW => SwapPhase::New,
        _ => return Err(LayoutDecodeError::Field { field: "phase of a swap" }),
    };
    let attempt = LayoutEpoch(varint(reader, "epoch of a swap")?);
    let since = LayoutEpoch(varint(reader, "epoch of a swap")?);
    let count = varint(reader, "partitions of a swap")?;
    // Each partition has at least one byte.
    if count > reader.rest().len() as u64 {
        return Err(LayoutDecodeError::Length);
    }
    let mut partitions = Vec::with_capacity(count as usize);
    let mut next = 0_u64;
    for _ in 0..count {
        let partition = next.saturating_add(varint(reader, "partition of a swap")?);
        let id = u32::try_from(partition).map_err(|_| LayoutDecodeError::Field { field: "partition" })?;
        partitions.push(PartitionId(id));
        next = u64::from(id) + 1;
    }
    Ok(PairSwap { loser, gainer, phase, attempt, since, partitions })
}
