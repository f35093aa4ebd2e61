//! Entries to and from files.

mod export;
mod import;
mod partial;
mod source;
mod supply;
mod unzstd;

use cluster::HybridClock;
use env::Env;
use stdx::Version;

pub use export::{Export, Exported, count, export};
pub use import::{FAILURES_SHOWN_MAX, FailedEntry, Import, Imported, import};
pub use partial::PartialFile;

/// Whether an entry's version lies further in the future, by this machine's clock, than a node accepts from a peer: a wrong
/// clock issued it. An entry without a version does not.
pub fn is_in_future(version: Option<Version>) -> bool {
    version.is_some_and(|version| HybridClock::is_ahead(version.hlc, Env::os().clock.now().wall))
}

/// Values of entries in files may be so long, in bytes: no node takes longer ones.
const VALUE_BYTES_MAX: usize = 64 << 20;

/// A quorum as it is asked for; what is not said, the node decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuorumWish {
    /// How many replicas must answer.
    pub ack: Option<u8>,
    /// Of how many.
    pub from: Option<u8>,
}

impl QuorumWish {
    /// As parameters of a query.
    fn parameters(&self) -> Vec<String> {
        let named = |name: &str, number: Option<u8>| number.map(|number| format!("{name}={number}"));
        [named("ack", self.ack), named("from", self.from)].into_iter().flatten().collect()
    }
}
