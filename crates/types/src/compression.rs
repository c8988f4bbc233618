//! Compression of the data of backups.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Compression of a backup. A pool has one for the backups of its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Bytes as they are.
    None,
    /// zstd, level 3; data that does not get smaller stays as it is.
    #[default]
    Zstd,
}

impl Compression {
    /// Returns the name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Zstd => "zstd",
        }
    }

    /// Whether it is the default.
    pub fn is_default(&self) -> bool {
        *self == Compression::default()
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let found = [Compression::None, Compression::Zstd].into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| format!("`{text}` is neither none nor zstd"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused() {
        for one in [Compression::None, Compression::Zstd] {
            assert_eq!(one.name().parse(), Ok(one));
        }
        assert!("gzip".parse::<Compression>().unwrap_err().contains("neither none nor zstd"));
        assert!("".parse::<Compression>().is_err());
    }
}
