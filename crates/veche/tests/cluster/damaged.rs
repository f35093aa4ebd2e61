//! A node of which a table is damaged.

use crate::common::eventually;
use crate::common::http::{bare, get, put};
use crate::harness::Cluster;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const DAMAGED: usize = 1;
const KEYS: usize = 400;

fn key(number: usize) -> String {
    format!("k{number:03}")
}

/// Some blocks are filled by all of them.
fn value(number: usize) -> String {
    format!("{number} ").repeat(300)
}

fn tables(cluster: &Cluster) -> Vec<PathBuf> {
    let dir = cluster.data(DAMAGED).join("shard-000/tables");
    let files =
        fs::read_dir(dir).expect("a directory of tables").map(|entry| entry.expect("an entry").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "sst")).collect()
}

/// Flips a bit in the middle of each table. How many there are.
fn damage(cluster: &Cluster) -> usize {
    let tables = tables(cluster);
    for path in &tables {
        let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a table");
        let middle = file.metadata().expect("a length").len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, middle).expect("a byte");
        file.write_all_at(&[byte[0] ^ 1], middle).expect("it is written back");
    }
    tables.len()
}

/// A table heals after writes that were under way have ended: twice this time.
const REQUEST_TIMEOUT: &str = "5s";

/// Every key is found through the node whatever its own disk says.
fn assert_found(cluster: &Cluster, quorum: &str) {
    let mut connection = cluster.connect(DAMAGED);
    for number in 0..KEYS {
        let found = connection.exchange(get(&format!("{}{quorum}", key(number))));
        assert_eq!(found.text(), value(number), "{found:?}");
    }
}

fn measured(cluster: &Cluster, name: &str) -> f64 {
    let metrics = cluster.exchange(DAMAGED, bare("GET", "/metrics")).text();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)).expect("it is among the metrics");
    line.trim().parse().expect("a number")
}

/// Writes all keys, and sees that all of it is in tables.
fn fill(cluster: &Cluster) {
    let mut connection = cluster.connect(DAMAGED);
    for number in 0..KEYS {
        assert_eq!(connection.exchange(put(&key(number), value(number))).status, 201);
    }
    assert_eq!(cluster.exchange(DAMAGED, bare("POST", "/v0/checkpoint")).status, 201);
}

#[test]
fn damage_that_nobody_reads_is_found_and_heals() {
    let cluster = Cluster::start_with(3, &["--scrub-period", "1s", "--request-timeout", REQUEST_TIMEOUT]);
    fill(&cluster);
    assert!(damage(&cluster) > 0);
    eventually("scrubbing has found it", || measured(&cluster, "veche_scrub_damaged_tables_total ") >= 1.0);
    eventually("the table is healed", || {
        measured(&cluster, "veche_tables_healed_total ") >= 1.0
            && measured(&cluster, "veche_tables_set_aside ") == 0.0
    });
    eventually("a round has ended", || measured(&cluster, "veche_scrub_ended_timestamp_seconds ") > 0.0);
    assert_found(&cluster, "&ack=1");
}

#[test]
fn what_a_damaged_table_has_lost_comes_back_from_the_others() {
    let mut cluster = Cluster::start_with(3, &["--request-timeout", REQUEST_TIMEOUT]);
    fill(&cluster);
    let damaged = damage(&cluster);
    assert!(damaged > 0);

    eventually("the table is healed", || {
        assert_found(&cluster, "");
        measured(&cluster, "veche_tables_healed_total ") >= 1.0
    });
    eventually("no table is damaged", || {
        assert_found(&cluster, "");
        measured(&cluster, "veche_tables_set_aside ") == 0.0
    });
    let (_, status) = cluster.status(DAMAGED).expect("it answers");
    assert_eq!(status["warnings"], serde_json::json!([]));

    (0..3).filter(|node| *node != DAMAGED).for_each(|node| cluster.kill(node));
    assert_found(&cluster, "&ack=1");
    cluster.stop(DAMAGED);
    let copies = cluster.copies(DAMAGED, &(0..KEYS).map(key).collect::<Vec<_>>());
    assert!(copies.iter().all(Option::is_some), "the node itself holds them");
}
