//! Tests of reservations, refusals and releases.

use super::*;

/// A budget of categories with a maximum of 10,500 bytes and 1,000 guaranteed bytes each, and a
/// pool of 14,000.
fn budget() -> Arc<Budget> {
    Arc::new(Budget::new(21_000, 100, LargestValue::default()))
}

#[test]
fn reserved_bytes_are_refused_to_others_until_released() {
    let budget = budget();
    let (mut a, mut b) =
        (budget.empty_reservation(MemoryCategory::Bodies), budget.empty_reservation(MemoryCategory::Bodies));
    assert!(a.grow(4_000) && b.grow(6_500));
    assert!(!a.grow(1));
    assert_eq!(budget.reserved_bytes(MemoryCategory::Bodies), 10_500);
    drop(b);
    assert!(a.grow(6_500) && !a.grow(1));
    drop(a);
    assert!(budget.reserve(MemoryCategory::Bodies, 10_500).is_some());
}

#[test]
fn a_reservation_grows_and_shrinks() {
    let budget = budget();
    let mut held = budget.empty_reservation(MemoryCategory::Ranges);
    assert!(held.resize(8_000) && !held.resize(10_501) && held.resize(3_000));
    let rest = budget.reserve(MemoryCategory::Ranges, 7_500).expect("the released bytes");
    drop((held, rest));
    assert_eq!((budget.reserved_bytes(MemoryCategory::Ranges), budget.state().pooled), (0, 0));
}

#[test]
fn a_full_category_leaves_the_others_their_guaranteed_bytes() {
    let budget = budget();
    let bodies = budget.reserve(MemoryCategory::Bodies, 10_500).expect("the maximum of the category");
    let mut replies = budget.empty_reservation(MemoryCategory::Replies);
    assert!(!replies.grow(5_501) && replies.grow(5_500), "9,500 and 4,500 of the pool");
    let since = budget.refusals();
    assert!(
        budget.is_short(MemoryCategory::Replies, &since) && !budget.is_short(MemoryCategory::Ranges, &since)
    );
    for category in [
        MemoryCategory::Writes,
        MemoryCategory::Ranges,
        MemoryCategory::Batches,
        MemoryCategory::PeerLinks,
        MemoryCategory::Connections,
    ] {
        assert!(budget.reserve(category, 1_001).is_none());
        assert!(budget.reserve(category, 1_000).is_some());
    }
    drop(bodies);
    assert!(budget.reserve(MemoryCategory::Ranges, 10_500).is_some());
}

#[test]
fn the_excess_of_the_store_shrinks_the_pool() {
    let budget = budget();
    budget.note_store(100 + 13_000);
    assert!(budget.reserve(MemoryCategory::Bodies, 2_001).is_none());
    assert!(budget.reserve(MemoryCategory::Bodies, 2_000).is_some());
    budget.note_store(100 + 1_000_000);
    assert!(
        budget.reserve(MemoryCategory::Bodies, 1_001).is_none()
            && budget.reserve(MemoryCategory::Bodies, 1_000).is_some()
    );
    budget.note_store(99);
    assert!(budget.reserve(MemoryCategory::Bodies, 10_500).is_some());
}

#[test]
fn one_largest_value_fits_even_if_the_store_exceeds_its_share() {
    const VALUE: usize = 16 << 20;
    for nodes in [1, 3, 5] {
        let budget = Arc::new(Budget::new(budget_bytes_min(VALUE), 100, LargestValue::of(VALUE, nodes)));
        budget.note_store(u64::MAX);
        let links: Vec<_> =
            (1..nodes).map(|_| budget.reserve(MemoryCategory::PeerLinks, VALUE as u64 + 4_096)).collect();
        assert!(links.iter().all(Option::is_some), "{nodes} nodes");
        for category in
            [MemoryCategory::Bodies, MemoryCategory::Replies, MemoryCategory::Ranges, MemoryCategory::Batches]
        {
            assert!(budget.reserve(category, VALUE as u64 + (1 << 20)).is_some(), "{category:?}");
        }
    }
}

#[test]
fn a_failed_reservation_makes_a_category_short() {
    let budget = budget();
    let since = budget.refusals();
    let _half = budget.reserve(MemoryCategory::Replies, 6_000).expect("bytes are available");
    assert!(!budget.is_short(MemoryCategory::Replies, &since));
    assert!(budget.reserve(MemoryCategory::Replies, 6_000).is_none());
    assert!(
        budget.is_short(MemoryCategory::Replies, &since) && !budget.is_short(MemoryCategory::Bodies, &since)
    );
    let since = budget.refusals();
    assert!(!budget.is_short(MemoryCategory::Replies, &since), "no failure since then");
    // The pool is short for the categories that exceed their guaranteed amounts.
    let _other = budget.reserve(MemoryCategory::Bodies, 5_000).expect("bytes are available");
    assert!(budget.reserve(MemoryCategory::Ranges, 6_500).is_none());
    assert!(
        budget.is_short(MemoryCategory::Replies, &since) && budget.is_short(MemoryCategory::Bodies, &since)
    );
    assert!(!budget.is_short(MemoryCategory::Ranges, &since));
}

#[test]
fn concurrent_reservations_leave_no_bytes_behind() {
    let budget = budget();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let budget = &budget;
            scope.spawn(move || {
                for round in 0..20_000 {
                    let category = MemoryCategory::ALL[((round + thread) % 2) as usize];
                    let bytes = round * 7 % 5_000;
                    if let Some(mut taken) = budget.reserve(category, bytes) {
                        let _ = taken.resize(bytes / 2) && taken.resize(bytes * 2);
                    }
                }
            });
        }
    });
    assert_eq!(MemoryCategory::ALL.map(|category| budget.reserved_bytes(category)), [0; 7]);
    assert_eq!(budget.state().pooled, 0);
}

#[test]
fn a_thread_budget_grows_in_steps_and_reserves_to_the_last_byte() {
    let memory = budget();
    let budget = ThreadBudget::new(&memory, MemoryCategory::Writes, 3);
    assert_eq!(budget.step, 218);
    let reserved: Vec<_> = (0..10_500).map(|_| budget.reserve(1).expect("bytes are available")).collect();
    assert!(budget.reserve(1).is_none());
    assert_eq!(memory.reserved_bytes(MemoryCategory::Writes), 10_500);
    drop(reserved);
    assert!(memory.reserved_bytes(MemoryCategory::Writes) <= 3 * budget.step);
    drop(budget);
    assert_eq!(memory.reserved_bytes(MemoryCategory::Writes), 0);
}

#[test]
fn one_reservation_at_a_time_covers_a_value_in_overcommit() {
    let budget = budget();
    let covering = |bytes| {
        let mut reservation = budget.empty_reservation(MemoryCategory::Replies);
        reservation.cover(bytes).then_some(reservation)
    };
    let mut reserved = covering(8_000).expect("bytes are available");
    assert!(reserved.cover(5_000) && !reserved.is_overcommitted());
    assert_eq!(budget.reserved_bytes(MemoryCategory::Replies), 8_000, "it covers the largest value");
    let overcommit = covering(10_501).expect("the value in overcommit");
    assert!(overcommit.is_overcommitted());
    assert!(!reserved.cover(10_501) && covering(3_000).is_none(), "only one is in overcommit");
    assert_eq!(budget.reserved_bytes(MemoryCategory::Replies), 8_000, "a refusal changes nothing");
    drop(overcommit);
    assert!(reserved.cover(10_501) && reserved.is_overcommitted());
    assert_eq!(budget.reserved_bytes(MemoryCategory::Replies), 0);
    drop(reserved);
    assert!(covering(10_501).is_some(), "the overcommit was released");
}
