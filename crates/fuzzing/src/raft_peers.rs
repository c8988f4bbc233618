//! Three groups and a faulty network: messages are delivered, lost, duplicated, altered and invented.
//!
//! Properties (R5): a group does not panic, whatever a peer sends. It may quarantine itself, and is silent from then
//! on. The requests to its engine stay sound: entries without a gap, and no rewrite of an applied entry. The commit
//! index lies inside the log, effects come in index order, and every write has a payload.

use crate::Verdict;
use crate::osd_peer::messages::{snapshot, snapshot_order};
use crate::source::Source;
use bytes::Bytes;
use group::descriptor::{Command, Stamp};
use group::{Action, Group, GroupConfig, Origin};
use std::collections::VecDeque;
use std::time::Duration;
use types::control::{Attach, Base};
use types::map::Member;
use types::store::{Crcs, DecisionState, Effect, HardState, Persist, Recovered, ReplicaIdentity};
use types::writers::Writers;
use types::{
    Entry, EntryKind, Epoch, GenerationId, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, SectorRange, SessionId,
    SnapshotId, Term, Time, VolumeChunk, VolumeId,
};
use wire::{Message, RaftKind, RaftMsg, RenewalItem, ReplyBody, Request, RequestBody, samples};

const PG: PgId = PgId { pool: PoolId(2), n: 5 };
const CHUNK: VolumeChunk = VolumeChunk { volume: VolumeId(1), index: 0 };
const MAIL_MAX: usize = 200;

fn identity(osd: u32) -> ReplicaIdentity {
    let members = (1..=3).map(|n| Member { replica: ReplicaId(u64::from(n)), osd: OsdId(n) }).collect();
    ReplicaIdentity { pg: PG, replica: ReplicaId(osd.into()), conf_epoch: Epoch(1), members }
}

/// One member: its group, and the state that its engine holds.
struct Seat {
    group: Option<Group>,
    entries: Vec<Entry>,
    hard_state: HardState,
    /// Index of the last effect that was applied since the start.
    applied: u64,
    tickets: VecDeque<u64>,
    reads: VecDeque<u64>,
    quarantined: bool,
}

impl Seat {
    fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    fn persist(&mut self, persist: Persist) {
        for entry in persist.entries {
            let index = entry.index.0;
            assert!(index > self.applied, "applied entry {index} is rewritten");
            assert!(index >= 1 && index <= self.last() + 1, "entry {index} after {}", self.last());
            self.entries.truncate(index as usize - 1);
            let before = self.entries.last().map_or(Term(0), |e| e.term);
            assert!(entry.term >= before, "terms fall");
            self.entries.push(entry);
        }
        if let Some(state) = persist.hard_state {
            let old = self.hard_state;
            assert!(state.term >= old.term && state.commit >= old.commit, "{state:?} after {old:?}");
            assert!(state.term > old.term || old.vote.is_none() || state.vote == old.vote, "a vote is changed");
            assert!(state.commit.0 <= self.last(), "commit {} of {}", state.commit, self.last());
            self.hard_state = state;
        }
        self.tickets.push_back(persist.ticket);
    }

    fn apply(&mut self, index: Index, effect: Effect) {
        assert_eq!(index.0, self.applied + 1, "effects come in order");
        assert!(index.0 <= self.last(), "{index} is applied and not in the log");
        if let Effect::Write { range, .. } = effect {
            let entry = &self.entries[index.0 as usize - 1];
            assert!(range.verify(&entry.payload, &entry.crcs.values), "{index} writes other bytes");
        }
        self.applied = index.0;
    }

    fn payload(&self, entry: &Entry) -> Option<(IoBuf, Crcs)> {
        let kept = self.entries.get((entry.index.0 as usize).checked_sub(1)?).filter(|k| k.term == entry.term)?;
        Some((kept.payload.clone(), kept.crcs.clone()))
    }
}

struct Table {
    now: Time,
    members: Vec<Seat>,
    mail: VecDeque<(u32, u32, RaftMsg)>,
    next_id: u64,
    /// Number of requests that were sent; each is answered at most once.
    asked: u64,
    answered: u64,
}

fn fresh(osd: u32, now: Time) -> Seat {
    let group = Group::new(GroupConfig::new(OsdId(osd)), recovered(osd, &[], HardState::default()), now, osd.into());
    Seat {
        group: Some(group.expect("a fresh replica starts")),
        entries: Vec::new(),
        hard_state: HardState::default(),
        applied: 0,
        tickets: VecDeque::new(),
        reads: VecDeque::new(),
        quarantined: false,
    }
}

fn recovered(osd: u32, entries: &[Entry], hard_state: HardState) -> Recovered {
    let identity = identity(osd);
    let bytes = Group::fresh_decision(&identity);
    let checkpoint = DecisionState { replica: identity.replica, index: Index(0), term: Term(0), bytes };
    let entries = entries.to_vec();
    Recovered {
        identity,
        hard_state,
        checkpoint,
        before: (Index(0), Term(0)),
        entries,
        lost: Vec::new(),
        failure: None,
        fills: false,
    }
}

impl Table {
    fn new() -> Table {
        let now = Time(1_000_000_000);
        let members = (1..=3).map(|osd| fresh(osd, now)).collect();
        Table { now, members, mail: VecDeque::new(), next_id: 1, asked: 0, answered: 0 }
    }

    fn call<T>(&mut self, osd: u32, f: impl FnOnce(&mut Group, Time, &mut Vec<Action>) -> T) -> Option<T> {
        let now = self.now;
        let mut actions = Vec::new();
        let out = f(self.members[osd as usize - 1].group.as_mut()?, now, &mut actions);
        self.perform(osd, actions);
        Some(out)
    }

    fn perform(&mut self, osd: u32, actions: Vec<Action>) {
        for action in actions {
            let member = &mut self.members[osd as usize - 1];
            let silent = !matches!(
                action,
                Action::Reply { .. } | Action::Attached { .. } | Action::Snapshots(_) | Action::LostLeadership
            );
            assert!(!(member.quarantined && silent), "a quarantined replica does {action:?}");
            match action {
                Action::Persist(persist) => member.persist(persist),
                Action::Apply { index, effect, .. } => member.apply(index, effect),
                Action::Tree { index, .. } => member.apply(index, Effect::None),
                Action::Send { to, message: Message::Raft(msg) } => self.post(osd, to.0, msg),
                Action::Read { read, .. } | Action::Extents { read, .. } => member.reads.push_back(read),
                Action::Quarantined(_) => member.quarantined = true,
                Action::Reply { .. } | Action::BadOrigin { .. } => self.answered += 1,
                _ => {}
            }
        }
    }

    fn post(&mut self, from: u32, to: u32, mut msg: RaftMsg) {
        for entry in &mut msg.entries {
            let Some((payload, crcs)) = self.members[from as usize - 1].payload(entry) else {
                self.call(from, |g, now, _| g.handle_unreadable(now, OsdId(to)));
                return;
            };
            (entry.payload, entry.crcs) = (payload, crcs);
        }
        if self.mail.len() < MAIL_MAX {
            self.mail.push_back((from, to, msg));
        }
    }

    fn deliver(&mut self, from: u32, to: u32, msg: RaftMsg) {
        if (1..=3).contains(&to) {
            self.call(to, |g, now, actions| g.handle_raft(now, OsdId(from), msg, actions));
        }
    }

    /// Sends a lease renewal from one member to another, and its acknowledgement.
    fn list(&mut self, source: &mut Source<'_>, from: u32, to: u32) {
        let honest = self.call(from, |g, now, _| g.renewal_item_for(now, OsdId(to))).flatten();
        let lies = source.byte() < 64;
        let Some((mut item, _)) = honest.or_else(|| lies.then(|| (self.invented_item(from, to), false))) else {
            return;
        };
        if lies {
            item.term = Term(source.number(item.term.0));
            item.commit = Index(source.number(item.commit.0));
        }
        let sent_at = self.now;
        let full = source.flag();
        let renewed = self.call(to, |g, now, actions| g.handle_renewal_item(now, OsdId(from), item, full, actions));
        if renewed == Some(true) || lies {
            let term = Term(if lies { source.number(item.term.0) } else { item.term.0 });
            let sent_at = if lies { Time(source.number(sent_at.0)) } else { sent_at };
            let told = (term, if lies { source.contents() } else { wire::Contents::Whole });
            self.call(from, |g, now, actions| g.handle_lease_ack(now, OsdId(to), sent_at, told, actions));
        }
    }

    fn invented_item(&self, from: u32, to: u32) -> RenewalItem {
        let (from, to) = (ReplicaId(from.into()), ReplicaId(to.into()));
        RenewalItem {
            pg: PG,
            from,
            to,
            term: self.members[to.0 as usize - 1].hard_state.term,
            commit: Index(0),
            complete: Index(0),
        }
    }

    /// Restarts a member from its log. Unanswered tickets count as durable, because this target tests peers, not disks.
    fn restart(&mut self, osd: u32) {
        let member = &mut self.members[osd as usize - 1];
        let start = recovered(osd, &member.entries, member.hard_state);
        (member.applied, member.quarantined) = (0, false);
        member.tickets.clear();
        member.reads.clear();
        let group = Group::new(GroupConfig::new(OsdId(osd)), start, self.now, osd.into());
        member.group = Some(group.unwrap_or_else(|error| panic!("a group cannot read its own log: {error:?}")));
    }

    fn request(&mut self, source: &mut Source<'_>, to: u32) {
        self.next_id += 1;
        let count = 1 + source.below(16);
        let range = SectorRange::new(source.below(64), count);
        let (seq, watermark) = (source.number(self.next_id), source.number(0));
        let body = match source.below(5) {
            0 => RequestBody::Read { chunk: CHUNK, range, snapshot: snapshot(source) },
            1 => RequestBody::Extents { chunk: CHUNK, range, snapshot: snapshot(source), since: snapshot(source) },
            2 => RequestBody::Zero { chunk: CHUNK, range, seq, watermark },
            3 => RequestBody::Skip { volume: CHUNK.volume, seq, watermark },
            _ => {
                let payload = IoBuf::copy_of(&vec![self.next_id as u8; range.len_bytes()]);
                let mut crcs = range.fragment_crcs(&payload);
                crcs[0] ^= u32::from(source.byte() > 250);
                RequestBody::Write { chunk: CHUNK, range, seq, watermark, crcs, payload }
            }
        };
        let (session, epoch) = (SessionId(source.number(1)), Epoch(source.number(1)));
        let request = Request { id: self.next_id, pg: PG, session, epoch, body };
        if self.members[to as usize - 1].group.is_some() && !self.members[to as usize - 1].quarantined {
            self.asked += 1;
            let origin = Origin(self.next_id);
            self.call(to, |g, now, actions| g.handle_request(now, origin, request, actions));
        }
    }

    fn attach(&mut self, source: &mut Source<'_>, to: u32) {
        if source.below(2) == 0 {
            let order = snapshot_order(source);
            self.call(to, |g, now, actions| g.handle_snapshot_order(now, order, actions));
            return;
        }
        self.next_id += 1;
        let attach = Attach {
            order: source.number(self.next_id),
            volume: VolumeId(1),
            writers: Writers::one(SessionId(1), Epoch(1)),
            epoch: Epoch(1),
            chunk_count: source.below(4),
            head: GenerationId(source.number(1)),
            base: (source.below(2) == 0).then(|| Base {
                volume: VolumeId(1),
                snapshot: SnapshotId(source.number(1)),
                to: GenerationId(source.number(1)),
            }),
            len_epoch: source.below(3),
        };
        self.call(to, |g, now, actions| g.handle_attach(now, attach, actions));
    }

    fn read_done(&mut self, source: &mut Source<'_>, osd: u32) {
        let read = self.members[osd as usize - 1].reads.pop_front().unwrap_or(source.number(0));
        self.call(osd, |g, now, actions| g.handle_read_done(now, read, Ok(ReplyBody::Done), actions));
    }

    fn persisted(&mut self, osd: u32) {
        if let Some(ticket) = self.members[osd as usize - 1].tickets.pop_front() {
            self.call(osd, |g, now, actions| g.handle_persisted(now, ticket, actions));
        }
    }

    /// Polls and delivers all messages for a while, so that a leader exists.
    fn run_honestly(&mut self, turns: u32) {
        for _ in 0..turns {
            self.now = self.now + Duration::from_millis(30);
            for osd in 1..=3 {
                self.call(osd, |g, now, actions| g.poll(now, actions));
                while !self.members[osd as usize - 1].tickets.is_empty() {
                    self.persisted(osd);
                }
            }
            for (from, to) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
                self.list(&mut Source::new(&[255]), from, to);
            }
            for _ in 0..self.mail.len() {
                let (from, to, msg) = self.mail.pop_front().expect("it was counted");
                self.deliver(from, to, msg);
            }
        }
    }

    /// Elects a leader, attaches a volume and writes to it.
    fn take_leadership(&mut self, writes: u32) {
        let leader = |table: &Table| (1..=3).find(|n| table.seat(*n).group.as_ref().is_some_and(Group::is_leader));
        for _ in 0..100 {
            self.run_honestly(1);
            if leader(self).is_some() {
                break;
            }
        }
        let leader = leader(self).expect("honest groups elect one of them");
        self.until_applied(leader, 1);
        self.attach(&mut Source::new(&[0, 3]), leader);
        self.until_applied(leader, 2);
        for _ in 0..writes {
            self.request(&mut Source::new(&[3, 8, 0, 0, 4]), leader);
            self.run_honestly(1);
        }
        self.run_honestly(2);
    }

    fn until_applied(&mut self, osd: u32, index: u64) {
        for _ in 0..30 {
            if self.seat(osd).applied >= index {
                return;
            }
            self.run_honestly(1);
        }
        panic!("honest groups commit");
    }

    fn seat(&self, osd: u32) -> &Seat {
        &self.members[osd as usize - 1]
    }

    fn step(&mut self, source: &mut Source<'_>) {
        let osd = 1 + source.below(3);
        let other = 1 + (osd + source.below(2)) % 3;
        match source.below(24) {
            0..=2 => drop(self.call(osd, |g, now, actions| g.poll(now, actions))),
            3..=5 => {
                if let Some((from, to, msg)) = self.mail.pop_front() {
                    self.deliver(from, to, msg);
                }
            }
            6 | 7 => {
                if let Some((from, to, mut msg)) = self.mail.pop_front() {
                    alter(source, &mut msg);
                    self.deliver(from, to, msg);
                }
            }
            8 => drop(self.mail.pop_front()),
            9 => {
                if let Some(first) = self.mail.front().cloned() {
                    self.mail.push_back(first);
                }
            }
            10 => self.now = self.now + Duration::from_millis(u64::from(source.byte()) * 4),
            11 | 12 => self.persisted(osd),
            13 => self.list(source, other, osd),
            14 => drop(self.call(osd, |g, now, actions| g.handle_lease_release(now, OsdId(other), actions))),
            15 => {
                let up = source.flag();
                self.call(osd, |g, now, actions| g.handle_link(now, OsdId(other), up, actions));
            }
            16 | 17 => self.request(source, osd),
            18 => self.attach(source, osd),
            19 | 20 => {
                let msg = self.invented(source, other, osd);
                self.deliver(other, osd, msg);
            }
            21 => match source.below(4) {
                0 => drop(self.call(osd, |g, now, actions| g.handle_transfer(now, OsdId(other), actions))),
                1 => {
                    let term = self.members[osd as usize - 1].hard_state.term.0;
                    let (term, commit) = (Term(source.number(term)), Index(source.number(term)));
                    let from = OsdId(other);
                    self.call(osd, |g, now, actions| g.handle_follower_stands(now, from, term, commit, actions));
                }
                2 => {
                    let (full, blocked) = (source.flag(), source.flag());
                    self.call(osd, |g, _, _| g.set_pressure(full, blocked));
                }
                _ => drop(self.call(osd, |g, now, _| g.handle_unreadable(now, OsdId(other)))),
            },
            22 => self.read_done(source, osd),
            _ if source.byte() > 200 => self.restart(osd),
            _ => self.run_honestly(1 + source.below(4)),
        }
    }

    /// Returns a message with values near the state of the receiver.
    fn invented(&self, source: &mut Source<'_>, from: u32, to: u32) -> RaftMsg {
        let member = &self.members[to as usize - 1];
        let (term, last) = (member.hard_state.term.0, member.last());
        let index = source.number(last);
        let index_term = |i: u64| member.entries.get((i as usize).wrapping_sub(1)).map_or(0, |e| e.term.0);
        let log_term = index_term(index);
        let kind = samples::RAFT_KINDS[source.below(9) as usize];
        let mut msg = RaftMsg {
            pg: PG,
            from: ReplicaId(from.into()),
            to: ReplicaId(to.into()),
            term: Term(source.number(term)),
            kind,
            log_term: Term(source.number(log_term)),
            index: Index(index),
            commit: Index(source.number(member.hard_state.commit.0)),
            commit_term: Term(source.number(term)),
            reject: source.flag(),
            reject_hint: Index(source.number(last)),
            context: Bytes::copy_from_slice(source.bytes(if kind == RaftKind::HeartbeatResponse { 8 } else { 0 })),
            entries: Vec::new(),
        };
        if kind == RaftKind::Append {
            let count = source.below(4);
            msg.entries = (0..count).map(|n| entry(source, index.wrapping_add(1 + u64::from(n)), term)).collect();
        }
        msg
    }
}

/// Returns an entry that a leader could mostly send.
fn entry(source: &mut Source<'_>, index: u64, term: u64) -> Entry {
    let kinds = [EntryKind::ConfChange, EntryKind::ConfChangeV2];
    let kind = kinds.get(source.byte() as usize).copied().unwrap_or(EntryKind::Normal);
    let stamp = Stamp { session: SessionId(1), epoch: Epoch(1), seq: source.number(1), watermark: 0 };
    let range = SectorRange::new(source.below(40), 1 + source.below(10));
    let (command, payload) = match source.below(4) {
        0 => (Command::Empty, IoBuf::EMPTY),
        1 => (Command::Zero { chunk: CHUNK, range, stamp }, IoBuf::EMPTY),
        2 => (
            Command::Attach(Box::new(Attach {
                order: source.number(1),
                volume: VolumeId(1),
                writers: Writers::one(SessionId(1), Epoch(source.number(1))),
                epoch: Epoch(source.number(1)),
                chunk_count: source.below(3),
                len_epoch: 0,
                head: GenerationId(source.number(1)),
                base: Some(Base {
                    volume: VolumeId(1),
                    snapshot: SnapshotId(source.number(1)),
                    to: GenerationId(source.number(1)),
                }),
            })),
            IoBuf::EMPTY,
        ),
        _ => (Command::Write { chunk: CHUNK, range, stamp }, IoBuf::copy_of(&vec![index as u8; range.len_bytes()])),
    };
    let mut descriptor = bytes::BytesMut::new();
    command.encode(&mut descriptor);
    let crcs = match payload.is_empty() {
        true => Crcs::default(),
        false => Crcs { start: range.start, values: range.fragment_crcs(&payload) },
    };
    let mut descriptor = descriptor.freeze();
    if source.byte() > 245 {
        descriptor = Bytes::copy_from_slice(source.bytes(20));
    }
    Entry { term: Term(source.number(term)), index: Index(source.number(index)), kind, descriptor, payload, crcs }
}

/// Alters one field of a genuine message.
fn alter(source: &mut Source<'_>, msg: &mut RaftMsg) {
    match source.below(12) {
        0 => msg.term = Term(source.number(msg.term.0)),
        1 => msg.log_term = Term(source.number(msg.log_term.0)),
        2 => msg.index = Index(source.number(msg.index.0)),
        3 => msg.commit = Index(source.number(msg.commit.0)),
        4 => msg.commit_term = Term(source.number(msg.commit_term.0)),
        5 => msg.reject = !msg.reject,
        6 => msg.reject_hint = Index(source.number(msg.reject_hint.0)),
        7 => msg.kind = samples::RAFT_KINDS[source.below(9) as usize],
        8 => msg.entries.truncate(source.below(4) as usize),
        9 => msg.context = Bytes::copy_from_slice(source.bytes(source_len(msg))),
        10 => {
            let (index, term) = (msg.index.0 + 1 + msg.entries.len() as u64, msg.term.0);
            let more = entry(source, index, term);
            msg.entries.push(more);
        }
        _ => {
            let n = source.below(msg.entries.len().max(1) as u32) as usize;
            if let Some(entry) = msg.entries.get_mut(n) {
                entry.term = Term(source.number(entry.term.0));
            }
        }
    }
}

fn source_len(msg: &RaftMsg) -> usize {
    if msg.context.is_empty() { 8 } else { 70 }
}

/// Runs the target described at the head of this file. First two bytes: whether a leader exists at first, and the
/// number of its writes.
pub fn peer(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let mut table = Table::new();
    if source.byte() > 30 {
        table.take_leadership(source.below(8));
    }
    while !source.is_empty() {
        table.step(&mut source);
        assert!(table.answered <= table.asked, "a request is answered twice");
    }
    if table.members.iter().any(|m| m.applied > 2) { Verdict::Taken } else { Verdict::Refused }
}

/// Starts a group on a replica with arbitrary recovered state. It is refused, or runs for some polls.
pub fn start(data: &[u8]) -> Verdict {
    let mut source = Source::new(data);
    let mut recovered = recovered(1, &[], HardState::default());
    let base = u64::from(source.byte() / 8);
    let base_term = u64::from(source.byte() / 32);
    let count = source.below(6);
    recovered.before = (Index(source.number(base)), Term(source.number(base_term)));
    let mut term = base_term.max(1);
    for n in 0..count {
        term += u64::from(source.byte() / 200);
        let mut entry = entry(&mut source, base + 1 + u64::from(n), term);
        entry.index = Index(source.number(base + 1 + u64::from(n)));
        recovered.entries.push(entry);
    }
    let applied = base + u64::from(source.below(count + 1));
    let term_at = |i: u64| recovered.entries.iter().find(|e| e.index.0 == i).map_or(base_term, |e| e.term.0);
    recovered.checkpoint.index = Index(source.number(applied));
    recovered.checkpoint.term = Term(source.number(term_at(applied)));
    let vote = source.flag().then(|| ReplicaId(source.number(2)));
    let above = u64::from(source.below(3));
    let commit = Index(source.number(applied + above));
    recovered.hard_state = HardState { term: Term(source.number(term)), vote, commit };
    if source.byte() > 230 {
        recovered.checkpoint.bytes = Bytes::copy_from_slice(source.bytes(200));
    }
    let now = Time(1_000_000_000);
    let Ok(mut group) = Group::new(GroupConfig::new(OsdId(1)), recovered, now, 1) else { return Verdict::Refused };
    let mut actions = Vec::new();
    for n in 0..40 {
        let now = now + Duration::from_millis(100 * n);
        group.poll(now, &mut actions);
        for action in std::mem::take(&mut actions) {
            if let Action::Persist(persist) = action {
                group.handle_persisted(now, persist.ticket, &mut Vec::new());
            }
        }
    }
    assert!(group.applied() <= group.commit());
    Verdict::Taken
}
