//! Forced recovery of a PG that has lost its majority for good (ADR 0020): its order, and the end of what went before it.

use super::Plan;
use super::members::pg_of;
use crate::records::{ForceRecord, PgRecord, Record, Records, VolumeRecord, Write};
use types::map::{ForceMembers, Member, Membership};
use types::{Epoch, Index, OsdId, PgId, ReplicaId, SessionId, Term};

/// Distance of the members' epoch from all that replicas of the PG may have come to.
const EPOCH_LEAP: u64 = 1 << 20;

/// A forced recovery that is to be ordered.
#[derive(Clone, Copy, Debug)]
pub struct ForceOrder {
    /// The replica that will be the only member.
    pub keep: Member,
    /// Last entry of its log, or of its past.
    pub end: (Term, Index),
    /// Acknowledged writes may be lost: the sessions of the PG end.
    pub fence: bool,
    /// The metadata leader orders it by itself: moves of the PG that wait go on afterwards.
    pub automatic: bool,
    /// Floor and epoch of an order that was given up, and that `keep` has carried out.
    pub done: Option<(ReplicaId, Epoch)>,
}

/// Records the forced recovery of a PG. A repeated command changes the end at most that the order names, and a command takes the
/// place of an automatic order.
///
/// # Errors
/// BSLT-2044 for an unknown PG.
pub fn pg_force(records: &Records, pg: PgId, order: ForceOrder) -> Plan<()> {
    let ForceOrder { keep, end, fence, automatic, done } = order;
    let record = pg_of(records, pg)?;
    let stands = |forced: &ForceRecord| {
        forced.force.keep == keep && forced.force.fence >= fence && (automatic || !forced.automatic)
    };
    if let Some(forced) = record.forced.as_ref().filter(|forced| stands(forced)) {
        let force = ForceMembers { end, ..forced.force };
        let new = PgRecord { forced: Some(ForceRecord { force, ..forced.clone() }), ..record.clone() };
        return Ok((if new == *record { Vec::new() } else { vec![Write::Put(Record::Pg(new))] }, ()));
    }
    let mut counters = records.counters.clone();
    let next = ReplicaId(counters.next_replica);
    // Each forced recovery has a floor of its own.
    counters.next_replica += 1;
    // An earlier order may have been carried out, and the one that counts has the higher epoch.
    let earlier =
        record.forced.iter().map(|forced| forced.force.epoch).chain(record.voided.iter().map(|void| void.epoch));
    let epoch = Epoch(earlier.fold(record.conf_epoch, Epoch::max).0.saturating_add(EPOCH_LEAP));
    let (floor, epoch) = done.unwrap_or((next, epoch));
    let sessions_below = SessionId(counters.next_session);
    let force = ForceMembers { keep, floor, fence, epoch, end };
    let queue = if automatic { record.queue.clone() } else { Vec::new() };
    let mut new = PgRecord { queue, ..record.clone() };
    if record.forced.as_ref().is_some_and(|forced| forced.force.keep != keep) {
        new.void_force();
    }
    new.voided.retain(|void| void.floor != floor);
    new.forced = Some(ForceRecord { force, sessions_below, fenced: !fence, automatic });
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Pg(new))], ()))
}

/// Gives up a forced recovery that was ordered.
pub fn give_up_force(record: &PgRecord) -> Vec<Write> {
    let mut new = record.clone();
    new.void_force();
    vec![Write::Put(Record::Pg(new))]
}

/// Notes a floor that replicas of a PG have, and the record does not know.
pub fn note_floor(record: &PgRecord, seen_floor: ReplicaId) -> Vec<Write> {
    vec![Write::Put(Record::Pg(PgRecord { seen_floor, ..record.clone() }))]
}

/// Notes that no session from before a forced recovery is left.
pub fn note_fenced(record: &PgRecord) -> Vec<Write> {
    let forced = record.forced.clone().map(|forced| ForceRecord { fenced: true, ..forced });
    vec![Write::Put(Record::Pg(PgRecord { forced, ..record.clone() }))]
}

/// Returns at most `max` volumes in the PG whose attach record there is from before a forced recovery that may lose writes:
/// their sessions have to end, and the record has to be committed again.
pub fn unfenced<'a>(
    records: &'a Records,
    record: &PgRecord,
    forced: &ForceRecord,
    max: usize,
) -> impl Iterator<Item = &'a VolumeRecord> {
    let (pg, below) = (record.pg, forced.sessions_below);
    let of_pg = move |v: &&VolumeRecord| records.segments_of(v.id).any(|segment| segment.pgs().any(|of| of == pg));
    let is_old = move |v: &&VolumeRecord| v.settled || v.holders().any(|(of, _)| of.session < below);
    records.volumes_of(pg.pool).filter(is_old).filter(of_pg).take(max)
}

/// Ends the sessions of a volume from before `below`, and asks for its attach record in all PGs again.
pub fn fence_volume(records: &Records, volume: &VolumeRecord, below: SessionId) -> Vec<Write> {
    let mut writes = super::fence(records, volume, &|session| session < below);
    if writes.is_empty() {
        writes.push(Write::Put(Record::Volume(VolumeRecord { settled: false, ..volume.clone() })));
    }
    let again = |write| match write {
        Write::Put(Record::Volume(volume)) => Write::Put(Record::Volume(super::shrink::shortened_again(volume))),
        write => write,
    };
    writes.into_iter().map(again).collect()
}

/// Returns the OSDs on which a PG lacks a member once `members` are in force.
pub(super) fn vacant_after(record: &PgRecord, members: &Membership) -> Vec<OsdId> {
    let is_forced = members.floor > record.floor;
    let holds = |osd: &OsdId| members.voters.iter().any(|m| m.osd == *osd);
    let mut vacant: Vec<OsdId> = match is_forced {
        true => record.places().collect(),
        // A change has filled its place.
        false => {
            let filled = record.change.as_ref().filter(|c| c.remove.0 == 0 && members.voters.contains(&c.add));
            record.vacant.iter().copied().filter(|osd| filled.is_none_or(|c| c.from != *osd)).collect()
        }
    };
    vacant.retain(|osd| !holds(osd));
    // Records that went back in time may name places that are filled elsewhere.
    vacant.truncate(record.places().count().saturating_sub(members.voters.len()));
    vacant
}

/// Queues a new replica in the place of one that a forced recovery has given up, on the same OSD. `None`: a change is under way,
/// or the place is not vacant.
pub fn refill(record: &PgRecord, osd: OsdId) -> Option<Vec<Write>> {
    let is_free = record.change.is_none() && record.queue.is_empty() && record.vacant.contains(&osd);
    is_free.then(|| vec![Write::Put(Record::Pg(PgRecord { queue: vec![(osd, osd)], ..record.clone() }))])
}
