//! Layout records that the nodes of a cluster adopt while they run.

mod common;
#[path = "../../veche/tests/common/http.rs"]
#[allow(dead_code, reason = "the black-box tests use the rest")]
mod http;

use cluster::{LayoutEpoch, LayoutRecord};
use common::{eventually, free_address};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, MemFs, OpenMode, OperationKind, OperationMatch, OsClock};
use http::{bare, exchange};
use serde_json::Value;
use server::{Config, Limits, Server};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use store::{Identity, LAYOUT_FILE, Membership, VOTES_FILE};

const DATA: &str = "/data";

/// A cluster whose nodes run on in-memory disks that can fail.
struct Cluster {
    addresses: Vec<SocketAddr>,
    disks: Vec<FaultFs>,
    servers: Vec<Option<Server>>,
}

impl Cluster {
    fn start(nodes: usize) -> Self {
        let disk = |_| FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
        let mut cluster = Self {
            addresses: (0..nodes).map(|_| free_address()).collect(),
            disks: (0..nodes).map(disk).collect(),
            servers: (0..nodes).map(|_| None).collect(),
        };
        cluster.start_all();
        cluster
    }

    fn url(&self, node: usize) -> String {
        format!("http://{}", self.addresses[node])
    }

    fn config(&self, node: usize) -> Config {
        let urls = (0..self.addresses.len()).map(|node| self.url(node));
        Config {
            listen: self.addresses[node],
            membership: Membership::of(urls.collect()),
            self_name: self.url(node),
            default_from: self.addresses.len() as u8,
            ..common::config(Limits::default())
        }
    }

    fn start_node(&mut self, node: usize) {
        let env = Env { fs: Arc::new(self.disks[node].clone()), clock: Arc::new(OsClock::new()) };
        self.servers[node] = Some(Server::start(self.config(node), env).expect("the port is free"));
    }

    /// Starts all nodes and waits until each sees the others.
    #[track_caller]
    fn start_all(&mut self) {
        (0..self.addresses.len()).for_each(|node| self.start_node(node));
        self.wait_until_up();
    }

    #[track_caller]
    fn wait_until_up(&self) {
        for node in 0..self.addresses.len() {
            eventually(&format!("node {node} sees all"), || {
                let Some(status) = self.document(node, "/v0/status") else { return false };
                let nodes = status["nodes"].as_array().expect("a list");
                nodes.iter().all(|node| node["state"] == "up" && node["standing"] == "settled")
            });
        }
    }

    #[track_caller]
    fn stop(&mut self, node: usize) {
        self.servers[node].take().expect("it runs").stop().expect("it ends well");
    }

    #[track_caller]
    fn stop_all(&mut self) {
        (0..self.addresses.len()).for_each(|node| self.stop(node));
    }

    /// The JSON document at `path`; `None` while the node does not serve it.
    fn document(&self, node: usize, path: &str) -> Option<Value> {
        let answer = exchange(self.addresses[node], bare("GET", path));
        (answer.status == 200).then(|| serde_json::from_slice(&answer.body).expect("JSON"))
    }

    #[track_caller]
    fn layout(&self, node: usize) -> Value {
        self.document(node, "/v0/layout").expect("the node is open")
    }

    /// The value of a metric with these labels.
    #[track_caller]
    fn metric(&self, node: usize, sample: &str) -> f64 {
        let text = exchange(self.addresses[node], bare("GET", "/metrics")).text();
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{sample} is not in {text}")).parse().expect("a number")
    }

    /// Replaces the layout record of a node that does not run by a child of the cluster's newest
    /// one, with the changes of `change`.
    fn plant(&self, node: usize, change: impl FnOnce(&mut LayoutRecord)) -> LayoutRecord {
        assert!(self.servers.iter().all(Option::is_none), "all nodes are stopped");
        let records = self.disks.iter().map(|disk| LayoutRecord::decode(&read(disk, LAYOUT_FILE)));
        let records = records.map(|record| record.expect("a record"));
        let parent = records.max_by_key(|record| record.epoch).expect("nodes");
        let mut record = parent.clone();
        record.epoch = parent.epoch.next().expect("a small number");
        record.parent = parent.hash();
        change(&mut record);
        record.verify(&parent).expect("a child");
        write(&self.disks[node], LAYOUT_FILE, &record.encode());
        record
    }

    /// Names the ids of all nodes in `record`.
    fn name_all(&self, record: &mut LayoutRecord) {
        for member in &mut record.members {
            let node = (0..self.addresses.len()).find(|node| self.url(*node) == member.url);
            let identity = Identity::load(&self.disks[node.expect("a member")], Path::new(DATA));
            member.node_id = Some(identity.expect("an identity").tag);
        }
    }
}

fn read(fs: &dyn Fs, name: &str) -> Vec<u8> {
    let file = fs.open(&Path::new(DATA).join(name), OpenMode::Read).expect("it exists");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_exact_at(&mut bytes, 0).expect("it is readable");
    bytes
}

fn write(fs: &dyn Fs, name: &str, bytes: &[u8]) {
    let file = fs.open(&Path::new(DATA).join(name), OpenMode::CreateOrTruncate).expect("it is writable");
    file.write_at(bytes, 0).expect("it is writable");
    file.sync_data().expect("it is writable");
}

#[test]
fn a_record_of_one_node_is_adopted_by_all_without_a_restart() {
    let mut cluster = Cluster::start(3);
    cluster.stop_all();
    let record = cluster.plant(0, |record| cluster.name_all(record));
    cluster.start_all();
    for node in 0..3 {
        eventually("the node has adopted the record", || {
            cluster.layout(node)["hash"] == record.hash().to_string()
        });
        assert_eq!(cluster.metric(node, "veche_layout_epoch"), record.epoch.0 as f64);
        let layout = cluster.layout(node);
        let ids = layout["members"].as_array().expect("a list").iter().map(|member| &member["node_id"]);
        assert!(ids.into_iter().all(Value::is_string), "{layout}");
    }
    // The handshakes state the adopted record: a node of another record of the epoch is refused.
    cluster.stop(1);
    assert_eq!(LayoutRecord::decode(&read(&cluster.disks[1], LAYOUT_FILE)).as_ref(), Ok(&record));
    let mut other = record.clone();
    other.members[0].zone = "elsewhere".to_owned();
    write(&cluster.disks[1], LAYOUT_FILE, &other.encode());
    cluster.start_node(1);
    eventually("both sides say why", || {
        [0, 1].into_iter().all(|node| {
            let status = cluster.document(node, "/v0/status").unwrap_or_default();
            status["warnings"].to_string().contains("different layout records of epoch")
        })
    });
    cluster.stop_all();
}

#[test]
fn votes_that_cannot_be_stored_are_stored_once_the_disk_takes_them() {
    let mut cluster = Cluster::start(3);
    cluster.stop_all();
    let record = cluster.plant(0, |record| cluster.name_all(record));
    let refused = OperationMatch::kind(OperationKind::Rename).path(LAYOUT_FILE).sticky();
    cluster.disks[1].set_plan(FaultPlan::fail(refused, Fault::DeviceError));
    cluster.start_all();
    eventually("another node adopts it", || cluster.layout(2)["epoch"] == record.epoch.0);
    let failures = cluster.disks[1].operations();
    eventually("it is tried", || cluster.disks[1].operations() > failures + 10);
    assert_eq!(cluster.layout(1)["epoch"], record.epoch.0 - 1, "it is not durable");
    cluster.disks[1].clear();
    eventually("it is tried again", || cluster.layout(1)["epoch"] == record.epoch.0);
    cluster.stop_all();
}

#[test]
fn a_record_that_contradicts_that_of_a_peer_is_counted_and_refused() {
    let mut cluster = Cluster::start(2);
    cluster.stop_all();
    // The record of epoch 3 is a child of another record of epoch 2 than that of node 1.
    let second = cluster.plant(1, |record| record.members[0].zone = "here".to_owned());
    let first = LayoutRecord::decode(&read(&cluster.disks[0], LAYOUT_FILE)).expect("a record");
    let mut other = LayoutRecord { epoch: second.epoch, parent: first.hash(), ..first };
    other.members[0].zone = "there".to_owned();
    let mut third = LayoutRecord { epoch: LayoutEpoch(second.epoch.0 + 1), parent: other.hash(), ..other };
    third.members[0].weight = 2;
    write(&cluster.disks[0], LAYOUT_FILE, &third.encode());
    cluster.start_all();
    let conflicts = format!("veche_layout_conflicts_total{{peer=\"{}\"}}", cluster.url(0));
    eventually("the conflict is counted", || cluster.metric(1, &conflicts) >= 1.0);
    assert_eq!(cluster.layout(1)["hash"], second.hash().to_string());
    cluster.stop_all();
}

/// The names are those of the files that the tests above replace.
#[test]
fn a_node_has_its_layout_and_its_votes_in_files() {
    let mut cluster = Cluster::start(2);
    cluster.stop_all();
    assert!([LAYOUT_FILE, VOTES_FILE].iter().all(|name| !read(&cluster.disks[0], name).is_empty()));
}
