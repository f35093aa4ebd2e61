//! The disks of hosts: reads, commits and jobs of engines, each after a random delay.
//!
//! A read whose deadline has passed before it is executed fails.
//!
//! If the rate of a disk is bounded, the writers of a group get their answers once the disk has had
//! time to write its bytes. The engine itself shows the group at the beginning of that time.
//!
//! A store may put less on a page than requested. Here it does, so that scans have many pages.
//!
//! Jobs are executed by a chain of events. A full memtable wakes idle jobs, as it wakes the worker
//! threads of a server. Otherwise small memtables would fill at once, and most writes would be
//! refused until the next event.

use super::{World, WorldEvent};
use crate::Plant;
use crate::host::process::StoreAnswers;
use crate::network::Endpoint;
use crate::scenario::Dimension;
use cluster::{NodeIndex, ReplicaResponse, Requester, StoreFault, StoreId, StoreRequest, StoreResponse};
use engine::Progress;
use limits::Deadline;
use std::time::Duration;
use store::{TryAnswer, WriteGroup};

/// Longest time between two job events while the engine has jobs.
const JOBS_BUSY_MAX: Duration = Duration::from_millis(30);
/// Time between two job events while the engine has no job.
const JOBS_IDLE: Duration = Duration::from_millis(700);
/// Longest delay of writes from a step to the store, with busy threads.
const THREAD_DELAY_MAX: Duration = Duration::from_millis(5);
/// Fraction of steps whose writes are delayed for longer.
const STALL_SHARE: f64 = 0.01;
/// Longest delay of those writes.
const STALL_MAX: Duration = Duration::from_millis(1_500);
/// Longest time between two scrub events.
const SCRUB_POLL_MAX: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn start_read(
        &mut self,
        endpoint: Endpoint,
        id: StoreId,
        mut request: StoreRequest,
        deadline: Deadline,
    ) {
        if let StoreRequest::ReadPage(page) = &mut request {
            page.limit.bytes = page.limit.bytes.min(self.scenario.page_bytes_max);
        }
        let plant = self.scenario.plant;
        if let Some(response) = self.host(endpoint.node).plant_state.alter_read(plant, &mut request) {
            return self.send_to_thread(WorldEvent::Stored(endpoint, id, response));
        }
        let is_warm = self.rngs.disk.chance(self.scenario.warm_share);
        if is_warm && let Some(process) = self.process(endpoint) {
            let answer = process.store.try_answer(&request);
            if self.end_if_stopped(endpoint) {
                return;
            }
            if let TryAnswer::Done(response) = answer {
                let response =
                    self.host(endpoint.node).plant_state.alter_read_answer(plant, &request, response);
                return self.send_to_thread(WorldEvent::Stored(endpoint, id, response));
            }
        }
        let delay = self.disk_time(endpoint);
        self.after(delay, WorldEvent::Read(endpoint, id, request, deadline));
    }

    pub(super) fn read(
        &mut self,
        endpoint: Endpoint,
        id: StoreId,
        request: &StoreRequest,
        deadline: Deadline,
    ) {
        let now = self.show_clocks(endpoint.node);
        if deadline.has_passed(now.mono) {
            return self.send_to_thread(WorldEvent::Stored(
                endpoint,
                id,
                StoreResponse::Failed(StoreFault::Expired),
            ));
        }
        let Some(process) = self.process(endpoint) else { return };
        let response = process.read(request);
        if self.end_if_stopped(endpoint) {
            return;
        }
        let plant = self.scenario.plant;
        let response = self.host(endpoint.node).plant_state.alter_read_answer(plant, request, response);
        self.send_to_thread(WorldEvent::Stored(endpoint, id, response));
    }

    /// Submits the writes of a step to the store. As in a server, none of them is executed after
    /// the deadlines of all of them.
    pub(super) fn submit_group(&mut self, endpoint: Endpoint, group: WriteGroup, deadline: Deadline) {
        if group.is_empty() {
            return;
        }
        if !self.scenario.dimensions.has(Dimension::BusyThreads) {
            return self.submit_late(endpoint, group.into(), deadline);
        }
        let stalls = self.rngs.disk.chance(STALL_SHARE);
        let most = if stalls { STALL_MAX } else { THREAD_DELAY_MAX };
        let delay = Duration::from_nanos(self.rngs.disk.below(most.as_nanos() as u64));
        let now = self.now;
        let Some(process) = self.process(endpoint) else { return };
        // The groups of one state machine stay in order.
        let last = process.last_submits.entry(endpoint.requester).or_insert(now);
        *last = (*last).max(now + delay);
        let at = *last;
        self.at(at, WorldEvent::Submit(endpoint, group.into(), deadline));
    }

    pub(super) fn submit_late(&mut self, endpoint: Endpoint, group: Box<WriteGroup>, deadline: Deadline) {
        let now = self.show_clocks(endpoint.node);
        let Some(process) = self.process(endpoint) else { return };
        if deadline.has_passed(now.mono) {
            let responses = group.failed(&StoreFault::Expired);
            responses.iter().for_each(|(id, _)| {
                process.writes.remove(&(endpoint.requester, *id));
            });
            for (id, response) in responses {
                self.send_to_thread(WorldEvent::Stored(endpoint, id, response));
            }
            return;
        }
        process.submit(endpoint.requester, *group);
        let begins = !std::mem::replace(&mut process.is_committing, true);
        self.wake_jobs(endpoint);
        self.deliver_answers(endpoint);
        if begins {
            let delay = self.disk_time(endpoint);
            self.after(delay, WorldEvent::Commit(endpoint));
        }
    }

    pub(super) fn commit(&mut self, endpoint: Endpoint) {
        self.show_clocks(endpoint.node);
        let is_bounded = self.scenario.flood.is_some();
        let Some(process) = self.process(endpoint) else { return };
        // A failure is reported to each write, and poisons the engine.
        let engine = process.store.engine();
        let logged = || if is_bounded { engine.wal_stats().bytes } else { 0 };
        let before = logged();
        let worked = engine.step_commit().unwrap_or(false);
        let written = logged() - before;
        let goes_on = worked || engine.has_waiting_writes();
        process.is_committing = goes_on;
        if self.end_if_stopped(endpoint) {
            return;
        }
        let took = self.write_time(written);
        if took.is_zero() {
            self.deliver_answers(endpoint);
        } else if let Some(process) = self.process(endpoint) {
            let answers = process.take_answers();
            self.after(took, WorldEvent::Durable(endpoint, answers));
        }
        if goes_on {
            // Commits writes that arrived meanwhile or waited for space. A commit that finds no
            // write ends the chain.
            let delay = self.disk_time(endpoint) + took;
            self.after(delay, WorldEvent::Commit(endpoint));
        }
    }

    /// Sends the answers of a group that the disk has written.
    pub(super) fn durable(&mut self, endpoint: Endpoint, answers: StoreAnswers) {
        if self.process(endpoint).is_some() {
            self.post_answers(endpoint, answers);
        }
    }

    pub(super) fn jobs(&mut self, endpoint: Endpoint, chain: u64) {
        if self.process(endpoint).is_none_or(|process| process.jobs_chain != chain) {
            return;
        }
        self.show_clocks(endpoint.node);
        let budget = 1 << (10 + self.rngs.disk.below(8));
        let which = self.rngs.disk.below(5);
        let Some(process) = self.process(endpoint) else { return };
        let engine = process.store.engine();
        // A failure poisons the engine, or the job is chosen again.
        let progress = match which {
            0 => engine.step_flush(budget),
            1 => engine.step_compaction(0, budget),
            2 => engine.step_upkeep(budget),
            3 => engine.step_healing(budget),
            _ => engine
                .step_flush(budget)
                .and_then(|flushed| {
                    let healed = engine.step_healing(budget)?;
                    Ok([flushed, healed, engine.step_compaction(0, budget)?, engine.step_upkeep(budget)?])
                })
                .map(
                    |steps| if steps.contains(&Progress::Worked) { Progress::Worked } else { Progress::Idle },
                ),
        };
        let is_idle = which == 4 && progress.as_ref().is_ok_and(|progress| *progress == Progress::Idle);
        if is_idle {
            // Failures are handled as above.
            let _ = engine.step_idle();
        }
        if self.end_if_stopped(endpoint) {
            return;
        }
        let Some(process) = self.process(endpoint) else { return };
        process.has_idle_jobs = is_idle;
        let busy = self.jobs_busy();
        self.after(if is_idle { JOBS_IDLE } else { busy }, WorldEvent::Jobs(endpoint, chain));
    }

    pub(super) fn scrub(&mut self, endpoint: Endpoint) {
        self.show_clocks(endpoint.node);
        let Some(process) = self.process(endpoint) else { return };
        let pause = process.store.engine().step_scrub();
        if !self.end_if_stopped(endpoint) {
            let took = self.disk_time(endpoint);
            self.after(took + pause.min(SCRUB_POLL_MAX), WorldEvent::Scrub(endpoint));
        }
    }

    fn jobs_busy(&mut self) -> Duration {
        // A flood tests the limits of the log, not those of flush and compaction.
        let most = if self.scenario.flood.is_some() { JOBS_BUSY_MAX / 8 } else { JOBS_BUSY_MAX };
        Duration::from_nanos(1 + self.rngs.disk.below(most.as_nanos() as u64))
    }

    fn wake_jobs(&mut self, endpoint: Endpoint) {
        let Some(process) = self.process(endpoint) else { return };
        if process.has_idle_jobs && process.needs_flush() {
            process.has_idle_jobs = false;
            process.jobs_chain += 1;
            let chain = process.jobs_chain;
            let busy = self.jobs_busy();
            self.after(busy, WorldEvent::Jobs(Endpoint { requester: Requester::Node, ..endpoint }, chain));
        }
    }

    fn deliver_answers(&mut self, endpoint: Endpoint) {
        let Some(process) = self.process(endpoint) else { return };
        let answers = process.take_answers();
        self.post_answers(endpoint, answers);
    }

    fn post_answers(&mut self, endpoint: Endpoint, answers: StoreAnswers) {
        for (requester, id, response) in answers {
            self.note_stored(endpoint.node, (requester, id), &response);
            let plant = self.scenario.plant;
            let response = self.host(endpoint.node).plant_state.alter_write_answer(plant, response);
            if !self.host(endpoint.node).plant_state.take_early_answer((requester, id)) {
                self.send_to_thread(WorldEvent::Stored(Endpoint { requester, ..endpoint }, id, response));
            }
        }
    }

    fn note_stored(&mut self, node: NodeIndex, id: (Requester, StoreId), response: &StoreResponse) {
        let process = self.host(node).process.as_mut();
        let Some((key, version)) = process.and_then(|process| process.writes.remove(&id)) else { return };
        if matches!(
            response,
            StoreResponse::Replica(ReplicaResponse::Written { .. }) | StoreResponse::WrittenUnchecked { .. }
        ) {
            let member = self.member_of(node);
            self.judge.note_durable(node, member, key, self.now, version);
        }
    }

    /// Ends a process that reached the planned stop of its disk, or whose engine was poisoned.
    /// Returns whether it ended.
    pub(super) fn end_if_stopped(&mut self, endpoint: Endpoint) -> bool {
        let host = self.host(endpoint.node);
        if host.faults.has_stopped() {
            let (end_cause, down) = host.planned_stop;
            self.end_process(endpoint.node, end_cause, Some(down));
            return true;
        }
        if host.process.as_ref().is_some_and(crate::host::process::HostProcess::is_poisoned) {
            self.end_process(endpoint.node, crate::host::EndCause::Kill, Some(Duration::from_millis(300)));
            return true;
        }
        false
    }

    /// Draws the time of a disk operation.
    fn disk_time(&mut self, endpoint: Endpoint) -> Duration {
        let max = self.host(endpoint.node).sync_max.as_nanos() as u64;
        Duration::from_nanos(max / 8 + self.rngs.disk.below(max))
    }

    /// Time that a disk of bounded rate takes to write `bytes` to its log, and zero for other
    /// disks.
    fn write_time(&self, bytes: u64) -> Duration {
        let rate = self.scenario.flood.map(|load| load.disk_bytes);
        rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64))
    }

    /// Schedules the jobs of an engine that was just opened.
    pub(super) fn begin_jobs(&mut self, endpoint: Endpoint) {
        let endpoint = Endpoint { requester: Requester::Node, ..endpoint };
        self.after(JOBS_BUSY_MAX, WorldEvent::Jobs(endpoint, 0));
        if self.scenario.scrub_period.is_some() && self.scenario.plant != Some(Plant::ScrubSkipped) {
            self.after(JOBS_BUSY_MAX, WorldEvent::Scrub(endpoint));
        }
    }
}
