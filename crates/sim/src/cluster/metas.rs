//! Metadata servers of a cluster: their starts and ends, and the streams that OSDs open to them.

use super::{Cluster, OsdNode};
use crate::mail::Mail;
use crate::meta::{Asked, Dialed, Fallen};
use control::find::{NAMED_AFTER, OSD_RETRY_AFTER};
use std::collections::BTreeSet;
use std::time::Duration;
use types::Time;
use types::codes;
use types::control::{ClientAnswer, OsdDown, Refusal};

const REDIAL: Duration = Duration::from_millis(100);

impl Cluster {
    /// Starts every metadata server that does not run.
    pub fn start_meta(&mut self) {
        self.meta.start(self.world.now(), &mut self.post);
    }

    /// Ends the process of the leading metadata server.
    pub fn stop_meta(&mut self) {
        if let Some(n) = self.meta.leader() {
            self.stop_meta_server(n);
        }
    }

    /// Ends the processes of all metadata servers.
    pub fn stop_metas(&mut self) {
        (0..self.meta.count()).for_each(|n| self.stop_meta_server(n));
    }

    /// Ends the process of one metadata server.
    pub fn stop_meta_server(&mut self, n: usize) {
        if !self.meta.runs(n) {
            return;
        }
        let now = self.world.now();
        let Fallen { streams, asks } = self.meta.crash(n);
        for (osd, stream) in streams {
            self.stream_lost(osd, stream);
        }
        for (client, life, id, ask, since) in asks {
            if self.meta.elects() {
                self.post.put(now + control::find::CLIENT_RETRY_AFTER, Mail::Ask { client, life, id, ask, since });
            } else {
                let refusal = Refusal { code: codes::META_UNAVAILABLE, message: "meta died".to_owned() };
                self.post.send(now, Mail::Answer { client, life, id, answer: ClientAnswer::Refused(refusal) });
            }
        }
    }

    /// Stops the process of a metadata server; it goes on with [`Cluster::resume_meta`].
    pub fn pause_meta(&mut self, n: usize) {
        self.meta.pause(n, self.world.now(), &mut self.post);
    }

    pub fn resume_meta(&mut self, n: usize) {
        let now = self.world.now();
        for mail in self.meta.resume(n, now, &mut self.post) {
            self.deliver(now, mail);
        }
    }

    /// Cuts a metadata server from these OSDs, and from the clients as well if so asked.
    pub fn cut_meta(&mut self, n: usize, osds: BTreeSet<usize>, clients: bool) {
        let now = self.world.now();
        self.meta.cut_off(n, osds, clients, now, (&mut self.rng, &mut self.post));
    }

    /// Sets how much the clock of a metadata server gains from now on, in parts per million.
    pub fn drift_meta(&mut self, n: usize, rate_ppm: i64) {
        self.meta.set_rate(n, self.world.now(), rate_ppm, &mut self.post);
    }

    pub(super) fn mend_metas(&mut self) {
        self.meta.spare();
        for n in 0..self.meta.count() {
            self.meta.heal(n);
            self.resume_meta(n);
        }
        self.start_meta();
    }

    pub(super) fn stream_lost(&mut self, osd: usize, stream: u64) {
        let elects = self.meta.elects();
        let node = &mut self.osds[osd];
        if node.stream != Some(stream) {
            return;
        }
        node.stream = None;
        if let Some((running, _)) = &mut node.running {
            running.meta_lost();
            let after = if elects { OSD_RETRY_AFTER } else { REDIAL };
            self.post.put(self.world.now() + after, Mail::Dial { osd, life: node.life });
        }
    }

    pub(super) fn dial(&mut self, now: Time, i: usize, life: u32) {
        let node = &mut self.osds[i];
        let Some((osd, _)) = &mut node.running else { return };
        if node.life != life || node.stream.is_some() {
            return;
        }
        // The OSD waits for meta's answer before it serves.
        let away = osd.stopped().is_some() || self.world.is_paused(node.node);
        if away || !self.meta.is_up() {
            self.post.put(now + REDIAL, Mail::Dial { osd: i, life });
            return;
        }
        let address = node.metas.take().expect("there are metadata servers");
        let (leader, after) = match self.meta.dial(&address, i) {
            Dialed::Open => {
                node.metas.failed(Some(address.clone()));
                return self.open_stream(i, &address);
            }
            Dialed::Follows(Some(leader)) => (Some(leader), NAMED_AFTER),
            Dialed::Follows(None) => (None, OSD_RETRY_AFTER),
            Dialed::Silent(timeout) => (None, timeout),
        };
        node.metas.failed(leader);
        self.post.put(now + after, Mail::Dial { osd: i, life });
    }

    fn open_stream(&mut self, i: usize, address: &str) {
        self.next_stream += 1;
        self.meta.open_stream(address, self.next_stream, i);
        let node = &mut self.osds[i];
        node.stream = Some(self.next_stream);
        let (osd, _) = node.running.as_mut().expect("it dials");
        osd.handle_control(OsdDown::Connected);
        self.turn_osd(i);
    }

    /// Delivers a message of the control plane between a metadata server and its store, or of itself.
    pub(super) fn deliver_to_meta(&mut self, now: Time, mail: Mail) {
        let post = &mut self.post;
        match mail {
            Mail::ToMeta { osd, stream, up } => self.meta.osd(now, osd, stream, up, post),
            Mail::StreamGone { stream } => {
                self.meta.stream_gone(now, stream, post);
                if let Some(osd) = self.osds.iter().position(|o| o.stream == Some(stream)) {
                    self.stream_lost(osd, stream);
                }
            }
            Mail::Ask { client, life, id, ask, since } => {
                if now == since || self.clients[client].is_in_life(life) {
                    self.meta.ask(now, Asked { client, life, id, since }, ask, post);
                }
            }
            Mail::Committed { meta, life } => self.meta.committed(now, (meta, life), post),
            Mail::MetaPoll { meta, life } => self.meta.poll_due(now, (meta, life), post),
            Mail::ToStore { meta, life, number, request, fate } => {
                self.meta.at_store(now, (meta, life), number, (request, fate), post);
            }
            Mail::FromStore { meta, life, number, reply } => {
                self.meta.replied(now, (meta, life), number, reply, post);
            }
            Mail::StoreSilent { meta, life, number } => self.meta.store_silent(now, (meta, life), number, post),
            Mail::MetaSilent { meta, pause } => {
                for (osd, stream) in self.meta.silent(meta, pause, now, post) {
                    self.stream_lost(osd, stream);
                }
            }
            other => unreachable!("{other:?} is for a node"),
        }
        if let Some(n) = self.meta.take_doomed() {
            self.stop_meta_server(n);
        }
    }

    /// Submits the command of an administrator.
    pub fn admin(&mut self, ask: control::admin::AdminAsk) {
        self.meta.admin(self.world.now(), ask, &mut self.post);
    }

    /// Submits a command whose success is asked for later; `None`: no server takes it.
    pub fn admin_followed(&mut self, ask: control::admin::AdminAsk) -> Option<u64> {
        self.meta.admin_followed(self.world.now(), ask, &mut self.post)
    }

    /// Returns how many OSDs have a stream to meta and a known address.
    pub fn osds_in_touch(&self) -> usize {
        let Some(records) = self.meta.records() else { return 0 };
        let known = |o: &&OsdNode| records.osds.get(&o.id).is_some_and(|r| r.addr.is_some());
        self.osds.iter().filter(|o| o.stream.is_some()).filter(known).count()
    }
}
