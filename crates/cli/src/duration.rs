//! Times in the notation of users.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];

/// Parses `90s`, `10m`, `1h`, `2d`.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<Duration, String> {
    let seconds = control::settings::parse_seconds(text);
    seconds.map(Duration::from_secs).ok_or_else(|| format!("`{text}` is not a time; write 90s, 10m, 1h or 2d"))
}

/// Prints a time with its two largest units: `3 s`, `5 m 12 s`, `2 d 4 h`.
pub fn show(time: Duration) -> String {
    let seconds = time.as_secs();
    let at = UNITS.iter().rposition(|(_, unit)| seconds >= *unit).unwrap_or(0);
    let (name, unit) = UNITS[at];
    let first = format!("{} {name}", seconds / unit);
    match at.checked_sub(1).map(|below| UNITS[below]) {
        Some((name, below)) if seconds % unit / below > 0 => format!("{first} {} {name}", seconds % unit / below),
        _ => first,
    }
}

/// Prints a moment of the Unix clock, in UTC.
pub fn moment(unix_ms: u64) -> String {
    let (days, second) = (unix_ms / 86_400_000, unix_ms / 1000 % 86_400);
    let (year, month, day) = date(days);
    let (h, m, s, ms) = (second / 3600, second / 60 % 60, second % 60, unix_ms % 1000);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
}

/// Returns the Gregorian date of a day since 1970-01-01: H. Hinnant, "chrono-compatible low-level date algorithms",
/// civil_from_days.
fn date(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Returns the present time of the Unix clock.
#[allow(clippy::disallowed_methods, reason = "the edge: ages are shown to people")]
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_a_unit_and_shown_with_two() {
        assert_eq!(parse("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("2d"), Ok(Duration::from_secs(172_800)));
        for bad in ["", "1", "h", "1w", "-1h", "1.5h", "99999999999999999999d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(show(Duration::from_millis(900)), "0 s");
        assert_eq!(show(Duration::from_secs(312)), "5 m 12 s");
        assert_eq!(show(Duration::from_secs(3600)), "1 h");
        assert_eq!(show(Duration::from_secs(187_200)), "2 d 4 h");
    }

    #[test]
    fn moments_are_dates_in_utc() {
        assert_eq!(moment(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(moment(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(moment(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(moment(1_795_320_000_000), "2026-11-22T04:00:00.000Z");
    }
}
