//! Messages as bytes.
//!
//! A message consists of its kind, the id of its request, and fields of fixed width in
//! little-endian order; versions are big-endian everywhere. If a message has exactly one value, the
//! value comes last and extends to the end of the message. The same holds for the bytes of a page
//! and for a layout record. So long ones are sent and received without a copy. A request that is
//! sent in fragments tells the epoch of its plan: `plan_epoch`.
//!
//! Each family of messages has a module with its kinds, and the encoding, decoding and length of
//! each: `replica` and `scan` for what coordinators ask, `node` for what nodes ask, `fault` for
//! refusals. The first byte of a message is its kind. A family decodes its own kinds and leaves
//! others to the next one; no kind occurs in two families.

mod decoder;
mod fault;
pub(crate) mod fields;
mod node;
mod replica;
mod scan;

use crate::plan_epoch::PLAN_EPOCHS_SINCE;
use crate::{PROTOCOL_VERSION_MIN, WireError};
use bytes::Bytes;
use cluster::{LayoutEpoch, Message, MessageId, PeerAnswer, PeerRequest};
use decoder::Decoder;
use fields::{head, put_count, put_head, put_u64};
use std::time::Duration;

/// First version of the protocol in which requests carry their remaining time.
const TIME_LEFT_SINCE: u8 = 2;

/// First version of the protocol in which heartbeats carry generations and the default number of
/// replicas.
const GENERATIONS_SINCE: u8 = 3;

/// First version of the protocol with the agreement on layout records: heartbeats name the sender's
/// record, and nodes vote on the next one.
const LAYOUT_SINCE: u8 = 4;

/// First version of the protocol in which heartbeats carry the greatest feature level of the
/// sender, and its statements about the running plan of its layout record.
const PLAN_SINCE: u8 = 5;

/// Bit that is set in the kinds of answers.
const ANSWER: u8 = 0x80;

/// Upper bound of the length of a message in bytes, without its keys, values and entries.
const FIXED_LEN_MAX: usize = 128;
/// Upper bound of the length of an entry of a range or page in bytes, without its key and value.
const ENTRY_LEN_MAX: usize = 40;

/// Marks an absent optional cell or cut.
const ABSENT: u8 = 0;
/// Marks a present optional cell.
const PRESENT: u8 = 1;

/// The fields with which a message begins, except for its kind.
#[derive(Clone, Copy, Debug)]
struct Head {
    id: MessageId,
    /// Time for which the requester waits, if the message is a request.
    within: Option<Option<Duration>>,
    /// Epoch of the plan, if the message is a request in fragments.
    epoch: Option<LayoutEpoch>,
    /// Version of the protocol.
    version: u8,
}

impl Head {
    /// Appends the start of a message of this kind.
    fn put(&self, out: &mut Vec<u8>, kind: u8) {
        put_head(out, kind, self.id);
        if let Some(within) = self.within.filter(|_| self.version >= TIME_LEFT_SINCE) {
            put_time_left(out, within);
        }
        if let Some(epoch) = self.epoch.filter(|_| self.version >= PLAN_EPOCHS_SINCE) {
            put_u64(out, epoch.0);
        }
    }
}

/// Upper bound of the length of `message` in bytes, close to the actual length.
pub(crate) fn len_max(message: &Message) -> usize {
    let variable = match message {
        Message::Request { request, .. } => match request {
            PeerRequest::Replica(request) => replica::request_len_max(request),
            PeerRequest::Scan(request) => scan::request_len_max(request),
            PeerRequest::Node(request) => node::request_len_max(request),
        },
        Message::Answer { answer, .. } => match answer {
            PeerAnswer::Replica(response) => replica::response_len_max(response),
            PeerAnswer::Node(response) => node::response_len_max(response),
            PeerAnswer::Failed(_) => fault::DETAIL_BYTES_MAX,
        },
    };
    FIXED_LEN_MAX + variable
}

/// The first version of the protocol that has this kind of message, and the epoch of its plan.
pub(crate) fn first_version(message: &Message) -> u8 {
    match message {
        Message::Request { request, epoch, .. } if request.is_planned() && *epoch > LayoutEpoch::FIRST => {
            PLAN_EPOCHS_SINCE
        }
        Message::Request { request: PeerRequest::Node(request), .. } => node::request_version(request),
        Message::Answer { answer: PeerAnswer::Node(response), .. } => node::response_version(response),
        _ => PROTOCOL_VERSION_MIN,
    }
}

/// The value, the bytes of a page or the layout record at the end of `message`.
pub(crate) const fn tail(message: &Message) -> Option<&Bytes> {
    match message {
        Message::Request { request: PeerRequest::Replica(request), .. } => replica::request_tail(request),
        Message::Answer { answer: PeerAnswer::Replica(response), .. } => replica::response_tail(response),
        Message::Request { request: PeerRequest::Node(request), .. } => node::request_tail(request),
        Message::Answer { answer: PeerAnswer::Node(response), .. } => node::response_tail(response),
        _ => None,
    }
}

/// The version of the protocol of a link, and how a message is sent over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoding {
    pub(crate) version: u8,
    pub(crate) is_fragmented: bool,
}

/// Appends `message` without its [`tail`]; returns the tail.
pub(crate) fn encode_head<'a>(
    out: &mut Vec<u8>,
    message: &'a Message,
    encoding: Encoding,
) -> Option<&'a Bytes> {
    let Encoding { version, is_fragmented } = encoding;
    match message {
        Message::Request { id, request, within, epoch } => {
            let epoch = is_fragmented.then_some(*epoch);
            let head = Head { id: *id, within: Some(*within), epoch, version };
            match request {
                PeerRequest::Replica(request) => replica::put_request(out, head, request),
                PeerRequest::Scan(request) => scan::put_request(out, head, request),
                PeerRequest::Node(request) => node::put_request(out, head, request),
            }
        }
        Message::Answer { id, answer } => {
            let head = Head { id: *id, within: None, epoch: None, version };
            match answer {
                PeerAnswer::Replica(response) => replica::put_response(out, head, response),
                PeerAnswer::Node(response) => node::put_response(out, head, response),
                PeerAnswer::Failed(fault) => fault::put(out, head, fault),
            }
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

/// Decodes a short message in this version of the protocol. `marked` is the epoch of the last
/// marker. Keys and values are copied out of `bytes`.
///
/// # Errors
/// [`WireError`].
pub(crate) fn decode(bytes: &[u8], version: u8, marked: LayoutEpoch) -> Result<Message, WireError> {
    message(Decoder::new(bytes, version), Some(marked))
}

/// Decodes a message that was sent in fragments. A value or page at its end is kept as a slice of
/// `bytes`.
///
/// # Errors
/// [`WireError`].
pub(crate) fn decode_owned(bytes: &Bytes, version: u8) -> Result<Message, WireError> {
    message(Decoder::of_owner(bytes, version), None)
}

/// Decodes a message. `marked` is the epoch of the last marker; `None`: the message tells its own.
fn message(mut from: Decoder<'_>, marked: Option<LayoutEpoch>) -> Result<Message, WireError> {
    let (kind, id) = head(&mut from.reader)?;
    let message = match kind & ANSWER {
        0 => {
            let within = time_left(&mut from)?;
            let epoch = match marked {
                _ if from.version < PLAN_EPOCHS_SINCE => LayoutEpoch::FIRST,
                Some(marked) => marked,
                None => LayoutEpoch(from.reader.u64()?),
            };
            let request = request(kind, &mut from)?;
            let epoch = if request.is_planned() { epoch } else { LayoutEpoch::FIRST };
            Message::Request { id, request, within, epoch }
        }
        _ => Message::Answer { id, answer: answer(kind, &mut from)? },
    };
    match from.reader.is_empty() {
        true => Ok(message),
        false => Err(WireError::Field { field: "length" }),
    }
}

/// Time for which the requester waits. `None`: unlimited, or not sent by this version.
fn time_left(from: &mut Decoder<'_>) -> Result<Option<Duration>, WireError> {
    if from.version < TIME_LEFT_SINCE {
        return Ok(None);
    }
    Ok(match from.reader.u32()? {
        0 => None,
        millis => Some(Duration::from_millis(u64::from(millis))),
    })
}

fn request(kind: u8, from: &mut Decoder<'_>) -> Result<PeerRequest, WireError> {
    if let Some(request) = replica::request(kind, from)? {
        return Ok(PeerRequest::Replica(request));
    }
    if let Some(request) = scan::request(kind, from)? {
        return Ok(PeerRequest::Scan(request));
    }
    node::request(kind, from)?.map(PeerRequest::Node).ok_or(WireError::MessageKind { kind })
}

fn answer(kind: u8, from: &mut Decoder<'_>) -> Result<PeerAnswer, WireError> {
    if let Some(response) = replica::response(kind, from)? {
        return Ok(PeerAnswer::Replica(response));
    }
    if let Some(response) = node::response(kind, from)? {
        return Ok(PeerAnswer::Node(response));
    }
    fault::fault(kind, from)?.map(PeerAnswer::Failed).ok_or(WireError::MessageKind { kind })
}
