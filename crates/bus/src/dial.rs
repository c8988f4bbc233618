//! Dialling of each OSD: when to dial, and when to dial again.
//!
//! A failed or lost connection is dialled again after a wait that doubles from `backoff_min` to `backoff_max`. The seed
//! shortens it by up to half, so that the peers of a returning OSD do not all dial at once. A link that came up resets the
//! wait. A dial that the kernel does not answer is given up, but cannot be cancelled: a few of them may be outstanding,
//! then dialling waits for their end.

use crate::bus::{Bus, Timer};
use crate::config::{BusEvent, LinkId};
use crate::conn::{Conn, LinkError, Phase};
use env::{NetAddr, Op};
use std::net::SocketAddr;
use std::time::Duration;
use types::{OsdId, Time};
use wire::Peer;

/// Address and dial state of one OSD.
#[derive(Default)]
pub struct Route {
    addr: Option<SocketAddr>,
    wanted: bool,
    /// The connection that was dialled, in any phase.
    current: Option<LinkId>,
    /// The next wait; zero before the first.
    backoff: Duration,
    redial_at: Option<Time>,
    outstanding: u32,
    /// Longest silence of a client's link; zero: as configured.
    pub(crate) patience: Duration,
    /// Time at which a client's link was last silent for longer than `client_silence`.
    pub(crate) stalled_at: Time,
}

impl Bus {
    /// Whether this process dials the OSD, and not the other way round.
    fn dials(&self, osd: OsdId) -> bool {
        match self.config.identity.peer {
            Peer::Client(_) => true,
            Peer::Osd(me) => me > osd,
        }
    }

    pub(crate) fn keep(&mut self, osd: OsdId) {
        let route = self.routes.entry(osd).or_default();
        route.wanted = true;
        if route.current.is_none() && route.redial_at.is_none() {
            self.dial(osd);
        }
    }

    pub(crate) fn forget(&mut self, osd: OsdId) {
        if let Some(route) = self.routes.get_mut(&osd) {
            route.wanted = false;
            route.backoff = Duration::ZERO;
            if let Some(at) = route.redial_at.take() {
                self.timers.remove(&(at, Timer::Redial(osd)));
            }
            if let Some(link) = route.current {
                self.end(link, LinkError::Unwanted);
            }
        }
        if let Some(link) = self.link_to(osd) {
            self.end(link, LinkError::Unwanted);
        }
    }

    pub(crate) fn route_to(&mut self, osd: OsdId, addr: SocketAddr) {
        let route = self.routes.entry(osd).or_default();
        if route.addr == Some(addr) {
            return;
        }
        route.addr = Some(addr);
        if let Some(link) = route.current {
            self.end(link, LinkError::Moved);
        }
        self.routes.entry(osd).or_default().backoff = Duration::ZERO;
        self.schedule(osd, Duration::ZERO);
    }

    /// Sets the redial timer of an OSD, if it is wanted and this process dials it. There is at most one timer per OSD.
    fn schedule(&mut self, osd: OsdId, wait: Duration) {
        let dials = self.dials(osd);
        let Some(route) = self.routes.get_mut(&osd) else { return };
        if let Some(at) = route.redial_at.take() {
            self.timers.remove(&(at, Timer::Redial(osd)));
        }
        if route.wanted && dials && route.addr.is_some() && route.current.is_none() {
            let at = self.now + wait;
            route.redial_at = Some(at);
            self.timers.insert((at, Timer::Redial(osd)));
        }
    }

    /// Sets the redial timer after a failure.
    fn schedule_later(&mut self, osd: OsdId) {
        let (min, max) = (self.config.tuning.backoff_min, self.config.tuning.backoff_max);
        let Some(route) = self.routes.get_mut(&osd) else { return };
        let wait = route.backoff.clamp(min, max);
        route.backoff = wait * 2;
        let nanos = wait.as_nanos() as u64;
        let wait = Duration::from_nanos(self.rng.between(nanos / 2, nanos));
        self.schedule(osd, wait);
    }

    pub(crate) fn redial(&mut self, osd: OsdId, at: Time) {
        let route = self.routes.get_mut(&osd).expect("a timer goes with its route");
        assert_eq!(route.redial_at, Some(at), "a route has one timer");
        route.redial_at = None;
        self.dial(osd);
    }

    fn dial(&mut self, osd: OsdId) {
        if !self.dials(osd) {
            return;
        }
        let Some(route) = self.routes.get_mut(&osd) else { return };
        let (Some(addr), true) = (route.addr, route.wanted) else { return };
        assert!(route.current.is_none(), "one dialled connection an OSD");
        if route.outstanding >= self.config.tuning.dials_outstanding_max {
            return self.schedule_later(osd);
        }
        let link = self.conns.insert(Conn::new(None, Some(osd), Phase::Dialing { osd }));
        route.current = Some(link);
        route.outstanding += 1;
        self.stats.dials += 1;
        self.set_deadline(link, self.now + self.config.tuning.dial_timeout);
        self.ops.push(Op::Connect { token: self.token(link), addr: NetAddr::Tcp(addr) });
    }

    /// Notes that the env has answered a dial to this OSD, given up or not.
    pub(crate) fn dial_answered(&mut self, osd: OsdId) {
        let route = self.routes.get_mut(&osd).expect("routes are never removed");
        route.outstanding = route.outstanding.checked_sub(1).expect("each dial is answered once");
    }

    /// Notes that the dialled connection is up: the next loss begins with a short wait.
    pub(crate) fn route_is_up(&mut self, osd: OsdId) {
        self.routes.get_mut(&osd).expect("routes are never removed").backoff = Duration::ZERO;
    }

    /// Notes that the dialled connection is gone. `failed`: it never came up.
    pub(crate) fn lost_route(&mut self, osd: OsdId, why: &LinkError, failed: bool) {
        let route = self.routes.get_mut(&osd).expect("routes are never removed");
        route.current = None;
        if failed && !matches!(why, LinkError::Unwanted | LinkError::Moved) {
            let at = route.addr.map_or(String::new(), |addr| format!("{osd} at {addr}: "));
            self.out.push(BusEvent::Unreachable { osd, reason: format!("{at}{why}") });
        }
        self.schedule_later(osd);
    }
}
