use super::*;
use limits::LargestValue;
use std::net::IpAddr;
use stdx::Rng;

/// Holders of a budget in which each category may hold 24 MiB.
fn holders() -> Arc<MemoryHolders> {
    let budget = Budget::new(48 << 20, 0, LargestValue::default());
    Arc::new(MemoryHolders::new(Arc::new(budget)))
}

fn client(address: u8) -> ClientAddress {
    ClientAddress::of(IpAddr::from([10, 0, 0, address]))
}

fn holder(holders: &Arc<MemoryHolders>, address: u8, category: MemoryCategory, bytes: u64) -> HolderEntry {
    let entry = holders.register(client(address), category, None);
    entry.holder.note_bytes(bytes);
    entry
}

fn examined(holders: &MemoryHolders) -> usize {
    holders.state.lock().examined.load(Ordering::Relaxed)
}

#[test]
fn the_total_of_an_address_is_the_sum_of_its_holders() {
    let (holders, mut rng) = (holders(), Rng::new(41));
    let mut entries = Vec::new();
    for _ in 0..2_000 {
        let category = MemoryCategory::ALL[rng.below(MemoryCategory::ALL.len() as u64) as usize];
        match rng.below(3) {
            0 => entries.push(holder(&holders, rng.below(5) as u8, category, rng.below(1_000))),
            1 if !entries.is_empty() => {
                let at = rng.below(entries.len() as u64) as usize;
                entries[at].holder.note_bytes(rng.below(1_000));
            }
            _ if !entries.is_empty() => {
                entries.swap_remove(rng.below(entries.len() as u64) as usize);
            }
            _ => {}
        }
        for scope in MemoryCategory::ALL.map(Some).into_iter().chain([None]) {
            let state = holders.state.lock();
            for address in 0..5 {
                let of_address = entries.iter().map(|entry| &entry.holder).filter(|holder| {
                    holder.client() == client(address) && scope.is_none_or(|scope| scope == holder.category())
                });
                let sum: u64 = of_address.map(|holder| holder.bytes()).sum();
                assert_eq!(state.held(client(address), scope), sum);
            }
        }
    }
}

#[test]
fn addresses_without_holders_are_forgotten_if_there_are_many() {
    let holders = holders();
    let keeper = holder(&holders, 255, MemoryCategory::Bodies, 1);
    for address in 0..200 {
        drop(holder(&holders, address, MemoryCategory::Bodies, 1));
        assert!(holders.state.lock().addresses.len() <= KEPT_ADDRESSES_MAX + 1);
    }
    assert_eq!(holders.state.lock().held(keeper.holder.client(), None), 1);
}

#[test]
fn no_request_for_memory_examines_all_holders_while_clients_wait() {
    let holders = holders();
    let memory = holders.budget();
    let max = memory.category_max(MemoryCategory::Ranges);
    let _full = memory.reserve(MemoryCategory::Ranges, max).expect("free memory");
    let _greedy: Vec<_> =
        (0..1_000).map(|_| holder(&holders, 1, MemoryCategory::Ranges, max / 1_000)).collect();
    let demand = |address| holders.demand(client(address), MemoryCategory::Ranges, 1_000, 1_000);
    let waiting: Vec<_> = (2..10).map(|address| holders.wait(demand(address)).expect("it waits")).collect();
    let begun = examined(&holders);
    assert!(begun >= 1_000, "slow clients are sought when a client begins to wait");
    for address in 1..10 {
        for category in [MemoryCategory::Ranges, MemoryCategory::Replies] {
            let yields = holders.must_yield(client(address), category, 1_000);
            assert_eq!(yields, address == 1 && category == MemoryCategory::Ranges, "{address}");
        }
    }
    drop(waiting);
    assert!(holders.must_yield(client(1), MemoryCategory::Ranges, 1_000), "memory is left for others");
    assert_eq!(examined(&holders), begun);
}

#[test]
fn a_client_that_must_yield_gets_no_memory_by_any_way_and_may_shrink() {
    let holders = holders();
    let memory = holders.budget();
    let max = memory.category_max(MemoryCategory::Ranges);
    let greedy = holder(&holders, 1, MemoryCategory::Ranges, 0);
    let mut held = memory.empty_reservation(MemoryCategory::Ranges);
    assert!(greedy.grow(&mut held, max / 2));
    let demand = holders.demand(client(2), MemoryCategory::Ranges, max, max);
    let waiting = holders.wait(demand).expect("it waits");
    assert!(!greedy.grow(&mut held, max / 2 + 1));
    assert!(greedy.reserve(1).is_none());
    assert!(greedy.reserve(0).is_some(), "an empty reservation takes nothing from others");
    assert!(greedy.grow(&mut held, max / 2), "no increase");
    assert!(greedy.grow(&mut held, max / 3), "a decrease");
    drop((waiting, held));
}
