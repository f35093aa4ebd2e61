//! The data directory of a node that joins: one member for one directory, through a stop at every
//! file operation.

mod common;

use cluster::{ClusterOrigin, FEATURE_LEVEL_PLANS, JoiningNode, LayoutEpoch, LayoutRecord, MemberState};
use common::{DATA, env, options};
use env::{FaultFs, FaultPlan, Fs, MemFs};
use std::path::Path;
use std::sync::Arc;
use stdx::{NodeTag, Rng};
use store::{
    DirectoryCluster, HASH_VERSION, JoinRequest, JoiningDirectory, OpenReport, Store, StoreError,
    StoreOptions, cluster_of,
};

const SEEDS: u64 = 4;
const OWN: &str = "http://new:1";

fn request() -> JoinRequest {
    let (member, own) = ("http://n0:1".to_owned(), OWN.to_owned());
    JoinRequest { member, own, zone: String::new(), weight: 1 }
}

/// The record of a cluster of three nodes.
fn cluster() -> LayoutRecord {
    let origin = ClusterOrigin {
        nodes: (0..3).map(|node| format!("http://n{node}:1")).collect(),
        partitions: 16,
        hash_version: HASH_VERSION,
        default_from: 3,
        tag: NodeTag(7),
    };
    let mut record = LayoutRecord::first(origin).expect("three nodes are a cluster");
    record.feature_level = FEATURE_LEVEL_PLANS;
    for (member, id) in record.members.iter_mut().zip(100..) {
        member.node_id = Some(NodeTag(id));
    }
    record
}

/// The cluster takes the node in, unless it is a member already.
fn take_in(record: &mut LayoutRecord, id: NodeTag) {
    if record.members.iter().any(|member| member.node_id == Some(id)) {
        return;
    }
    // A second member would need another URL.
    let url = format!("{OWN}{}", record.members.len() - 3);
    let (zone, feature_level_max) = (String::new(), FEATURE_LEVEL_PLANS);
    let node =
        JoiningNode { id, url, zone, weight: 1, feature_level_max, member_url: "http://a:1".to_owned() };
    *record = record.with_joined(node).expect("it may join");
}

/// A start of the node with `--join`, as the command makes it.
fn start(
    fs: impl Fs + Clone + 'static,
    cluster: &mut LayoutRecord,
    new_tag: u64,
) -> Result<(Store, OpenReport), StoreError> {
    let env = env(Arc::new(fs));
    let dir = Path::new(DATA);
    if DirectoryCluster::find(&env, dir)? == DirectoryCluster::New {
        let directory = JoiningDirectory::begin(&env, dir, &request(), NodeTag(new_tag))?;
        take_in(cluster, directory.tag());
        directory.complete(cluster)?;
    }
    open(&env, new_tag + 1)
}

/// A start of the node in a directory that belongs to a cluster.
fn open(env: &env::Env, new_tag: u64) -> Result<(Store, OpenReport), StoreError> {
    let dir = Path::new(DATA);
    let DirectoryCluster::Named(membership) = DirectoryCluster::find(env, dir)? else {
        panic!("the record names the node")
    };
    let own = membership.own.clone().expect("a member");
    let options = StoreOptions { membership: membership.seen_by(&own), ..options(new_tag) };
    Store::open(env.clone(), dir, options)
}

fn joined(record: &LayoutRecord) -> Vec<NodeTag> {
    let joining = record.members.iter().filter(|member| member.state == MemberState::Joining);
    joining.filter_map(|member| member.node_id).collect()
}

#[test]
fn the_first_start_keeps_the_id_with_which_the_node_has_joined() {
    let (disk, mut record) = (MemFs::new(), cluster());
    let (store, opened) = start(disk.clone(), &mut record, 10).unwrap();
    assert_eq!((opened.identity.tag, joined(&record)), (NodeTag(10), vec![NodeTag(10)]));
    assert_eq!(
        (&*opened.layout, opened.identity.membership.own.as_deref()),
        (&record, Some("http://new:10"))
    );
    assert!(opened.is_new && opened.layout.partitions() == 16);
    drop(store);
    let (_, again) = start(disk.kill(), &mut record, 20).unwrap();
    assert_eq!((again.identity.tag, joined(&record)), (NodeTag(10), vec![NodeTag(10)]));
    assert_eq!(JoinRequest::unfinished(&env(Arc::new(disk)), Path::new(DATA)).unwrap(), None);
}

#[test]
fn a_node_that_joins_after_changes_of_the_layout_has_nothing_to_disown() {
    let (disk, mut record) = (MemFs::new(), cluster());
    record.epoch = LayoutEpoch(9);
    record.changed.fill(LayoutEpoch(8));
    let (store, opened) = start(disk.clone(), &mut record, 10).unwrap();
    assert_eq!(opened.record.disowned_to, Some(LayoutEpoch(8)));
    drop(store);
    let (_, again) = start(disk.kill(), &mut record, 20).unwrap();
    assert_eq!(again.record.disowned_to, Some(LayoutEpoch(8)), "it is remembered");
}

/// Whatever the first start has done before it was stopped, the second one goes on.
#[test]
fn a_stop_at_any_operation_adds_at_most_one_member() {
    let counted = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
    drop(start(counted.clone(), &mut cluster(), 10).unwrap());
    let mut has_asked = [0; 2];
    for stop in 0..=counted.operations() {
        for seed in 0..SEEDS {
            let (disk, mut record) = (MemFs::new(), cluster());
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            drop(start(FaultFs::new(Arc::new(disk.clone()), plan), &mut record, 10));
            let asked = joined(&record);
            has_asked[asked.len()] += 1;
            let crashed = disk.crash(&mut Rng::new(seed));
            let (store, opened) = start(crashed.clone(), &mut record, 20)
                .unwrap_or_else(|error| panic!("stop {stop}, seed {seed}: {error}"));
            assert_eq!(joined(&record), [opened.identity.tag], "stop {stop}, seed {seed}");
            assert!(asked.is_empty() || asked == [opened.identity.tag], "stop {stop}, seed {seed}");
            drop(store);
            let (_, again) = start(crashed.kill(), &mut record, 30).unwrap();
            assert_eq!(again.identity.tag, opened.identity.tag, "stop {stop}, seed {seed}");
        }
    }
    assert!(has_asked.iter().all(|count| *count > 0), "{has_asked:?}");
}

#[test]
fn an_unfinished_join_goes_on_without_the_flags() {
    let disk = MemFs::new();
    let (env, dir) = (env(Arc::new(disk.clone())), Path::new(DATA));
    assert_eq!(JoinRequest::unfinished(&env, dir).unwrap(), None);
    let begun = JoiningDirectory::begin(&env, dir, &request(), NodeTag(10)).unwrap();
    let second = JoiningDirectory::begin(&env, dir, &request(), NodeTag(20)).err();
    assert!(matches!(second, Some(StoreError::Locked { .. })), "another process joins in it");
    drop(begun);
    assert_eq!(JoinRequest::unfinished(&env, dir).unwrap(), Some(request()));
    let other = JoinRequest { member: "http://n1:1".to_owned(), weight: 5, ..request() };
    assert_eq!(JoiningDirectory::begin(&env, dir, &other, NodeTag(20)).unwrap().tag(), NodeTag(10));
    assert_eq!(
        JoinRequest::unfinished(&env, dir).unwrap(),
        Some(other.clone()),
        "what the operator says last"
    );
    JoiningDirectory::begin(&env, dir, &other, NodeTag(20)).unwrap().withdraw().unwrap();
    assert_eq!(JoinRequest::unfinished(&env, dir).unwrap(), Some(other), "an earlier start may have asked");
}

#[test]
fn a_first_request_that_is_refused_leaves_nothing() {
    let (env, dir) = (env(Arc::new(MemFs::new())), Path::new(DATA));
    JoiningDirectory::begin(&env, dir, &request(), NodeTag(10)).unwrap().withdraw().unwrap();
    assert_eq!(JoinRequest::unfinished(&env, dir).unwrap(), None);
    assert_eq!(JoiningDirectory::begin(&env, dir, &request(), NodeTag(20)).unwrap().tag(), NodeTag(20));
}

/// The log mark tells that the node may have acknowledged writes, which are lost.
#[test]
fn a_joined_node_that_loses_its_data_later_is_another_node() {
    let (disk, mut record) = (MemFs::new(), cluster());
    let (store, opened) = start(disk.clone(), &mut record, 10).unwrap();
    store.engine().close().unwrap();
    drop(store);
    let is_data = |path: &Path| path.to_string_lossy().contains("shard-000");
    let lost: Vec<_> = disk.file_names().into_iter().filter(|path| is_data(path)).collect();
    lost.iter().for_each(|path| disk.remove_file(path).unwrap());
    let (_, again) = start(disk.kill(), &mut record, 20).unwrap();
    assert_ne!(again.identity.tag, opened.identity.tag);
}

#[test]
fn a_directory_with_data_or_a_record_without_the_node_is_refused() {
    let (disk, mut record) = (MemFs::new(), cluster());
    drop(start(disk.clone(), &mut record, 10).unwrap());
    let (env, dir) = (env(Arc::new(disk)), Path::new(DATA));
    let refused = JoiningDirectory::begin(&env, dir, &request(), NodeTag(20)).err();
    assert!(matches!(refused, Some(StoreError::IdentityMissing { .. })));
    assert_eq!(cluster_of(&env, dir).unwrap(), Some(record.cluster));
    let empty = common::env(Arc::new(MemFs::new()));
    let begin = || JoiningDirectory::begin(&empty, dir, &request(), NodeTag(20)).unwrap();
    assert!(begin().complete(&record).unwrap_err().to_string().contains("does not have this node"));
    take_in(&mut record, NodeTag(20));
    let other_hash = LayoutRecord { hash_version: 9, ..record };
    assert!(begin().complete(&other_hash).unwrap_err().to_string().contains("version 9 of the key hash"));
    assert_eq!(cluster_of(&empty, dir).unwrap(), None, "nothing was stored");
}

#[test]
fn a_node_that_its_record_has_removed_does_not_start() {
    let (disk, mut record) = (MemFs::new(), cluster());
    let (store, opened) = start(disk.clone(), &mut record, 10).unwrap();
    let slot =
        record.members.iter().find(|member| member.node_id == Some(NodeTag(10))).expect("it joined").slot;
    let dead = record.with_dead([slot].into_iter().collect()).expect("a death");
    store.adopt_layout(dead).unwrap();
    store.engine().close().unwrap();
    drop((store, opened));
    let refused = DirectoryCluster::find(&env(Arc::new(disk)), Path::new(DATA)).unwrap_err();
    assert!(matches!(refused, StoreError::RemovedNode { .. }), "{refused}");
    assert!(refused.to_string().contains("refuse it for ever"), "{refused}");
}
