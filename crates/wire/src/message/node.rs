//! Requests between the nodes of two processes and their responses.

use super::decoder::Decoder;
use super::fields::{
    META_LEN_MIN, is_present, key_len, meta, optional_key, put_count, put_key, put_meta, put_optional_key,
    put_u64, sync_state_from_number, sync_state_to_number, wall,
};
use super::{ABSENT, ENTRY_LEN_MAX, GENERATIONS_SINCE, Head, LAYOUT_SINCE, PLAN_SINCE, PRESENT};
use crate::{PROTOCOL_VERSION_MIN, WireError};
use bytes::Bytes;
use cluster::{
    ChainRequest, ChainResponse, ChainVote, CopyAnswer, CopyObstacle, CopyProgress, CopyRequest,
    EncodedRecord, Generation, GenerationReport, HeartbeatPayload, Incarnation, Key, LAYOUT_RECORD_BYTES_MAX,
    LayoutEpoch, LayoutStamp, NODES_MAX, NodeIndex, NodeRequest, NodeResponse, PlanStatements,
    ProposalBallot, RangeAnswer, RangeDigest, RangeRequest, SwapSet,
};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::codec::Reader;
use stdx::{Cell, CellMeta, Hlc, Instant, NodeTag, nanos};

mod kind {
    pub(super) const HEARTBEAT: u8 = 0x05;
    pub(super) const RANGE: u8 = 0x06;
    /// Since version 4, as the other kinds of the epoch chain.
    pub(super) const PREPARE: u8 = 0x09;
    pub(super) const ACCEPT: u8 = 0x0a;
    pub(super) const LEARN: u8 = 0x0b;
    pub(super) const READ_LAYOUT: u8 = 0x0c;
    /// Since version 5; 0x0d is the marker of an epoch.
    pub(super) const COPY: u8 = 0x0e;

    pub(super) const HEARTBEAT_ANSWER: u8 = 0x85;
    pub(super) const RANGE_SAME: u8 = 0x86;
    pub(super) const RANGE_VERSIONS: u8 = 0x87;
    pub(super) const RANGE_CELLS: u8 = 0x88;
    pub(super) const PROMISED: u8 = 0x8c;
    pub(super) const ACCEPTED: u8 = 0x8d;
    pub(super) const REJECTED: u8 = 0x8e;
    pub(super) const HOLDS: u8 = 0x90;
    pub(super) const IS_BEHIND: u8 = 0x91;
    pub(super) const REFUSED: u8 = 0x92;
    pub(super) const LAYOUT: u8 = 0x93;
    pub(super) const COPIED: u8 = 0x94;
}

/// Bits of the flags of a heartbeat. The lower two are the sync state.
mod heartbeat_flag {
    use super::{GENERATIONS_SINCE, LAYOUT_SINCE};

    pub(super) const SYNC_STATE: u8 = 0b11;
    pub(super) const DRAINING: u8 = 1 << 2;
    pub(super) const DISK_FULL: u8 = 1 << 3;
    pub(super) const REMEMBERS_TAG: u8 = 1 << 4;
    pub(super) const REPAIR_OWED: u8 = 1 << 5;
    /// Since version 3.
    pub(super) const REMEMBERS_GENERATION: u8 = 1 << 6;
    /// Since version 4.
    pub(super) const VOTES_FORGOTTEN: u8 = 1 << 7;
    /// The bits of versions 1 and 2.
    pub(super) const FIRST: u8 = SYNC_STATE | DRAINING | DISK_FULL | REMEMBERS_TAG | REPAIR_OWED;

    /// The bits of this version.
    pub(super) const fn known(version: u8) -> u8 {
        let generations = if version >= GENERATIONS_SINCE { REMEMBERS_GENERATION } else { 0 };
        let votes = if version >= LAYOUT_SINCE { VOTES_FORGOTTEN } else { 0 };
        FIRST | generations | votes
    }
}

/// Bits of the first byte of a range request.
mod range_flag {
    pub(super) const DIGEST: u8 = 1 << 0;
    pub(super) const CELLS: u8 = 1 << 1;
    pub(super) const ALL: u8 = DIGEST | CELLS;
}

pub(super) fn request_len_max(request: &NodeRequest) -> usize {
    match request {
        NodeRequest::Heartbeat(payload) => statements_len(payload),
        NodeRequest::Range(request) => key_len(request.after.as_ref()) + key_len(request.until.as_ref()),
        NodeRequest::Copy(request) => key_len(request.after.as_ref()),
        NodeRequest::Chain(_) | NodeRequest::ReadLayout => request_tail(request).map_or(0, Bytes::len),
    }
}

/// Length of the statements about complete swaps, in bytes.
fn statements_len(payload: &HeartbeatPayload) -> usize {
    size_of_val(payload.plan.complete.words())
}

/// The first version of the protocol that has this request.
pub(super) const fn request_version(request: &NodeRequest) -> u8 {
    match request {
        NodeRequest::Heartbeat(_) | NodeRequest::Range(_) => PROTOCOL_VERSION_MIN,
        NodeRequest::Chain(_) | NodeRequest::ReadLayout => LAYOUT_SINCE,
        NodeRequest::Copy(_) => PLAN_SINCE,
    }
}

/// The layout record at the end of a request.
pub(super) const fn request_tail(request: &NodeRequest) -> Option<&Bytes> {
    match request {
        NodeRequest::Chain(request) => record_bytes(request.record()),
        NodeRequest::Heartbeat(_)
        | NodeRequest::Range(_)
        | NodeRequest::ReadLayout
        | NodeRequest::Copy(_) => None,
    }
}

const fn record_bytes(record: Option<&EncodedRecord>) -> Option<&Bytes> {
    match record {
        Some(EncodedRecord(bytes)) => Some(bytes),
        None => None,
    }
}

pub(super) fn put_request(out: &mut Vec<u8>, head: Head, request: &NodeRequest) {
    match request {
        NodeRequest::Heartbeat(payload) => {
            head.put(out, kind::HEARTBEAT);
            put_heartbeat_payload(out, payload, head.version);
        }
        NodeRequest::Range(request) => {
            head.put(out, kind::RANGE);
            put_range_request(out, request);
        }
        NodeRequest::Chain(ChainRequest::Prepare { epoch, ballot }) => {
            head.put(out, kind::PREPARE);
            put_epoch_and_ballot(out, *epoch, ballot);
        }
        NodeRequest::Chain(ChainRequest::Accept(ChainVote { ballot, record: _ })) => {
            head.put(out, kind::ACCEPT);
            put_ballot(out, ballot);
        }
        NodeRequest::Chain(ChainRequest::Learn(_)) => head.put(out, kind::LEARN),
        NodeRequest::ReadLayout => head.put(out, kind::READ_LAYOUT),
        NodeRequest::Copy(CopyRequest { loser, after }) => {
            head.put(out, kind::COPY);
            out.push(loser.0);
            put_optional_key(out, after.as_ref());
        }
    }
}

/// Decodes a request; `None`: it is of another family.
pub(super) fn request(kind: u8, from: &mut Decoder<'_>) -> Result<Option<NodeRequest>, WireError> {
    if from.version >= LAYOUT_SINCE
        && let Some(request) = layout_request(kind, from)?
    {
        return Ok(Some(request));
    }
    Ok(Some(match kind {
        kind::HEARTBEAT => NodeRequest::Heartbeat(heartbeat_payload(&mut from.reader, from.version)?),
        kind::RANGE => NodeRequest::Range(range_request(from)?),
        kind::COPY if from.version >= PLAN_SINCE => NodeRequest::Copy(copy_request(from)?),
        _ => return Ok(None),
    }))
}

fn layout_request(kind: u8, from: &mut Decoder<'_>) -> Result<Option<NodeRequest>, WireError> {
    let request = match kind {
        kind::PREPARE => {
            ChainRequest::Prepare { epoch: epoch(&mut from.reader)?, ballot: ballot(&mut from.reader)? }
        }
        kind::ACCEPT => ChainRequest::Accept(vote(from)?),
        kind::LEARN => ChainRequest::Learn(record(from)?),
        kind::READ_LAYOUT => return Ok(Some(NodeRequest::ReadLayout)),
        _ => return Ok(None),
    };
    Ok(Some(NodeRequest::Chain(request)))
}

pub(super) fn response_len_max(response: &NodeResponse) -> usize {
    match response {
        NodeResponse::Heartbeat(payload) => statements_len(payload),
        NodeResponse::Range(answer) => range_answer_len_max(answer),
        NodeResponse::Copied(answer) => cells_len_max(&answer.entries, answer.until.as_ref()),
        NodeResponse::Chain(_) | NodeResponse::Layout(_) => response_tail(response).map_or(0, Bytes::len),
    }
}

/// The first version of the protocol that has this response.
pub(super) const fn response_version(response: &NodeResponse) -> u8 {
    match response {
        NodeResponse::Heartbeat(_) | NodeResponse::Range(_) => PROTOCOL_VERSION_MIN,
        NodeResponse::Chain(_) | NodeResponse::Layout(_) => LAYOUT_SINCE,
        NodeResponse::Copied(_) => PLAN_SINCE,
    }
}

/// The layout record at the end of a response.
pub(super) const fn response_tail(response: &NodeResponse) -> Option<&Bytes> {
    match response {
        NodeResponse::Chain(response) => record_bytes(response.record()),
        NodeResponse::Layout(record) => record_bytes(Some(record)),
        NodeResponse::Heartbeat(_) | NodeResponse::Range(_) | NodeResponse::Copied(_) => None,
    }
}

pub(super) fn put_response(out: &mut Vec<u8>, head: Head, response: &NodeResponse) {
    match response {
        NodeResponse::Heartbeat(payload) => {
            head.put(out, kind::HEARTBEAT_ANSWER);
            put_heartbeat_payload(out, payload, head.version);
        }
        NodeResponse::Range(RangeAnswer::Same) => head.put(out, kind::RANGE_SAME),
        NodeResponse::Range(RangeAnswer::Versions { entries, until }) => {
            head.put(out, kind::RANGE_VERSIONS);
            put_versions(out, entries, until.as_ref());
        }
        NodeResponse::Range(RangeAnswer::Cells { entries, until }) => {
            head.put(out, kind::RANGE_CELLS);
            put_cells(out, entries, until.as_ref());
        }
        NodeResponse::Chain(response) => put_chain_response(out, head, response),
        NodeResponse::Layout(_) => head.put(out, kind::LAYOUT),
        NodeResponse::Copied(CopyAnswer { entries, until, pause }) => {
            head.put(out, kind::COPIED);
            put_u64(out, nanos(*pause));
            put_cells(out, entries, until.as_ref());
        }
    }
}

/// Appends a response without the record at its end.
fn put_chain_response(out: &mut Vec<u8>, head: Head, response: &ChainResponse<EncodedRecord>) {
    match response {
        ChainResponse::Promised { epoch, ballot, accepted } => {
            head.put(out, kind::PROMISED);
            put_epoch_and_ballot(out, *epoch, ballot);
            out.push(if accepted.is_some() { PRESENT } else { ABSENT });
            accepted.iter().for_each(|vote| put_ballot(out, &vote.ballot));
        }
        ChainResponse::Accepted { epoch, ballot } => {
            head.put(out, kind::ACCEPTED);
            put_epoch_and_ballot(out, *epoch, ballot);
        }
        ChainResponse::Rejected { epoch, ballot, promised } => {
            head.put(out, kind::REJECTED);
            put_epoch_and_ballot(out, *epoch, ballot);
            put_ballot(out, promised);
        }
        ChainResponse::Holds(_) => head.put(out, kind::HOLDS),
        ChainResponse::IsBehind { epoch } => {
            head.put(out, kind::IS_BEHIND);
            put_u64(out, epoch.0);
        }
        ChainResponse::Refused { epoch } => {
            head.put(out, kind::REFUSED);
            put_u64(out, epoch.0);
        }
    }
}

/// Decodes a response; `None`: it is of another family.
pub(super) fn response(kind: u8, from: &mut Decoder<'_>) -> Result<Option<NodeResponse>, WireError> {
    if from.version >= LAYOUT_SINCE
        && let Some(response) = layout_response(kind, from)?
    {
        return Ok(Some(response));
    }
    Ok(Some(match kind {
        kind::HEARTBEAT_ANSWER => NodeResponse::Heartbeat(heartbeat_payload(&mut from.reader, from.version)?),
        kind::RANGE_SAME => NodeResponse::Range(RangeAnswer::Same),
        kind::RANGE_VERSIONS => NodeResponse::Range(versions(from)?),
        kind::RANGE_CELLS => {
            let (entries, until) = cells(from)?;
            NodeResponse::Range(RangeAnswer::Cells { entries, until })
        }
        kind::COPIED if from.version >= PLAN_SINCE => NodeResponse::Copied(copy_answer(from)?),
        _ => return Ok(None),
    }))
}

fn layout_response(kind: u8, from: &mut Decoder<'_>) -> Result<Option<NodeResponse>, WireError> {
    let response = match kind {
        kind::PROMISED => {
            let (epoch, ballot) = (epoch(&mut from.reader)?, ballot(&mut from.reader)?);
            let accepted = is_present(&mut from.reader)?.then(|| vote(from)).transpose()?;
            ChainResponse::Promised { epoch, ballot, accepted }
        }
        kind::ACCEPTED => {
            ChainResponse::Accepted { epoch: epoch(&mut from.reader)?, ballot: ballot(&mut from.reader)? }
        }
        kind::REJECTED => ChainResponse::Rejected {
            epoch: epoch(&mut from.reader)?,
            ballot: ballot(&mut from.reader)?,
            promised: ballot(&mut from.reader)?,
        },
        kind::HOLDS => ChainResponse::Holds(record(from)?),
        kind::IS_BEHIND => ChainResponse::IsBehind { epoch: epoch(&mut from.reader)? },
        kind::REFUSED => ChainResponse::Refused { epoch: epoch(&mut from.reader)? },
        kind::LAYOUT => return Ok(Some(NodeResponse::Layout(record(from)?))),
        _ => return Ok(None),
    };
    Ok(Some(NodeResponse::Chain(response)))
}

fn put_epoch_and_ballot(out: &mut Vec<u8>, epoch: LayoutEpoch, ballot: &ProposalBallot) {
    put_u64(out, epoch.0);
    put_ballot(out, ballot);
}

fn put_ballot(out: &mut Vec<u8>, ballot: &ProposalBallot) {
    put_u64(out, ballot.round);
    put_u64(out, ballot.proposer.0);
    put_u64(out, ballot.incarnation.0);
}

fn epoch(reader: &mut Reader<'_>) -> Result<LayoutEpoch, WireError> {
    Ok(LayoutEpoch(reader.u64()?))
}

fn ballot(reader: &mut Reader<'_>) -> Result<ProposalBallot, WireError> {
    let round = reader.u64()?;
    if round > ProposalBallot::ROUND_MAX {
        return Err(WireError::Field { field: "round of a ballot" });
    }
    let (proposer, incarnation) = (NodeTag(reader.u64()?), Incarnation(reader.u64()?));
    Ok(ProposalBallot { round, proposer, incarnation })
}

fn vote(from: &mut Decoder<'_>) -> Result<ChainVote<EncodedRecord>, WireError> {
    Ok(ChainVote { ballot: ballot(&mut from.reader)?, record: record(from)? })
}

/// The layout record at the end of a message, which the node decodes.
fn record(from: &mut Decoder<'_>) -> Result<EncodedRecord, WireError> {
    let record = from.tail()?;
    match record.len() <= LAYOUT_RECORD_BYTES_MAX {
        true => Ok(EncodedRecord(record)),
        false => Err(WireError::Field { field: "length of a layout record" }),
    }
}

fn put_heartbeat_payload(out: &mut Vec<u8>, heartbeat_payload: &HeartbeatPayload, version: u8) {
    let remembered_generation =
        heartbeat_payload.remembered_generation_of_you.filter(|_| version >= GENERATIONS_SINCE);
    let mut flags = sync_state_to_number(heartbeat_payload.sync_state);
    flags |= if heartbeat_payload.draining { heartbeat_flag::DRAINING } else { 0 };
    flags |= if heartbeat_payload.disk_full { heartbeat_flag::DISK_FULL } else { 0 };
    flags |= if heartbeat_payload.repair_pending { heartbeat_flag::REPAIR_OWED } else { 0 };
    flags |=
        if heartbeat_payload.remembered_tag_of_you.is_some() { heartbeat_flag::REMEMBERS_TAG } else { 0 };
    flags |= if remembered_generation.is_some() { heartbeat_flag::REMEMBERS_GENERATION } else { 0 };
    let votes_forgotten = heartbeat_payload.votes_forgotten && version >= LAYOUT_SINCE;
    flags |= if votes_forgotten { heartbeat_flag::VOTES_FORGOTTEN } else { 0 };
    out.push(flags);
    put_u64(out, heartbeat_payload.sent.as_nanos());
    put_u64(out, heartbeat_payload.wall.micros_since_unix_epoch());
    put_u64(out, heartbeat_payload.hints_for_you);
    if let Some(NodeTag(tag)) = heartbeat_payload.remembered_tag_of_you {
        put_u64(out, tag);
    }
    if version >= GENERATIONS_SINCE {
        out.push(heartbeat_payload.default_from.map_or(0, NonZeroU8::get));
        put_u64(out, heartbeat_payload.generation.map_or(0, |generation| generation.number));
        put_u64(out, heartbeat_payload.generation.map_or(0, |generation| generation.clock.to_bits()));
    }
    if let Some(Generation { number, incarnation, clock }) = remembered_generation {
        put_u64(out, number);
        put_u64(out, incarnation.0);
        put_u64(out, clock.to_bits());
    }
    if version >= LAYOUT_SINCE {
        put_u64(out, heartbeat_payload.layout.map_or(0, |stamp| stamp.epoch.0));
        if let Some(LayoutStamp { epoch: _, fingerprint }) = heartbeat_payload.layout {
            put_u64(out, fingerprint);
            if version >= PLAN_SINCE {
                out.extend_from_slice(&heartbeat_payload.feature_level_max.to_le_bytes());
                put_plan_statements(out, &heartbeat_payload.plan);
            }
        }
    }
}

fn heartbeat_payload(reader: &mut Reader<'_>, version: u8) -> Result<HeartbeatPayload, WireError> {
    let flags = reader.u8()?;
    if flags & !heartbeat_flag::known(version) != 0 {
        return Err(WireError::Field { field: "state of a node" });
    }
    let mut heartbeat_payload = HeartbeatPayload {
        sent: Instant::from_nanos(reader.u64()?),
        wall: wall(reader)?,
        sync_state: sync_state_from_number(flags & heartbeat_flag::SYNC_STATE)
            .ok_or(WireError::Field { field: "sync state" })?,
        draining: flags & heartbeat_flag::DRAINING != 0,
        disk_full: flags & heartbeat_flag::DISK_FULL != 0,
        hints_for_you: reader.u64()?,
        repair_pending: flags & heartbeat_flag::REPAIR_OWED != 0,
        remembered_tag_of_you: match flags & heartbeat_flag::REMEMBERS_TAG {
            0 => None,
            _ => Some(NodeTag(reader.u64()?)),
        },
        remembered_generation_of_you: None,
        generation: None,
        default_from: None,
        layout: None,
        votes_forgotten: flags & heartbeat_flag::VOTES_FORGOTTEN != 0,
        feature_level_max: 0,
        plan: PlanStatements::default(),
    };
    if version >= GENERATIONS_SINCE {
        heartbeat_payload.default_from = NonZeroU8::new(reader.u8()?);
        let (number, clock) = (reader.u64()?, Hlc::from_bits(reader.u64()?));
        heartbeat_payload.generation = (number > 0).then_some(GenerationReport { number, clock });
        if heartbeat_payload.generation.is_none() && clock != Hlc::ZERO {
            return Err(WireError::Field { field: "generation" });
        }
    }
    if flags & heartbeat_flag::REMEMBERS_GENERATION != 0 {
        let number = reader.u64()?;
        let incarnation = Incarnation(reader.u64()?);
        let clock = Hlc::from_bits(reader.u64()?);
        heartbeat_payload.remembered_generation_of_you = Some(Generation { number, incarnation, clock });
    }
    if version >= LAYOUT_SINCE {
        let epoch = epoch(reader)?;
        let has_record = epoch != LayoutEpoch(0);
        let stamp = || Ok::<_, WireError>(LayoutStamp { epoch, fingerprint: reader.u64()? });
        heartbeat_payload.layout = has_record.then(stamp).transpose()?;
    }
    if version >= PLAN_SINCE && heartbeat_payload.layout.is_some() {
        heartbeat_payload.feature_level_max = reader.u32()?;
        heartbeat_payload.plan = plan_statements(reader)?;
    }
    Ok(heartbeat_payload)
}

/// Bit beside the number of words with complete swaps: the sender purges.
const IS_PURGING: u8 = 1 << 7;
/// Bit beside the number of words with complete swaps: the progress of copies follows them.
const IS_COPYING: u8 = 1 << 6;

fn put_plan_statements(out: &mut Vec<u8>, stated: &PlanStatements) {
    put_u64(out, stated.fenced.map_or(0, |epoch| epoch.0));
    let words = stated.complete.words();
    let is_purging = if stated.is_purging { IS_PURGING } else { 0 };
    let is_copying = if stated.copying.is_some() { IS_COPYING } else { 0 };
    out.push(words.len() as u8 | is_purging | is_copying);
    words.iter().for_each(|word| put_u64(out, *word));
    if let Some(CopyProgress { bytes, obstacle }) = stated.copying {
        put_u64(out, bytes);
        put_copy_obstacle(out, obstacle);
    }
}

fn put_copy_obstacle(out: &mut Vec<u8>, obstacle: Option<CopyObstacle>) {
    let (number, node) = match obstacle {
        None => (0, None),
        Some(CopyObstacle::Fence) => (1, None),
        Some(CopyObstacle::NotReadEligible) => (2, None),
        Some(CopyObstacle::Purge) => (3, None),
        Some(CopyObstacle::DiskFull) => (4, None),
        Some(CopyObstacle::Stalled) => (5, None),
        Some(CopyObstacle::Store) => (6, None),
        Some(CopyObstacle::Source { node }) => (7, Some(node)),
    };
    out.push(number);
    node.into_iter().for_each(|NodeIndex(slot)| out.push(slot));
}

fn copy_obstacle(reader: &mut Reader<'_>) -> Result<Option<CopyObstacle>, WireError> {
    Ok(match reader.u8()? {
        0 => None,
        1 => Some(CopyObstacle::Fence),
        2 => Some(CopyObstacle::NotReadEligible),
        3 => Some(CopyObstacle::Purge),
        4 => Some(CopyObstacle::DiskFull),
        5 => Some(CopyObstacle::Stalled),
        6 => Some(CopyObstacle::Store),
        7 => Some(CopyObstacle::Source { node: slot(reader, "slot of a source")? }),
        _ => return Err(WireError::Field { field: "obstacle of a copy" }),
    })
}

fn plan_statements(reader: &mut Reader<'_>) -> Result<PlanStatements, WireError> {
    let fenced = Some(epoch(reader)?).filter(|epoch| *epoch != LayoutEpoch(0));
    let count = reader.u8()?;
    let (is_purging, is_copying) = (count & IS_PURGING != 0, count & IS_COPYING != 0);
    let words = (0..count & !(IS_PURGING | IS_COPYING))
        .map(|_| Ok(reader.u64()?))
        .collect::<Result<Vec<u64>, WireError>>()?;
    let complete = SwapSet::from_words(&words).filter(|set| set.words().len() == words.len());
    let complete = complete.ok_or(WireError::Field { field: "complete swaps" })?;
    let progress = |reader: &mut Reader<'_>| {
        Ok::<_, WireError>(CopyProgress { bytes: reader.u64()?, obstacle: copy_obstacle(reader)? })
    };
    let copying = is_copying.then(|| progress(reader)).transpose()?;
    Ok(PlanStatements { fenced, complete, is_purging, copying })
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

fn range_request(from: &mut Decoder<'_>) -> Result<RangeRequest, WireError> {
    let flags = from.reader.u8()?;
    if flags & !range_flag::ALL != 0 {
        return Err(WireError::Field { field: "kind of range" });
    }
    let cutoff = Hlc::from_bits(from.reader.u64()?);
    let digest = match flags & range_flag::DIGEST {
        0 => None,
        _ => Some(RangeDigest { keys: from.reader.u64()?, sum: from.reader.u64()? }),
    };
    let after = optional_key(&mut from.reader)?;
    let until = optional_key(&mut from.reader)?;
    Ok(RangeRequest { after, until, cutoff, digest, cells: flags & range_flag::CELLS != 0 })
}

fn versions(from: &mut Decoder<'_>) -> Result<RangeAnswer, WireError> {
    const ENTRY_LEN_MIN: usize = 2 + 1 + META_LEN_MIN;
    let until = optional_key(&mut from.reader)?;
    let count = from.count_of(ENTRY_LEN_MIN)?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push((from.key()?, meta(&mut from.reader)?));
    }
    Ok(RangeAnswer::Versions { entries, until })
}

fn copy_request(from: &mut Decoder<'_>) -> Result<CopyRequest, WireError> {
    let loser = slot(&mut from.reader, "slot of a loser")?;
    Ok(CopyRequest { loser, after: optional_key(&mut from.reader)? })
}

fn slot(reader: &mut Reader<'_>, field: &'static str) -> Result<NodeIndex, WireError> {
    let slot = NodeIndex(reader.u8()?);
    if slot.as_usize() < NODES_MAX { Ok(slot) } else { Err(WireError::Field { field }) }
}

fn copy_answer(from: &mut Decoder<'_>) -> Result<CopyAnswer, WireError> {
    let pause = Duration::from_nanos(from.reader.u64()?);
    let (entries, until) = cells(from)?;
    Ok(CopyAnswer { entries, until, pause })
}

/// Keys with their cells, and the last key of the part that they cover.
type CellsUntil = (Vec<(Key, Cell)>, Option<Key>);

fn cells(from: &mut Decoder<'_>) -> Result<CellsUntil, WireError> {
    const ENTRY_LEN_MIN: usize = 2 + 1 + META_LEN_MIN + 4;
    let until = optional_key(&mut from.reader)?;
    let count = from.count_of(ENTRY_LEN_MIN)?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push((from.key()?, from.cell()?));
    }
    Ok((entries, until))
}

fn cells_len_max(entries: &[(Key, Cell)], until: Option<&Key>) -> usize {
    let entry_len_max = |(key, cell): &(Key, Cell)| ENTRY_LEN_MAX + key.as_bytes().len() + cell.value.len();
    key_len(until) + entries.iter().map(entry_len_max).sum::<usize>()
}

fn range_answer_len_max(answer: &RangeAnswer) -> usize {
    match answer {
        RangeAnswer::Same => 0,
        RangeAnswer::Versions { entries, until } => {
            let entries = entries.iter().map(|(key, _)| ENTRY_LEN_MAX + key.as_bytes().len());
            key_len(until.as_ref()) + entries.sum::<usize>()
        }
        RangeAnswer::Cells { entries, until } => cells_len_max(entries, until.as_ref()),
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
