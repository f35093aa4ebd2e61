//! Nodes that join a running cluster, and nodes that are refused for ever.

mod common;
#[path = "../../veche/tests/common/http.rs"]
#[allow(dead_code, reason = "the black-box tests use the rest")]
mod http;

use cluster::{FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS};
use common::{eventually, free_address};
use env::{Env, MemFs, OsClock};
use http::{Connection, bare, exchange};
use serde_json::Value;
use server::{Config, JoinError, Limits, Server, ServerError};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use store::{DirectoryCluster, JoinRequest, Membership, StoreError};

const DATA: &str = "/data";
const SECRET: &str = "a secret of the cluster";

struct Node {
    address: SocketAddr,
    disk: MemFs,
    server: Option<Server>,
}

/// Nodes that carry out plans, on in-memory disks.
struct Cluster {
    nodes: Vec<Node>,
    /// The addresses of the first list.
    listed: Vec<String>,
    level_max: u32,
}

impl Node {
    fn new() -> Self {
        Self { address: free_address(), disk: MemFs::new(), server: None }
    }

    fn env(&self) -> Env {
        Env { fs: Arc::new(self.disk.clone()), clock: Arc::new(OsClock::new()) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Cluster {
    /// A cluster that has reached this feature level.
    fn start(nodes: usize, level_max: u32) -> Self {
        let nodes: Vec<_> = (0..nodes).map(|_| Node::new()).collect();
        let listed = nodes.iter().map(Node::url).collect();
        let mut cluster = Self { nodes, listed, level_max };
        (0..cluster.nodes.len()).for_each(|node| cluster.start_node(node));
        for node in 0..cluster.nodes.len() {
            eventually("the feature level is reached", || {
                cluster
                    .document(node, "/v0/layout")
                    .is_some_and(|layout| layout["feature_level"] == level_max)
            });
        }
        cluster
    }

    /// The configuration of a node, as the command derives it from the data directory.
    fn config(&self, node: usize) -> Config {
        let found = DirectoryCluster::find(&self.nodes[node].env(), Path::new(DATA)).expect("a directory");
        let (membership, self_name, default_from) = match found {
            DirectoryCluster::Named(recorded) => {
                let own = recorded.own.clone().expect("a member");
                let default_from = recorded.default_from.expect("the record has it");
                (Membership { own: None, default_from: None, ..recorded }, own, default_from)
            }
            _ => {
                let from = self.listed.len().min(3) as u8;
                (Membership::of(self.listed.clone()), self.nodes[node].url(), from)
            }
        };
        Config {
            listen: self.nodes[node].address,
            membership,
            self_name,
            default_from,
            secret: Some(SECRET.to_owned()),
            feature_level_max: self.level_max,
            ..common::config(Limits::default())
        }
    }

    fn start_node(&mut self, node: usize) {
        let (config, env) = (self.config(node), self.nodes[node].env());
        self.nodes[node].server = Some(Server::start(config, env).expect("the port is free"));
    }

    fn stop(&mut self, node: usize) -> Result<(), ServerError> {
        self.nodes[node].server.take().expect("it runs").stop()
    }

    fn stop_all(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].server.is_some() {
                self.stop(node).expect("it ends well");
            }
        }
    }

    /// Adds a node with an empty directory, and has it ask `member` to join. Returns its number.
    fn join(&mut self, member: usize) -> Result<usize, JoinError> {
        let (node, number) = (Node::new(), self.nodes.len());
        self.nodes.push(node);
        self.ask(number, &self.request(number, member), self.level_max).map(|()| number)
    }

    fn request(&self, node: usize, member: usize) -> JoinRequest {
        let (member, own) = (self.nodes[member].url(), self.nodes[node].url());
        JoinRequest { member, own, zone: "west".to_owned(), weight: 2 }
    }

    fn ask(&self, node: usize, request: &JoinRequest, level_max: u32) -> Result<(), JoinError> {
        server::join(&self.nodes[node].env(), Path::new(DATA), request, Some(SECRET), level_max)
    }

    fn document(&self, node: usize, path: &str) -> Option<Value> {
        let answer = exchange(self.nodes[node].address, bare("GET", path));
        (answer.status == 200).then(|| serde_json::from_slice(&answer.body).expect("JSON"))
    }

    fn member_at(&self, node: usize, url: &str) -> Option<Value> {
        let layout = self.document(node, "/v0/layout")?;
        layout["members"].as_array()?.iter().find(|member| member["url"] == url).cloned()
    }

    #[track_caller]
    fn wait_until_up(&self, nodes: &[usize]) {
        for node in nodes {
            eventually(&format!("node {node} sees all"), || {
                let Some(status) = self.document(*node, "/v0/status") else { return false };
                let seen = status["nodes"].as_array().expect("a list");
                seen.len() == nodes.len()
                    && seen.iter().all(|node| node["state"] == "up" && node["standing"] == "settled")
            });
        }
    }

    /// Waits until the process of a node has ended by itself, and returns the reason.
    #[track_caller]
    fn wait_for_end(&mut self, node: usize) -> ServerError {
        let address = self.nodes[node].address;
        eventually("it ends", || Connection::try_open(address).is_err());
        self.stop(node).expect_err("it has a reason")
    }

    /// An operator declares that a node does not come back.
    #[track_caller]
    fn declare_dead(&self, at: usize, node: usize) {
        let body = format!(r#"{{"command":"declare-dead","members":["{}"]}}"#, self.nodes[node].url());
        let len = body.len();
        let head = "POST /v0/layout HTTP/1.1\r\nHost: a\r\nContent-Type: application/json";
        let answer =
            exchange(self.nodes[at].address, format!("{head}\r\nContent-Length: {len}\r\n\r\n{body}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn a_node_joins_by_any_member_and_serves_all_keys_while_it_holds_none() {
    let mut cluster = Cluster::start(3, FEATURE_LEVEL_PLANS);
    let first = cluster.join(2).expect("it is taken in");
    cluster.start_node(first);
    // The second one joins by the first.
    cluster.wait_until_up(&[0, 1, 2, 3]);
    let second = cluster.join(first).expect("it is taken in");
    cluster.start_node(second);
    cluster.wait_until_up(&[0, 1, 2, 3, 4]);
    for (new, slot) in [(first, 3), (second, 4)] {
        let member = cluster.member_at(0, &cluster.nodes[new].url()).expect("a member");
        assert_eq!((&member["state"], &member["slot"]), (&Value::from("joining"), &Value::from(slot)));
        assert_eq!((&member["zone"], &member["weight"]), (&Value::from("west"), &Value::from(2)));
        assert_eq!(member["share"], 0.0, "it holds nothing");
        for number in 0..20 {
            let put = http::put(&format!("k{number}&ack=3"), "v");
            assert_eq!(exchange(cluster.nodes[new].address, &put).status, 201);
            let get = http::get(&format!("k{number}"));
            for node in [new, 0] {
                assert_eq!(exchange(cluster.nodes[node].address, &get).text(), "v");
            }
        }
    }
    // Its directory is one like others.
    cluster.stop(first).expect("it ends well");
    cluster.start_node(first);
    cluster.wait_until_up(&[0, 1, 2, 3, 4]);
    cluster.stop_all();
}

#[test]
fn a_node_that_asks_again_is_the_same_member() {
    let mut cluster = Cluster::start(3, FEATURE_LEVEL_PLANS);
    let new = cluster.nodes.len();
    cluster.nodes.push(Node::new());
    let request = cluster.request(new, 0);
    // The directory is lost between the decision and the identity, but for the request.
    let env = cluster.nodes[new].env();
    let id = stdx::NodeTag(0xb0b);
    drop(store::JoiningDirectory::begin(&env, Path::new(DATA), &request, id).expect("an empty directory"));
    let asked = cluster.nodes[new].disk.kill();
    cluster.ask(new, &request, FEATURE_LEVEL_PLANS).expect("it is taken in");
    cluster.nodes[new].disk = asked;
    let by_another = cluster.request(new, 1);
    eventually("the other member has the record", || cluster.member_at(1, &by_another.own).is_some());
    let epoch = |node| cluster.document(node, "/v0/layout").map(|layout| layout["epoch"].clone());
    let before = epoch(1);
    cluster.ask(new, &by_another, FEATURE_LEVEL_PLANS).expect("it is a member already");
    assert_eq!(epoch(1), before, "no record was decided");
    cluster.start_node(new);
    cluster.wait_until_up(&[0, 1, 2, 3]);
    cluster.stop_all();
}

#[test]
fn a_refused_node_is_told_why() {
    let mut cluster = Cluster::start(3, FEATURE_LEVEL_PLANS);
    let new = cluster.nodes.len();
    cluster.nodes.push(Node::new());
    let request = cluster.request(new, 0);
    let taken = JoinRequest { own: cluster.nodes[1].url(), ..request.clone() };
    let refusal = cluster.ask(new, &taken, FEATURE_LEVEL_PLANS).expect_err("the URL is taken").to_string();
    assert!(refusal.contains("a member has the URL or the id of"), "{refusal}");
    let refusal = cluster.ask(new, &request, FEATURE_LEVEL_NAMED).expect_err("it is too old").to_string();
    assert!(refusal.contains("the cluster has feature level 3") && refusal.contains("up to 2"), "{refusal}");
    let heavy = JoinRequest { weight: 0, ..request.clone() };
    let refusal = cluster.ask(new, &heavy, FEATURE_LEVEL_PLANS).expect_err("out of bounds").to_string();
    assert!(refusal.contains("its weight is at least 1"), "{refusal}");
    let (env, dir) = (cluster.nodes[new].env(), Path::new(DATA));
    for secret in [None, Some("another secret")] {
        let refusal = server::join(&env, dir, &request, secret, FEATURE_LEVEL_PLANS).expect_err("a stranger");
        assert!(refusal.to_string().contains("give all the same --cluster-secret"), "{refusal}");
    }
    let nobody = JoinRequest { member: format!("http://{}", free_address()), ..request.clone() };
    let refusal = cluster.ask(new, &nobody, FEATURE_LEVEL_PLANS).expect_err("nobody listens").to_string();
    assert!(refusal.contains("does not answer") && refusal.contains(&nobody.member), "{refusal}");
    assert_eq!(JoinRequest::unfinished(&env, dir).expect("it is readable"), None, "nothing is left to do");
    let layout = cluster.document(0, "/v0/layout").expect("it serves");
    assert_eq!(layout["members"].as_array().map(Vec::len), Some(3), "no attempt has added a member");
    cluster.ask(new, &request, FEATURE_LEVEL_PLANS).expect("it may join all the same");
    cluster.stop_all();
}

#[test]
fn a_cluster_below_the_level_of_plans_takes_no_node_in() {
    let mut cluster = Cluster::start(1, FEATURE_LEVEL_NAMED);
    let refusal = cluster.join(0).expect_err("its level is 2").to_string();
    assert!(refusal.contains("the cluster has feature level 2"), "{refusal}");
    cluster.stop_all();
}

#[test]
fn a_directory_of_another_cluster_is_refused_and_one_of_the_same_is_not() {
    let mut cluster = Cluster::start(3, FEATURE_LEVEL_PLANS);
    let mut other = Cluster::start(1, FEATURE_LEVEL_PLANS);
    let check =
        |node: &Node, member: &str| server::check_cluster(&node.env(), Path::new(DATA), member, Some(SECRET));
    check(&cluster.nodes[1], &cluster.nodes[0].url()).expect("it is the same");
    let refused = check(&other.nodes[0], &cluster.nodes[0].url()).expect_err("another one");
    assert!(matches!(refused, JoinError::AnotherCluster { .. }), "{refused}");
    check(&other.nodes[0], &format!("http://{}", free_address())).expect("it cannot be judged");
    other.stop_all();
    cluster.stop_all();
}

#[test]
fn a_node_that_learns_that_it_is_dead_ends_and_does_not_start_again() {
    let mut cluster = Cluster::start(4, FEATURE_LEVEL_PLANS);
    cluster.wait_until_up(&[0, 1, 2, 3]);
    cluster.declare_dead(0, 3);
    let ended = cluster.wait_for_end(3);
    assert!(matches!(ended, ServerError::Removed { .. }), "{ended}");
    let refused = DirectoryCluster::find(&cluster.nodes[3].env(), Path::new(DATA)).expect_err("it is dead");
    assert!(matches!(refused, StoreError::RemovedNode { .. }), "{refused}");
    let put = http::put("k&ack=2", "v");
    eventually("the others serve", || exchange(cluster.nodes[0].address, &put).status == 201);
    cluster.stop_all();
}

/// It has not seen the record, so it learns that by the refusals of its peers only.
#[test]
fn a_node_that_was_declared_dead_while_it_was_down_ends_at_every_start() {
    let mut cluster = Cluster::start(4, FEATURE_LEVEL_PLANS);
    cluster.wait_until_up(&[0, 1, 2, 3]);
    cluster.stop(3).expect("it ends well");
    let before = cluster.nodes[3].disk.kill();
    cluster.declare_dead(0, 3);
    for _ in 0..2 {
        cluster.start_node(3);
        let ended = cluster.wait_for_end(3);
        assert!(matches!(ended, ServerError::Removed { .. }), "{ended}");
    }
    // Its former disk is refused in the same way.
    cluster.nodes[3].disk = before;
    cluster.start_node(3);
    let ended = cluster.wait_for_end(3);
    assert!(ended.to_string().contains("removed, replaced or declared dead"), "{ended}");
    cluster.stop_all();
}

/// A node with an empty disk has taken its slot, at its address. The former disk is refused there,
/// although it is at the address of the record.
#[test]
fn the_former_disk_of_a_replaced_node_is_refused_at_its_own_address() {
    let mut cluster = Cluster::start(3, FEATURE_LEVEL_PLANS);
    cluster.wait_until_up(&[0, 1, 2]);
    cluster.stop(2).expect("it ends well");
    let former = std::mem::replace(&mut cluster.nodes[2].disk, MemFs::new());
    cluster.start_node(2);
    let url = cluster.nodes[2].url();
    let id = |node| cluster.member_at(node, &url).map(|member| member["node_id"].clone());
    let first = id(0);
    // It is named before it is rebuilt.
    eventually("the new id is named", || id(0) != first && id(0) == id(1));
    cluster.stop(2).expect("it ends well");
    let present = std::mem::replace(&mut cluster.nodes[2].disk, former);
    cluster.start_node(2);
    let ended = cluster.wait_for_end(2);
    assert!(matches!(ended, ServerError::Removed { .. }), "{ended}");
    cluster.nodes[2].disk = present;
    cluster.start_node(2);
    eventually("the present disk is linked", || {
        let status = cluster.document(0, "/v0/status").expect("it serves");
        status["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["state"] == "up"))
    });
    cluster.stop_all();
}
