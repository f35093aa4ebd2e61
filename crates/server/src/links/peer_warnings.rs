//! What is wrong with peers, said once in a while.
//!
//! A node that is started with another list dials again and again, from each of its threads. The log says so
//! once a minute for each peer and reason.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Instant;

/// The same is not said again for so long.
const SILENCE: Duration = Duration::from_secs(60);
/// What was said so long ago and not again has passed. Who is refused dials again within the difference.
const REMEMBERED_TIME: Duration = Duration::from_secs(70);
/// So many things are remembered to have been said; what is new beyond is not said.
const REMEMBERED_MAX: usize = 256;

/// What was said of whom, and when.
#[derive(Debug, Default)]
pub(crate) struct PeerWarnings {
    said: Mutex<BTreeMap<(String, String), Instant>>,
}

impl PeerWarnings {
    /// Whether `reason` is to be said of `peer` now. Whoever asks says it.
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

    /// What was said of whom lately. What goes on is said again and again, so it is among it.
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
    fn each_reason_is_said_once_a_minute_for_each_peer() {
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
}
