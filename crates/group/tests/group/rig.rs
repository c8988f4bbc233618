//! Three groups in one process: time moves by hand, the network and the disks are instant unless held.

use group::{Action, Group, GroupConfig, Origin};
use std::collections::{BTreeMap, BTreeSet};
use types::control::Attach;
use types::map::Member;
use types::store::{Crcs, DecisionState, Effect, HardState, Persist, Recovered, ReplicaIdentity};
use types::{
    ChunkKey, Entry, Epoch, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, SectorRange, SessionId, Term, Time, VolumeId,
};
use wire::{Message, RaftMsg, Reject, Reply, ReplyBody, Request, RequestBody};

pub const PG: PgId = PgId { pool: PoolId(2), n: 5 };
pub const CHUNK: ChunkKey = ChunkKey { volume: VolumeId(1), index: 0 };
pub const MS: u64 = 1_000_000;

pub fn ms(ms: u64) -> Time {
    Time(ms * MS)
}

pub fn recovered(osd: u32, size: u32) -> Recovered {
    let members: Vec<Member> = (1..=size).map(|n| Member { replica: ReplicaId(u64::from(n)), osd: OsdId(n) }).collect();
    let replica = ReplicaId(u64::from(osd));
    let identity = ReplicaIdentity { pg: PG, replica, lineage: 1, conf_epoch: Epoch(1), members };
    let bytes = Group::fresh_decision(&identity);
    Recovered {
        identity,
        hard_state: HardState::default(),
        checkpoint: DecisionState { replica, index: Index(0), term: Term(0), bytes },
        before: (Index(0), Term(0)),
        entries: Vec::new(),
        lost: Vec::new(),
        in_doubt: false,
        damage: None,
    }
}

/// Makes a group; all groups share `lease_reads`.
pub fn group(osd: u32, size: u32, now: Time, lease_reads: bool) -> Group {
    let config = GroupConfig { lease_reads, ..GroupConfig::new(OsdId(osd)) };
    Group::new(config, recovered(osd, size), now, u64::from(osd)).expect("a fresh replica")
}

pub struct Rig {
    pub now: u64,
    pub groups: BTreeMap<u32, Group>,
    /// Actions of the groups, without those that the rig itself performs.
    pub seen: Vec<(u32, Action)>,
    /// OSDs that neither receive nor send.
    pub deaf: BTreeSet<u32>,
    /// Raft messages that were sent, in order.
    pub sent: Vec<RaftMsg>,
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
            groups,
            seen: Vec::new(),
            deaf: BTreeSet::new(),
            sent: Vec::new(),
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
        let out = f(self.groups.get_mut(&osd).expect("it is on the table"), now, &mut actions);
        self.perform(osd, actions);
        out
    }

    fn perform(&mut self, osd: u32, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Persist(persist) => self.persist(osd, persist),
                Action::Send { to, message: Message::Raft(msg) } => self.carry(osd, to.0, msg),
                Action::Send { to, message: Message::LeaseRelease(pgs) } => {
                    let heard = !self.deaf.contains(&osd) && !self.deaf.contains(&to.0);
                    self.seen.push((osd, Action::Send { to, message: Message::LeaseRelease(pgs) }));
                    if heard {
                        self.call(to.0, |g, now, actions| g.handle_lease_release(now, OsdId(osd), actions));
                    }
                }
                Action::Send { to, message: Message::PassedOn(msg) } => {
                    if !self.deaf.contains(&osd) && !self.deaf.contains(&to.0) {
                        self.call(to.0, |g, now, actions| g.handle_passed_on(now, OsdId(osd), &msg, actions));
                    }
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

    fn carry(&mut self, from: u32, to: u32, mut msg: RaftMsg) {
        for entry in &mut msg.entries {
            let (payload, crcs) = &self.payloads[&(from, entry.index, entry.term)];
            (entry.payload, entry.crcs) = (payload.clone(), crcs.clone());
        }
        self.sent.push(msg.clone());
        if !self.deaf.contains(&from) && !self.deaf.contains(&to) {
            self.call(to, |g, now, actions| g.handle_raft(now, OsdId(from), msg, actions));
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
                    self.call(osd, |g, now, actions| g.handle_persisted(now, ticket, actions));
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
            let Some((item, _)) = item.filter(|_| !self.deaf.contains(&leader) && !self.deaf.contains(&osd)) else {
                continue;
            };
            if self.call(osd, |g, now, actions| g.handle_renewal_item(now, OsdId(leader), item, true, actions)) {
                renewed.push(osd);
                self.call(leader, |g, now, actions| g.handle_lease_ack(now, OsdId(osd), now, item.term, actions));
            }
        }
        self.pump();
        renewed
    }

    pub fn attach(&mut self, leader: u32, order: u64, session: u64) {
        let (session, epoch) = (SessionId(session), Epoch(session));
        let attach = Attach { order, volume: CHUNK.volume, session, epoch, chunk_count: 4 };
        self.call(leader, |g, now, actions| g.handle_attach(now, attach, actions));
        self.pump();
    }

    pub fn request(&mut self, osd: u32, body: RequestBody) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let request = Request { id, pg: PG, session: SessionId(1), epoch: Epoch(1), body };
        self.call(osd, |g, now, actions| g.handle_request(now, Origin(9), request, actions));
        id
    }

    pub fn write(&mut self, osd: u32, seq: u64) -> u64 {
        self.request(osd, write(seq))
    }

    pub fn read(&mut self, osd: u32) -> u64 {
        self.request(osd, RequestBody::Read { chunk: CHUNK, range: SectorRange::new(0, 1) })
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
        let body = ReplyBody::Data { crcs: Vec::new(), payload: IoBuf::EMPTY };
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
