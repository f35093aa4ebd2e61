//! Formatting of times.

use std::fmt;
use stdx::WallTime;

/// Formats a time as `2026-11-21 09:23:10 UTC`.
pub fn utc(wall: WallTime) -> impl fmt::Display {
    let secs = wall.micros_since_unix_epoch() / 1_000_000;
    let (days, secs) = (secs / SECS_PER_DAY, secs % SECS_PER_DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

const SECS_PER_DAY: u64 = 24 * 3600;

/// Year, month and day of the day `days` after 1970-01-01 (Howard Hinnant, "chrono-compatible
/// low-level date algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Years begin in March, so that the leap day comes last.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |secs: u64| utc(WallTime::from_micros_since_unix_epoch(secs * 1_000_000)).to_string();
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_577_836_800), "2020-01-01 00:00:00 UTC");
        assert_eq!(at(1_795_252_990), "2026-11-21 09:23:10 UTC");
        assert_eq!(at(4_107_542_399), "2100-02-28 23:59:59 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }
}
