//! Claims of replicas on the network, against the logs on their devices (R5, R9, R11). A claim is a term, a vote or an
//! acknowledgement in a message.
//!
//! - A vote, and every other message of a term, leaves when the device durably holds that term, and the vote in it.
//! - An acknowledgement leaves when the device durably holds the entry at its index, of the term that the leader has there.
//! - The device holds every claim when the process ends, and at the end of the run. An entry may be at home instead. An entry may be
//!   replaced when a leader of a later term has another one at its index.
//! - A replica votes for one candidate in a term, in all of its lives.
//! - The device holds the entry that the process takes for the last durable one, when the process ends and at the end of the run.
//!
//! The check reads the network (`frames`) and the devices (`device`) by parsers of its own. It takes no word of the code for what is
//! durable: the model of the disk decides which bytes survive a power cut. The last law alone asks the code, to compare.
//! Bytes that a disk has lost without a trace, and that no write has covered since, count as there, because no OSD could
//! know.
//!
//! Not covered: a device that has lied, from then on, except by the law of one vote; a replica that a record marks as
//! failed; the term of an acknowledged entry that its leader has sent to no replica.

use super::device::{Batch, Contents, Place, Replica};
use super::frames::{self, Message, Raft, raft};
use env::DiskId;
use simenv::{DiskWatch, Durable, NetWatch, NodeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{IoBuf, OsdId};

const PAGE: usize = 4096;

/// A batch that was submitted to a device and is not durable yet.
struct Submitted {
    offset: u64,
    bufs: Vec<IoBuf>,
    batch: Batch,
}

impl Submitted {
    /// Whether every byte would survive a power cut.
    fn is_durable(&self, durable: Durable<'_>) -> bool {
        let mut at = self.offset;
        self.bufs.iter().flat_map(|buf| buf.chunks(PAGE)).all(|bytes| {
            let here = at;
            at += bytes.len() as u64;
            durable.holds(here, bytes) || durable.has_lied_at(here)
        }) && self.are_placed_durable(durable)
    }

    /// Whether the payloads of the batch that lie at home would survive it, too.
    fn are_placed_durable(&self, durable: Durable<'_>) -> bool {
        let has_lied = self.batch.placed().any(|offset| durable.has_lied_at(offset));
        has_lied || self.batch.has_placed(&mut |at, into| durable.read(at, into))
    }

    fn is_whole(&self) -> bool {
        self.bufs.iter().map(|buf| buf.len()).sum::<usize>() == self.batch.len
    }
}

/// The device of an OSD, and the claims of the replicas on it.
struct Device {
    osd: OsdId,
    log: Place,
    /// Durable log; `None`: it must be read again.
    contents: Option<Contents>,
    submitted: Vec<Submitted>,
    claims: BTreeMap<u64, Claim>,
    /// The device has lied.
    has_lied: bool,
}

/// The claims of one replica.
#[derive(Default)]
struct Claim {
    pg: u64,
    term: u64,
    /// Candidate that has its vote of this term.
    vote: Option<u64>,
    /// Entries that it has acknowledged: the term of each, and of the latest acknowledgement that covers it.
    acked: BTreeMap<u64, (u64, u64)>,
    /// Term and index of the last acknowledgement.
    last: (u64, u64),
}

/// The last entry of a replica that its process takes for durable.
#[derive(Clone, Copy, Debug)]
pub struct Believed {
    pub replica: u64,
    pub index: u64,
    /// `None`: the log does not know it any more.
    pub term: Option<u64>,
}

/// Term of each entry, by PG and term of the leader.
type Leaders = BTreeMap<(u64, u64), BTreeMap<u64, u64>>;

/// All claims so far.
#[derive(Default)]
pub struct Claims {
    devices: BTreeMap<NodeId, Device>,
    /// For each PG and term, the terms of the entries in its leader's log, as far as the leader has sent them.
    leaders: Leaders,
    /// Candidate that has the vote of a replica in a term.
    votes: BTreeMap<(u64, u64), u64>,
    /// The first claim that is not on its device.
    pub failure: Option<String>,
    checked: u64,
}

/// The handle that the world and the cluster share.
pub type Shared = Rc<RefCell<Claims>>;

impl Claims {
    /// Adds an OSD, or drops all claims of one whose device was replaced.
    pub fn add(&mut self, node: NodeId, osd: OsdId, log: Place) {
        let (claims, submitted) = (BTreeMap::new(), Vec::new());
        self.devices.insert(node, Device { osd, log, contents: None, submitted, claims, has_lied: false });
    }

    /// Notes whether the device of this node has lied.
    pub fn lied(&mut self, node: NodeId, has_lied: bool) {
        if let Some(device) = self.devices.get_mut(&node) {
            device.has_lied |= has_lied;
        }
    }

    /// Returns the number of claims that were checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// Reads the device of this node, and checks that it holds every claim, and the entries that its process takes for durable.
    /// The process has ended, or everything rests.
    pub fn examine(&mut self, node: NodeId, believed: &[Believed], durable: Durable<'_>) {
        let Some(device) = self.devices.get_mut(&node) else { return };
        device.submitted.clear();
        device.contents = None;
        if device.has_lied || device.claims.is_empty() && believed.is_empty() {
            return;
        }
        self.checked += (device.claims.len() + believed.len()) as u64;
        let contents = read(durable);
        let wrong = contents.lacks_claim(&device.claims, &self.leaders).or_else(|| contents.lacks_entry(believed));
        if let Some(what) = wrong {
            self.failure.get_or_insert(format!("on the device of {}, {what}", device.osd));
        }
    }

    fn hear(&mut self, node: NodeId, message: &Message, durable: Durable<'_>) {
        self.checked += 1;
        let verdict = match message {
            Message::Raft(raft) => {
                self.note_append(raft);
                self.hear_raft(node, raft, durable)
            }
            Message::Leads { from, term } => {
                self.holds(node, *from, durable, |r| r.term >= *term, || format!("leads in t{term}"))
            }
            Message::Holds { from, index } => {
                self.holds(node, *from, durable, |r| r.has_had(*index, None), || format!("says that it holds i{index}"))
            }
        };
        if let Err(what) = verdict {
            self.failure.get_or_insert(what);
        }
    }

    fn hear_raft(&mut self, node: NodeId, m: &Raft, durable: Durable<'_>) -> Result<(), String> {
        let Raft { pg, from, to, term, index, .. } = *m;
        let is_early = m.kind == raft::PRE_VOTE || m.kind == raft::PRE_VOTE_RESPONSE && !m.rejects;
        if is_early {
            return Ok(());
        }
        let vote = match m.kind {
            raft::VOTE => Some(from),
            raft::VOTE_RESPONSE if !m.rejects => Some(to),
            _ => None,
        };
        let names = || format!("sends message {} of t{term} to r{to}, with vote {vote:?} and index {index}", m.kind);
        if let Some(candidate) = vote {
            let first = *self.votes.entry((from, term)).or_insert(candidate);
            if first != candidate {
                return Err(format!("r{from} votes for r{candidate} in t{term}, and has voted for r{first}"));
            }
        }
        let bears = |r: &Replica| r.term > term || r.term == term && (vote.is_none() || r.vote == vote);
        self.holds(node, from, durable, bears, names)?;
        let acks = m.kind == raft::APPEND_RESPONSE && !m.rejects && index > 0;
        let entry = self.leaders.get(&(pg, term)).and_then(|log| log.get(&index)).copied().filter(|_| acks);
        if acks {
            self.holds(node, from, durable, |r| r.has_had(index, entry), names)?;
        }
        self.claim(node, m, vote, acks);
        Ok(())
    }

    /// Checks the claim of a replica by `bears`; `names` describes the claim.
    fn holds(
        &mut self,
        node: NodeId,
        replica: u64,
        durable: Durable<'_>,
        bears: impl Fn(&Replica) -> bool,
        names: impl Fn() -> String,
    ) -> Result<(), String> {
        let Some(device) = self.devices.get_mut(&node).filter(|device| !device.has_lied) else { return Ok(()) };
        let osd = device.osd;
        let contents = device.contents(durable);
        match contents.replicas.get(&replica) {
            Some(r) if r.is_marked || bears(r) => Ok(()),
            None if contents.is_gone(replica) => Ok(()),
            Some(r) => {
                let (term, vote, k, last) = (r.term, r.vote, r.checkpoint, r.log.last_key_value());
                let holds = format!("t{term}, vote {vote:?}, checkpoint i{k}, last entry {last:?}");
                Err(format!("r{replica} {}, and the device of {osd} durably holds {holds}", names()))
            }
            None => Err(format!("r{replica} {}, and the device of {osd} does not know it", names())),
        }
    }

    /// Notes the entries that a leader sends.
    fn note_append(&mut self, m: &Raft) {
        if m.kind != raft::APPEND {
            return;
        }
        let log = self.leaders.entry((m.pg, m.term)).or_default();
        if m.index > 0 {
            log.insert(m.index, m.log_term);
        }
        log.extend(m.entries.iter().copied());
    }

    /// Notes the claims of a message.
    fn claim(&mut self, node: NodeId, m: &Raft, vote: Option<u64>, acks: bool) {
        let Some(device) = self.devices.get_mut(&node) else { return };
        let Device { claims, contents, .. } = device;
        let claim = claims.entry(m.from).or_default();
        claim.pg = m.pg;
        if m.term > claim.term {
            (claim.term, claim.vote) = (m.term, None);
        }
        if m.term == claim.term && vote.is_some() {
            claim.vote = vote;
        }
        // An acknowledgement that leaves late, in an older term, may be of entries that are replaced by now.
        if !acks || m.term < claim.term {
            return;
        }
        let Some(log) = self.leaders.get(&(m.pg, m.term)) else { return };
        let known = if claim.last.0 == m.term { claim.last.1 } else { 0 };
        if m.index > known {
            // An entry that this one has replaced is gone with all behind it.
            let news = log.range(known + 1..=m.index);
            let other = |(at, term): &(&u64, &u64)| claim.acked.get(at).is_some_and(|(acked, _)| acked != *term);
            if let Some((at, _)) = news.clone().find(other) {
                claim.acked.split_off(at);
            }
            claim.acked.extend(news.map(|(index, term)| (*index, (*term, m.term))));
            claim.last = (m.term, m.index);
        }
        // Entries at home need no place in the log.
        let replica = contents.as_ref().and_then(|contents| contents.replicas.get(&m.from));
        let checkpoint = replica.map_or(0, |replica| replica.checkpoint);
        if claim.acked.first_key_value().is_some_and(|(first, _)| *first <= checkpoint) {
            claim.acked = claim.acked.split_off(&(checkpoint + 1));
        }
    }
}

impl Claim {
    /// Whether a leader of a later term than `in_term` has sent another entry than the acknowledged one, here or before: then the
    /// entry was not committed, and the replica may have truncated its log.
    fn may_lack(&self, index: u64, in_term: u64, leaders: &Leaders) -> bool {
        let later = leaders.range((self.pg, in_term + 1)..=(self.pg, u64::MAX));
        let differs = |(at, term): (&u64, &u64)| self.acked.get(at).is_some_and(|(acked, _)| acked != term);
        later.into_iter().any(|(_, log)| log.range(..=index).any(differs))
    }
}

impl Device {
    /// Returns the durable log of the device.
    fn contents(&mut self, durable: Durable<'_>) -> &Contents {
        self.contents.get_or_insert_with(|| read(durable))
    }
}

fn read(durable: Durable<'_>) -> Contents {
    Contents::read(durable.size_bytes(), &mut |at, into| durable.read(at, into))
}

impl Contents {
    /// Returns the first entry that a process takes for durable and that this log does not hold.
    fn lacks_entry(&self, believed: &[Believed]) -> Option<String> {
        believed.iter().find_map(|Believed { replica, index, term }| {
            let r = self.replicas.get(replica)?;
            let found = r.log.get(index);
            let holds = *index <= r.checkpoint || found.is_some() && term.is_none_or(|term| found == Some(&term));
            let says =
                || format!("the process takes i{index} of t{term:?} of r{replica} for durable, and {found:?} is there");
            (!holds && !r.is_marked).then(says)
        })
    }

    fn is_gone(&self, replica: u64) -> bool {
        self.gone.contains(&replica) || replica < self.floor
    }

    /// Returns the first claim that this log does not hold.
    fn lacks_claim(&self, claims: &BTreeMap<u64, Claim>, leaders: &Leaders) -> Option<String> {
        claims.iter().find_map(|(id, claim)| {
            let Some(r) = self.replicas.get(id) else {
                return (!self.is_gone(*id)).then(|| format!("r{id} is forgotten"));
            };
            let Claim { term, vote, .. } = *claim;
            if r.is_marked {
                return None;
            }
            if r.term < term || r.term == term && vote.is_some() && r.vote != vote {
                let (holds, voted) = (r.term, r.vote);
                return Some(format!("r{id} has claimed t{term} with vote {vote:?}, and has t{holds} with {voted:?}"));
            }
            let lacks = |(index, (entry, in_term)): &(&u64, &(u64, u64))| {
                let missing = **index > r.checkpoint && r.log.get(*index) != Some(entry);
                missing && !claim.may_lack(**index, *in_term, leaders)
            };
            claim.acked.iter().find(lacks).map(|(index, (entry, in_term))| {
                let (k, found) = (r.checkpoint, r.log.get(index));
                let last = r.log.last_key_value();
                format!(
                    "r{id} has acknowledged i{index} of t{entry} in t{in_term}; it has {found:?} there, checkpoint i{k}, \
                     last entry {last:?}"
                )
            })
        })
    }
}

impl DiskWatch for Claims {
    fn submitted(&mut self, (node, _): (NodeId, DiskId), offset: u64, bufs: &[IoBuf]) {
        let Some(device) = self.devices.get_mut(&node).filter(|device| device.log.has(offset)) else { return };
        let batch = bufs.first().and_then(|head| Batch::parse(head, offset, &device.log.uuid));
        if let Some(batch) = batch {
            // A replica that is marked may lack what it acknowledged before.
            batch.marks().for_each(|replica| _ = device.claims.remove(&replica));
            device.submitted.push(Submitted { offset, bufs: bufs.to_vec(), batch });
        }
    }

    fn flushed(&mut self, (node, _): (NodeId, DiskId), durable: Durable<'_>) {
        let Some(device) = self.devices.get_mut(&node) else { return };
        let Device { contents, submitted, .. } = device;
        submitted.retain(|written| {
            if !written.is_durable(durable) {
                return true;
            }
            let next = contents.as_mut().filter(|contents| {
                let is_next = contents.seq + 1 == written.batch.seq && contents.mount == written.batch.mount;
                is_next && written.is_whole()
            });
            match next {
                Some(contents) => contents.take(&written.batch),
                None => *contents = None,
            }
            false
        });
    }
}

impl NetWatch for Claims {
    fn sent(&mut self, from: NodeId, to: NodeId, bufs: &[IoBuf], durable: Option<Durable<'_>>) {
        let (Some(durable), true) = (durable, self.devices.contains_key(&from) && self.devices.contains_key(&to))
        else {
            return;
        };
        for message in frames::messages(bufs) {
            self.hear(from, &message, durable);
        }
    }
}

#[cfg(test)]
mod tests;
