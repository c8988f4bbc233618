//! Messages of the control plane in flight: delayed by seed, in order on each route, gone when an end dies.

use crate::meta::Fate;
use control::ControlAction;
use control::etcd::{Reply, Request};
use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdUp};
use types::rng::Rng;

/// One message, with where it goes.
#[derive(Debug)]
pub enum Mail {
    /// From OSD `osd`, on its stream.
    ToMeta {
        osd: usize,
        stream: u64,
        up: OsdUp,
    },
    /// The OSD's stream broke.
    StreamGone {
        stream: u64,
    },
    ToOsd {
        osd: usize,
        stream: u64,
        down: OsdDown,
    },
    /// OSD `osd` tries to open a stream.
    Dial {
        osd: usize,
        life: u32,
    },
    Ask {
        client: usize,
        life: u32,
        id: u64,
        ask: ClientAsk,
        /// When the client asked first.
        since: Time,
    },
    Answer {
        client: usize,
        life: u32,
        id: u64,
        answer: ClientAnswer,
    },
    /// The store of the only meta has committed its transaction.
    Committed {
        meta: usize,
        life: u32,
    },
    MetaPoll {
        meta: usize,
        life: u32,
    },
    /// A request of a meta to its etcd, and what becomes of it.
    ToStore {
        meta: usize,
        life: u32,
        number: u64,
        request: Request,
        fate: Fate,
    },
    FromStore {
        meta: usize,
        life: u32,
        number: u64,
        reply: Reply,
    },
    /// The time for the reply is over.
    StoreSilent {
        meta: usize,
        life: u32,
        number: u64,
    },
    /// A meta that stands still has been silent for so long that its connections break.
    MetaSilent {
        meta: usize,
        pause: u64,
    },
}

/// All messages in flight, by due time.
pub struct Post {
    queue: BTreeMap<(Time, u64), Mail>,
    /// Last delivery on each route, so that a later message never overtakes.
    last: BTreeMap<Route, Time>,
    seq: u64,
    rng: Rng,
    delay_us: (u64, u64),
    factor: u32,
}

/// A way from one node to another: kind, and which of that kind.
type Route = (u8, usize);
const TO_OSD: u8 = 2;
const ASK: u8 = 3;
const ANSWER: u8 = 4;

fn route(mail: &Mail) -> Route {
    match mail {
        Mail::ToMeta { osd, .. } => (0, *osd),
        Mail::StreamGone { stream } => (1, *stream as usize),
        Mail::ToOsd { osd, .. } => (TO_OSD, *osd),
        Mail::Ask { client, .. } => (ASK, *client),
        Mail::Answer { client, .. } => (ANSWER, *client),
        Mail::Dial { osd, .. } => (5, *osd),
        Mail::Committed { meta, .. } => (6, *meta),
        Mail::MetaPoll { meta, .. } => (7, *meta),
        Mail::ToStore { meta, .. } => (8, *meta),
        Mail::FromStore { meta, .. } => (9, *meta),
        Mail::StoreSilent { meta, .. } => (10, *meta),
        Mail::MetaSilent { meta, .. } => (11, *meta),
    }
}

impl Post {
    pub fn new(rng: Rng) -> Post {
        Post { queue: BTreeMap::new(), last: BTreeMap::new(), seq: 0, rng, delay_us: (50, 3000), factor: 1 }
    }

    /// Sends a message after a drawn delay, behind everything sent before on the same route.
    pub fn send(&mut self, now: Time, mail: Mail) {
        let delay = Duration::from_micros(self.rng.between(self.delay_us.0, self.delay_us.1)) * self.factor;
        let route = route(&mail);
        let last = self.last.entry(route).or_insert(Time::ZERO);
        let at = (now + delay).max(*last);
        *last = at;
        self.put(at, mail);
    }

    /// Makes all later messages take `factor` times as long.
    pub fn slow(&mut self, factor: u64) {
        self.factor = u32::try_from(factor).expect("a small factor");
    }

    /// Holds meta's messages to this OSD until then.
    pub fn hold_osd(&mut self, osd: usize, until: Time) {
        self.hold((TO_OSD, osd), until);
    }

    /// Holds meta's answers to this client until then.
    pub fn hold_client(&mut self, client: usize, until: Time) {
        self.hold((ANSWER, client), until);
    }

    /// Holds the requests of this client to meta until then.
    pub fn hold_asks(&mut self, client: usize, until: Time) {
        self.hold((ASK, client), until);
    }

    /// Holds meta's answers to all clients until then.
    pub fn hold_answers(&mut self, until: Time) {
        (0..crate::cluster::CLIENTS).for_each(|client| self.hold_client(client, until));
    }

    /// Holds the messages of a route; present and later ones keep their order.
    fn hold(&mut self, held: Route, until: Time) {
        let early = self.queue.iter().filter(|((at, _), mail)| *at < until && route(mail) == held);
        let keys: Vec<(Time, u64)> = early.map(|(key, _)| *key).collect();
        for key in keys {
            let mail = self.queue.remove(&key).expect("it was just listed");
            self.put(until, mail);
        }
        let last = self.last.entry(held).or_insert(until);
        *last = until.max(*last);
    }

    /// Delivers a message at a fixed time.
    pub fn put(&mut self, at: Time, mail: Mail) {
        self.seq += 1;
        self.queue.insert((at, self.seq), mail);
    }

    pub fn next(&self) -> Option<Time> {
        self.queue.keys().next().map(|(at, _)| *at)
    }

    pub fn take_due(&mut self, now: Time) -> Option<Mail> {
        let key = *self.queue.keys().next().filter(|(at, _)| *at <= now)?;
        self.queue.remove(&key)
    }
}

/// Whether an action is a commit: everything behind it waits.
pub fn is_commit(action: &ControlAction) -> bool {
    matches!(action, ControlAction::Commit(_))
}
