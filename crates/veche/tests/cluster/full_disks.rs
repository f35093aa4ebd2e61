//! Nodes with full disks: with one of three, all requests succeed; with two, writes that need them
//! fail.

use crate::common::eventually;
use crate::common::http::{bare, delete, get, put};
use crate::common::small_disk::SmallDisk;
use crate::harness::Cluster;

const DISK_MIB: u32 = 64;

/// A cluster of three of which the last two have small disks of their own; `None` where there can
/// be none.
fn cluster() -> Option<(Cluster, [SmallDisk; 2])> {
    let mut cluster = Cluster::prepare(3, &[]);
    let mount = |node: usize| SmallDisk::mount(cluster.data(node), DISK_MIB);
    let disks = [mount(1)?, mount(2)?];
    (0..3).for_each(|node| cluster.spawn(node));
    cluster.wait_until_up();
    Some((cluster, disks))
}

/// Waits until `node` refuses values, and the others know.
fn wait_until_full(cluster: &Cluster, node: usize) {
    eventually("values are refused there", || {
        // A probe that finds no room closes the door; those before it count.
        cluster.exchange(node, put("probe&ack=1", [0; 64 << 10]));
        let (_, status) = cluster.status(node).expect("it answers");
        status["storage"]["disk_room"] == "full"
    });
    eventually("the others know", || {
        (0..3).filter(|other| *other != node).all(|other| cluster.status_of(other, node)["disk_full"] == true)
    });
}

#[test]
fn full_disks_cost_what_needs_them_and_nothing_more() {
    let Some((cluster, disks)) = cluster() else { return };
    assert_eq!(cluster.exchange(0, put("before&ack=3", "v")).status, 201);
    assert_eq!(cluster.exchange(0, put("three&ack=3", "v")).status, 201);

    let other = disks[1].fill(1.0);
    wait_until_full(&cluster, 2);
    for number in 0..30 {
        let answer = cluster.exchange(number % 3, put(&format!("k{number}"), "w"));
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.header("veche-acks"), Some("2/3"));
    }
    cluster.exchange(0, put("all&ack=3", "w")).assert_problem(507, "full disk");
    assert_eq!(cluster.exchange(2, get("before")).text(), "v");
    assert_eq!(cluster.exchange(2, get("k7")).text(), "w");
    assert_eq!(cluster.exchange(0, delete("before&ack=3")).status, 202, "deletes go on");

    let another = disks[0].fill(1.0);
    wait_until_full(&cluster, 1);
    cluster.exchange(0, put("two", "w")).assert_problem(507, "full disk");
    cluster.exchange(1, put("two", "w")).assert_problem(507, "are kept for deletes");
    assert_eq!(cluster.exchange(0, put("one&ack=1", "w")).status, 201);
    assert_eq!(cluster.exchange(1, get("k7")).text(), "w");
    assert_eq!(cluster.exchange(1, get("three&ack=3")).text(), "v", "what all hold is read from all");
    // The third node cannot store the missing version, so a later read might not return it.
    cluster.exchange(1, get("k7&ack=3")).assert_problem(504, "their disks are slow or full");

    for file in [&other, &another] {
        std::fs::remove_file(file).expect("it is there");
    }
    eventually("values are taken everywhere", || cluster.exchange(0, put("all&ack=3", "x")).status == 201);
    // The node's own data is read directly, so that no read repairs it. (Hints are counted for a
    // while after they are gone.)
    let missed: Vec<_> = (0..30).map(|number| format!("k{number}\nw").into_bytes()).collect();
    eventually("hints are handed over", || {
        let mut connection = cluster.connect(2);
        connection.send(bare("GET", "/v0/entities?start=k&end=l"));
        assert_eq!(connection.head().status, 200);
        let own = connection.chunks();
        missed.iter().all(|entry| own.contains(entry))
    });
    for number in 0..30 {
        let alone = cluster.exchange(2, get(&format!("k{number}&ack=1&from=3")));
        assert_eq!((alone.status, alone.text().as_str()), (200, "w"));
    }
    for key in ["one", "all"] {
        assert_eq!(cluster.exchange(1, get(&format!("{key}&ack=3"))).status, 200);
    }
}
