//! The promises of reads and writes hold while replicas are swapped, in small bounds.

use model::SearchExtent;
use model::search::{SearchBounds, search};
use model::swap::bounds;

const BOUNDS: SearchBounds = SearchBounds { states: 4_000_000, depth: 200 };

#[test]
fn the_promises_hold_in_every_small_bound() {
    for (name, _, config) in bounds().into_iter().filter(|(_, extent, _)| *extent == SearchExtent::Small) {
        let report = search(&config, BOUNDS);
        println!("{name}: {report}");
        assert!(report.holds(), "{name}: {report}");
    }
}
