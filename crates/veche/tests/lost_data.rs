//! A node on its own whose data directory comes back with less than it had.

mod common;

use common::{Node, data_dir, eventually, run, veche};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the first group of a segment begins.
const SEGMENT_HEADER_BYTES: u64 = 512;

/// A directory after a clean stop, with acknowledged writes in its log.
fn filled() -> (tempfile::TempDir, PathBuf) {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    for i in 0..20 {
        assert_eq!(node.put(&format!("k{i}"), format!("v{i}")).status, 201);
    }
    node.stop();
    (dir, data)
}

fn newest_segment(data: &Path) -> PathBuf {
    let entries = fs::read_dir(data.join("shard-000/wal")).unwrap();
    let segments = entries.map(|entry| entry.unwrap().path());
    segments.filter(|path| path.extension().is_some_and(|it| it == "wal")).max().expect("a segment")
}

fn cut(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn verify(data: &Path) -> (Option<i32>, String, String) {
    let mut command = veche();
    command.args(["verify", "--data"]).arg(data);
    run(command)
}

/// That neither `serve` nor `verify` accepts the directory. Returns what `serve` says.
fn refused(data: &Path) -> String {
    let (code, _, err) = verify(data);
    assert_eq!(code, Some(1), "verify: {err}");
    let mut command = veche();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    let (code, _, err) = run(command);
    assert_eq!(code, Some(1), "{err}");
    let last = err.lines().last().expect("it says why").to_owned();
    assert!(last.starts_with("veche: the data directory") && last.contains("less than it had"), "{err}");
    assert!(last.contains("veche restore"), "what to do is not in {last}");
    last
}

#[test]
fn an_emptied_shard_is_refused_until_the_operator_decides_to_start_empty() {
    let (_dir, data) = filled();
    fs::remove_dir_all(data.join("shard-000")).unwrap();
    fs::create_dir(data.join("shard-000")).unwrap();
    let said = refused(&data);
    assert!(said.contains("shard-000 is missing or holds no data"), "{said}");
    assert!(said.contains(&format!("to start empty, move {} away", data.display())), "{said}");
    fs::rename(&data, data.with_extension("away")).unwrap();
    let node = Node::start(&data);
    assert_eq!(node.get("k1").status, 404);
    assert_eq!(node.put("k1", "anew").status, 201);
    node.stop();
    let node = Node::start(&data);
    assert_eq!(node.get("k1").text(), "anew");
}

#[test]
fn a_log_that_was_cut_is_refused_also_at_the_end_of_a_group_with_both_lengths() {
    let (_dir, data) = filled();
    let segment = newest_segment(&data);
    cut(&segment, SEGMENT_HEADER_BYTES);
    let said = refused(&data);
    assert!(said.contains(&segment.display().to_string()), "{said}");
    assert!(said.contains(&format!("and {SEGMENT_HEADER_BYTES} are left")), "{said}");
    let (_, _, err) = verify(&data);
    assert!(err.contains("is cut short"), "{err}");
}

#[test]
fn a_log_without_its_newest_segment_is_refused() {
    let (_dir, data) = filled();
    let segment = newest_segment(&data);
    fs::remove_file(&segment).unwrap();
    let said = refused(&data);
    assert!(said.contains(&format!("{} is missing", segment.display())), "{said}");
}

#[test]
fn a_directory_without_its_mark_is_refused_until_the_operator_accepts_what_is_lost() {
    let (_dir, data) = filled();
    fs::remove_file(data.join("log-mark")).unwrap();
    cut(&newest_segment(&data), SEGMENT_HEADER_BYTES);
    let said = refused(&data);
    let mark = data.join("log-mark");
    assert!(said.contains(&format!("{} is missing", mark.display())), "{said}");
    assert!(said.contains(&format!("echo unknown > {}", mark.display())), "{said}");
    fs::write(&mark, "unknown\n").unwrap();
    let node = Node::start(&data);
    assert_eq!(node.get("k1").status, 404);
    node.stop();
    assert_ne!(fs::read(&mark).unwrap(), b"unknown\n", "it holds for one start");
}

#[test]
fn under_load_the_mark_follows_the_log() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mark = || fs::read(data.join("log-mark")).expect("each start makes one");
    let at_start = mark();
    assert_eq!(node.put("k", "v").status, 201);
    eventually("the mark has moved", || mark() != at_start);
    node.kill();
    let segment = newest_segment(&data);
    cut(&segment, SEGMENT_HEADER_BYTES);
    assert!(refused(&data).contains("is cut short"));
}

#[test]
fn verify_says_how_the_log_ends() {
    let (_dir, data) = filled();
    let (code, out, err) = verify(&data);
    assert_eq!(code, Some(0), "{err}");
    let last = out.lines().last().expect("a line");
    assert!(last.starts_with("the log was closed; "), "{out}");
    assert!(last.ends_with("it ends exactly at the mark of its durable end"), "{out}");

    // A group that was never finished, as a crash leaves it: behind the mark, which names what is
    // whole.
    let whole = newest_segment(&data);
    let bytes = fs::read(&whole).unwrap();
    let node = Node::start(&data);
    let mark = fs::read(data.join("log-mark")).unwrap();
    assert_eq!(node.put("torn", "x".repeat(3_000)).status, 201);
    node.kill();
    fs::write(data.join("log-mark"), mark).unwrap();
    let segment = newest_segment(&data);
    let written = fs::read(&segment).unwrap();
    let value = written.windows(100).position(|window| window == [b'x'; 100]).expect("it is in the log");
    cut(&segment, value as u64 + 1_000);
    assert_eq!(fs::read(&whole).unwrap(), bytes, "the log goes on in another segment");
    let (code, out, err) = verify(&data);
    assert_eq!(code, Some(0), "{err}");
    let last = out.lines().last().expect("a line");
    assert!(last.contains("of an interrupted, never acknowledged write"), "{out}");
}
