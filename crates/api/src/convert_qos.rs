//! Messages of I/O limits.

use crate::convert::Malformed;
use crate::pb;
use types::control::{LIMITS_PER_MESSAGE, LimitsPart};
use types::limits::{BANDWIDTH_MAX, BURST_SECONDS_MAX};
use types::qos::{QosBase, QosChange, RateChange};
use types::{LimitKind, QosLimits, RateLimit, VolumeId};

/// Returns the message of limits; `None`: nothing is limited.
pub(crate) fn limits_out(limits: &QosLimits) -> Option<pb::QosLimits> {
    let limit = |limit: Option<RateLimit>| {
        limit.map(|l| pb::RateLimit { rate: l.rate, burst: l.burst, burst_seconds: l.burst_seconds })
    };
    (!limits.is_none()).then(|| pb::QosLimits {
        iops: limit(limits.iops),
        read_iops: limit(limits.read_iops),
        write_iops: limit(limits.write_iops),
        bandwidth: limit(limits.bandwidth),
        read_bandwidth: limit(limits.read_bandwidth),
        write_bandwidth: limit(limits.write_bandwidth),
        floor_iops: limit(limits.floor_iops),
        floor_bandwidth: limit(limits.floor_bandwidth),
    })
}

/// Whether a limit is one that meta gives out: a rate of 0 would stop the volume.
fn is_possible(l: &pb::RateLimit) -> bool {
    let burst = l.burst > l.rate && l.burst <= BANDWIDTH_MAX && (1..=BURST_SECONDS_MAX).contains(&l.burst_seconds);
    (1..=BANDWIDTH_MAX).contains(&l.rate) && (l.burst == 0 || burst)
}

/// Returns the limits in a message; without one nothing is limited.
pub(crate) fn limits_in(limits: Option<pb::QosLimits>) -> Result<QosLimits, Malformed> {
    let Some(l) = limits else { return Ok(QosLimits::NONE) };
    let limit = |limit: Option<pb::RateLimit>| match limit {
        None => Ok(None),
        Some(l) if !is_possible(&l) => Err(Malformed::Range("rate")),
        Some(l) => Ok(Some(RateLimit { rate: l.rate, burst: l.burst, burst_seconds: l.burst_seconds })),
    };
    Ok(QosLimits {
        iops: limit(l.iops)?,
        read_iops: limit(l.read_iops)?,
        write_iops: limit(l.write_iops)?,
        bandwidth: limit(l.bandwidth)?,
        read_bandwidth: limit(l.read_bandwidth)?,
        write_bandwidth: limit(l.write_bandwidth)?,
        floor_iops: limit(l.floor_iops)?,
        floor_bandwidth: limit(l.floor_bandwidth)?,
    })
}

/// Returns the message of limits for an OSD.
pub(crate) fn volume_limits_out(part: LimitsPart, volumes: &[(VolumeId, QosLimits)]) -> pb::VolumeLimits {
    let LimitsPart { begins, goes_on, ends } = part;
    let one =
        |(volume, limits): &(VolumeId, QosLimits)| pb::LimitedVolume { volume: volume.0, limits: limits_out(limits) };
    pb::VolumeLimits { begins, goes_on, ends, volumes: volumes.iter().map(one).collect() }
}

/// Returns the limits in a message for an OSD.
pub(crate) fn volume_limits_in(
    limits: pb::VolumeLimits,
) -> Result<(LimitsPart, Vec<(VolumeId, QosLimits)>), Malformed> {
    let pb::VolumeLimits { begins, goes_on, ends, volumes } = limits;
    if volumes.len() > LIMITS_PER_MESSAGE {
        return Err(Malformed::Range("volumes"));
    }
    let one = |v: pb::LimitedVolume| Ok((VolumeId(v.volume), limits_in(v.limits)?));
    Ok((LimitsPart { begins, goes_on, ends }, volumes.into_iter().map(one).collect::<Result<_, Malformed>>()?))
}

fn kind_out(kind: LimitKind) -> pb::LimitKind {
    match kind {
        LimitKind::Iops => pb::LimitKind::Iops,
        LimitKind::ReadIops => pb::LimitKind::ReadIops,
        LimitKind::WriteIops => pb::LimitKind::WriteIops,
        LimitKind::Bandwidth => pb::LimitKind::Bandwidth,
        LimitKind::ReadBandwidth => pb::LimitKind::ReadBandwidth,
        LimitKind::WriteBandwidth => pb::LimitKind::WriteBandwidth,
        LimitKind::FloorIops => pb::LimitKind::FloorIops,
        LimitKind::FloorBandwidth => pb::LimitKind::FloorBandwidth,
    }
}

fn kind_in(kind: i32) -> Result<LimitKind, Malformed> {
    let kind = pb::LimitKind::try_from(kind).map_err(|_| Malformed::Range("kind"))?;
    LimitKind::ALL.into_iter().find(|known| kind_out(*known) == kind).ok_or(Malformed::Range("kind"))
}

/// Returns the message of a change of limits; `None`: nothing changes.
pub(crate) fn change_out(change: QosChange) -> Option<pb::QosChange> {
    if change.is_none() {
        return None;
    }
    let base = match change.base {
        QosBase::Kept => pb::QosBase::Kept,
        QosBase::Unlimited => pb::QosBase::Unlimited,
        QosBase::Pool => pb::QosBase::Pool,
    };
    let rate = |(kind, r): (LimitKind, RateChange)| pb::RateChange {
        kind: kind_out(kind).into(),
        rate: r.rate,
        burst: r.burst,
        burst_seconds: r.burst_seconds,
    };
    Some(pb::QosChange { base: base.into(), rates: change.rates.into_iter().map(rate).collect() })
}

/// Returns the change of limits in a message; without one nothing changes.
///
/// # Errors
/// When it names a base or a kind that this version does not know.
pub fn change_in(change: Option<pb::QosChange>) -> Result<QosChange, Malformed> {
    let Some(change) = change else { return Ok(QosChange::default()) };
    let base = match pb::QosBase::try_from(change.base).map_err(|_| Malformed::Range("base"))? {
        pb::QosBase::Kept => QosBase::Kept,
        pb::QosBase::Unlimited => QosBase::Unlimited,
        pb::QosBase::Pool => QosBase::Pool,
    };
    let rate = |r: pb::RateChange| {
        let RateChange { rate, burst, burst_seconds } =
            RateChange { rate: r.rate, burst: r.burst, burst_seconds: r.burst_seconds };
        Ok((kind_in(r.kind)?, RateChange { rate, burst, burst_seconds }))
    };
    Ok(QosChange { base, rates: change.rates.into_iter().map(rate).collect::<Result<_, Malformed>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_changes_come_back_as_they_were_sent() {
        let limit = |n: u64| Some(RateLimit { rate: n, burst: n + 1, burst_seconds: 9 });
        let limits = QosLimits {
            iops: limit(11),
            read_iops: limit(12),
            write_iops: None,
            bandwidth: Some(RateLimit { rate: 13, burst: 0, burst_seconds: 0 }),
            read_bandwidth: limit(14),
            write_bandwidth: limit(15),
            floor_iops: limit(16),
            floor_bandwidth: limit(17),
        };
        assert_eq!(limits_in(limits_out(&limits)), Ok(limits));
        assert_eq!((limits_out(&QosLimits::NONE), limits_in(None)), (None, Ok(QosLimits::NONE)));
        for base in [QosBase::Kept, QosBase::Unlimited, QosBase::Pool] {
            let one = |(n, kind): (usize, LimitKind)| {
                let (rate, burst) = (Some(n as u64), (n % 2 == 0).then_some(7));
                (kind, RateChange { rate, burst, burst_seconds: burst.map(|_| 3) })
            };
            let change = QosChange { base, rates: LimitKind::ALL.into_iter().enumerate().map(one).collect() };
            assert_eq!(change_in(change_out(change.clone())), Ok(change));
        }
        assert_eq!((change_out(QosChange::default()), change_in(None)), (None, Ok(QosChange::default())));
    }

    #[test]
    fn limits_that_would_stop_a_volume_are_malformed() {
        let limit = |rate, burst, burst_seconds| {
            let iops = Some(pb::RateLimit { rate, burst, burst_seconds });
            limits_in(Some(pb::QosLimits { iops, ..pb::QosLimits::default() }))
        };
        for (rate, burst, seconds) in
            [(0, 0, 0), (5, 5, 1), (5, 6, 0), (5, 6, 3601), (u64::MAX, 0, 0), (5, u64::MAX, 1)]
        {
            assert_eq!(limit(rate, burst, seconds), Err(Malformed::Range("rate")));
        }
        assert!(limit(5, 6, 1).is_ok());
        let unknown = pb::RateChange { kind: 99, ..pb::RateChange::default() };
        assert!(change_in(Some(pb::QosChange { base: 0, rates: vec![unknown] })).is_err());
        assert!(change_in(Some(pb::QosChange { base: 3, rates: Vec::new() })).is_err());
    }
}
