//! Prefix tree of the stacks of a profile.

use crate::capture::Capture;
use std::collections::HashMap;

/// A frame together with the frames that called it.
pub(super) struct FrameNode {
    /// Index of the frame's name; `None` for the root, which stands for the whole profile.
    pub(super) name: Option<u32>,
    pub(super) weight: u64,
    children: Vec<usize>,
}

/// Nodes of the tree; the first one is the root.
pub(super) struct FrameTree(Vec<FrameNode>);

impl FrameTree {
    pub(super) fn of(capture: &Capture) -> Self {
        let mut nodes = vec![FrameNode { name: None, weight: 0, children: Vec::new() }];
        let mut indices = HashMap::new();
        for stack in capture.stacks() {
            let weight = stack.total();
            let mut at = 0;
            nodes[at].weight += weight;
            for &frame in stack.frames() {
                let parent = at;
                at = *indices.entry((parent, frame)).or_insert_with(|| {
                    nodes.push(FrameNode { name: Some(frame), weight: 0, children: Vec::new() });
                    let index = nodes.len() - 1;
                    nodes[parent].children.push(index);
                    index
                });
                nodes[at].weight += weight;
            }
        }
        // Sort by name, so that two profiles can be compared side by side.
        let names: Vec<&str> =
            nodes.iter().map(|node| node.name.map_or("", |name| &capture.names()[name as usize])).collect();
        for node in &mut nodes {
            node.children.sort_by_key(|child| names[*child]);
        }
        Self(nodes)
    }

    pub(super) fn root(&self) -> &FrameNode {
        &self.0[0]
    }

    pub(super) fn children(&self, node: &FrameNode) -> impl Iterator<Item = &FrameNode> {
        node.children.iter().map(|child| &self.0[*child])
    }

    /// Fraction of the profile's weight in this frame, from 0 to 1.
    pub(super) fn share(&self, node: &FrameNode) -> f64 {
        let total = self.root().weight;
        // The root of an empty profile counts as the whole of it.
        if total == 0 { 1.0 } else { node.weight as f64 / total as f64 }
    }

    /// Depth of the tree, counting only frames with at least the share `share_min`.
    pub(super) fn drawn_depth(&self, share_min: f64) -> u32 {
        self.depth_of(self.root(), share_min)
    }

    fn depth_of(&self, node: &FrameNode, share_min: f64) -> u32 {
        if self.share(node) < share_min {
            return 0;
        }
        1 + self.children(node).map(|child| self.depth_of(child, share_min)).max().unwrap_or(0)
    }
}
