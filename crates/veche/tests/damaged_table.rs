//! A node on its own whose table was damaged while it was stopped.

mod common;

use common::{Node, data_dir, run, veche};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const KEYS: usize = 300;

fn key(number: usize) -> String {
    format!("k{number:03}")
}

fn value(number: usize) -> String {
    format!("{number:03} ").repeat(1_500)
}

fn tables(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data.join("shard-000/tables")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "sst")).collect()
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

/// Keys whose reads fail, all with the name of the table. All others have their values.
fn failing(node: &Node, table: &str) -> Vec<usize> {
    let is_failing = |number: &usize| {
        let found = node.get(&key(*number));
        match found.status {
            200 => assert_eq!(found.text(), value(*number)),
            500 => assert!(found.text().contains(table), "{found:?}"),
            _ => panic!("{found:?}"),
        }
        found.status == 500
    };
    (0..KEYS).filter(is_failing).collect()
}

#[test]
fn a_damaged_first_block_fails_reads_of_its_keys_only_until_they_are_written_anew() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    for number in 0..KEYS {
        assert_eq!(node.put(&key(number), value(number)).status, 201);
    }
    assert_eq!(node.exchange(common::http::bare("POST", "/v0/checkpoint?name=x")).status, 201);
    node.stop();
    let damaged = tables(&data).into_iter().min().expect("a table");
    let name = damaged.file_name().unwrap().to_str().unwrap().to_owned();
    flip(&damaged, 60);

    let mut command = veche();
    command.args(["verify", "--data"]).arg(&data);
    let (code, _, err) = run(command);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains(&name), "{err}");

    let node = Node::start(&data);
    let lost = failing(&node, &name);
    assert!(!lost.is_empty() && lost.len() < KEYS, "{lost:?}");
    node.stop();
    // Found by the generation before: the next one starts as well.
    let node = Node::start(&data);
    assert_eq!(failing(&node, &name), lost);
    for number in lost {
        assert_eq!(node.put(&key(number), value(number)).status, 201);
    }
    assert_eq!(failing(&node, &name), [] as [usize; 0]);
    node.kill();
    let node = Node::start(&data);
    assert_eq!(failing(&node, &name), [] as [usize; 0]);
}
