//! The backups of all nodes are restored together only if no data has moved between them.

mod common;

use cluster::{FEATURE_LEVEL_PLANS, LayoutEpoch, LayoutRecord, RunningPlan};
use common::{BACKUPS, DATA, Kind, back_up_checkpoint, entries, env, open, write};
use ctl::{BackupLayout, BackupNumber, Repository, WholeClusterRefusal, check_whole_cluster};
use env::MemFs;
use std::path::Path;
use stdx::NodeTag;
use store::Store;

/// Has the node adopt a record of this epoch, whose replicas have changed last in `placed`.
fn adopt(store: &Store, epoch: u64, placed: u64, is_changing: bool) -> LayoutRecord {
    let mut record = (*store.layout()).clone();
    (record.epoch, record.parent) = (LayoutEpoch(epoch), record.hash());
    record.feature_level = FEATURE_LEVEL_PLANS;
    (0..).zip(&mut record.members).for_each(|(id, member)| member.node_id = Some(NodeTag(100 + id)));
    record.changed[0] = LayoutEpoch(placed);
    record.plan = is_changing.then(|| RunningPlan::new(LayoutEpoch(epoch)));
    store.adopt_layout(record.clone()).expect("a newer record");
    record
}

/// A repository with five backups of a node of three: before any change, after one, during one,
/// after it, and at a later epoch without another change.
fn backups() -> (MemFs, Vec<LayoutRecord>) {
    let disk = MemFs::new();
    let store = open(&disk, DATA, 7, Kind::OfThree);
    write(&store, 1 << 32, &entries(0, 10));
    back_up_checkpoint(&disk, &store);
    let mut records = vec![(*store.layout()).clone()];
    for (epoch, placed, is_changing) in [(4, 4, false), (5, 4, true), (8, 7, false), (9, 7, false)] {
        records.push(adopt(&store, epoch, placed, is_changing));
        back_up_checkpoint(&disk, &store);
    }
    (disk, records)
}

#[test]
fn a_backup_names_the_layout_of_its_node() {
    let (disk, records) = backups();
    let repository = Repository::open(&env(disk), Path::new(BACKUPS)).expect("a repository");
    let placed = [1, 4, 4, 7, 7];
    for ((number, record), placement_epoch) in (1..).map(BackupNumber).zip(&records).zip(placed) {
        let manifest = repository.manifest(number).expect("a backup");
        let is_changing = record.plan.is_some();
        let hash = record.hash().to_string();
        let expected = BackupLayout { epoch: record.epoch.0, placement_epoch, is_changing, hash };
        assert_eq!(manifest.layout, Some(expected));
        assert_eq!(manifest.nodes.len(), 3);
    }
}

#[test]
fn a_whole_cluster_is_restored_from_backups_with_one_placement_and_without_a_running_change() {
    let (disk, _) = backups();
    let repository = Repository::open(&env(disk), Path::new(BACKUPS)).expect("a repository");
    let check = |number, stated| {
        let manifest = repository.manifest(BackupNumber(number)).expect("a backup");
        check_whole_cluster(&repository, &manifest, stated)
    };
    assert_eq!(check(1, None), Ok(()), "no replicas have ever changed");
    assert_eq!(check(1, Some(1)), Ok(()));
    for (number, stated) in [(2, 4), (4, 7), (5, 7)] {
        assert_eq!(check(number, Some(stated)), Ok(()), "backup {number}");
        let number = BackupNumber(number);
        assert_eq!(check(number.0, None), Err(WholeClusterRefusal::NotStated { number, epoch: stated }));
    }
    let number = BackupNumber(3);
    let changing = WholeClusterRefusal::Changing { number, steady: Some(BackupNumber(5)) };
    assert_eq!(check(3, Some(4)), Err(changing.clone()));
    assert_eq!(check(3, None), Err(changing.clone()));
    assert!(changing.to_string().ends_with("; here the newest such one is backup 000005"), "{changing}");
    for (number, found, stated, fitting) in [(5, 7, 4, Some(2)), (1, 1, 7, Some(5)), (2, 4, 6, None)] {
        let (number, fitting) = (BackupNumber(number), fitting.map(BackupNumber));
        let refusal = WholeClusterRefusal::OtherPlacement { number, found, stated, fitting };
        assert_eq!(check(number.0, Some(stated)), Err(refusal));
    }
}
