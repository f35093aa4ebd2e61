//! The `Date` header of responses, formatted once a second.

use api::HttpDate;
use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stdx::WallTime;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// The last formatted date, with its second.
#[derive(Debug, Default)]
pub(crate) struct DateCache(Cell<Option<(u64, HttpDate)>>);

impl DateCache {
    /// The date at `now`.
    pub(crate) fn at(&self, now: WallTime) -> HttpDate {
        let seconds = now.micros_since_unix_epoch() / MICROS_PER_SECOND;
        match self.0.get() {
            Some((at, date)) if at == seconds => date,
            _ => {
                let date = date_of(UNIX_EPOCH + Duration::from_secs(seconds));
                self.0.set(Some((seconds, date)));
                date
            }
        }
    }
}

/// The date at `now`, for a response outside of an I/O thread.
pub(crate) fn http_date(now: WallTime) -> HttpDate {
    date_of(UNIX_EPOCH + Duration::from_micros(now.micros_since_unix_epoch()))
}

fn date_of(time: SystemTime) -> HttpDate {
    let text = httpdate::fmt_http_date(time);
    text.as_bytes().try_into().expect("an HTTP date has one length")
}
