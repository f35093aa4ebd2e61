//! Resource usage of the nodes, sampled once a second, and its growth.

use super::nodes::Nodes;
use bench::StopFlag;
use lab::stats::median;
use serde::Serialize;
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
/// Minimum number of samples to compare quarters.
const SAMPLES_MIN: usize = 16;

/// Samples of all nodes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Samples {
    pub(super) nodes: Vec<NodeSamples>,
}

/// Samples of one node. A second without a value is omitted.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct NodeSamples {
    pub(super) resident: Vec<f64>,
    pub(super) bytes: Vec<f64>,
    pub(super) files: Vec<f64>,
}

/// Comparison of the last quarter with the second one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    /// Medians of the two quarters.
    pub(super) second: f64,
    pub(super) last: f64,
    /// Ratio of the medians, after the slack is subtracted from the last one.
    pub(super) ratio: f64,
}

/// Samples until `stop` is set.
pub(super) fn monitor(nodes: &Nodes<'_>, stop: &StopFlag) -> Samples {
    let mut samples = Samples { nodes: vec![NodeSamples::default(); nodes.len()] };
    while !stop.is_set() {
        for (node, of_node) in samples.nodes.iter_mut().enumerate() {
            // A node that cannot be restarted has no samples. The keys that cannot be read back
            // reveal it.
            let Ok(taken) = nodes.sample_usage(node) else { continue };
            of_node.resident.extend(taken.resident.map(|bytes| bytes as f64));
            of_node.bytes.push(taken.bytes as f64);
            of_node.files.push(taken.files as f64);
        }
        thread::sleep(EVERY);
    }
    samples
}

/// Growth of `values` beyond `slack`. `None` if there are too few.
pub(super) fn growth(values: &[f64], slack: f64) -> Option<Growth> {
    if values.len() < SAMPLES_MIN {
        return None;
    }
    let quarter = values.len() / 4;
    let second = median(&values[quarter..2 * quarter]);
    let last = median(&values[values.len() - quarter..]);
    Some(Growth { second, last, ratio: (last - slack).max(0.0) / second.max(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lasting_increase_is_growth() {
        let waves: Vec<f64> = (0..400).map(|second| f64::from(100 + second % 50)).collect();
        assert!(growth(&waves, 0.0).unwrap().ratio < 1.05);
        let steady: Vec<f64> = (0..400).map(|second| f64::from(100 + second)).collect();
        assert!(growth(&steady, 0.0).unwrap().ratio > 1.7);
        assert!(growth(&steady, 300.0).unwrap().ratio < 1.0);
        assert_eq!(growth(&steady[..10], 0.0), None);
    }
}
