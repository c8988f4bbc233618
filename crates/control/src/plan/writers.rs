//! Writers of volumes: opens, closes and fences (R6, ADR 0039).
//!
//! The epoch of a volume rises in each transaction that lets a writer in or out. A writer that stays keeps the epoch of its open.

use super::Plan;
use super::changes::live;
use super::snapshots::ready;
use super::volumes::check_recovered;
use crate::admin::WriterName;
use crate::records::{Held, Holder, Holding, Record, Records, VolumeRecord, VolumeState, Write};
use crate::refusal::refuse;
use std::time::Duration;
use types::codes;
use types::control::Refusal;
use types::planted::{Bug, on};
use types::writers::{POOL_WRITERS_MAX, WRITERS_MAX, Writer};
use types::{Epoch, SessionId, SnapshotId, VolumeId};

/// Writers that a refusal names.
const NAMED_MAX: usize = 3;

/// Whether a client uses a volume that is to be taken from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct InUse {
    /// Take the volume although a writer is alive.
    pub force: bool,
    /// Remove its snapshots with it.
    pub snapshots: bool,
    /// Remove it although it has clones.
    pub detach: bool,
    /// The longest time left of the leases of living writers.
    pub lease: Option<Duration>,
    pub wall_ms: u64,
}

/// Checks that a volume may be taken from its users.
///
/// # Errors
/// BSLT-2043, and BSLT-2020 while a writer is alive, unless `force`.
pub(super) fn check_free(name: &str, volume: &VolumeRecord, use_: &InUse) -> Result<(), Refusal> {
    check_recovered(name, volume)?;
    match use_.lease.filter(|_| !use_.force) {
        Some(lease) => Err(held(name, volume, lease, use_.wall_ms)),
        None => Ok(()),
    }
}

fn held(name: &str, volume: &VolumeRecord, lease: Duration, wall_ms: u64) -> Refusal {
    let who = |(_, h): (_, &Holder)| {
        format!("{:?} at {}, since {} s", h.name, h.address, wall_ms.saturating_sub(h.since_ms) / 1000)
    };
    let mut by: Vec<String> = volume.holders().map(who).collect();
    let more = by.len().saturating_sub(NAMED_MAX);
    by.truncate(NAMED_MAX);
    if more > 0 {
        by.push(format!("{more} more"));
    }
    let lease_of = if by.len() > 1 { "the last lease" } else { "its lease" };
    let (by, left) = (by.join(", and by "), lease.as_millis().div_ceil(1000));
    let text = format!("volume {name:?} is open for writing by {by}; {lease_of} ends in {left} s unless it is renewed");
    refuse(codes::VOLUME_HELD, text)
}

/// Returns an epoch above every one that the volume ever had.
pub(super) fn next_epoch(records: &Records, volume: &VolumeRecord) -> Epoch {
    Epoch(volume.epoch.max(records.counters.epoch_floor).0 + 1)
}

/// Returns a volume, under a new epoch, without the writers that do not stay. Its attach record must be committed in all its PGs.
///
/// # Panics
/// When the only writer of an exclusive volume stays: its epoch is that of the volume.
fn let_out(records: &Records, volume: &VolumeRecord, stays: &dyn Fn(SessionId) -> bool) -> VolumeRecord {
    let held = match &volume.held {
        Held::Exclusive { session, .. } => {
            assert!(session.0 == 0 || !stays(*session), "{} keeps its only writer", volume.id);
            Held::NOT
        }
        Held::Shared { writers } => {
            Held::Shared { writers: writers.iter().filter(|of| stays(of.session)).cloned().collect() }
        }
    };
    volume.with_writers(held, next_epoch(records, volume), records.is_in_no_pg(volume))
}

/// Returns a volume without writers, under a new epoch.
pub(super) fn let_out_all(records: &Records, volume: &VolumeRecord) -> VolumeRecord {
    let_out(records, volume, &|_| false)
}

/// A client that opens a volume, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    pub holder: Holder,
    pub write: bool,
    pub steal: bool,
}

/// Result of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPlan {
    pub volume: VolumeId,
    /// Zero when read-only.
    pub session: SessionId,
    pub epoch: Epoch,
    /// Whether the hold is new: attach records must be committed under it.
    pub fresh: bool,
    /// The snapshot that is opened in place of the volume.
    pub snapshot: Option<SnapshotId>,
}

/// Opens a volume. A writer raises the epoch and gets a session; a reader changes nothing. A repeated request
/// (`client`, `ask`) joins the hold that it already took. `left`: the time left of the lease of a living writer.
///
/// # Errors
/// BSLT-2011, BSLT-2014, BSLT-2043. Unless `steal`: BSLT-2020 while another writer is alive, or, for a multi-writer volume, BSLT-2066 while
/// as many are alive as it can have.
pub fn open(
    records: &Records,
    name: &str,
    opener: &Opener,
    left: &dyn Fn(VolumeId, SessionId) -> Option<Duration>,
) -> Plan<OpenPlan> {
    if name.contains('@') {
        return open_snapshot(records, name, opener.write);
    }
    let volume = records.volume(name)?;
    if volume.state == VolumeState::Deleting {
        return Err(refuse(codes::VOLUME_UNKNOWN, format!("volume {name:?} is being removed")));
    }
    check_recovered(name, volume)?;
    let id = volume.id;
    let joined = |session, epoch| OpenPlan { volume: id, session, epoch, fresh: false, snapshot: None };
    if !opener.write {
        return Ok((Vec::new(), joined(SessionId(0), volume.epoch)));
    }
    let same = |h: &Holder| (h.client, h.ask) == (opener.holder.client, opener.holder.ask);
    if let Some((of, _)) = volume.holders().find(|(_, holder)| same(holder)) {
        return Ok((Vec::new(), joined(of.session, of.epoch)));
    }
    let leases = volume.holders().filter_map(|(of, _)| left(id, of.session));
    if let Some(lease) = leases.max().filter(|_| !opener.steal && !volume.is_multi_writer()) {
        return Err(held(name, volume, lease, opener.holder.since_ms));
    }
    let shares = volume.is_multi_writer() && !opener.steal;
    let stays = |session| shares && left(id, session).is_some() && !on(Bug::OpenDropsWriters);
    let mut record = let_out(records, volume, &stays);
    let mut counters = records.counters.clone();
    let session = SessionId(counters.next_session);
    counters.next_session += 1;
    let (epoch, holder) = (record.epoch, opener.holder.clone());
    record.held = match record.held {
        Held::Exclusive { .. } => Held::Exclusive { session, holder: Some(holder) },
        Held::Shared { writers } if writers.len() >= WRITERS_MAX => {
            let text = format!("volume {name:?} is open for writing by {} clients", writers.len());
            return Err(refuse(codes::TOO_MANY_WRITERS, text));
        }
        Held::Shared { .. } if writers_of_pool(records, volume) >= POOL_WRITERS_MAX => {
            let text = format!("the multi-writer volumes of the pool of {name:?} have {POOL_WRITERS_MAX} writers");
            return Err(refuse(codes::TOO_MANY_WRITERS, text));
        }
        Held::Shared { mut writers } => {
            writers.push(Holding { session, epoch, holder });
            Held::Shared { writers }
        }
    };
    let plan = OpenPlan { volume: id, session, epoch, fresh: true, snapshot: None };
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Volume(record))], plan))
}

/// Counts the writers of the other multi-writer volumes in the pool of a volume.
fn writers_of_pool(records: &Records, volume: &VolumeRecord) -> usize {
    let others = records.volumes_of(volume.pool).filter(|other| other.is_multi_writer() && other.id != volume.id);
    others.map(|other| other.holders().count()).sum()
}

/// Opens a snapshot for reading.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2043, BSLT-2050, BSLT-2055 while it is made, BSLT-2056 for a writer.
fn open_snapshot(records: &Records, name: &str, write: bool) -> Plan<OpenPlan> {
    let found = ready(records, name)?;
    if write {
        let text = format!("snapshot {name:?} cannot be opened for writing");
        return Err(refuse(codes::SNAPSHOT_READ_ONLY, text));
    }
    let volume = &records.volumes[&found.volume];
    check_recovered(name, volume)?;
    let (volume, epoch, snapshot) = (found.volume, volume.epoch, Some(found.snapshot));
    Ok((Vec::new(), OpenPlan { volume, session: SessionId(0), epoch, fresh: false, snapshot }))
}

/// Ends the hold of a session. `None` when it holds nothing any more.
pub fn close(records: &Records, volume: VolumeId, session: SessionId) -> (Vec<Write>, Option<Epoch>) {
    let Some(volume) = records.volumes.get(&volume).filter(|v| v.holder_of(session).is_some()) else {
        return (Vec::new(), None);
    };
    let stays = |of| of != session && !on(Bug::CloseFencesWriters);
    let mut record = let_out(records, volume, &stays);
    // It has no request on the way, so no fence need wait for it.
    record.leaving.retain(|of| of.session != session);
    record.fenced.retain(|of| of.session != session);
    let epoch = record.epoch;
    (vec![Write::Put(Record::Volume(record))], Some(epoch))
}

/// Fences the writers of a volume whose session `goes`. Empty when none does.
pub fn fence(records: &Records, volume: &VolumeRecord, goes: &dyn Fn(SessionId) -> bool) -> Vec<Write> {
    if !volume.holders().any(|(of, _)| goes(of.session)) {
        return Vec::new();
    }
    vec![Write::Put(Record::Volume(let_out(records, volume, &|session| !goes(session))))]
}

/// Fences the writers of a volume that `which` names, and returns them. None are when they have been let out before: then it is awaited that
/// each PG has a record without them.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2043; BSLT-2067 when it names no client that wrote. BSLT-2055 in place of it while a PG may take
/// writes of clients that the record does not name.
pub fn volume_fence(records: &Records, name: &str, which: &WriterName) -> Plan<(VolumeId, Vec<Holding>)> {
    let volume = live(records, name)?;
    check_recovered(name, volume)?;
    let held =
        |(of, holder): (Writer, &Holder)| Holding { session: of.session, epoch: of.epoch, holder: holder.clone() };
    let named: Vec<Holding> = volume.holders().map(held).filter(|of| which.names(of)).collect();
    if !named.is_empty() {
        let record = let_out(records, volume, &|session| !named.iter().any(|of| of.session == session));
        return Ok((vec![Write::Put(Record::Volume(record))], (volume.id, named)));
    }
    let forgets = on(Bug::FenceForgetsThoseLetOut);
    if volume.leaving.iter().chain(&volume.fenced).any(|of| which.names(of) && !forgets) {
        return Ok((Vec::new(), (volume.id, named)));
    }
    let shown = |(of, holder): (Writer, &Holder)| format!("{} (session {})", holder, of.session.0);
    let others: Vec<String> = volume.holders().map(shown).collect();
    let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    if volume.refuses_others() || forgets {
        let text = format!("volume {name:?} has no writer {which}; its writers: {others}");
        return Err(refuse(codes::WRITER_UNKNOWN, text));
    }
    let text = format!(
        "volume {name:?} has no writer {which} (its writers: {others}), but not each of its PGs has this list yet; repeat the command"
    );
    Err(refuse(codes::VOLUME_BUSY, text))
}

impl WriterName {
    /// Whether it names this writer: its session, or the whole name of the client, its host, or its address with or without the port.
    fn names(&self, of: &Holding) -> bool {
        match self {
            WriterName::Session(session) => of.session == *session,
            WriterName::Client(which) => {
                let holder = &of.holder;
                let addresses = [holder.address.as_str(), ip_of(&holder.address)];
                holder.name == *which || host_of(&holder.name) == Some(which) || addresses.contains(&which.as_str())
            }
        }
    }
}

impl std::fmt::Display for WriterName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WriterName::Session(session) => write!(f, "with session {}", session.0),
            WriterName::Client(which) => write!(f, "{:?}", which.chars().take(140).collect::<String>()),
        }
    }
}

/// Returns the host in the name of a client: `nbd on HOST pid 7`.
fn host_of(name: &str) -> Option<&str> {
    let name = name.rsplit_once(" pid ").map_or(name, |(name, _)| name);
    name.rsplit_once(" on ").map(|(_, host)| host)
}

fn ip_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(ip, _)| ip.trim_start_matches('[').trim_end_matches(']'))
}

/// Lets a volume have several writers at a time, or only one. A repeated request changes nothing.
///
/// # Errors
/// Those of [`check_free`].
pub(super) fn share(
    records: &Records,
    name: &str,
    volume: &VolumeRecord,
    multi_writer: bool,
    use_: &InUse,
) -> Result<VolumeRecord, Refusal> {
    if volume.is_multi_writer() == multi_writer {
        return Ok(volume.clone());
    }
    check_free(name, volume, use_)?;
    let record = if volume.is_held() { let_out_all(records, volume) } else { volume.clone() };
    Ok(VolumeRecord { held: Held::by_none(multi_writer), ..record })
}
