//! A data directory remembers what its node has promised and accepted as a voter, through a stop at
//! every file operation, or it knows that it has forgotten.

mod common;

use cluster::{
    AcceptorState, ChainVote, Incarnation, LayoutEpoch, LayoutRecord, NodeRecord, ProposalBallot,
    StoreRequest, SyncState, VoteHistory, VoterState,
};
use common::{DATA, carry_out, copy_of, env, options};
use env::{Fault, FaultFs, FaultPlan, Fs, MemFs, OperationMatch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{NodeTag, Rng};
use store::{
    AfterRestore, IDENTITY_FILE, LAYOUT_FILE, Membership, OpenReport, Recover, Store, StoreError,
    StoreOptions, VOTES_FILE, VotesFound, recover_layout,
};

const SEEDS: u64 = 8;

/// Opens the directory of a node of three with this default number of replicas.
fn open_with_from(fs: impl Fs + 'static, default_from: u8) -> (Store, OpenReport) {
    let names = (0..3).map(|node| format!("http://n{node}:1")).collect();
    let of_names = Membership::of(names).seen_by("http://n0:1");
    let membership = Membership { partitions: 16, default_from: Some(default_from), ..of_names };
    let options = StoreOptions { membership, ..options(1) };
    Store::open(env(Arc::new(fs)), Path::new(DATA), options).expect("a healthy directory")
}

fn open_as(fs: impl Fs + 'static, nodes: usize, tag: u64) -> Result<(Store, OpenReport), StoreError> {
    let names = (0..nodes).map(|node| format!("http://n{node}:1")).collect();
    let membership = Membership { partitions: 16, ..Membership::of(names).seen_by("http://n0:1") };
    let options = StoreOptions { membership, ..options(tag) };
    Store::open(env(Arc::new(fs)), Path::new(DATA), options)
}

fn open(fs: impl Fs + 'static) -> (Store, VoterState) {
    let (store, opened) = open_as(fs, 3, 1).expect("a healthy directory");
    assert_eq!(opened.voter.acceptor.decided, opened.layout);
    (store, opened.voter)
}

fn path_of(name: &str) -> PathBuf {
    Path::new(DATA).join(name)
}

fn remove(disk: &MemFs, name: &str) {
    disk.remove_file(&path_of(name)).unwrap();
    disk.sync_dir(Path::new(DATA)).unwrap();
}

fn ballot(round: u64) -> ProposalBallot {
    ProposalBallot { round, proposer: NodeTag(7), incarnation: Incarnation(8) }
}

fn child(parent: &LayoutRecord, zone: &str) -> Arc<LayoutRecord> {
    let mut child =
        LayoutRecord { epoch: parent.epoch.next().unwrap(), parent: parent.hash(), ..parent.clone() };
    child.members[0].zone = zone.to_owned();
    Arc::new(child)
}

/// `before` after a promise.
fn promised(before: &VoterState, round: u64) -> VoterState {
    let acceptor = AcceptorState { promised: Some(ballot(round)), ..before.acceptor.clone() };
    VoterState { acceptor, ..before.clone() }
}

/// `before` after it has accepted a record.
fn accepted(before: &VoterState, round: u64) -> VoterState {
    let mut after = promised(before, round);
    let record = child(&before.acceptor.decided, "accepted");
    after.acceptor.accepted = Some(ChainVote { ballot: ballot(round), record });
    after
}

/// `before` after it has learned that a record is decided.
fn decided(before: &VoterState) -> VoterState {
    let acceptor = AcceptorState::of(child(&before.acceptor.decided, "decided"));
    VoterState { acceptor, ..before.clone() }
}

/// A directory of three nodes that was closed cleanly.
fn closed() -> MemFs {
    let disk = MemFs::new();
    open(disk.clone()).0.engine().close().unwrap();
    disk
}

#[test]
fn votes_are_found_after_a_restart_until_their_epoch_is_decided() {
    let disk = MemFs::new();
    let (store, first) = open(disk.clone());
    assert_eq!(
        first,
        VoterState { history: VoteHistory::Complete, acceptor: AcceptorState::of(store.layout()) }
    );
    let states = [promised(&first, 3), accepted(&first, 4), decided(&first)];
    drop(store);
    for state in &states {
        let (store, _) = open(disk.clone());
        store.persist_voter(state).unwrap();
        drop(store);
        assert_eq!(open(disk.clone()).1, *state);
    }
    let (store, epoch_2) = open(disk.clone());
    store.persist_voter(&accepted(&epoch_2, 1)).unwrap();
    store.persist_voter(&accepted(&epoch_2, 1)).unwrap();
    drop(store);
    assert_eq!(open(disk).1, accepted(&states[2], 1), "rounds begin again in each epoch");
}

#[test]
fn votes_are_durable_and_a_stop_leaves_the_old_or_the_new_ones() {
    let disk = closed();
    let first = open(disk.kill()).1;
    let (before, after) = (promised(&first, 3), accepted(&first, 4));
    let mut next = decided(&first);
    next.acceptor.promised = Some(ballot(1));
    for (new, between) in [(after, None), (next, Some(decided(&first)))] {
        let mut persisted = 0;
        for stop in 0..24 {
            for seed in 0..SEEDS {
                let disk = disk.kill();
                let faults = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
                let (store, _) = open(faults.clone());
                store.persist_voter(&before).unwrap();
                faults.set_plan(FaultPlan::stop_after(faults.operations() + stop).tear_last_write());
                let is_durable = store.persist_voter(&new).is_ok();
                persisted += u64::from(is_durable);
                drop(store);
                let found = open(disk.crash(&mut Rng::new(seed))).1;
                let may_be = [Some(&new), Some(&before), between.as_ref()];
                let may_be = if is_durable { &may_be[..1] } else { &may_be[..] };
                assert!(may_be.contains(&Some(&found)), "stop {stop}, seed {seed}: {found:?}");
            }
        }
        assert!((1..24 * SEEDS).contains(&persisted));
    }
}

#[test]
fn a_failed_operation_can_be_repeated() {
    let disk = closed();
    let first = open(disk.kill()).1;
    let mut next = decided(&first);
    next.acceptor.promised = Some(ballot(1));
    for failing in 0..10 {
        let disk = disk.kill();
        let faults = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
        let (store, _) = open(faults.clone());
        faults.set_plan(FaultPlan::fail(OperationMatch::any().after(failing), Fault::DeviceError));
        let failed = store.persist_voter(&next);
        assert!(matches!(failed, Err(StoreError::Io { .. })), "operation {failing}: {failed:?}");
        faults.set_plan(FaultPlan::none());
        store.persist_voter(&next).unwrap();
        drop(store);
        assert_eq!(open(disk.crash(&mut Rng::new(failing))).1, next);
    }
}

#[test]
fn a_voter_never_returns_to_an_older_record() {
    let disk = MemFs::new();
    let (store, first) = open(disk.clone());
    store.persist_voter(&decided(&first)).unwrap();
    let mut other = decided(&first);
    other.acceptor.decided = child(&first.acceptor.decided, "another one");
    for refused in [promised(&first, 9), other] {
        let error = store.persist_voter(&refused).expect_err("the record is decided");
        assert!(matches!(error, StoreError::LayoutRefused { .. }), "{error}");
    }
    drop(store);
    assert_eq!(open(disk).1, decided(&first));
}

#[test]
#[should_panic(expected = "a voter keeps its promise")]
fn a_promise_is_never_replaced_by_a_smaller_one() {
    let (store, first) = open(MemFs::new());
    store.persist_voter(&promised(&first, 2)).unwrap();
    let _ = store.persist_voter(&promised(&first, 1));
}

#[test]
fn lost_votes_are_not_taken_for_none() {
    let disk = closed();
    let first = open(disk.clone()).1;
    open(disk.clone()).0.persist_voter(&accepted(&first, 4)).unwrap();
    let lost = VoterState { history: VoteHistory::Incomplete, ..first.clone() };
    let damaged = disk.kill();
    damaged.corrupt(path_of(VOTES_FILE), 70, 3).unwrap();
    let refused = store::verify(&env(Arc::new(damaged.kill())), Path::new(DATA), &mut |_| {}).unwrap_err();
    assert!(matches!(refused[..], [StoreError::VotesCorrupt { .. }]), "{refused:?}");
    let removed = disk.kill();
    remove(&removed, VOTES_FILE);
    for disk in [damaged, removed] {
        assert_eq!(open(disk.clone()).1, lost);
        let (store, _) = open(disk.clone());
        let next = decided(&lost);
        store.persist_voter(&next).unwrap();
        drop(store);
        assert_eq!(open(disk).1, next, "also in the next epoch");
    }
}

#[test]
fn votes_that_are_ahead_of_the_layout_record_count_again_once_it_is_back() {
    let disk = closed();
    let first = open(disk.clone()).1;
    let older = disk.read_file(path_of(LAYOUT_FILE)).unwrap();
    let voted = accepted(&decided(&first), 4);
    open(disk.clone()).0.persist_voter(&voted).unwrap();
    let newer = disk.read_file(path_of(LAYOUT_FILE)).unwrap();
    disk.write_file(path_of(LAYOUT_FILE), &older).unwrap();
    assert_eq!(open(disk.clone()).1, VoterState { history: VoteHistory::Incomplete, ..first });
    disk.write_file(path_of(LAYOUT_FILE), &newer).unwrap();
    assert_eq!(open(disk).1, voted);
}

#[test]
fn an_incomplete_history_is_remembered() {
    let disk = MemFs::new();
    let (store, first) = open(disk.clone());
    store.persist_voter(&promised(&first, 2)).unwrap();
    for history in [VoteHistory::OfThisId, VoteHistory::Incomplete] {
        let state = VoterState { history, ..promised(&first, 2) };
        store.persist_voter(&state).unwrap();
    }
    drop(store);
    assert_eq!(open(disk).1, VoterState { history: VoteHistory::Incomplete, ..promised(&first, 2) });
}

/// Opens at any operation of an opening, with power lost afterwards, and then without a stop.
fn history_after_each_stop(before: &MemFs) {
    let counted = FaultFs::new(Arc::new(before.kill()), FaultPlan::none());
    drop(open(counted.clone()));
    for stop in 0..=counted.operations() {
        for seed in 0..SEEDS {
            let disk = before.kill();
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            drop(open_as(FaultFs::new(Arc::new(disk.clone()), plan), 3, 1));
            let (_, opened) = open_as(disk.crash(&mut Rng::new(seed)), 3, 2).unwrap();
            let voter = opened.voter;
            assert_eq!(voter.history, VoteHistory::Complete, "stop {stop}, seed {seed}");
            assert_eq!((voter.acceptor.promised, voter.acceptor.accepted), (None, None));
        }
    }
}

#[test]
fn a_stop_at_any_operation_of_the_first_start_loses_no_votes() {
    history_after_each_stop(&MemFs::new());
}

#[test]
fn a_directory_of_an_earlier_release_has_no_votes_to_lose() {
    let disk = closed();
    remove(&disk, LAYOUT_FILE);
    remove(&disk, VOTES_FILE);
    history_after_each_stop(&disk);
}

#[test]
fn a_directory_that_lost_its_data_knows_the_votes_of_its_new_id_only() {
    let disk = closed();
    let first = open(disk.clone()).1;
    open(disk.clone()).0.persist_voter(&accepted(&first, 4)).unwrap();
    (&disk as &dyn Fs).remove_dir_all(&path_of("shard-000")).unwrap();
    for _ in 0..2 {
        let (_, opened) = open_as(disk.clone(), 3, 2).unwrap();
        assert_eq!(opened.identity.tag, NodeTag(2));
        assert_eq!(opened.voter, VoterState { history: VoteHistory::OfThisId, ..first.clone() });
    }
}

#[test]
fn a_copy_has_no_votes_and_knows_which_may_be_missing() {
    for (after, history, tag) in
        [(AfterRestore::Keep, VoteHistory::Complete, 1), (AfterRestore::Rebuild, VoteHistory::OfThisId, 2)]
    {
        let disk = MemFs::new();
        let (store, first) = open(disk.clone());
        store.persist_voter(&accepted(&first, 4)).unwrap();
        let checkpoint = store.checkpoint().unwrap();
        let copy = copy_of(&disk, &checkpoint.path);
        store::prepare_restored(&env(Arc::new(copy.clone())), Path::new(DATA), after).unwrap();
        for _ in 0..2 {
            let (_, opened) = open_as(copy.clone(), 3, 2).unwrap();
            assert_eq!(opened.identity.tag, NodeTag(tag));
            assert_eq!(opened.voter, VoterState { history, ..first.clone() }, "{after:?}");
        }
    }
}

#[test]
fn the_only_node_of_a_cluster_votes_after_a_restore() {
    let disk = MemFs::new();
    let (store, _) = open_as(disk.clone(), 1, 1).unwrap();
    let copy = copy_of(&disk, &store.checkpoint().unwrap().path);
    store::prepare_restored(&env(Arc::new(copy.clone())), Path::new(DATA), AfterRestore::Keep).unwrap();
    let (_, opened) = open_as(copy, 1, 1).unwrap();
    assert_eq!(opened.voter.history, VoteHistory::Complete);
    assert_eq!(opened.layout.epoch, LayoutEpoch::FIRST);
}

#[test]
fn a_file_without_an_identity_is_replaced() {
    let disk = closed();
    let first = open(disk.clone()).1;
    open(disk.clone()).0.persist_voter(&accepted(&first, 4)).unwrap();
    for name in [IDENTITY_FILE, "alive", "log-mark"] {
        remove(&disk, name);
    }
    (&disk as &dyn Fs).remove_dir_all(&path_of("shard-000")).unwrap();
    let (_, opened) = open_as(disk, 3, 2).unwrap();
    assert_eq!(opened.voter, first);
}

#[test]
fn a_promise_is_kept_if_epoch_1_is_built_anew_with_other_settings() {
    let disk = closed();
    let (store, first) = open(disk.clone());
    assert_eq!(store.layout().default_from, 3);
    store.persist_voter(&accepted(&first, 4)).unwrap();
    drop(store);
    remove(&disk, LAYOUT_FILE);
    let (store, opened) = open_with_from(disk.clone(), 2);
    assert_eq!(opened.layout.default_from, 2);
    let acceptor =
        AcceptorState { promised: Some(ballot(4)), ..AcceptorState::of(Arc::clone(&opened.layout)) };
    let kept = VoterState { history: VoteHistory::Complete, acceptor };
    assert_eq!(opened.voter, kept, "the accepted record has another parent");
    store.persist_voter(&accepted(&kept, 5)).unwrap();
    drop(store);
    assert_eq!(open(disk).1, accepted(&kept, 5));
}

#[test]
fn damaged_votes_beside_no_layout_record_are_not_taken_for_none() {
    let disk = closed();
    let first = open(disk.clone()).1;
    open(disk.clone()).0.persist_voter(&accepted(&first, 4)).unwrap();
    disk.corrupt(path_of(VOTES_FILE), 70, 3).unwrap();
    remove(&disk, LAYOUT_FILE);
    for _ in 0..2 {
        assert_eq!(open(disk.clone()).1, VoterState { history: VoteHistory::Incomplete, ..first.clone() });
    }
}

#[test]
fn lost_votes_are_reported_in_a_sentence() {
    let disk = closed();
    let votes_of = |disk: &MemFs| open_as(disk.clone(), 3, 1).unwrap().1.votes;
    assert_eq!(votes_of(&MemFs::new()), VotesFound::NeverWritten);
    assert_eq!(votes_of(&disk), VotesFound::Present);
    let first = open(disk.clone()).1;
    let older = disk.read_file(path_of(LAYOUT_FILE)).unwrap();
    open(disk.clone()).0.persist_voter(&accepted(&decided(&first), 4)).unwrap();
    let (damaged, removed, unfit, earlier) = (disk.kill(), disk.kill(), disk.kill(), disk.kill());
    damaged.corrupt(path_of(VOTES_FILE), 70, 3).unwrap();
    remove(&removed, VOTES_FILE);
    unfit.write_file(path_of(LAYOUT_FILE), &older).unwrap();
    for (disk, told) in [(damaged, "checksum"), (removed, "is missing"), (unfit, "do not follow")] {
        let VotesFound::Lost { sentence } = votes_of(&disk) else { panic!("they are lost: {told}") };
        assert!(sentence.contains(told) && sentence.contains("does not vote"), "{sentence}");
    }
    remove(&earlier, VOTES_FILE);
    remove(&earlier, LAYOUT_FILE);
    assert_eq!(votes_of(&earlier), VotesFound::NeverWritten);
}

#[test]
fn lost_votes_stay_lost_when_the_layout_record_is_removed_later() {
    let disk = closed();
    remove(&disk, VOTES_FILE);
    assert_eq!(open(disk.clone()).1.history, VoteHistory::Incomplete);
    let disk = disk.kill();
    remove(&disk, LAYOUT_FILE);
    assert_eq!(open(disk).1.history, VoteHistory::Incomplete);
}

#[test]
fn a_node_that_rebuilds_knows_the_votes_of_its_id_only() {
    let rebuilding = NodeRecord { revision: 9, sync_state: SyncState::Rebuilding, ..NodeRecord::default() };
    let settled = NodeRecord { revision: 10, sync_state: SyncState::Settled, ..NodeRecord::default() };
    let disk = closed();
    let (store, first) = open(disk.clone());
    store.persist_voter(&accepted(&first, 4)).unwrap();
    carry_out(&store, &StoreRequest::PersistRecord { record: rebuilding });
    drop(store);
    let expected = VoterState { history: VoteHistory::OfThisId, ..accepted(&first, 4) };
    for _ in 0..2 {
        let (store, voter) = open(disk.clone());
        assert_eq!(voter, expected, "also after the rebuild has ended");
        carry_out(&store, &StoreRequest::PersistRecord { record: settled.clone() });
    }
}

#[test]
fn votes_on_a_record_that_was_adopted_without_them_are_obsolete() {
    let disk = closed();
    let (store, first) = open(disk.clone());
    store.persist_voter(&accepted(&first, 4)).unwrap();
    let next = decided(&first);
    store.adopt_layout((*next.acceptor.decided).clone()).unwrap();
    store.persist_voter(&next).unwrap();
    store.persist_voter(&promised(&next, 1)).unwrap();
    drop(store);
    assert_eq!(open(disk).1, promised(&next, 1));
}

#[test]
fn a_recovered_directory_votes_in_its_new_lineage() {
    let disk = closed();
    let (store, first) = open(disk.clone());
    store.persist_voter(&VoterState { history: VoteHistory::Incomplete, ..accepted(&first, 4) }).unwrap();
    drop(store);
    let disk = disk.kill();
    let lost = ["http://n1:1", "http://n2:1"].map(str::to_owned);
    let counted = FaultFs::new(Arc::new(disk.kill()), FaultPlan::none());
    let record = recover_layout(&env(Arc::new(counted.clone())), Path::new(DATA), &lost, Recover::Apply)
        .unwrap()
        .record;
    let new = VoterState { history: VoteHistory::Complete, acceptor: AcceptorState::of(Arc::new(record)) };
    let old = VoterState { history: VoteHistory::Incomplete, ..first.clone() };
    for stop in 0..=counted.operations() {
        for seed in 0..SEEDS {
            let disk = disk.kill();
            let plan = FaultPlan::stop_after(stop).tear_last_write();
            let stopped = env(Arc::new(FaultFs::new(Arc::new(disk.clone()), plan)));
            let is_done = recover_layout(&stopped, Path::new(DATA), &lost, Recover::Apply).is_ok();
            let mut found = open(disk.crash(&mut Rng::new(seed))).1;
            if found.acceptor.decided == first.acceptor.decided {
                // Before the file of votes is replaced, the votes of the old lineage are found.
                found.acceptor = first.acceptor.clone();
            }
            let may_be = if is_done { &[&new][..] } else { &[&new, &old][..] };
            assert!(may_be.contains(&&found), "stop {stop}, seed {seed}: {found:?}");
        }
    }
}

#[test]
fn rounds_have_a_bound() {
    let disk = closed();
    let (store, first) = open(disk.clone());
    store.persist_voter(&promised(&first, ProposalBallot::ROUND_MAX)).unwrap();
    drop(store);
    assert_eq!(open(disk.clone()).1, promised(&first, ProposalBallot::ROUND_MAX));
    let (store, _) = open(disk.clone());
    store.persist_voter(&promised(&first, ProposalBallot::ROUND_MAX + 1)).unwrap();
    drop(store);
    let refused = store::verify(&env(Arc::new(disk.kill())), Path::new(DATA), &mut |_| {}).unwrap_err();
    assert!(matches!(refused[..], [StoreError::VotesCorrupt { .. }]), "{refused:?}");
}
