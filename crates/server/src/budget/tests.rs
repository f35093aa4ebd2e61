//! What is taken, refused and given back.

use super::*;

/// Parts of at most 10,500, with reserves of 1,000 each, and a pool of 14,000.
fn budget() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(
        &Limits { memory_bytes: 21_000, ..Limits::default() },
        100,
        Largest::default(),
    ))
}

#[test]
fn what_is_taken_is_refused_to_others_and_comes_back() {
    let budget = budget();
    let (mut a, mut b) = (budget.begin(Part::Bodies), budget.begin(Part::Bodies));
    assert!(a.take(4_000) && b.take(6_500));
    assert!(!a.take(1));
    assert_eq!(budget.taken(Part::Bodies), 10_500);
    drop(b);
    assert!(a.take(6_500) && !a.take(1));
    drop(a);
    assert!(budget.take(Part::Bodies, 10_500).is_some());
}

#[test]
fn what_is_held_rises_and_falls() {
    let budget = budget();
    let mut held = budget.begin(Part::Ranges);
    assert!(held.hold(8_000) && !held.hold(10_501) && held.hold(3_000));
    let rest = budget.take(Part::Ranges, 7_500).expect("what was let go");
    drop((held, rest));
    assert_eq!((budget.taken(Part::Ranges), budget.state.lock().pooled), (0, 0));
}

#[test]
fn full_parts_leave_the_others_their_reserve() {
    let budget = budget();
    let bodies = budget.take(Part::Bodies, 10_500).expect("all that it may");
    let mut replies = budget.begin(Part::Replies);
    assert!(!replies.take(5_501) && replies.take(5_500), "9,500 and 4,500 of the pool");
    let since = budget.refusals();
    assert!(budget.is_short(Part::Replies, &since) && !budget.is_short(Part::Ranges, &since));
    for part in [Part::Writes, Part::Ranges, Part::Batches, Part::PeerLinks, Part::Connections] {
        assert!(budget.take(part, 1_001).is_none());
        assert!(budget.take(part, 1_000).is_some());
    }
    drop(bodies);
    assert!(budget.take(Part::Ranges, 10_500).is_some());
}

#[test]
fn what_the_store_takes_too_much_comes_off_the_pool() {
    let budget = budget();
    budget.note_store(100 + 13_000);
    assert!(budget.take(Part::Bodies, 2_001).is_none());
    assert!(budget.take(Part::Bodies, 2_000).is_some());
    budget.note_store(100 + 1_000_000);
    assert!(budget.take(Part::Bodies, 1_001).is_none() && budget.take(Part::Bodies, 1_000).is_some());
    budget.note_store(99);
    assert!(budget.take(Part::Bodies, 10_500).is_some());
}

#[test]
fn there_is_room_for_one_of_the_largest_values_whatever_the_store_takes() {
    const VALUE: usize = 16 << 20;
    for nodes in [1, 3, 5] {
        let limits = Limits::for_process(1_000, 32 << 20, VALUE);
        let budget = Arc::new(MemoryBudget::new(&limits, 100, Largest::of(VALUE, nodes)));
        budget.note_store(u64::MAX);
        let links: Vec<_> = (1..nodes).map(|_| budget.take(Part::PeerLinks, VALUE as u64 + 4_096)).collect();
        assert!(links.iter().all(Option::is_some), "{nodes} nodes");
        for part in [Part::Bodies, Part::Replies, Part::Ranges, Part::Batches] {
            assert!(budget.take(part, VALUE as u64 + (1 << 20)).is_some(), "{part:?}");
        }
    }
}

#[test]
fn whoever_finds_no_room_makes_a_part_short() {
    let budget = budget();
    let since = budget.refusals();
    let _half = budget.take(Part::Replies, 6_000).expect("room");
    assert!(!budget.is_short(Part::Replies, &since));
    assert!(budget.take(Part::Replies, 6_000).is_none());
    assert!(budget.is_short(Part::Replies, &since) && !budget.is_short(Part::Bodies, &since));
    let since = budget.refusals();
    assert!(!budget.is_short(Part::Replies, &since), "nobody since");
    // Of the pool, those have taken too much that hold more than their reserves.
    let _other = budget.take(Part::Bodies, 5_000).expect("room");
    assert!(budget.take(Part::Ranges, 6_500).is_none());
    assert!(budget.is_short(Part::Replies, &since) && budget.is_short(Part::Bodies, &since));
    assert!(!budget.is_short(Part::Ranges, &since));
}

#[test]
fn nothing_is_lost_between_threads() {
    let budget = budget();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let budget = &budget;
            scope.spawn(move || {
                for round in 0..20_000 {
                    let part = Part::ALL[((round + thread) % 2) as usize];
                    let bytes = round * 7 % 5_000;
                    if let Some(mut taken) = budget.take(part, bytes) {
                        let _ = taken.hold(bytes / 2) && taken.hold(bytes * 2);
                    }
                }
            });
        }
    });
    assert_eq!(Part::ALL.map(|part| budget.taken(part)), [0; 7]);
    assert_eq!(budget.state.lock().pooled, 0);
}

#[test]
fn a_purse_takes_steps_and_lends_to_the_last_byte() {
    let budget = budget();
    let purse = Purse::new(&budget, Part::Writes, 3);
    assert_eq!(purse.step, 218);
    let lent: Vec<_> = (0..10_500).map(|_| purse.lend(1).expect("there is room")).collect();
    assert!(purse.lend(1).is_none());
    assert_eq!(budget.taken(Part::Writes), 10_500);
    drop(lent);
    assert!(budget.taken(Part::Writes) <= 3 * purse.step);
    drop(purse);
    assert_eq!(budget.taken(Part::Writes), 0);
}
