//! Bounded cost of a page of a scan, however much replicas differ: in memory, in reads, and in time
//! until the first page.

mod world;

use bytes::Bytes;
use cluster::{Command, CoordinatorLimits, Cut, KeyRange, Page, Quorum, Reply, Scan, ScanId, ScanScope};
use stdx::{Cell, Hlc, NodeTag, Version};
use world::{TIMEOUT, World, key};

const KEYS: usize = 6_000;
const SCAN: ScanId = ScanId(1);
/// Greatest size of a page in bytes, with the values of the reads that were in flight when it was
/// full.
const PAGE_BYTES_MAX: usize = (128 << 10) + 16 * 1_100;

/// A cluster whose stores return pages with as many keys as they may.
fn cluster(nodes: u8) -> World {
    let limits = CoordinatorLimits {
        request_timeout: TIMEOUT,
        reads_for_one_of_all: 0,
        ..CoordinatorLimits::default()
    };
    let mut cluster = World::of_coordinators(nodes, limits, 1);
    for host in &mut cluster.hosts {
        host.store.snapshots.passed_max = usize::MAX;
    }
    cluster
}

fn cell(from: u8, value_len: usize) -> Cell {
    let version = Version::new(Hlc::from_bits(1 << 12), NodeTag(100));
    Cell::value(version, from, Bytes::from(vec![b'x'; value_len]))
}

fn fill(cluster: &mut World, nodes: &[usize], keys: impl Iterator<Item = usize>, value_len: usize) {
    for key in keys.map(|index| key(&format!("{index:06}"))) {
        for node in nodes {
            cluster.hosts[*node].store.cells.insert(key.clone(), cell(3, value_len));
        }
    }
}

fn begin(cluster: &mut World, limit: Option<u64>) -> (Page, bool) {
    let range = KeyRange { from: Some(Cut::Before(key("0"))), to: None };
    let scan = Scan { range, limit, scope: ScanScope::Cluster(majority(cluster)) };
    take(cluster, Command::Scan { id: SCAN, scan })
}

fn majority(cluster: &World) -> Quorum {
    let nodes = cluster.layout.len();
    cluster.quorum(nodes / 2 + 1, nodes)
}

fn take(cluster: &mut World, command: Command) -> (Page, bool) {
    let request = cluster.submit(0, command);
    cluster.settle();
    match cluster.replies.remove(&request) {
        Some(Reply::Page { page, is_last }) => (page, is_last),
        reply => panic!("{reply:?} instead of a page"),
    }
}

/// Reads the range to its end, and returns the number of entries. The cost of each page is checked,
/// including the page that is read ahead.
fn read_all(cluster: &mut World, reads_max: usize) -> usize {
    let (mut seen, mut repaired) = (Vec::new(), cluster.hosts[0].store.cells.len());
    let (mut page, mut is_last) = begin(cluster, None);
    loop {
        assert!(page.bytes().len() <= PAGE_BYTES_MAX, "{} bytes in a page", page.bytes().len());
        let held = cluster.hosts[0].store.cells.len();
        assert!(held - repaired <= reads_max, "{} keys were read at once", held - repaired);
        repaired = held;
        seen.extend((0..page.len()).map(|at| page.key(at)));
        if is_last {
            assert!(seen.is_sorted_by(|one, next| one < next));
            return seen.len();
        }
        (page, is_last) = take(cluster, Command::NextPage { id: SCAN });
    }
}

/// This node lacks all entries, and is read-eligible.
#[test]
fn pages_are_bounded_if_the_source_lacks_all_entries() {
    let mut cluster = cluster(3);
    fill(&mut cluster, &[1, 2], 0..KEYS, 1_000);
    assert_eq!(read_all(&mut cluster, 600), KEYS);
}

#[test]
fn pages_are_bounded_if_the_source_lacks_all_small_entries() {
    let mut cluster = cluster(3);
    fill(&mut cluster, &[1, 2], 0..3 * KEYS, 1);
    assert_eq!(read_all(&mut cluster, 2 * 4_200), 3 * KEYS);
}

/// Each node has two thirds of the entries, and answers with a few keys at a time.
#[test]
fn pages_are_bounded_if_each_node_lacks_some_entries() {
    let mut cluster = cluster(3);
    for host in &mut cluster.hosts {
        host.store.snapshots.passed_max = 50;
    }
    fill(&mut cluster, &[0, 2], (0..KEYS).filter(|index| index % 3 == 0), 1_000);
    fill(&mut cluster, &[1, 2], (0..KEYS).filter(|index| index % 3 == 1), 1_000);
    fill(&mut cluster, &[0, 1], (0..KEYS).filter(|index| index % 3 == 2), 1_000);
    assert_eq!(read_all(&mut cluster, 600), KEYS);
}

/// This node has nothing. One checker names many keys at once; another one, which holds other keys,
/// names them one by one.
#[test]
fn no_page_goes_beyond_the_slowest_checker() {
    let mut cluster = cluster(5);
    cluster.hosts[2].store.snapshots.passed_max = 1;
    fill(&mut cluster, &[1, 3, 4], (0..KEYS).filter(|index| index / 10 % 2 == 0), 1_000);
    fill(&mut cluster, &[2, 3, 4], (0..KEYS).filter(|index| index / 10 % 2 == 1), 1_000);
    assert_eq!(read_all(&mut cluster, 600), KEYS);
}

#[test]
fn a_limit_of_one_reads_few_keys() {
    let mut cluster = cluster(3);
    fill(&mut cluster, &[1, 2], 0..KEYS, 10);
    let (page, is_last) = begin(&mut cluster, Some(1));
    assert_eq!((page.len(), is_last), (1, true));
    let read = cluster.hosts[0].store.cells.len();
    assert!(read <= 16, "{read} keys were read for one entry");
}
