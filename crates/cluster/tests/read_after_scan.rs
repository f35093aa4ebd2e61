//! A read that begins after a scan of a majority finds each entry that the scan returned. This
//! includes entries that were written to fewer replicas than the scan reads from, and that reached
//! only some of these.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CoordinatorLimits, Cut, Key, KeyRange, NodeIndex, PeerState, Reply, Scan, ScanId, ScanScope,
};
use stdx::{Cell, Hlc, NodeTag, Version};
use world::{TIMEOUT, World, key};

/// The version of a key that a scan at node 0 returns, and the version that a read at the other
/// nodes finds after that; both with 2 of 3.
fn show_and_read(key: &Key, cells: &[(usize, Cell)]) -> (Option<Version>, Option<Version>) {
    let limits = CoordinatorLimits {
        request_timeout: TIMEOUT,
        reads_for_one_of_all: 0,
        ..CoordinatorLimits::default()
    };
    let mut cluster = World::of_coordinators(3, limits, 1);
    for (node, cell) in cells {
        cluster.hosts[*node].store.cells.insert(key.clone(), cell.clone());
    }
    let quorum = cluster.quorum(2, 3);
    let range = KeyRange { from: Some(Cut::Before(key.clone())), to: None };
    let scan = Scan { range, limit: None, scope: ScanScope::Cluster(quorum) };
    let request = cluster.submit(0, Command::Scan { id: ScanId(1), scan });
    cluster.settle();
    let shown = match cluster.replies.remove(&request) {
        Some(Reply::Page { page, is_last: true }) => (!page.is_empty()).then(|| page.cell(0).meta.version),
        reply => panic!("{reply:?} instead of a page"),
    };
    // The read uses the other nodes as long as they suffice.
    cluster.hosts[1].view.peers[0].state = PeerState::Suspected;
    cluster.publish(1);
    let request = cluster.submit(1, Command::Get { key: key.clone(), quorum });
    cluster.settle();
    let found = match cluster.replies.remove(&request) {
        Some(Reply::Found { cell, .. }) => Some(cell.meta.version),
        Some(Reply::Missing { .. }) => None,
        reply => panic!("{reply:?} to a read"),
    };
    (shown, found)
}

fn cell(at: u64, from: u8) -> Cell {
    Cell::value(version(at), from, Bytes::from_static(b"value"))
}

fn version(at: u64) -> Version {
    Version::new(Hlc::from_bits(at << 12), NodeTag(100))
}

/// A key with this preference list.
fn key_with(list: [u8; 3]) -> Key {
    let limits = CoordinatorLimits::default();
    let layout = World::of_coordinators(3, limits, 1).layout;
    let list = list.map(NodeIndex);
    let mut keys = (0..1_000).map(|index| key(&format!("k{index}")));
    keys.find(|key| layout.preference_list(layout.partition_of(key))[..3] == list)
        .expect("a key has the list")
}

#[test]
fn a_cell_on_the_source_alone_is_found_by_later_reads() {
    // Either of the other nodes participates: the cell belongs on the one that does not, or on the
    // one that does.
    for list in [[0, 2, 1], [0, 1, 2], [1, 0, 2], [2, 0, 1]] {
        let (shown, found) = show_and_read(&key_with(list), &[(0, cell(5, 2))]);
        assert_eq!((shown, found), (Some(version(5)), Some(version(5))), "with {list:?}");
    }
}

#[test]
fn a_cell_on_a_node_that_is_no_replica_does_not_hide_later_reads() {
    for list in [[1, 2, 0], [2, 1, 0]] {
        let (shown, found) = show_and_read(&key_with(list), &[(0, cell(5, 2))]);
        assert!(found >= shown, "{shown:?} was shown, {found:?} found, with {list:?}");
    }
}

/// The scan returns nothing, because the key was deleted: no entry was shown that would have to
/// stay.
#[test]
fn a_delete_on_the_source_alone_shows_nothing() {
    for list in [[0, 2, 1], [0, 1, 2], [2, 0, 1]] {
        let tombstone = Cell::tombstone(version(9), 2);
        let old = cell(1, 3);
        let (shown, found) = show_and_read(&key_with(list), &[(0, tombstone), (1, old.clone()), (2, old)]);
        assert_eq!((shown, found), (None, None), "with {list:?}");
    }
}
