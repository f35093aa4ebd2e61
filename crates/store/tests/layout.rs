//! A data directory remembers the layout of its cluster: from its first start on, from an earlier
//! release on, and through a stop at every file operation.

mod common;

use cluster::{LayoutEpoch, LayoutRecord};
use common::{DATA, copy_of, env, options};
use env::{FaultFs, FaultPlan, Fs, MemFs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{NodeTag, Rng};
use store::{
    AfterRestore, DirectoryCluster, LAYOUT_FILE, Membership, OpenReport, Recover, Store, StoreError,
    StoreOptions, recover_layout,
};

const SEEDS: u64 = 8;

fn names(nodes: usize) -> Vec<String> {
    (0..nodes).map(|node| format!("http://n{node}:1")).collect()
}

fn membership(nodes: usize, default_from: Option<u8>) -> Membership {
    let membership = Membership::of(names(nodes)).seen_by("http://n0:1");
    Membership { partitions: 16, default_from, ..membership }
}

fn open(fs: impl Fs + 'static, membership: Membership) -> Result<(Store, OpenReport), StoreError> {
    let options = StoreOptions { membership, ..options(1) };
    Store::open(env(Arc::new(fs)), Path::new(DATA), options)
}

fn layout_path() -> PathBuf {
    Path::new(DATA).join(LAYOUT_FILE)
}

fn find(disk: &MemFs) -> Result<DirectoryCluster, StoreError> {
    DirectoryCluster::find(&env(Arc::new(disk.clone())), Path::new(DATA))
}

/// The directory of a node of five, as an earlier release leaves it.
fn of_earlier_release() -> MemFs {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), membership(5, None)).unwrap();
    store.engine().close().unwrap();
    drop(store);
    disk.remove_file(&layout_path()).unwrap();
    disk.sync_dir(Path::new(DATA)).unwrap();
    disk
}

fn child(parent: &LayoutRecord, tag: u64) -> LayoutRecord {
    let mut child = parent.clone();
    child.epoch = parent.epoch.next().unwrap();
    child.parent = parent.hash();
    for (member, tag) in child.members.iter_mut().zip(tag..) {
        member.node_id = Some(NodeTag(tag));
    }
    child
}

#[test]
fn a_new_cluster_keeps_a_key_on_at_most_3_nodes_unless_its_operator_chooses() {
    for (nodes, chosen, expected) in [
        (0, None, 1),
        (1, None, 1),
        (2, None, 2),
        (3, None, 3),
        (5, None, 3),
        (5, Some(5), 5),
        (5, Some(1), 1),
    ] {
        let disk = MemFs::new();
        assert_eq!(find(&disk).unwrap(), DirectoryCluster::New);
        if chosen.is_none() {
            assert_eq!(DirectoryCluster::New.default_from(nodes.max(1) as u8), expected);
        }
        let (_, opened) = open(disk.clone(), membership(nodes, chosen)).unwrap();
        assert_eq!((opened.layout.epoch, opened.layout.default_from), (LayoutEpoch::FIRST, expected));
        let (_, again) = open(disk, membership(nodes, None)).unwrap();
        assert_eq!(again.layout, opened.layout, "{nodes} nodes, {chosen:?}");
    }
}

#[test]
fn the_directory_of_an_earlier_release_keeps_the_default_that_it_ran_with() {
    for (chosen, expected) in [(None, 5), (Some(3), 3)] {
        let disk = of_earlier_release();
        let listed = find(&disk).unwrap();
        assert_eq!(listed, DirectoryCluster::Listed(membership(5, None)));
        assert_eq!(listed.default_from(5), 5);
        let (_, opened) = open(disk.clone(), membership(5, chosen)).unwrap();
        assert_eq!((opened.layout.epoch, opened.layout.default_from), (LayoutEpoch::FIRST, expected));
        let recorded = find(&disk).unwrap();
        assert_eq!(recorded, DirectoryCluster::Recorded(membership(5, Some(expected))));
        assert_eq!(recorded.default_from(5), expected);
    }
}

#[test]
fn the_record_of_an_earlier_directory_is_that_of_a_new_one() {
    let (_, upgraded) = open(of_earlier_release(), membership(5, None)).unwrap();
    let (_, new) = open(MemFs::new(), membership(5, Some(5))).unwrap();
    assert_eq!(upgraded.layout.encode(), new.layout.encode());
}

/// Opens at any operation of an opening, with power lost afterwards, and then without a stop.
fn open_after_each_stop(before: &MemFs, membership: &Membership, mut check: impl FnMut(u64, &OpenReport)) {
    let counted = FaultFs::new(Arc::new(before.kill()), FaultPlan::none());
    drop(open(counted.clone(), membership.clone()).unwrap());
    for stop in 0..=counted.operations() {
        for seed in 0..SEEDS {
            let disk = before.kill();
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            drop(open(FaultFs::new(Arc::new(disk.clone()), plan), membership.clone()));
            let crashed = disk.crash(&mut Rng::new(seed));
            let (_, opened) = open(crashed, membership.clone())
                .unwrap_or_else(|error| panic!("stop {stop}, seed {seed}: {error}"));
            check(stop, &opened);
        }
    }
}

#[test]
fn a_stop_at_any_operation_of_the_upgrade_leaves_a_directory_that_opens() {
    let before = of_earlier_release();
    let expected = open(before.kill(), membership(5, None)).unwrap().1;
    open_after_each_stop(&before, &membership(5, None), |stop, opened| {
        assert_eq!(opened.layout, expected.layout, "stop {stop}");
        assert_eq!(opened.identity.tag, expected.identity.tag, "stop {stop}");
    });
}

#[test]
fn a_stop_at_any_operation_of_the_first_start_is_not_taken_for_an_earlier_release() {
    open_after_each_stop(&MemFs::new(), &membership(5, None), |stop, opened| {
        assert_eq!(opened.layout.default_from, 3, "stop {stop}");
    });
}

#[test]
fn a_record_without_an_identity_is_replaced() {
    let disk = MemFs::new();
    drop(open(disk.clone(), membership(3, Some(2))).unwrap());
    for name in ["identity", "alive", "log-mark"] {
        disk.remove_file(&Path::new(DATA).join(name)).unwrap();
    }
    (&disk as &dyn Fs).remove_dir_all(&Path::new(DATA).join("shard-000")).unwrap();
    assert_eq!(find(&disk).unwrap(), DirectoryCluster::New);
    let (_, opened) = open(disk, membership(5, None)).unwrap();
    assert_eq!((opened.layout.members.len(), opened.layout.default_from), (5, 3));
}

#[test]
fn another_cluster_or_default_than_the_recorded_one_is_refused() {
    let disk = MemFs::new();
    drop(open(disk.clone(), membership(3, None)).unwrap());
    for (asked, says) in [
        (membership(2, None), "was made for the cluster"),
        (membership(3, Some(2)), "start it with --default-from 3, or without it"),
    ] {
        let refused = open(disk.clone(), asked).err().expect("it differs").to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn a_damaged_record_is_reported() {
    let disk = MemFs::new();
    drop(open(disk.clone(), membership(3, None)).unwrap());
    disk.corrupt(layout_path(), 100, 3).unwrap();
    let refused = open(disk.clone(), membership(3, None)).err().expect("a bit is wrong");
    assert!(matches!(refused, StoreError::LayoutCorrupt { .. }), "{refused}");
    assert!(refused.to_string().contains("copy the file from another node"), "{refused}");
    assert!(matches!(find(&disk), Err(StoreError::LayoutCorrupt { .. })));
    let refused = store::verify(&env(Arc::new(disk)), Path::new(DATA), &mut |_| {}).unwrap_err();
    assert!(matches!(refused[..], [StoreError::LayoutCorrupt { .. }]), "{refused:?}");
}

#[test]
fn only_a_newer_record_of_the_cluster_is_adopted() {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), membership(3, None)).unwrap();
    let (_, other) = open(MemFs::new(), membership(2, None)).unwrap();
    let epoch_2 = child(&opened.layout, 10);
    let mut changed = epoch_2.clone();
    changed.voters.truncate(1);
    for refused in [(*opened.layout).clone(), child(&other.layout, 10), changed] {
        let error = store.adopt_layout(refused).expect_err("no child");
        assert!(matches!(error, StoreError::LayoutRefused { .. }), "{error}");
        assert_eq!(store.layout(), opened.layout);
    }
    assert_eq!(*store.adopt_layout(epoch_2.clone()).unwrap(), epoch_2);
    assert_eq!(*store.layout(), epoch_2);
    let epoch_4 = child(&child(&epoch_2, 20), 30);
    assert_eq!(*store.adopt_layout(epoch_4.clone()).unwrap(), epoch_4);
    assert!(store.adopt_layout(child(&epoch_2, 40)).is_err(), "epoch 3 is older");
    store.engine().close().unwrap();
    drop(store);
    assert_eq!(*open(disk, membership(3, None)).unwrap().1.layout, epoch_4);
}

#[test]
fn the_child_of_a_first_record_with_another_default_is_adopted() {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), membership(3, None)).unwrap();
    let other = LayoutRecord { default_from: 2, ..(*opened.layout).clone() };
    let epoch_2 = child(&other, 10);
    assert_eq!(*store.adopt_layout(epoch_2.clone()).unwrap(), epoch_2);
    store.engine().close().unwrap();
    drop(store);
    assert_eq!(*open(disk, membership(3, None)).unwrap().1.layout, epoch_2);
}

#[test]
fn an_adopted_record_is_durable_and_a_stop_leaves_the_old_or_the_new_one() {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), membership(3, None)).unwrap();
    store.engine().close().unwrap();
    drop(store);
    let epoch_2 = child(&opened.layout, 10);
    let mut adopted = 0;
    for stop in 0..64 {
        for seed in 0..SEEDS {
            let disk = disk.kill();
            let faults = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
            let (store, _) = open(faults.clone(), membership(3, None)).unwrap();
            faults.set_plan(FaultPlan::stop_after(faults.operations() + stop).tear_last_write());
            let is_adopted = store.adopt_layout(epoch_2.clone()).is_ok();
            adopted += u64::from(is_adopted);
            assert_eq!(*store.layout() == epoch_2, is_adopted);
            drop(store);
            let found = open(disk.crash(&mut Rng::new(seed)), membership(3, None)).unwrap().1.layout;
            assert!(*found == epoch_2 || (!is_adopted && found == opened.layout), "stop {stop}, seed {seed}");
        }
    }
    assert!((1..64 * SEEDS).contains(&adopted));
}

#[test]
fn a_checkpoint_and_its_copy_have_the_record() {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), membership(3, Some(2))).unwrap();
    let epoch_2 = child(&opened.layout, 10);
    store.adopt_layout(epoch_2.clone()).unwrap();
    let checkpoint = store.checkpoint().unwrap();
    let copy = copy_of(&disk, &checkpoint.path);
    let copy_env = env(Arc::new(copy.clone()));
    store::prepare_restored(&copy_env, Path::new(DATA), AfterRestore::Keep).unwrap();
    let (_, restored) = open(copy, membership(3, None)).unwrap();
    assert_eq!(*restored.layout, epoch_2);
}

#[test]
fn a_recovered_layout_is_whole_after_a_stop_at_any_operation() {
    let env_of = |disk: &MemFs| env(Arc::new(disk.clone()));
    let before = MemFs::new();
    let (store, opened) = open(before.clone(), membership(3, None)).unwrap();
    store.engine().close().unwrap();
    drop(store);
    let lost = names(3)[1..].to_vec();
    let votes = before.read_file(Path::new(DATA).join(store::VOTES_FILE)).unwrap();
    let counted = FaultFs::new(Arc::new(before.kill()), FaultPlan::none());
    let recovered =
        recover_layout(&env(Arc::new(counted.clone())), Path::new(DATA), &lost, Recover::Apply).unwrap();
    assert_eq!(recovered.former, *opened.layout);
    assert_eq!(recovered.remaining().collect::<Vec<_>>(), ["http://n0:1"]);
    for stop in 0..=counted.operations() {
        for seed in 0..SEEDS {
            let disk = before.kill();
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            let result = recover_layout(
                &env(Arc::new(FaultFs::new(Arc::new(disk.clone()), plan))),
                Path::new(DATA),
                &lost,
                Recover::Apply,
            );
            let kept =
                |name: &str| disk.read_file(Path::new(DATA).join(format!("{name}.before-recovery"))).ok();
            let is_replaced = disk.read_file(layout_path()).unwrap() != opened.layout.encode();
            assert!(
                !is_replaced
                    || (kept("layout") == Some(opened.layout.encode())
                        && kept("votes") == Some(votes.clone())),
                "stop {stop}: the former files are kept first"
            );
            let (_, after) = open(disk.crash(&mut Rng::new(seed)), membership(3, None)).unwrap();
            assert!(
                *after.layout == recovered.record || after.layout == opened.layout,
                "stop {stop}, seed {seed}"
            );
            assert!(
                result.is_err() || *after.layout == recovered.record,
                "stop {stop}, seed {seed}: it was not durable"
            );
        }
    }
    let disk = before.kill();
    recover_layout(&env_of(&disk), Path::new(DATA), &lost, Recover::Apply).unwrap();
    let again =
        recover_layout(&env_of(&disk), Path::new(DATA), &lost, Recover::Apply).unwrap_err().to_string();
    assert!(again.contains("a majority"), "{again}");
}

#[test]
fn a_dry_run_computes_the_record_and_changes_nothing() {
    let disk = MemFs::new();
    drop(open(disk.clone(), membership(3, None)).unwrap());
    let disk = disk.kill();
    let recover = |recover| {
        recover_layout(&env(Arc::new(disk.clone())), Path::new(DATA), &names(3)[1..], recover).unwrap()
    };
    let content = || -> Vec<_> {
        disk.file_names().into_iter().map(|path| (disk.read_file(&path).unwrap(), path)).collect()
    };
    let before = content();
    let planned = recover(Recover::DryRun);
    assert_eq!(content(), before);
    assert_eq!(recover(Recover::Apply), planned);
    assert_eq!(disk.read_file(layout_path()).unwrap(), planned.record.encode());
    // The operator undoes it.
    for name in planned.kept {
        let path = Path::new(DATA).join(name);
        disk.rename(&path.with_extension("before-recovery"), &path).unwrap();
    }
    assert_eq!(content(), before);
}

/// The record names the id of the directory, and the node has moved since the directory was made.
#[test]
fn a_directory_knows_its_member_by_the_id_that_the_record_names() {
    let disk = MemFs::new();
    let asked = Membership { own: Some("http://n2:1".to_owned()), ..membership(3, None) };
    let (store, opened) = open(disk.clone(), asked.clone()).unwrap();
    let mut named = child(&opened.layout, 10);
    named.members[2].node_id = Some(opened.identity.tag);
    store.adopt_layout(named.clone()).unwrap();
    let mut moved = child(&named, 10);
    moved.members[2].node_id = Some(opened.identity.tag);
    moved.members[2].url = "http://moved:1".to_owned();
    store.adopt_layout(moved.clone()).unwrap();
    store.engine().close().unwrap();
    drop(store);
    let DirectoryCluster::Named(found) = find(&disk).unwrap() else { panic!("the id is named") };
    assert_eq!(found.own.as_deref(), Some("http://moved:1"));
    assert_eq!(*open(disk.clone(), found).unwrap().1.layout, moved);
    let refused = open(
        disk.clone(),
        Membership { nodes: moved.members.iter().map(|it| it.url.clone()).collect(), ..asked },
    );
    let refused = refused.err().expect("it is another member").to_string();
    assert!(refused.contains("was made for http://moved:1"), "{refused}");
}

#[test]
fn a_layout_is_not_recovered_for_unknown_nodes_nor_by_a_lost_one() {
    let disk = MemFs::new();
    drop(open(disk.clone(), membership(3, None)).unwrap());
    let disk = disk.kill();
    let refusal = |lost: &[&str]| {
        let lost: Vec<_> = lost.iter().map(|url| (*url).to_owned()).collect();
        recover_layout(&env(Arc::new(disk.clone())), Path::new(DATA), &lost, Recover::Apply)
            .unwrap_err()
            .to_string()
    };
    for (lost, told) in [
        (&["http://n1:1", "http://n9:1"][..], "http://n9:1 is no member"),
        (&["http://n0:1", "http://n1:1"], "http://n0:1 is the node of this directory"),
        (&["http://n1:1"], "2 of the 3 voters remain"),
    ] {
        assert!(refusal(lost).contains(told), "{}", refusal(lost));
    }
}

/// The directory of a node of `nodes` that has replaced another one, which the record names still.
/// Returns its id too.
fn replaced_in_cluster_of(nodes: usize) -> (MemFs, NodeTag) {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), membership(nodes, None)).unwrap();
    let mut named = child(&opened.layout, 10);
    for (slot, member) in named.members.iter_mut().enumerate() {
        member.node_id = Some(NodeTag(100 + slot as u64));
    }
    store.adopt_layout(named).unwrap();
    drop(store);
    (disk.kill(), opened.identity.tag)
}

/// All nodes were replaced one after the other, and no record could name the new ones.
#[test]
fn a_recovery_by_a_replacement_names_it_if_it_is_the_last_node() {
    let (disk, tag) = replaced_in_cluster_of(3);
    let recover =
        |lost: &[String]| recover_layout(&env(Arc::new(disk.clone())), Path::new(DATA), lost, Recover::Apply);
    let refusal = recover(&names(4)[1..2]).unwrap_err().to_string();
    assert!(refusal.contains("2 of the 3 voters remain"), "{refusal}");
    let recovered = recover(&names(3)[1..]).unwrap();
    assert_eq!(recovered.record.members[0].node_id, Some(tag));
    assert_eq!(recovered.voters().collect::<Vec<_>>(), ["http://n0:1"]);
}

#[test]
fn a_recovery_by_a_replacement_is_refused_while_other_nodes_remain() {
    let (disk, _) = replaced_in_cluster_of(5);
    let lost = names(5)[2..].to_vec();
    let refusal =
        recover_layout(&env(Arc::new(disk.clone())), Path::new(DATA), &lost, Recover::Apply).unwrap_err();
    assert!(refusal.to_string().contains("Run the command on http://n1:1"), "{refusal}");
}

#[test]
fn the_record_of_another_cluster_is_refused() {
    let disk = MemFs::new();
    drop(open(disk.clone(), membership(3, None)).unwrap());
    let record_of = |membership: Membership| {
        let disk = MemFs::new();
        drop(open(disk.clone(), membership).unwrap());
        disk.read_file(layout_path()).unwrap()
    };
    let own = disk.read_file(layout_path()).unwrap();
    let put = |bytes: &[u8]| disk.write_file(layout_path(), bytes).unwrap();
    let others = Membership::of(vec!["http://x0:1".to_owned(), "http://x1:1".to_owned()]);
    for foreign in [Membership { partitions: 16, ..others }.seen_by("http://x0:1"), membership(0, None)] {
        put(&record_of(foreign));
        for refused in [find(&disk).unwrap_err(), open(disk.clone(), membership(3, None)).err().unwrap()] {
            assert!(matches!(refused, StoreError::ForeignLayout { .. }), "{refused}");
            let sentence = refused.to_string();
            assert!(sentence.contains("the data directory belongs to http://n0:1"), "{sentence}");
            assert!(sentence.contains("Copy the file from another member"), "{sentence}");
        }
    }
    put(&record_of(membership(5, None)));
    assert!(find(&disk).is_ok(), "it has a member at the address of the node: a copied layout");
    put(&own);
    drop(open(disk, membership(3, None)).unwrap());
    let alone = MemFs::new();
    drop(open(alone.clone(), membership(0, None)).unwrap());
    assert!(find(&alone).is_ok());
    alone.write_file(layout_path(), &own).unwrap();
    let sentence = find(&alone).unwrap_err().to_string();
    assert!(sentence.contains("belongs to a node on its own"), "{sentence}");
}

/// The node has moved after its directory was made. Its copy becomes another node, at the address
/// of the record.
#[test]
fn a_copy_of_a_node_that_has_moved_is_restored_at_its_present_address() {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), membership(3, None)).unwrap();
    let mut named = child(&opened.layout, 10);
    named.members[0].node_id = Some(opened.identity.tag);
    store.adopt_layout(named.clone()).unwrap();
    let mut moved = child(&named, 10);
    moved.members[0].node_id = Some(opened.identity.tag);
    moved.members[0].url = "http://moved:1".to_owned();
    store.adopt_layout(moved.clone()).unwrap();
    let checkpoint = store.checkpoint().unwrap();
    let copy = copy_of(&disk, &checkpoint.path);
    store::prepare_restored(&env(Arc::new(copy.clone())), Path::new(DATA), AfterRestore::Rebuild).unwrap();
    for _ in 0..2 {
        let found = match find(&copy).unwrap() {
            DirectoryCluster::Named(found) | DirectoryCluster::Recorded(found) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(found.own.as_deref(), Some("http://moved:1"));
        let options = StoreOptions { membership: found, new_tag: NodeTag(2), ..options(1) };
        let (store, restored) = Store::open(env(Arc::new(copy.clone())), Path::new(DATA), options).unwrap();
        assert_ne!(restored.identity.tag, opened.identity.tag);
        assert_eq!(*restored.layout, moved);
        store.engine().close().unwrap();
    }
}
