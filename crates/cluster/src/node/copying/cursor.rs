//! Names and positions of copies, as the store keeps them.
//!
//! ```text
//! name      version u8, plan u64, attempt u64, loser u64, gainer u64, source u64
//! position  version u8, kind u8 (0: behind the key, 1: the end), cells u64, bytes u64, key
//! ```
//!
//! Numbers are little-endian. The loser is 0 if its id was never named.

use crate::{Key, SwapAttempt};
use bytes::Bytes;
use stdx::NodeTag;

const VERSION: u8 = 1;
const BEHIND: u8 = 0;
const END: u8 = 1;
/// Length of a position without its key, in bytes.
const POSITION_HEAD_LEN: usize = 18;

/// Name of the cursor of a copy: everything that the copy depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyName {
    pub(super) attempt: SwapAttempt,
    /// Id of the node that is read.
    pub(super) source: NodeTag,
}

/// Progress of reading a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CopyPosition {
    /// Number of cells that were read.
    pub(super) cells: u64,
    /// Size of their keys and values, in bytes.
    pub(super) bytes: u64,
    /// Last key that was read; `None`: nothing was read.
    pub(super) after: Option<Key>,
    /// Everything was read.
    pub(super) is_end: bool,
}

impl CopyName {
    pub(super) fn encode(self) -> Bytes {
        let SwapAttempt { plan, attempt, loser, gainer } = self.attempt;
        let ids = [loser.unwrap_or(NodeTag(0)), gainer, self.source].map(|NodeTag(id)| id);
        let numbers = [plan.0, attempt.0].into_iter().chain(ids);
        [VERSION].into_iter().chain(numbers.flat_map(u64::to_le_bytes)).collect()
    }
}

impl CopyPosition {
    pub(super) fn encode(&self) -> Bytes {
        let kind = if self.is_end { END } else { BEHIND };
        let key = self.after.as_ref().map_or(&[][..], Key::as_bytes);
        [&[VERSION, kind], &self.cells.to_le_bytes()[..], &self.bytes.to_le_bytes(), key].concat().into()
    }

    /// Decodes a position. `None`: it is of another release, and counts for nothing.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let (head, key) = bytes.split_at_checked(POSITION_HEAD_LEN)?;
        let number = |at: usize| head[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let is_end = match (head[0], head[1]) {
            (VERSION, BEHIND) => false,
            (VERSION, END) => true,
            _ => return None,
        };
        let after = match key {
            [] => None,
            key => Some(Key::new(bytes.slice_ref(key)).ok()?),
        };
        Some(Self { cells: number(2)?, bytes: number(10)?, after, is_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayoutEpoch;

    #[test]
    fn a_position_is_read_as_it_was_written_and_one_of_another_release_is_none() {
        let key = |name: &'static str| Key::new(Bytes::from_static(name.as_bytes())).expect("a short key");
        for (after, is_end) in [(None, false), (Some(key("k")), false), (Some(key("k")), true), (None, true)]
        {
            let position = CopyPosition { cells: 7, bytes: 1 << 40, after, is_end };
            let encoded = position.encode();
            assert_eq!(CopyPosition::decode(&encoded), Some(position));
            for (at, value) in [(0, 2), (1, 2)] {
                let mut other = encoded.to_vec();
                other[at] = value;
                assert_eq!(CopyPosition::decode(&other.into()), None);
            }
            assert_eq!(CopyPosition::decode(&encoded.slice(..POSITION_HEAD_LEN - 1)), None);
        }
    }

    #[test]
    fn a_name_depends_on_the_attempt_and_on_each_node() {
        let attempt = SwapAttempt {
            plan: LayoutEpoch(3),
            attempt: LayoutEpoch(4),
            loser: Some(NodeTag(5)),
            gainer: NodeTag(6),
        };
        let names = [
            CopyName { attempt, source: NodeTag(5) },
            CopyName { attempt, source: NodeTag(7) },
            CopyName { attempt: SwapAttempt { plan: LayoutEpoch(2), ..attempt }, source: NodeTag(5) },
            CopyName { attempt: SwapAttempt { attempt: LayoutEpoch(5), ..attempt }, source: NodeTag(5) },
            CopyName { attempt: SwapAttempt { loser: None, ..attempt }, source: NodeTag(5) },
            CopyName { attempt: SwapAttempt { gainer: NodeTag(9), ..attempt }, source: NodeTag(5) },
        ];
        let encoded: std::collections::BTreeSet<Bytes> = names.iter().map(|name| name.encode()).collect();
        assert_eq!(encoded.len(), names.len());
        assert!(encoded.iter().all(|name| name.len() == 41));
    }
}
