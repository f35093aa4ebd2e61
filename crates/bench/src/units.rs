//! Parsing and formatting of quantities.

use std::time::Duration;

/// Units of sizes, in bytes. A prefix without `B` is a power of 1,024, as in Java, Redis and
/// Kubernetes (`Mi`).
const SIZE_UNITS: [(&str, u64); 16] = [
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Units of time, in nanoseconds.
const TIME_UNITS: [(&str, f64); 5] = [("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3_600e9)];

/// Parses a number of bytes: `4096`, `64KiB` or `1GiB`, which are also `64K` or `64Ki` and `1G` or
/// `1Gi`; or in powers of ten `64kB`, `2GB`.
///
/// # Errors
/// A sentence that states the expected form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is not a size such as 4096, 64KiB or 1GiB");
    let (digits, unit) = split_unit(text);
    let factor = if unit.is_empty() { 1 } else { bytes_in(unit).ok_or_else(error)? };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(error)
}

fn bytes_in(unit: &str) -> Option<u64> {
    SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| *factor)
}

/// Parses a time: `500us`, `10ms`, `1.5s`, `2m`, `1h`. A number without a unit is in seconds.
///
/// # Errors
/// A sentence that states the expected form.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let error = || format!("{text:?} is not a time such as 500us, 10ms, 30s or 5m");
    let (digits, unit) = split_unit(text);
    let unit = if unit.is_empty() { "s" } else { unit };
    let (_, nanos) = TIME_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(error)?;
    let number: f64 = digits.parse().map_err(|_| error())?;
    Duration::try_from_secs_f64(number * nanos / 1e9).map_err(|_| error())
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (digits, unit) = text.split_at(digits);
    (digits, unit.trim_start())
}

/// Formats bytes with three digits: `640 B`, `1.50 MiB`.
pub fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = bytes;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    match scaled {
        _ if unit == 0 => format!("{scaled:.0} B"),
        scaled if scaled < 10.0 => format!("{scaled:.2} {}", units[unit]),
        scaled if scaled < 100.0 => format!("{scaled:.1} {}", units[unit]),
        scaled => format!("{scaled:.0} {}", units[unit]),
    }
}

/// Formats a whole number with grouped thousands: `1,048,576`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats microseconds with a unit: `12.5us`, `1.20ms`, `3.00s`.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.1}us"),
        us if us < 1_000_000.0 => format!("{:.2}ms", us / 1_000.0),
        us => format!("{:.2}s", us / 1_000_000.0),
    }
}

/// Formats a waiting time of seconds to hours: `8 s`, `4 m 05 s`, `2 h 10 m`.
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 60 && time.subsec_millis() > 0 && seconds < 10 => {
            format!("{:.1} s", time.as_secs_f64())
        }
        seconds if seconds < 60 => format!("{seconds} s"),
        seconds if seconds < 3_600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {:02} m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65_536),
            ("1 gib", 1 << 30),
            ("2GB", 2_000_000_000),
            ("512M", 512 << 20),
            ("512Mi", 512 << 20),
            ("1G", 1 << 30),
            ("512MB", 512_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "KiB", "1.5KiB", "-1", "1x", "99999999999GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for (text, micros) in
            [("500us", 500), ("10ms", 10_000), ("1.5s", 1_500_000), ("3", 3_000_000), ("2m", 120_000_000)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "s", "-1s", "1d", "1e99s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_are_shown_with_their_units() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [640.0, 1536.0, 15_360.0, 209_715_200.0].map(bytes),
            ["640 B", "1.50 KiB", "15.0 KiB", "200 MiB"]
        );
        assert_eq!([12.5, 1_200.0, 3e6].map(micros), ["12.5us", "1.20ms", "3.00s"]);
        let spans = [1_500, 8_000, 245_000, 7_800_000].map(|millis| span(Duration::from_millis(millis)));
        assert_eq!(spans, ["1.5 s", "8 s", "4 m 05 s", "2 h 10 m"]);
    }
}
