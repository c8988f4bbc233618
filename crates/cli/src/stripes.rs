//! Flags of `basalt volume create` that choose a stripe layout.

use types::stripe::{BadStripe, Stripe};

/// Parses a stripe unit.
///
/// # Errors
/// A sentence for the user.
pub fn unit(text: &str) -> Result<u64, String> {
    let unit = crate::size::parse(text)?;
    Stripe::new(unit, 1).map(|_| unit).map_err(|bad| bad.to_string())
}

/// Parses a stripe count.
///
/// # Errors
/// A sentence for the user.
pub fn count(text: &str) -> Result<u32, String> {
    let count = text.parse().map_err(|_| BadStripe::Count.to_string())?;
    Stripe::with_count(count).map(|_| count).map_err(|bad| bad.to_string())
}

/// Returns the layout that the parsed flags ask for.
///
/// # Panics
/// For values that the parsers refuse.
pub fn layout(unit: Option<u64>, count: Option<u32>) -> Stripe {
    let count = count.unwrap_or(1);
    let stripe = unit.map_or_else(|| Stripe::with_count(count), |unit| Stripe::new(unit, count));
    stripe.expect("the flags were checked as they were parsed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_flags_take_powers_of_two_within_their_limits() {
        assert_eq!([unit("64KiB"), unit("4k"), unit("16MiB")], [Ok(65536), Ok(4096), Ok(16 << 20)]);
        for bad in ["0", "2KiB", "32MiB", "96KiB"] {
            assert_eq!(unit(bad).unwrap_err(), "a stripe unit is a power of two from 4KiB to 16MiB", "{bad}");
        }
        assert_eq!([count("1"), count("64")], [Ok(1), Ok(64)]);
        for bad in ["0", "3", "128", "x"] {
            assert_eq!(count(bad).unwrap_err(), "a stripe count is a power of two from 1 to 64", "{bad}");
        }
    }

    #[test]
    fn stripe_count_alone_has_the_default_unit() {
        assert_eq!(layout(None, None), Stripe::NONE);
        assert_eq!(layout(None, Some(4)).unit_bytes(), 256 << 10);
        assert_eq!(layout(Some(65536), Some(4)).unit_bytes(), 65536);
        assert_eq!(layout(Some(65536), Some(1)), Stripe::NONE);
    }
}
