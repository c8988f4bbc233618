//! Three replicas, a network, clients and faults, all from one seed.
//!
//! Streams keep their order and lose bytes only with their connection; with `datagrams` single messages are
//! lost, doubled and overtaken, which raft must survive too. Clocks run at rates within ±30 %.

use crate::client::{CHUNK, Client};
use crate::engine::Engine;
use crate::rig::{MS, fresh};
use crate::watch::Watch;
use group::descriptor::Command;
use group::{Action, Group, GroupConfig, Origin, Pairs};
use std::collections::BTreeMap;
use types::control::Attach;
use types::rng::Rng;
use types::store::Effect;
use types::writers::Writers;
use types::{Epoch, GenerationId, IoBufMut, OsdId, PgId, PoolId, SessionId, Time};
use wire::{Contents, Message, Reply, ReplyBody, Request};

pub const PG: PgId = PgId { pool: PoolId(1), n: 3 };

pub enum Event {
    Message { from: u32, to: u32, connection: u64, message: Message },
    Link { node: u32, life: u64, peer: u32, up: bool },
    Durable { node: u32, life: u64 },
    Read { node: u32, life: u64, read: u64, values: Vec<u64> },
    Request { node: u32, life: u64, client: usize, request: Request },
    Reply { client: usize, reply: Reply },
    Wake { node: u32, life: u64 },
    Restart { node: u32 },
    Clients,
    Cuts,
    Fills,
    Shrinks,
    Fill(crate::fills::Fill),
    Misfortune,
    Ambush { leader: u32, first: u32, dies: bool },
}

pub struct Node {
    pub group: Option<Group>,
    pub engine: Engine,
    pairs: Pairs,
    life: u64,
    /// Local clock = offset + rate ÷ 1000 × global.
    offset: u64,
    rate: u64,
    woken_at: u64,
    durable_at: u64,
    /// Events before this moment wait: the process is stopped.
    stopped_until: u64,
    disk_max: u64,
}

#[derive(Clone, Copy, Default)]
struct Pair {
    connection: u64,
    up: bool,
    /// Whether bytes vanish from the first to the second, and back.
    cut: [bool; 2],
    last_at: [u64; 2],
}

pub struct World {
    pub seed: u64,
    pub now: u64,
    pub rng: Rng,
    pub nodes: BTreeMap<u32, Node>,
    pub watch: Watch,
    pub clients: Vec<Client>,
    pub datagrams: bool,
    pub lease_reads: bool,
    /// Whether the loop tells a group that the OSD of its leader was heard: safety may not depend on it.
    hears_leaders: bool,
    pub quiet: bool,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pairs: BTreeMap<(u32, u32), Pair>,
    counter: u64,
    next_id: u64,
    next_order: u64,
    opening: Option<(u64, u64)>,
    opened: u64,
    pub cuts: crate::cuts::Cuts,
    pub fills: crate::fills::Counts,
    pub shrinks: crate::shrinks::Counts,
}

impl Node {
    pub fn life(&self) -> u64 {
        self.life
    }

    fn local(&self, global: u64) -> Time {
        Time(self.offset + global / 1000 * self.rate)
    }

    fn global(&self, local: Time) -> u64 {
        (local.0 - self.offset).div_ceil(self.rate) * 1000
    }
}

impl World {
    pub fn new(seed: u64, size: u32, datagrams: bool) -> World {
        let mut rng = Rng::new(seed);
        let mut nodes = BTreeMap::new();
        for osd in 1..=size {
            let (identity, decision) = fresh(PG, osd, size, 10);
            let node = Node {
                group: None,
                engine: Engine::new(identity, decision),
                pairs: Pairs::new(GroupConfig::new(OsdId(osd)).timing),
                life: 0,
                offset: rng.below(1 << 40),
                rate: rng.between(700, 1300),
                woken_at: u64::MAX,
                durable_at: 0,
                stopped_until: 0,
                disk_max: 3 * MS,
            };
            nodes.insert(osd, node);
        }
        let mut pairs = BTreeMap::new();
        for a in 1..=size {
            pairs.extend((a + 1..=size).map(|b| ((a, b), Pair::default())));
        }
        let mut world = World {
            seed,
            now: 0,
            lease_reads: !rng.chance(1, 5),
            hears_leaders: rng.chance(1, 2),
            rng,
            nodes,
            watch: Watch::default(),
            clients: (1..=size).map(Client::reader).collect(),
            datagrams,
            quiet: false,
            events: BTreeMap::new(),
            sequence: 0,
            pairs,
            counter: 0,
            next_id: 1,
            next_order: 1,
            opening: None,
            opened: 0,
            cuts: crate::cuts::Cuts::new(),
            fills: crate::fills::Counts::default(),
            shrinks: crate::shrinks::Counts::default(),
        };
        (1..=size).for_each(|n| world.start(n));
        world.at(0, Event::Clients);
        world.at(0, Event::Cuts);
        world.at(0, Event::Fills);
        world.at(0, Event::Shrinks);
        world
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time.max(self.now), self.sequence), event);
    }

    /// Runs until `end`.
    pub fn run_to(&mut self, end: u64) {
        while let Some(((time, _), event)) = self
            .events
            .first_key_value()
            .map(|(k, _)| *k)
            .and_then(|key| (key.0 <= end).then(|| (key, self.events.remove(&key).expect("it is the first"))))
        {
            self.now = time;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        let stopped = match &event {
            Event::Message { to: node, .. }
            | Event::Link { node, .. }
            | Event::Durable { node, .. }
            | Event::Read { node, .. }
            | Event::Request { node, .. }
            | Event::Fill(crate::fills::Fill { node, .. })
            | Event::Wake { node, .. } => self.nodes[node].stopped_until,
            _ => 0,
        };
        if stopped > self.now {
            return self.at(stopped, event);
        }
        match event {
            Event::Message { from, to, connection, message } => self.deliver(from, to, connection, message),
            Event::Link { node, life, peer, up } => self.turn(node, life, |group, pairs, now, actions| {
                pairs.handle_link(now, OsdId(peer), up);
                group.handle_link(now, OsdId(peer), up, actions);
            }),
            Event::Durable { node, life } => {
                if self.nodes[&node].life == life && self.nodes[&node].group.is_some() {
                    let ticket = self.nodes.get_mut(&node).expect("it exists").engine.complete();
                    self.turn(node, life, |group, _, now, actions| group.handle_persisted(now, ticket, actions));
                }
            }
            Event::Read { node, life, read, values } => {
                let mut payload = IoBufMut::zeroed(values.len() * 512);
                let sectors = payload.chunks_mut(512).zip(values);
                sectors.for_each(|(s, value)| s[..8].copy_from_slice(&value.to_le_bytes()));
                let body = ReplyBody::Data { crcs: types::CrcList::new(), payload: payload.freeze() };
                self.turn(node, life, |group, _, now, actions| group.handle_read_done(now, read, Ok(body), actions));
            }
            Event::Request { node, life, client, request } => {
                self.turn(node, life, |group, _, now, actions| {
                    group.handle_request(now, Origin(client as u64), request, actions);
                });
            }
            Event::Reply { client, reply } => {
                let now = self.now;
                self.clients[client].answered(now, reply, &mut self.watch);
            }
            Event::Wake { node, life } => {
                self.nodes.get_mut(&node).expect("it exists").woken_at = u64::MAX;
                self.turn(node, life, |_, _, _, _| {});
            }
            Event::Restart { node } => self.start(node),
            Event::Clients => self.tick_clients(),
            Event::Cuts => crate::cuts::tick(self),
            Event::Fills => crate::fills::tick(self),
            Event::Shrinks => crate::shrinks::tick(self),
            Event::Fill(fill) => crate::fills::go_on(self, fill),
            Event::Misfortune => crate::fate::strike(self),
            Event::Ambush { leader, first, dies } => crate::fate::spring(self, leader, first, dies),
        }
    }

    fn deliver(&mut self, from: u32, to: u32, connection: u64, message: Message) {
        if !self.datagrams && self.pairs[&(from.min(to), from.max(to))].connection != connection {
            return;
        }
        let life = self.nodes[&to].life;
        let hears_leaders = self.hears_leaders;
        let mut answer = None;
        self.turn(to, life, |group, pairs, now, actions| {
            let osd = OsdId(from);
            match message {
                Message::Raft(msg) => {
                    let leader_recently_heard =
                        hears_leaders && group.leader().is_some_and(|leader| pairs.has_heard_leader(now, leader, PG));
                    group.set_leader_recently_heard(leader_recently_heard);
                    group.handle_raft(now, osd, msg, actions);
                }
                Message::LeaseRenewal(renewal) => {
                    pairs.heard(now, osd, &renewal);
                    let renewed = renewal
                        .items
                        .iter()
                        .filter(|i| group.handle_renewal_item(now, osd, **i, renewal.full, actions));
                    let renewed: Vec<(PgId, Contents)> = renewed.map(|item| (item.pg, Contents::Whole)).collect();
                    answer = Some(Message::LeaseAck(Pairs::ack(&renewal, renewed.into_iter())));
                }
                Message::LeaseAck(ack) => {
                    for (_, term, contents) in ack.renewed {
                        group.handle_lease_ack(now, osd, Time(ack.sent_at), (term, contents), actions);
                    }
                }
                Message::LeaseRelease(_) => group.handle_lease_release(now, osd, actions),
                other => panic!("no node sends {other:?}"),
            }
        });
        if let Some(message) = answer {
            self.send(to, from, message);
        }
    }

    /// Runs one turn of a node's loop.
    pub fn turn(&mut self, id: u32, life: u64, event: impl FnOnce(&mut Group, &mut Pairs, Time, &mut Vec<Action>)) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        if node.life != life || node.group.is_none() {
            return;
        }
        let now = node.local(self.now);
        let group = node.group.as_mut().expect("it is alive");
        let mut actions = Vec::new();
        event(group, &mut node.pairs, now, &mut actions);
        loop {
            let group = self.nodes.get_mut(&id).and_then(|n| n.group.as_mut()).expect("it is alive");
            group.poll(now, &mut actions);
            if actions.is_empty() {
                break;
            }
            for action in std::mem::take(&mut actions) {
                self.perform(id, action);
            }
        }
        self.list(id, now);
        self.sleep(id);
    }

    fn list(&mut self, id: u32, now: Time) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        let mut due = Vec::new();
        node.pairs.poll(now, &mut due);
        let renewals = Pairs::renewals(now, &due, node.group.iter());
        for ((osd, _), renewal) in due.into_iter().zip(renewals) {
            self.send(id, osd.0, Message::LeaseRenewal(renewal));
        }
    }

    fn sleep(&mut self, id: u32) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        let group = node.group.as_ref().expect("it is alive").next_deadline();
        let deadline = group.min(node.pairs.next_deadline());
        if deadline == Time::NEVER {
            return;
        }
        let (at, life) = (node.global(deadline).max(self.now + 1000), node.life);
        if at < node.woken_at {
            node.woken_at = at;
            self.at(at, Event::Wake { node: id, life });
        }
    }

    fn perform(&mut self, id: u32, action: Action) {
        let now = self.now;
        let life = self.nodes[&id].life;
        let node = self.nodes.get_mut(&id).expect("it exists");
        match action {
            Action::Send { to, message } => self.send(id, to.0, message),
            Action::Persist(persist) => {
                node.engine.append(persist);
                let delay = self.rng.between(20_000, node.disk_max);
                node.durable_at = node.durable_at.max(now + delay);
                let at = node.durable_at;
                self.at(at, Event::Durable { node: id, life });
            }
            Action::Apply { index, effect, .. } => {
                let (entry_term, write) = node.engine.descriptor(index);
                let opens = node.engine.begins_cut(index);
                node.engine.apply(index, effect);
                self.watch.applies(id, index, entry_term, effect, write);
                if let Some(false) = opens {
                    self.watch.cut_open(index, false);
                }
            }
            Action::Tree { index, tree, changes, .. } => {
                let (entry_term, write) = node.engine.descriptor(index);
                let opens = node.engine.begins_cut(index);
                node.engine.set_tree(index, tree, &changes);
                self.watch.applies(id, index, entry_term, Effect::None, write);
                if let Some(opens) = opens {
                    self.watch.cut_open(index, opens);
                }
            }
            Action::Filled { ok, .. } => crate::fills::ended(self, ok),
            Action::Snapshots(answer) => crate::cuts::answered(self, answer),
            Action::Read { read, chunk, range, .. } => {
                let values = node.engine.read(chunk, range);
                let at = now + self.rng.between(10_000, if self.rng.clone().chance(1, 10) { 200 * MS } else { MS });
                self.at(at, Event::Read { node: id, life, read, values });
            }
            Action::Reply { origin, reply } => {
                let at = now + self.rng.between(20_000, 2 * MS);
                self.at(at, Event::Reply { client: origin.0 as usize, reply });
            }
            Action::Attached { order, result } => {
                if self.opening.is_some_and(|(_, asked)| asked == order) {
                    let (session, _) = self.opening.take().expect("it is some");
                    if result.is_ok() && session > self.opened {
                        self.opened = session;
                        self.clients.push(Client::new(session, self.nodes.len() as u32));
                    }
                }
            }
            Action::BecameLeader => {
                let term = node.group.as_ref().expect("it is alive").term();
                self.watch.leads(term, id);
            }
            Action::Serves | Action::LostLeadership | Action::MembersChanged | Action::Yielded { .. } => {}
            // Doubled and late rejections may make raft ask for a stream for a moment.
            Action::NeedsStream { .. } if self.datagrams => {}
            Action::NeedsStream { .. } => panic!("the world never trims what a replica lacks"),
            Action::Quarantined(reason) => panic!("seed {}: node {id} quarantined: {reason}", self.seed),
            Action::BadPeer { reason, .. } | Action::BadOrigin { reason, .. } => {
                panic!("seed {}: node {id}: {reason}", self.seed)
            }
            Action::Extents { .. } => panic!("no client asks for extents"),
        }
    }

    fn send(&mut self, from: u32, to: u32, mut message: Message) {
        let pair = self.pairs.get_mut(&(from.min(to), from.max(to))).expect("a pair of nodes");
        let way = usize::from(from > to);
        if !pair.up || pair.cut[way] {
            return;
        }
        if let Message::Raft(msg) = &mut message {
            let engine = &self.nodes[&from].engine;
            for entry in msg.entries.iter_mut().filter(|e| group::descriptor::payload_len(&e.descriptor) > 0) {
                // A newer term has overwritten the entry meanwhile: the message is void.
                let Some((payload, crcs)) = engine.payload(entry.index, entry.term) else { return };
                (entry.payload, entry.crcs) = (payload, crcs);
            }
        }
        let connection = pair.connection;
        let mut at = self.now + self.rng.between(50_000, 4 * MS);
        if self.datagrams && !self.quiet {
            if self.rng.chance(1, 25) {
                return;
            }
            if self.rng.chance(1, 25) {
                at += self.rng.below(400 * MS);
            }
            if self.rng.chance(1, 30) {
                let copy = message.clone();
                let later = at + self.rng.below(300 * MS);
                self.at(later, Event::Message { from, to, connection, message: copy });
            }
        } else {
            at = at.max(pair.last_at[way]);
            pair.last_at[way] = at;
        }
        self.at(at, Event::Message { from, to, connection, message });
    }

    fn tick_clients(&mut self) {
        let now = self.now;
        for client in 0..self.clients.len() {
            let start = !self.quiet && self.rng.chance(2, 3);
            let requests = self.clients[client].tick(
                now,
                start,
                self.opened,
                &mut self.counter,
                &mut self.next_id,
                &mut self.rng,
                &mut self.watch,
            );
            for (node, request) in requests {
                let life = self.nodes[&node].life;
                let at = now + self.rng.between(20_000, 2 * MS);
                self.at(at, Event::Request { node, life, client, request });
            }
        }
        let pace = self.rng.between(MS / 2, 4 * MS);
        self.at(now + pace, Event::Clients);
    }

    /// Opens the volume with a new owner: meta asks the present leader.
    pub fn open(&mut self) {
        self.attach(self.opened + 1);
    }

    /// Attaches another segment for the owner: the same record again, under a new order.
    pub fn attach_again(&mut self) {
        if self.opening.is_none() && self.opened > 0 {
            self.attach(self.opened);
        }
    }

    fn attach(&mut self, session: u64) {
        let leader = self.leader();
        let Some(id) = leader.filter(|_| self.opening.is_none() || self.rng.chance(1, 4)) else { return };
        let order = self.next_order;
        self.next_order += 1;
        self.opening = Some((session, order));
        let (volume, (len_epoch, chunk_count)) = (CHUNK.volume, crate::shrinks::length(order));
        let attach = Attach {
            order,
            volume,
            writers: Writers::one(SessionId(session), Epoch(session)),
            epoch: Epoch(session),
            chunk_count,
            len_epoch,
            head: GenerationId::first_of(volume),
            base: None,
        };
        let life = self.nodes[&id].life;
        self.turn(id, life, |group, _, now, actions| group.handle_attach(now, attach, actions));
    }

    pub fn leader(&self) -> Option<u32> {
        let leads = |node: &Node| node.group.as_ref().is_some_and(Group::is_leader);
        self.nodes.iter().filter(|(_, n)| leads(n)).map(|(id, _)| *id).last()
    }

    pub fn session_count(&self) -> u64 {
        self.opened
    }

    // ---- faults ----

    pub fn start(&mut self, id: u32) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        if node.group.is_some() {
            return;
        }
        node.life += 1;
        let life = node.life;
        let mut config = GroupConfig::new(OsdId(id));
        config.lease_reads = self.lease_reads;
        let (now, seed) = (node.local(self.now), self.rng.next_u64());
        node.pairs = Pairs::new(config.timing);
        node.group = Some(Group::new(config, node.engine.recover(), now, seed).expect("a sound disk"));
        (node.woken_at, node.durable_at, node.stopped_until) = (u64::MAX, 0, 0);
        self.turn(id, life, |_, _, _, _| {});
        let others: Vec<u32> = self.nodes.keys().copied().filter(|n| *n != id).collect();
        others.into_iter().for_each(|other| self.connect(id, other));
    }

    pub fn crash(&mut self, id: u32) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        if node.group.take().is_none() {
            return;
        }
        node.engine.crash(&mut self.rng);
        let others: Vec<u32> = self.nodes.keys().copied().filter(|n| *n != id).collect();
        others.into_iter().for_each(|other| self.disconnect(id, other));
    }

    pub fn connect(&mut self, a: u32, b: u32) {
        let alive = |n: u32| self.nodes[&n].group.is_some();
        let pair = self.pairs[&(a.min(b), a.max(b))];
        if !alive(a) || !alive(b) || pair.up || pair.cut != [false, false] {
            return;
        }
        let pair = self.pairs.get_mut(&(a.min(b), a.max(b))).expect("a pair of nodes");
        pair.up = true;
        pair.connection += 1;
        self.link(a, b, true);
    }

    pub fn disconnect(&mut self, a: u32, b: u32) {
        let pair = self.pairs.get_mut(&(a.min(b), a.max(b))).expect("a pair of nodes");
        if std::mem::take(&mut pair.up) {
            pair.connection += 1;
            self.link(a, b, false);
        }
    }

    fn link(&mut self, a: u32, b: u32, up: bool) {
        for (node, peer) in [(a, b), (b, a)] {
            let life = self.nodes[&node].life;
            let at = self.now + MS;
            self.at(at, Event::Link { node, life, peer, up });
        }
    }

    /// Lets bytes vanish, one way or both. A node may or may not notice it.
    pub fn cut(&mut self, a: u32, b: u32, cut: [bool; 2]) {
        self.pairs.get_mut(&(a.min(b), a.max(b))).expect("a pair of nodes").cut = cut;
    }

    pub fn heal(&mut self) {
        let keys: Vec<(u32, u32)> = self.pairs.keys().copied().collect();
        for (a, b) in keys {
            let pair = self.pairs.get_mut(&(a, b)).expect("it exists");
            if std::mem::take(&mut pair.cut) != [false, false] {
                self.disconnect(a, b);
            }
            self.connect(a, b);
        }
    }

    pub fn stop(&mut self, id: u32, for_ns: u64) {
        let until = self.now + for_ns;
        self.nodes.get_mut(&id).expect("it exists").stopped_until = until;
    }

    pub fn slow_disk(&mut self, id: u32, max: u64) {
        self.nodes.get_mut(&id).expect("it exists").disk_max = max;
    }

    pub fn checkpoint(&mut self, id: u32) {
        let node = self.nodes.get_mut(&id).expect("it exists");
        if let Some(group) = &node.group {
            node.engine.store_checkpoint(group.decision());
        }
        // There are no streams here, so no entry is trimmed that a replica's own disk lacks.
        let upto = self.nodes.values().map(|n| n.engine.checkpoint_index()).min().expect("nodes");
        let node = self.nodes.get_mut(&id).expect("it exists");
        let first = node.engine.trim(upto);
        if let Some(group) = &mut node.group {
            group.set_first_index(first);
        }
    }

    pub fn transfer(&mut self, from: u32, to: u32) {
        let life = self.nodes[&from].life;
        self.turn(from, life, |group, _, now, actions| group.handle_transfer(now, OsdId(to), actions));
    }

    /// Ends the storm: all faults heal, all operations end, all replicas agree.
    pub fn settle(&mut self) {
        self.quiet = true;
        let ids: Vec<u32> = self.nodes.keys().copied().collect();
        ids.iter().for_each(|id| {
            self.slow_disk(*id, 3 * MS);
            self.start(*id);
        });
        self.heal();
        let end = self.now + 20_000 * MS;
        while self.now < end && !self.is_settled() {
            let next = self.now + 100 * MS;
            self.run_to(next);
        }
        let states: Vec<_> = self
            .nodes
            .iter()
            .map(|(id, n)| {
                (*id, n.engine.applied, n.group.as_ref().map(|g| (g.term(), g.is_leader(), g.commit(), g.applied())))
            })
            .collect();
        assert!(self.is_settled(), "seed {}: not settled: {states:?}, last {}", self.seed, self.watch.last_index());
        let first = &self.nodes[&1].engine.sectors;
        assert!(self.nodes.values().all(|n| n.engine.sectors == *first), "replicas differ");
        let mut states = self.nodes.values().filter_map(|n| n.group.as_ref()).map(|group| group.decides());
        let decides = states.next().expect("all are alive");
        assert!(states.all(|other| other == decides), "replicas decide differently");
        let ready: Vec<u64> = self.watch.snapshots().map(|(id, _)| id).collect();
        let here: Vec<u64> = decides.tree.snapshots_of(CHUNK.volume).map(|(id, _)| id.0).collect();
        assert_eq!((here, decides.cuts.len()), (ready, 0), "the snapshots that are ready, and no others");
    }

    fn is_settled(&self) -> bool {
        let last = self.watch.last_index();
        self.clients.iter().all(Client::is_idle)
            && self.leader().is_some()
            && self.cuts.is_idle()
            && self.nodes.values().all(|n| n.engine.applied == last)
    }
}

/// Returns the write of a command, for the watch: (session, seq).
pub fn write_of(descriptor: &[u8]) -> Option<(u64, u64)> {
    match Command::decode(descriptor).expect("a known command") {
        Command::Write { stamp, .. } | Command::Zero { stamp, .. } => Some((stamp.session.0, stamp.seq)),
        _ => None,
    }
}
