//! Start, stop, kill and restart of a node.

mod common;

use common::http::{Connection, Response, bare, get, put};
use common::{Node, data_dir, eventually, run, veche};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use stdx::{Version, WallTime};

#[test]
fn a_restart_keeps_the_data() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    for i in 0..200 {
        assert_eq!(node.put(&format!("k{i}"), format!("v{i}")).status, 201);
    }
    assert_eq!(node.exchange(common::http::delete("k7")).status, 202);
    let version = node.get("k1").header("etag").map(str::to_owned);
    node.stop();
    let node = Node::start(&data);
    for i in 0..200 {
        let expected = if i == 7 { None } else { Some(format!("v{i}")) };
        let found = node.get(&format!("k{i}"));
        assert_eq!((found.status == 200).then(|| found.text()), expected, "k{i}");
    }
    assert_eq!(node.get("k1").header("etag").map(str::to_owned), version);
    let newer = node.put("k1", "w");
    assert!(newer.header("etag") > version.as_deref(), "versions rise over restarts");
}

/// The version of an answer, as a time.
fn version_wall(answer: &Response) -> WallTime {
    let version: Version =
        answer.header("etag").expect("a version").trim_matches('"').parse().expect("a version");
    version.hlc.wall()
}

fn wall_now() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that was set");
    WallTime::from_micros_since_unix_epoch(since.as_micros() as u64)
}

#[test]
fn versions_after_a_clean_stop_are_not_ahead_of_the_clock() {
    let (_dir, data) = data_dir();
    for _ in 0..3 {
        let node = Node::start(&data);
        let written = node.put("k", "v");
        assert!(version_wall(&written) <= wall_now(), "{written:?}");
        node.stop();
    }
}

/// The process ends by itself, and its last line says why.
fn assert_ends_for_want_of_its_directory(node: Node) {
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    let last = log.lines().last().expect("a line");
    assert!(last.starts_with("veche: the data directory ") && last.contains("removed or replaced"), "{log}");
}

#[test]
fn a_node_whose_directory_is_removed_ends() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    // The node may make files meanwhile, of which the directory is not empty then.
    eventually("the directory is removed", || match std::fs::remove_dir_all(&data) {
        Ok(()) => true,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    });
    assert_ends_for_want_of_its_directory(node);
}

/// A node whose data directory loses `name` while it runs ends, and says so; then the directory is
/// as it was left.
fn ends_without(name: &str) -> (tempfile::TempDir, PathBuf) {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let path = data.join(name);
    std::fs::rename(&path, dir.path().join("lost")).unwrap();
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(1), "{name}: {log}");
    let last = log.lines().last().expect("a line");
    assert!(last.contains(&format!("{} was removed or replaced", path.display())), "{name}: {log}");
    assert!(
        last.contains("Put it back") && last.contains("move what is left of the directory away"),
        "{log}"
    );
    (dir, data)
}

/// The only file in this directory of the data whose name has this part.
fn file_in(dir: &str, part: &str) -> String {
    let (_dir, data) = data_dir();
    Node::start(&data).stop();
    let names = std::fs::read_dir(data.join(dir)).unwrap().map(|entry| entry.unwrap().file_name());
    let name = names.map(|name| name.into_string().unwrap()).find(|name| name.contains(part));
    format!("{dir}/{}", name.expect("a new node has one"))
}

#[test]
fn a_node_that_loses_a_part_of_its_directory_ends() {
    let (manifest, segment) = (file_in("shard-000", "manifest-"), file_in("shard-000/wal", ".wal"));
    let names = [
        "identity",
        "LOCK",
        "shard-000",
        "shard-000/LOCK",
        "shard-000/wal",
        "shard-000/tables",
        "shard-000/CURRENT",
    ];
    for name in names.into_iter().chain([&*manifest, &*segment]) {
        let (dir, data) = ends_without(name);
        // As the last line advises.
        std::fs::rename(dir.path().join("lost"), data.join(name)).unwrap();
        let node = Node::start(&data);
        assert_eq!(node.get("k").text(), "v", "{name}");
        node.stop();
    }
}

#[test]
fn what_is_left_without_an_identity_is_moved_away_as_the_last_line_advises() {
    let (dir, data) = ends_without("identity");
    let mut serve = veche();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let (code, _, err) = run(serve);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("identity is missing") && err.contains("move the data directory away"), "{err}");
    std::fs::rename(&data, dir.path().join("away")).unwrap();
    let node = Node::start(&data);
    assert_eq!(node.get("k").status, 404);
    node.stop();
}

#[test]
fn a_node_whose_directory_is_moved_away_ends() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    std::fs::rename(&data, dir.path().join("moved")).unwrap();
    assert_ends_for_want_of_its_directory(node);
    assert!(!data.exists(), "nothing is made in its place");
}

#[test]
fn a_node_whose_identity_is_replaced_ends() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let copy = dir.path().join("identity");
    std::fs::copy(data.join("identity"), &copy).unwrap();
    std::fs::rename(&copy, data.join("identity")).unwrap();
    assert_ends_for_want_of_its_directory(node);
    let node = Node::start(&data);
    node.stop();
}

/// For each key, the last acknowledged number and the last one sent.
type Ledger = Arc<Mutex<HashMap<String, (u64, u64)>>>;

#[test]
fn kill_9_under_load_loses_no_acknowledged_write() {
    const ROUNDS: u64 = 12;
    const WRITERS: u64 = 6;
    const KEYS_PER_WRITER: u64 = 5;
    /// Writes between start and kill, so that each round has some.
    const ACKNOWLEDGED_MIN: u64 = 150;
    let (_dir, data) = data_dir();
    let ledger = Ledger::default();
    for round in 0..ROUNDS {
        let node = Node::start_with(&data, &["--threads", "2"]);
        check(&node, &ledger);
        let stopping = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (address, ledger, stopping) = (node.address, Arc::clone(&ledger), Arc::clone(&stopping));
                std::thread::spawn(move || {
                    let Ok(mut connection) = Connection::try_open(address) else { return };
                    for count in 0.. {
                        if stopping.load(Ordering::Relaxed) {
                            return;
                        }
                        let key = format!("w{writer}-{}", count % KEYS_PER_WRITER);
                        let number = round << 32 | count;
                        ledger.lock().unwrap().entry(key.clone()).or_default().1 = number;
                        let padding = "x".repeat((number * 37 % 3_000) as usize);
                        let request = put(&key, format!("{number} {padding}"));
                        if connection.try_send(request).is_err() {
                            return;
                        }
                        match connection.try_response(false) {
                            None => return,
                            Some(answer) => assert_eq!(answer.status, 201, "{answer:?}"),
                        }
                        ledger.lock().unwrap().get_mut(&key).expect("sent").0 = number;
                    }
                })
            })
            .collect();
        let in_round =
            |acknowledged: u64| if acknowledged >> 32 == round { acknowledged & 0xffff_ffff } else { 0 };
        let acknowledged = || ledger.lock().unwrap().values().map(|entry| in_round(entry.0)).sum::<u64>();
        eventually("writers write", || acknowledged() >= ACKNOWLEDGED_MIN);
        node.kill();
        stopping.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("no writer saw a wrong answer"));
    }
    let node = Node::start(&data);
    check(&node, &ledger);
    node.stop();
    let (code, out, err) = run(verify(&data));
    assert_eq!(code, Some(0), "{out}{err}");
}

/// Checks that each key has the last acknowledged value or one sent after it.
fn check(node: &Node, ledger: &Ledger) {
    let mut connection = node.connect();
    for (key, &(acknowledged, sent)) in &*ledger.lock().unwrap() {
        let found = connection.exchange(get(key));
        if found.status == 404 {
            assert_eq!(acknowledged, 0, "{key}: {acknowledged} was acknowledged and is not there");
            continue;
        }
        let number: u64 = found.text().split(' ').next().expect("a number").parse().expect("a number");
        assert!(
            (acknowledged..=sent).contains(&number),
            "{key}: {number}, acknowledged {acknowledged}, sent {sent}"
        );
    }
}

fn verify(data: &Path) -> std::process::Command {
    let mut command = veche();
    command.args(["verify", "--data"]).arg(data);
    command
}

#[test]
fn a_second_process_on_the_same_data_or_port_is_refused() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let mut same_data = veche();
    same_data.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let (code, out, err) = run(same_data);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(
        err.lines()
            .last()
            .is_some_and(|line| line.starts_with("veche: ") && line.contains("in use by another process")),
        "{err}"
    );

    let mut same_port = veche();
    same_port.args(["serve", "--listen", &node.address.to_string(), "--data"]).arg(dir.path().join("other"));
    let (code, _, err) = run(same_port);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.starts_with(&format!("veche: cannot listen on {}", node.address)), "{err}");
    assert!(!dir.path().join("other").exists(), "nothing was made");

    let (code, _, err) = run(verify(&data));
    assert_eq!(code, Some(1), "{err}");
    assert_eq!(node.put("k", "v").status, 201, "the first goes on");
}

#[test]
fn a_directory_that_was_removed_is_a_new_node() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    node.stop();
    std::fs::remove_dir_all(&data).unwrap();
    let node = Node::start(&data);
    assert_eq!(node.get("k").status, 404);
    assert_eq!(node.put("k", "w").status, 201);
    node.stop();
    assert_eq!(Node::start(&data).get("k").text(), "w");
}

#[test]
fn sigterm_answers_what_is_under_way_and_closes_what_is_idle() {
    let (_dir, data) = data_dir();
    // With one I/O thread, the end of the idle connection shows that all connections are draining.
    let node = Node::start_with(&data, &["--threads", "1"]);
    let mut idle = node.connect();
    assert_eq!(idle.exchange(bare("GET", "/v0/status")).status, 200);
    let mut busy = node.connect();
    let request = put("k", "x".repeat(100_000));
    busy.send(&request[..50_000]);
    let mut untouched = node.connect();
    untouched.finish_sending();
    untouched.assert_closed();
    node.terminate();
    idle.assert_closed();
    busy.send(&request[50_000..]);
    let answer = busy.response();
    assert_eq!((answer.status, answer.header("connection")), (201, Some("close")));
    busy.assert_closed();
    let (status, stderr) = node.wait();
    assert!(status.success(), "{status}: {stderr}");
    assert!(stderr.contains("told to stop") && stderr.contains("stopped"), "{stderr}");
    assert_eq!(Node::start(&data).get("k").body.len(), 100_000);
}

#[test]
fn while_it_drains_the_status_says_so_and_requests_are_answered() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--drain-delay", "2s"]);
    node.terminate();
    eventually("the status is 503", || {
        let status = node.exchange(bare("GET", "/v0/status"));
        status.status == 503 && status.text().contains("\"state\":\"draining\"")
    });
    assert_eq!(node.put("k", "v").status, 201, "connections are still accepted");
    let (status, stderr) = node.wait();
    assert!(status.success(), "{status}: {stderr}");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let (dir, data) = data_dir();
    let file = dir.path().join("veche.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\ndata = {:?}\nmemory = \"32MiB\"\nvalue-max = 10\nlog-format = \"json\"\n",
        data.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let serve = |environment: &[(&str, &str)], flags: &[&str]| {
        let mut command = veche();
        command.arg("serve").env("VECHE_CONFIG", &file).envs(environment.iter().copied()).args(flags);
        Node::spawn(command)
    };
    const EMPTY: &[(&str, &str)] =
        &[("VECHE_VALUE_MAX", ""), ("VECHE_CLUSTER", ""), ("VECHE_DURABILITY", ""), ("VECHE_LISTEN", "")];
    let limit_of = |node: &Node| match [1, 2, 3].map(|tens| node.put("k", "x".repeat(tens * 10)).status) {
        [201, 413, 413] => 10,
        [201, 201, 413] => 20,
        [201, 201, 201] => 30,
        other => panic!("{other:?}"),
    };
    let node = serve(&[], &[]);
    assert_eq!(limit_of(&node), 10);
    let log = node.stop();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["fields"]["message"], "serving");
    let log = serve(&[("VECHE_MEMROY", "1GiB")], &["--log-format", "text"]).stop();
    assert!(log.contains("WARN") && log.contains("VECHE_MEMROY"), "{log}");
    assert_eq!(limit_of(&serve(&[("VECHE_VALUE_MAX", "20B")], &[])), 20);
    assert_eq!(limit_of(&serve(&[("VECHE_VALUE_MAX", "20B")], &["--value-max", "30B"])), 30);
    assert_eq!(limit_of(&serve(EMPTY, &[])), 10);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let (dir, data) = data_dir();
    let file = dir.path().join("veche.toml");
    std::fs::write(&file, "lisen = \"127.0.0.1:0\"\n").unwrap();
    let file = file.display().to_string();
    let cases: [(&[&str], &str); 7] = [
        (&["--config", &file], "lisen"),
        (&["--config", "/nowhere.toml"], "/nowhere.toml"),
        (&["--memory", "1MiB"], "at least 16MiB"),
        (&["--cluster", "http://a:1,http://b:1"], "set --self-url"),
        (
            &["--cluster", "http://a:1,http://b:1", "--self-url", "http://a:1", "--default-from", "3"],
            "at most all 2",
        ),
        (&["--cluster", "http://a:1", "--self-url", "http://b:1"], "is not in --cluster"),
        (&["--log", "loud=very"], "--log"),
    ];
    for (flags, says) in cases {
        let mut command = veche();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data).args(flags);
        let (code, _, err) = run(command);
        // Only a missing file is found elsewhere than in the command line.
        assert_eq!(code, Some(if flags[0] == "--config" { 1 } else { 2 }), "{flags:?}: {err}");
        assert!(err.starts_with("veche: ") && err.contains(says), "{flags:?}: {err}");
    }
    let mut command = veche();
    command.args(["serve", "--durability", "never"]);
    let (code, _, err) = run(command);
    assert_eq!(code, Some(2), "{err}");
    assert!(!data.exists());
}

#[test]
fn another_node_is_refused_with_an_action() {
    let (_dir, data) = data_dir();
    // The cluster names no ids before both nodes were heard. A node with a named id may move.
    let list = ["--cluster", "http://a:1,http://b:1"];
    Node::start_with(&data, &[&list[..], &["--self-url", "http://a:1"]].concat()).stop();
    let mut command = veche();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--self-url", "http://b:1"])
        .args(list)
        .arg("--data")
        .arg(&data);
    let (code, out, err) = run(command);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("was made for http://a:1, not for http://b:1"), "{err}");
    assert!(err.contains("use another --data"), "{err}");
}

/// A cluster of one: the node itself.
const AS_LIST: [&str; 4] = ["--cluster", "http://a:1", "--self-url", "http://a:1"];

#[test]
fn a_node_on_its_own_and_a_list_of_it_alone_are_the_same() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "alone").status, 201);
    node.stop();
    let node = Node::start_with(&data, &AS_LIST);
    assert_eq!(node.get("k").text(), "alone");
    node.stop();

    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &AS_LIST);
    assert_eq!(node.put("k", "listed").status, 201);
    node.stop();
    let node = Node::start_with(&data, &["--cluster", ""]);
    assert_eq!(node.get("k").text(), "listed");
}

#[test]
fn a_data_directory_that_is_a_file_is_refused_before_anything_is_said() {
    let (_dir, data) = data_dir();
    std::fs::write(&data, "not a directory").unwrap();
    let mut command = veche();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let (code, out, err) = run(command);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains(&data.display().to_string()), "{err}");
}

#[test]
fn a_pipe_in_place_of_a_file_of_the_data_directory_is_refused_by_name() {
    let (_dir, data) = data_dir();
    Node::start(&data).stop();
    for name in ["identity", "LOCK", "log-mark", "shard-000/CURRENT", "shard-000/LOCK"] {
        let (file, kept) = (data.join(name), data.join("kept"));
        std::fs::rename(&file, &kept).expect("it is there");
        let made = std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo is there");
        assert!(made.success());
        let mut command = veche();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
        let (code, _, err) = run(command);
        let last = err.lines().last().unwrap_or_default();
        assert_eq!(code, Some(1), "{name}: {err}");
        let says = last.contains(&file.display().to_string()) && last.contains("not a regular file");
        assert!(last.starts_with("veche: ") && says, "{name}: {err}");
        std::fs::rename(&kept, &file).expect("put back");
    }
    Node::start(&data).stop();
}

#[test]
fn weaker_durability_is_said_in_log_and_status() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--durability", "os"]);
    assert_eq!(node.put("k", "v").status, 201);
    let status: serde_json::Value =
        serde_json::from_slice(&node.exchange(bare("GET", "/v0/status")).body).expect("JSON");
    assert_eq!(status["storage"]["durability"], "os");
    assert!(status["warnings"][0].as_str().is_some_and(|warning| warning.contains("--durability os")));
    let log = node.stop();
    assert!(log.contains("WARN") && log.contains("loss of power may undo"), "{log}");
}

#[test]
fn status_and_verify_tell_by_their_exit_code() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v".repeat(5_000)).status, 201);
    let url = format!("http://{}", node.address);
    let status = |flags: &[&str]| {
        let mut command = veche();
        command.args(["status", "--url", &url]).args(flags);
        run(command)
    };
    let (code, out, _) = status(&[]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with(&format!("{url}: serving")), "{out}");
    let (code, out, _) = status(&["--json"]);
    assert_eq!(code, Some(0));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).expect("JSON")["state"], "serving");
    node.stop();
    let (code, _, err) = status(&[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("does not answer"), "{err}");

    let (code, out, err) = run(verify(&data));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("0 tables of 0 bytes with 0 cells, ") && out.contains("all as written"), "{out}");
    let damaged = damage_the_log(&data);
    let (code, _, err) = run(verify(&data));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains(&damaged), "{damaged} is not in {err}");
    let mut serve = veche();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let (code, _, err) = run(serve);
    assert_eq!(code, Some(1), "a node does not start on it either: {err}");
    assert!(err.contains(&damaged), "{damaged} is not in {err}");
    assert!(err.contains("Restore a backup") && err.lines().count() == 1, "what to do is not in {err}");
    std::fs::write(data.join("identity"), "nonsense").unwrap();
    let (code, _, err) = run(verify(&data));
    assert_eq!(code, Some(1), "{err}");
    let lines: Vec<_> = err.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.starts_with("veche: ")), "{err}");
    assert!(lines[0].contains("identity") && lines[1].contains(&damaged), "{err}");
    assert!(lines[2].contains("2 files are damaged, missing or cut short"), "{err}");
}

/// Flips a bit in the value that the log holds. The name of the file.
fn damage_the_log(data: &Path) -> String {
    let value = "v".repeat(1_000);
    for entry in std::fs::read_dir(data.join("shard-000/wal")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(1_000).position(|window| window == value.as_bytes()) {
            bytes[at + 500] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            return path.file_name().expect("a file").to_string_lossy().into_owned();
        }
    }
    panic!("no segment holds the value");
}
