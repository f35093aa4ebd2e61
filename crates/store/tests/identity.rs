//! A data directory keeps its identity through any crash, and refuses another cluster and another
//! process.

mod common;

use common::{DATA, env, open, options};
use env::{FaultFs, FaultPlan, Fs, MemFs};
use std::path::Path;
use std::sync::Arc;
use stdx::{NodeTag, Rng};
use store::{Membership, Store, StoreError};

const SEEDS: u64 = 64;

#[test]
fn a_crash_at_any_operation_of_the_first_start_leaves_one_identity() {
    let operations = {
        let fs = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
        let counted = fs.clone();
        open(fs, 1).expect("nothing fails");
        counted.operations()
    };
    for stop in 0..=operations {
        for seed in 0..SEEDS {
            let disk = MemFs::new();
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            let first = open(FaultFs::new(Arc::new(disk.clone()), plan), 1);
            let was_open = first.is_ok();
            drop(first);
            let crashed = disk.crash(&mut Rng::new(seed));
            let (_, opened) =
                open(crashed.clone(), 2).unwrap_or_else(|error| panic!("stop {stop}, seed {seed}: {error}"));
            let tag = opened.identity.tag;
            assert!(!was_open || tag == NodeTag(1), "stop {stop}, seed {seed}: the identity was lost");
            assert_eq!(opened.is_new, tag == NodeTag(2), "stop {stop}, seed {seed}");
            let (_, again) = open(crashed.crash(&mut Rng::new(seed)), 3)
                .unwrap_or_else(|error| panic!("stop {stop}, seed {seed}, second crash: {error}"));
            assert_eq!(again.identity.tag, tag, "stop {stop}, seed {seed}, second crash");
        }
    }
}

#[test]
fn a_second_process_is_refused_until_the_first_releases_the_lock() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let refused = open(disk.clone(), 1).err().expect("it is held");
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    assert!(refused.to_string().contains(DATA), "{refused}");
    drop(store);
    open(disk, 1).unwrap();
}

#[test]
fn another_cluster_is_refused_with_an_action() {
    let disk = MemFs::new();
    drop(open(disk.clone(), 1).unwrap());
    let mut other = options(1);
    other.membership = Membership::of(vec!["http://a:1".to_owned(), "http://b:1".to_owned()]);
    let refused = Store::open(env(Arc::new(disk)), Path::new(DATA), other).err().expect("another list");
    let sentence = refused.to_string();
    assert!(sentence.contains("was made for a node on its own"), "{sentence}");
    assert!(sentence.contains("start it without --cluster, or use another --data"), "{sentence}");
}

#[test]
fn data_without_an_identity_is_not_given_a_new_one() {
    let disk = MemFs::new();
    drop(open(disk.clone(), 1).unwrap());
    disk.remove_file(&Path::new(DATA).join("identity")).unwrap();
    let refused = open(disk, 2).err().expect("the identity was lost");
    assert!(matches!(refused, StoreError::IdentityMissing { .. }), "{refused}");
}

#[test]
fn an_identity_without_data_is_replaced() {
    let at = |name: &str| Path::new(DATA).join(name);
    // A first start that is interrupted after the identity and before the shard.
    let interrupted = |stop: u64| {
        let disk = MemFs::new();
        drop(open(FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop)), 1));
        let disk = disk.kill();
        (disk.exists(&at("identity")).unwrap() && !disk.exists(&at("shard-000")).unwrap()).then_some(disk)
    };
    let disk = (0..1_000).find_map(interrupted).expect("there is such a moment");
    let (_, opened) = open(disk, 2).unwrap();
    assert_eq!((opened.identity.tag, opened.is_new), (NodeTag(2), true));
}

#[test]
fn a_damaged_identity_is_reported() {
    let disk = MemFs::new();
    drop(open(disk.clone(), 1).unwrap());
    disk.corrupt(Path::new(DATA).join("identity"), 20, 3).unwrap();
    let refused = open(disk.clone(), 2).err().expect("a bit is wrong");
    assert!(matches!(refused, StoreError::IdentityCorrupt { .. }), "{refused}");
    assert!(refused.to_string().contains("identity is corrupt"), "{refused}");
    let refused = store::verify(&env(Arc::new(disk)), Path::new(DATA), &mut |_| {}).unwrap_err();
    assert!(matches!(refused[..], [StoreError::IdentityCorrupt { .. }]), "{refused:?}");
}
