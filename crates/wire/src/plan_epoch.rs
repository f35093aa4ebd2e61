//! The epochs of the plans of requests, as the stream of a link tells them.
//!
//! **Promise.** A planned request leaves the [`Inbox`](crate::Inbox) with the epoch of its own
//! plan, whatever was pushed before or after it. So no request is judged under a newer epoch than
//! that of its plan, and none is refused because of another one. While the epoch stays the same,
//! short requests have no bytes for it.
//!
//! **Mechanism.** Short requests wait in one buffer, which is sent from its begin. A *marker* in
//! this buffer tells the epoch of the short requests behind it, up to the next marker; before the
//! first one it is [`LayoutEpoch::FIRST`]. The [`Outbox`](crate::Outbox) compares the epoch of each
//! short request with that of its last marker. If they differ, it puts a marker in front of the
//! request, also if the epoch of the request is the lesser one. A marker and the request behind it
//! are accepted or refused together.
//!
//! Two kinds of messages leave this order, and no marker is about them. A message in fragments may
//! be overtaken by any number of markers, so a request in fragments tells its own epoch.
//! Heartbeats overtake all other messages, and are not [planned](cluster::PeerRequest::is_planned).
//!
//! **Older versions.** Before version 5 a link tells no epoch: its requests arrive as those of the
//! first layout. A request that was planned by a later change is not sent over such a link, because
//! the other node might be one that does not compare epochs. A node whose layout record has a
//! changed partition speaks no older version, so partitions change only once every member speaks
//! version 5.
//!
//! **Caveats.** A link that carries requests of alternating epochs has a marker for each of them.
//! Each link of a node carries the requests of one state machine, whose plans get newer.

use crate::WireError;
use cluster::LayoutEpoch;
use stdx::codec::Reader;

/// First version of the protocol in which a link tells the epochs of plans.
pub(crate) const PLAN_EPOCHS_SINCE: u8 = 5;

/// Length of a marker in bytes.
pub(crate) const MARKER_LEN: usize = 9;

/// The first byte of a marker; no message has this kind.
const MARKER: u8 = 0x0d;

/// Appends a marker.
pub(crate) fn put_marker(out: &mut Vec<u8>, epoch: LayoutEpoch) {
    out.push(MARKER);
    out.extend_from_slice(&epoch.0.to_le_bytes());
}

/// Decodes a marker; `None`: the bytes are those of a message.
///
/// # Errors
/// [`WireError`].
#[inline]
pub(crate) fn marker(bytes: &[u8], version: u8) -> Result<Option<LayoutEpoch>, WireError> {
    if version < PLAN_EPOCHS_SINCE || bytes.first() != Some(&MARKER) {
        return Ok(None);
    }
    let mut reader = Reader::new(&bytes[1..]);
    let epoch = LayoutEpoch(reader.u64()?);
    match reader.is_empty() {
        true => Ok(Some(epoch)),
        false => Err(WireError::Field { field: "length of an epoch" }),
    }
}
