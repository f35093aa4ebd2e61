//! Room for large values on their way to their readers.
//!
//! **Promise.** A value that is too large to be copied into a response has its bytes taken of the memory budget
//! ([`Part::Replies`]) before the first byte of its answer leaves, until its last byte has. Where there is no room the
//! answer is `503`: nothing that has begun is broken off for it. Readers that stand still make room (`vitals`).
//!
//! **Caveats.** The value is in memory when it is looked at. Readers of one value that share it in memory each count
//! all of it.

use crate::budget::{Part, Taken};
use crate::counters::Refusal;
use crate::process::Process;
use crate::vitals::{Holding, Vitals};
use api::{Action, Asked};
use cluster::{Failure, Reply};
use std::rc::Rc;
use std::time::Duration;
use stdx::Version;

/// Values up to this size are copied into their answers, and taken in no account unless they have to wait.
pub(crate) const LARGE_BYTES: usize = 16 << 10;
/// When to come again for a value that has found no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The room of a large value. It goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct ReplyRoom {
    _taken: Taken,
    _holding: Holding,
}

/// The reply with its room, if it needs any; a refusal in its place, if there is none.
pub(crate) fn find(
    process: &Process,
    vitals: &Rc<Vitals>,
    reply: Reply,
    asked: &Asked,
) -> (Reply, Option<ReplyRoom>) {
    let len = match &reply {
        Reply::Found { cell, .. } if sends_value(asked, cell.meta.version) => cell.value.len(),
        _ => 0,
    };
    if len <= LARGE_BYTES {
        return (reply, None);
    }
    match process.memory.take(Part::Replies, len as u64) {
        Some(taken) => {
            (reply, Some(ReplyRoom { _taken: taken, _holding: Holding::begin(vitals, Part::Replies) }))
        }
        None => {
            process.admission.count(Refusal::Replies);
            (Reply::Failed(Failure::Overloaded { retry_after: RETRY_AFTER }), None)
        }
    }
}

/// Whether what is found in this version is sent, and not only told of.
fn sends_value(asked: &Asked, version: Version) -> bool {
    let is_known = asked.if_none_match.as_ref().is_some_and(|condition| condition.matches(version));
    asked.action == Action::Get && !is_known
}
