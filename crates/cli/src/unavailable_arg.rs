//! The policy of an export for requests while the storage is unavailable, as users write it.

use client::OnUnavailable;

/// Parses `freeze`, `error`, `wait` and `wait=TIME`.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<OnUnavailable, String> {
    let (word, time) = text.split_once('=').map_or((text, None), |(word, time)| (word, Some(time)));
    match (word, time) {
        ("freeze", None) => Ok(OnUnavailable::Freeze),
        ("error", None) => Ok(OnUnavailable::Error),
        ("wait", None) => Ok(OnUnavailable::Wait(OnUnavailable::WAIT)),
        ("wait", Some(time)) => {
            let bound = crate::duration::parse(time)?;
            OnUnavailable::wait(bound).ok_or_else(|| format!("`{time}` is not within 5s and 7d"))
        }
        _ => Err(format!("`{text}` is no policy; write freeze, error, wait or wait=60s")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use client::OnUnavailable;
    use std::time::Duration;

    #[test]
    fn policy_is_a_word_and_a_wait_may_have_a_bound() {
        for (text, want) in [
            ("freeze", OnUnavailable::Freeze),
            ("error", OnUnavailable::Error),
            ("wait", OnUnavailable::Wait(Duration::from_secs(30))),
            ("wait=5s", OnUnavailable::Wait(Duration::from_secs(5))),
            ("wait=7d", OnUnavailable::Wait(Duration::from_secs(604_800))),
        ] {
            assert_eq!(parse(text), Ok(want), "{text}");
        }
        for wrong in ["", "Freeze", "wait=", "wait=4s", "wait=8d", "wait=30", "error=5s", "freeze=1m"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
