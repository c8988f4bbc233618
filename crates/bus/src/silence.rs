//! Detection of silent links: bytes vanish on the way and no end gets an error.
//!
//! The kernel notices a peer whose host is gone, but not one behind a device that still answers for it. Between OSDs a
//! frame goes each way in every renewal, so silence by itself is the sign. A client gets messages only in answer to its own:
//! there the sign is silence while requests are in flight, and only the client checks. The OSD learns of it by the next link
//! of the same client. The end of a link that was only slow costs a dial: requests are repeated under their numbers.
//!
//! The client's sign does not depend on how long a request takes: while requests wait and no frame comes, the client's bus
//! sends pings, and the OSD's bus answers them by itself. A slow OSD answers; a dead path does not.
//!
//! Invariant: receiving moves no timer. A link's timer may be early, never late; when it is due, it is set again to the
//! moment at which the link would be silent.

use crate::bus::Bus;
use crate::config::LinkId;
use crate::conn::{LinkError, Phase};
use std::time::Duration;
use types::{OsdId, Time};
use wire::{Message, Peer};

impl Bus {
    /// Allows the next link to this OSD a longer silence than `max`.
    pub(crate) fn be_patient(&mut self, osd: OsdId, max: Duration) {
        let patience = (max * 2).min(self.config.tuning.client_silence_max);
        let now = self.now;
        let route = self.routes.get_mut(&osd).expect("routes are never removed");
        (route.patience, route.stalled_at) = (patience, now);
    }

    /// Returns the longest silence of a client's link. The least limit applies again when the link is heard `client_silence_calm` after the
    /// last silence that was longer than that.
    fn patience(&mut self, link: LinkId) -> Duration {
        let least = self.config.tuning.client_silence;
        let Some(conn) = self.conns.get(link) else { return least };
        let Some(route) = conn.dialled.and_then(|osd| self.routes.get_mut(&osd)) else { return least };
        if conn.heard >= route.stalled_at + self.config.tuning.client_silence_calm {
            route.patience = Duration::ZERO;
        }
        route.patience.max(least)
    }

    /// Checks a client's link on which requests wait and no bytes came since `since`.
    fn judge_client(&mut self, link: LinkId, since: Time) {
        let (max, pause) = (self.patience(link), self.config.tuning.ping_after);
        if since + max <= self.now {
            return self.end(link, LinkError::Silent(max));
        }
        let now = self.now;
        let conn = self.conns.get_mut(link).expect("it is judged");
        if since + self.config.tuning.client_silence <= now
            && let Some(route) = conn.dialled.and_then(|osd| self.routes.get_mut(&osd))
        {
            route.stalled_at = now;
        }
        let mut ping_at = conn.pinged.max(since) + pause;
        if ping_at <= self.now {
            conn.pinged = self.now;
            ping_at = self.now + pause;
            // While a send is in flight no ping is queued: the next check sends one.
            if !conn.tx.sending {
                self.send(link, Message::Ping { answer: false });
            }
        }
        self.set_deadline(link, ping_at.min(since + max));
    }

    /// Ends a link that is silent by now, or sets the time of the next check.
    pub(crate) fn judge_silence(&mut self, link: LinkId) {
        let Some(conn) = self.conns.get(link) else { return };
        let Phase::Up { agreed, credit } = &conn.phase else { return };
        let (max, since) = match (self.config.identity.peer, agreed.peer) {
            (Peer::Osd(_), Peer::Osd(_)) => (self.config.tuning.osd_silence, conn.heard),
            (Peer::Client(_), _) if credit.as_ref().is_some_and(|credit| !credit.is_idle()) => {
                return self.judge_client(link, conn.heard.max(conn.asked));
            }
            _ => return self.set_deadline(link, Time::NEVER),
        };
        match since + max {
            due if due <= self.now => self.end(link, LinkError::Silent(max)),
            due => self.set_deadline(link, due),
        }
    }
}
