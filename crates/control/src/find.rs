//! The search for the leading metadata server, as OSDs, clients and commands make it: which address is tried next, when, and how
//! long a request waits.

use std::time::Duration;
use types::control::ClientAsk;

/// Pause of a client before it sends a request again; of an OSD before it opens its stream again.
pub const CLIENT_RETRY_AFTER: Duration = Duration::from_millis(150);
pub const OSD_RETRY_AFTER: Duration = Duration::from_millis(200);
/// The same when the leader was named.
pub const NAMED_AFTER: Duration = Duration::from_millis(10);

/// Addresses of the metadata servers, in turn; a leader that was named comes first.
#[derive(Clone, Debug, Default)]
pub struct Finder {
    addrs: Vec<String>,
    next: usize,
    named: Option<String>,
}

impl Finder {
    pub fn new(addrs: Vec<String>) -> Finder {
        Finder { addrs, next: 0, named: None }
    }

    /// Returns how many addresses there are.
    pub fn count(&self) -> usize {
        self.addrs.len()
    }

    /// Returns the address to try now; `None` when none is known.
    pub fn take(&mut self) -> Option<String> {
        if let Some(named) = self.named.take() {
            return Some(named);
        }
        let addr = self.addrs.get(self.next)?.clone();
        self.next = (self.next + 1) % self.addrs.len();
        Some(addr)
    }

    /// Notes that the server that was tried does not lead; `leader`: the one that it named.
    pub fn failed(&mut self, leader: Option<String>) {
        self.named = leader;
    }
}

/// Returns how long a request may go without an answer; `None` is unlimited (I/O waits for its segment).
pub fn patience(ask: &ClientAsk) -> Option<Duration> {
    match ask {
        ClientAsk::Segments { .. } => None,
        ClientAsk::Open { .. } => Some(Duration::from_secs(60)),
        ClientAsk::Refresh { .. } | ClientAsk::Keepalive { .. } => Some(Duration::from_secs(5)),
        ClientAsk::Close { .. } => Some(Duration::from_secs(10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_leader_comes_before_the_next_address_and_once() {
        assert_eq!(Finder::default().take(), None);
        let mut finder = Finder::new(["a", "b"].map(str::to_owned).into());
        let mut take = |named: Option<&str>| {
            finder.failed(named.map(str::to_owned));
            finder.take().expect("there are addresses")
        };
        let taken = [None, None, Some("c"), None, Some("b"), None].map(&mut take);
        assert_eq!(taken, ["a", "b", "c", "a", "b", "b"]);
    }
}
