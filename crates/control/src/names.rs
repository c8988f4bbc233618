//! Names of pools and volumes.

use crate::refusal::refuse;
use types::codes;
use types::control::Refusal;
use types::limits::NAME_LEN_MAX;

/// Whether `name` is a legal name of a pool or a volume: `[a-z0-9][a-z0-9._-]{0,62}`.
pub fn is_valid(name: &str) -> bool {
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(b);
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= NAME_LEN_MAX
        && (bytes[0].is_ascii_lowercase() || bytes[0].is_ascii_digit())
        && bytes.iter().all(inner)
}

/// Returns `name` if it is legal; `what` is the kind of thing that it names.
///
/// # Errors
/// BSLT-2014.
pub fn checked<'a>(what: &str, name: &'a str) -> Result<&'a str, Refusal> {
    if is_valid(name) {
        return Ok(name);
    }
    let shown: String = name.chars().take(80).collect();
    Err(refuse(codes::BAD_NAME, format!("{shown:?} is not a valid name of a {what}")))
}

/// Splits `pool/volume`.
///
/// # Errors
/// BSLT-2014.
pub fn split(full: &str) -> Result<(&str, &str), Refusal> {
    let Some((pool, volume)) = full.split_once('/') else {
        let shown: String = full.chars().take(140).collect();
        return Err(refuse(codes::BAD_NAME, format!("{shown:?} is not of the form pool/volume")));
    };
    Ok((checked("pool", pool)?, checked("volume", volume)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_agreed_form_pass() {
        for good in ["a", "0", "rbd-1", "a.b_c-d", &"x".repeat(63)] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "-a", ".a", "A", "a/b", "a b", "ä", "a@s", &"x".repeat(64)] {
            assert!(!is_valid(bad), "{bad}");
            assert!(split(&format!("p/{bad}")).is_err(), "{bad}");
        }
        assert_eq!(split("p/v1"), Ok(("p", "v1")));
        assert!(split("pv1").is_err());
    }
}
