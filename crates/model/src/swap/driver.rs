//! Steps of the plan: decided records, the copy, dropped and lost data.

use super::config::{SwapConfig, SwapRule, X};
use super::event::SwapEvent;
use super::record::{EPOCHS, Phase, SwapNode, SwapNodeSet, SwapRecord};
use super::state::{Copying, SwapRead, SwapState, SwapStep, SwapWrite};

pub(super) fn steps(config: &SwapConfig, state: &SwapState, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    if usize::from(state.decided) < config.epochs.min(EPOCHS) {
        decisions(config, state, &mut |record, after| decide(config, record, after, next));
    }
    copies(config, state, next);
    completion(config, state, next);
    let off = state.off(config);
    for node in config.members().without(off).iter() {
        if config.drops_late() || config.may_gain(node) {
            drops(config, state, node, &mut |event, after| next(event, after));
        }
        purge(config, state, node, next);
        loss(config, state, node, next);
        rebuilding(config, state, node, next);
    }
    collection(config, state, next);
}

fn decide(
    config: &SwapConfig,
    mut record: SwapRecord,
    mut after: SwapState,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    record.excluded = if config.omits(SwapRule::DeadIsNotCounted) { SwapNodeSet::EMPTY } else { record.dead };
    after.records[usize::from(after.decided)] = record;
    after.decided += 1;
    next(SwapEvent::Decided { epoch: after.decided, record }, after);
}

/// The records that may follow the newest one.
fn decisions(config: &SwapConfig, state: &SwapState, decide: &mut dyn FnMut(SwapRecord, SwapState)) {
    let record = *state.newest();
    let epoch = state.decided + 1;
    let enters = |phase| SwapRecord { phase, since: epoch, ..record };
    if let Some(node) = state.lost.without(record.replaced).iter().next() {
        decide(renaming(config, state, node), *state);
        // Otherwise the driver may not know of the loss. If one replica acknowledges a write, NEW
        // without knowledge of the loss of g is the loss of an acknowledged write.
        if config.write_ack == 1 {
            return;
        }
    }
    match record.phase {
        Phase::Stable => {
            swaps(config, state, decide);
            declare_dead(config, state, X.set().intersection(record.old), record, decide);
        }
        Phase::Prepare => {
            let mask =
                if config.omits(SwapRule::CompleteNamesAttempt) { u16::MAX } else { 1 << record.attempt };
            if state.complete & mask != 0 || config.omits(SwapRule::CompleteBeforeReadNew) {
                decide(enters(Phase::ReadNew), *state);
            }
            let anew = SwapRecord { attempt: epoch, since: epoch, ..record };
            cancel(config, state, stable(&record, record.old, epoch), decide);
            cancel(config, state, anew, decide);
            declare_dead(config, state, record.loser.set(), anew, decide);
        }
        Phase::ReadNew => {
            if may_forget(config, state, record.loser, SwapRule::FenceBeforeNew) {
                decide(stable(&record, record.new, epoch), *state);
            }
            let back = if config.omits(SwapRule::BackBeforeOld) {
                stable(&record, record.old, epoch)
            } else {
                enters(Phase::Back)
            };
            cancel(config, state, back, decide);
            declare_dead(config, state, record.loser.set(), record, decide);
            if state.cancels < config.cancels_max {
                let after = SwapState { cancels: state.cancels + 1, ..*state };
                let pair = record.loser.set().union(record.gainer.set());
                for died in [record.gainer.set(), pair] {
                    declare_dead(config, &after, died, enters(Phase::Back), decide);
                }
            }
        }
        Phase::Back => {
            if may_forget(config, state, record.gainer, SwapRule::FenceBeforeOld) {
                decide(stable(&record, record.old, epoch), *state);
            }
            declare_dead(config, state, record.gainer.set(), record, decide);
            declare_dead(config, state, record.loser.set(), record, decide);
        }
    }
}

/// The record of these replicas without a swap. Dead replicas stay dead.
fn stable(record: &SwapRecord, replicas: SwapNodeSet, epoch: u8) -> SwapRecord {
    let dead = record.dead.intersection(replicas);
    let dead_since = if dead.is_empty() { 0 } else { record.dead_since };
    SwapRecord { dead, dead_since, ..SwapRecord::stable(replicas, epoch, record.replaced) }
}

fn cancel(
    config: &SwapConfig,
    state: &SwapState,
    record: SwapRecord,
    decide: &mut dyn FnMut(SwapRecord, SwapState),
) {
    if state.cancels < config.cancels_max {
        decide(record, SwapState { cancels: state.cancels + 1, ..*state });
    }
}

fn declare_dead(
    config: &SwapConfig,
    state: &SwapState,
    died: SwapNodeSet,
    record: SwapRecord,
    decide: &mut dyn FnMut(SwapRecord, SwapState),
) {
    let may_die = died.without(config.mortal).is_empty() && died.intersection(record.dead).is_empty();
    if may_die && !died.is_empty() {
        let dead = record.dead.union(died);
        decide(SwapRecord { dead, dead_since: state.decided + 1, ..record }, *state);
    }
}

/// Whether `node` serves no plan of an earlier phase any more: it has fenced this phase, or enough
/// kept nodes have fenced its death that every majority includes one of them.
fn may_forget(config: &SwapConfig, state: &SwapState, node: SwapNode, rule: SwapRule) -> bool {
    let record = state.newest();
    if config.omits(rule) {
        return true;
    }
    if record.dead.contains(node) {
        let fenced = record.kept().iter().filter(|kept| state.is_fenced(config, *kept, record.dead_since));
        return fenced.count() >= usize::from(config.sources()) || config.omits(SwapRule::SourcesFence);
    }
    state.is_fenced(config, node, record.since)
}

fn swaps(config: &SwapConfig, state: &SwapState, decide: &mut dyn FnMut(SwapRecord, SwapState)) {
    let record = state.newest();
    let is_whole = record.old.iter().all(|node| state.host(node).is_read_eligible);
    if state.swaps == config.swaps_max || !is_whole {
        return;
    }
    for &(loser, gainer) in &config.swaps {
        // A dead node returns as another node only.
        let is_dead = (1..=state.decided).any(|epoch| state.record(epoch).dead.contains(gainer));
        if !record.old.contains(loser) || record.old.contains(gainer) || is_dead {
            continue;
        }
        let epoch = state.decided + 1;
        let after = SwapState { swaps: state.swaps + 1, ..*state };
        let new = record.old.without(loser.set()).union(gainer.set());
        let prepare =
            SwapRecord { phase: Phase::Prepare, new, loser, gainer, attempt: epoch, since: epoch, ..*record };
        decide(prepare, after);
        declare_dead(config, &after, loser.set(), prepare, decide);
    }
}

/// The record that names the new id of a node that lost its disk.
fn renaming(config: &SwapConfig, state: &SwapState, node: SwapNode) -> SwapRecord {
    let epoch = state.decided + 1;
    let record = SwapRecord { replaced: state.lost, ..*state.newest() };
    let is_gainer = node == record.gainer;
    let is_loser = node == record.loser;
    match record.phase {
        Phase::Prepare | Phase::ReadNew if is_gainer && config.omits(SwapRule::CopyAnewAfterLoss) => record,
        Phase::Prepare | Phase::ReadNew if is_gainer => {
            SwapRecord { phase: Phase::Prepare, attempt: epoch, since: epoch, ..record }
        }
        Phase::Back if is_gainer => stable(&record, record.old, epoch),
        Phase::Prepare if is_loser => stable(&record, record.old, epoch),
        Phase::ReadNew if is_loser => stable(&record, record.new, epoch),
        _ => record,
    }
}

/// The gaining node reads its sources.
fn copies(config: &SwapConfig, state: &SwapState, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    for gainer in SwapNode::all() {
        let known = state.host(gainer).epoch;
        let is_early = state.host(gainer).is_purging && !config.omits(SwapRule::PurgeBeforeCopy);
        if known == 0 || state.copy.is_some() || is_early {
            continue;
        }
        let record = state.record(known);
        let copies = matches!(record.phase, Phase::Prepare | Phase::ReadNew) && record.gainer == gainer;
        if !copies || state.complete & 1 << record.attempt != 0 {
            continue;
        }
        let is_dead = record.dead.contains(record.loser);
        let rule = if is_dead { SwapRule::SourcesFence } else { SwapRule::FenceBeforeCopy };
        let serves = |source: SwapNode| {
            let host = state.host(source);
            let has_fenced = state.is_fenced(config, source, record.attempt) || config.omits(rule);
            has_fenced && host.is_read_eligible && host.epoch <= known && !state.off(config).contains(source)
        };
        let (sources, count) =
            if is_dead { (record.kept(), config.sources()) } else { (record.loser.set(), 1) };
        for from in sources.subsets(count).filter(|from| from.iter().all(serves)) {
            let version = newest_held(state, from);
            let mut after = *state;
            if config.omits(SwapRule::CopyNamesAttempt) {
                after.copy = Some(Copying { attempt: record.attempt, version });
            } else {
                store_copy(&mut after, gainer, record.attempt, version);
            }
            next(SwapEvent::Copies { from, to: gainer, version }, after);
        }
    }
}

fn newest_held(state: &SwapState, nodes: SwapNodeSet) -> u8 {
    nodes.iter().map(|node| state.host(node).held).max().unwrap_or(0)
}

/// The gaining node stores the version that it has read, durably.
fn completion(config: &SwapConfig, state: &SwapState, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    let Some(Copying { attempt, version }) = state.copy else {
        return;
    };
    for node in SwapNode::all().filter(|node| state.host(*node).epoch > 0) {
        let record = state.record(state.host(node).epoch);
        let copies = matches!(record.phase, Phase::Prepare | Phase::ReadNew) && record.gainer == node;
        if copies && (record.attempt == attempt || config.omits(SwapRule::CopyNamesAttempt)) {
            let mut after = *state;
            store_copy(&mut after, node, record.attempt, version);
            next(SwapEvent::Completed { node, attempt: record.attempt }, after);
        }
    }
}

fn store_copy(state: &mut SwapState, gainer: SwapNode, attempt: u8, version: u8) {
    let host = &mut state.hosts[gainer.index()];
    (host.held, host.is_read_eligible, host.may_hold) = (host.held.max(version), true, true);
    state.copy = None;
    state.complete |= 1 << attempt;
}

/// A node that is no replica any more drops its copy.
pub(super) fn drops(
    config: &SwapConfig,
    state: &SwapState,
    node: SwapNode,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let host = state.host(node);
    let any_record = config.omits(SwapRule::DropByNewest);
    let oldest = if any_record { 1.min(host.epoch) } else { host.epoch };
    for epoch in oldest.max(1)..=host.epoch {
        let record = state.record(epoch);
        let is_leaving =
            config.omits(SwapRule::KeepUntilNew) && record.phase == Phase::ReadNew && record.loser == node;
        let is_out = record.phase == Phase::Stable && !record.old.contains(node);
        let may_drop = (is_out && state.is_fenced(config, node, epoch)) || is_leaving;
        if may_drop && (host.may_hold || any_record) {
            let mut after = *state;
            let host = &mut after.hosts[node.index()];
            (host.held, host.may_hold, host.is_purging) = (0, false, false);
            if after.hosts[node.index()] != *state.host(node) {
                next(SwapEvent::Dropped { node, epoch }, after);
            }
        }
    }
}

/// A node that gains a place purges its earlier copy. At worst, no version is left that it has
/// stored since.
fn purge(config: &SwapConfig, state: &SwapState, node: SwapNode, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    let host = state.host(node);
    if host.is_purging && state.is_fenced(config, node, host.epoch) {
        let mut after = *state;
        let host = &mut after.hosts[node.index()];
        (host.held, host.may_hold, host.is_purging) = (0, false, false);
        next(SwapEvent::Purged { node }, after);
    }
}

fn loss(config: &SwapConfig, state: &SwapState, node: SwapNode, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    let record = state.newest();
    // Elsewhere, a write that one replica has acknowledged may be lost with it.
    let is_spare = config.write_ack > 1 || (record.phase != Phase::Stable && node == record.gainer);
    if !config.lossy.contains(node) || !state.lost.is_empty() || !is_spare {
        return;
    }
    let mut after = *state;
    let host = &mut after.hosts[node.index()];
    if config.omits(SwapRule::NewIdRefuses) {
        (host.held, host.epoch) = (0, 1);
        after.lost = node.set();
    } else {
        (host.held, host.epoch, host.is_read_eligible) = (0, 0, false);
        (host.may_hold, host.is_purging) = (false, false);
        after.lost = node.set();
    }
    after.writes.iter_mut().for_each(|write| write.open[node.index()] = 0);
    after.reads.iter_mut().for_each(|read| read.open[node.index()] = 0);
    if after.newest().gainer == node {
        after.copy = None;
    }
    next(SwapEvent::LostDisk { node }, after);
}

/// A replica that lost its disk reads enough others that have fenced the epoch of its new id.
fn rebuilding(
    config: &SwapConfig,
    state: &SwapState,
    node: SwapNode,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let host = state.host(node);
    let (Some(named_at), false) = (state.named_at(node), host.is_read_eligible) else {
        return;
    };
    if host.epoch == 0 {
        return;
    }
    let record = state.record(host.epoch);
    if record.phase != Phase::Stable || !record.old.contains(node) {
        return;
    }
    let serves = |source: SwapNode| {
        let host_of_source = state.host(source);
        let has_fenced =
            state.is_fenced(config, source, named_at) || config.omits(SwapRule::FenceBeforeRebuild);
        host_of_source.is_read_eligible && has_fenced && host_of_source.epoch <= host.epoch
    };
    for from in record.old.without(node.set()).subsets(config.sources()) {
        if from.iter().all(serves) {
            let mut after = *state;
            let host = &mut after.hosts[node.index()];
            (host.held, host.is_read_eligible) = (host.held.max(newest_held(state, from)), true);
            next(SwapEvent::Rebuilt { node, from }, after);
        }
    }
}

/// All replicas collect the tombstone after the grace period: requests as old as the write that it
/// hides are over, and a complete pass of anti-entropy has found it on every replica.
fn collection(config: &SwapConfig, state: &SwapState, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    let record = state.newest();
    let holds = |node: SwapNode| state.host(node).held == 2;
    if !config.collects || state.is_collected || record.phase != Phase::Stable || !state.writes[1].is_done {
        return;
    }
    let is_idle = state.reads.iter().all(|read| matches!(read.step, SwapStep::Waiting | SwapStep::Done));
    if record.old.iter().all(holds) && is_idle {
        let mut after = *state;
        after.is_collected = true;
        after.writes[0] = SwapWrite { is_done: true, ..SwapWrite::default() };
        after.writes[1] = SwapWrite { is_done: true, ..SwapWrite::default() };
        for read in &mut after.reads {
            *read = SwapRead { step: read.step, ..SwapRead::default() };
        }
        record.old.iter().for_each(|node| after.hosts[node.index()].held = 0);
        next(SwapEvent::Collected, after);
    }
}
