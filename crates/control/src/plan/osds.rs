//! OSDs: their ids, their addresses, what the administrator wants of them.

use super::Plan;
use crate::admin::OsdRegister;
use crate::codes::{self, refuse};
use crate::records::{OsdRecord, Poisoned, Record, Records, Write};
use placement::WEIGHT_ONE;
use types::control::OsdHello;
use types::{Epoch, Incarnation, OsdId};

/// Longest host, rack or zone name, and longest reason that an OSD may give.
const TEXT_MAX: usize = 255;

fn clip(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Gives a device its OSD id; the same uuid gets the same id again.
///
/// # Errors
/// BSLT-2004 when a location is too long.
pub fn osd_register(records: &Records, ask: &OsdRegister, wall_ms: u64) -> Plan<OsdId> {
    if let Some(known) = records.osds.values().find(|o| o.uuid == ask.uuid) {
        return Ok((Vec::new(), known.id));
    }
    if [&ask.host, &ask.rack, &ask.zone].into_iter().any(|s| s.len() > TEXT_MAX) {
        return Err(refuse(codes::BAD_REQUEST, format!("host, rack and zone have at most {TEXT_MAX} bytes")));
    }
    let mut counters = records.counters.clone();
    let id = OsdId(counters.next_osd);
    counters.next_osd += 1;
    let record = OsdRecord {
        id,
        uuid: ask.uuid,
        host: ask.host.clone(),
        rack: ask.rack.clone(),
        zone: ask.zone.clone(),
        capacity_bytes: ask.capacity_bytes,
        weight: WEIGHT_ONE,
        is_in: true,
        drain: false,
        addr: None,
        http: None,
        incarnation: Incarnation(0),
        poisoned: None,
        created_ms: wall_ms,
    };
    Ok((vec![Write::Put(Record::Counters(counters)), Write::Put(Record::Osd(record))], id))
}

/// What a Hello changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloPlan {
    /// The address map has a new version.
    pub map_changed: bool,
}

/// Takes an OSD's Hello: its address and place are recorded; membership and intent are not touched.
///
/// # Errors
/// BSLT-2026 for another cluster, BSLT-2024 and BSLT-2025 for an OSD that is not the one registered, or an
/// older run of it.
pub fn osd_hello(records: &Records, hello: &OsdHello) -> Plan<HelloPlan> {
    if hello.cluster != records.cluster_id() {
        let ours = records.cluster_id();
        return Err(refuse(
            codes::WRONG_CLUSTER,
            format!("{} is of cluster {}, this is {ours}", hello.osd, hello.cluster),
        ));
    }
    let Some(known) = records.osds.get(&hello.osd) else {
        return Err(refuse(codes::OSD_UNKNOWN, format!("{} is not registered", hello.osd)));
    };
    if known.uuid != hello.uuid {
        let text = format!("{} is registered with uuid {}, not {}", hello.osd, known.uuid, hello.uuid);
        return Err(refuse(codes::OSD_OTHER_LIFE, text));
    }
    if hello.incarnation < known.incarnation {
        let text = format!("a newer run of {} has already reported ({})", hello.osd, known.incarnation);
        return Err(refuse(codes::OSD_OTHER_LIFE, text));
    }
    let mut new = known.clone();
    new.addr = Some(hello.addr);
    new.http = hello.http;
    new.capacity_bytes = hello.capacity_bytes;
    new.incarnation = hello.incarnation;
    new.host = clip(&hello.host);
    new.rack = clip(&hello.rack);
    new.zone = clip(&hello.zone);
    if new.poisoned.as_ref().is_some_and(|p| p.incarnation < hello.incarnation) {
        new.poisoned = None;
    }
    if new == *known {
        return Ok((Vec::new(), HelloPlan { map_changed: false }));
    }
    let map_changed = new.addr != known.addr;
    let mut writes = vec![Write::Put(Record::Osd(new))];
    if map_changed {
        let mut counters = records.counters.clone();
        counters.map_epoch = Epoch(counters.map_epoch.0 + 1);
        writes.push(Write::Put(Record::Counters(counters)));
    }
    Ok((writes, HelloPlan { map_changed }))
}

/// Records that the store of an OSD stopped (R15), against the run that reported it.
pub fn osd_poisoned(records: &Records, osd: OsdId, reason: &str) -> Vec<Write> {
    let Some(known) = records.osds.get(&osd) else { return Vec::new() };
    if known.poisoned.as_ref().is_some_and(|p| p.incarnation == known.incarnation) {
        return Vec::new();
    }
    let poisoned = Some(Poisoned { incarnation: known.incarnation, reason: clip(reason) });
    vec![Write::Put(Record::Osd(OsdRecord { poisoned, ..known.clone() }))]
}

/// Sets membership and intent.
///
/// # Errors
/// BSLT-2024.
pub fn osd_set(records: &Records, osd: OsdId, is_in: Option<bool>, drain: Option<bool>) -> Plan<()> {
    let Some(known) = records.osds.get(&osd) else {
        return Err(refuse(codes::OSD_UNKNOWN, format!("{osd} is not registered")));
    };
    let new = OsdRecord { is_in: is_in.unwrap_or(known.is_in), drain: drain.unwrap_or(known.drain), ..known.clone() };
    let writes = if new == *known { Vec::new() } else { vec![Write::Put(Record::Osd(new))] };
    Ok((writes, ()))
}
