//! Invariant: `Veche-Acks` and `Veche-Superseded` are correct.
//!
//! The replicas that the reply to a write counts hold the write durably. A reply counts at most the
//! `from` replicas of its command. A success counts at least `ack` of them, and a failed write
//! counts fewer. A write is reported as superseded only if some replica was given a greater version
//! of the key before the reply. While a swap runs, its gainer is one of these replicas.

use super::InvariantViolation;
use crate::history::ClientOperation;
use cluster::{Acks, CommandFailure, Key, Layout, NodeIndex, NodeSet, Reply, Shortfall};
use std::collections::BTreeMap;
use std::sync::Arc;
use stdx::Version;

/// Versions that the stores of all nodes were given, and those that they have made durable.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Nodes whose store has reported the version as durable, by version.
    durable: BTreeMap<Version, NodeSet>,
    /// Greatest version that a store was given, by node and key.
    greatest: BTreeMap<NodeIndex, BTreeMap<Key, Version>>,
}

impl Ledger {
    /// Records that the store of `node` is given a version of `key`.
    pub fn give(&mut self, node: NodeIndex, key: &Key, version: Version) {
        let versions = self.greatest.entry(node).or_default();
        match versions.get_mut(key) {
            Some(greatest) => *greatest = (*greatest).max(version),
            None => {
                versions.insert(key.clone(), version);
            }
        }
    }

    /// Records that the store of `node` has made a version durable.
    pub fn note_durable(&mut self, node: NodeIndex, version: Version) {
        self.durable.entry(version).or_insert(NodeSet::EMPTY).insert(node);
    }

    fn holders(&self, version: Version) -> NodeSet {
        self.durable.get(&version).copied().unwrap_or(NodeSet::EMPTY)
    }

    fn has_greater(&self, node: NodeIndex, key: &Key, version: Version) -> bool {
        let greatest = self.greatest.get(&node).and_then(|versions| versions.get(key));
        greatest.is_some_and(|greatest| *greatest > version)
    }
}

/// Checks the reply to a command at the moment it is sent. The replicas that it counts are those of
/// one of `layouts`, which nodes have had.
pub fn check(
    layouts: &[Arc<Layout>],
    operation: &ClientOperation,
    reply: &Reply,
    ledger: &Ledger,
) -> Result<(), InvariantViolation> {
    let (ack, from) = (operation.quorum.ack(), operation.quorum.from());
    let wrong = |what: &str| {
        let detail = format!("{what}: {reply:?} to {operation:?}");
        Err(InvariantViolation::new("acks", detail))
    };
    let Some((acks, is_success)) = acks_of(reply) else { return Ok(()) };
    if acks.from != from || acks.got > from {
        return wrong("the reply counts replicas outside of the command's `from`");
    }
    if is_success == Some(true) && acks.got < ack || is_success == Some(false) && acks.got >= ack {
        return wrong("the number of replicas contradicts the outcome");
    }
    let Reply::Written { version, superseded, .. } = reply else { return Ok(()) };
    let replicas = |layout: &Arc<Layout>| layout.replicas(&operation.key, from).to_vec();
    let holders = ledger.holders(*version);
    let held_by =
        |replicas: Vec<NodeIndex>| replicas.iter().filter(|replica| holders.contains(**replica)).count();
    let held = layouts.iter().map(replicas).map(held_by).max().unwrap_or(0);
    if held < usize::from(acks.got) {
        return wrong(&format!("only {held} replicas hold it durably"));
    }
    let has_greater = |layout: &Arc<Layout>| {
        layout.nodes().any(|node| {
            layout.is_intended_holder(node, &operation.key, from)
                && ledger.has_greater(node, &operation.key, *version)
        })
    };
    if *superseded && !layouts.iter().any(has_greater) {
        return wrong("no replica was given a greater version");
    }
    Ok(())
}

/// Returns the acknowledgement count of a reply, and whether the reply is a success.
///
/// The success flag is `None` for failures that may follow `ack` or more answers.
fn acks_of(reply: &Reply) -> Option<(Acks, Option<bool>)> {
    match reply {
        Reply::Found { acks, .. } | Reply::Missing { acks } | Reply::Written { acks, .. } => {
            Some((*acks, Some(true)))
        }
        Reply::Failed(CommandFailure::NotEnoughReplicas { acks, shortfall, .. }) => {
            let enough_answered = matches!(shortfall, Shortfall::NotSpread | Shortfall::NotFetched);
            Some((*acks, (!enough_answered).then_some(false)))
        }
        Reply::Failed(
            CommandFailure::ClockAhead { acks, .. }
            | CommandFailure::DiskFull { acks, .. }
            | CommandFailure::ReplicasOverloaded { acks, .. },
        ) => Some((*acks, Some(false))),
        Reply::Page { .. } | Reply::Failed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{key, missing, version, write};
    use super::*;

    fn layout() -> Arc<Layout> {
        Arc::new(Layout::new((0..5).map(|node| format!("node-{node}")).collect(), 16).unwrap())
    }

    /// Checks the reply to a write of version 2 to three replicas. `durable` of them hold it
    /// durably, and the first replica was also given version `given` of the key.
    fn holds(got: u8, superseded: bool, durable: usize, given: u64) -> bool {
        let layout = layout();
        let mut ledger = Ledger::default();
        let replicas = layout.replicas(&key(), 3);
        replicas[..durable].iter().for_each(|node| ledger.note_durable(*node, version(2)));
        ledger.give(replicas[0], &key(), version(given));
        let acks = Acks { got, from: 3 };
        let reply = Reply::Written { version: version(2), superseded, acks };
        check(&[Arc::clone(&layout)], &write(2, (2, 3), 0..1), &reply, &ledger).is_ok()
    }

    #[test]
    fn acks_of_replicas_that_do_not_hold_the_write_are_caught() {
        assert!(holds(2, false, 2, 2) && holds(2, false, 3, 2) && holds(3, false, 3, 2));
        assert!(!holds(2, false, 1, 2));
        assert!(!holds(3, false, 2, 2));
        assert!(!holds(1, false, 3, 2), "fewer than `ack`");
        assert!(!holds(4, false, 3, 2), "more than `from`");
    }

    #[test]
    fn a_holder_outside_of_the_replicas_does_not_count() {
        let layout = layout();
        let mut ledger = Ledger::default();
        let replicas = layout.replicas(&key(), 4);
        [replicas[0], replicas[3]].iter().for_each(|node| ledger.note_durable(*node, version(2)));
        let reply = Reply::Written { version: version(2), superseded: false, acks: Acks { got: 2, from: 3 } };
        assert!(check(&[Arc::clone(&layout)], &write(2, (2, 3), 0..1), &reply, &ledger).is_err());
    }

    #[test]
    fn superseded_without_a_greater_version_is_caught() {
        assert!(holds(2, true, 2, 3));
        assert!(!holds(2, true, 2, 2) && !holds(2, true, 2, 1));
        assert!(holds(2, false, 2, 3), "the flag may be missing");
    }

    #[test]
    fn a_failure_that_counts_enough_and_a_read_that_counts_too_few_are_caught() {
        let failed = |got, shortfall| {
            let acks = Acks { got, from: 3 };
            let reply = Reply::Failed(CommandFailure::NotEnoughReplicas { acks, ack: 2, shortfall });
            check(&[layout()], &write(2, (2, 3), 0..1), &reply, &Ledger::default()).is_ok()
        };
        assert!(failed(1, Shortfall::MaybeStored) && !failed(2, Shortfall::MaybeStored));
        assert!(failed(2, Shortfall::NotSpread));
        let read = |got, from| {
            let reply = Reply::Missing { acks: Acks { got, from } };
            check(&[layout()], &missing((2, 3), 0..1), &reply, &Ledger::default()).is_ok()
        };
        assert!(read(2, 3) && read(3, 3) && !read(1, 3) && !read(2, 5));
    }
}
