//! OSDs: their ids, their addresses, what the administrator wants of them.

use super::Plan;
use crate::admin::OsdRegister;
use crate::codes::{self, refuse};
use crate::records::{OsdRecord, Poisoned, Record, Records, Write};
use placement::WEIGHT_ONE;
use types::control::{OsdHello, Refusal};
use types::limits::{LOCATION_LEN_MAX, POISON_REASON_LEN_MAX, clip};
use types::{Epoch, Incarnation, OsdId};

/// What meta keeps of where an OSD stands has a limit, and what is longer is not another place.
fn check_location(names: [&String; 3]) -> Result<(), Refusal> {
    let long = ["host", "rack", "zone"].into_iter().zip(names).find(|(_, name)| name.len() > LOCATION_LEN_MAX);
    let Some((what, name)) = long else { return Ok(()) };
    let text = format!("the name of the {what} has {} bytes, more than {LOCATION_LEN_MAX}", name.len());
    Err(refuse(codes::BAD_LOCATION, text))
}

/// Gives a device its OSD id; the same uuid gets the same id again.
///
/// # Errors
/// BSLT-2029 when the name of a host, a rack or a zone is too long.
pub fn osd_register(records: &Records, ask: &OsdRegister, wall_ms: u64) -> Plan<OsdId> {
    if let Some(known) = records.osds.values().find(|o| o.uuid == ask.uuid) {
        return Ok((Vec::new(), known.id));
    }
    check_location([&ask.host, &ask.rack, &ask.zone])?;
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
        elector: false,
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
/// older run of it, BSLT-2029 when the name of its host, rack or zone is too long.
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
    check_location([&hello.host, &hello.rack, &hello.zone])?;
    let mut new = known.clone();
    new.addr = Some(hello.addr);
    new.http = hello.http;
    new.capacity_bytes = hello.capacity_bytes;
    new.incarnation = hello.incarnation;
    new.host = hello.host.clone();
    new.rack = hello.rack.clone();
    new.zone = hello.zone.clone();
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
    let poisoned =
        Some(Poisoned { incarnation: known.incarnation, reason: clip(reason, POISON_REASON_LEN_MAX).to_owned() });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{ClusterRecord, StoredItem};
    use types::{ClusterId, OsdUuid};

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
        OsdRegister { uuid: OsdUuid([1; 16]), host: host.to_owned(), rack, zone, capacity_bytes: 1 << 40 }
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
            host,
            rack,
            zone,
            version: "1.2.3".into(),
            replicas: Vec::new(),
            seen: types::control::Watermarks::default(),
        }
    }

    #[test]
    fn a_location_that_is_too_long_is_refused_with_a_code_and_never_kept_in_part() {
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
