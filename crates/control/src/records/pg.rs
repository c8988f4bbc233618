//! The record of a PG, with the change of its members that is under way.

use serde::{Deserialize, Serialize};
use types::map::{ForceMembers, Member, PgMap};
use types::{Epoch, OsdId, PgId, ReplicaId, SessionId};

/// A PG. `order` is the last one drawn for an attach record (R6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgRecord {
    pub pg: PgId,
    pub conf_epoch: Epoch,
    pub members: Vec<Member>,
    pub order: u64,
    /// Members at creation; empty while they are `members`. A new replica begins with these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub created: Vec<Member>,
    /// Changes that were begun so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes: u64,
    /// The change of the members that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ChangeRecord>,
    /// Moves (from, to) that wait for it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<(OsdId, OsdId)>,
    /// The forced recovery that is ordered, until its replica leads alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<ForceRecord>,
    /// Floor of the members: that of the last forced recovery that took effect; 0 without one.
    #[serde(default, skip_serializing_if = "is_no_floor")]
    pub floor: ReplicaId,
    /// The highest floor that a replica has reported, and that no order explains: these records went back to before it. A leader
    /// below it is of an ended timeline.
    #[serde(default, skip_serializing_if = "is_no_floor")]
    pub seen_floor: ReplicaId,
    /// Forced recoveries that were given up. Each may have been carried out unseen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub voided: Vec<VoidForce>,
    /// OSDs of the members that a forced recovery has given up. Each gets a new replica, there or elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vacant: Vec<OsdId>,
}

/// Most forced recoveries that were given up, which a record keeps.
const VOIDED_MAX: usize = 16;

/// A forced recovery of a PG (ADR 0020).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForceRecord {
    pub force: ForceMembers,
    /// With `force.fence`: sessions below this one end before the order goes out, and whether they have.
    pub sessions_below: SessionId,
    pub fenced: bool,
    /// The metadata leader has ordered it by itself, for a PG of two.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
}

/// A forced recovery that was given up. `keep` may have carried it out, or do so later, and go on alone with this floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoidForce {
    pub keep: Member,
    pub floor: ReplicaId,
    pub epoch: Epoch,
    /// The metadata leader had ordered it by itself: `keep` loses nothing, so its report is taken over. That of a replica that a
    /// command named is void when the PG went on without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
}

fn is_no_floor(floor: &ReplicaId) -> bool {
    floor.0 == 0
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A change of the members of a PG (ADR 0016). Its step is decision state of the PG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// Number of the change in its PG.
    pub id: u64,
    /// Epoch of the members that it begins with.
    pub expected: Epoch,
    pub add: Member,
    /// 0: the place on `from` is vacant.
    pub remove: ReplicaId,
    pub from: OsdId,
    pub to: OsdId,
    /// It is given up, unless its joint phase has begun.
    pub cancel: bool,
    pub since_ms: u64,
    #[serde(default)]
    pub reason: ChangeReason,
}

/// Reason of a change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeReason {
    /// An administrator asked for it.
    #[default]
    Command,
    /// The replica has failed.
    Failed,
    /// Its OSD is out, drained or replaced.
    Leaving,
    /// Its OSD carries more than its share.
    Balance,
}

impl ChangeReason {
    /// The word of JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            ChangeReason::Command => "command",
            ChangeReason::Failed => "failed",
            ChangeReason::Leaving => "leaving",
            ChangeReason::Balance => "balance",
        }
    }
}

/// Epoch of the members at the creation of a PG.
pub(crate) const FIRST_EPOCH: Epoch = Epoch(1);

impl PgRecord {
    /// Returns a new PG.
    pub fn new(pg: PgId, members: Vec<Member>) -> PgRecord {
        let (conf_epoch, order) = (FIRST_EPOCH, 0);
        let (created, changes, change, queue) = (Vec::new(), 0, None, Vec::new());
        let (forced, floor, seen_floor, voided, vacant) = (None, ReplicaId(0), ReplicaId(0), Vec::new(), Vec::new());
        PgRecord {
            pg,
            conf_epoch,
            members,
            order,
            created,
            changes,
            change,
            queue,
            forced,
            floor,
            seen_floor,
            voided,
            vacant,
        }
    }

    /// Returns the OSDs of the members, and those whose places are vacant.
    pub fn places(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.members.iter().map(|m| m.osd).chain(self.vacant.iter().copied())
    }

    /// Iterates over the members, and the replica that is to become one.
    pub fn everyone(&self) -> impl Iterator<Item = Member> + '_ {
        self.members.iter().copied().chain(self.change.as_ref().map(|change| change.add))
    }

    /// Gives up the forced recovery that is ordered. Its replica may have carried it out, or do so later, and acknowledge writes
    /// then that no other replica has (ADR 0020).
    pub fn void_force(&mut self) {
        let Some(ForceRecord { force: ForceMembers { keep, floor, epoch, .. }, automatic, .. }) = self.forced.take()
        else {
            return;
        };
        // The last automatic order of each member says all.
        let members: Vec<Member> = self.everyone().collect();
        self.voided.retain(|void| !void.automatic || void.keep != keep && members.contains(&void.keep));
        self.voided.push(VoidForce { keep, floor, epoch, automatic });
        let excess = self.voided.len().saturating_sub(VOIDED_MAX);
        self.voided.drain(..excess);
    }

    /// Whether a forced recovery may have taken the PG back in time.
    pub fn was_forced(&self) -> bool {
        self.forced.is_some() || !self.voided.is_empty() || self.floor.max(self.seen_floor) > ReplicaId(0)
    }

    /// Whether members with this floor are explained by what this record tells.
    pub fn knows_floor(&self, floor: ReplicaId) -> bool {
        let is_ordered = self.forced.as_ref().is_some_and(|forced| forced.force.floor == floor);
        is_ordered || floor <= self.floor.max(self.seen_floor) || self.voided.iter().any(|void| void.floor == floor)
    }

    /// Whether a replica with this floor has carried out a forced recovery that a command had ordered, and that was given up.
    pub fn is_void(&self, floor: ReplicaId) -> bool {
        self.voided.iter().any(|void| void.floor == floor && !void.automatic)
    }

    /// Iterates over the OSDs on which the PG has a member, a replica that is to become one, or a vacant place.
    pub fn holders(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.everyone().map(|m| m.osd).chain(self.vacant.iter().copied())
    }

    /// Returns the map of the PG for clients. A replica that is to become a member may lead before the change ends.
    pub fn map(&self) -> PgMap {
        PgMap { pg: self.pg, conf_epoch: self.conf_epoch, members: self.everyone().collect() }
    }

    /// Returns the PG as it was created, for its replicas.
    pub fn created_map(&self) -> PgMap {
        let members = if self.created.is_empty() { &self.members } else { &self.created };
        PgMap { pg: self.pg, conf_epoch: FIRST_EPOCH, members: members.clone() }
    }
}
