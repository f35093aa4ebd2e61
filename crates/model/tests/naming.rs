//! Nodes agree on the record that names their ids, in small bounds: whichever disks are lost.

use model::SearchExtent;
use model::naming::bounds;
use model::search::{SearchBounds, search};

const BOUNDS: SearchBounds = SearchBounds { states: 4_000_000, depth: 200 };

#[test]
fn nodes_agree_in_every_small_bound() {
    for (name, _, config) in bounds().into_iter().filter(|(_, extent, _)| *extent == SearchExtent::Small) {
        let report = search(&config, BOUNDS);
        println!("{name}: {report}");
        assert!(report.holds(), "{name}: {report}");
    }
}
