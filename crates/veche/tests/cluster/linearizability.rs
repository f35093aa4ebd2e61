//! Keys are last-write-wins registers while nodes are killed, hang and lose their data.

use crate::common::eventually;
use crate::harness::Cluster;
use crate::probe::Probe;
use std::time::Duration;
use stdx::Rng;

const NODES: usize = 3;
/// Answered operations between two faults.
const BETWEEN_FAULTS: u64 = 120;
const FAULTS: u64 = 6;
/// A hung node is let go on after so long: longer than it takes to be counted out.
const HANG: Duration = Duration::from_millis(1_500);

#[test]
fn keys_are_last_write_wins_registers_while_nodes_are_killed_hung_and_emptied() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut cluster = Cluster::start_with(NODES, &["--request-timeout", "1s"]);
    let addresses: Vec<_> = (0..NODES).map(|node| cluster.address(node)).collect();
    Probe::run(addresses, seed, |probe| {
        let mut rng = Rng::new(seed);
        for fault in 0..FAULTS {
            probe.wait_for_answers(BETWEEN_FAULTS);
            let node = rng.below(NODES as u64) as usize;
            match fault % 3 {
                0 => {
                    cluster.kill(node);
                    probe.wait_for_answers(BETWEEN_FAULTS);
                    cluster.spawn(node);
                }
                1 => {
                    cluster.pause(node);
                    std::thread::sleep(HANG);
                    cluster.resume(node);
                }
                _ => {
                    cluster.kill(node);
                    cluster.lose_data(node);
                    cluster.spawn(node);
                    // Before that a second loss would be one too many.
                    eventually("it is rebuilt", || cluster.sync_state(node) == "settled");
                }
            }
            cluster.wait_until_up();
        }
        probe.wait_for_answers(BETWEEN_FAULTS);
    });
}
