//! The places that the node owns in its store: it disowns those that it loses by a change of the
//! layout, and owns again those that it gains.
//!
//! **Promise.**
//!
//! 1. When a swap has ended, the loser disowns the keys that it is no replica of any more. Likewise
//!    a gainer whose swap was cancelled. The store treats these keys as absent and purges them.
//! 2. Nothing is disowned before this process has fenced the change: no request of an older plan
//!    finds the keys missing.
//! 3. The newest layout alone decides, also after a crash.
//! 4. A gainer copies only into a place of which it holds nothing from before
//!    ([`Node::owns_gained`]). An old value that it kept could hide a delete whose tombstone was
//!    collected meanwhile.
//!
//! **Mechanism.** A node at place `p` of a list, counted from 0, owns the keys with a cell for more
//! than `p` nodes. As the loser of a swap it falls back to a later place. The store then owns a
//! smaller part of the partition ([`StoreRequest::Disown`]) and purges the rest. As a gainer, the
//! node has the store own a greater part, which it does after the purge
//! ([`StoreRequest::OwnAgain`]).
//!
//! *Lost places.* A node that takes a new layout compares its places with those of the former one.
//! Each partition in which it has fallen back is noted, and so is one in which it gains a place
//! that it had by the former layout: it has missed the layout in between, and the cells that it
//! holds may be as old as that. If the copy of the same swap goes on, nothing is noted.
//!
//! *After a crash.* The node record has the epoch up to which nothing is left to disown. If the
//! layout has changed since, the node had ended before the notes were worked off. It then disowns
//! by its places in all partitions that have changed since. A partition in which it has lost
//! nothing has no such keys, so nothing but work is wasted.
//!
//! *The purge and writes.* The coordinators send writes to a gainer from PREPARE on. As long as the
//! place is disowned, they would be hidden, and the purge would remove them after they were
//! acknowledged. So the store refuses them, and the copy begins after the purge. The exhaustive
//! model has both rules (`PurgeBeforeStore`, `PurgeBeforeCopy`). To make the wait rare, no swap
//! begins while the gainer states that it purges.
//!
//! **Caveats.** The store is asked for the progress of a purge now and then. A place that is lost
//! and gained again costs a rewrite of all tables of the node.

use super::Node;
use super::dispatch::StorePurpose;
use super::status::PurgeStatus;
use crate::{
    DisownedPart, Layout, LayoutEpoch, Member, NodeIndex, OwnedPart, PairSwap, PartitionId, StoreRequest,
    StoreResponse, SwapPhase,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Instant, Now};

/// Time between a failed request and the next one, and between two looks at a purge that a copy or
/// the next swap of a plan may wait for.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between two looks at a purge that nothing waits for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The state of the places that this node owns.
#[derive(Debug)]
pub(super) struct NodeOwnership {
    /// Partitions of which less is to be owned than before, with the least `from` that stays.
    lost: BTreeMap<PartitionId, u8>,
    /// The partitions that are not owned as a whole. `None`: the store has not said yet.
    disowned: Option<BTreeMap<PartitionId, DisownedPart>>,
    in_flight: bool,
    /// Nothing is requested before this time.
    retry_at: Instant,
    /// The progress of a purge is not looked at before this time.
    look_at: Instant,
    /// The layout by which nothing is left to do. It spares a look at all partitions at each event.
    done_for: Option<LayoutEpoch>,
}

impl NodeOwnership {
    /// The state of a process whose directory has disowned the places lost up to `disowned_to`.
    pub(super) fn at_start(now: Instant, member: &Member, disowned_to: Option<LayoutEpoch>) -> Self {
        let (layout, me) = (&member.layout, member.me);
        let disowned_to = disowned_to.unwrap_or(LayoutEpoch::FIRST);
        let changed = changed_since(layout, disowned_to);
        let lost = changed.filter_map(|partition| {
            let holds_copy = layout
                .gaining_swap(me, partition)
                .is_some_and(|swap| swap.phase != SwapPhase::Prepare || swap.attempt <= disowned_to);
            let stays_from = if holds_copy { 1 } else { layout.replica_index(partition, me) + 1 };
            (stays_from > 1).then_some((partition, stays_from))
        });
        let lost = lost.collect();
        Self { lost, disowned: None, in_flight: false, retry_at: now, look_at: now, done_for: None }
    }

    /// The least `from` of a cell by which a key of the partition is owned.
    fn stays_from(&self, partition: PartitionId) -> u8 {
        let disowned = self.disowned.as_ref().and_then(|disowned| disowned.get(&partition));
        disowned.map_or(1, |disowned| disowned.owned.stays_from)
    }

    fn parts(&self) -> impl Iterator<Item = (PartitionId, &DisownedPart)> {
        self.disowned.iter().flatten().map(|(partition, part)| (*partition, part))
    }
}

/// The partitions that have changed after `epoch`.
fn changed_since(layout: &Layout, epoch: LayoutEpoch) -> impl Iterator<Item = PartitionId> {
    let all = if layout.newest_change() > epoch { 0..layout.partitions() } else { 0..0 };
    all.map(PartitionId).filter(move |partition| layout.changed(*partition) > epoch)
}

/// The least `from` that is to stay of a partition before `layout` is followed; `None` if nothing
/// was lost.
fn lost_place(me: NodeIndex, former: &Layout, layout: &Layout, partition: PartitionId) -> Option<u8> {
    let stays_from = match (layout.gaining_swap(me, partition), former.gaining_swap(me, partition)) {
        // The gainer has stated that its copy is complete, so it owned the place.
        (Some(swap), _) if swap.phase != SwapPhase::Prepare => return None,
        (Some(swap), Some(before))
            if swap.attempt == before.attempt || former.epoch().next() == Some(layout.epoch()) =>
        {
            return None;
        }
        (Some(_), _) => layout.replica_index(partition, me) + 1,
        (None, _) => layout.least_from(me, partition),
    };
    (former.least_from(me, partition) < stays_from).then_some(stays_from)
}

impl Node {
    /// Whether this node, the gainer of a swap, owns the places that it gains, and holds nothing of
    /// them from before the swap. The copy may begin.
    pub fn owns_gained(&self, swap: &PairSwap) -> bool {
        let (layout, me) = (&self.member.layout, self.member.me);
        let is_settled = self.record.durable().disowned_to >= Some(swap.attempt)
            && self.ownership.lost.is_empty()
            && self.ownership.disowned.is_some();
        // All partitions of a swap have the same attempt.
        let is_followed = swap.partitions.first().is_some_and(|partition| {
            layout.gaining_swap(me, *partition).is_some_and(|running| running.attempt == swap.attempt)
        });
        let is_gained = |partition| swap.partitions.binary_search(&partition).is_ok();
        let is_wanted = |(partition, part)| is_gained(partition) && self.is_wanted(partition, part);
        swap.gainer == me && is_settled && is_followed && !self.ownership.parts().any(is_wanted)
    }

    /// Whether tables may have cells of something that this node has lost. A cell that is left in
    /// memory is flushed when a place is owned again.
    pub(super) fn is_purging(&self) -> bool {
        !self.ownership.lost.is_empty() || self.ownership.parts().any(|(_, part)| part.bytes_left > 0)
    }

    /// The purge as the store has reported it last.
    pub(super) fn purge_status(&self) -> PurgeStatus {
        let purging = || self.ownership.parts().map(|(_, part)| part).filter(|part| !part.is_purged);
        PurgeStatus {
            partitions: purging().count(),
            bytes_left: purging().map(|part| part.bytes_left).max().unwrap_or(0),
        }
    }

    /// Notes the places that this node has lost since the `former` layout.
    pub(super) fn note_lost_places(&mut self, former: &Layout) {
        let (layout, me) = (&self.member.layout, self.member.me);
        for partition in changed_since(layout, former.newest_change()) {
            if let Some(stays_from) = lost_place(me, former, layout, partition) {
                let noted = self.ownership.lost.entry(partition).or_insert(0);
                *noted = stays_from.max(*noted);
            }
        }
        // A place that was lost and has been gained since is not lost.
        let place = |partition: &PartitionId| layout.replica_index(*partition, me) + 1;
        self.ownership.lost.retain(|partition, stays_from| {
            *stays_from = place(partition).min(*stays_from);
            *stays_from > 1
        });
    }

    /// Takes the next step towards owning the places that the layout gives this node.
    pub(super) fn advance_ownership(&mut self, now: Now) {
        if self.is_ownership_done() {
            return;
        }
        self.settle_lost_places();
        match self.next_ownership_request() {
            Some((request, due)) if due <= now.mono => {
                self.ownership.in_flight = true;
                self.outbox.request_store(StorePurpose::ChangeOwned, request);
            }
            None if self.is_disowning_durable() => {
                self.ownership.done_for = Some(self.member.layout.epoch());
            }
            Some(_) | None => {}
        }
    }

    /// Whether there is nothing to do before the next answer or layout.
    fn is_ownership_done(&self) -> bool {
        let layout = &self.member.layout;
        let has_changed = layout.newest_change() > LayoutEpoch::FIRST;
        !has_changed || self.ownership.in_flight || self.ownership.done_for == Some(layout.epoch())
    }

    /// Whether everything is durably disowned that was lost up to the present layout.
    fn is_disowning_durable(&self) -> bool {
        let newest_change = Some(self.member.layout.newest_change());
        self.ownership.lost.is_empty() && self.record.durable().disowned_to >= newest_change
    }

    /// Handles the store's answer.
    pub(super) fn handle_owned_changed(&mut self, now: Now, response: StoreResponse) {
        self.ownership.in_flight = false;
        match response {
            StoreResponse::Disowned(parts) => {
                let partitions = self.member.layout.partitions();
                let of = |part: &DisownedPart| PartitionId::of_hash(part.owned.first_hash, partitions);
                let disowned: BTreeMap<_, _> = parts.into_iter().map(|part| (of(&part), part)).collect();
                let owned_of = |disowned: &BTreeMap<PartitionId, DisownedPart>| -> Vec<OwnedPart> {
                    disowned.values().map(|part| part.owned).collect()
                };
                let held = self.ownership.disowned.replace(disowned);
                let is_unchanged =
                    held.as_ref().map(owned_of) == self.ownership.disowned.as_ref().map(owned_of);
                // A range that may not be owned yet is tried again later.
                self.ownership.retry_at = now.mono + if is_unchanged { RETRY_AFTER } else { Duration::ZERO };
                // A running plan begins no swap by which this node gains a place while it purges.
                let waits = self.adopted_layout().is_some_and(|record| record.plan.is_some())
                    || self.ownership.parts().any(|(partition, part)| self.is_wanted(partition, part));
                self.ownership.look_at = now.mono + if waits { RETRY_AFTER } else { LOOK_EVERY };
            }
            StoreResponse::Failed(_) => self.ownership.retry_at = now.mono + RETRY_AFTER,
            response => unreachable!("the store answered a change of what is owned with {response:?}"),
        }
    }

    /// Time at which [`Node::advance_ownership`] is due without another event.
    pub(super) fn ownership_due(&self) -> Option<Instant> {
        let request = (!self.is_ownership_done()).then(|| self.next_ownership_request());
        request.flatten().map(|(_, due)| due)
    }

    /// Strikes out the lost places that are disowned, and records the epoch if none is left.
    fn settle_lost_places(&mut self) {
        if self.ownership.disowned.is_none() {
            return;
        }
        let mut lost = std::mem::take(&mut self.ownership.lost);
        lost.retain(|partition, stays_from| self.ownership.stays_from(*partition) < *stays_from);
        self.ownership.lost = lost;
        let newest_change = Some(self.member.layout.newest_change());
        if self.ownership.lost.is_empty() && self.record.wanted().disowned_to < newest_change {
            self.record.wanted_mut().disowned_to = newest_change;
        }
    }

    /// The next request to the store, and when it is due.
    fn next_ownership_request(&self) -> Option<(StoreRequest, Instant)> {
        let retry_at = self.ownership.retry_at;
        if self.ownership.disowned.is_none() {
            return Some((StoreRequest::ReadDisowned, retry_at));
        }
        let fenced = self.fenced();
        let layout = &self.member.layout;
        let is_fenced = |partition: &PartitionId| layout.changed(*partition) <= fenced;
        let lost = self.ownership.lost.iter().filter(|(partition, _)| is_fenced(partition));
        let lost: Vec<_> = lost.map(|(partition, stays)| self.owned_part(*partition, *stays)).collect();
        if !lost.is_empty() {
            return Some((StoreRequest::Disown(lost), retry_at));
        }
        let gained = self.places_to_own().filter(|(_, part)| part.bytes_left == 0);
        let gained: Vec<_> = gained.map(|(partition, _)| self.gained_part(partition)).collect();
        if !gained.is_empty() {
            return Some((StoreRequest::OwnAgain(gained), retry_at));
        }
        let is_purging = self.ownership.parts().any(|(_, part)| !part.is_purged);
        is_purging.then_some((StoreRequest::ReadDisowned, retry_at.max(self.ownership.look_at)))
    }

    /// The partitions of which more is to be owned.
    fn places_to_own(&self) -> impl Iterator<Item = (PartitionId, &DisownedPart)> {
        // Before that is durable, a restart would take the copied cells for lost.
        let is_settled = self.is_disowning_durable();
        self.ownership.parts().filter(move |(partition, part)| is_settled && self.is_wanted(*partition, part))
    }

    /// Whether the layout gives this node more of a partition than it owns.
    fn is_wanted(&self, partition: PartitionId, part: &DisownedPart) -> bool {
        self.member.layout.least_from(self.member.me, partition) < part.owned.stays_from
    }

    fn gained_part(&self, partition: PartitionId) -> OwnedPart {
        self.owned_part(partition, self.member.layout.least_from(self.member.me, partition))
    }

    fn owned_part(&self, partition: PartitionId, stays_from: u8) -> OwnedPart {
        let (first_hash, last_hash) = partition.hashes(self.member.layout.partitions());
        OwnedPart { first_hash, last_hash, stays_from }
    }
}
