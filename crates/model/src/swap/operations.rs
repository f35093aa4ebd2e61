//! Steps of writes, reads and the replicas that serve them.

use super::config::{SwapConfig, SwapRule};
use super::event::SwapEvent;
use super::record::{Phase, SwapNode};
use super::state::{Broken, READS, SwapState, SwapStep, WRITES, version_of};

/// A request that a node can serve.
#[derive(Clone, Copy, Debug)]
enum Request {
    Write(usize),
    Question(usize),
    Storing(usize),
}

pub(super) fn steps(config: &SwapConfig, state: &SwapState, next: &mut dyn FnMut(SwapEvent, SwapState)) {
    let off = state.off(config);
    for node in config.members().without(off).iter() {
        arrivals(config, state, node, next);
        executions(config, state, node, next);
        learning(config, state, node, next);
    }
    for index in 0..config.writes {
        write_steps(config, state, index, next);
    }
    for index in 0..config.reads {
        read_steps(config, state, index, next);
    }
}

/// A request arrives at a node of its epoch and is executed at once. A request of a newer epoch
/// arrives after the node has learned that epoch, and an older one is refused.
fn arrivals(
    config: &SwapConfig,
    state: &SwapState,
    node: SwapNode,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let epoch = state.host(node).epoch;
    let oldest = if config.omits(SwapRule::Fence) { 1.min(epoch) } else { epoch };
    for epoch in oldest..=epoch {
        for request in requests(config, state, node, epoch) {
            let mut after = *state;
            let event = execute(&mut after, request, node, epoch);
            next(event, after);
        }
    }
}

/// The requests at `epoch` that have an effect at `node`. A node that purges stores nothing.
fn requests(
    config: &SwapConfig,
    state: &SwapState,
    node: SwapNode,
    epoch: u8,
) -> impl Iterator<Item = Request> {
    let stores = !state.host(node).is_purging || config.omits(SwapRule::PurgeBeforeStore);
    let writes = (0..config.writes).filter(move |index| stores && state.write_matters(*index, node, epoch));
    let asking = (0..config.reads).filter(move |index| state.question_matters(config, *index, node, epoch));
    let storing = (0..config.reads).filter(move |index| stores && state.storing_matters(*index, node, epoch));
    writes.map(Request::Write).chain(asking.map(Request::Question)).chain(storing.map(Request::Storing))
}

fn execute(state: &mut SwapState, request: Request, node: SwapNode, epoch: u8) -> SwapEvent {
    let host = &mut state.hosts[node.index()];
    match request {
        Request::Write(index) => {
            let write = &mut state.writes[index];
            host.held = host.held.max(version_of(index));
            host.may_hold = true;
            let is_counted = epoch >= write.plan && !write.is_done;
            if is_counted {
                write.acked.insert(node);
            }
            SwapEvent::Stored { write: version_of(index), node, epoch, is_counted }
        }
        Request::Question(index) => {
            let read = &mut state.reads[index];
            if read.answered.is_empty() {
                (read.plan, read.link) = (epoch, epoch);
            }
            read.answered.insert(node);
            if host.held > read.newest {
                (read.newest, read.holders) = (host.held, super::record::SwapNodeSet::EMPTY);
            }
            if host.held == read.newest {
                read.holders.insert(node);
            }
            SwapEvent::Answered { read: index, node, held: host.held, epoch }
        }
        Request::Storing(index) => {
            let read = &mut state.reads[index];
            let is_current = read.step == SwapStep::Storing && (read.plan..=read.link).contains(&epoch);
            let version = read.stored[usize::from(if is_current { read.plan } else { epoch })];
            host.held = host.held.max(version);
            host.may_hold = true;
            if is_current {
                read.holders.insert(node);
            }
            SwapEvent::WrittenBack { read: index, node, version, epoch }
        }
    }
}

/// A node learns the next record. Requests that it has admitted may still be open.
fn learning(
    config: &SwapConfig,
    state: &SwapState,
    node: SwapNode,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let host = state.host(node);
    let is_renamed = state.lost.contains(node) && host.epoch == 0;
    let epoch = if is_renamed { state.named_at(node) } else { Some(host.epoch + 1) };
    let Some(epoch) = epoch.filter(|epoch| *epoch <= state.decided && is_told(config, state, node, *epoch))
    else {
        return;
    };
    let admitted: Vec<Request> = requests(config, state, node, host.epoch).collect();
    for choice in 0..1u32 << admitted.len() {
        let mut after = *state;
        after.hosts[node.index()].epoch = epoch;
        after.hosts[node.index()].is_purging |= must_purge(config, state, node, epoch);
        let skips_copy =
            config.omits(SwapRule::RebuildBeforeReads) || config.omits(SwapRule::CopyAnewAfterLoss);
        after.hosts[node.index()].is_read_eligible |= is_renamed && skips_copy;
        for (_, request) in admitted.iter().enumerate().filter(|(bit, _)| choice & 1 << bit != 0) {
            let open = match request {
                Request::Write(index) => &mut after.writes[*index].open,
                Request::Question(index) | Request::Storing(index) => &mut after.reads[*index].open,
            };
            open[node.index()] = host.epoch;
        }
        next(SwapEvent::Learned { node, epoch, open: choice.count_ones() as u8 }, after);
    }
    if config.omits(SwapRule::DurableRecord) && host.epoch > 1 {
        let mut after = *state;
        after.hosts[node.index()].epoch -= 1;
        next(SwapEvent::Forgot { node, epoch: host.epoch }, after);
    }
}

/// Whether the node gains a place in `epoch`, and holds something from before.
fn must_purge(config: &SwapConfig, state: &SwapState, node: SwapNode, epoch: u8) -> bool {
    let (record, parent) = (state.record(epoch), state.record(epoch - 1));
    let gains = record.phase == Phase::Prepare && parent.phase == Phase::Stable && record.gainer == node;
    gains && state.host(node).may_hold && !config.omits(SwapRule::PurgeBeforeGain)
}

/// Whether a plan waits for the node's fence, or a request of `epoch` or later has an effect at the
/// node.
fn is_told(config: &SwapConfig, state: &SwapState, node: SwapNode, epoch: u8) -> bool {
    let is_awaited = (1..=state.decided).any(|epoch| {
        let record = state.record(epoch);
        let is_swapped = record.phase != Phase::Stable && (node == record.loser || node == record.gainer);
        is_swapped || !record.dead.is_empty() || !record.replaced.is_empty()
    });
    is_awaited || (epoch..=state.decided).any(|epoch| requests(config, state, node, epoch).next().is_some())
}

/// An admitted request is executed after its node has learned a newer epoch.
fn executions(
    config: &SwapConfig,
    state: &SwapState,
    node: SwapNode,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let index_of_node = node.index();
    for index in 0..WRITES {
        let epoch = state.writes[index].open[index_of_node];
        if epoch > 0 && state.write_matters(index, node, epoch) {
            let mut after = *state;
            after.writes[index].open[index_of_node] = 0;
            let event = execute(&mut after, Request::Write(index), node, epoch);
            next(event, after);
        }
    }
    for index in 0..READS {
        let epoch = state.reads[index].open[index_of_node];
        let request = if state.question_matters(config, index, node, epoch) {
            Request::Question(index)
        } else if state.storing_matters(index, node, epoch) {
            Request::Storing(index)
        } else {
            continue;
        };
        let mut after = *state;
        after.reads[index].open[index_of_node] = 0;
        let event = execute(&mut after, request, node, epoch);
        next(event, after);
    }
}

fn write_steps(
    config: &SwapConfig,
    state: &SwapState,
    index: usize,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let write = &state.writes[index];
    if write.is_done || write.plan == 0 {
        return;
    }
    if write.plan < state.decided {
        let mut after = *state;
        let write = &mut after.writes[index];
        (write.plan, write.link) = (write.plan + 1, write.link.max(write.plan + 1));
        if !config.omits(SwapRule::FreshAcknowledgements) {
            write.acked = super::record::SwapNodeSet::EMPTY;
        }
        next(SwapEvent::WritePlanned { write: version_of(index), epoch: after.writes[index].plan }, after);
    }
    if config.omits(SwapRule::EpochOfPlan) && write.link < state.decided {
        let mut after = *state;
        after.writes[index].link += 1;
        next(SwapEvent::LinkSays { operation: "write", index, epoch: after.writes[index].link }, after);
    }
    if state.suffice_for_write(config, write.plan, write.acked) {
        let mut after = *state;
        after.writes[index].is_done = true;
        next(SwapEvent::Acknowledged { write: version_of(index), plan: write.plan, by: write.acked }, after);
    }
}

fn read_steps(
    config: &SwapConfig,
    state: &SwapState,
    index: usize,
    next: &mut dyn FnMut(SwapEvent, SwapState),
) {
    let read = &state.reads[index];
    if read.step == SwapStep::Waiting && (index == 0 || state.reads[index - 1].step == SwapStep::Done) {
        let mut after = *state;
        let read = &mut after.reads[index];
        read.step = SwapStep::Asking;
        read.acked_before = if config.reads_see_writes() { state.acknowledged() } else { 0 };
        read.returned_before = if config.reads_see_reads() { state.returned } else { 0 };
        // The last read is of use only if it can break a promise.
        if index + 1 < config.reads || read.acked_before.max(read.returned_before) > 0 {
            next(SwapEvent::ReadBegan { read: index }, after);
        }
        return;
    }
    if matches!(read.step, SwapStep::Waiting | SwapStep::Done) {
        return;
    }
    if read.plan > 0 && read.plan < state.decided {
        let mut after = *state;
        plan_read(config, &mut after, index);
        next(SwapEvent::ReadPlanned { read: index }, after);
    }
    if config.omits(SwapRule::EpochOfPlan) && read.plan > 0 && read.link < state.decided {
        let mut after = *state;
        after.reads[index].link += 1;
        next(SwapEvent::LinkSays { operation: "read", index, epoch: after.reads[index].link }, after);
    }
    if state.is_answered(config, index) {
        let mut after = *state;
        let event = decide_read(config, &mut after, index);
        next(event, after);
    }
}

/// Begins a read anew. Requests to store an earlier result stay in flight. The new plan is chosen
/// with the first answer.
fn plan_read(config: &SwapConfig, state: &mut SwapState, index: usize) {
    let read = &mut state.reads[index];
    if config.omits(SwapRule::FreshAcknowledgements) {
        read.plan += 1;
        read.link = read.link.max(read.plan);
        if read.step == SwapStep::Storing {
            read.stored[usize::from(read.plan)] = read.newest;
        }
        return;
    }
    read.step = SwapStep::Asking;
    (read.plan, read.link, read.newest, read.answered, read.holders) = Default::default();
}

/// Returns the result, or begins to store it where it must be held.
fn decide_read(config: &SwapConfig, state: &mut SwapState, index: usize) -> SwapEvent {
    let read = &mut state.reads[index];
    let (epoch, newest) = (read.plan, read.newest);
    if read.step == SwapStep::Asking && newest > 0 {
        let is_stable = state.records[usize::from(epoch) - 1].phase == Phase::Stable;
        let are_equal = read.holders == read.answered;
        if !(are_equal && (is_stable || config.omits(SwapRule::WriteBackEqualAnswers))) {
            read.step = SwapStep::Storing;
            read.stored[usize::from(epoch)] = newest;
            return SwapEvent::Spreads { read: index, version: newest, epoch };
        }
    }
    read.step = SwapStep::Done;
    let result = if newest == 0 && state.is_collected { 2 } else { newest };
    if result < read.acked_before {
        state.broken = Some(Broken::Missed);
    } else if result < read.returned_before {
        state.broken = Some(Broken::WentBack);
    }
    state.returned = state.returned.max(result);
    SwapEvent::Returned { read: index, version: newest, plan: epoch, by: read.answered }
}
