//! The swap: replica x of one partition loses its place and g gains it, under reads and writes.
//!
//! **Promises.** Those of `docs/consistency.md` for one key:
//!
//! 1. A read whose `ack` overlaps with that of a write, and that begins after the write was
//!    acknowledged, returns that write or a newer one.
//! 2. A read with `2 * ack > from` returns nothing older than such a read that ended before.
//!
//! They hold while one replica loses its disk, if every acknowledged write is on another one. For
//! majorities they also hold while x is dead, or is declared dead and runs on, cut off from the
//! driver.
//!
//! **Mechanism.** A state has the decided records in order; agreement on them is the subject of
//! [`chain`](crate::chain). Steps are: a record is decided, a node
//! learns the next record, a request arrives, an operation is planned anew or ends, data is copied,
//! dropped, lost or rebuilt. [`SwapRule`] names each rule of the design, and
//! [`SwapConfig::without`] leaves one out.
//!
//! **Reductions.** Each keeps every violation:
//!
//! - A request stays possible from its plan on, so messages need no state. A lost message is one
//!   that never arrives. Late acknowledgements are a late reply: a coordinator may reply at any
//!   time after enough requests were executed.
//! - A write begins at epoch 1 and is planned anew at every epoch in order. It may send nothing
//!   at any of them, so skipped epochs are included.
//! - A read chooses its plan with the first answer, and reads do not run at the same time. Requests
//!   to store the result of an earlier read may still arrive.
//! - A request is executed when it arrives, except that a node that learns an epoch may keep
//!   requests that it admitted before. Elsewhere nothing at the node tells the two moments apart.
//! - A node learns an epoch only if a request of that epoch may arrive or a plan waits for its
//!   fence. Learning it earlier only refuses more.
//! - The copy is read and stored in one step, and a node that gains no place any more drops its
//!   copy as soon as it may. Both are separate events for the rules that depend on it.
//! - A gaining node that holds something from before would lose with it what it stores until its
//!   purge ends. So it refuses to store until then.
//! - Kept replicas are interchangeable. A write without a further effect forgets its epoch.
//!
//! **Caveats.** One request of an operation is open at a node at a time, the newest. Hints are
//! writes that are never given up. Anti-entropy is not modelled, nor are scans, several keys, and
//! reads with another `from` than the write.

mod bounds;
mod config;
mod driver;
mod event;
mod mutation;
mod operations;
mod record;
mod state;

pub use bounds::bounds;
pub use config::{A, G, H, SwapConfig, SwapRule, X};
pub use event::SwapEvent;
pub use mutation::without;
pub use record::{EPOCHS, NODES, Phase, SwapNode, SwapNodeSet, SwapRecord};
pub use state::{Broken, SwapState};

use crate::search::Model;
use state::{SwapRead, SwapStep};

/// Goals that every swap reaches.
const GOALS: [&str; 7] = [
    "a write is acknowledged while a swap runs",
    "a read returns a write while a swap runs",
    "a request is open behind the fence",
    "NEW is decided",
    "x has dropped its copy",
    "an operation of an older epoch meets a fence",
    "every operation has ended after NEW",
];
const CANCELLED: &str = "OLD is decided again";
const BACK: &str = "BACK is decided";
const TWICE: &str = "a second swap has ended";
const DEAD: &str = "NEW is decided without a dead x";
const REPLACED: &str = "a node with a new disk is whole";
const COLLECTED: &str = "the tombstone is collected, and a swap ends after that";

impl Model for SwapConfig {
    type State = SwapState;
    type Step = SwapEvent;

    fn start(&self) -> SwapState {
        SwapState::new(self)
    }

    fn for_each_step(&self, state: &SwapState, next: &mut dyn FnMut(SwapEvent, SwapState)) {
        let next = &mut |event, mut after: SwapState| {
            after.forget(self);
            next(event, after);
        };
        driver::steps(self, state, next);
        operations::steps(self, state, next);
    }

    fn canonicalize(&self, state: &mut SwapState) {
        state.sort(self);
    }

    fn encode(&self, state: &SwapState, bytes: &mut Vec<u8>) {
        state.encode(bytes);
    }

    fn violation(&self, state: &SwapState) -> Option<String> {
        state.broken.map(|broken| match broken {
            Broken::Missed => "a read misses a write that was acknowledged before it".to_owned(),
            Broken::WentBack => "a read goes back behind an earlier one".to_owned(),
        })
    }

    fn goals(&self) -> Vec<&'static str> {
        let may_cancel = self.cancels_max > 0;
        let optional = [
            (may_cancel, CANCELLED),
            (may_cancel && self.epochs > 3, BACK),
            (self.swaps_max > 1, TWICE),
            (self.mortal.contains(X), DEAD),
            (!self.lossy.is_empty(), REPLACED),
            (self.collects, COLLECTED),
        ];
        let goals: &[&'static str] = if self.swaps_max > 0 { &GOALS } else { &[] };
        goals
            .iter()
            .copied()
            .chain(optional.into_iter().filter(|(is_goal, _)| *is_goal).map(|(_, name)| name))
            .collect()
    }

    fn reached(&self, state: &SwapState) -> u64 {
        let bits = self.goals().into_iter().enumerate();
        bits.filter(|(_, goal)| self.reaches(state, goal)).fold(0, |reached, (bit, _)| reached | 1 << bit)
    }

    fn may_end(&self, state: &SwapState) -> bool {
        let has_ended = state.writes[..self.writes].iter().all(|write| write.is_done)
            && state.reads[..self.reads].iter().all(|read| read.step == SwapStep::Done);
        let record = state.newest();
        let is_whole = record.targets().iter().all(|node| state.host(node).is_read_eligible)
            && state.lost.without(record.replaced).is_empty();
        let is_bounded = usize::from(state.decided) == self.epochs;
        // Too few replicas are left, and no other swap may replace a dead one.
        let is_short = record.phase == Phase::Stable
            && record.readers().len() < self.write_ack.max(self.read_ack)
            && state.swaps == self.swaps_max;
        has_ended || is_short || (is_bounded && (record.phase != Phase::Stable || !is_whole))
    }
}

impl SwapConfig {
    fn reaches(&self, state: &SwapState, goal: &str) -> bool {
        let record = state.newest();
        let runs = |epoch: u8| epoch > 0 && state.record(epoch).phase != Phase::Stable;
        let writes = &state.writes[..self.writes];
        let is_new = record.phase == Phase::Stable && record.old != self.start;
        let has_ended = || writes.iter().all(|write| write.is_done);
        let decided = |phase| (1..=state.decided).any(|epoch| state.record(epoch).phase == phase);
        match goal {
            "a write is acknowledged while a swap runs" => writes.iter().any(|write| {
                !write.is_done && runs(write.plan) && state.suffice_for_write(self, write.plan, write.acked)
            }),
            "a read returns a write while a swap runs" => {
                let reads = state.reads.iter().enumerate();
                reads
                    .filter(|(_, read)| read.newest > 0 && runs(read.plan))
                    .any(|(index, _)| state.is_answered(self, index))
            }
            "a request is open behind the fence" => {
                writes.iter().any(|write| write.open.iter().any(|epoch| *epoch > 0))
            }
            "NEW is decided" => is_new,
            "x has dropped its copy" => is_new && !record.old.contains(X) && !state.host(X).may_hold,
            "an operation of an older epoch meets a fence" => {
                writes.iter().any(|write| !write.is_done && write.plan < state.host(X).epoch)
            }
            "every operation has ended after NEW" => {
                is_new
                    && has_ended()
                    && state.reads[..self.reads].iter().all(|read| read.step == SwapStep::Done)
            }
            CANCELLED => {
                record.phase == Phase::Stable
                    && record.old == self.start
                    && state.decided > 1
                    && state.cancels > 0
            }
            BACK => decided(Phase::Back),
            TWICE => state.swaps > 1 && record.phase == Phase::Stable && record.since > 5,
            DEAD => is_new && (1..=state.decided).any(|epoch| state.record(epoch).dead.contains(X)),
            REPLACED => state.lost.iter().any(|node| state.host(node).is_read_eligible),
            COLLECTED => state.is_collected && is_new,
            _ => false,
        }
    }
}

impl SwapState {
    /// Clears everything that has no further effect.
    fn forget(&mut self, config: &SwapConfig) {
        if !config.drops_late() {
            // What a node holds that gains no place any more has no effect.
            for node in config.members().iter() {
                if self.may_still_gain(config, node) {
                    continue;
                }
                let mut dropped = *self;
                driver::drops(config, self, node, &mut |_, after| dropped = after);
                *self = dropped;
            }
        }
        if self.reads[..config.reads].iter().all(|read| read.step != SwapStep::Waiting) {
            self.returned = 0;
        }
        if let Some(copy) = self.copy
            && !config.omits(SwapRule::CopyNamesAttempt)
            && self.newest().attempt != copy.attempt
            && !SwapNode::all().any(|node| {
                let epoch = self.host(node).epoch;
                epoch > 0 && self.record(epoch).attempt == copy.attempt && self.record(epoch).gainer == node
            })
        {
            self.copy = None;
        }
        for index in 0..config.writes {
            if self.writes[index].is_done {
                self.writes[index].acked = SwapNodeSet::EMPTY;
                if !SwapNode::all().any(|node| {
                    (self.host(node).epoch.max(1)..=self.writes[index].link)
                        .any(|epoch| self.write_matters(index, node, epoch))
                        || self.write_matters(index, node, self.writes[index].open[node.index()])
                }) && !config.omits(SwapRule::Fence)
                {
                    (self.writes[index].plan, self.writes[index].link) = (0, 0);
                    self.writes[index].open = [0; NODES];
                }
            }
            for node in SwapNode::all() {
                let open = self.writes[index].open[node.index()];
                if open > 0 && !self.write_matters(index, node, open) {
                    self.writes[index].open[node.index()] = 0;
                }
            }
        }
        for index in 0..config.reads {
            self.forget_read(config, index);
        }
    }

    /// Whether a swap that `node` has not learned yet may give it a place.
    fn may_still_gain(&self, config: &SwapConfig, node: SwapNode) -> bool {
        let mut unknown = self.host(node).epoch + 1..=self.decided;
        let gains = |epoch| self.record(epoch).phase == Phase::Prepare && self.record(epoch).gainer == node;
        config.may_gain(node) && (self.swaps < config.swaps_max || unknown.any(gains))
    }

    fn forget_read(&mut self, config: &SwapConfig, index: usize) {
        let read = &mut self.reads[index];
        if read.step == SwapStep::Done {
            let SwapRead { stored, open, .. } = *read;
            *read = SwapRead { step: SwapStep::Done, stored, open, ..SwapRead::default() };
        }
        let is_current = |read: &SwapRead, epoch: u8| read.step == SwapStep::Storing && read.plan == epoch;
        for epoch in 1..=self.decided {
            let read = &self.reads[index];
            let version = read.stored[usize::from(epoch)];
            if version == 0 || is_current(read, epoch) {
                continue;
            }
            // A write of this version has the same requests in flight.
            let is_written = self.writes[usize::from(version) - 1].plan >= epoch && read.open == [0; NODES];
            let matters = SwapNode::all().any(|node| {
                let host = self.host(node);
                let may_arrive = host.epoch <= epoch
                    || config.omits(SwapRule::Fence)
                    || config.omits(SwapRule::DurableRecord);
                (may_arrive || read.open[node.index()] == epoch) && self.storing_matters(index, node, epoch)
            });
            if is_written || !matters {
                self.reads[index].stored[usize::from(epoch)] = 0;
            }
        }
        for node in SwapNode::all() {
            let open = self.reads[index].open[node.index()];
            let matters =
                self.question_matters(config, index, node, open) || self.storing_matters(index, node, open);
            if open > 0 && !matters {
                self.reads[index].open[node.index()] = 0;
            }
        }
    }

    /// Orders kept replicas.
    fn sort(&mut self, config: &SwapConfig) {
        let symmetric = config.symmetric();
        let mut order: [u8; NODES] = std::array::from_fn(|index| index as u8);
        let Some(first) = symmetric.iter().next() else {
            return;
        };
        let range = first.index()..first.index() + usize::from(symmetric.len());
        debug_assert!(symmetric.iter().all(|node| range.contains(&node.index())));
        let keys: [_; NODES] = std::array::from_fn(|index| self.column(SwapNode(index as u8)));
        order[range].sort_by_key(|index| keys[usize::from(*index)]);
        if order.is_sorted() {
            return;
        }
        let before = *self;
        let moved = |set: SwapNodeSet| {
            let places = (0..NODES).filter(|place| set.contains(SwapNode(order[*place])));
            places.fold(SwapNodeSet::EMPTY, |moved, place| moved.union(SwapNode(place as u8).set()))
        };
        for (place, from) in order.iter().map(|from| usize::from(*from)).enumerate() {
            self.hosts[place] = before.hosts[from];
            for (write, before) in self.writes.iter_mut().zip(&before.writes) {
                write.open[place] = before.open[from];
            }
            for (read, before) in self.reads.iter_mut().zip(&before.reads) {
                read.open[place] = before.open[from];
            }
        }
        for write in &mut self.writes {
            write.acked = moved(write.acked);
        }
        for read in &mut self.reads {
            (read.answered, read.holders) = (moved(read.answered), moved(read.holders));
        }
    }

    /// Everything that a state says of one node.
    fn column(&self, node: SwapNode) -> [u8; 5 + 2 * state::WRITES + 2 * state::READS] {
        let mut column = [0; 5 + 2 * state::WRITES + 2 * state::READS];
        let host = self.host(node);
        column[..5].copy_from_slice(&[
            host.held,
            host.epoch,
            host.is_read_eligible.into(),
            host.may_hold.into(),
            host.is_purging.into(),
        ]);
        let mut fields = column[5..].iter_mut();
        let writes =
            self.writes.iter().map(|write| [write.acked.contains(node).into(), write.open[node.index()]]);
        let reads = self.reads.iter().map(|read| {
            let bits = u8::from(read.answered.contains(node)) + 2 * u8::from(read.holders.contains(node));
            [bits, read.open[node.index()]]
        });
        for byte in writes.chain(reads).flatten() {
            *fields.next().expect("there is a field for each byte") = byte;
        }
        column
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend([self.decided, self.swaps, self.cancels, self.lost.0, self.returned]);
        bytes.extend(self.complete.to_le_bytes());
        bytes.extend([self.is_collected.into(), self.broken.map_or(0, |broken| broken as u8 + 1)]);
        bytes.extend(self.copy.map_or([0, 0], |copy| [copy.attempt, copy.version]));
        for record in &self.records[..usize::from(self.decided)] {
            let SwapRecord { phase, old, new, loser, gainer, attempt, since, dead, replaced, .. } = *record;
            bytes.extend([
                phase as u8,
                old.0,
                new.0,
                loser.0,
                gainer.0,
                attempt,
                since,
                dead.0,
                record.dead_since,
            ]);
            bytes.push(replaced.0);
        }
        for host in &self.hosts {
            bytes.extend([host.held, host.epoch, host.is_read_eligible.into(), host.may_hold.into()]);
            bytes.push(host.is_purging.into());
        }
        for write in &self.writes {
            bytes.extend([write.plan, write.link, write.acked.0, write.is_done.into()]);
            bytes.extend(write.open);
        }
        for read in &self.reads {
            bytes.extend([read.step as u8, read.plan, read.link, read.acked_before, read.returned_before]);
            bytes.extend([read.newest, read.answered.0, read.holders.0]);
            bytes.extend(read.stored);
            bytes.extend(read.open);
        }
    }
}
