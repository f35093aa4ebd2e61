//! The frames that a profile is most about.

use crate::capture::Capture;
use std::collections::HashMap;

/// A frame, and how much of the profile is its.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// The frame.
    pub name: &'a str,
    /// In the unit of the capture.
    pub weight: u64,
}

/// The greatest frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greatest<'a> {
    /// By what was at the leaf.
    pub by_self: Vec<Share<'a>>,
    /// By what was at the leaf or above. The roots, which are threads, are not among them.
    pub by_total: Vec<Share<'a>>,
}

/// The greatest frames, so many of each kind at most.
pub fn greatest(capture: &Capture, most: usize) -> Greatest<'_> {
    let (mut by_self, mut by_total) = (HashMap::new(), HashMap::new());
    for stack in capture.stacks() {
        let weight = stack.total();
        if let Some(leaf) = stack.frames().last() {
            *by_self.entry(*leaf).or_insert(0u64) += weight;
        }
        let mut frames: Vec<u32> = stack.frames().iter().skip(1).copied().collect();
        frames.sort_unstable();
        frames.dedup();
        for frame in frames {
            *by_total.entry(frame).or_insert(0u64) += weight;
        }
    }
    let first = |weights: HashMap<u32, u64>| {
        let mut shares: Vec<_> = weights.into_iter().collect();
        shares.sort_unstable_by_key(|(frame, weight)| (std::cmp::Reverse(*weight), *frame));
        shares.truncate(most);
        shares
            .into_iter()
            .map(|(frame, weight)| Share { name: &capture.names()[frame as usize], weight })
            .collect()
    };
    Greatest { by_self: first(by_self), by_total: first(by_total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureBuilder, Kind};
    use std::time::Duration;

    #[test]
    fn a_frame_that_calls_itself_counts_once() {
        let mut builder = CaptureBuilder::new(Kind::Cpu, Duration::from_millis(100), 0);
        builder.add(0, ["io-0", "a", "b", "a"], 3);
        builder.add(1, ["io-1", "a"], 2);
        builder.add(1, ["io-1", "c"], 1);
        let capture = builder.finish(2);
        let shares = |shares: &[Share<'_>]| -> Vec<(String, u64)> {
            shares.iter().map(|share| (share.name.to_owned(), share.weight)).collect()
        };
        let found = greatest(&capture, 2);
        assert_eq!(shares(&found.by_self), [("a".to_owned(), 5), ("c".to_owned(), 1)]);
        assert_eq!(shares(&found.by_total), [("a".to_owned(), 5), ("b".to_owned(), 3)]);
    }
}
