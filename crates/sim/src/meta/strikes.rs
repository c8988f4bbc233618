//! Faults of one metadata server: its process dies or stands still, its clock drifts, and it is cut off.

use super::{Metas, SILENCE};
use crate::mail::{Mail, Post};
use std::collections::BTreeSet;
use std::time::Duration;
use types::Time;
use types::control::ClientAsk;
use types::rng::Rng;

/// Loss of a process that died.
pub struct Fallen {
    /// OSDs with their streams.
    pub streams: Vec<(usize, u64)>,
    /// Requests of clients: client, life, id, request, and when it was asked first.
    pub asks: Vec<(usize, u32, u64, ClientAsk, Time)>,
}

impl Metas {
    /// Ends the process of a server.
    pub fn crash(&mut self, n: usize) -> Fallen {
        self.settle_commit(n);
        let server = &mut self.servers[n];
        let mut asks: Vec<_> = std::mem::take(&mut server.waiting)
            .into_values()
            .map(|w| (w.client, w.life, w.id, w.ask, w.since))
            .collect();
        for mail in std::mem::take(&mut server.held) {
            if let Mail::Ask { client, life, id, ask, since } = mail {
                asks.push((client, life, id, ask, since));
            }
        }
        let streams = std::mem::take(&mut server.streams).into_iter().map(|(s, osd)| (osd, s)).collect();
        server.end();
        for (client, ..) in &asks {
            self.finders.entry(*client).and_modify(|finder| finder.failed(None));
        }
        Fallen { streams, asks }
    }

    /// Stops the process of a server, which goes on later. Returns the number of the pause.
    pub fn pause(&mut self, n: usize, now: Time, post: &mut Post) -> Option<u64> {
        let server = &mut self.servers[n];
        if server.leader.is_none() || server.paused.is_some() {
            return None;
        }
        self.pauses += 1;
        server.paused = Some(self.pauses);
        post.put(now + SILENCE, Mail::MetaSilent { meta: n, pause: self.pauses });
        Some(self.pauses)
    }

    /// Lets a process that stood still go on. Returns what has arrived meanwhile, to be delivered in this order.
    pub fn resume(&mut self, n: usize, now: Time, post: &mut Post) -> Vec<Mail> {
        let server = &mut self.servers[n];
        if server.paused.take().is_none() {
            return Vec::new();
        }
        let life = server.life;
        let at = Time(now.0 + 1);
        server.poll_at = server.poll_at.min(at);
        post.put(at, Mail::MetaPoll { meta: n, life });
        std::mem::take(&mut server.held)
    }

    /// Breaks the connections of a server that stands still since this pause. Returns the OSDs with their streams.
    pub fn silent(&mut self, n: usize, pause: u64, now: Time, post: &mut Post) -> Vec<(usize, u64)> {
        if self.servers[n].paused != Some(pause) {
            return Vec::new();
        }
        let mut held = std::mem::take(&mut self.servers[n].held);
        for mail in held.extract_if(.., |mail| matches!(mail, Mail::Ask { .. })) {
            post.put(now, mail);
        }
        self.servers[n].held = held;
        self.ask_again(n, now, post);
        let server = &mut self.servers[n];
        server.broken.extend(server.streams.keys());
        let streams: Vec<(usize, u64)> = server.streams.iter().map(|(stream, osd)| (*osd, *stream)).collect();
        // The server finds its streams broken when it goes on.
        server.held.extend(streams.iter().map(|(_, stream)| Mail::StreamGone { stream: *stream }));
        streams
    }

    /// Sets how much the clock of a server gains from now on, in parts per million.
    pub fn set_rate(&mut self, n: usize, now: Time, rate_ppm: i64, post: &mut Post) {
        self.servers[n].set_rate(now, rate_ppm);
        // Its timers are measured by another clock from now on.
        self.servers[n].poll_at = Time::NEVER;
        self.drive(n, now, post);
    }

    /// Cuts a server from the store.
    pub fn cut_store(&mut self, n: usize) {
        self.servers[n].cut.store = true;
    }

    /// Cuts a server from these OSDs, and from the clients as well if so asked. Each connection breaks some seconds later at most.
    pub fn cut_off(
        &mut self,
        n: usize,
        osds: BTreeSet<usize>,
        clients: bool,
        now: Time,
        (rng, post): (&mut Rng, &mut Post),
    ) {
        let server = &mut self.servers[n];
        let some = |rng: &mut Rng| Duration::from_micros(rng.below(SILENCE.as_micros() as u64));
        let struck: Vec<u64> = server.streams.iter().filter(|(_, osd)| osds.contains(osd)).map(|(s, _)| *s).collect();
        for stream in struck {
            server.broken.insert(stream);
            post.put(now + some(rng), Mail::StreamGone { stream });
        }
        server.cut.osds = osds;
        if clients {
            server.cut.clients = true;
            self.ask_again(n, now + some(rng), post);
        }
    }

    /// Ends every cut of a server.
    pub fn heal(&mut self, n: usize) {
        self.servers[n].cut = Default::default();
    }

    /// Whether the process of a server runs.
    pub fn runs(&self, n: usize) -> bool {
        self.servers[n].leader.is_some()
    }

    /// Ends the faults of the requests of all servers.
    pub fn spare(&mut self) {
        self.fates.clear();
    }
}
