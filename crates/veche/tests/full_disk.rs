//! A disk that fills and is freed, again and again, under a node that is not restarted for it, and
//! under one that is killed meanwhile.
//!
//! The file system is a small one of its own; where none can be mounted these tests say so and do
//! nothing. `VECHE_FULL_DISK_CYCLES` is how often the disk is filled.

mod common;

use common::http::{Connection, Response, delete, get, put};
use common::small_disk::SmallDisk;
use common::{Node, eventually};
use std::collections::BTreeMap;
use std::path::Path;
use stdx::Rng;

const DISK_MIB: u32 = 64;
const CYCLES: u64 = 3;
/// In one of this many cycles, the node is killed while the disk is full.
const KILLED_EVERY: u64 = 5;
/// A disk that accepts this many further values is not full.
const WRITES_MAX: u64 = 200_000;
/// Number of values read back in each cycle.
const READ_BACK: usize = 200;

/// Acknowledged values by key: length and seed of each.
type Acknowledged = BTreeMap<String, (usize, u64)>;

fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// A node on a separate disk, and the writes that it has acknowledged.
struct Scene {
    node: Option<Node>,
    connection: Connection,
    disk: SmallDisk,
    acknowledged: Acknowledged,
    rng: Rng,
}

impl Scene {
    fn begin(mount: &Path) -> Option<Self> {
        let disk = SmallDisk::mount(mount, DISK_MIB)?;
        let node = Node::start(&mount.join("data"));
        let connection = node.connect();
        Some(Self { node: Some(node), connection, disk, acknowledged: BTreeMap::new(), rng: Rng::new(7) })
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("it runs")
    }

    /// Kills the node and starts it on the disk as it is.
    fn start_again(&mut self, mount: &Path) {
        self.node.take().expect("it runs").kill();
        self.node = Some(Node::start(&mount.join("data")));
        self.connection = self.node().connect();
    }

    /// Sends until it is taken or refused for good: a busy node is asked again.
    fn exchange(&mut self, request: &[u8]) -> Response {
        loop {
            let response = self.connection.exchange(request);
            if response.status != 503 {
                return response;
            }
        }
    }

    /// Writes values of one size until one is refused for lack of room.
    fn fill(&mut self, cycle: u64) -> Response {
        let len = [1_000, 5_000, 30_000, 300_000][self.rng.below(4) as usize];
        for number in 0..WRITES_MAX {
            let (key, seed) = (format!("{cycle}-{number}"), self.rng.next_u64());
            let response = self.exchange(&put(&key, value(len, seed)));
            if response.status == 507 {
                return response;
            }
            assert_eq!(response.status, 201, "{response:?}");
            self.acknowledged.insert(key, (len, seed));
        }
        panic!("{WRITES_MAX} values of {len} bytes do not fill the disk");
    }

    /// Status says that values are refused, or they are not any more: something may have come free
    /// meanwhile.
    #[track_caller]
    fn assert_told_full(&self) {
        let storage = &self.node().status()["storage"];
        if storage["disk_room"] != "full" {
            assert_eq!(self.node().put("probe", "p").status, 201, "{storage}");
        }
    }

    #[track_caller]
    fn assert_read_back(&mut self, most: usize) {
        let step = self.acknowledged.len().div_ceil(most).max(1);
        let begin = self.rng.below(step as u64) as usize;
        let sample: Vec<_> = (self.acknowledged.iter().skip(begin).step_by(step))
            .map(|(key, of)| (key.clone(), *of))
            .collect();
        for (key, (len, seed)) in sample {
            let response = self.exchange(get(&key).as_bytes());
            assert_eq!(response.status, 200, "{key}: {response:?}");
            assert!(response.body == value(len, seed), "{key} is not what was written");
        }
    }

    /// Deletes `share` of all there is. Within the reserve, not every delete is taken at once.
    fn delete(&mut self, share: f64) -> usize {
        let keys: Vec<String> =
            self.acknowledged.keys().filter(|_| self.rng.chance(share)).cloned().collect();
        let mut deleted = 0;
        for key in keys {
            let response = self.exchange(delete(&key).as_bytes());
            assert!([202, 507].contains(&response.status), "{response:?}");
            if response.status == 202 {
                self.acknowledged.remove(&key);
                deleted += 1;
            }
        }
        deleted
    }

    /// Waits until a value is taken again.
    #[track_caller]
    fn wait_for_room(&mut self) {
        let node = self.node.as_ref().expect("it runs");
        eventually("values are taken again", || node.put("probe", "p").status == 201);
    }
}

fn cycles() -> u64 {
    let given = std::env::var("VECHE_FULL_DISK_CYCLES").ok();
    given.map_or(CYCLES, |given| given.parse().expect("a number of cycles"))
}

#[test]
fn a_disk_that_fills_and_is_freed_loses_nothing_and_needs_nobody() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mount = dir.path().join("disk");
    let Some(mut scene) = Scene::begin(&mount) else { return };
    for cycle in 0..cycles() {
        // Other data comes and goes on the disk, or all of it is the node's.
        let other = (cycle % 3 == 1).then(|| scene.disk.fill(0.6));
        let refused = scene.fill(cycle);
        refused.assert_problem(507, "are kept for deletes");
        scene.assert_told_full();
        scene.assert_read_back(READ_BACK);
        if cycle % KILLED_EVERY == KILLED_EVERY - 1 {
            scene.start_again(&mount);
            scene.assert_read_back(READ_BACK);
        }
        if let Some(other) = &other {
            std::fs::remove_file(other).expect("it is there");
        } else {
            assert!(scene.delete(0.7) > 0, "deletes go on");
        }
        scene.wait_for_room();
        if other.is_some() {
            scene.delete(0.5);
        }
        scene.assert_read_back(READ_BACK);
        println!("cycle {cycle}: {} values are there", scene.acknowledged.len());
    }
    scene.assert_read_back(usize::MAX);
    scene.start_again(&mount);
    scene.assert_read_back(usize::MAX);
    scene.node.take().expect("it runs").stop();
}

/// Other data has taken the last byte: the node starts, reads, and takes values as soon as there is
/// room.
#[test]
fn a_node_starts_without_a_byte_of_room() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mount = dir.path().join("disk");
    let Some(mut scene) = Scene::begin(&mount) else { return };
    for number in 0..200 {
        let seed = scene.rng.next_u64();
        assert_eq!(scene.exchange(&put(&format!("k{number}"), value(20_000, seed))).status, 201);
        scene.acknowledged.insert(format!("k{number}"), (20_000, seed));
    }
    let other = scene.disk.fill(1.0);
    scene.start_again(&mount);
    scene.assert_read_back(usize::MAX);
    eventually("values are refused", || scene.node().put("probe", [0; 100_000]).status == 507);
    assert_eq!(scene.exchange(delete("k0").as_bytes()).status, 202, "deletes go on");
    scene.acknowledged.remove("k0");
    scene.start_again(&mount);
    assert_eq!(scene.node().get("k0").status, 404);
    std::fs::remove_file(&other).expect("it is there");
    scene.wait_for_room();
    scene.assert_read_back(usize::MAX);
}
