//! Ranking of the frames with the greatest weight.

use crate::capture::Capture;
use std::collections::{BTreeSet, HashMap};

/// A frame with its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameWeight<'a> {
    /// Name of the frame.
    pub name: &'a str,
    /// Weight in the unit of the capture.
    pub weight: u64,
}

/// Frames with the greatest weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreatestFrames<'a> {
    /// Ranked by the weight of the stacks in which the frame is the leaf.
    pub by_self: Vec<FrameWeight<'a>>,
    /// Ranked by the weight of the stacks that contain the frame. Root frames, which are threads,
    /// are excluded. So are frames that only call one other frame, which is listed instead.
    pub by_total: Vec<FrameWeight<'a>>,
}

/// A frame that spends at least this percentage of its weight in one callee is not listed.
const PASSES_ON_PERCENT: u64 = 98;

/// Ranks the frames of `capture`, at most `count` in each list.
pub fn greatest_frames(capture: &Capture, count: usize) -> GreatestFrames<'_> {
    let (mut by_self, mut by_total, mut by_call) = (HashMap::new(), HashMap::new(), HashMap::new());
    for stack in capture.stacks() {
        let weight = stack.total();
        if let Some(leaf) = stack.frames().last() {
            *by_self.entry(*leaf).or_insert(0u64) += weight;
        }
        let called = stack.frames().get(1..).unwrap_or_default();
        for frame in called.iter().copied().collect::<BTreeSet<u32>>() {
            *by_total.entry(frame).or_insert(0u64) += weight;
        }
        for call in called.windows(2).map(|call| (call[0], call[1])).collect::<BTreeSet<_>>() {
            *by_call.entry(call).or_insert(0u64) += weight;
        }
    }
    for ((caller, callee), weight) in by_call {
        let passes_on = |total: &u64| weight * 100 >= total * PASSES_ON_PERCENT;
        if caller != callee && by_total.get(&caller).is_some_and(passes_on) {
            by_total.remove(&caller);
        }
    }
    let first = |weights: HashMap<u32, u64>| {
        let mut shares: Vec<_> = weights.into_iter().collect();
        shares.sort_unstable_by_key(|(frame, weight)| (std::cmp::Reverse(*weight), *frame));
        shares.truncate(count);
        let share = |(frame, weight)| FrameWeight { name: &capture.names()[frame as usize], weight };
        shares.into_iter().map(share).collect()
    };
    GreatestFrames { by_self: first(by_self), by_total: first(by_total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureBuilder, CaptureKind};
    use std::time::Duration;

    fn shares(shares: &[FrameWeight<'_>]) -> Vec<(String, u64)> {
        shares.iter().map(|share| (share.name.to_owned(), share.weight)).collect()
    }

    #[test]
    fn a_frame_that_calls_itself_counts_once_and_one_that_passes_on_not_at_all() {
        let mut builder = CaptureBuilder::new(CaptureKind::Cpu, Duration::from_millis(100), 0);
        builder.add(0, ["io-0", "run", "a", "b", "a"], 3);
        builder.add(1, ["io-1", "run", "a"], 2);
        builder.add(1, ["io-1", "c", "d"], 1);
        builder.add(1, ["io-1", "c"], 1);
        let capture = builder.finish(2);
        let found = greatest_frames(&capture, 3);
        let named = |found: &[(&str, u64)]| -> Vec<(String, u64)> {
            found.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect()
        };
        assert_eq!(shares(&found.by_self), named(&[("a", 5), ("c", 1), ("d", 1)]));
        assert_eq!(shares(&found.by_total), named(&[("a", 5), ("c", 2), ("d", 1)]));
    }
}
