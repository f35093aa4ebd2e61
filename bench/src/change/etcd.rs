//! The same change beside etcd: a fourth member is added to three, and removed again.
//!
//! **Mechanism.** Both clusters hold the same keys and values, and have no load. A member of etcd
//! is added as a learner, and is a member once it can be promoted, which requires that it has
//! caught up. A node of veche has joined once no change of the layout runs.
//!
//! **Caveats.** Every member of etcd holds all data, so the new one receives all of it, and a
//! removal moves none. A node of veche receives its share, and gives it back. etcd's API for
//! clients is used by its JSON gateway.

use super::ChangeBench;
use super::cluster::{Cluster, LAYOUT};
use super::layout::LayoutChange;
use super::load::QuorumLoad;
use crate::BenchResult;
use crate::etcd_load::EtcdLoad;
use crate::others::{self, EtcdMember};
use crate::servers::free_address;
use crate::table::{ResultTable, Threshold};
use crate::tools::{Tool, Tools};
use bench::fetch;
use bench::units::bytes;
use lab::process::ServerProcess;
use lab::stats::rounds;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const NAME: &str = "etcd";
const CONNECTIONS: usize = 64;
const SAMPLES: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Durations of a change and its inverse, in seconds.
#[derive(Clone, Copy, Debug)]
struct BothWays {
    add_s: f64,
    remove_s: f64,
}

impl ChangeBench<'_> {
    /// Measures both clusters, and adds the rows.
    pub(super) fn add_etcd(&self, table: &mut ResultTable) -> BenchResult<()> {
        let load = self.load_of(self.load_bytes);
        let stored = load.keys * (bench::keys::KEY_LEN + load.value_bytes) as u64;
        table.section(&format!(
            "a fourth member is added and removed without load; {} in {} keys",
            bytes(stored as f64),
            load.keys
        ));
        let (ours, moved) = self.change_veche(load)?;
        let note = format!("{} moved", bytes(moved as f64));
        let seconds = |seconds: f64| rounds(&[seconds]);
        table.row("veche: a node joins, s", Threshold::None, seconds(ours.add_s), note);
        table.row("veche: it leaves, s", Threshold::None, seconds(ours.remove_s), String::new());
        let tools = Tools::find(&self.arguments.etcd);
        let titles =
            ["etcd: a member is added, s", "etcd: it is removed, s", "veche / etcd, a member is added"];
        let Some(tool) = &tools.etcd else {
            let missing = tools.missing.iter().find(|missing| missing.name == NAME);
            let remedy = missing.map_or("", |missing| missing.remedy);
            for title in titles {
                table.row(title, Threshold::None, None, format!("etcd is missing: {remedy}"));
            }
            return Ok(());
        };
        let theirs = self.change_etcd(tool, &tools, load)?;
        let note = format!("{} has received {}", tool.version, bytes(stored as f64));
        table.row(titles[0], Threshold::None, seconds(theirs.add_s), note);
        let note = "no data moves".to_owned();
        table.row(titles[1], Threshold::None, seconds(theirs.remove_s), note);
        let note = "a node of veche receives its share only".to_owned();
        table.row(titles[2], Threshold::None, seconds(ours.add_s / theirs.add_s), note);
        Ok(())
    }

    /// Also returns the bytes that the join has moved.
    fn change_veche(&self, load: QuorumLoad) -> BenchResult<(BothWays, u64)> {
        let cluster: Cluster<'_> = self.changeable_cluster("beside-etcd", NODES, load)?;
        let begun = Instant::now();
        cluster.start_node(NODES)?;
        cluster.change(0, &LayoutChange::Add(cluster.url(NODES)), self.times.patience)?;
        let (add_s, moved) = (begun.elapsed().as_secs_f64(), cluster.logged_bytes());
        // A node gains nothing again before it has purged it.
        cluster.wait_until_purged()?;
        let begun = Instant::now();
        cluster.change(0, &LayoutChange::Remove(cluster.url(NODES)), self.times.patience)?;
        Ok((BothWays { add_s, remove_s: begun.elapsed().as_secs_f64() }, moved))
    }

    fn change_etcd(&self, tool: &Tool, tools: &Tools, load: QuorumLoad) -> BenchResult<BothWays> {
        let servers = others::etcd(self.work_dir, tool, LAYOUT, NAME, NODES)?;
        let leader = others::leader(&servers)?;
        let mut client = EtcdLoad::start(&tools.etcd_load, leader, LAYOUT, CONNECTIONS)?;
        client.preload(load.keys, load.value_bytes)?;
        let address = leader.address();

        let begun = Instant::now();
        let (_added, id) = self.add_etcd_member(tool, address)?;
        let promotion = json!({ "ID": id });
        let promote = || call(address, "promote", &promotion);
        // It is refused until the learner has caught up.
        while let Err(error) = promote() {
            if begun.elapsed() > self.times.patience || self.stop.is_set() {
                return Err(format!("the member is not promoted: {error}").into());
            }
            thread::sleep(RETRY_PAUSE);
        }
        let add_s = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        call(address, "remove", &promotion)?;
        let remove_s = begun.elapsed().as_secs_f64();
        client.verify(load.keys, load.value_bytes, SAMPLES)?;
        Ok(BothWays { add_s, remove_s })
    }

    /// Starts a member as a learner. Also returns its id.
    fn add_etcd_member(&self, tool: &Tool, address: SocketAddr) -> BenchResult<(ServerProcess, String)> {
        let name = format!("{NAME}-{NODES}");
        let member = EtcdMember { name, client: free_address()?, peer: free_address()? };
        let url = format!("http://{}", member.peer);
        let listed = call(address, "list", &json!({}))?;
        let added = call(address, "add", &json!({ "peerURLs": [url], "isLearner": true }))?;
        let id = added["member"]["ID"].as_str().ok_or_else(|| format!("the member has no id: {added}"))?;
        let cluster = initial_cluster(&listed, &member.name, &url);
        let server = member.spawn(self.work_dir, tool, LAYOUT, &cluster, "existing")?;
        Ok((server, id.to_owned()))
    }
}

/// Value of `--initial-cluster` for a member that joins the listed ones.
fn initial_cluster(listed: &Value, name: &str, url: &str) -> String {
    let members = listed["members"].as_array().into_iter().flatten();
    let known = members.filter_map(|member| {
        let (name, url) = (member["name"].as_str()?, member["peerURLs"][0].as_str()?);
        Some(format!("{name}={url}"))
    });
    known.chain([format!("{name}={url}")]).collect::<Vec<_>>().join(",")
}

/// Calls etcd's API for members.
fn call(address: SocketAddr, what: &str, body: &Value) -> BenchResult<Value> {
    let path = format!("/v3/cluster/member/{what}");
    let answer = fetch(address, "POST", &path, body.to_string().as_bytes(), TIMEOUT)?;
    match answer.status {
        200 => Ok(serde_json::from_slice(&answer.body)?),
        status => {
            Err(format!("{path} is answered with {status}: {}", String::from_utf8_lossy(&answer.body)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_member_knows_those_that_are_listed_and_itself() {
        let listed = json!({ "members": [
            { "ID": "1", "name": "etcd-0", "peerURLs": ["http://a:1"] },
            { "ID": "2", "name": "etcd-1", "peerURLs": ["http://b:1"] },
        ] });
        let cluster = initial_cluster(&listed, "etcd-3", "http://d:1");
        assert_eq!(cluster, "etcd-0=http://a:1,etcd-1=http://b:1,etcd-3=http://d:1");
    }
}
