//! Flags that limit the I/O of a volume or of the volumes of a pool, and limits in words.

use clap::Args;
use types::qos::{QosBase, QosChange, RateChange};
use types::{LimitKind, QosLimits, RateLimit};

/// Limits of I/O. A rate of 0 removes the limit, a burst of 0 the burst.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Limits", group = clap::ArgGroup::new("bursts").multiple(true))]
pub struct Limits {
    /// Operations per second, 10 to 100000000; 0: no such limit
    #[arg(long, value_name = "N")]
    iops: Option<u64>,
    /// Reads per second
    #[arg(long, value_name = "N")]
    read_iops: Option<u64>,
    /// Writes per second
    #[arg(long, value_name = "N")]
    write_iops: Option<u64>,
    /// Bytes per second, as 100MiB/s; 64KiB/s to 1TiB/s
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    bandwidth: Option<u64>,
    /// Bytes read per second
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    read_bandwidth: Option<u64>,
    /// Bytes written per second
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    write_bandwidth: Option<u64>,
    /// Operations per second that never wait for those of other volumes on a busy OSD; 0: no such floor
    #[arg(long, value_name = "N")]
    floor_iops: Option<u64>,
    /// Bytes per second of the same kind
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    floor_bandwidth: Option<u64>,
    /// Operations per second for --burst-seconds after a quiet time; above --iops
    #[arg(long, value_name = "N", group = "bursts")]
    burst_iops: Option<u64>,
    /// The same for reads
    #[arg(long, value_name = "N", group = "bursts")]
    burst_read_iops: Option<u64>,
    /// The same for writes
    #[arg(long, value_name = "N", group = "bursts")]
    burst_write_iops: Option<u64>,
    /// Bytes per second for --burst-seconds after a quiet time; above --bandwidth
    #[arg(long, value_name = "SIZE", value_parser = bandwidth, group = "bursts")]
    burst_bandwidth: Option<u64>,
    /// The same for reads
    #[arg(long, value_name = "SIZE", value_parser = bandwidth, group = "bursts")]
    burst_read_bandwidth: Option<u64>,
    /// The same for writes
    #[arg(long, value_name = "SIZE", value_parser = bandwidth, group = "bursts")]
    burst_write_bandwidth: Option<u64>,
    /// Seconds of each burst that this command names, 1 to 3600 [default: those that it has, or 1]
    #[arg(long, value_name = "N", requires = "bursts")]
    burst_seconds: Option<u32>,
    /// No limit, also none of the pool; limits that the same command names stay
    #[arg(long)]
    no_limit: bool,
}

fn bandwidth(text: &str) -> Result<u64, String> {
    crate::size::parse(text.strip_suffix("/s").unwrap_or(text))
}

impl Limits {
    fn of(&self, kind: LimitKind) -> (Option<u64>, Option<u64>) {
        match kind {
            LimitKind::Iops => (self.iops, self.burst_iops),
            LimitKind::ReadIops => (self.read_iops, self.burst_read_iops),
            LimitKind::WriteIops => (self.write_iops, self.burst_write_iops),
            LimitKind::Bandwidth => (self.bandwidth, self.burst_bandwidth),
            LimitKind::ReadBandwidth => (self.read_bandwidth, self.burst_read_bandwidth),
            LimitKind::WriteBandwidth => (self.write_bandwidth, self.burst_write_bandwidth),
            LimitKind::FloorIops => (self.floor_iops, None),
            LimitKind::FloorBandwidth => (self.floor_bandwidth, None),
        }
    }

    /// Returns the change. With `of_pool` the volume gives its own limits up.
    pub fn change(&self, of_pool: bool) -> QosChange {
        let base = match (self.no_limit, of_pool) {
            (true, _) => QosBase::Unlimited,
            (false, true) => QosBase::Pool,
            (false, false) => QosBase::Kept,
        };
        let change = |kind| {
            let (rate, burst) = self.of(kind);
            let burst_seconds = self.burst_seconds.filter(|_| burst.is_some_and(|burst| burst > 0));
            (rate.is_some() || burst.is_some()).then_some((kind, RateChange { rate, burst, burst_seconds }))
        };
        QosChange { base, rates: LimitKind::ALL.into_iter().filter_map(change).collect() }
    }
}

fn words(kind: LimitKind, limit: RateLimit) -> String {
    let shown =
        |rate: u64| if kind.is_bytes() { format!("{}/s", crate::size::show_exactly(rate)) } else { rate.to_string() };
    let burst = match limit.burst {
        0 => String::new(),
        burst => format!(" (burst {} for {} s)", shown(burst), limit.burst_seconds),
    };
    format!("{} {}{burst}", kind.name(), shown(limit.rate))
}

/// Returns limits in words, one for each kind that is limited.
pub fn in_words(limits: &QosLimits) -> String {
    let words: Vec<String> = limits.iter().map(|(kind, limit)| words(kind, limit)).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: Limits,
    }

    fn parsed(words: &[&str]) -> Result<QosChange, clap::Error> {
        Line::try_parse_from([&["x"], words].concat()).map(|line| line.limits.change(false))
    }

    #[test]
    fn flags_become_the_change_that_they_name() {
        let change = parsed(&["--iops", "500", "--burst-iops", "700", "--burst-seconds", "5", "--read-bandwidth", "0"]);
        let iops = RateChange { rate: Some(500), burst: Some(700), burst_seconds: Some(5) };
        let read = RateChange { rate: Some(0), ..RateChange::default() };
        let rates = vec![(LimitKind::Iops, iops), (LimitKind::ReadBandwidth, read)];
        assert_eq!(change.expect("parsed"), QosChange { base: QosBase::Kept, rates });
        for (text, bytes) in [("100MiB/s", 100 << 20), ("100m", 100 << 20), ("65536", 65536)] {
            let change = parsed(&["--bandwidth", text]).expect("parsed");
            assert_eq!(change.rates[0].1.rate, Some(bytes), "{text}");
        }
        assert_eq!(parsed(&["--no-limit"]).expect("parsed").base, QosBase::Unlimited);
        assert!(parsed(&[]).expect("parsed").is_none());
    }

    #[test]
    fn flags_that_no_limit_can_have_are_refused() {
        for bad in [
            &["--iops", "-1"][..],
            &["--iops", "many"],
            &["--iops", "1.5"],
            &["--bandwidth", "100MB/s"],
            &["--bandwidth", "100MiB/m"],
            &["--iops", "500", "--burst-seconds", "5"],
            &["--burst-iops", "500", "--burst-seconds", "4294967296"],
        ] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn limits_are_shown_with_their_bursts() {
        let iops = Some(RateLimit { rate: 500, burst: 700, burst_seconds: 5 });
        let bandwidth = Some(RateLimit { rate: 4 << 20, burst: 0, burst_seconds: 0 });
        let limits = QosLimits { iops, bandwidth, ..QosLimits::NONE };
        assert_eq!(in_words(&limits), "iops 500 (burst 700 for 5 s), bandwidth 4 MiB/s");
        assert_eq!(in_words(&QosLimits::NONE), "none");
    }
}
