//! The metadata server in the simulator: the real `control` over a store that survives crashes.
//!
//! A transaction is in the store from the moment it is committed. If a meta dies before it hears of that, the next one
//! finds the transaction.

use crate::mail::{Mail, Post};
use control::admin::{AdminAsk, OsdRegister};
use control::{
    ClientReq, Control, ControlAction, ControlConfig, Now, Records, Standing, StoredItem, StreamId, Token, Txn,
};
use std::collections::BTreeMap;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, OsdUp, Refusal};
use types::{ClusterId, OsdId, OsdUuid, Time};

/// The store: key → (version, bytes).
#[derive(Clone, Default)]
pub struct Store(BTreeMap<String, (u64, Vec<u8>)>);

impl Store {
    fn version(&self, key: &str) -> u64 {
        self.0.get(key).map_or(0, |(version, _)| *version)
    }

    fn commit(&mut self, txn: &Txn) -> bool {
        if !txn.checks.iter().all(|c| self.version(&c.key) == c.version) {
            return false;
        }
        for (key, value) in &txn.puts {
            let next = self.version(key) + 1;
            self.0.insert(key.clone(), (next, value.clone()));
        }
        for key in &txn.deletes {
            self.0.remove(key);
        }
        true
    }
}

/// A client, its life, and the id of its request.
type Waiting = (usize, u32, u64);

/// One meta and its store.
pub struct Meta {
    store: Store,
    config: ControlConfig,
    control: Option<Control>,
    pub life: u32,
    /// The OSD at the other end of each stream of this life.
    streams: BTreeMap<u64, usize>,
    /// The client that waits for each answer, by token.
    waiting: BTreeMap<u64, Waiting>,
    next_token: u64,
    pending: Option<Txn>,
    /// Time of the poll that is in the post; an earlier poll makes it stale.
    poll_at: Time,
}

impl Meta {
    pub fn new(cluster: ClusterId, config: ControlConfig) -> Meta {
        let mut store = Store::default();
        assert!(store.commit(&control::new_cluster(cluster, 0)), "an empty store takes everything");
        Meta {
            store,
            config,
            control: None,
            life: 0,
            streams: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_token: 0,
            pending: None,
            poll_at: Time::NEVER,
        }
    }

    pub fn is_up(&self) -> bool {
        self.control.is_some()
    }

    /// Starts from what the store holds.
    pub fn start(&mut self, now: Time, post: &mut Post) {
        let items = self.store.0.iter().map(|(key, (version, value))| StoredItem {
            key: key.clone(),
            version: *version,
            value: value.clone(),
        });
        let records = Records::load(items).expect("the store holds what control wrote");
        self.life += 1;
        self.poll_at = Time::NEVER;
        self.control = Some(Control::new(self.config, records, moment(now)));
        self.poll(now, post);
    }

    /// Ends the process. Returns the OSDs whose streams broke, and the clients that wait in vain.
    pub fn crash(&mut self) -> (Vec<(usize, u64)>, Vec<Waiting>) {
        self.control = None;
        // A transaction that was handed to the store is committed or not: half the time it is.
        if let Some(txn) = self.pending.take()
            && self.next_token.is_multiple_of(2)
        {
            self.store.commit(&txn);
        }
        let streams = std::mem::take(&mut self.streams).into_iter().map(|(s, osd)| (osd, s)).collect();
        (streams, std::mem::take(&mut self.waiting).into_values().collect())
    }

    /// Returns a copy of the store.
    pub fn copy(&self) -> Store {
        self.store.clone()
    }

    /// Replaces the store by an earlier copy. No meta runs.
    pub fn restore(&mut self, copy: Store) {
        assert!(!self.is_up(), "a store is exchanged under no running process");
        self.store = copy;
    }

    /// Returns the revision of the records; 0 when no meta runs.
    pub fn revision(&self) -> u64 {
        self.control.as_ref().map_or(0, |control| control.records().counters.revision)
    }

    /// Whether the leader would move no replica now.
    pub fn plans_no_move(&self, now: Time) -> bool {
        self.control.as_ref().is_some_and(|control| control.plans_no_move(moment(now)))
    }

    /// Returns the leader's judgement of its records; `None` when no meta runs.
    pub fn standing(&self) -> Option<Standing> {
        self.control.as_ref().map(Control::standing)
    }

    pub fn open_stream(&mut self, stream: u64, osd: usize) {
        self.streams.insert(stream, osd);
    }

    pub fn has_stream(&self, stream: u64) -> bool {
        self.streams.contains_key(&stream)
    }

    pub fn osd(&mut self, now: Time, stream: u64, up: OsdUp, post: &mut Post) {
        if let Some(control) = self.control.as_mut().filter(|_| self.streams.contains_key(&stream)) {
            control.handle_osd(moment(now), StreamId(stream), up);
            self.poll(now, post);
        }
    }

    pub fn stream_gone(&mut self, now: Time, stream: u64, post: &mut Post) {
        if self.streams.remove(&stream).is_some()
            && let Some(control) = &mut self.control
        {
            control.handle_osd_gone(StreamId(stream));
            self.poll(now, post);
        }
    }

    pub fn ask(&mut self, now: Time, (client, life, id): (usize, u32, u64), ask: ClientAsk, post: &mut Post) {
        let Some(control) = &mut self.control else {
            let refusal = Refusal { code: codes::META_UNAVAILABLE, message: "no meta answers".to_owned() };
            post.send(now, Mail::Answer { client, life, id, answer: ClientAnswer::Refused(refusal) });
            return;
        };
        self.next_token += 1;
        self.waiting.insert(self.next_token, (client, life, id));
        control.handle_client(ClientReq {
            token: Token(self.next_token),
            client: (client as u64) << 32 | u64::from(life),
            id,
            address: format!("client{client}"),
            ask,
        });
        self.poll(now, post);
    }

    /// Registers an OSD, as its format does. Ids are given out in the order of the calls.
    pub fn register(&mut self, now: Time, uuid: OsdUuid, osd: OsdId, capacity_bytes: u64, post: &mut Post) {
        let (rack, zone) = (String::new(), String::new());
        let ask =
            OsdRegister { osd: None, uuid, host: format!("host{}", osd.0), rack, zone, capacity_bytes, replaces: None };
        self.admin(now, AdminAsk::OsdRegister(ask), post);
    }

    /// Submits an administrator's command; its answer is dropped.
    pub fn admin(&mut self, now: Time, ask: AdminAsk, post: &mut Post) {
        if let Some(control) = &mut self.control {
            self.next_token += 1;
            control.handle_admin(Token(self.next_token), ask);
            self.poll(now, post);
        }
    }

    pub fn committed(&mut self, now: Time, life: u32, post: &mut Post) {
        if life != self.life {
            return;
        }
        let (Some(control), Some(txn)) = (&mut self.control, self.pending.take()) else { return };
        assert!(self.store.commit(&txn), "one meta writes, so its transactions never conflict");
        let mut out = Vec::new();
        control.handle_committed(&mut out);
        self.perform(now, out, post);
        self.poll(now, post);
    }

    /// Polls, if the posted poll is due.
    pub fn poll_due(&mut self, now: Time, life: u32, post: &mut Post) {
        if life == self.life && now >= self.poll_at {
            self.poll_at = Time::NEVER;
            self.poll(now, post);
        }
    }

    /// Polls until no action comes, then notes when to poll again.
    pub fn poll(&mut self, now: Time, post: &mut Post) {
        loop {
            let Some(control) = &mut self.control else { return };
            let mut out = Vec::new();
            control.poll(moment(now), &mut out);
            if out.is_empty() {
                let at = control.next_deadline(moment(now));
                let at = at.max(Time(now.0 + 1));
                if at < self.poll_at {
                    self.poll_at = at;
                    post.put(at, Mail::MetaPoll { meta_life: self.life });
                }
                return;
            }
            self.perform(now, out, post);
        }
    }

    fn perform(&mut self, now: Time, actions: Vec<ControlAction>, post: &mut Post) {
        for action in actions {
            match action {
                ControlAction::Commit(txn) => {
                    self.pending = Some(txn);
                    post.send(now, Mail::Committed { meta_life: self.life });
                }
                ControlAction::ToOsd { stream, down } => {
                    if let Some(osd) = self.streams.get(&stream.0) {
                        post.send(now, Mail::ToOsd { osd: *osd, stream: stream.0, down });
                    }
                }
                ControlAction::CloseOsd { stream } => {
                    self.streams.remove(&stream.0);
                    post.send(now, Mail::StreamGone { stream: stream.0 });
                }
                ControlAction::Answer { token, answer } => {
                    if let Some((client, life, id)) = self.waiting.remove(&token.0) {
                        post.send(now, Mail::Answer { client, life, id, answer });
                    }
                }
                ControlAction::AdminAnswer { .. } | ControlAction::Event(_) => {}
            }
        }
    }

    /// Returns the committed records; `None` while a transaction is on its way, or no meta runs.
    pub fn records(&self) -> Option<&Records> {
        self.control.as_ref().filter(|c| !c.is_committing()).map(Control::records)
    }
}

fn moment(now: Time) -> Now {
    Now { mono: now, wall_ms: 1_700_000_000_000 + now.0 / 1_000_000 }
}
