//! Links that have fallen silent: bytes vanish on the way and neither end is told.
//!
//! The kernel notices a peer whose host is gone; not one behind something that still answers for it. Between OSDs a
//! frame goes each way in every renewal, so silence by itself is the sign. A client is answered when it asks: there the
//! sign is silence while requests are in flight, and only the client judges; an OSD hears of it by the next link of
//! the same client. The end of a link that was only slow costs a dial: requests are repeated under their numbers.
//!
//! Invariant: receiving moves no timer. A link's timer may be early, never late; when it is due, it is asked anew when
//! the link would be silent.

use crate::bus::Bus;
use crate::config::LinkId;
use crate::conn::{LinkError, Phase};
use types::Time;
use wire::Peer;

impl Bus {
    /// Ends a link that is silent by now, or sets the moment at which it is to be judged again.
    pub(crate) fn judge_silence(&mut self, link: LinkId) {
        let Some(conn) = self.conns.get(link) else { return };
        let Phase::Up { agreed, credit } = &conn.phase else { return };
        let (max, since) = match (self.config.identity.peer, agreed.peer) {
            (Peer::Osd(_), Peer::Osd(_)) => (self.config.osd_silence, conn.heard),
            (Peer::Client(_), _) if credit.as_ref().is_some_and(|credit| !credit.is_idle()) => {
                (self.config.client_silence, conn.heard.max(conn.asked))
            }
            _ => return self.set_deadline(link, Time::NEVER),
        };
        match since + max {
            due if due <= self.now => self.end(link, LinkError::Silent(max)),
            due => self.set_deadline(link, due),
        }
    }
}
