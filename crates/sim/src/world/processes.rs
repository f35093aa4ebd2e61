//! Processes: start, end, pause and resume.

use super::{World, WorldEvent, resume};
use crate::host::disk::DiskFaults;
use crate::host::plant_state::PlantState;
use crate::host::process::{DATA, HostProcess, ProcessInput, ProcessStart, REQUEST_TIMEOUT};
use crate::host::{EndCause, Host, clock::HostClock};
use crate::network::Endpoint;
use crate::scenario::Dimension;
use crate::{Nanos, Plant};
use cluster::{NodeIndex, Requester};
use env::{Env, FaultFs, MemFs};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::Rng;
use store::{AfterAbsence, DirectoryCluster, StoreError};

/// Delay of the next start after a failed start.
const START_AGAIN: Duration = Duration::from_millis(500);
/// Interval at which a draining process checks whether it has drained.
const DRAIN_POLL_EVERY: Duration = Duration::from_millis(50);

/// Interval at which stores release snapshots that are too old.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn new_host(&self, member: NodeIndex, rng: &mut Rng) -> Host {
        let began = Duration::from_nanos(rng.below(1 << 50));
        let skew = self.scenario.skew_max.as_micros() as u64;
        let error_micros = rng.below(2 * skew + 1) as i64 - skew as i64;
        Host {
            member,
            joins: false,
            is_off: false,
            disk: MemFs::new(),
            faults: DiskFaults::new(rng.fork()),
            clock: HostClock::new(began, error_micros),
            process: None,
            is_old: false,
            generation: 0,
            ended: Nanos::ZERO,
            end_cause: EndCause::Kill,
            planned_stop: (EndCause::Kill, START_AGAIN),
            stop_next_start: None,
            paused: None,
            resumed: Nanos::ZERO,
            filled: Nanos::ZERO,
            stale_shards: 0,
            sync_max: self.scenario.sync_max,
            stated_copies: BTreeSet::new(),
            plant_state: PlantState::default(),
        }
    }

    pub(super) fn start(&mut self, node: NodeIndex) {
        let host = self.host(node);
        if host.process.is_some() || host.is_off {
            return;
        }
        let has_to_join = host.joins;
        if self.is_joining(node) || has_to_join && !self.has_identity(node) {
            return;
        }
        if !self.may_start(node) {
            return self.after(START_AGAIN, WorldEvent::Start(node));
        }
        let now = self.show_clocks(node);
        let after_absence = self.after_absence(node);
        let (faults, rng) = (DiskFaults::new(self.rngs.processes.fork()), self.rngs.processes.fork());
        let is_copy = self.is_copy(node);
        let host = &mut self.hosts[node.as_usize()];
        host.generation += 1;
        host.faults = faults;
        host.plant_state = PlantState::default();
        if let Some(operations) = host.stop_next_start.take() {
            host.faults.stop_after(operations);
        }
        let fs = FaultFs::new(Arc::new(host.disk.clone()), host.faults.plan());
        let env = Env { fs: Arc::new(fs), clock: host.clock.shown() };
        let (layout, names, scenario) = (&self.layout, &self.names[..], &self.scenario);
        let found = Env { fs: Arc::new(host.disk.clone()), clock: host.clock.shown() };
        // A directory that cannot be read is refused below.
        let directory = DirectoryCluster::find(&found, Path::new(DATA)).unwrap_or(DirectoryCluster::New);
        let started = HostProcess::start(ProcessStart {
            generation: host.generation,
            env,
            now,
            me: host.member,
            host: if is_copy { host.member } else { node },
            after_absence,
            directory,
            is_old: host.is_old,
            layout,
            names,
            scenario,
            rng,
        });
        match started {
            Ok(process) => {
                host.member = process.member.me;
                host.process = Some(process);
                // An earlier start may have made the data stale and may have been stopped after
                // that.
                let stale_shards = count_stale_shards(&host.disk);
                if std::mem::replace(&mut host.stale_shards, stale_shards) < stale_shards {
                    self.judge.note_empty_directory(node);
                }
                self.note_voter_start(node);
                self.begin_process(node);
            }
            Err(error) => {
                self.trace.note(self.now, || format!("{node:?} does not start: {error}"));
                if self.is_copy(node) {
                    // A copy that does not start is dropped.
                    return;
                }
                if matches!(error, StoreError::RemovedNode { .. }) {
                    return;
                }
                let host = &mut self.hosts[node.as_usize()];
                if matches!(error, StoreError::AwayTooLong { .. }) && host.clock.is_wrong() {
                    self.set_clock_right(node);
                } else if host.faults.has_stopped() {
                    host.disk = disk_after(&host.disk, host.planned_stop.0, &mut self.rngs.processes);
                } else if self.may_lack_files(node) {
                    // The directory may lack files that a start needs. The operator follows the
                    // manual and replaces it.
                    self.replace_disk(node);
                } else {
                    self.judge.start_failed(node, &error);
                }
                self.after(START_AGAIN, WorldEvent::Start(node));
            }
        }
    }

    fn begin_process(&mut self, node: NodeIndex) {
        let endpoint = self.endpoint(node, Requester::Node).expect("the process was just started");
        self.begin_jobs(endpoint);
        self.after(EXPIRE_EVERY, WorldEvent::Expire(endpoint));
        let requesters: Vec<Requester> =
            self.process(endpoint).expect("the process was just started").requesters().collect();
        for requester in requesters {
            // The first step of each state machine has no input: it returns the first effects.
            self.step(Endpoint { requester, ..endpoint }, ProcessInput::Timeout);
        }
    }

    /// Ends the process of a host, and starts the next one after `down`, if given.
    pub(crate) fn end_process(&mut self, node: NodeIndex, end_cause: EndCause, down: Option<Duration>) {
        self.note_copy_witnesses();
        let host = &mut self.hosts[node.as_usize()];
        if host.process.take().is_none() {
            return self.crash_joiner(node, end_cause);
        }
        host.paused = None;
        host.clock.resume(self.now);
        host.ended = self.now;
        host.end_cause = end_cause;
        host.disk = disk_after(&host.disk, end_cause, &mut self.rngs.processes);
        self.judge.process_ended(node, self.now);
        self.abort_commands(node);
        self.close_ends(node, end_cause);
        if let Some(down) = down {
            self.after(down, WorldEvent::Start(node));
        }
    }

    /// Starts a host that was switched off, cut off or removed, with the directory that it has.
    pub(super) fn return_host(&mut self, node: NodeIndex) {
        self.host(node).is_off = false;
        self.end_isolation(node);
        self.start(node);
    }

    /// The decision of the operator, if the node seems to have been away for too long.
    fn after_absence(&self, node: NodeIndex) -> AfterAbsence {
        let host = &self.hosts[node.as_usize()];
        if host.clock.is_wrong() {
            // A clock that is ahead looks like an absence. The operator checks the clock before
            // giving up the data.
            AfterAbsence::Refuse
        } else if self.now < host.ended + self.scenario.away_max / 2 && !self.may_lack_files(node) {
            // Seconds stand for days here. A node that waited seconds for its peers before it was
            // ready, and was then killed, looks like one that was away. The operator knows that it
            // has just run.
            AfterAbsence::Keep
        } else {
            AfterAbsence::Rebuild
        }
    }

    /// Pauses a process.
    pub(crate) fn pause(&mut self, node: NodeIndex) {
        let host = self.host(node);
        if host.process.is_some() && host.paused.is_none() {
            host.paused = Some(Vec::new());
        }
    }

    /// Resumes a paused process. All events that it missed happen now.
    pub(crate) fn resume(&mut self, node: NodeIndex) {
        let now = self.now;
        let host = self.host(node);
        host.resumed = now;
        let was_suspended = host.clock.resume(now);
        let mut missed = host.paused.take().unwrap_or_default();
        if self.scenario.dimensions.has(Dimension::ShuffledResume) {
            missed = resume::shuffled(missed, &mut self.rngs.processes);
        }
        for event in missed {
            // By its own clock the process has as much time left as when it was suspended.
            let is_later = was_suspended && matches!(event, WorldEvent::ReplyDue(..));
            self.at(if is_later { now + REQUEST_TIMEOUT } else { now }, event);
        }
        self.pump_all();
    }

    pub(super) fn expire(&mut self, endpoint: Endpoint) {
        let now = self.show_clocks(endpoint.node);
        let plant = self.scenario.plant;
        let notes_alive = self.scenario.has_short_absences();
        let Some(process) = self.process(endpoint) else { return };
        let dropped = if plant == Some(Plant::SnapshotsKept) { 0 } else { process.store.expire_snapshots() };
        if process.store.check_for_pause().is_err() {
            // As in the server: the process ends, and its next start judges the absence.
            return self.end_process(endpoint.node, EndCause::Kill, Some(START_AGAIN));
        }
        if notes_alive && let Some(wall) = process.node.heard_to(now) {
            // As in the server. A failure leaves the earlier note.
            let supported = process.node.supported_wall(now);
            let _ = supported.map_or(Ok(()), |wall| process.store.limit_alive(wall));
            let _ = process.store.note_alive(wall);
        }
        // A failure leaves the earlier mark, which stays true.
        let _ = process.store.note_log_end();
        if dropped > 0 {
            self.judge.note_lost_snapshot(endpoint.node);
        }
        if self.end_if_stopped(endpoint) {
            return;
        }
        self.after(EXPIRE_EVERY, WorldEvent::Expire(endpoint));
    }

    /// Drains and ends a process, and starts the next one after `down`.
    pub(crate) fn drain(&mut self, node: NodeIndex, down: Duration) {
        let Some(endpoint) = self.endpoint(node, Requester::Node) else { return };
        let host = self.host(node);
        host.planned_stop.1 = down;
        host.process.as_mut().expect("the process runs").is_draining = true;
        self.step(endpoint, ProcessInput::Drain);
        self.after(DRAIN_POLL_EVERY, WorldEvent::CheckDrained(endpoint));
    }

    pub(super) fn check_drained(&mut self, endpoint: Endpoint) {
        let down = self.host(endpoint.node).planned_stop.1;
        let is_idle = self.judge.in_flight_at(endpoint.node).is_empty();
        let Some(process) = self.process(endpoint) else { return };
        if !process.node.is_drained() || !is_idle {
            return self.after(DRAIN_POLL_EVERY, WorldEvent::CheckDrained(endpoint));
        }
        // A failure would end the process as well.
        let _ = process.store.close();
        self.end_process(endpoint.node, EndCause::Kill, Some(down));
    }
}

/// Contents of a disk after the process that used it has ended.
pub(super) fn disk_after(disk: &MemFs, end_cause: EndCause, rng: &mut Rng) -> MemFs {
    match end_cause {
        EndCause::Kill => disk.kill(),
        EndCause::PowerLoss => disk.crash(rng),
    }
}

/// Number of shards on a disk that absences have made stale.
fn count_stale_shards(disk: &MemFs) -> usize {
    let files = disk.file_names();
    let directories = files.iter().flat_map(|path| path.iter());
    directories
        .filter_map(|name| name.to_str().filter(|name| name.starts_with("stale-")))
        .collect::<BTreeSet<_>>()
        .len()
}
