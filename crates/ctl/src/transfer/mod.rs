//! Transfer of entries to and from files.

mod entry_queue;
mod export;
mod import;
mod partial;
mod source;
mod zstd_decoder;

use cluster::HybridClock;
use env::Env;
use stdx::Version;

pub use export::{Export, ExportReport, count, export};
pub use import::{FAILURES_SHOWN_MAX, FailedEntry, Import, ImportReport, import};
pub use partial::PartialFile;

/// Whether a version lies further in the future, by this machine's clock, than a node accepts from
/// a peer. Such a version was issued by a wrong clock. `false` without a version.
pub fn is_in_future(version: Option<Version>) -> bool {
    version.is_some_and(|version| HybridClock::is_ahead(version.hlc, Env::os().clock.now().wall))
}

/// Maximum length of a value in a file, in bytes: no node accepts longer ones.
const VALUE_BYTES_MAX: usize = 64 << 20;

/// Quorum of a request. The node's defaults apply to `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedQuorum {
    /// Number of replicas that must acknowledge.
    pub ack: Option<u8>,
    /// Number of replicas of the key.
    pub from: Option<u8>,
}

impl RequestedQuorum {
    /// Query parameters of the quorum.
    fn parameters(&self) -> Vec<String> {
        let named = |name: &str, number: Option<u8>| number.map(|number| format!("{name}={number}"));
        [named("ack", self.ack), named("from", self.from)].into_iter().flatten().collect()
    }
}
