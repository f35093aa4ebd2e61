//! Nodes propose the next record by themselves: ids, lost disks, moved nodes and voters.

use crate::cluster_of_voters::{Cluster, WITHIN, first, first_of, new_state};
use crate::world::{MILLISECOND, SECOND, World};
use cluster::{
    AgreementEffect, FEATURE_LEVEL_NAMED, LayoutEpoch, LayoutRecordError, MemberState, NodeIndex,
    ProposalOutcome, SyncState, VoteHistory,
};
use stdx::NodeTag;

fn reconciling(hosts: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::without_ids(hosts, seed);
    cluster.reconciles = true;
    cluster
}

/// Nodes that have decided all ids.
fn started(hosts: usize, seed: u64) -> Cluster {
    let mut cluster = reconciling(hosts, seed);
    cluster.start_all();
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), vec![2; hosts]);
    cluster
}

/// Asserts that a host has adopted a record which names the present ids of all hosts.
fn assert_all_named(cluster: &Cluster, host: usize) {
    let ids = |world: &World| world.hosts.iter().map(|host| Some(host.tag)).collect::<Vec<_>>();
    let named: Vec<_> = cluster.adopted(host).members.iter().map(|member| member.node_id).collect();
    assert_eq!(named, ids(&cluster.world), "host {host}");
}

fn url_of(cluster: &Cluster, host: usize, slot: usize) -> String {
    cluster.adopted(host).members[slot].url.clone()
}

fn voters(cluster: &Cluster, host: usize) -> Vec<u8> {
    cluster.adopted(host).voters.iter().map(|voter| voter.0).collect()
}

#[test]
fn a_new_cluster_decides_all_ids_once() {
    for hosts in 1..=6 {
        let mut cluster = started(hosts, hosts as u64);
        (0..hosts).for_each(|host| assert_all_named(&cluster, host));
        assert_eq!(cluster.adopted(0).feature_level, FEATURE_LEVEL_NAMED);
        cluster.run(10 * SECOND);
        assert_eq!(cluster.epochs(), vec![2; hosts], "nothing is left to change");
        let is_ended = |effect: &AgreementEffect| matches!(effect, AgreementEffect::ProposalEnded(_));
        assert!(!cluster.effects.iter().flatten().any(is_ended), "the host has proposed nothing");
        let status = cluster.node(hosts - 1).agreement_status().expect("it takes part");
        assert_eq!((status.epoch, status.hash), (LayoutEpoch(2), cluster.adopted(0).hash()));
        assert_eq!((status.history, status.behind), (VoteHistory::Complete, vec![]));
        assert!(status.voters.iter().all(|voter| voter.is_reachable));
        assert_eq!(status.can_vote, voters(&cluster, 0).contains(&(hosts as u8 - 1)));
    }
}

#[test]
fn a_node_of_an_earlier_release_keeps_the_cluster_in_epoch_1() {
    let mut cluster = reconciling(3, 1);
    cluster.joins[2] = false;
    cluster.start_all();
    cluster.run(20 * SECOND);
    assert_eq!(cluster.epochs(), [1; 3]);
    assert_eq!(cluster.chain_messages().count(), 0, "nothing is proposed");
    cluster.state_url(0, 0, "http://moved:1").unwrap();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.epochs(), [1; 3], "no change precedes the ids");
    cluster.crash(2);
    cluster.joins[2] = true;
    cluster.start(2);
    cluster.run(4 * SECOND);
    assert_eq!(cluster.epochs(), [3; 3], "the ids, and the URL that was stated before");
    assert_all_named(&cluster, 0);
    assert_eq!(url_of(&cluster, 1, 0), "http://moved:1");
}

#[test]
fn a_node_that_lost_its_disk_is_named_anew_after_it_was_rebuilt_and_votes() {
    for lost in 0..3 {
        let mut cluster = started(3, 1);
        cluster.lose_disk(lost);
        cluster.start(lost);
        let other = (lost + 1) % 3;
        let is_named = |cluster: &Cluster| {
            cluster.adopted(other).members[lost].node_id == Some(cluster.world.hosts[lost].tag)
        };
        for _ in 0..200 {
            if is_named(&cluster) {
                break;
            }
            cluster.run(100 * MILLISECOND);
        }
        assert!(is_named(&cluster));
        assert_eq!(cluster.world.sync_state(lost), SyncState::Settled, "it was rebuilt before");
        cluster.run(SECOND);
        assert_eq!(cluster.epochs(), [3; 3]);
        assert_all_named(&cluster, lost);
        let status = cluster.node(lost).agreement_status().expect("it takes part");
        assert_eq!((status.history, status.can_vote), (VoteHistory::OfThisId, true));
        cluster.crash((lost + 2) % 3);
        cluster.state_url(lost, lost, "http://moved:1").unwrap();
        cluster.run(3 * SECOND);
        assert_eq!(url_of(&cluster, other, lost), "http://moved:1", "its vote is needed");
    }
}

#[test]
fn a_moved_node_gets_its_url_while_another_node_is_down() {
    for told in 0..2 {
        let mut cluster = started(3, 1);
        cluster.crash(2);
        cluster.run(SECOND);
        let refused = Err(LayoutRecordError::DuplicateMember { slot: NodeIndex(1) });
        let of_another = url_of(&cluster, 0, 0);
        assert_eq!(cluster.state_url(told, 1, &of_another), refused);
        assert!(cluster.state_url(told, 1, "").is_err());
        assert!(cluster.state_url(told, 7, "http://moved:1").is_err());
        cluster.state_url(told, 1, "http://moved:1").unwrap();
        cluster.run(2 * SECOND);
        assert_eq!(cluster.epochs(), [3, 3, 2], "told: {told}");
        assert_eq!(url_of(&cluster, 0, 1), "http://moved:1");
        let status = cluster.node(0).agreement_status().expect("it takes part");
        let reachable: Vec<_> = status.voters.iter().map(|voter| voter.is_reachable).collect();
        assert_eq!(reachable, [true, true, false]);
        cluster.start(2);
        cluster.run(3 * SECOND);
        assert_eq!(url_of(&cluster, 2, 1), "http://moved:1");
        assert_eq!(cluster.epochs(), [3; 3]);
    }
}

/// Host 2 was told the former URL of host 1 and does not hear of the new one.
#[test]
fn a_stale_statement_does_not_undo_a_move() {
    for is_cut in [true, false] {
        let mut cluster = started(3, 1);
        let former = url_of(&cluster, 2, 1);
        cluster.state_url(2, 1, &former).unwrap();
        if is_cut {
            cluster.world.cut_off(1, 2);
            cluster.crash(1);
            cluster.run(2 * SECOND);
            cluster.start(1);
            cluster.run(2 * SECOND);
        }
        for told in 0..2 {
            cluster.state_url(told, 1, "http://moved:1").unwrap();
        }
        cluster.run(60 * SECOND);
        assert_eq!(cluster.epochs(), [3; 3], "is_cut: {is_cut}");
        assert_eq!(url_of(&cluster, 0, 1), "http://moved:1");
    }
}

/// Host 2 was told that host 1 has moved back, and does not hear of its later move.
#[test]
fn a_statement_before_a_record_with_another_url_is_forgotten() {
    let mut cluster = started(3, 1);
    let former = url_of(&cluster, 2, 1);
    for (told, url) in [(0, "http://moved:1"), (2, former.as_str()), (0, "http://later:1")] {
        cluster.state_url(told, 1, url).unwrap();
        cluster.run(10 * SECOND);
        assert_eq!(url_of(&cluster, 0, 1), url);
    }
    cluster.run(60 * SECOND);
    assert_eq!(cluster.epochs(), [5; 3], "host 2 must not propose the former URL again");
}

#[test]
fn the_statement_of_a_node_that_is_not_linked_waits_for_its_link() {
    let mut cluster = started(3, 1);
    cluster.crash(1);
    cluster.run(2 * SECOND);
    cluster.state_url(0, 1, "http://moved:1").unwrap();
    cluster.run(20 * SECOND);
    assert_eq!(cluster.epochs(), [2; 3]);
    cluster.start(1);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.epochs(), [3; 3]);
    assert_eq!(url_of(&cluster, 1, 1), "http://moved:1");
}

#[test]
fn the_own_url_is_stated_again_after_a_record_with_another_one() {
    let mut cluster = started(3, 1);
    cluster.state_url(1, 1, "http://moved:1").unwrap();
    cluster.run(3 * SECOND);
    let wrong = cluster.child(0, |record| record.members[1].url = "http://wrong:1".to_owned());
    cluster.propose_record(0, wrong).unwrap();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.epochs(), [5; 3]);
    assert_eq!(url_of(&cluster, 0, 1), "http://moved:1");
}

#[test]
fn the_only_node_of_a_cluster_without_a_list_gets_no_url() {
    let mut cluster = Cluster::of(first_of(Vec::new(), 1), 1);
    cluster.reconciles = true;
    cluster.start_all();
    cluster.state_url(0, 0, "http://moved:1").unwrap();
    cluster.run(10 * SECOND);
    assert_eq!(cluster.epochs(), [2], "it has its id");
    assert_eq!(url_of(&cluster, 0, 0), "");
}

/// Hosts 0 and 1 do not hear each other, so each is the reachable voter with the least slot.
#[test]
fn two_proposers_at_once_converge() {
    for seed in 0..20 {
        let mut cluster = started(5, seed);
        cluster.world.net.jitter = 5 * MILLISECOND;
        cluster.world.cut_off(0, 1);
        cluster.run(3 * SECOND);
        cluster.state_url(0, 0, "http://moved0:1").unwrap();
        cluster.state_url(1, 1, "http://moved1:1").unwrap();
        cluster.run(8 * SECOND);
        cluster.world.heal();
        cluster.run(5 * SECOND);
        assert_eq!(cluster.epochs(), [4; 5], "seed {seed}");
        for slot in 0..2 {
            assert_eq!(url_of(&cluster, 4, slot), format!("http://moved{slot}:1"), "seed {seed}");
        }
    }
}

#[test]
fn nothing_is_decided_without_a_majority_and_soon_after_it_is_back() {
    for seed in 0..10 {
        let mut cluster = started(3, seed);
        (1..3).for_each(|host| cluster.crash(host));
        cluster.run(2 * SECOND);
        cluster.state_url(0, 0, "http://moved:1").unwrap();
        cluster.run(20 * SECOND);
        assert_eq!(cluster.epochs(), [2; 3], "seed {seed}");
        cluster.start(1 + (seed % 2) as usize);
        cluster.start(2 - (seed % 2) as usize);
        cluster.run(2 * SECOND);
        assert_eq!(cluster.epochs(), [3; 3], "seed {seed}");
        assert_eq!(url_of(&cluster, 1, 0), "http://moved:1");
    }
}

#[test]
fn a_majority_that_is_cut_off_while_a_record_is_proposed_decides_it_soon_after() {
    for seed in 0..10 {
        let mut cluster = started(3, seed);
        cluster.state_url(0, 0, "http://moved:1").unwrap();
        cluster.run(50 * MILLISECOND + (seed as u32) * 5 * MILLISECOND);
        (1..3).for_each(|host| cluster.world.cut_off(0, host));
        cluster.run(20 * SECOND);
        cluster.world.heal();
        cluster.run(2 * SECOND);
        assert_eq!(cluster.epochs(), [3; 3], "seed {seed}");
    }
}

#[test]
fn a_dead_voter_is_replaced() {
    let mut cluster = started(4, 1);
    assert_eq!(voters(&cluster, 0), [0, 1, 2]);
    cluster.crash(1);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.epochs(), [2; 4], "it may return");
    let record = cluster.child(0, |record| record.members[1].state = MemberState::Dead);
    cluster.propose_record(0, record).unwrap();
    cluster.run(3 * SECOND);
    assert_eq!(voters(&cluster, 3), [0, 2, 3]);
    assert!(matches!(cluster.outcomes(0)[..], [ProposalOutcome::Decided(_)]));
}

/// The cluster has lost its majority, and the nodes that remain were given a new lineage. Then new
/// nodes take the slots of the lost ones.
#[test]
fn the_replacements_of_dead_members_become_voters() {
    for (hosts, lost, voters_left) in
        [(3, &[1, 2][..], &[0][..]), (4, &[1, 2], &[0, 3]), (5, &[2, 3, 4], &[0, 1])]
    {
        let mut cluster = started(hosts, 1);
        (0..hosts).for_each(|host| match lost.contains(&host) {
            true => cluster.lose_disk(host),
            false => cluster.crash(host),
        });
        let slots = lost.iter().map(|host| NodeIndex(*host as u8)).collect();
        let decided = cluster.disks[0].state.acceptor.decided.clone();
        let recovered = decided.recovered(slots).expect("a majority is lost");
        for host in 0..hosts {
            cluster.disks[host].state = new_state(recovered.clone());
        }
        (0..hosts).filter(|host| !lost.contains(host)).for_each(|host| cluster.start(host));
        cluster.run(10 * SECOND);
        assert_eq!(voters(&cluster, 0), voters_left);
        lost.iter().for_each(|host| cluster.start(*host));
        for step in 0..10 {
            cluster.propose(0, &format!("zone{step}")).expect("no other proposal of the host runs");
            cluster.run(WITHIN + SECOND);
            assert_eq!(cluster.outcomes(0).len(), step + 1, "{hosts} hosts, step {step}");
            assert_ne!(cluster.outcomes(0)[step], ProposalOutcome::TimedOut, "{hosts} hosts, step {step}");
        }
        let is_active =
            |cluster: &Cluster, host: &usize| cluster.adopted(0).members[*host].state == MemberState::Active;
        assert!((0..hosts).all(|host| is_active(&cluster, &host)), "{hosts} hosts");
        assert_all_named(&cluster, 0);
        assert_eq!(voters(&cluster, 0).len(), if hosts == 5 { 5 } else { 3 });
        for host in 0..hosts {
            assert_eq!(cluster.adopted(host), cluster.adopted(0), "{hosts} hosts, host {host}");
            let status = cluster.node(host).agreement_status().expect("it takes part");
            assert_eq!(status.can_vote, voters(&cluster, 0).contains(&(host as u8)));
        }
    }
}

/// Nothing is decided, and the status says why.
#[test]
fn a_majority_that_lost_its_disks_is_seen_in_the_status() {
    for (hosts, lost) in [(3, &[1, 2][..]), (2, &[1]), (2, &[0])] {
        let mut cluster = started(hosts, 1);
        let named: Vec<_> = cluster.world.hosts.iter().map(|host| host.tag).collect();
        lost.iter().for_each(|host| cluster.crash(*host));
        cluster.run(3 * SECOND);
        let observer = (0..hosts).find(|host| !lost.contains(host)).expect("one is left");
        let status =
            |cluster: &Cluster, host: usize| cluster.node(host).agreement_status().expect("it takes part");
        let absent = status(&cluster, observer);
        assert!(!absent.has_majority() && !absent.has_lost_majority(), "they may return");
        for host in lost {
            cluster.lose_disk(*host);
            cluster.start(*host);
        }
        cluster.run(30 * SECOND);
        let seen = status(&cluster, observer);
        for (host, voter) in seen.voters.iter().enumerate() {
            let is_lost = lost.contains(&host);
            assert_eq!((voter.slot, voter.named_id), (NodeIndex(host as u8), Some(named[host])));
            assert_eq!(voter.is_reachable, !is_lost, "host {host}");
            assert_eq!(voter.other_id, is_lost.then(|| cluster.world.hosts[host].tag), "host {host}");
        }
        assert!(!seen.has_majority() && seen.has_lost_majority());
        assert_eq!(seen.epoch, LayoutEpoch(2));
        let own = status(&cluster, lost[0]);
        assert_eq!((own.epoch, own.voters), (seen.epoch, seen.voters), "a new node says it as well");
        assert!(!own.can_vote);
    }
}

#[test]
fn a_new_node_whose_default_differs_adopts_the_records_and_is_named() {
    let names: Vec<_> = first(5).members.into_iter().map(|member| member.url).collect();
    let (of_cluster, other) = (first_of(names.clone(), 5), first_of(names, 3));
    let mut cluster = Cluster::of(of_cluster, 1);
    cluster.reconciles = true;
    cluster.start_all();
    cluster.run(SECOND);
    assert_eq!(cluster.epochs(), [2; 5]);
    cluster.lose_disk(4);
    cluster.disks[4].state = new_state(other);
    cluster.start(4);
    cluster.run(30 * SECOND);
    assert_eq!(cluster.epochs(), [3; 5]);
    assert_all_named(&cluster, 4);
    assert_eq!(cluster.adopted(4).default_from, 5);
    assert_eq!(cluster.conflicts(4), []);
}

#[test]
fn a_proposal_of_the_host_goes_first() {
    let mut cluster = started(3, 1);
    cluster.disk_latency = 300 * MILLISECOND;
    cluster.state_url(0, 0, "http://moved:1").unwrap();
    cluster.run(200 * MILLISECOND);
    assert!(cluster.chain_messages().next().is_some(), "the URL is being proposed");
    cluster.propose(0, "a").unwrap();
    cluster.run(20 * SECOND);
    assert_eq!(cluster.outcomes(0).len(), 1, "one proposal was the host's: {:?}", cluster.outcomes(0));
    assert_eq!(url_of(&cluster, 2, 0), "http://moved:1", "the change is not forgotten");
}

/// Faults of all kinds while nodes move and lose their disks; then none, and the record describes
/// the cluster. The cluster checks each adopted record.
#[test]
fn random_faults_end_in_a_record_that_describes_the_cluster() {
    for seed in 0..12 {
        let hosts = 3 + (seed % 3) as usize;
        let mut cluster = started(hosts, seed);
        let mut rng = stdx::Rng::new(seed);
        let mut stated = vec![None; hosts];
        cluster.world.net.jitter = 10 * MILLISECOND;
        cluster.world.net.loss = 0.03;
        for step in 0..40 {
            let host = rng.below(hosts as u64) as usize;
            match rng.below(8) {
                0 if cluster.is_running(host) => cluster.crash(host),
                0 | 1 if !cluster.is_running(host) => cluster.start(host),
                2 => cluster.world.cut_off(host, rng.below(hosts as u64) as usize),
                3 => cluster.world.heal(),
                4 | 5 if cluster.is_running(host) => {
                    let url = format!("http://moved{step}:1");
                    cluster.state_url(host, host, &url).unwrap();
                    stated[host] = Some(url);
                }
                _ => {}
            }
            cluster.run(MILLISECOND * rng.below(500) as u32);
        }
        cluster.world.heal();
        cluster.world.net.loss = 0.0;
        for host in 0..hosts {
            if !cluster.is_running(host) {
                cluster.start(host);
            }
        }
        cluster.run(3 * SECOND);
        // A host tells its node of its URL at each start, and of those of peers when they are
        // linked.
        for (slot, url) in stated.iter().enumerate() {
            for host in (0..hosts).filter(|_| url.is_some()) {
                cluster.state_url(host, slot, url.as_deref().unwrap_or_default()).unwrap();
            }
        }
        let lost = rng.below(hosts as u64) as usize;
        cluster.run(10 * SECOND);
        cluster.lose_disk(lost);
        cluster.start(lost);
        cluster.run(30 * SECOND);
        let epochs = cluster.epochs();
        assert_eq!(epochs, vec![epochs[0]; hosts], "seed {seed}");
        assert_all_named(&cluster, 0);
        assert_ne!(cluster.world.hosts[lost].tag, NodeTag(lost as u64 + 1));
        for (host, url) in stated.iter().enumerate() {
            if let Some(url) = url {
                assert_eq!(url_of(&cluster, 0, host), *url, "seed {seed}, host {host}");
            }
        }
    }
}

#[test]
fn a_change_is_decided_although_disks_are_slow() {
    let mut cluster = started(3, 1);
    cluster.disk_latency = 2_500 * MILLISECOND;
    cluster.state_url(0, 0, "http://moved:1").unwrap();
    cluster.run(40 * SECOND);
    assert_eq!(cluster.epochs(), [3; 3]);
}
