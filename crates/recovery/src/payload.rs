//! Payload repair: lost payloads of a replica's log come back from its peers (R11, ADR 0004).
//!
//! Input: replicas whose log lacks payloads, answers of peers, and their own queries. Output: queries and answers, payloads for
//! the engine, and the replica once all are back.
//!
//! Invariant: a replica under repair has no group. It takes a payload only when the checksums of its own record match, so no
//! majority of damaged copies can win. It waits for a payload that no member has as long as the entry may be committed and no
//! member has freed the entry. Otherwise the replica fails, and keeps its log before the entry.

mod missing;

use crate::host::{Action, Host};
use crate::tuning::RepairTuning;
use missing::{Missing, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use types::control::{LOST_REPORTED_MAX, LostExtent};
use types::map::{Member, Membership};
use types::store::{Crcs, Holding, Lost, Recovered, ReplicaIdentity};
use types::{Index, OsdId, ReplicaId, Term, Time};
use wire::{Lack, Message, RepairBody, RepairMsg};

/// Destination of a query for the replica of the PG that is on an OSD, whichever it is.
pub const ANY_REPLICA: ReplicaId = ReplicaId(u64::MAX);

/// One replica that is being repaired.
struct Repair {
    tuning: RepairTuning,
    /// The state that its group will start from.
    recovered: Recovered,
    /// Members at the end of its log, and those on other OSDs.
    members: Membership,
    others: Vec<Member>,
    missing: BTreeMap<Index, Missing>,
    /// The first entry whose payload no member gives any more, with the reason. The replica fails when all before it are back.
    given_up: Option<(Index, String)>,
    /// Entries whose queries are on their way.
    waiting: Vec<Index>,
    /// The next query is about the first askable entry from here on: queries without an answer must not keep others back.
    cursor: Index,
    next_at: Time,
    /// The next look then judges all entries.
    review_at: Time,
    /// Extents of entries of which no member has a good copy.
    inconsistent: Vec<LostExtent>,
}

/// Outcome of one look at a repair.
#[derive(Default)]
struct Look {
    /// Entry, and the member to ask for it.
    queries: Vec<(Index, Term, Member)>,
    /// The first entry whose payload no member gives any more.
    given_up: Option<Index>,
}

/// All payload repairs of one OSD.
#[derive(Default)]
pub struct PayloadRepairs {
    tuning: RepairTuning,
    by_replica: BTreeMap<ReplicaId, Repair>,
    /// OSDs that hold replicas of the PGs of this OSD, as meta has named them: the PGs may have other members than the logs tell.
    peers: BTreeSet<OsdId>,
    /// Replicas that were repaired since the start.
    pub done: u64,
}

impl Repair {
    fn new(
        tuning: RepairTuning,
        recovered: Recovered,
        members: Membership,
        extents: &BTreeMap<Index, LostExtent>,
        osd: OsdId,
    ) -> Repair {
        let me = recovered.identity.replica;
        let missing = |lost: &Lost| (lost.index, Missing::new(lost.clone(), extents.get(&lost.index).copied()));
        Repair {
            tuning,
            missing: recovered.lost.iter().map(missing).collect(),
            recovered,
            others: members.iter().filter(|m| m.replica != me && m.osd != osd).collect(),
            members,
            given_up: None,
            waiting: Vec::new(),
            cursor: Index(0),
            next_at: Time::ZERO,
            review_at: Time::ZERO,
            inconsistent: Vec::new(),
        }
    }

    /// Judges missing payloads, and chooses which member is asked for which. Between two reviews it goes no further than it finds
    /// queries to send.
    ///
    /// `later`: members that the log may not tell.
    fn look(&mut self, now: Time, is_led: bool, later: &[Member], reaches: impl Fn(OsdId) -> bool) -> Look {
        let (others, commit) = (&self.others[..], self.recovered.hard_state.commit);
        let RepairTuning { payload_queries_max, payload_review, freed_wait, .. } = self.tuning;
        let freed_wait = is_led.then_some(freed_wait);
        let later: Vec<Member> = later.iter().copied().filter(|m| reaches(m.osd)).collect();
        let (rest, is_review) = (missing::rest(&self.tuning, self.missing.len()), now >= self.review_at);
        let missing = &mut self.missing;
        self.waiting.retain(|index| missing.get(index).is_some_and(|missing| missing.query.waits(now)));
        let (mut look, mut at) = (Look::default(), self.cursor);
        for _ in 0..missing.len() {
            if self.waiting.len() >= payload_queries_max && !is_review {
                break;
            }
            let next = missing.range(at..).chain(missing.range(..)).next().map(|(index, _)| *index);
            let index = next.expect("the map is not empty");
            at = Index(index.0 + 1);
            let entry = missing.get_mut(&index).expect("it was just found");
            match entry.step(now, (rest, freed_wait), (&self.members, others, &later), commit) {
                Verdict::Ask if entry.query.waits(now) || self.waiting.len() >= payload_queries_max => {}
                Verdict::Ask => {
                    let Some(to) = entry.next_to_ask(others, &later, &reaches) else { continue };
                    entry.query.ask(now, to);
                    look.queries.push((index, entry.lost.term, to));
                    self.waiting.push(index);
                    self.cursor = at;
                }
                Verdict::Inconsistent => {}
                Verdict::GivenUp => look.given_up = Some(look.given_up.map_or(index, |first| first.min(index))),
            }
        }
        if is_review {
            self.review_at = now + payload_review;
            let inconsistent = self.missing.values().filter(|missing| missing.is_inconsistent());
            self.inconsistent = inconsistent.take(LOST_REPORTED_MAX).filter_map(|missing| missing.extent).collect();
        }
        let answer_at = now + crate::query::ANSWER_MAX;
        self.next_at = if self.waiting.is_empty() { self.review_at } else { self.review_at.min(answer_at) };
        look
    }

    /// Returns the payload that this member was asked for last, if it is the one that is named.
    fn asked_of(&mut self, from: Member, (index, term): (Index, Term)) -> Option<&mut Missing> {
        let missing = self.missing.get_mut(&index)?;
        (missing.lost.term == term && missing.query.is_asked(from)).then_some(missing)
    }

    /// Gives up an entry, and all behind it. Those before it may be committed, and are repaired still.
    fn give_up(&mut self, from: Index) {
        drop(self.missing.split_off(&from));
        self.given_up = Some((from, format!("no member gives the payload of entry {from} any more")));
    }

    fn first_lost(&self) -> Option<Index> {
        self.missing.keys().next().or(self.given_up.as_ref().map(|(from, _)| from)).copied()
    }

    /// Fails the replica without the payloads that are lost. Its log before the first of them is its past.
    fn fail(&self, host: &mut impl Host, why: &str) {
        let Some(from) = self.first_lost() else { return };
        let replica = self.recovered.identity.replica;
        let reason = format!("the payload of log entry {from} is lost: {why}");
        host.act(Action::FailBefore { replica, from, reason });
    }
}

/// Returns the message that a replica sends to another one.
fn message(identity: &ReplicaIdentity, to: ReplicaId, body: RepairBody) -> Message {
    let (pg, from) = (identity.pg, identity.replica);
    Message::Repair(RepairMsg { pg, from, to, body })
}

/// Returns a member's answer to a query. `is_sound`: the member has not failed. `applied`: the applied index of its group.
pub fn answer_fetch(
    (index, term): (Index, Term),
    holding: Holding,
    is_sound: bool,
    applied: Option<Index>,
) -> RepairBody {
    let lack = |why| RepairBody::Lack { index, term, why };
    match holding {
        Holding::Payload(payload, crcs) => {
            RepairBody::Payload { index, term, start: crcs.start, crcs: crcs.values, payload }
        }
        Holding::Lost if is_sound => lack(Lack::Lost),
        // Another entry is committed at this index, so the one that is asked for never was.
        Holding::Other if applied.is_some_and(|applied| applied >= index) => lack(Lack::Freed),
        Holding::Other if is_sound => lack(Lack::Other),
        Holding::Freed if is_sound => lack(Lack::Freed),
        _ => lack(Lack::Unsure),
    }
}

impl PayloadRepairs {
    pub fn new(tuning: RepairTuning) -> PayloadRepairs {
        PayloadRepairs { tuning, ..PayloadRepairs::default() }
    }

    /// Begins the repair of a replica whose log lacks payloads. `members`: those at the end of its log. `extents`: the data of
    /// lost entries.
    pub fn begin(
        &mut self,
        recovered: Recovered,
        members: Membership,
        extents: &BTreeMap<Index, LostExtent>,
        osd: OsdId,
    ) {
        let replica = recovered.identity.replica;
        self.by_replica.insert(replica, Repair::new(self.tuning, recovered, members, extents, osd));
    }

    /// Queries members for payloads that are missing, and judges those that no member has.
    pub fn step(&mut self, host: &mut impl Host) {
        let now = host.now();
        let later: Vec<Member> = self.peers.iter().map(|osd| Member { replica: ANY_REPLICA, osd: *osd }).collect();
        for (replica, repair) in self.by_replica.iter_mut().filter(|(_, repair)| repair.next_at <= now) {
            let was = repair.inconsistent.clone();
            let identity = &repair.recovered.identity.clone();
            let look = repair.look(now, host.is_led(identity.pg), &later, |osd| host.reaches(osd));
            if was != repair.inconsistent {
                let extents = repair.inconsistent.iter().map(LostExtent::to_string).collect::<Vec<_>>().join(", ");
                tracing::error!(pg = %identity.pg, replica = replica.0, extents,
                    "inconsistent: no member has a good copy of damaged log entries");
                host.act(Action::Report);
            }
            for (index, term, to) in look.queries {
                let message = message(identity, to.replica, RepairBody::Fetch { index, term });
                host.act(Action::Send { to: to.osd, message });
            }
            if let Some(index) = look.given_up {
                repair.give_up(index);
            }
            if let Some((_, why)) = repair.given_up.as_ref().filter(|_| repair.missing.is_empty()) {
                repair.fail(host, why);
            }
        }
    }

    /// Notes OSDs that meta names as peers.
    pub fn handle_peers(&mut self, osds: impl IntoIterator<Item = OsdId>) {
        self.peers.extend(osds);
        self.hurry();
    }

    /// Fails a replica that is not to wait for its missing payloads any longer.
    pub fn fail(&self, host: &mut impl Host, replica: ReplicaId, why: &str) {
        self.by_replica.get(&replica).into_iter().for_each(|repair| repair.fail(host, why));
    }

    /// Handles a member's answer to a query.
    pub fn handle_answer(&mut self, host: &mut impl Host, osd: OsdId, msg: RepairMsg) {
        let (now, from) = (host.now(), Member { replica: msg.from, osd });
        let is_its = |r: &ReplicaIdentity| r.pg == msg.pg;
        let repair = self.by_replica.get_mut(&msg.to).filter(|repair| is_its(&repair.recovered.identity));
        match msg.body {
            RepairBody::Fetch { .. } => unreachable!("the caller saw an answer"),
            RepairBody::Payload { index, term, start, crcs, payload } => {
                let sent = Lost { index, term, len_bytes: payload.len() as u32, crcs: Crcs { start, values: crcs } };
                if !sent.is(&payload) {
                    let reason = "a payload for a repair fails its checksum".to_owned();
                    return host.act(Action::BadPeer { osd, reason });
                }
                let Some(repair) = repair else { return };
                let Some(missing) = repair.asked_of(from, (index, term)) else { return };
                if !missing.lost.is(&payload) {
                    tracing::error!(replica = msg.to.0, %osd, index = index.0,
                        "a peer has other bytes under the same index and term");
                    // It holds the entry, and no copy of the payload that could be taken.
                    missing.take_lack(now, from, Lack::Lost);
                } else if host.can_refill() {
                    repair.missing.remove(&index);
                    host.act(Action::Refill { replica: msg.to, index, term, payload });
                } else {
                    // It is asked for again.
                    return missing.query.rewind();
                }
                repair.next_at = now;
            }
            RepairBody::Lack { index, term, why } => {
                let Some(repair) = repair else { return };
                let Some(missing) = repair.asked_of(from, (index, term)) else { return };
                missing.take_lack(now, from, why);
                repair.next_at = now;
            }
        }
    }

    /// Every payload is back and durable: returns the state that the replica's group starts from.
    ///
    /// # Panics
    /// When payloads are missing.
    pub fn finish(&mut self, replica: ReplicaId) -> Option<Recovered> {
        let repair = self.by_replica.remove(&replica)?;
        assert!(repair.missing.is_empty(), "{replica} is whole and lacks payloads");
        self.done += 1;
        tracing::info!(pg = %repair.recovered.identity.pg, replica = replica.0, "the log of a replica is repaired");
        Some(Recovered { lost: Vec::new(), ..repair.recovered })
    }

    /// A peer came up: it may know more.
    pub fn hurry(&mut self) {
        self.by_replica.values_mut().for_each(|repair| repair.next_at = Time::ZERO);
    }

    pub fn forget(&mut self, replica: ReplicaId) {
        self.by_replica.remove(&replica);
    }

    pub fn clear(&mut self) {
        self.by_replica.clear();
    }

    pub fn next_deadline(&self) -> Time {
        self.by_replica.values().map(|r| r.next_at).min().unwrap_or(Time::NEVER)
    }

    /// Iterates over the replicas under repair: the state from the device, and the extents of which no member has a good copy.
    pub fn iter(&self) -> impl Iterator<Item = (&Recovered, &[LostExtent])> {
        self.by_replica.values().map(|repair| (&repair.recovered, &repair.inconsistent[..]))
    }

    pub fn get(&self, replica: ReplicaId) -> Option<(&Recovered, &[LostExtent])> {
        self.by_replica.get(&replica).map(|repair| (&repair.recovered, &repair.inconsistent[..]))
    }

    /// Returns the last entry before those whose payload is missing.
    pub fn end_before_missing(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        let repair = self.by_replica.get(&replica)?;
        let (first, Recovered { entries, before, .. }) = (repair.first_lost(), &repair.recovered);
        let last = entries.iter().rev().find(|entry| first.is_none_or(|first| entry.index < first));
        Some(last.map_or((before.1, before.0), |entry| (entry.term, entry.index)))
    }
}

#[cfg(test)]
mod tests;
