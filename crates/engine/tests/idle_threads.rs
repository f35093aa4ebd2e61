//! Threads without work sleep.
#![cfg(target_os = "linux")]

mod support;

use engine::workers::{self, WorkerOptions};
use std::fs;
use std::time::Duration;
use support::{World, small_options};

/// Number of times that the thread of this name has slept since it began. `None` before it has its
/// name.
fn sleeps(name: &str) -> Option<u64> {
    let mut threads = fs::read_dir("/proc/self/task").expect("listed").flatten().map(|entry| entry.path());
    let thread = threads
        .find(|path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name))?;
    let status = fs::read_to_string(thread.join("status")).expect("read");
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("a count");
    Some(line.split_whitespace().nth(1).expect("a number").parse().expect("a number"))
}

#[test]
fn the_urgent_compaction_thread_sleeps_while_there_is_no_debt() {
    let world = World::new(1);
    let engine = world.open(&small_options());
    let _workers = workers::start(&engine, WorkerOptions::default()).expect("started");
    // Longer than any poll of a worker. The first sleeps are those of its start.
    let window = Duration::from_millis(1_200);
    let asleep = (0..10).any(|_| {
        let before = sleeps("veche-urgent");
        std::thread::sleep(window);
        before.is_some_and(|count| count > 0) && sleeps("veche-urgent") == before
    });
    assert!(asleep, "it wakes up again and again");
}
