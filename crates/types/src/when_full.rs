//! Policy of a volume for writes that find no space left in its pool.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Behaviour of a write while the pool has no space for it. Meta keeps the policy and tells the clients of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It waits as long as the client allows: 20 s unless a program says otherwise, then it fails.
    #[default]
    Client,
    /// It waits until there is space.
    Wait,
    /// It fails at once.
    Error,
}

impl WhenFull {
    /// Returns the longest wait of a write; `client`: the one that the client allows.
    pub fn longest_wait(self, client: Duration) -> Duration {
        match self {
            WhenFull::Client => client,
            WhenFull::Wait => Duration::MAX,
            WhenFull::Error => Duration::ZERO,
        }
    }

    /// Returns the name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            WhenFull::Client => "client",
            WhenFull::Wait => "wait",
            WhenFull::Error => "error",
        }
    }
}

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WhenFull {
    type Err = String;

    fn from_str(text: &str) -> Result<WhenFull, String> {
        let all = [WhenFull::Client, WhenFull::Wait, WhenFull::Error];
        let found = all.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of client, wait and error"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused() {
        for policy in [WhenFull::Client, WhenFull::Wait, WhenFull::Error] {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("freeze".parse::<WhenFull>().unwrap_err().contains("client, wait and error"));
        assert!("".parse::<WhenFull>().is_err());
    }
}
