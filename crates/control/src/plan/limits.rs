//! Limits of the I/O of volumes: their bounds, their changes, and which ones are in force.

use crate::records::{PoolRecord, VolumeRecord};
use crate::refusal::refuse;
use types::control::Refusal;
use types::limits::{BANDWIDTH_MAX, BANDWIDTH_MIN, BURST_SECONDS_MAX, IOPS_MAX, IOPS_MIN};
use types::qos::{QosBase, QosChange, RateChange};
use types::{LimitKind, QosLimits, RateLimit, codes};

/// Seconds of a burst whose command names none.
const BURST_SECONDS: u32 = 1;
/// Most changes that one request may name: more than the kinds are repetitions.
const RATES_MAX: usize = 64;

fn wrong(what: impl std::fmt::Display) -> Refusal {
    refuse(codes::BAD_LIMIT, what)
}

fn check_rate(kind: LimitKind, what: &str, rate: u64) -> Result<(), Refusal> {
    let (min, max) = if kind.is_bytes() { (BANDWIDTH_MIN, BANDWIDTH_MAX) } else { (IOPS_MIN, IOPS_MAX) };
    if (min..=max).contains(&rate) {
        return Ok(());
    }
    Err(wrong(format!("the {what} {rate} of {} is outside {min} to {max} per second", kind.name())))
}

fn changed_one(kind: LimitKind, before: Option<RateLimit>, change: RateChange) -> Result<Option<RateLimit>, Refusal> {
    let name = kind.name();
    let Some(rate) = change.rate.or(before.map(|limit| limit.rate)) else {
        return Err(wrong(format!("a burst of {name} needs a limit of {name}")));
    };
    if rate == 0 {
        let has_burst = change.burst.is_some_and(|burst| burst > 0);
        return if has_burst { Err(wrong(format!("a burst of {name} needs a limit of {name}"))) } else { Ok(None) };
    }
    check_rate(kind, "rate", rate)?;
    if kind.is_floor() && (change.burst.is_some() || change.burst_seconds.is_some()) {
        return Err(wrong(format!("{name} has no burst")));
    }
    let burst = change.burst.or(before.map(|limit| limit.burst)).unwrap_or(0);
    if burst == 0 {
        return match change.burst_seconds {
            Some(_) if change.burst.is_none() => Err(wrong(format!("{name} has no burst whose time could change"))),
            _ => Ok(Some(RateLimit { rate, burst: 0, burst_seconds: 0 })),
        };
    }
    check_rate(kind, "burst", burst)?;
    if burst <= rate {
        return Err(wrong(format!("the burst {burst} of {name} is not above its rate {rate}")));
    }
    let before = before.map(|limit| limit.burst_seconds).filter(|seconds| *seconds > 0);
    let burst_seconds = change.burst_seconds.or(before).unwrap_or(BURST_SECONDS);
    if !(1..=BURST_SECONDS_MAX).contains(&burst_seconds) {
        return Err(wrong(format!("a burst of {burst_seconds} s of {name} is outside 1 to {BURST_SECONDS_MAX} s")));
    }
    Ok(Some(RateLimit { rate, burst, burst_seconds }))
}

/// Refuses a floor that a ceiling does not let the volume reach.
fn check_floors(limits: &QosLimits) -> Result<(), Refusal> {
    use LimitKind::{Bandwidth, FloorBandwidth, FloorIops, Iops};
    for (floor, ceiling) in [(FloorIops, Iops), (FloorBandwidth, Bandwidth)] {
        let rates = limits.get(floor).zip(limits.get(ceiling)).map(|(floor, ceiling)| (floor.rate, ceiling.rate));
        if let Some((low, high)) = rates.filter(|(low, high)| low > high) {
            return Err(wrong(format!("{} {low} is above {} {high}", floor.name(), ceiling.name())));
        }
    }
    Ok(())
}

/// Returns the limits after a change of `before`; the base is the caller's concern.
fn changed_rates(before: QosLimits, change: &QosChange) -> Result<QosLimits, Refusal> {
    if change.rates.len() > RATES_MAX {
        return Err(wrong(format!(
            "{} changes of limits in one request are more than {RATES_MAX}",
            change.rates.len()
        )));
    }
    let mut limits = before;
    for (kind, rate) in &change.rates {
        let limit = changed_one(*kind, limits.get(*kind), *rate)?;
        limits.set(*kind, limit);
    }
    check_floors(&limits)?;
    Ok(limits)
}

/// Returns the own limits of a volume after a change; `None`: it has none, and those of its pool are in force.
///
/// # Errors
/// BSLT-2070.
pub(super) fn changed_limits(own: Option<QosLimits>, change: &QosChange) -> Result<Option<QosLimits>, Refusal> {
    match change.base {
        QosBase::Pool if !change.rates.is_empty() => {
            Err(wrong("a volume has limits of its own or those of its pool, not both"))
        }
        QosBase::Pool => Ok(None),
        QosBase::Kept if change.rates.is_empty() => Ok(own),
        QosBase::Kept => changed_rates(own.unwrap_or_default(), change).map(Some),
        QosBase::Unlimited => changed_rates(QosLimits::NONE, change).map(Some),
    }
}

/// Returns the limits of a pool after a change.
///
/// # Errors
/// BSLT-2070.
pub(super) fn changed_pool_limits(pool: &PoolRecord, change: &QosChange) -> Result<QosLimits, Refusal> {
    let before = match change.base {
        QosBase::Kept => pool.limits,
        QosBase::Unlimited => QosLimits::NONE,
        QosBase::Pool => return Err(wrong(format!("pool {:?} has no pool above it", pool.name))),
    };
    changed_rates(before, change)
}

fn words(kind: LimitKind, limit: RateLimit) -> String {
    let shown = |rate: u64| {
        if kind.is_bytes() { format!("{}/s", super::volumes::shown(rate)) } else { format!("{rate}/s") }
    };
    let burst = match limit.burst {
        0 => String::new(),
        burst => format!(" (burst {} for {} s)", shown(burst), limit.burst_seconds),
    };
    format!("{} {}{burst}", kind.name(), shown(limit.rate))
}

/// Returns limits in words.
pub fn limit_words(limits: &QosLimits) -> String {
    let words: Vec<String> = limits.iter().map(|(kind, limit)| words(kind, limit)).collect();
    if words.is_empty() { "no limit".to_owned() } else { words.join(", ") }
}

/// Returns the difference of the own limits of two records of a volume in words; empty when there is none.
pub fn limit_changes(before: &VolumeRecord, after: &VolumeRecord) -> String {
    match &after.limits {
        limits if *limits == before.limits => String::new(),
        None => "the limits of its pool".to_owned(),
        Some(limits) => limit_words(limits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LimitKind::{Bandwidth, FloorIops, Iops, ReadIops};

    fn rate(rate: u64) -> RateChange {
        RateChange { rate: Some(rate), ..RateChange::default() }
    }

    fn burst(burst: u64, seconds: Option<u32>) -> RateChange {
        RateChange { rate: None, burst: Some(burst), burst_seconds: seconds }
    }

    fn kept(rates: &[(LimitKind, RateChange)]) -> QosChange {
        QosChange { base: QosBase::Kept, rates: rates.to_vec() }
    }

    #[test]
    fn limits_change_one_by_one_and_zero_removes() {
        let own = changed_limits(None, &kept(&[(Iops, rate(500)), (Bandwidth, rate(4 << 20))])).expect("valid");
        let own = changed_limits(own, &kept(&[(Iops, burst(1000, None))])).expect("valid");
        let limits = own.expect("own ones");
        assert_eq!(limits.iops, Some(RateLimit { rate: 500, burst: 1000, burst_seconds: 1 }));
        assert_eq!(limit_words(&limits), "iops 500/s (burst 1000/s for 1 s), bandwidth 4MiB/s");
        let limits = changed_limits(own, &kept(&[(Iops, burst(0, None)), (Bandwidth, rate(0))])).expect("valid");
        assert_eq!(limit_words(&limits.expect("own ones")), "iops 500/s");
        let change = QosChange { base: QosBase::Unlimited, rates: vec![(ReadIops, rate(70))] };
        let limits = changed_limits(own, &change).expect("valid").expect("own ones");
        assert_eq!(limit_words(&limits), "read-iops 70/s");
        let pool = QosChange { base: QosBase::Pool, rates: Vec::new() };
        assert_eq!(changed_limits(own, &pool), Ok(None));
        assert_eq!(changed_limits(own, &QosChange::default()), Ok(own), "no change keeps them");
        let unlimited = QosChange { base: QosBase::Unlimited, rates: Vec::new() };
        assert_eq!(changed_limits(None, &unlimited), Ok(Some(QosLimits::NONE)), "the pool does not limit it");
    }

    #[test]
    fn floor_has_no_burst_and_is_not_above_its_limit() {
        let own = changed_limits(None, &kept(&[(FloorIops, rate(500)), (Iops, rate(500))])).expect("valid");
        assert_eq!(limit_words(&own.expect("own ones")), "iops 500/s, floor-iops 500/s");
        for (change, says) in [
            ((Iops, rate(499)), "floor-iops 500 is above iops 499"),
            ((FloorIops, rate(501)), "floor-iops 501 is above iops 500"),
            ((FloorIops, burst(700, None)), "floor-iops has no burst"),
            ((FloorIops, rate(9)), "the rate 9 of floor-iops is outside 10 to"),
        ] {
            let refusal = changed_limits(own, &kept(&[change])).expect_err(says);
            assert!(refusal.message.contains(says), "{}", refusal.message);
        }
        let none = changed_limits(own, &kept(&[(FloorIops, rate(0))])).expect("valid").expect("own ones");
        assert_eq!(limit_words(&none), "iops 500/s");
    }

    #[test]
    fn limits_outside_the_bounds_are_refused_and_named() {
        let iops =
            Some(QosLimits { iops: Some(RateLimit { rate: 500, burst: 0, burst_seconds: 0 }), ..QosLimits::NONE });
        let both = RateChange { rate: Some(0), burst: Some(700), burst_seconds: None };
        let time = RateChange { burst_seconds: Some(5), ..RateChange::default() };
        let many = vec![(Iops, rate(500)); RATES_MAX + 1];
        let pool = QosChange { base: QosBase::Pool, rates: vec![(Iops, rate(500))] };
        for (own, bad, says) in [
            (None, kept(&[(Iops, rate(9))]), "the rate 9 of iops is outside 10 to"),
            (None, kept(&[(Iops, rate(IOPS_MAX + 1))]), "is outside"),
            (None, kept(&[(Bandwidth, rate(65535))]), "the rate 65535 of bandwidth is outside 65536 to"),
            (None, kept(&[(Bandwidth, rate(u64::MAX))]), "is outside"),
            (None, kept(&[(Iops, burst(700, None))]), "needs a limit of iops"),
            (iops, kept(&[(Iops, both)]), "needs a limit of iops"),
            (iops, kept(&[(Iops, burst(500, None))]), "the burst 500 of iops is not above its rate 500"),
            (iops, kept(&[(Iops, burst(u64::MAX, None))]), "the burst 18446744073709551615 of iops is outside"),
            (iops, kept(&[(Iops, burst(700, Some(0)))]), "a burst of 0 s"),
            (iops, kept(&[(Iops, burst(700, Some(3601)))]), "a burst of 3601 s"),
            (iops, kept(&[(Iops, time)]), "iops has no burst"),
            (iops, kept(&many), "65 changes of limits"),
            (iops, pool, "not both"),
        ] {
            let refused = changed_limits(own, &bad).expect_err(says);
            assert!(refused.code == codes::BAD_LIMIT && refused.message.contains(says), "{refused:?}");
        }
    }
}
