//! Clients that read ranges: of whom, which, how fast, and whether to the end.
//!
//! They come at random times of the safety phase. Most take page after page as fast as they come; some pause, now and
//! then for longer than a snapshot is kept; some leave midway, whether a page is on its way or not.

use super::Workload;
use crate::history::{CommandKind, ScanEnd, ScanRecord};
use crate::host::process::Input;
use crate::network::Endpoint;
use crate::scenario::Scenario;
use crate::world::{Event, World};
use cluster::{Command, Cut, Key, KeyRange, NodeIndex, Reply, RequestId, Requester, Scan, ScanId, ScanScope};
use std::time::Duration;

/// The share of scans that are of one node.
const OF_NODE: f64 = 0.3;
/// The share of scans whose client leaves at some time, if they go on for so long.
const LEAVING: f64 = 0.2;
/// The longest that a client stays which leaves.
const STAY_MAX: Duration = Duration::from_secs(2);
/// The longest pause of a client.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// The longest that a client takes for a page which does not pause.
const TAKING_MAX: Duration = Duration::from_millis(2);
/// The most entries that are wanted, where there is a limit.
const LIMIT_MAX: u64 = 30;

impl Workload {
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

    /// A key that may be one of those in use, or stand before all of them, between them or behind them.
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
    /// Has the clients of the scenario read ranges, each at a random time until the workload ends.
    pub(super) fn begin_scans(&mut self) {
        let within = (self.workload.ends - self.now).as_nanos() as u64;
        for _ in 0..self.scenario.scans {
            let delay = Duration::from_nanos(self.workload.rng.below(within));
            self.after(delay, Event::StartScan);
        }
    }

    /// A client wants some range of some node; it may not stay to the end.
    pub(crate) fn start_scan(&mut self) {
        let scan = self.workload.scan(&self.scenario);
        let node = NodeIndex(self.workload.rng.below(u64::from(self.scenario.nodes)) as u8);
        let node = self.host_for_client(node);
        let Some((id, endpoint)) = self.begin_scan(node, scan) else { return };
        if self.workload.rng.chance(LEAVING) {
            let stays = Duration::from_nanos(self.workload.rng.below(STAY_MAX.as_nanos() as u64));
            self.after(stays, Event::CloseScan(endpoint, id));
        }
    }

    /// Has a client begin a scan, and take page after page. A node that does not serve refuses.
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
        self.at(self.now, Event::Command(endpoint, request, Command::Scan { id, scan }));
        Some((id, endpoint))
    }

    /// A client wants the next page.
    pub(crate) fn pull_page(&mut self, endpoint: Endpoint, id: ScanId) {
        if self.process(endpoint).is_some() && self.judge.scans.is_open(id) {
            let request = self.judge.scans.call(id, self.now);
            self.command(endpoint, request, Command::NextPage { id });
        }
    }

    /// A client does not want more.
    pub(crate) fn close_scan(&mut self, endpoint: Endpoint, id: ScanId) {
        if self.process(endpoint).is_some() && self.judge.scans.is_open(id) {
            self.judge.end_scan(id, self.now, ScanEnd::ClosedByClient);
            self.step(endpoint, Input::CloseScan(id));
        }
    }

    /// A page has come, or the end of a scan.
    pub(crate) fn receive_page(&mut self, endpoint: Endpoint, to: RequestId, reply: &Reply) {
        let Some(id) = self.judge.page(to, self.now, reply) else { return };
        let is_over = self.now > self.workload.ends;
        let pause = if is_over { Duration::ZERO } else { self.workload.pause(&self.scenario) };
        self.after(pause, Event::PullPage(endpoint, id));
    }

    /// Where a client of a node is served, by one of its machines; `None` when the node does not serve.
    pub(super) fn serving_endpoint(&mut self, node: NodeIndex) -> Option<Endpoint> {
        let number = self.workload.rng.below(u64::from(self.scenario.coordinators)) as u8;
        let process = self.hosts[node.as_usize()].process.as_ref();
        let serves = process.is_some_and(|process| process.node.is_ready() && !process.is_draining);
        self.endpoint(node, Requester::Coordinator(number)).filter(|_| serves)
    }
}
