//! Clients that read ranges: their nodes, ranges and speed, and whether they read to the end.
//!
//! Scans begin at random times of the safety phase. Most clients take pages without pause. Some
//! pause, sometimes for longer than a snapshot is kept. Some close their scan midway, with or
//! without a page in flight.

use super::ClientWorkload;
use crate::history::{CommandKind, ScanEnd, ScanRecord};
use crate::host::process::ProcessInput;
use crate::network::Endpoint;
use crate::scenario::Scenario;
use crate::world::{World, WorldEvent};
use cluster::{Command, Cut, Key, KeyRange, NodeIndex, Reply, RequestId, Requester, Scan, ScanId, ScanScope};
use std::time::Duration;

/// Fraction of scans of one node.
const OF_NODE: f64 = 0.3;
/// Fraction of scans that their clients close at some time, if they last that long.
const LEAVING: f64 = 0.2;
/// Longest time until a client closes its scan.
const STAY_MAX: Duration = Duration::from_secs(2);
/// Longest pause of a client.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Longest time that a client without a pause takes for a page.
const TAKING_MAX: Duration = Duration::from_millis(2);
/// Greatest limit of a scan that has one.
const LIMIT_MAX: u64 = 30;

impl ClientWorkload {
    fn scan(&mut self, scenario: &Scenario) -> Scan {
        let scope = match self.rng.chance(OF_NODE) {
            true => ScanScope::Node,
            false => ScanScope::Cluster(self.quorum(scenario, CommandKind::Get)),
        };
        let limit = self.rng.chance(0.3).then(|| self.rng.below(LIMIT_MAX));
        Scan { range: self.range(scenario), limit, scope }
    }

    fn range(&mut self, scenario: &Scenario) -> KeyRange {
        let is_cut = [self.rng.chance(0.5), self.rng.chance(0.5)];
        let [from, to] = is_cut.map(|is_cut| is_cut.then(|| Cut::Before(self.key_between(scenario))));
        KeyRange { from, to }
    }

    /// Draws a key that may be in use, or lie before, between or behind the keys in use.
    fn key_between(&mut self, scenario: &Scenario) -> Key {
        let number = self.rng.below(scenario.keys + 1);
        let text = match self.rng.below(6) {
            0 => "a".to_owned(),
            1 => "z".to_owned(),
            2 => format!("cold-{}", self.rng.below(scenario.scale.operations)),
            3 => format!("key-{number}-"),
            _ => format!("key-{number}"),
        };
        Key::new(text.into()).expect("short and not empty")
    }

    fn pause(&mut self, scenario: &Scenario) -> Duration {
        let pauses = self.rng.chance(scenario.pause_share);
        let most = if pauses { (scenario.snapshot_age * 2).min(PAUSE_MAX) } else { TAKING_MAX };
        Duration::from_nanos(self.rng.below(most.as_nanos() as u64))
    }
}

impl World {
    /// Schedules the scans of the scenario at random times until the workload ends.
    pub(super) fn begin_scans(&mut self) {
        let within = (self.workload.ends - self.now).as_nanos() as u64;
        for _ in 0..self.scenario.scans {
            let delay = Duration::from_nanos(self.workload.rng.below(within));
            self.after(delay, WorldEvent::StartScan);
        }
    }

    /// Starts a scan of a random range at a random node. The client may close it before its end.
    pub(crate) fn start_scan(&mut self) {
        let scan = self.workload.scan(&self.scenario);
        let node = NodeIndex(self.workload.rng.below(u64::from(self.scenario.hosts())) as u8);
        let node = self.host_for_client(node);
        let Some((id, endpoint)) = self.begin_scan(node, scan) else { return };
        if self.workload.rng.chance(LEAVING) {
            let stays = Duration::from_nanos(self.workload.rng.below(STAY_MAX.as_nanos() as u64));
            self.after(stays, WorldEvent::CloseScan(endpoint, id));
        }
    }

    /// Starts a scan whose client takes page after page. Returns `None` if the node does not serve.
    pub(crate) fn begin_scan(&mut self, node: NodeIndex, scan: Scan) -> Option<(ScanId, Endpoint)> {
        let endpoint = self.serving_endpoint(node)?;
        let least_wall = self.show_clocks(node).wall;
        let id = self.judge.scans.next_id();
        self.judge.scans.begin(ScanRecord {
            id,
            node,
            scan: scan.clone(),
            began: self.now,
            least_wall,
            greatest_wall: least_wall,
            seen: Vec::new(),
            page_times: None,
            lost_snapshot: false,
            ended: None,
        });
        let request = self.judge.scans.call(id, self.now);
        self.at(self.now, WorldEvent::Command(endpoint, request, Command::Scan { id, scan }));
        Some((id, endpoint))
    }

    /// Requests the next page of a scan.
    pub(crate) fn pull_page(&mut self, endpoint: Endpoint, id: ScanId) {
        if self.process(endpoint).is_some() && self.judge.scans.is_open(id) {
            let request = self.judge.scans.call(id, self.now);
            self.command(endpoint, request, Command::NextPage { id });
        }
    }

    /// Closes a scan.
    pub(crate) fn close_scan(&mut self, endpoint: Endpoint, id: ScanId) {
        if self.process(endpoint).is_some() && self.judge.scans.is_open(id) {
            self.judge.end_scan(id, self.now, ScanEnd::ClosedByClient);
            self.step(endpoint, ProcessInput::CloseScan(id));
        }
    }

    /// Handles the reply to a page command.
    pub(crate) fn receive_page(&mut self, endpoint: Endpoint, to: RequestId, reply: &Reply) {
        let Some(id) = self.judge.page(to, self.now, reply) else { return };
        let is_over = self.now > self.workload.ends;
        let pause = if is_over { Duration::ZERO } else { self.workload.pause(&self.scenario) };
        self.after(pause, WorldEvent::PullPage(endpoint, id));
    }

    /// Coordinator that serves a client of this node; `None` if the node does not serve.
    pub(super) fn serving_endpoint(&mut self, node: NodeIndex) -> Option<Endpoint> {
        let number = self.workload.rng.below(u64::from(self.scenario.coordinators)) as u8;
        let process = self.hosts[node.as_usize()].process.as_ref();
        let serves = process.is_some_and(|process| process.node.is_ready() && !process.is_draining);
        self.endpoint(node, Requester::Coordinator(number)).filter(|_| serves)
    }
}
