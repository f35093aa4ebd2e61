//! Backups, exports and imports as black boxes: all data comes back.

mod common;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "cluster/harness.rs"]
mod harness;

use common::http::{Connection, bare, exchange, get, put};
use common::{Node, data_dir, eventually, run, veche};
use harness::Cluster;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use stdx::Rng;

/// Most answers that ask for another attempt before one is taken for the result.
const REFUSALS_MAX: usize = 10;

/// Runs a subcommand to its end: exit code, standard output, standard error.
fn tool(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = veche();
    command.args(arguments);
    run(command)
}

/// The same, which must succeed; its standard output.
#[track_caller]
fn done(arguments: &[&str]) -> String {
    let (code, out, err) = tool(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
    out
}

/// The same, which must fail with a sentence that says this.
#[track_caller]
fn refused(arguments: &[&str], says: &str) {
    let (code, out, err) = tool(arguments);
    assert_eq!(code, Some(1), "{arguments:?}: {out}{err}");
    let last = err.lines().last().unwrap_or_default();
    assert!(err.contains(says) && last.starts_with("veche: "), "{says:?} is not in {err}");
}

fn url(node: &Node) -> String {
    format!("http://{}", node.address)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a test")
}

/// Bytes that nothing compresses.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

/// Total length of the files in a directory, in bytes.
fn bytes_in(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).expect("a directory");
    files.map(|file| file.expect("a file").metadata().expect("a file").len()).sum()
}

fn value(number: u32) -> Vec<u8> {
    noise(number.into(), 4_000)
}

/// Writes `w0`, `w1` and so on until `stop`, and counts acknowledged writes.
fn writer(address: SocketAddr, stop: &AtomicBool, acknowledged: &AtomicU32) {
    let mut connection = Connection::open(address);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        assert_eq!(connection.exchange(put(&format!("w{number}"), value(number))).status, 201);
        acknowledged.store(number + 1, Ordering::Relaxed);
    }
}

/// How many keys there are from `w0` on, without a gap; each as it was written.
fn count_written(node: &Node) -> u32 {
    let mut connection = node.connect();
    for number in 0.. {
        let found = connection.exchange(get(&format!("w{number}")));
        if found.status == 404 {
            return number;
        }
        assert!(found.status == 200 && found.body == value(number), "w{number}: {}", found.status);
    }
    unreachable!("there are not so many")
}

#[test]
fn each_backup_of_a_node_under_writes_gives_back_what_was_acknowledged_before_it() {
    const BEFORE_FIRST: u32 = 300;
    const MORE: u32 = 20;
    let (dir, data) = data_dir();
    let repository = dir.path().join("backups");
    let node = Node::start(&data);
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let writing = {
        let (address, stop, acknowledged) = (node.address, Arc::clone(&stop), Arc::clone(&acknowledged));
        std::thread::spawn(move || writer(address, &stop, &acknowledged))
    };
    eventually("enough is written", || acknowledged.load(Ordering::Relaxed) >= BEFORE_FIRST);
    let before_first = acknowledged.load(Ordering::Relaxed);
    let out = done(&["backup", "--url", &url(&node), "--to", text(&repository)]);
    assert!(out.starts_with("backup 000001 of node "), "{out}");
    stop.store(true, Ordering::Relaxed);
    writing.join().expect("all writes are acknowledged");
    let after_first = acknowledged.load(Ordering::Relaxed);

    // From here on, writes after the first backup are in a separate table.
    done(&["backup", "--url", &url(&node), "--to", text(&repository)]);
    let stored = bytes_in(&repository.join("objects"));
    for number in after_first..after_first + MORE {
        assert_eq!(node.put(&format!("w{number}"), value(number)).status, 201);
    }
    done(&["backup", "--url", &url(&node), "--to", text(&repository)]);
    let copied = bytes_in(&repository.join("objects")) - stored;
    let written = u64::from(MORE) * 4_000;
    assert!((written..2 * written).contains(&copied), "{copied} bytes were copied for {written}");
    let checkpoints = std::fs::read_dir(data.join("checkpoints")).expect("there were some").count();
    assert_eq!(checkpoints, 0, "the node keeps none");
    node.stop();

    let out = done(&["verify", "--backup", text(&repository)]);
    assert!(out.contains("backup 000003") && out.contains("the newest, block by block"), "{out}");
    let restored = |number: &str| {
        let place = dir.path().join(format!("restored-{number}"));
        done(&["restore", "--from", text(&repository), "--backup", number, "--data", text(&place)]);
        let node = Node::start(&place);
        let count = count_written(&node);
        assert_eq!(node.put("new", "works").status, 201);
        node.stop();
        done(&["verify", "--data", text(&place)]);
        count
    };
    assert!((before_first..=after_first).contains(&restored("1")));
    assert_eq!(restored("000002"), after_first);
    assert_eq!(restored("3"), after_first + MORE);

    refused(
        &["restore", "--from", text(&repository), "--backup", "9", "--data", text(&dir.path().join("x"))],
        "holds no backup 000009",
    );
    refused(&["restore", "--from", text(&repository), "--data", text(&data)], "is not empty");
    let place = dir.path().join("alone");
    refused(
        &["restore", "--from", text(&repository), "--data", text(&place), "--whole-cluster"],
        "a backup of a single node",
    );
}

#[test]
fn a_flipped_bit_in_a_backup_is_named_and_not_restored() {
    let (dir, data) = data_dir();
    let repository = dir.path().join("backups");
    let node = Node::start(&data);
    for number in 0..50 {
        assert_eq!(node.put(&format!("w{number}"), value(number)).status, 201);
    }
    done(&["backup", "--url", &url(&node), "--to", text(&repository)]);
    node.stop();
    let objects = std::fs::read_dir(repository.join("objects")).unwrap();
    let table = objects.map(|object| object.unwrap().path()).find(|path| text(path).contains(".sst-"));
    let table = table.expect("there is a table");
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&table, &bytes).unwrap();
    refused(&["verify", "--backup", text(&repository)], text(&table));
    let place = dir.path().join("restored");
    refused(&["restore", "--from", text(&repository), "--data", text(&place)], text(&table));
    assert!(!place.exists(), "nothing is left");
}

#[test]
fn damage_in_a_repository_is_mended_or_named_with_the_way_on() {
    let (dir, data) = data_dir();
    let repository = dir.path().join("backups");
    let node = Node::start(&data);
    for number in 0..50 {
        assert_eq!(node.put(&format!("w{number}"), value(number)).status, 201);
    }
    let back_up = || tool(&["backup", "--url", &url(&node), "--to", text(&repository), "--keep", "4"]);
    assert_eq!((back_up().0, back_up().0), (Some(0), Some(0)));
    let objects = std::fs::read_dir(repository.join("objects")).unwrap();
    let table = objects.map(|object| object.unwrap().path()).find(|path| text(path).contains(".sst-"));
    std::fs::OpenOptions::new().write(true).open(table.expect("a table")).unwrap().set_len(1_000).unwrap();
    let (code, out, err) = back_up();
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("1 damaged file in the repository"), "{out}");
    done(&["verify", "--backup", text(&repository)]);

    let newest = repository.join("backups/000003");
    std::fs::write(&newest, "nonsense").unwrap();
    let place = dir.path().join("restored");
    let restore = ["restore", "--from", text(&repository), "--data", text(&place)];
    refused(&restore, "--backup 2 is the newest that can be read");
    let (code, _, err) = back_up();
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("warning: ") && err.contains(text(&newest)), "{err}");
    done(&restore);
    refused(&["verify", "--backup", text(&repository)], text(&newest));
}

#[test]
fn old_backups_are_removed_and_the_kept_ones_stay_whole() {
    let (dir, data) = data_dir();
    let repository = dir.path().join("backups");
    let node = Node::start(&data);
    for number in 0..4 {
        assert_eq!(node.put(&format!("w{number}"), value(number)).status, 201);
        let out = done(&["backup", "--url", &url(&node), "--to", text(&repository), "--keep", "2"]);
        let backups = (number + 1).min(2);
        assert!(out.contains(&format!("holds {backups} backup")), "{out}");
    }
    let out = done(&["verify", "--backup", text(&repository)]);
    assert!(!out.contains("000002") && out.contains("000003") && out.contains("000004"), "{out}");
    refused(&["backup", "--url", &url(&node), "--to", text(dir.path())], "is not a backup repository");
    refused(&["backup", "--url", "http://127.0.0.1:1", "--to", text(&repository)], "cannot be reached");
}

/// Keys, as they are written in a URL, and values that are easily got wrong.
fn odd_entries() -> Vec<(String, Vec<u8>)> {
    vec![
        ("%00".to_owned(), b"the least key".to_vec()),
        ("line%0Afeed".to_owned(), b"two\nlines\n".to_vec()),
        ("zero%00byte".to_owned(), vec![0; 300]),
        ("%FF%FE".to_owned(), vec![0xff, 0xfe, 0x00, b'\n']),
        ("%22quoted%5C".to_owned(), b"\"\\\"".to_vec()),
        ("caf%C3%A9".to_owned(), "caf\u{e9} \u{1f40e}".into()),
        ("empty".to_owned(), Vec::new()),
        ("k".repeat(8_192), b"the longest key".to_vec()),
        ("largest".to_owned(), noise(1, 16 << 20)),
    ]
}

#[track_caller]
/// A node with little memory may answer `503` for the largest value, which is asked for again as
/// `Retry-After` says.
fn assert_holds(address: SocketAddr, entries: &[(String, Vec<u8>)]) {
    for (key, value) in entries {
        let mut found = exchange(address, get(key));
        for _ in 0..REFUSALS_MAX {
            let Some(seconds) = found.header("retry-after").filter(|_| found.status == 503) else { break };
            std::thread::sleep(Duration::from_secs(seconds.parse().expect("a number of seconds")));
            found = exchange(address, get(key));
        }
        let key = &key[..key.len().min(40)];
        assert!(
            found.status == 200 && found.body == *value,
            "{key}: {}, {} bytes: {}",
            found.status,
            found.body.len(),
            String::from_utf8_lossy(&found.body[..found.body.len().min(400)])
        );
    }
}

#[test]
fn what_is_exported_in_any_format_comes_back_by_an_import() {
    let (dir, data) = data_dir();
    let source = Node::start(&data);
    let entries = odd_entries();
    for (key, value) in &entries {
        assert_eq!(source.put(key, value).status, 201);
    }
    assert_eq!(source.put("expires&ttl=1000000", "later").status, 201);
    let formats: [&[&str]; 4] = [
        &["--format", "binary"],
        &["--format", "ndjson"],
        &["--format", "binary", "--compress", "zstd"],
        &["--format", "ndjson", "--compress", "zstd"],
    ];
    for (at, format) in formats.into_iter().enumerate() {
        let file = dir.path().join(format!("file-{at}"));
        let url = url(&source);
        let export = [&["export", "--url", &url, "--to", text(&file)][..], format].concat();
        let out = done(&export);
        assert!(out.contains("10 entries"), "{out}");
        refused(&export, "exists already");
        let target = Node::start(&dir.path().join(format!("target-{at}")));
        let import = ["import", "--url", &format!("http://{}", target.address), "--from", text(&file)];
        let out = done(&import);
        assert!(out.contains("10 entries imported"), "{out}");
        assert_holds(target.address, &entries);
        assert_eq!(target.get("expires").text(), "later");
        target.stop();
    }
    let part = dir.path().join("part");
    let (from, url) = (text(&part), url(&source));
    let out = done(&[
        "export", "--url", &url, "--to", from, "--start", "empty", "--end", "largest", "--limit", "2",
    ]);
    assert!(out.contains("2 entries"), "{out}");
}

#[test]
fn what_is_not_whole_is_not_taken_for_whole() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    for number in 0..100 {
        assert_eq!(node.put(&format!("w{number}"), value(number)).status, 201);
    }
    let url = url(&node);
    let in_dir = |name: &str| dir.path().join(name);
    done(&["export", "--url", &url, "--to", text(&in_dir("whole"))]);
    done(&["export", "--url", &url, "--to", text(&in_dir("whole.zst")), "--compress", "zstd"]);
    let whole = std::fs::read(in_dir("whole")).unwrap();
    let compressed = std::fs::read(in_dir("whole.zst")).unwrap();
    let broken: [(&str, &[u8], &str); 6] = [
        ("cut", &whole[..whole.len() / 2], "is cut short after"),
        ("without-end", &whole[..whole.len() - 17], "is cut short after 100 entries"),
        ("cut.zst", &compressed[..compressed.len() / 2], "is cut short after"),
        ("empty", b"", "is empty"),
        ("gzip", b"\x1f\x8b\x08\x00", "gzip"),
        ("prose", b"once upon a time", "its format is unknown"),
    ];
    for (name, bytes, says) in broken {
        let file: PathBuf = in_dir(name);
        std::fs::write(&file, bytes).unwrap();
        refused(&["import", "--url", &url, "--from", text(&file)], says);
    }
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    std::fs::write(in_dir("flipped"), flipped).unwrap();
    refused(&["import", "--url", &url, "--from", text(&in_dir("flipped"))], "checksum does not match");

    let file = in_dir("late");
    let lines = "{\"key\":\"fine\",\"value\":\"1\"}\n{\"key\":\"late\",\"value\":\"2\",\"expires_at\":9999999999999}\n";
    std::fs::write(&file, lines).unwrap();
    refused(&["import", "--url", &url, "--from", text(&file)], "\"late\": 400");
    assert_eq!(node.get("fine").text(), "1");
    node.stop();
    let file = in_dir("never");
    refused(&["export", "--url", &url, "--to", text(&file)], "cannot be reached");
    assert!(!file.exists() && !in_dir("never.partial").exists());
}

#[test]
fn a_cluster_comes_back_by_an_export_of_all_of_it() {
    let source = Cluster::start(3);
    let mut entries = odd_entries();
    entries.extend((0..200).map(|number| (format!("w{number}"), value(number))));
    for (at, (key, value)) in entries.iter().enumerate() {
        // Keys on one node only, on two, and on all.
        let replicas = ["1/1", "2/2", "2/3"][at % 3];
        let request = put(&format!("{key}&replicas={replicas}"), value);
        assert_eq!(source.exchange(at % 3, request).status, 201);
    }
    assert_eq!(source.exchange(0, bare("DELETE", "/v0/entity?id=w7&replicas=2/3")).status, 202);
    entries.retain(|(key, _)| key != "w7");
    let file = source.dir().join("all");
    let out = done(&["export", "--url", &source.url(1), "--ack", "3", "--to", text(&file)]);
    assert!(out.contains(&format!("{} entries", entries.len())), "{out}");
    let url = source.url(1);
    assert_eq!(done(&["export", "--url", &url, "--ack", "3", "--count"]).trim(), entries.len().to_string());
    let of_prefix = entries.iter().filter(|(key, _)| key.starts_with("w1")).count();
    assert_eq!(
        done(&["export", "--url", &url, "--ack", "3", "--count", "--prefix", "w1"]).trim(),
        of_prefix.to_string()
    );
    let local: usize =
        done(&["export", "--url", &url, "--count", "--local"]).trim().parse().expect("a number");
    assert!(local < entries.len(), "some keys are on other nodes alone");
    let keys = source.dir().join("keys");
    let out = done(&["export", "--url", &url, "--ack", "3", "--keys", "--prefix", "w1", "--to", text(&keys)]);
    assert!(out.contains(&format!("{of_prefix} entries")), "{out}");
    let lines = std::fs::read_to_string(&keys).expect("it was written");
    assert!(
        lines.lines().count() == of_prefix && lines.contains("\"key\":\"w1\"") && !lines.contains("value")
    );
    let target = Cluster::start(3);
    let import =
        ["import", "--url", &target.url(0), "--from", text(&file), "--ack", "3", "--from-replicas", "3"];
    let out = done(&import);
    assert!(out.contains(&format!("{} entries imported", entries.len())), "{out}");
    assert_holds(target.address(2), &entries);
    assert_eq!(target.exchange(1, get("w7")).status, 404);
}

/// A cluster with a backup of each node, and the writes acknowledged before.
fn backed_up_cluster() -> (Cluster, Vec<(String, Vec<u8>)>) {
    let cluster = Cluster::start(3);
    let entries: Vec<_> = (0..150).map(|number| (format!("w{number}"), value(number))).collect();
    for (at, (key, value)) in entries.iter().enumerate() {
        let request = put(&format!("{key}&replicas=3/3"), value);
        assert_eq!(cluster.exchange(at % 3, request).status, 201);
    }
    for node in 0..3 {
        done(&["backup", "--url", &cluster.url(node), "--to", text(&repository(&cluster, node))]);
    }
    (cluster, entries)
}

fn repository(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.dir().join(format!("backups-{node}"))
}

#[track_caller]
fn restore(cluster: &Cluster, node: usize, flag: &str) {
    done(&["restore", "--from", text(&repository(cluster, node)), "--data", text(cluster.data(node)), flag]);
}

#[test]
fn a_whole_cluster_goes_back_to_its_backups() {
    let (mut cluster, entries) = backed_up_cluster();
    for (key, _) in &entries[..50] {
        assert_eq!(cluster.exchange(0, put(key, "overwritten by mistake")).status, 201);
    }
    assert_eq!(cluster.exchange(1, put("later", "too late")).status, 201);
    cluster.stop_all();
    for node in 0..3 {
        cluster.lose_data(node);
    }
    let place = cluster.data(0);
    refused(
        &["restore", "--from", text(&repository(&cluster, 0)), "--data", text(place)],
        "one of 3 nodes, and it depends on what the others did since",
    );
    assert!(!place.exists());
    for node in 0..3 {
        restore(&cluster, node, "--whole-cluster");
    }
    (0..3).for_each(|node| cluster.spawn(node));
    cluster.wait_until_up();
    for node in 0..3 {
        assert_holds(cluster.address(node), &entries);
        assert_eq!(cluster.exchange(node, get("later")).status, 404);
    }
}

#[test]
fn a_node_that_is_restored_catches_up_with_peers_that_went_on() {
    let (mut cluster, mut entries) = backed_up_cluster();
    cluster.kill(2);
    cluster.lose_data(2);
    cluster.wait_until_seen(0, 2, "unreachable");
    for (key, value) in &mut entries[..50] {
        *value = format!("written meanwhile to {key}").into_bytes();
        assert_eq!(cluster.exchange(0, put(key, value)).status, 201);
    }
    assert_eq!(cluster.exchange(0, bare("DELETE", "/v0/entity?id=w60")).status, 202);
    restore(&cluster, 2, "--peers-went-on");
    cluster.start_node(2);
    eventually("the restored node has caught up", || cluster.sync_state(2) == "settled");
    cluster.stop(0);
    entries.retain(|(key, _)| key != "w60");
    assert_holds(cluster.address(2), &entries);
    assert_eq!(cluster.exchange(2, get("w60")).status, 404);
}

#[test]
fn a_backup_that_finds_all_checkpoints_held_names_them_and_the_way_out() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let names = ["held-1", "held-2", "held-3", "held-4"];
    for name in names {
        let post =
            format!("POST /v0/checkpoint?name={name} HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(node.exchange(post).status, 201);
    }
    let backups = dir.path().join("backups");
    let (url, to) = (url(&node), text(&backups).to_owned());
    let backup = ["backup", "--url", url.as_str(), "--to", to.as_str(), "--wait-max", "0s"];
    for says in names.map(|name| format!("{name} (made ")) {
        refused(&backup, &says);
    }
    refused(&backup, "DELETE /v0/checkpoint?name=held-1");
    assert_eq!(node.exchange(bare("DELETE", "/v0/checkpoint?name=held-1")).status, 202);
    done(&backup);
}

#[test]
fn a_client_that_makes_checkpoints_in_a_loop_does_not_lock_out_a_backup() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let (stop, refusals) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let looping = {
        let (address, stop, refusals) = (node.address, Arc::clone(&stop), Arc::clone(&refusals));
        std::thread::spawn(move || {
            let mut connection = Connection::open(address);
            while !stop.load(Ordering::Relaxed) {
                let made = "POST /v0/checkpoint?name=mine HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n";
                let made = connection.exchange(made);
                refusals.fetch_add(u32::from(made.status == 503), Ordering::Relaxed);
                connection.exchange(bare("DELETE", "/v0/checkpoint?name=mine"));
            }
        })
    };
    eventually("checkpoints are paced", || refusals.load(Ordering::Relaxed) > 0);
    let repository = dir.path().join("backups");
    let (url, to) = (url(&node), text(&repository).to_owned());
    let (code, out, err) = tool(&["backup", "--url", &url, "--to", &to, "--progress", "always"]);
    stop.store(true, Ordering::Relaxed);
    looping.join().expect("it ends");
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(err.contains("waiting ") && err.contains("Try again"), "it says why it waits: {err}");
}
