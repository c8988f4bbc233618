//! Three groups in one process: time moves by hand, the network and the disks are instant unless held.
//! The rig notes every step of its groups, from which `script` makes its traces.

use group::{Action, Group, GroupConfig, Origin};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::control::Attach;
use types::map::Member;
use types::store::{Crcs, DecisionState, Effect, HardState, Persist, Recovered, ReplicaIdentity};
use types::writers::Writers;
use types::{
    Entry, Epoch, GenerationId, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, SectorRange, SessionId, Term, Time,
    VolumeChunk, VolumeId,
};
use wire::{Contents, Message, RaftKind, RaftMsg, Reject, Reply, ReplyBody, Request, RequestBody};

pub const PG: PgId = PgId { pool: PoolId(2), n: 5 };
pub const CHUNK: VolumeChunk = VolumeChunk { volume: VolumeId(1), index: 0 };
pub const MS: u64 = 1_000_000;

pub fn ms(ms: u64) -> Time {
    Time(ms * MS)
}

/// Returns the identity and the decision state of a new replica. Replica ids exceed OSD ids by `above`.
pub fn fresh(pg: PgId, osd: u32, size: u32, above: u64) -> (ReplicaIdentity, DecisionState) {
    let member = |n: u32| Member { replica: ReplicaId(u64::from(n) + above), osd: OsdId(n) };
    let replica = member(osd).replica;
    let members = (1..=size).map(member).collect();
    let identity = ReplicaIdentity { pg, replica, conf_epoch: Epoch(1), members };
    let bytes = Group::fresh_decision(&identity);
    (identity, DecisionState { replica, index: Index(0), term: Term(0), bytes })
}

pub fn recovered(osd: u32, size: u32) -> Recovered {
    let (identity, checkpoint) = fresh(PG, osd, size, 0);
    Recovered {
        identity,
        hard_state: HardState::default(),
        checkpoint,
        before: (Index(0), Term(0)),
        entries: Vec::new(),
        lost: Vec::new(),
        failure: None,
        fills: false,
    }
}

/// Makes a group; all groups share `lease_reads`.
pub fn group(osd: u32, size: u32, now: Time, lease_reads: bool) -> Group {
    let config = GroupConfig { lease_reads, ..GroupConfig::new(OsdId(osd)) };
    Group::new(config, recovered(osd, size), now, u64::from(osd)).expect("a fresh replica")
}

/// Returns a raft message without entries, from a replica whose log is long.
pub fn raft_msg(kind: RaftKind, from: u64, to: u64, term: u64) -> RaftMsg {
    RaftMsg {
        pg: PG,
        from: ReplicaId(from),
        to: ReplicaId(to),
        term: Term(term),
        kind,
        log_term: Term(term - 1),
        index: Index(1000),
        commit: Index(0),
        commit_term: Term(0),
        reject: false,
        reject_hint: Index(0),
        context: Default::default(),
        entries: Vec::new(),
    }
}

/// One step of a group.
pub enum Step {
    /// A message of this OSD arrives, or is lost.
    Hears(u32, Message),
    Misses(u32, Message),
    /// A lease renewal of this OSD arrives, and the promise to it is renewed.
    Renews(u32),
    /// The disk has written everything up to this index.
    Durable(Index),
    Commits(Index),
    Does(Action),
}

pub struct Rig {
    pub now: u64,
    /// Steps of all groups, with time and OSD.
    pub steps: Vec<(u64, u32, Step)>,
    pub groups: BTreeMap<u32, Group>,
    /// Actions of the groups, without those that the rig itself performs.
    pub seen: Vec<(u32, Action)>,
    /// OSDs that neither receive nor send.
    pub deaf: BTreeSet<u32>,
    /// Directions, from one OSD to another, in which every message is lost.
    pub cut: BTreeSet<(u32, u32)>,
    /// Raft messages that were sent, in order.
    pub sent: Vec<RaftMsg>,
    /// While set, messages wait in `wire`: (from, to, message).
    pub hold_net: bool,
    pub wire: VecDeque<(u32, u32, Message)>,
    /// While set, disks do not answer; tickets wait here.
    pub hold_disks: bool,
    pub held: Vec<(u32, u64)>,
    payloads: BTreeMap<(u32, Index, Term), (IoBuf, Crcs)>,
    next_id: u64,
}

impl Rig {
    pub fn new(size: u32, lease_reads: bool) -> Rig {
        let groups = (1..=size).map(|osd| (osd, group(osd, size, ms(0), lease_reads))).collect();
        Rig {
            now: 0,
            steps: Vec::new(),
            groups,
            seen: Vec::new(),
            deaf: BTreeSet::new(),
            cut: BTreeSet::new(),
            sent: Vec::new(),
            hold_net: false,
            wire: VecDeque::new(),
            hold_disks: false,
            held: Vec::new(),
            payloads: BTreeMap::new(),
            next_id: 1,
        }
    }

    /// Makes a rig whose first replica leads, holds a lease, and has volume 1 attached to session 1.
    pub fn led(size: u32, lease_reads: bool) -> Rig {
        let mut rig = Rig::new(size, lease_reads);
        rig.advance(150);
        assert!(rig.groups[&1].is_leader(), "the first voter campaigns first");
        rig.list(1);
        rig.attach(1, 1, 1);
        rig.seen.clear();
        rig.sent.clear();
        rig
    }

    pub fn at(&self) -> Time {
        ms(self.now)
    }

    pub fn call<T>(&mut self, osd: u32, f: impl FnOnce(&mut Group, Time, &mut Vec<Action>) -> T) -> T {
        let now = self.at();
        let mut actions = Vec::new();
        let group = self.groups.get_mut(&osd).expect("it is on the table");
        let before = group.commit();
        let out = f(group, now, &mut actions);
        let commit = group.commit();
        if commit != before {
            self.steps.push((self.now, osd, Step::Commits(commit)));
        }
        self.perform(osd, actions);
        out
    }

    /// Whether a message from one OSD to another is lost.
    fn loses(&self, from: u32, to: u32) -> bool {
        let deaf = self.deaf.contains(&from) || self.deaf.contains(&to);
        deaf || self.cut.contains(&(from, to)) || !self.groups.contains_key(&to)
    }

    fn perform(&mut self, osd: u32, actions: Vec<Action>) {
        for action in actions {
            self.steps.push((self.now, osd, Step::Does(action.clone())));
            match action {
                Action::Persist(persist) => self.persist(osd, persist),
                Action::Send { to, message } => {
                    if let Message::LeaseRelease(_) = &message {
                        self.seen.push((osd, Action::Send { to, message: message.clone() }));
                    }
                    self.carry(osd, to.0, message);
                }
                other => self.seen.push((osd, other)),
            }
        }
    }

    fn persist(&mut self, osd: u32, persist: Persist) {
        for Entry { index, term, payload, crcs, .. } in persist.entries {
            self.payloads.insert((osd, index, term), (payload, crcs));
        }
        self.held.push((osd, persist.ticket));
    }

    fn carry(&mut self, from: u32, to: u32, mut message: Message) {
        if let Message::Raft(msg) = &mut message {
            for entry in &mut msg.entries {
                let (payload, crcs) = &self.payloads[&(from, entry.index, entry.term)];
                (entry.payload, entry.crcs) = (payload.clone(), crcs.clone());
            }
            self.sent.push(msg.clone());
        }
        if self.hold_net {
            self.wire.push_back((from, to, message));
        } else {
            self.deliver(from, to, message);
        }
    }

    /// Hands a message to its receiver, unless it is lost.
    pub fn deliver(&mut self, from: u32, to: u32, message: Message) {
        if self.loses(from, to) {
            return self.steps.push((self.now, to, Step::Misses(from, message)));
        }
        self.steps.push((self.now, to, Step::Hears(from, message.clone())));
        let osd = OsdId(from);
        self.call(to, |g, now, actions| match message {
            Message::Raft(msg) => g.handle_raft(now, osd, msg, actions),
            Message::LeaseRelease(_) => g.handle_lease_release(now, osd, actions),
            Message::PassedOn(msg) => g.handle_passed_on(now, osd, &msg, actions),
            other => panic!("no group sends {other:?}"),
        });
    }

    /// Tells a group that its disk has written a batch, and everything before it.
    pub fn complete(&mut self, osd: u32, ticket: u64) {
        let at = self.steps.len();
        self.call(osd, |g, now, actions| g.handle_persisted(now, ticket, actions));
        self.steps.insert(at, (self.now, osd, Step::Durable(self.groups[&osd].durable_end())));
    }

    /// Stops a replica for good; the others notice that its connections close.
    pub fn crash(&mut self, osd: u32) {
        self.groups.remove(&osd);
        self.held.retain(|(of, _)| *of != osd);
        for other in self.groups.keys().copied().collect::<Vec<_>>() {
            self.call(other, |g, now, actions| g.handle_link(now, OsdId(osd), false, actions));
        }
    }

    /// Runs turns of all groups until none has anything to do.
    pub fn pump(&mut self) {
        loop {
            let before = (self.sent.len(), self.seen.len(), self.held.len());
            for osd in self.groups.keys().copied().collect::<Vec<_>>() {
                self.call(osd, |g, now, actions| g.poll(now, actions));
            }
            let mut moved = false;
            if !self.hold_disks {
                moved = !self.held.is_empty();
                for (osd, ticket) in std::mem::take(&mut self.held) {
                    self.complete(osd, ticket);
                }
            }
            if !moved && before == (self.sent.len(), self.seen.len(), self.held.len()) {
                break;
            }
        }
    }

    /// Advances time in steps of a millisecond.
    pub fn advance(&mut self, by: u64) {
        for _ in 0..by {
            self.now += 1;
            self.pump();
        }
    }

    /// Sends a lease renewal to all members and takes their acknowledgements; returns the members that renewed.
    pub fn list(&mut self, leader: u32) -> Vec<u32> {
        let now = self.at();
        let mut renewed = Vec::new();
        for osd in self.groups.keys().copied().filter(|osd| *osd != leader).collect::<Vec<_>>() {
            let item = self.groups[&leader].renewal_item_for(now, OsdId(osd));
            let Some((item, _)) = item.filter(|_| !self.loses(leader, osd)) else { continue };
            if self.call(osd, |g, now, actions| g.handle_renewal_item(now, OsdId(leader), item, true, actions)) {
                renewed.push(osd);
                self.steps.push((self.now, osd, Step::Renews(leader)));
                let filling = Contents::Filling { room_kib: u32::MAX, is_short: false };
                let contents = if self.groups[&osd].is_whole() { Contents::Whole } else { filling };
                if !self.loses(osd, leader) {
                    let told = (item.term, contents);
                    self.call(leader, |g, now, actions| g.handle_lease_ack(now, OsdId(osd), now, told, actions));
                }
            }
        }
        self.pump();
        renewed
    }

    pub fn attach(&mut self, leader: u32, order: u64, session: u64) {
        let (session, epoch) = (SessionId(session), Epoch(session));
        let volume = CHUNK.volume;
        let attach = Attach {
            order,
            volume,
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count: 4,
            len_epoch: 0,
            head: GenerationId::first_of(volume),
            base: None,
        };
        self.call(leader, |g, now, actions| g.handle_attach(now, attach, actions));
        self.pump();
    }

    pub fn request(&mut self, osd: u32, body: RequestBody) -> u64 {
        self.request_of(1, osd, body)
    }

    /// Sends a request of this session, whose epoch has the same number.
    pub fn request_of(&mut self, session: u64, osd: u32, body: RequestBody) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let request = Request { id, pg: PG, session: SessionId(session), epoch: Epoch(session), body };
        self.call(osd, |g, now, actions| g.handle_request(now, Origin(9), request, actions));
        id
    }

    pub fn write(&mut self, osd: u32, seq: u64) -> u64 {
        self.request(osd, write(seq))
    }

    /// Writes so many sectors of zeros, and runs turns.
    pub fn write_zeros(&mut self, osd: u32, seq: u64, sectors: u32) -> u64 {
        let range = SectorRange::new(0, sectors);
        let payload = IoBuf::zeros(range.len_bytes());
        let crcs = range.fragment_crcs(&payload);
        let id = self.request(osd, RequestBody::Write { chunk: CHUNK, range, seq, watermark: 0, crcs, payload });
        self.pump();
        id
    }

    pub fn read(&mut self, osd: u32) -> u64 {
        self.request(osd, RequestBody::Read { chunk: CHUNK, range: SectorRange::new(0, 1), snapshot: None })
    }

    /// Returns the answer to a request, if it has come; asserts that there is one at most.
    pub fn answer(&self, id: u64) -> Option<Result<ReplyBody, Reject>> {
        let mut answers = self.seen.iter().filter_map(|(_, action)| match action {
            Action::Reply { reply: Reply { id: of, result }, .. } if *of == id => Some(result.clone()),
            _ => None,
        });
        let first = answers.next();
        assert!(answers.next().is_none(), "request {id} was answered twice");
        first
    }

    /// Returns the reads that the engine was asked for and that are not finished here.
    pub fn engine_reads(&self, osd: u32) -> Vec<u64> {
        let of = |(by, action): &(u32, Action)| match action {
            Action::Read { read, .. } if *by == osd => Some(*read),
            _ => None,
        };
        self.seen.iter().filter_map(of).collect()
    }

    pub fn finish_read(&mut self, osd: u32, read: u64) {
        let body = ReplyBody::Data { crcs: types::CrcList::new(), payload: IoBuf::EMPTY };
        self.call(osd, |g, now, actions| g.handle_read_done(now, read, Ok(body), actions));
        self.pump();
    }

    /// Counts the writes that took effect at `osd`.
    pub fn landed(&self, osd: u32) -> usize {
        let lands = |action: &Action| matches!(action, Action::Apply { effect: Effect::Write { .. }, .. });
        self.seen.iter().filter(|(by, action)| *by == osd && lands(action)).count()
    }
}

pub fn write(seq: u64) -> RequestBody {
    let range = SectorRange::new(0, 1);
    let payload = IoBuf::copy_of(&[seq as u8; 512]);
    let crcs = range.fragment_crcs(&payload);
    RequestBody::Write { chunk: CHUNK, range, seq, watermark: 0, crcs, payload }
}
