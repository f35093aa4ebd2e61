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
/// So many things are remembered to have been said; what is new beyond is not said.
const REMEMBERED_MAX: usize = 256;

/// What was said of whom, and when.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    said: Mutex<BTreeMap<(String, String), Instant>>,
}

impl Complaints {
    /// Whether `reason` is to be said of `peer` now. Whoever asks says it.
    pub(crate) fn is_news(&self, now: Instant, peer: &str, reason: &str) -> bool {
        let mut said = self.said.lock();
        said.retain(|_, when| now.saturating_since(*when) < SILENCE);
        let what = (peer.to_owned(), reason.to_owned());
        let is_news = said.len() < REMEMBERED_MAX && !said.contains_key(&what);
        if is_news {
            said.insert(what, now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once_a_minute_for_each_peer() {
        let complaints = Complaints::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        assert!(complaints.is_news(at(0), "a", "list"));
        assert!(complaints.is_news(at(0), "b", "list"));
        assert!(complaints.is_news(at(1), "a", "secret"));
        assert!(!complaints.is_news(at(59), "a", "list"));
        assert!(complaints.is_news(at(60), "a", "list"));
        (0..1_000).for_each(|i| {
            complaints.is_news(at(61), "a", &i.to_string());
        });
        assert_eq!(complaints.said.lock().len(), REMEMBERED_MAX);
    }
}
