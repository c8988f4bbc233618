//! Ending connections at the request of their user, which found a peer's bytes wrong, or stops serving.

use crate::bus::Bus;
use crate::config::LinkId;
use crate::conn::LinkError;

impl Bus {
    /// Ends a connection whose peer broke a rule that the bus cannot check. `Down` follows with this reason.
    pub fn disconnect(&mut self, link: LinkId, reason: &str) {
        self.end(link, LinkError::Judged(reason.to_owned()));
    }

    /// Ends all connections; OSDs that are wanted are dialled again.
    pub fn disconnect_all(&mut self, reason: &str) {
        let links: Vec<LinkId> = self.peers.values().copied().collect();
        for link in links {
            self.disconnect(link, reason);
        }
    }
}
