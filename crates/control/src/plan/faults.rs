//! Rehearsed faults of volumes: their bounds, their order, and their end.
//!
//! A fault is a record of its volume, and nothing but what clients are told depends on it. It always has an end.

use super::Plan;
use super::changes::live;
use crate::admin::FaultAdd;
use crate::records::{FaultRecord, Faults, Record, Records, VolumeRecord, Write};
use crate::refusal::refuse;
use crate::settings::time_words;
use std::time::Duration;
use types::control::Refusal;
use types::faults::{Fault, FaultEffect, ToldFault};
use types::limits::{FAULT_LATENCY_MS_MAX, FAULT_MS_MAX, FAULT_MS_MIN, FAULTS_MAX};
use types::{VolumeId, codes};

fn wrong(what: impl std::fmt::Display) -> Refusal {
    refuse(codes::BAD_FAULT, what)
}

fn check(ask: &FaultAdd) -> Result<(), Refusal> {
    let Fault { effect, percent, reads, writes } = ask.fault;
    if !(FAULT_MS_MIN..=FAULT_MS_MAX).contains(&ask.for_ms) {
        let hours = FAULT_MS_MAX / 3_600_000;
        return Err(wrong(format!("a fault for {} ms is outside {FAULT_MS_MIN} ms to {hours} h", ask.for_ms)));
    }
    match effect {
        FaultEffect::Latency(ms) if !(1..=FAULT_LATENCY_MS_MAX).contains(&ms) => {
            Err(wrong(format!("{ms} ms of latency are outside 1 to {FAULT_LATENCY_MS_MAX} ms")))
        }
        _ if !(1..=100).contains(&percent) => Err(wrong(format!("{percent} % of the requests are outside 1 to 100 %"))),
        FaultEffect::Pause if percent < 100 => Err(wrong("a pause is one of all requests")),
        _ if !reads && !writes => Err(wrong("a fault is one of reads, of writes, or of both")),
        _ => Ok(()),
    }
}

/// Adds a fault to a volume. `by` asked for it. Returns the volume and the number of the fault.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2080.
pub fn fault_add(records: &Records, name: &str, ask: &FaultAdd, by: &str, wall_ms: u64) -> Plan<(VolumeId, u32)> {
    let volume = live(records, name)?;
    check(ask)?;
    if volume.faults.list.len() >= FAULTS_MAX {
        return Err(wrong(format!("volume {name:?} has {FAULTS_MAX} faults already")));
    }
    let Some(id) = volume.faults.last.checked_add(1) else {
        return Err(wrong(format!("volume {name:?} has had too many faults")));
    };
    let mut list = volume.faults.list.clone();
    let until_ms = wall_ms.saturating_add(ask.for_ms);
    list.push(FaultRecord { id, fault: ask.fault, since_ms: wall_ms, until_ms, by: by.to_owned() });
    let record = VolumeRecord { faults: Faults { last: id, list }, ..volume.clone() };
    Ok((vec![Write::Put(Record::Volume(record))], (volume.id, id)))
}

/// Removes one fault of a volume, or all of them. Returns those that are gone.
///
/// # Errors
/// BSLT-2010, BSLT-2011, BSLT-2014, BSLT-2081.
pub fn fault_remove(records: &Records, name: &str, id: Option<u32>) -> Plan<(VolumeId, Vec<FaultRecord>)> {
    let volume = live(records, name)?;
    let (gone, list): (Vec<_>, Vec<_>) =
        volume.faults.list.iter().cloned().partition(|fault| id.is_none_or(|id| id == fault.id));
    match id {
        Some(id) if gone.is_empty() => {
            Err(refuse(codes::FAULT_UNKNOWN, format!("volume {name:?} has no fault with the number {id}")))
        }
        _ if gone.is_empty() => Ok((Vec::new(), (volume.id, gone))),
        _ => Ok((vec![Write::Put(Record::Volume(with(volume, list)))], (volume.id, gone))),
    }
}

fn with(volume: &VolumeRecord, list: Vec<FaultRecord>) -> VolumeRecord {
    VolumeRecord { faults: Faults { last: volume.faults.last, list }, ..volume.clone() }
}

/// Removes the faults of a volume whose time is over. Returns those that are gone.
pub fn fault_expire(volume: &VolumeRecord, wall_ms: u64) -> (Vec<Write>, Vec<FaultRecord>) {
    let (list, gone): (Vec<_>, Vec<_>) =
        volume.faults.list.iter().cloned().partition(|fault| left_ms(fault, wall_ms) > 0);
    let writes = if gone.is_empty() { Vec::new() } else { vec![Write::Put(Record::Volume(with(volume, list)))] };
    (writes, gone)
}

/// Returns the time that is left of a fault. A clock that was set back makes it no longer than it was ordered.
fn left_ms(fault: &FaultRecord, wall_ms: u64) -> u64 {
    let ordered = fault.until_ms.saturating_sub(fault.since_ms);
    fault.until_ms.saturating_sub(wall_ms).min(ordered).min(FAULT_MS_MAX)
}

/// Returns the faults that clients of a volume are told.
pub fn faults_told(volume: &VolumeRecord, wall_ms: u64) -> Vec<ToldFault> {
    let told =
        |record: &FaultRecord| ToldFault { id: record.id, fault: record.fault, left_ms: left_ms(record, wall_ms) };
    volume.faults.list.iter().map(told).filter(ToldFault::is_possible).collect()
}

/// Returns a fault in words: `500 ms of latency for 10 % of the writes`.
pub fn fault_words(fault: &Fault) -> String {
    let effect = match fault.effect {
        FaultEffect::Latency(ms) => format!("{ms} ms of latency for"),
        FaultEffect::Error => "an error for".to_owned(),
        FaultEffect::Pause => "a pause of".to_owned(),
    };
    let requests = match (fault.reads, fault.writes) {
        (true, false) => "reads",
        (false, true) => "writes",
        _ => "requests",
    };
    let share = if fault.percent == 100 { "all".to_owned() } else { format!("{} % of the", fault.percent) };
    format!("{effect} {share} {requests}")
}

/// Returns a fault in words, with the time that it was ordered for.
pub(crate) fn ordered_words(record: &FaultRecord) -> String {
    let time = time_words(Duration::from_millis(record.until_ms.saturating_sub(record.since_ms)));
    format!("fault {}, {}, for {time}", record.id, fault_words(&record.fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(effect: FaultEffect, percent: u8, for_ms: u64) -> FaultAdd {
        FaultAdd { fault: Fault { effect, percent, reads: true, writes: true }, for_ms }
    }

    #[test]
    fn faults_outside_the_bounds_are_refused_and_named() {
        let late = FaultEffect::Latency(500);
        assert_eq!(check(&ask(late, 10, FAULT_MS_MAX)), Ok(()));
        let neither = FaultAdd { fault: Fault { reads: false, writes: false, ..ask(late, 1, 0).fault }, for_ms: 9_000 };
        for (bad, says) in [
            (ask(late, 10, 0), "outside 1000 ms to 24 h"),
            (ask(late, 10, FAULT_MS_MAX + 1), "outside 1000 ms to 24 h"),
            (ask(FaultEffect::Latency(0), 10, 9_000), "0 ms of latency"),
            (ask(FaultEffect::Latency(60_001), 10, 9_000), "60001 ms of latency"),
            (ask(FaultEffect::Error, 0, 9_000), "0 % of the requests"),
            (ask(FaultEffect::Error, 101, 9_000), "101 %"),
            (ask(FaultEffect::Pause, 50, 9_000), "a pause is one of all requests"),
            (neither, "of reads, of writes"),
        ] {
            let refused = check(&bad).expect_err(says);
            assert!(refused.code == codes::BAD_FAULT && refused.message.contains(says), "{refused:?}");
        }
    }

    #[test]
    fn time_that_is_left_is_never_longer_than_it_was_ordered() {
        let fault = ask(FaultEffect::Error, 100, 0).fault;
        let record = FaultRecord { id: 3, fault, since_ms: 10_000, until_ms: 70_000, by: String::new() };
        assert_eq!([9_000, 10_000, 69_999, 70_000, 99_000].map(|at| left_ms(&record, at)), [60_000, 60_000, 1, 0, 0]);
    }

    #[test]
    fn faults_have_words() {
        let words = |effect, percent, reads, writes| fault_words(&Fault { effect, percent, reads, writes });
        assert_eq!(words(FaultEffect::Latency(500), 10, true, true), "500 ms of latency for 10 % of the requests");
        assert_eq!(words(FaultEffect::Error, 100, false, true), "an error for all writes");
        assert_eq!(words(FaultEffect::Pause, 100, true, false), "a pause of all reads");
    }
}
