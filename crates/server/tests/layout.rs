//! Layout records that the nodes of a cluster adopt while they run.

mod common;
#[path = "../../veche/tests/common/http.rs"]
#[allow(dead_code, reason = "the black-box tests use the rest")]
mod http;

use cluster::{
    Incarnation, LayoutEpoch, LayoutMember, LayoutRecord, MemberState, NodeIndex, NodeSet, PeerHello,
    Requester, SyncState,
};
use common::{eventually, free_address};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, MemFs, OpenMode, OperationKind, OperationMatch, OsClock};
use http::{bare, exchange};
use serde_json::Value;
use server::{Config, Limits, Server, ServerError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use stdx::{Hlc, NodeTag};
use store::{DirectoryCluster, Identity, LAYOUT_FILE, Membership, VOTES_FILE};
use wire::handshake::{
    ClusterDigest, DialStep, Dialer, HandshakeConfig, HandshakeError, LayoutStatement, ProtocolVersions,
    Secret,
};
use wire::upgrade::{self, UpgradeResponse};

const DATA: &str = "/data";

/// A cluster whose nodes run on in-memory disks that can fail.
struct Cluster {
    addresses: Vec<SocketAddr>,
    /// The addresses for which the directories were made.
    first_addresses: Vec<SocketAddr>,
    memory: Vec<MemFs>,
    /// The same disks, which can fail.
    disks: Vec<FaultFs>,
    servers: Vec<Option<Server>>,
    default_from: u8,
}

impl Cluster {
    fn start(nodes: usize) -> Self {
        let mut cluster = Self::prepare(nodes);
        cluster.start_all();
        cluster
    }

    /// Creates a cluster without starting its nodes.
    fn prepare(nodes: usize) -> Self {
        let memory: Vec<_> = (0..nodes).map(|_| MemFs::new()).collect();
        let disk = |memory: &MemFs| FaultFs::new(Arc::new(memory.clone()), FaultPlan::none());
        let addresses: Vec<_> = (0..nodes).map(|_| free_address()).collect();
        Self {
            first_addresses: addresses.clone(),
            addresses,
            disks: memory.iter().map(disk).collect(),
            memory,
            servers: (0..nodes).map(|_| None).collect(),
            default_from: nodes as u8,
        }
    }

    fn url(&self, node: usize) -> String {
        format!("http://{}", self.addresses[node])
    }

    /// The configuration of a node, as the command derives it from the data directory.
    fn config(&self, node: usize) -> Config {
        let (membership, self_name) = match DirectoryCluster::find(&self.env(node), Path::new(DATA)) {
            Ok(DirectoryCluster::Named(recorded)) => {
                let own = recorded.own.clone().expect("a member");
                (Membership { own: None, default_from: None, ..recorded }, own)
            }
            _ => {
                let urls = self.first_addresses.iter().map(|address| format!("http://{address}"));
                (Membership::of(urls.collect()), format!("http://{}", self.first_addresses[node]))
            }
        };
        Config {
            listen: self.addresses[node],
            moved_to: Some(self.url(node)).filter(|url| *url != self_name),
            listed: (0..self.addresses.len()).map(|node| self.url(node)).collect(),
            membership,
            self_name,
            default_from: self.default_from,
            ..common::config(Limits::default())
        }
    }

    fn env(&self, node: usize) -> Env {
        Env { fs: Arc::new(self.disks[node].clone()), clock: Arc::new(OsClock::new()) }
    }

    fn start_node(&mut self, node: usize) {
        self.servers[node] =
            Some(Server::start(self.config(node), self.env(node)).expect("the port is free"));
    }

    /// A cluster whose record names the ids of all nodes, and is adopted by all.
    #[track_caller]
    fn start_named(nodes: usize) -> Self {
        let cluster = Self::start(nodes);
        cluster.wait_until_named();
        cluster
    }

    #[track_caller]
    fn wait_until_named(&self) {
        eventually("all nodes hold a record that names their ids", || {
            let layouts: Vec<_> = (0..self.addresses.len()).map(|node| self.layout(node)).collect();
            let mut members = layouts[0]["members"].as_array().expect("a list").iter();
            members.all(|member| member["node_id"].is_string())
                && layouts.iter().all(|layout| layout["hash"] == layouts[0]["hash"])
        });
    }

    /// The record of a node that does not run.
    fn record(&self, node: usize) -> LayoutRecord {
        LayoutRecord::decode(&read(&self.disks[node], LAYOUT_FILE)).expect("a record")
    }

    #[track_caller]
    fn wait_until_adopted(&self, record: &LayoutRecord) {
        for node in 0..self.addresses.len() {
            eventually(&format!("node {node} has adopted the record"), || {
                self.layout(node)["hash"] == record.hash().to_string()
            });
        }
    }

    /// Whether a warning of the node has these words.
    fn warns(&self, node: usize, words: &str) -> bool {
        let answer = exchange(self.addresses[node], bare("GET", "/v0/status"));
        let status: Value = serde_json::from_slice(&answer.body).expect("JSON");
        status["warnings"].to_string().contains(words)
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

    /// Adds a node without a data directory. Returns its number.
    fn add_node(&mut self) -> usize {
        let (address, memory) = (free_address(), MemFs::new());
        self.addresses.push(address);
        self.first_addresses.push(address);
        self.disks.push(FaultFs::new(Arc::new(memory.clone()), FaultPlan::none()));
        self.memory.push(memory);
        self.servers.push(None);
        self.servers.len() - 1
    }

    /// Replaces the layout record of a node that does not run by a child of the cluster's newest
    /// one, with the changes of `change`.
    fn plant(&self, node: usize, change: impl FnOnce(&mut LayoutRecord)) -> LayoutRecord {
        assert!(self.servers.iter().all(Option::is_none), "all nodes are stopped");
        let records = (0..self.addresses.len()).map(|node| self.record(node));
        let parent = records.max_by_key(|record| record.epoch).expect("nodes");
        self.plant_child(node, &parent, change)
    }

    /// Replaces the layout record of a node that does not run by a child of `parent`, with the
    /// changes of `change`.
    fn plant_child(
        &self,
        node: usize,
        parent: &LayoutRecord,
        change: impl FnOnce(&mut LayoutRecord),
    ) -> LayoutRecord {
        assert!(self.servers[node].is_none(), "the node does not run");
        let mut record = parent.clone();
        record.epoch = parent.epoch.next().expect("a small number");
        record.parent = parent.hash();
        change(&mut record);
        record.verify(parent).expect("a child");
        write(&self.disks[node], LAYOUT_FILE, &record.encode());
        record
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
    let mut cluster = Cluster::start_named(3);
    cluster.stop_all();
    let record = cluster.plant(0, |record| record.members[0].zone = "west".to_owned());
    cluster.start_all();
    cluster.wait_until_adopted(&record);
    for node in 0..3 {
        assert_eq!(cluster.metric(node, "veche_layout_epoch"), record.epoch.0 as f64);
        let layout = cluster.layout(node);
        let ids = layout["members"].as_array().expect("a list").iter().map(|member| &member["node_id"]);
        assert!(ids.into_iter().all(Value::is_string), "{layout}");
    }
    // The handshakes state the adopted record: a node of another record of the epoch is refused.
    cluster.stop(1);
    assert_eq!(cluster.record(1), record);
    let mut other = record.clone();
    other.members[0].zone = "elsewhere".to_owned();
    write(&cluster.disks[1], LAYOUT_FILE, &other.encode());
    cluster.start_node(1);
    eventually("both sides say why", || {
        [0, 1].into_iter().all(|node| cluster.warns(node, "different layout records of epoch"))
    });
    cluster.stop_all();
}

#[test]
fn votes_that_cannot_be_stored_are_stored_once_the_disk_takes_them() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop_all();
    let record = cluster.plant(0, |record| record.members[0].zone = "west".to_owned());
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
    let mut cluster = Cluster::start_named(2);
    cluster.stop_all();
    // The record of node 0 is a child of another record than that of node 1.
    let second = cluster.plant(1, |record| record.members[0].zone = "here".to_owned());
    let first = cluster.record(0);
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

/// The votes of one node are removed, and those of another one are damaged.
#[test]
fn a_node_that_has_lost_its_votes_warns_of_it_and_serves() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop_all();
    let votes = Path::new(DATA).join(VOTES_FILE);
    cluster.memory[0].remove_file(&votes).expect("it was there");
    cluster.memory[1].corrupt(&votes, 20, 1).expect("it is there");
    cluster.start_all();
    for node in [0, 1] {
        assert!(cluster.warns(node, "votes"), "{:?}", cluster.document(node, "/v0/status"));
    }
    assert!(!cluster.warns(2, "votes"));
    cluster.stop_all();
}

#[test]
fn members_are_shown_with_their_health_and_their_epochs() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop(2);
    let url = cluster.url(2);
    eventually("a lost voter is shown", || {
        cluster.layout(0)["voters_unreachable"] == serde_json::json!([url])
    });
    assert_eq!(cluster.metric(0, "veche_layout_voters_unreachable"), 1.0);
    let member = cluster.layout(0)["members"][2].clone();
    assert_eq!((&member["health"], &member["epoch"]), (&"unreachable".into(), &cluster.layout(0)["epoch"]));
    // A node whose disk refuses the next record stays behind.
    cluster.stop(0);
    cluster.stop(1);
    let record = cluster.plant(0, |record| record.members[0].zone = "west".to_owned());
    let refused = OperationMatch::kind(OperationKind::Rename).path(LAYOUT_FILE).sticky();
    cluster.disks[1].set_plan(FaultPlan::fail(refused, Fault::DeviceError));
    cluster.start_all();
    let behind = cluster.url(1);
    eventually("it is shown", || cluster.layout(0)["members_behind"] == serde_json::json!([behind]));
    assert_eq!(cluster.metric(0, "veche_layout_members_behind"), 1.0);
    assert_eq!(cluster.layout(0)["members"][1]["epoch"], record.epoch.0 - 1);
    cluster.disks[1].clear();
    eventually("none is behind", || cluster.metric(0, "veche_layout_members_behind") == 0.0);
    assert_eq!(cluster.layout(0)["members_behind"], serde_json::json!([]));
    cluster.stop_all();
}

/// With one of two voters, no record can name the id of the node that replaces the other.
#[test]
fn a_voter_that_another_node_replaces_is_shown_as_unreachable() {
    let mut cluster = Cluster::start_named(2);
    cluster.stop(1);
    cluster.memory[1] = MemFs::new();
    cluster.disks[1] = FaultFs::new(Arc::new(cluster.memory[1].clone()), FaultPlan::none());
    cluster.start_node(1);
    let url = cluster.url(1);
    eventually("it is shown", || cluster.layout(0)["voters_replaced"] == serde_json::json!([url]));
    assert_eq!(cluster.layout(0)["voters_unreachable"], serde_json::json!([url]));
    assert_eq!(cluster.layout(0)["members"][1]["health"], "up");
    assert_eq!(cluster.metric(0, "veche_layout_voters_unreachable"), 1.0);
    let words = ["1 of the 2 voters", "another node has taken the place", "veche layout recover --unsafe"];
    eventually("it is warned of", || words.iter().all(|words| cluster.warns(0, words)));
    // The procedure of docs/operations.md for a cluster of two nodes, without the wait for the
    // rebuild, which takes two minutes.
    cluster.stop_all();
    store::recover_layout(&cluster.env(0), Path::new(DATA), &[url], store::Recover::Apply)
        .expect("half of the voters are lost");
    write(&cluster.disks[1], LAYOUT_FILE, &read(&cluster.disks[0], LAYOUT_FILE));
    (0..2).for_each(|node| cluster.start_node(node));
    for node in 0..2 {
        eventually("the voter that remains decides alone, and the new node is linked", || {
            let Some(layout) = cluster.document(node, "/v0/layout") else { return false };
            layout["voters"] == serde_json::json!([cluster.url(0)])
                && layout["voters_unreachable"] == serde_json::json!([])
                && layout["members"][1]["health"] == "up"
        });
    }
    cluster.stop_all();
}

#[test]
fn the_record_of_a_node_on_its_own_has_no_address() {
    let mut cluster = Cluster::prepare(1);
    for _ in 0..2 {
        cluster.addresses[0] = free_address();
        let config = Config { listen: cluster.addresses[0], ..common::config(Limits::default()) };
        cluster.servers[0] = Some(Server::start(config, cluster.env(0)).expect("the port is free"));
        eventually("its id is named", || {
            cluster.document(0, "/v0/layout").is_some_and(|it| it["members"][0]["node_id"].is_string())
        });
        assert_eq!(cluster.layout(0)["members"][0]["url"], cluster.url(0), "the page has the address");
        cluster.stop(0);
        let record = cluster.record(0);
        assert_eq!((record.epoch, record.members[0].url.as_str()), (LayoutEpoch(2), ""));
    }
}

#[test]
fn a_node_that_moves_keeps_its_identity_and_is_dialed_at_its_new_address() {
    let mut cluster = Cluster::start_named(3);
    let former = cluster.url(2);
    let put = http::put("k&ack=3", "v");
    assert_eq!(exchange(cluster.addresses[0], &put).status, 201);
    cluster.stop(2);
    eventually("it is missed", || {
        let status = cluster.document(0, "/v0/status").expect("it serves");
        status["nodes"][2]["state"] == "unreachable"
    });
    cluster.addresses[2] = free_address();
    cluster.start_node(2);
    // A node is up if it answers over the link that was dialed to it.
    cluster.wait_until_up();
    assert_eq!(exchange(cluster.addresses[2], http::get("k&ack=3")).text(), "v");
    // The cluster decides a record that has the new address.
    let moved = cluster.url(2);
    for node in 0..3 {
        eventually("the record follows", || cluster.layout(node)["members"][2]["url"] == moved);
        let status = cluster.document(node, "/v0/status").expect("it serves");
        assert_eq!(status["nodes"][2]["url"], moved);
    }
    cluster.wait_until_up();
    cluster.stop_all();
    assert_ne!(moved, former);
    assert_eq!(cluster.config(2).moved_to, None, "the record has its address");
    cluster.start_all();
    cluster.stop_all();
}

#[test]
fn a_node_that_has_moved_is_named_by_the_address_of_the_record() {
    let mut cluster = Cluster::start_named(3);
    let former = cluster.url(2);
    cluster.stop(2);
    cluster.addresses[2] = free_address();
    cluster.start_node(2);
    let moved = cluster.url(2);
    for node in 0..3 {
        eventually("the record follows", || {
            cluster.document(node, "/v0/layout").is_some_and(|layout| layout["members"][2]["url"] == moved)
        });
    }
    cluster.wait_until_up();
    for node in 0..2 {
        assert_eq!(cluster.metric(node, &format!("veche_peer_state{{peer=\"{moved}\",state=\"up\"}}")), 1.0);
        let metrics = exchange(cluster.addresses[node], bare("GET", "/metrics")).text();
        assert!(!metrics.contains(&former), "{metrics}");
    }
    cluster.stop(1);
    cluster.stop(2);
    let ready = || exchange(cluster.addresses[0], bare("GET", "/v0/ready"));
    eventually("most replicas are missing", || ready().status == 503);
    eventually("both are missing", || ready().text().contains(&cluster.url(1)));
    eventually("the node that has moved is missing", || ready().text().contains(&moved));
    assert!(!ready().text().contains(&former), "{}", ready().text());
    cluster.stop(0);
}

#[test]
fn nodes_that_have_all_moved_find_each_other_at_listed_addresses() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop_all();
    cluster.addresses = (0..3).map(|_| free_address()).collect();
    cluster.start_all();
    assert_eq!(exchange(cluster.addresses[0], http::put("k&ack=3", "v")).status, 201);
    for node in 0..3 {
        eventually("the record follows", || {
            let layout = cluster.layout(node);
            (0..3).all(|of| layout["members"][of]["url"] == cluster.url(of))
        });
    }
    cluster.stop_all();
}

#[test]
fn a_copy_of_a_node_at_another_address_is_refused_while_the_node_runs() {
    let mut cluster = Cluster::start_named(3);
    let (original, server) = (cluster.addresses[2], cluster.servers[2].take());
    cluster.disks[2] = FaultFs::new(Arc::new(cluster.memory[2].kill()), FaultPlan::none());
    cluster.addresses[2] = free_address();
    cluster.start_node(2);
    eventually("the copy says what to do", || cluster.warns(2, "give it an empty --data"));
    let status = |node| cluster.document(node, "/v0/status").expect("it serves");
    let refused = |node| status(node)["links"]["refused"].as_u64().expect("a number");
    assert!(refused(0) + refused(1) > 0, "{} {}", status(0), status(1));
    assert_eq!(status(0)["nodes"][2]["state"], "up", "the node itself is not affected");
    let copy = cluster.servers[2].take().expect("it runs");
    copy.stop().expect("it ends well");
    (cluster.addresses[2], cluster.servers[2]) = (original, server);
    cluster.wait_until_up();
    cluster.stop_all();
}

#[test]
fn a_node_that_was_declared_dead_is_refused_and_ends() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop_all();
    let record = cluster.plant(0, |record| record.members[2].state = MemberState::Dead);
    write(&cluster.disks[1], LAYOUT_FILE, &record.encode());
    (0..3).for_each(|node| cluster.start_node(node));
    eventually("it ends", || http::Connection::try_open(cluster.addresses[2]).is_err());
    let ended = cluster.servers[2].take().expect("it was started").stop();
    assert!(matches!(ended, Err(ServerError::Removed { .. })), "{ended:?}");
    assert_eq!(cluster.record(2).epoch.0, record.epoch.0 - 1, "it has not adopted the record");
    assert_eq!(cluster.layout(0)["members"][2]["health"], "unreachable");
    [0, 1].into_iter().for_each(|node| cluster.stop(node));
}

#[test]
fn a_member_that_was_declared_dead_is_to_be_replaced_and_not_to_be_started() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop_all();
    let record = cluster.plant(0, |record| record.members[2].state = MemberState::Dead);
    write(&cluster.disks[1], LAYOUT_FILE, &record.encode());
    (0..2).for_each(|node| cluster.start_node(node));
    let of_lost = format!("{} was declared lost", cluster.url(2));
    for node in 0..2 {
        eventually("the node says what to do", || cluster.warns(node, &of_lost));
        eventually("the other node is up", || {
            let status = cluster.document(node, "/v0/status");
            status.is_some_and(|status| status["nodes"][1 - node]["state"] == "up")
        });
        assert!(!cluster.warns(node, "start it, or look at the network"));
    }
    cluster.stop(1);
    let start = format!("{} is unreachable: start it", cluster.url(1));
    eventually("a member that is down is to be started", || cluster.warns(0, &start));
    let ready = || exchange(cluster.addresses[0], bare("GET", "/v0/ready")).text();
    let missing = format!("Missing: {}, {} (declared lost).", cluster.url(1), cluster.url(2));
    eventually("both are missing", || ready().contains(&missing));
    cluster.stop(0);
}

/// The other nodes run while one node brings the record.
#[test]
fn a_running_node_dials_a_member_at_the_address_of_a_new_record() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop(0);
    cluster.stop(2);
    // Node 2 is reached at another address than its own record has, and does not state it.
    let slot = cluster.record(2).members.iter().position(|member| member.url == cluster.url(2));
    let former = std::mem::replace(&mut cluster.addresses[2], free_address());
    let moved = cluster.url(2);
    cluster.plant_child(0, &cluster.record(0), |record| {
        record.members[slot.expect("a member")].url.clone_from(&moved);
    });
    cluster.start_node(0);
    eventually("node 1 has adopted the record", || cluster.layout(1)["members"].to_string().contains(&moved));
    let config = Config { moved_to: None, ..cluster.config(2) };
    assert_eq!(config.self_name, format!("http://{former}"));
    cluster.servers[2] = Some(Server::start(config, cluster.env(2)).expect("the port is free"));
    cluster.wait_until_up();
    assert_eq!(exchange(cluster.addresses[1], http::put("k&ack=3", "v")).status, 201);
    cluster.stop_all();
}

#[test]
fn a_member_is_added_and_removed_without_a_restart_of_the_others() {
    let mut cluster = Cluster::start_named(3);
    assert_eq!(exchange(cluster.addresses[1], http::put("k&from=4", "v")).status, 400);
    let added = cluster.add_node();
    let url = cluster.url(added);
    cluster.stop(0);
    let slot = NodeIndex(3);
    let record = cluster.plant_child(0, &cluster.record(0), |record| {
        let (node_id, state) = (Some(NodeTag(0xadded)), MemberState::Joining);
        record.members.push(LayoutMember {
            slot,
            node_id,
            url: url.clone(),
            state,
            ..record.members[0].clone()
        });
        let lists = record.lists.chunks_exact(3);
        record.lists = lists.flat_map(|list| list.iter().copied().chain([slot])).collect();
    });
    // As operators do who copy the record into a new directory.
    cluster.start_node(added);
    eventually("the directory is made", || cluster.document(added, "/v0/layout").is_some());
    cluster.stop(added);
    write(&cluster.disks[added], LAYOUT_FILE, &record.encode());
    cluster.start_node(added);
    cluster.start_node(0);
    cluster.wait_until_up();
    assert_eq!(
        cluster.document(1, "/v0/status").expect("it serves")["nodes"].as_array().map(Vec::len),
        Some(4)
    );
    // All I/O threads of a node that was not restarted know the member.
    for number in 0..20 {
        let put = http::put(&format!("k{number}&from=4&ack=4"), "v");
        assert_eq!(exchange(cluster.addresses[1], &put).status, 201);
        let get = http::get(&format!("k{number}&from=4&ack=4"));
        assert_eq!(exchange(cluster.addresses[added], get).text(), "v");
    }
    let fenced = |node| cluster.metric(node, "veche_layout_fenced_epoch");
    assert_eq!(fenced(1), 1.0, "no replica has changed");
    // The record names the id of the node in the end. Then the node is removed.
    eventually("the new node is named", || {
        let layouts: Vec<_> = (0..4).map(|node| cluster.layout(node)).collect();
        layouts
            .iter()
            .all(|layout| layout["hash"] == layouts[0]["hash"] && layout["epoch"] == record.epoch.0 + 1)
    });
    cluster.stop(0);
    let parent = cluster.record(0);
    cluster.plant_child(0, &parent, |record| {
        record.members.retain(|member| member.slot != slot);
        record.lists.retain(|listed| *listed != slot);
        record.voters.retain(|voter| *voter != slot);
    });
    cluster.start_node(0);
    for node in 0..3 {
        eventually("the others have parted with it", || {
            let Some(status) = cluster.document(node, "/v0/status") else { return false };
            status["nodes"].as_array().map(Vec::len) == Some(3) && !status["nodes"].to_string().contains(&url)
        });
        eventually("the links are open", || {
            exchange(cluster.addresses[node], http::put("k&ack=3", "w")).status == 201
        });
    }
    assert_eq!(exchange(cluster.addresses[1], http::put("k&from=4", "v")).status, 400);
    eventually("the removed node says why it has no peers", || {
        cluster.warns(added, "was removed from the cluster")
    });
    cluster.stop_all();
}

/// A change of the replicas of a partition is fenced by all threads of all nodes.
#[test]
fn the_epoch_of_a_changed_partition_is_fenced() {
    let mut cluster = Cluster::start_named(3);
    cluster.stop(0);
    let record = cluster.plant_child(0, &cluster.record(0), |record| {
        record.lists.swap(0, 2);
        record.changed[0] = record.epoch;
    });
    cluster.start_node(0);
    cluster.wait_until_up();
    for node in 0..3 {
        let fenced = || cluster.metric(node, "veche_layout_fenced_epoch");
        eventually("the epoch is fenced", || fenced() == record.epoch.0 as f64);
    }
    cluster.stop_all();
}

/// A connection to node 0 of a node that speaks version 3 of the protocol.
struct OldPeer {
    socket: TcpStream,
    dialer: Dialer,
}

impl OldPeer {
    /// Dials as node 1. Returns the answer to the hello too.
    fn dial(
        cluster: &Cluster,
        tag: NodeTag,
        requester: Requester,
    ) -> (Self, Result<DialStep, HandshakeError>) {
        let names: Vec<_> = (0..3).map(|node| cluster.url(node)).collect();
        let names = Membership::of(names).nodes;
        let index = |node: usize| {
            NodeIndex(names.iter().position(|name| *name == cluster.url(node)).expect("a member") as u8)
        };
        let local = HandshakeConfig {
            hello: PeerHello {
                node: index(1),
                tag,
                requester,
                incarnation: Incarnation(1),
                clock: Hlc::ZERO,
                sync_state: SyncState::Unsettled,
            },
            digest: ClusterDigest::of(&names, store::PARTITIONS_DEFAULT, store::HASH_VERSION),
            layout: LayoutStatement::of(&cluster.record(0)),
            members: NodeSet::first(3),
            named: Arc::from([]),
            removed: Arc::from([]),
            secret: Secret::new(""),
            versions: ProtocolVersions { min: 1, max: 3 },
        };
        let socket = TcpStream::connect(cluster.addresses[0]).expect("the node accepts");
        socket.set_read_timeout(Some(common::PATIENCE)).expect("a socket");
        let (dialer, hello) = Dialer::start(local, index(0), [7; 32]);
        let mut peer = Self { socket, dialer };
        let answer = peer.exchange(&upgrade::request("a:1", "1-2-3"));
        let Ok(UpgradeResponse::Upgraded { len }) = upgrade::parse_response(&answer) else {
            panic!("no upgrade: {answer:?}")
        };
        assert_eq!(len, answer.len());
        let answer = peer.exchange(&hello);
        let step = peer.dialer.handle(&answer);
        (peer, step)
    }

    /// Opens a link, which node 0 admits.
    fn link(cluster: &Cluster, tag: NodeTag, requester: Requester) -> Self {
        let (mut peer, mut step) = Self::dial(cluster, tag, requester);
        loop {
            let answer = match step.expect("node 0 has the record of epoch 1") {
                DialStep::Done { .. } => return peer,
                DialStep::Send(bytes) => peer.exchange(&bytes),
                DialStep::NeedMore => peer.exchange(&[]),
            };
            step = peer.dialer.handle(&answer);
        }
    }

    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.socket.write_all(bytes).expect("the node reads");
        let mut answer = vec![0; 4_096];
        let len = self.socket.read(&mut answer).expect("the node answers");
        answer.truncate(len);
        answer
    }

    /// Reads until the node closes the connection.
    fn read_to_end(mut self) {
        let mut bytes = Vec::new();
        self.socket.read_to_end(&mut bytes).expect("the node closes the link");
    }
}

#[test]
fn a_peer_of_a_release_without_records_is_refused_once_a_later_record_is_adopted() {
    let mut cluster = Cluster::prepare(3);
    cluster.start_node(0);
    eventually("its store is open", || {
        exchange(cluster.addresses[0], bare("GET", "/v0/layout")).status == 200
    });
    let dial = || OldPeer::dial(&cluster, NodeTag(1), Requester::Node).1;
    let step = dial();
    assert!(matches!(step, Ok(DialStep::Send(_))), "it links with epoch 1: {step:?}");
    [1, 2].into_iter().for_each(|node| cluster.start_node(node));
    cluster.wait_until_up();
    cluster.wait_until_named();
    match OldPeer::dial(&cluster, NodeTag(1), Requester::Node).1 {
        Err(HandshakeError::RefusedByPeer { reason }) => {
            assert!(reason.contains("install a release on it that speaks version 4"), "{reason}");
        }
        other => panic!("not refused: {other:?}"),
    }
    cluster.stop_all();
}

/// Node 1 is the one of the earlier release. Node 2 has the later record.
#[test]
fn open_links_of_a_release_without_records_are_closed_once_a_later_record_is_adopted() {
    let mut cluster = Cluster::prepare(3);
    cluster.start_node(2);
    eventually("it has a record", || cluster.document(2, "/v0/layout").is_some());
    cluster.stop(2);
    // Node 0 learns the identity of node 1. Without node 2, no record names it.
    (0..2).for_each(|node| cluster.start_node(node));
    for node in 0..2 {
        eventually("both are up", || {
            let status = cluster.document(node, "/v0/status");
            status.is_some_and(|status| status["nodes"][1 - node]["state"] == "up")
        });
    }
    cluster.stop(1);
    cluster.stop(0);
    let tag = Identity::load(&cluster.disks[1], Path::new(DATA)).expect("an identity").tag;
    let record = cluster.plant(2, |record| record.members[0].zone = "west".to_owned());
    cluster.start_node(0);
    eventually("its store is open", || {
        exchange(cluster.addresses[0], bare("GET", "/v0/layout")).status == 200
    });
    let links = [Requester::Node, Requester::Coordinator(0), Requester::Coordinator(1)]
        .map(|requester| OldPeer::link(&cluster, tag, requester));
    assert_eq!(cluster.layout(0)["epoch"], 1);
    let accepted = || cluster.metric(0, "veche_links{dialed_by=\"peer\"}");
    eventually("they are open", || accepted() == 3.0);
    cluster.start_node(2);
    eventually("the record is adopted", || cluster.layout(0)["epoch"] == record.epoch.0);
    links.into_iter().for_each(OldPeer::read_to_end);
    assert!(cluster.warns(0, "install a release on it that speaks version 4"), "the node says why");
    cluster.stop(0);
    cluster.stop(2);
}
