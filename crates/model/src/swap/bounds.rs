//! Named bounds in which the promises hold.

use super::config::{A, G, H, SwapConfig, X};
use crate::SearchExtent;

/// All bounds, with a name for each.
pub fn bounds() -> Vec<(&'static str, SearchExtent, SwapConfig)> {
    let one_read =
        |write_ack, read_ack, from| SwapConfig { reads: 1, ..SwapConfig::swap(write_ack, read_ack, from) };
    let cancelled = |config: SwapConfig| SwapConfig { cancels_max: 1, epochs: 5, ..config };
    let twice = |config: SwapConfig| SwapConfig { swaps_max: 2, epochs: 7, ..config };
    let regained = |config: SwapConfig| SwapConfig { swaps: vec![(X, G), (G, X)], ..twice(config) };
    let other = |config: SwapConfig| SwapConfig { swaps: vec![(X, G), (A, H)], ..twice(config) };
    let of_one = || SwapConfig::swap(1, 1, 1);
    let small = [
        ("one replica, two reads", of_one()),
        ("one replica, cancelled, then swapped again", SwapConfig { cancels_max: 1, ..twice(of_one()) }),
        ("one replica, swapped back", regained(of_one())),
        ("2/2 of 2, two reads", SwapConfig::swap(2, 2, 2)),
        ("1/2 and 2/2, two reads", SwapConfig::swap(1, 2, 2)),
        ("2/2 and 1/2, two reads", SwapConfig::swap(2, 1, 2)),
        ("2/3, one read", one_read(2, 2, 3)),
        ("3/3 and 1/3, one read", one_read(3, 1, 3)),
        ("2/2 of 2, x off", SwapConfig { mortal: X.set(), dead_is_off: true, ..one_read(2, 2, 2) }),
        ("2/3, a replica loses its disk, two reads", {
            SwapConfig { lossy: A.set(), epochs: 3, swaps_max: 0, ..SwapConfig::swap(2, 2, 3) }
        }),
        (
            "one replica, cancelled, g loses its disk",
            SwapConfig { lossy: G.set(), cancels_max: 1, epochs: 6, ..of_one() },
        ),
        ("2/2 of 2, cancelled, x loses its disk", {
            SwapConfig { lossy: X.set(), ..cancelled(one_read(2, 2, 2)) }
        }),
        ("2/2 of 2, cancelled, g dead", cancelled(SwapConfig { mortal: G.set(), ..one_read(2, 2, 2) })),
        ("2/2 of 2, cancelled, x dead", cancelled(SwapConfig { mortal: X.set(), ..one_read(2, 2, 2) })),
        ("2/2 of 2, cancelled, x off, swapped again", {
            SwapConfig { dead_is_off: true, mortal: X.set(), cancels_max: 1, ..twice(one_read(2, 2, 2)) }
        }),
        ("2/2 of 2, x and g dead", {
            cancelled(SwapConfig { mortal: X.set().union(G.set()), ..one_read(2, 2, 2) })
        }),
    ];
    let large = [
        ("1/3 and 3/3, one read", one_read(1, 3, 3)),
        ("2/3, two reads", SwapConfig::swap(2, 2, 3)),
        ("2/3, cancelled", cancelled(one_read(2, 2, 3))),
        ("1/3 and 3/3, cancelled", cancelled(one_read(1, 3, 3))),
        ("2/3, x dead and cut off", SwapConfig { mortal: X.set(), ..one_read(2, 2, 3) }),
        ("3/3 and 1/3, x off", SwapConfig { mortal: X.set(), dead_is_off: true, ..one_read(3, 1, 3) }),
        (
            "2/3, cancelled, g dead and cut off",
            cancelled(SwapConfig { mortal: G.set(), ..one_read(2, 2, 3) }),
        ),
        (
            "2/3, cancelled, x dead and cut off",
            cancelled(SwapConfig { mortal: X.set(), ..one_read(2, 2, 3) }),
        ),
        ("2/3, cancelled, x off, swapped again", {
            SwapConfig { dead_is_off: true, mortal: X.set(), cancels_max: 1, ..twice(one_read(2, 2, 3)) }
        }),
        ("2/3, x and g dead and cut off", {
            cancelled(SwapConfig { mortal: X.set().union(G.set()), ..one_read(2, 2, 3) })
        }),
        ("2/3, x loses its disk", SwapConfig { lossy: X.set(), epochs: 5, ..one_read(2, 2, 3) }),
        ("2/3, g loses its disk", SwapConfig { lossy: G.set(), epochs: 5, ..one_read(2, 2, 3) }),
        ("2/3, a kept replica loses its disk", SwapConfig { lossy: A.set(), epochs: 5, ..one_read(2, 2, 3) }),
        ("2/3, cancelled, x loses its disk", SwapConfig { lossy: X.set(), ..cancelled(one_read(2, 2, 3)) }),
        ("2/3, cancelled, g loses its disk", SwapConfig { lossy: G.set(), ..cancelled(one_read(2, 2, 3)) }),
        ("1/3 and 3/3, g loses its disk", SwapConfig { lossy: G.set(), epochs: 5, ..one_read(1, 3, 3) }),
        ("2/3, swapped back", regained(one_read(2, 2, 3))),
        ("2/3, another swap after it", other(one_read(2, 2, 3))),
    ];
    let of = |extent| move |(name, config)| (name, extent, config);
    small
        .into_iter()
        .map(of(SearchExtent::Small))
        .chain(large.into_iter().map(of(SearchExtent::Large)))
        .collect()
}
