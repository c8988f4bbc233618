//! Changes of the members of a PG (ADR 0016): the durable record, its queue, and what a leader's report ends.

use super::Plan;
use crate::admin::PgMove;
use crate::records::{ChangeReason, ChangeRecord, PgRecord, Record, Records, Write};
use crate::refusal::refuse;
use placement::Domain;
use types::codes;
use types::control::Refusal;
use types::map::{Member, Membership};
use types::{OsdId, PgId, ReplicaId};

/// Changes of one PG that may wait.
const CHANGES_QUEUED_MAX: usize = 16;

/// Returns the PG.
///
/// # Errors
/// BSLT-2044.
pub(super) fn pg_of(records: &Records, pg: PgId) -> Result<&PgRecord, Refusal> {
    records.pgs.get(&pg).ok_or_else(|| refuse(codes::PG_UNKNOWN, format!("there is no PG {pg}")))
}

/// Returns the OSDs that hold the PG when all its changes have ended.
pub fn planned(record: &PgRecord) -> Vec<OsdId> {
    let mut osds: Vec<OsdId> = record.places().collect();
    let moves = record.change.iter().filter(|c| !c.cancel).map(|c| (c.from, c.to));
    for (from, to) in moves.chain(record.queue.iter().copied()) {
        osds.iter_mut().filter(|osd| **osd == from).for_each(|osd| *osd = to);
    }
    osds
}

/// Queues the move of a replica from one OSD to another. `takes` says whether an OSD is up and has space.
///
/// # Errors
/// BSLT-2044 for an unknown PG, BSLT-2024 for an unknown OSD, BSLT-2045 when the move is not possible.
pub fn pg_move(records: &Records, ask: &PgMove, takes: &dyn Fn(OsdId) -> bool) -> Plan<()> {
    let PgMove { pg, from, to, .. } = *ask;
    let record = pg_of(records, pg)?;
    let same = record.change.as_ref().is_some_and(|c| !c.cancel && (c.from, c.to) == (from, to));
    if same || record.queue.contains(&(from, to)) {
        return Ok((Vec::new(), ()));
    }
    let cannot = |why: String| refuse(codes::BAD_MOVE, why);
    let target = records.osds.get(&to).ok_or_else(|| refuse(codes::OSD_UNKNOWN, format!("{to} is not registered")))?;
    let osds = planned(record);
    if !osds.contains(&from) {
        return Err(cannot(format!("{from} holds no replica of PG {pg}, or the replica is being moved away from it")));
    }
    if osds.contains(&to) {
        return Err(cannot(format!("{to} holds a replica of PG {pg}, or gets one")));
    }
    if !takes(to) {
        return Err(cannot(format!("{to} does not serve, or is full")));
    }
    if !target.is_in || target.drain {
        return Err(cannot(format!("{to} is out, or is being drained")));
    }
    let class = records.pools.get(&pg.pool).and_then(|pool| pool.device_class.as_deref());
    if let Some(class) = class.filter(|_| !target.is_of(class)) {
        return Err(cannot(format!("{to} is not of device class {class}, which the pool asks for")));
    }
    let domain = records.pools.get(&pg.pool).and_then(|pool| Domain::from_name(&pool.domain)).unwrap_or(Domain::Osd);
    let place = |osd: OsdId| records.osds.get(&osd).map(|record| super::pools::placed(record, true).domain(domain));
    let neighbour = osds.iter().filter(|osd| **osd != from).find(|osd| place(**osd) == place(to));
    if let Some(neighbour) = neighbour {
        return Err(cannot(format!("{to} shares the {} of {neighbour}, which holds PG {pg}, too", domain.name())));
    }
    if record.queue.len() >= CHANGES_QUEUED_MAX {
        return Err(cannot(format!("{CHANGES_QUEUED_MAX} changes of PG {pg} are queued")));
    }
    // A failed replica that is to be replaced where it is moves instead.
    let on_its_own = record.change.as_ref().is_some_and(|change| (change.from, change.to) == (from, from));
    let change = if on_its_own { cancelled(record) } else { record.change.clone() };
    let mut queue = record.queue.clone();
    queue.retain(|waits| *waits != (from, from));
    queue.push((from, to));
    Ok((vec![Write::Put(Record::Pg(PgRecord { change, queue, ..record.clone() }))], ()))
}

/// Gives up the present change of a PG and those that wait. A change whose joint phase has begun ends as ordered.
///
/// # Errors
/// BSLT-2044.
pub fn pg_move_cancel(records: &Records, pg: PgId) -> Plan<()> {
    let record = pg_of(records, pg)?;
    let change = cancelled(record);
    let mut new = PgRecord { change, queue: Vec::new(), ..record.clone() };
    new.void_force();
    Ok((if new == *record { Vec::new() } else { vec![Write::Put(Record::Pg(new))] }, ()))
}

/// Queues the replacement of a replica that has failed, before all other changes of its PG: on its own OSD, under a new id. A
/// replica that fails while it joins is given up, and its move begins again. `None`: the replica leaves already.
pub fn replace_failed(record: &PgRecord, failed: ReplicaId) -> Option<Vec<Write>> {
    let mut new = record.clone();
    match &mut new.change {
        Some(change) if change.add.replica == failed && !change.cancel => {
            change.cancel = true;
            // A move of the plan is planned again.
            if matches!(change.reason, ChangeReason::Command | ChangeReason::Failed) {
                new.queue.insert(0, (change.from, change.to));
            }
        }
        change => {
            let osd = record.members.iter().find(|m| m.replica == failed)?.osd;
            let leaves = change.as_ref().is_some_and(|change| change.remove == failed && !change.cancel);
            if leaves || new.queue.iter().any(|(from, _)| *from == osd) {
                return None;
            }
            new.queue.insert(0, (osd, osd));
        }
    }
    Some(vec![Write::Put(Record::Pg(new))])
}

fn cancelled(record: &PgRecord) -> Option<ChangeRecord> {
    record.change.clone().map(|change| ChangeRecord { cancel: true, ..change })
}

/// Gives up the present change of a PG, unless its joint phase has begun.
pub fn give_up(record: &PgRecord) -> Vec<Write> {
    vec![Write::Put(Record::Pg(PgRecord { change: cancelled(record), ..record.clone() }))]
}

/// Begins the first change of the queue that is still possible: its replica gets an id. No change may be under way. Returns
/// the moves before it, which are given up.
pub fn begin_change(records: &Records, record: &PgRecord, wall_ms: u64) -> (Vec<Write>, Vec<(OsdId, OsdId)>) {
    assert!(record.change.is_none(), "PG {} has a change already", record.pg);
    let mut rest = record.clone();
    let mut given_up = Vec::new();
    while !rest.queue.is_empty() {
        let (from, to) = rest.queue.remove(0);
        let reason = if from == to { ChangeReason::Failed } else { ChangeReason::Command };
        match begin_move(records, &rest, (from, to), reason, wall_ms) {
            Some(writes) => return (writes, given_up),
            None => given_up.push((from, to)),
        }
    }
    (vec![Write::Put(Record::Pg(rest))], given_up)
}

/// Begins a change of a PG that has none: a replica on the second OSD takes the place of the one on the first. `None`: that is
/// not possible any more.
pub fn begin_move(
    records: &Records,
    record: &PgRecord,
    (from, to): (OsdId, OsdId),
    reason: ChangeReason,
    wall_ms: u64,
) -> Option<Vec<Write>> {
    assert!(record.change.is_none(), "PG {} has a change already", record.pg);
    let is_vacant = record.vacant.contains(&from).then_some(ReplicaId(0));
    let remove = record.members.iter().find(|m| m.osd == from).map(|m| m.replica).or(is_vacant)?;
    let may_come = records.osds.contains_key(&to) && (from == to || record.members.iter().all(|m| m.osd != to));
    if !may_come {
        return None;
    }
    let (mut new, mut counters) = (record.clone(), records.counters.clone());
    let add = Member { replica: ReplicaId(counters.next_replica), osd: to };
    counters.next_replica += 1;
    new.changes += 1;
    let (id, expected, cancel, since_ms) = (new.changes, new.conf_epoch, false, wall_ms);
    new.change = Some(ChangeRecord { id, expected, add, remove, from, to, cancel, since_ms, reason });
    if new.created.is_empty() {
        new.created.clone_from(&new.members);
    }
    Some(vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Pg(new))])
}

/// Takes the members that a leader reports, when they differ from the record and no change is under way there. Returns the
/// replicas that are no members any more, and whether the change did what it was for.
pub fn take_members(record: &PgRecord, members: &Membership) -> Option<(Vec<Write>, Vec<Member>, bool)> {
    if members.epoch <= record.conf_epoch || !members.is_settled() || members.voters.is_empty() {
        return None;
    }
    // A member keeps its place, and a new one takes the place of the one that left: the first is the preferred leader.
    let mut fresh = members.voters.iter().filter(|m| !record.members.contains(m)).copied();
    let stays = |m: &Member| members.voters.contains(m);
    let mut voters: Vec<Member> =
        record.members.iter().filter_map(|m| if stays(m) { Some(*m) } else { fresh.next() }).collect();
    voters.extend(fresh);
    let gone: Vec<Member> = record.everyone().filter(|m| !stays(m)).collect();
    let done = record.change.as_ref().is_none_or(|change| stays(&change.add));
    let created = if record.created.is_empty() { record.members.clone() } else { record.created.clone() };
    let vacant = super::force::vacant_after(record, members);
    let mut new =
        PgRecord { members: voters, conf_epoch: members.epoch, created, change: None, vacant, ..record.clone() };
    new.floor = members.floor;
    // After a forced recovery all members descend from the replica that has gone on alone.
    let is_forced = members.floor > record.floor;
    new.voided.retain(|void| void.floor != members.floor && !(is_forced && void.automatic));
    match &record.forced {
        Some(forced) if members.floor >= forced.force.floor => new.forced = None,
        // The replica that was to be kept is no member any more.
        Some(forced) if !stays(&forced.force.keep) => new.void_force(),
        _ => {}
    }
    Some((vec![Write::Put(Record::Pg(new))], gone, done))
}
