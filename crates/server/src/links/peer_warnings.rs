//! Rate limit for warnings about peers.
//!
//! A node that was started with a different list of nodes dials again and again, from each of its
//! threads. The log reports it once a minute for each peer and reason.

use crate::counters::Counter;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Instant;

/// Interval in which a warning is not repeated.
const SILENCE: Duration = Duration::from_secs(60);
/// Time after which a warning that was not repeated counts as resolved. A refused peer dials again
/// within the difference to [`SILENCE`].
const REMEMBERED_TIME: Duration = Duration::from_secs(70);
/// Most warnings that are remembered. Further new warnings are not logged.
const REMEMBERED_MAX: usize = 256;

/// Refused links, and the warnings about peers that were logged, with their times.
#[derive(Debug, Default)]
pub(crate) struct PeerWarnings {
    /// Links that this node or the peer refused because the nodes do not fit together.
    refused: Counter,
    said: Mutex<BTreeMap<(String, String), Instant>>,
}

impl PeerWarnings {
    /// Whether the warning about `peer` with this `reason` is due. The caller then logs it.
    pub(crate) fn is_news(&self, now: Instant, peer: &str, reason: &str) -> bool {
        let mut said = self.said.lock();
        said.retain(|_, when| now.saturating_since(*when) < REMEMBERED_TIME);
        let what = (peer.to_owned(), reason.to_owned());
        let is_news = match said.get(&what) {
            Some(when) => now.saturating_since(*when) >= SILENCE,
            None => said.len() < REMEMBERED_MAX,
        };
        if is_news {
            said.insert(what, now);
        }
        is_news
    }

    /// Counts a link that this node or `peer` refused because the nodes do not fit together.
    /// Returns whether the warning about it is due. The caller then logs it.
    pub(super) fn count_refused(&self, now: Instant, peer: &str, reason: &str) -> bool {
        self.refused.count();
        self.is_news(now, peer, reason)
    }

    /// Forgets the warnings about `peer`, which has another name now. Those that still hold are
    /// repeated under that name.
    pub(crate) fn forget(&self, peer: &str) {
        self.said.lock().retain(|(of, _), _| of != peer);
    }

    /// Number of links that this node or a peer refused because the nodes do not fit together.
    pub(crate) fn refused_count(&self) -> u64 {
        self.refused.get()
    }

    /// Peers and reasons of the recent warnings. A condition that persists is repeated, so it is
    /// among them.
    pub(crate) fn recent(&self, now: Instant) -> Vec<(String, String)> {
        let said = self.said.lock();
        let recent = said.iter().filter(|(_, when)| now.saturating_since(**when) < REMEMBERED_TIME);
        recent.map(|(what, _)| what.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_due_once_a_minute_for_each_peer_and_reason() {
        let peer_warnings = PeerWarnings::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        assert!(peer_warnings.is_news(at(0), "a", "list"));
        assert!(peer_warnings.is_news(at(0), "b", "list"));
        assert!(peer_warnings.is_news(at(1), "a", "secret"));
        assert!(!peer_warnings.is_news(at(59), "a", "list"));
        assert!(peer_warnings.is_news(at(60), "a", "list"));
        assert_eq!(
            peer_warnings.recent(at(70)),
            [("a", "list"), ("a", "secret")].map(|(a, b)| (a.into(), b.into()))
        );
        (0..1_000).for_each(|i| {
            peer_warnings.is_news(at(61), "a", &i.to_string());
        });
        assert_eq!(peer_warnings.said.lock().len(), REMEMBERED_MAX);
    }

    #[test]
    fn a_peer_that_has_another_name_now_has_no_recent_warnings() {
        let peer_warnings = PeerWarnings::default();
        let now = Instant::from_nanos(1);
        for (peer, reason) in [("a", "list"), ("b", "list"), ("b", "secret")] {
            assert!(peer_warnings.is_news(now, peer, reason));
        }
        peer_warnings.forget("b");
        assert_eq!(peer_warnings.recent(now), [("a".to_owned(), "list".to_owned())]);
    }
}
