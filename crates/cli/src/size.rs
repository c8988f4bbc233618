//! Sizes in the notation of users: powers of 1024, with or without a fraction.
//!
//! A letter alone is a power of 1024, in either case, as `qemu-img` reads it: `1g` is `1GiB`. `GB` is refused. Some tools
//! mean 10^9 bytes by it and others 2^30, and a wrong size of a volume is noticed late.

/// Unit to which a fraction is rounded down.
const STEP: u128 = 4096;

const LETTERS: &str = "kmgtp";

/// Parses `4096`, `4KiB`, `10g`, `1.5GiB`, `.5T`.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let bad = || format!("`{text}` is not a size; write 4096, 4KiB, 1.5GiB, 10g");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.len() > 9 || fraction.contains('.') {
        return Err(bad());
    }
    let unit = bytes_of(text, number, unit)?;
    let digits =
        |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>().map(u128::from).map_err(|_| bad()) };
    let (whole, part) = (digits(whole)?, digits(fraction)?);
    let bytes = whole * unit + part * unit / 10u128.pow(fraction.len() as u32);
    let bytes = if part > 0 && bytes > STEP { bytes - bytes % STEP } else { bytes };
    u64::try_from(bytes).map_err(|_| format!("`{text}` is too large"))
}

fn bytes_of(text: &str, number: &str, unit: &str) -> Result<u128, String> {
    let unknown = || format!("unknown unit `{unit}` in `{text}`; use B, KiB, MiB, GiB, TiB, or k, m, g, t");
    let lower = unit.to_ascii_lowercase();
    if lower.is_empty() || lower == "b" {
        return Ok(1);
    }
    let (letter, suffix) = lower.split_at_checked(1).ok_or_else(unknown)?;
    let power = LETTERS.find(letter).ok_or_else(unknown)? as u32 + 1;
    match suffix {
        "" | "ib" => Ok(1 << (10 * power)),
        "b" => {
            let (letter, zeros) = (letter.to_uppercase(), "0".repeat(3 * power as usize));
            Err(format!(
                "`{unit}` means 1{zeros} bytes to some tools; write {number}{letter}iB (powers of 1024) or the number of bytes"
            ))
        }
        _ => Err(unknown()),
    }
}

/// Prints a size with the unit that reads best, and its bytes where that rounds.
pub fn show_exactly(bytes: u64) -> String {
    let shown = show(bytes);
    if parse(&shown) == Ok(bytes) { shown } else { format!("{shown} ({bytes} bytes)") }
}

/// Prints a size with the unit that reads best.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 { format!("{value:.0} {}", UNITS[unit]) } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_and_nothing_ambiguous() {
        for (text, bytes) in [
            ("4KiB", 4096),
            ("64TiB", 64 << 40),
            ("7", 7),
            ("512B", 512),
            ("10g", 10 << 30),
            ("1G", 1 << 30),
            ("10gib", 10 << 30),
            ("1.5GiB", 3 << 29),
            (".5GiB", 1 << 29),
            ("1 GiB", 1 << 30),
            ("0.1GiB", 107_372_544),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", ".", "GiB", "1.2.3g", "-1g", "1e9", "1x", "1gi", "99999999TiB", "1ä", "10GB", "4KB"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let why = parse("10GB").expect_err("ambiguous");
        assert!(why.contains("write 10GiB") && why.contains("1000000000 bytes"), "{why}");
        assert_eq!(show(4 << 30), "4 GiB");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
