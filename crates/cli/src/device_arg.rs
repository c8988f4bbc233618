//! The device of the kernel that an export is to serve, as users write it.

/// A device of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one that shows the volume already, or a free one.
    Auto,
    /// `/dev/nbdN`.
    Index(u32),
}

impl Wanted {
    /// Returns the path, as far as it is known.
    pub fn path(self) -> String {
        match self {
            Wanted::Auto => "a free /dev/nbdN".to_owned(),
            Wanted::Index(index) => format!("/dev/nbd{index}"),
        }
    }
}

/// Parses `auto`, `/dev/nbdN` and `nbdN`.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<Wanted, String> {
    if text == "auto" {
        return Ok(Wanted::Auto);
    }
    let number = text.strip_prefix("/dev/").unwrap_or(text).strip_prefix("nbd");
    let digits = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let index = digits.and_then(|digits| digits.parse().ok());
    index.map(Wanted::Index).ok_or_else(|| format!("`{text}` is no device; write auto, or /dev/nbdN with a number"))
}

#[cfg(test)]
mod tests {
    use super::{Wanted, parse};

    #[test]
    fn device_is_a_number_or_any() {
        assert_eq!(parse("auto"), Ok(Wanted::Auto));
        assert_eq!(parse("/dev/nbd0"), Ok(Wanted::Index(0)));
        assert_eq!(parse("nbd15"), Ok(Wanted::Index(15)));
        for wrong in
            ["", "nbd", "/dev/nbd", "/dev/nbd-1", "/dev/nbd+1", "nbd4294967296", "/dev/sda", "/dev/nbd0p1", "0"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
