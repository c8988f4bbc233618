//! Sizes as people write them: IEC units, whole numbers.

/// Parses `4096`, `4KiB`, `10GiB` (also `K`, `M`, `G`, `T` for short).
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 =
        text[..digits].parse().map_err(|_| format!("`{text}` is not a size; write 4KiB, 512MiB, 10GiB"))?;
    let unit: u64 = match &text[digits..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        other => return Err(format!("`{other}` is no unit; use B, KiB, MiB, GiB or TiB")),
    };
    number.checked_mul(unit).ok_or_else(|| format!("`{text}` is too large"))
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
    fn sizes_are_read_in_iec_units_and_nothing_else() {
        assert_eq!(parse("4KiB"), Ok(4096));
        assert_eq!(parse("64TiB"), Ok(64 << 40));
        assert_eq!(parse("7"), Ok(7));
        assert!(parse("4KB").is_err());
        assert!(parse("GiB").is_err());
        assert!(parse("99999999TiB").is_err());
        assert_eq!(show(4 << 30), "4 GiB");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
