//! Schedules aimed at changes of the members (ADR 0016, 0017): replicas move between OSDs, or fail and are replaced on their
//! own, and at a chosen step of a change its leader, its new replica, its old one, or the leading meta dies or is cut off.

use super::Strike;
use super::aimed_logs::{LOOKS_MAX, ms, when};
use super::aimed_votes::{cut_off_for_a_while, leader_of};
use crate::cluster::Cluster;
use control::PgRecord;
use control::admin::{AdminAsk, PgMove};
use std::time::Duration;
use types::map::Membership;
use types::{OsdId, PgId};

/// Most accidents during one move.
const ACCIDENTS_MAX: u64 = 4;

/// One move: the PG, and the OSDs from which and to which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) pg: PgId,
    from: usize,
    to: usize,
}

/// Step of a change at which an accident happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Any,
    Learner,
    Joint,
    Left,
}

pub fn strike(s: &mut Strike<'_>) -> bool {
    let Some(first) = draw(s) else { return false };
    order(s, first);
    accidents(s, first);
    true
}

/// A replica of a PG that is whole fails.
pub fn strike_failed(s: &mut Strike<'_>) -> bool {
    let Some((pg, osd)) = draw_whole(s) else { return false };
    let Some(replica) = s.cluster.fail_replica(osd, pg) else { return false };
    s.after(Duration::from_secs(1), move |s| s.cluster.note_failed(replica));
    accidents(s, Move { pg, from: osd, to: osd });
    true
}

/// Accidents while a PG changes its members, from a replica on one OSD.
pub fn accidents_around(s: &mut Strike<'_>, pg: PgId, osd: usize) {
    accidents(s, Move { pg, from: osd, to: osd });
}

/// Draws a PG of which every member keeps up, and one of its members.
pub(super) fn draw_whole(s: &mut Strike<'_>) -> Option<(PgId, usize)> {
    let records = s.cluster.meta.records()?;
    let record = records.pgs.values().nth(s.rng.below(records.pgs.len().max(1) as u64) as usize)?;
    let member = record.members[s.rng.below(record.members.len() as u64) as usize].osd.0 as usize - 1;
    let pg = record.pg;
    is_whole(s.cluster, record)?.then_some((pg, member))
}

/// Whether every member of a PG keeps up, and no change is under way; `None` without a leader.
pub(super) fn is_whole(cluster: &Cluster, record: &PgRecord) -> Option<bool> {
    let (_, leader) = leader_of(cluster, record.pg)?;
    let (_, osd) = cluster.running().find(|(id, _)| id.0 as usize == leader + 1)?;
    let lead = osd.reports_for_tools().into_iter().find(|r| r.pg == record.pg)?.leading?;
    // The leader may not know yet that another one has failed: with two the PG would stay down.
    let all_run = record.members.iter().all(|m| cluster.runs(m.replica));
    let in_sync = usize::from(lead.followers_in_sync) + 1 == record.members.len() && lead.members.is_settled();
    Some(all_run && in_sync && record.change.is_none())
}

fn accidents(s: &mut Strike<'_>, first: Move) {
    for _ in 0..s.rng.below(ACCIDENTS_MAX + 1) {
        let at = [At::Any, At::Learner, At::Joint, At::Left][s.rng.below(4) as usize];
        let reached = move |s: &mut Strike<'_>| is_at(s, first.pg, at).then_some(());
        when(s, LOOKS_MAX, reached, move |s, found| {
            tracing::debug!(?at, ?found, "an accident during a move");
            let most = if matches!(at, At::Any) { 1500 } else { 3 };
            let delay = ms(s, 0, most);
            s.after(delay, move |s| accident(s, first));
        });
    }
}

/// Draws a replica and an OSD that holds none of its PG.
pub(super) fn draw(s: &mut Strike<'_>) -> Option<Move> {
    let records = s.cluster.meta.records()?;
    let record = records.pgs.values().nth(s.rng.below(records.pgs.len().max(1) as u64) as usize)?;
    let from = record.members[s.rng.below(record.members.len() as u64) as usize].osd;
    let free: Vec<OsdId> =
        records.osds.keys().copied().filter(|osd| record.everyone().all(|m| m.osd != *osd)).collect();
    let to = *free.get(s.rng.below(free.len().max(1) as u64) as usize)?;
    Some(Move { pg: record.pg, from: from.0 as usize - 1, to: to.0 as usize - 1 })
}

pub(super) fn order(s: &mut Strike<'_>, Move { pg, from, to }: Move) {
    let osd = |i: usize| OsdId(i as u32 + 1);
    s.cluster.admin(AdminAsk::PgMove(PgMove { pg, from: osd(from), to: osd(to), dry_run: false }));
}

/// Whether the leader's members of the PG are at this step.
pub(super) fn is_at(s: &Strike<'_>, pg: PgId, at: At) -> bool {
    let Some((_, leader)) = leader_of(s.cluster, pg) else { return false };
    let is = |members: &Membership| match at {
        At::Any => true,
        At::Learner => !members.learners.is_empty(),
        At::Joint => members.is_joint(),
        At::Left => members.left,
    };
    let osd = s.cluster.running().find(|(id, _)| id.0 as usize == leader + 1);
    osd.and_then(|(_, osd)| osd.groups_for_tools().find(|g| g.identity().pg == pg)).is_some_and(|g| is(g.members()))
}

fn accident(s: &mut Strike<'_>, of: Move) {
    let leader = leader_of(s.cluster, of.pg).map_or(of.from, |(_, leader)| leader);
    let any = s.osd();
    let victim = [leader, leader, of.from, of.to, any][s.rng.below(5) as usize];
    match s.rng.below(10) {
        0..=3 => {
            let power = s.rng.chance(1, 2);
            s.cluster.stop_osd(victim, power);
            s.mend(1, 2500, move |s| s.cluster.start_osd(victim));
        }
        4 | 5 => {
            s.cluster.stop_meta();
            s.mend(10, 2000, |s| s.cluster.start_meta());
        }
        6 => cut_off_for_a_while(s, victim),
        7 => s.cluster.transfer_pg(of.pg, None, s.rng),
        8 => s.cluster.admin(AdminAsk::PgMoveCancel { pg: of.pg }),
        _ => {
            if let Some(next) = draw(s) {
                order(s, next);
            }
        }
    }
}
