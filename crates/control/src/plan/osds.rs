//! OSDs: ids, addresses, and the administrator's intent.

use super::pools::checked_class;
use super::{Plan, checked_size};
use crate::admin::{OsdRegister, OsdSet};
use crate::records::{Key, OsdRecord, Poisoned, Record, Records, Write};
use crate::refusal::refuse;
use std::collections::BTreeMap;
use types::codes;
use types::control::{OsdHello, Refusal};
use types::limits::{LOCATION_LEN_MAX, POISON_REASON_LEN_MAX, clip};
use types::planted::{Bug, on};
use types::{Epoch, OsdId};

/// Distance from the recorded mount number to that of a device whose replicas have failed: more than any device starts.
pub(crate) const MOUNT_LEAP: u64 = 1 << 32;
/// Most OSDs of one command.
const OSDS_SET_MAX: usize = 32;
// An OSD and its successor are written, and one event.
const _: () = assert!(2 * OSDS_SET_MAX < crate::batch::PLAN_WRITES_MAX);

/// Refuses names of a place that are too long: cutting them would record another place.
fn check_location(names: [&String; 3]) -> Result<(), Refusal> {
    let long = ["host", "rack", "zone"].into_iter().zip(names).find(|(_, name)| name.len() > LOCATION_LEN_MAX);
    let Some((what, name)) = long else { return Ok(()) };
    let text = format!("the name of the {what} has {} bytes, more than {LOCATION_LEN_MAX}", name.len());
    Err(refuse(codes::BAD_LOCATION, text))
}

/// Draws an id for a device that is being formatted. The superblock needs it, and the OSD is registered only when that superblock
/// is durable.
///
/// # Errors
/// None.
pub fn osd_reserve(records: &Records) -> Plan<OsdId> {
    let mut counters = records.counters.clone();
    let id = OsdId(counters.next_osd);
    counters.next_osd += 1;
    Ok((vec![Write::Put(Record::Counters(counters))], id))
}

/// Registers a device under its reserved id, or a new one; the same uuid gets the same id again.
///
/// # Errors
/// BSLT-2014 for the name of a device class, BSLT-2029 when the name of a host, a rack or a zone is too long; BSLT-2024 for an id that was never reserved;
/// BSLT-2028 for an id that another device has; BSLT-2024 and BSLT-2047 when it cannot take over the OSD that it is to replace.
pub fn osd_register(records: &Records, ask: &OsdRegister, wall_ms: u64) -> Plan<OsdId> {
    if let Some(known) = records.osds.values().find(|o| o.uuid == ask.uuid) {
        let Some(old) = ask.replaces.filter(|old| known.replaces != Some(*old)) else {
            return Ok((Vec::new(), known.id));
        };
        // It took over all replicas already, and the old OSD is removed.
        if !records.osds.contains_key(&old) && old.0 < records.counters.next_osd && old.0 > 0 {
            return Ok((Vec::new(), known.id));
        }
        // An earlier format was interrupted after its registration.
        if !known.is_new() || old == known.id {
            let text = format!("{} has run already, and does not take {old} over", known.id);
            return Err(refuse(codes::BAD_REPLACEMENT, text));
        }
        let old = replaceable(records, old)?;
        let (replaces, weight, created_ms) = (ask.replaces, old.weight, wall_ms);
        let new = OsdRecord { replaces, weight, created_ms, ..known.clone() };
        return Ok((vec![out_for_good(old), Write::Put(Record::Osd(new))], known.id));
    }
    check_location([&ask.host, &ask.rack, &ask.zone])?;
    checked_class(ask.device_class.as_deref())?;
    let (mut writes, id) = match ask.osd {
        None => osd_reserve(records)?,
        Some(id) if id.0 == 0 || id.0 >= records.counters.next_osd => {
            return Err(refuse(codes::OSD_UNKNOWN, format!("{id} was never reserved")));
        }
        Some(id) if records.osds.contains_key(&id) => {
            return Err(refuse(codes::OSD_EXISTS, format!("{id} is registered with another uuid")));
        }
        Some(id) => (Vec::new(), id),
    };
    let replaced = ask.replaces.map(|old| replaceable(records, old)).transpose()?;
    let place = [ask.host.clone(), ask.rack.clone(), ask.zone.clone()];
    let judged_at = records.counters.revision;
    let new = OsdRecord::new(id, ask.uuid, place, ask.capacity_bytes, wall_ms);
    let mut record = OsdRecord { judged_at, replaces: ask.replaces, device_class: ask.device_class.clone(), ..new };
    if let Some(old) = replaced {
        record.weight = old.weight;
        writes.extend((!on(Bug::ReplacedStaysIn)).then(|| out_for_good(old)));
    }
    writes.push(Write::Put(Record::Osd(record)));
    Ok((writes, id))
}

/// Takes an OSD out that another one takes over: it does not come in again by itself.
fn out_for_good(old: &OsdRecord) -> Write {
    Write::Put(Record::Osd(OsdRecord { is_in: false, auto_out: false, ..old.clone() }))
}

/// Returns an OSD that another one may take over.
///
/// # Errors
/// BSLT-2024, BSLT-2047.
pub fn replaceable(records: &Records, old: OsdId) -> Result<&OsdRecord, Refusal> {
    let known = records.osds.get(&old).ok_or_else(|| refuse(codes::OSD_UNKNOWN, format!("{old} is not registered")))?;
    if let Some(other) = known.replaces {
        return Err(refuse(codes::BAD_REPLACEMENT, format!("{old} takes over {other} and is not done")));
    }
    match records.osds.values().find(|o| o.replaces == Some(old)) {
        Some(by) => Err(refuse(codes::BAD_REPLACEMENT, format!("{} takes {old} over already", by.id))),
        None => Ok(known),
    }
}

/// Removes an OSD that is down and holds no PG. Returns whether the address map has a new version.
///
/// # Errors
/// BSLT-2024, BSLT-2042.
pub fn osd_remove(records: &Records, osd: OsdId, up: bool) -> Plan<bool> {
    let Some(known) = records.osds.get(&osd) else {
        return Err(refuse(codes::OSD_UNKNOWN, format!("{osd} is not registered")));
    };
    let pgs = records.pgs.values().filter(|pg| pg.holders().any(|holder| holder == osd)).count();
    if pgs > 0 {
        return Err(refuse(codes::OSD_IN_USE, format!("{osd} holds {pgs} PGs")));
    }
    if up && !known.is_new() {
        return Err(refuse(codes::OSD_IN_USE, format!("{osd} is not known to be down")));
    }
    let mut writes = vec![Write::Delete(Key::Osd(osd))];
    let successor = records.osds.values().find(|o| o.replaces == Some(osd));
    writes.extend(successor.map(|o| Write::Put(Record::Osd(OsdRecord { replaces: None, ..o.clone() }))));
    if !known.is_new() {
        writes.push(next_map(records));
    }
    Ok((writes, !known.is_new()))
}

fn next_map(records: &Records) -> Write {
    let mut counters = records.counters.clone();
    counters.map_epoch = Epoch(counters.map_epoch.0 + 1);
    Write::Put(Record::Counters(counters))
}

/// Changes that a Hello made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloPlan {
    /// Whether the address map has a new version.
    pub map_changed: bool,
    /// The registered place and the new one, as zone/rack/host, when they differ.
    pub moved: Option<(String, String)>,
}

/// Takes an OSD's Hello: its address and place are recorded; membership and intent stay.
///
/// # Errors
/// BSLT-2026 for another cluster. BSLT-2024 and BSLT-2025 for an OSD that is not the one registered, or a run that was let in before
/// the registered one.
/// BSLT-2041 for a device that went back in time. BSLT-2029 when the name of its host, rack or zone is too long.
pub fn osd_hello(records: &Records, hello: &OsdHello) -> Plan<HelloPlan> {
    if hello.cluster != records.cluster_id() {
        let ours = records.cluster_id();
        return Err(refuse(
            codes::WRONG_CLUSTER,
            format!(
                "{} belongs to cluster {}, but these metadata servers serve cluster {ours}",
                hello.osd, hello.cluster
            ),
        ));
    }
    let Some(known) = records.osds.get(&hello.osd) else {
        return Err(refuse(codes::OSD_UNKNOWN, format!("{} is not registered", hello.osd)));
    };
    if known.uuid != hello.uuid {
        let text = format!("{} is registered with uuid {}, not {}", hello.osd, known.uuid, hello.uuid);
        return Err(refuse(codes::OSD_OTHER_LIFE, text));
    }
    // A run that a metadata server has let in may meet a later run in its place. Clocks of hosts may be wrong, so the mount number
    // tells which run is the later one. Another run with such a number is on an older device.
    let is_another = hello.incarnation != known.incarnation;
    if is_another && hello.device.let_in && hello.device.mount <= known.mount {
        let text = format!("a newer run of {} has already reported ({})", hello.osd, known.incarnation);
        return Err(refuse(codes::OSD_OTHER_LIFE, text));
    }
    let [host, rack, zone] = [(&hello.host, &known.host), (&hello.rack, &known.rack), (&hello.zone, &known.zone)]
        .map(|(said, kept)| said.as_ref().unwrap_or(kept));
    check_location([host, rack, zone])?;
    check_position(records, known, hello)?;
    let mut new = known.clone();
    new.addr = Some(hello.addr);
    new.http = hello.http;
    new.capacity_bytes = hello.capacity_bytes;
    new.incarnation = hello.incarnation;
    let place = |o: &OsdRecord| format!("{}/{}/{}", o.zone, o.rack, o.host);
    (new.host, new.rack, new.zone) = (host.clone(), rack.clone(), zone.clone());
    let moved = (place(&new) != place(known)).then(|| (place(known), place(&new)));
    if hello.incarnation != known.incarnation || known.judged_at < records.counters.recovered_at {
        // For a run that goes on, more is known than where its log ended at its mount.
        let same_run = hello.incarnation == known.incarnation;
        let log_seq = if same_run { hello.device.durable_seq } else { hello.device.log_seq };
        (new.mount, new.log_seq) = (hello.device.mount, log_seq);
        new.judged_at = records.counters.revision;
    }
    if new.poisoned.as_ref().is_some_and(|p| p.incarnation != hello.incarnation) {
        new.poisoned = None;
    }
    if new == *known {
        return Ok((Vec::new(), HelloPlan { map_changed: false, moved: None }));
    }
    let map_changed = new.addr != known.addr;
    let mut writes = vec![Write::Put(Record::Osd(new))];
    if map_changed {
        writes.push(next_map(records));
    }
    Ok((writes, HelloPlan { map_changed, moved }))
}

/// Returns the refusal of an OSD whose log ends before a batch that it reported as durable.
pub(crate) fn log_is_behind(osd: OsdId, ends: u64, reported: u64) -> Refusal {
    let text = format!(
        "the device of {osd} is older than its last report to the cluster: its log ends with batch {ends}, and \
         batch {reported} was reported as durable"
    );
    refuse(codes::DEVICE_BEHIND, text)
}

/// Checks that the device is the current one (R17). A new run has a later mount number than the last one, and its log reaches at
/// least as far. The log of a run that comes back never gets shorter. Any other device is an older copy, or has lost flushed
/// writes. A restored device has durably failed all its replicas, and begins a new count.
///
/// A position that was recorded before the records themselves went back is too old to judge by. Then the device must also
/// remember what most others remembered at the recovery (ADR 0012).
///
/// # Errors
/// BSLT-2041.
fn check_position(records: &Records, known: &OsdRecord, hello: &OsdHello) -> Result<(), Refusal> {
    let (device, osd, counters) = (hello.device, hello.osd, &records.counters);
    if hello.incarnation == known.incarnation && known.mount > 0 && device.durable_seq < known.log_seq {
        return Err(log_is_behind(osd, device.durable_seq, known.log_seq));
    }
    // The recorded mount number never falls: a later state of this device would pass for the current one.
    if device.restored && hello.incarnation != known.incarnation && device.mount <= known.mount {
        return Err(refuse(codes::DEVICE_BEHIND, format!("the mount number {} of {osd} is no new one", device.mount)));
    }
    if device.restored || device.let_in || on(Bug::OlderLetIn) {
        return Ok(());
    }
    if device.behind {
        let text = format!("the device of {osd} was found to be older than its last report to the cluster");
        return Err(refuse(codes::DEVICE_BEHIND, text));
    }
    if known.judged_at < counters.recovered_at && hello.seen.revision < counters.proof {
        let text = format!(
            "the device of {osd} may be older than its last report to the cluster: it has recorded revision {} of the \
             metadata, other OSDs had recorded revision {} at its recovery, and its position is not in the records",
            hello.seen.revision, counters.proof
        );
        return Err(refuse(codes::DEVICE_BEHIND, text));
    }
    if hello.incarnation == known.incarnation || known.mount == 0 {
        return Ok(());
    }
    if device.mount <= known.mount {
        let text = format!(
            "the device of {osd} is older than its last report to the cluster: this is its mount number {}, \
             and number {} has reported before",
            device.mount, known.mount
        );
        return Err(refuse(codes::DEVICE_BEHIND, text));
    }
    // The log of a device that was restored since begins lower. Its mount number shows that, also to records that went back.
    let restored_since = device.mount > known.mount.saturating_add(MOUNT_LEAP);
    if device.log_seq < known.log_seq && !restored_since {
        return Err(log_is_behind(osd, device.log_seq, known.log_seq));
    }
    Ok(())
}

/// Records the log position of a running OSD. The record only grows during a run.
pub fn osd_position(records: &Records, osd: OsdId, log_seq: u64) -> Vec<Write> {
    match records.osds.get(&osd) {
        Some(known) if log_seq > known.log_seq => vec![Write::Put(Record::Osd(OsdRecord { log_seq, ..known.clone() }))],
        _ => Vec::new(),
    }
}

/// Records that the store of an OSD stopped (R15), against the run that reported it.
pub fn osd_poisoned(records: &Records, osd: OsdId, reason: &str) -> Vec<Write> {
    let Some(known) = records.osds.get(&osd) else { return Vec::new() };
    if known.poisoned.as_ref().is_some_and(|p| p.incarnation == known.incarnation) {
        return Vec::new();
    }
    let poisoned =
        Some(Poisoned { incarnation: known.incarnation, reason: clip(reason, POISON_REASON_LEN_MAX).to_owned() });
    vec![Write::Put(Record::Osd(OsdRecord { poisoned, ..known.clone() }))]
}

/// Sets membership, device class and intent of OSDs, by command. Returns the OSDs that this changes.
///
/// # Errors
/// BSLT-2014 for the name of a device class; BSLT-2024; BSLT-2004 for none or too many OSDs.
pub fn osd_set(records: &Records, ask: &OsdSet, wall_ms: u64) -> Plan<Vec<OsdId>> {
    if ask.osds.is_empty() || ask.osds.len() > OSDS_SET_MAX {
        return Err(refuse(codes::BAD_REQUEST, format!("name from 1 to {OSDS_SET_MAX} OSDs at once")));
    }
    checked_class(ask.device_class.as_deref())?;
    let mut new: BTreeMap<OsdId, OsdRecord> = BTreeMap::new();
    let mut changed = Vec::new();
    for osd in &ask.osds {
        let Some(known) = new.get(osd).or(records.osds.get(osd)).cloned() else {
            return Err(refuse(codes::OSD_UNKNOWN, format!("{osd} is not registered")));
        };
        let is_in = ask.is_in.unwrap_or(known.is_in);
        // A command settles it: whether the OSD comes back has no say any more.
        let auto_out = known.auto_out && ask.is_in.is_none();
        // The time after which an OSD that is down goes out begins again.
        let down_since_ms = known.down_since_ms.map(|since| if ask.is_in == Some(true) { wall_ms } else { since });
        let drain = ask.drain.unwrap_or(known.drain);
        let device_class = ask.device_class.clone().or_else(|| known.device_class.clone());
        let after = OsdRecord { is_in, auto_out, drain, down_since_ms, device_class, ..known.clone() };
        if after == known || changed.contains(osd) {
            continue;
        }
        changed.push(*osd);
        new.insert(*osd, after);
        // An OSD that is in again is not replaced any more.
        if let Some(successor) = records.osds.values().find(|o| o.replaces == Some(*osd) && ask.is_in == Some(true)) {
            let successor = new.get(&successor.id).unwrap_or(successor).clone();
            new.insert(successor.id, OsdRecord { replaces: None, ..successor });
        }
    }
    let writes = new.into_values().map(|osd| Write::Put(Record::Osd(osd))).collect();
    Ok(checked_size((writes, changed)))
}

/// Records since when an OSD neither reports nor serves, or that it does again. An OSD that is out for that reason is in again.
/// Returns whether it comes back in.
pub fn osd_away(records: &Records, osd: OsdId, since_ms: Option<u64>) -> (Vec<Write>, bool) {
    let Some(known) = records.osds.get(&osd).filter(|known| known.down_since_ms.is_some() != since_ms.is_some()) else {
        return (Vec::new(), false);
    };
    let comes_in = since_ms.is_none() && known.auto_out;
    let is_in = known.is_in || comes_in;
    let auto_out = known.auto_out && since_ms.is_some();
    let new = OsdRecord { down_since_ms: since_ms, is_in, auto_out, ..known.clone() };
    (vec![Write::Put(Record::Osd(new))], comes_in)
}

/// Takes an OSD that is down for too long out.
pub fn osd_auto_out(records: &Records, osd: OsdId) -> Vec<Write> {
    let known = records.osds.get(&osd).filter(|known| known.is_in);
    let out = known.map(|known| OsdRecord { is_in: false, auto_out: true, ..known.clone() });
    out.map(|out| Write::Put(Record::Osd(out))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{ClusterRecord, StoredItem};
    use types::control::DevicePosition;
    use types::{ClusterId, Incarnation, OsdUuid};

    fn one_osd() -> Records {
        let cluster = Record::Cluster(ClusterRecord { id: ClusterId([7; 16]), created_ms: 1 });
        let item = |r: &Record| StoredItem { key: r.key().to_string(), value: r.encode(), version: 1 };
        let empty = Records::load([item(&cluster)]).expect("it loads");
        let (writes, _) = osd_register(&empty, &ask("h"), 5).expect("it is new");
        let puts = writes.iter().filter_map(|w| if let Write::Put(r) = w { Some(item(r)) } else { None });
        Records::load(std::iter::once(item(&cluster)).chain(puts)).expect("it loads")
    }

    fn ask(host: &str) -> OsdRegister {
        let (rack, zone) = (String::new(), String::new());
        OsdRegister {
            osd: None,
            uuid: OsdUuid([1; 16]),
            host: host.to_owned(),
            rack,
            zone,
            capacity_bytes: 1 << 40,
            device_class: None,
            replaces: None,
        }
    }

    fn hello(host: String, rack: String, zone: String) -> OsdHello {
        OsdHello {
            cluster: ClusterId([7; 16]),
            osd: OsdId(1),
            uuid: OsdUuid([1; 16]),
            incarnation: Incarnation(1),
            addr: ([127, 0, 0, 1], 7400).into(),
            http: None,
            capacity_bytes: 1 << 40,
            host: Some(host),
            rack: Some(rack),
            zone: Some(zone),
            version: "1.2.3".into(),
            replicas: Vec::new(),
            seen: types::control::Watermarks::default(),
            device: DevicePosition {
                mount: 1,
                log_seq: 1,
                durable_seq: 1,
                restored: false,
                let_in: false,
                behind: false,
            },
        }
    }

    #[test]
    fn too_long_location_is_refused_and_never_kept_in_part() {
        let (most, long) = ("x".repeat(LOCATION_LEN_MAX), "x".repeat(LOCATION_LEN_MAX + 1));
        let empty = Records::default();
        assert!(osd_register(&empty, &ask(&most), 5).is_ok());
        let refused = osd_register(&empty, &ask(&long), 5).expect_err("it is too long");
        assert_eq!(refused.code, codes::BAD_LOCATION);
        let text = "the name of the host has 256 bytes, more than 255; use at most 255 bytes each: ";
        assert!(refused.message.starts_with(text), "{}", refused.message);
        let records = one_osd();
        let no = String::new;
        assert!(osd_hello(&records, &hello(most.clone(), most.clone(), most)).is_ok());
        for hello in [hello(long.clone(), no(), no()), hello(no(), long.clone(), no()), hello(no(), no(), long)] {
            assert_eq!(osd_hello(&records, &hello).map(|_| ()).map_err(|r| r.code), Err(codes::BAD_LOCATION));
        }
    }

    #[test]
    fn the_reason_of_a_poison_is_kept_as_far_as_its_limit() {
        let writes = osd_poisoned(&one_osd(), OsdId(1), &"ü".repeat(5000));
        let [Write::Put(Record::Osd(record))] = &writes[..] else { panic!("{writes:?}") };
        let reason = &record.poisoned.as_ref().expect("it is poisoned").reason;
        assert_eq!(reason.len(), POISON_REASON_LEN_MAX);
    }
}
