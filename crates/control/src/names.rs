//! Names of pools, volumes and snapshots.

use crate::refusal::refuse;
use types::codes;
use types::control::Refusal;
use types::limits::NAME_LEN_MAX;

/// Whether `name` is a legal name of a pool, a volume or a snapshot: `[a-z0-9][a-z0-9._-]{0,62}`.
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

/// Splits `pool/volume@snapshot` into the name of the volume and that of the snapshot.
///
/// # Errors
/// BSLT-2014.
pub fn split_snapshot(full: &str) -> Result<(&str, &str), Refusal> {
    let Some((volume, snapshot)) = full.split_once('@') else {
        let shown: String = full.chars().take(140).collect();
        return Err(refuse(codes::BAD_NAME, format!("{shown:?} is not of the form pool/volume@snapshot")));
    };
    split(volume)?;
    Ok((volume, checked("snapshot", snapshot)?))
}

/// Splits `pool/volume`.
///
/// # Errors
/// BSLT-2014.
pub fn split(full: &str) -> Result<(&str, &str), Refusal> {
    let shown = || full.chars().take(140).collect::<String>();
    if full.contains('@') {
        return Err(refuse(codes::BAD_NAME, format!("{:?} names a snapshot; this takes a volume", shown())));
    }
    let Some((pool, volume)) = full.split_once('/') else {
        let shown = shown();
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
        assert_eq!(split_snapshot("p/v1@s.1"), Ok(("p/v1", "s.1")));
        for bad in ["p/v1", "p/v1@", "v1@s", "p/v1@S", "p/v1@a@b", "p/@s"] {
            assert!(split_snapshot(bad).is_err(), "{bad}");
        }
    }
}
