//! Limits of the I/O of a volume: IOPS and bandwidth, of reads, of writes and of both together.
//!
//! A limit has a rate and, if it has a burst, a higher rate that an idle volume may use for some seconds. Meta keeps limits, clients and
//! leaders hold to them (ADR 0032). One operation is one part of a request, at most 512 KiB of one chunk, so that clients and
//! leaders count alike.

mod bucket;

pub use bucket::{Buckets, Cost, Direction, Strictness};

use serde::{Deserialize, Serialize};

/// Quantity that a limit counts, and the requests that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    Iops,
    ReadIops,
    WriteIops,
    Bandwidth,
    ReadBandwidth,
    WriteBandwidth,
    /// A floor: requests up to this rate do not wait for those of other volumes on a busy OSD.
    FloorIops,
    FloorBandwidth,
}

impl LimitKind {
    pub const ALL: [LimitKind; 8] = [
        LimitKind::Iops,
        LimitKind::ReadIops,
        LimitKind::WriteIops,
        LimitKind::Bandwidth,
        LimitKind::ReadBandwidth,
        LimitKind::WriteBandwidth,
        LimitKind::FloorIops,
        LimitKind::FloorBandwidth,
    ];

    /// Returns the name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Iops => "iops",
            LimitKind::ReadIops => "read-iops",
            LimitKind::WriteIops => "write-iops",
            LimitKind::Bandwidth => "bandwidth",
            LimitKind::ReadBandwidth => "read-bandwidth",
            LimitKind::WriteBandwidth => "write-bandwidth",
            LimitKind::FloorIops => "floor-iops",
            LimitKind::FloorBandwidth => "floor-bandwidth",
        }
    }

    /// Whether it counts bytes; otherwise it counts operations.
    pub fn is_bytes(self) -> bool {
        use LimitKind::{Bandwidth, FloorBandwidth, ReadBandwidth, WriteBandwidth};
        matches!(self, Bandwidth | ReadBandwidth | WriteBandwidth | FloorBandwidth)
    }

    /// Whether it is a floor; otherwise it is a ceiling.
    pub fn is_floor(self) -> bool {
        matches!(self, LimitKind::FloorIops | LimitKind::FloorBandwidth)
    }
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Operations or bytes per second.
    pub rate: u64,
    /// A higher rate for `burst_seconds`; 0: none.
    pub burst: u64,
    pub burst_seconds: u32,
}

/// The limits of a volume, or those of a pool for volumes without limits of their own. `None`: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QosLimits {
    pub iops: Option<RateLimit>,
    pub read_iops: Option<RateLimit>,
    pub write_iops: Option<RateLimit>,
    /// Bytes per second.
    pub bandwidth: Option<RateLimit>,
    pub read_bandwidth: Option<RateLimit>,
    pub write_bandwidth: Option<RateLimit>,
    /// Operations per second that do not wait for those of other volumes.
    pub floor_iops: Option<RateLimit>,
    pub floor_bandwidth: Option<RateLimit>,
}

impl QosLimits {
    /// No limit.
    pub const NONE: QosLimits = QosLimits {
        iops: None,
        read_iops: None,
        write_iops: None,
        bandwidth: None,
        read_bandwidth: None,
        write_bandwidth: None,
        floor_iops: None,
        floor_bandwidth: None,
    };

    pub fn is_none(&self) -> bool {
        *self == QosLimits::NONE
    }

    pub fn get(&self, kind: LimitKind) -> Option<RateLimit> {
        match kind {
            LimitKind::Iops => self.iops,
            LimitKind::ReadIops => self.read_iops,
            LimitKind::WriteIops => self.write_iops,
            LimitKind::Bandwidth => self.bandwidth,
            LimitKind::ReadBandwidth => self.read_bandwidth,
            LimitKind::WriteBandwidth => self.write_bandwidth,
            LimitKind::FloorIops => self.floor_iops,
            LimitKind::FloorBandwidth => self.floor_bandwidth,
        }
    }

    pub fn set(&mut self, kind: LimitKind, limit: Option<RateLimit>) {
        *match kind {
            LimitKind::Iops => &mut self.iops,
            LimitKind::ReadIops => &mut self.read_iops,
            LimitKind::WriteIops => &mut self.write_iops,
            LimitKind::Bandwidth => &mut self.bandwidth,
            LimitKind::ReadBandwidth => &mut self.read_bandwidth,
            LimitKind::WriteBandwidth => &mut self.write_bandwidth,
            LimitKind::FloorIops => &mut self.floor_iops,
            LimitKind::FloorBandwidth => &mut self.floor_bandwidth,
        } = limit;
    }

    /// Returns the floors, as the limits of a bucket of their own.
    pub fn floor(&self) -> QosLimits {
        QosLimits { iops: self.floor_iops, bandwidth: self.floor_bandwidth, ..QosLimits::NONE }
    }

    /// Iterates over the limits that are set.
    pub fn iter(&self) -> impl Iterator<Item = (LimitKind, RateLimit)> + '_ {
        LimitKind::ALL.into_iter().filter_map(|kind| self.get(kind).map(|limit| (kind, limit)))
    }
}

/// The limits from which a change starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QosBase {
    /// Those that are there. A volume without limits of its own starts from none.
    #[default]
    Kept,
    /// None; the volume has limits of its own, which its pool does not change.
    Unlimited,
    /// The volume gives up its own: those of its pool are in force.
    Pool,
}

/// A change of one limit; `None` keeps what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateChange {
    /// 0: the limit goes, with its burst.
    pub rate: Option<u64>,
    /// 0: the burst goes.
    pub burst: Option<u64>,
    pub burst_seconds: Option<u32>,
}

/// A change of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosChange {
    pub base: QosBase,
    /// A later change of a kind follows the earlier one.
    pub rates: Vec<(LimitKind, RateChange)>,
}

impl QosChange {
    /// Returns the change to exactly these limits, whatever is there; `None`: to those of the pool.
    pub fn to(limits: Option<&QosLimits>) -> QosChange {
        let Some(limits) = limits else { return QosChange { base: QosBase::Pool, rates: Vec::new() } };
        let rate = |limit: RateLimit| {
            let has_burst = limit.burst > 0;
            let burst_seconds = has_burst.then_some(limit.burst_seconds);
            RateChange { rate: Some(limit.rate), burst: has_burst.then_some(limit.burst), burst_seconds }
        };
        let rates = limits.iter().map(|(kind, limit)| (kind, rate(limit))).collect();
        QosChange { base: QosBase::Unlimited, rates }
    }

    pub fn is_none(&self) -> bool {
        self.base == QosBase::Kept && self.rates.is_empty()
    }
}
