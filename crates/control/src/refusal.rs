//! Builds the refusals of a metadata server: the failure, then the remedy of its code.

use types::codes;
use types::control::Refusal;

/// Returns a refusal: what failed and why, followed by the remedy of the code.
///
/// # Panics
/// When the code is not in the registry.
pub fn refuse(code: u32, what: impl std::fmt::Display) -> Refusal {
    let row = codes::lookup(code);
    assert!(row.is_some(), "{} is not registered", codes::label(code));
    Refusal { code, message: format!("{what}; {}", row.map_or("", |row| row.fix)) }
}

#[cfg(test)]
mod tests {
    use super::{codes, refuse};

    #[test]
    fn a_refusal_says_what_failed_and_what_to_do() {
        assert_eq!(
            refuse(codes::POOL_UNKNOWN, "pool \"x\" does not exist").message,
            "pool \"x\" does not exist; list pools with `basalt pool ls`"
        );
    }
}
