//! The chain of layout records holds its promises in small bounds.

use model::SearchExtent;
use model::chain::bounds;
use model::search::{SearchBounds, search};

const BOUNDS: SearchBounds = SearchBounds { states: 4_000_000, depth: 200 };

#[test]
fn the_chain_holds_its_promises_in_every_small_bound() {
    for (name, _, config) in bounds().into_iter().filter(|(_, extent, _)| *extent == SearchExtent::Small) {
        let report = search(&config, BOUNDS);
        println!("{name}: {report}");
        assert!(report.holds(), "{name}: {report}");
    }
}
