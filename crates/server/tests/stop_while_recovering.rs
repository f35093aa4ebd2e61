//! A stop signal during recovery. A signal concerns the whole process, so this test has a file of
//! its own.

mod common;

use common::eventually;
use env::{Env, Fault, FaultFs, FaultPlan, MemFs, OperationKind, OperationMatch, OsClock};
use server::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn sigterm_ends_a_node_whose_recovery_hangs_on_the_disk() {
    let hangs = Arc::new(AtomicBool::new(false));
    let hung = Arc::clone(&hangs);
    let wait = Arc::new(move |_| {
        hung.store(true, Ordering::Relaxed);
        loop {
            std::thread::park();
        }
    });
    let hang = Fault::Delay { duration: Duration::ZERO, wait };
    let plan = FaultPlan::fail(OperationMatch::kind(OperationKind::Open).sticky(), hang);
    let fs = FaultFs::new(Arc::new(MemFs::new()), plan);
    let config = common::config(Limits::default());
    let env = Env { fs: Arc::new(fs), clock: Arc::new(OsClock::new()) };
    let node = std::thread::spawn(move || server::run(config, env, &()));
    eventually("the recovery waits for the disk", || hangs.load(Ordering::Relaxed));
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::TERM).expect("it runs");
    node.join().expect("no panic").expect("it was told to stop");
}
