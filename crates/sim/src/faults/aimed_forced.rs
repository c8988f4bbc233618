//! Schedules aimed at forced recovery (ADR 0020): all replicas of a PG but the furthest one fail, and an administrator lets the PG
//! go on from it, while it, its successors and metadata servers die. Nothing may be lost: the kept log has every entry that the
//! others have.

use super::Strike;
use super::aimed_members::accidents_around;
use control::admin::{AdminAsk, PgForce};
use std::time::Duration;
use types::{Index, PgId, Term};

/// Pause between two commands, and how many there are.
const AGAIN: Duration = Duration::from_millis(1500);
pub(super) const COMMANDS: u32 = 12;

pub fn strike(s: &mut Strike<'_>) -> bool {
    let Some((pg, kept)) = fail_all_but_one(s) else { return false };
    accidents_around(s, pg, kept);
    true
}

/// A forced recovery without accidents of OSDs.
pub(super) fn strike_between(s: &mut Strike<'_>) -> bool {
    fail_all_but_one(s).is_some()
}

/// Fails all replicas of a PG but the furthest one, and lets an administrator recover the PG. Returns the PG, and the OSD of that
/// replica.
fn fail_all_but_one(s: &mut Strike<'_>) -> Option<(PgId, usize)> {
    let (pg, kept, lost) = draw(s)?;
    for osd in lost {
        let Some(replica) = s.cluster.fail_replica(osd, pg) else { continue };
        s.after(Duration::from_secs(1), move |s| s.cluster.note_failed(replica));
    }
    // A new leader of the metadata judges no OSD for a while, and refuses the command meanwhile.
    let commands = if s.cluster.meta.elects() { 4 * COMMANDS } else { COMMANDS };
    s.after(AGAIN, move |s| command(s, pg, commands));
    Some((pg, kept))
}

/// Draws a PG that is whole. Returns the member whose durable log is the furthest, and the others.
pub(super) fn draw(s: &mut Strike<'_>) -> Option<(PgId, usize, Vec<usize>)> {
    let (pg, _) = super::aimed_members::draw_whole(s)?;
    // One whose places are filled: a second failure would need a second command.
    s.cluster.meta.records()?.pgs.get(&pg).filter(|r| r.vacant.is_empty() && r.forced.is_none())?;
    let group = |osd: &osd::Osd| {
        let group = osd.groups_for_tools().find(|group| group.identity().pg == pg)?;
        Some((group.term(), group.durable_end()))
    };
    let ends: Vec<(usize, (Term, Index))> =
        s.cluster.running().filter_map(|(id, osd)| Some((id.0 as usize - 1, group(osd)?))).collect();
    let (kept, (term, _)) = ends.iter().copied().max_by_key(|(_, end)| *end)?;
    // In one term logs are prefixes of each other.
    let lost: Vec<usize> = ends.iter().map(|(osd, _)| *osd).filter(|osd| *osd != kept).collect();
    ends.iter().all(|(_, (of, _))| *of == term).then_some((pg, kept, lost))
}

pub(super) fn need(s: &mut Strike<'_>, needed: usize) {
    s.cluster.linear.durable.as_mut().into_iter().for_each(|watch| watch.need(needed));
}

/// One disk makes a majority until all PGs have their members again.
fn until_filled(s: &mut Strike<'_>) {
    let lacks = |record: &control::PgRecord| record.forced.is_some() || !record.vacant.is_empty();
    let is_filled = s.cluster.meta.records().is_some_and(|r| !r.pgs.values().any(lacks));
    match is_filled {
        true => need(s, s.cluster.options.replicas as usize / 2 + 1),
        false => s.after(AGAIN, until_filled),
    }
}

/// An administrator forces the PG, again and again: it is refused while the PG may still serve.
pub(super) fn command(s: &mut Strike<'_>, pg: PgId, left: u32) {
    let is_forced = s.cluster.meta.records().and_then(|r| r.pgs.get(&pg)).is_some_and(|r| !r.vacant.is_empty());
    if left == 0 || is_forced {
        return s.after(Duration::from_secs(1), |s| s.cluster.open_again());
    }
    // Writes might be lost, as far as meta knows: the sessions of the PG end.
    s.cluster.every_hold_ends();
    need(s, 1);
    s.after(AGAIN, until_filled);
    s.cluster.admin(AdminAsk::PgForce(PgForce { pg, osd: None, dry_run: false, accept_loss: true }));
    s.after(AGAIN, move |s| command(s, pg, left - 1));
}
