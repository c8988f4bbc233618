//! One sample of `top`: counters of OSDs and volumes, read from the OSDs' `/metrics`.
//!
//! Invariant: a page of an OSD is untrusted text. A line that cannot be parsed is skipped; a counter that went back (the
//! OSD was restarted) counts from zero.

use std::collections::BTreeMap;

/// Reads or writes: their number, their bytes, and the sum of their latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Side {
    pub count: f64,
    pub bytes: f64,
    pub seconds: f64,
}

/// Reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Io {
    pub read: Side,
    pub write: Side,
}

/// The pool and the volume, as the labels name them: ids, or `other`.
pub type VolumeId = (String, String);

/// The counters of one OSD.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub io: Io,
    pub volumes: BTreeMap<VolumeId, Io>,
    pub log_used: f64,
    pub log_total: f64,
    /// Requests that wait for their reply.
    pub waiting: f64,
}

/// Rates between two samples, per second; latencies in seconds, `None` without any request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub iops: f64,
    pub bytes_per_s: f64,
    pub latency_s: Option<f64>,
}

impl Side {
    /// Returns the rate from `before` to `self`.
    pub fn since(&self, before: &Side, elapsed_s: f64) -> Rate {
        let delta = |now: f64, was: f64| if now >= was { now - was } else { now };
        let count = delta(self.count, before.count);
        Rate {
            iops: count / elapsed_s,
            bytes_per_s: delta(self.bytes, before.bytes) / elapsed_s,
            latency_s: (count > 0.0).then(|| delta(self.seconds, before.seconds) / count),
        }
    }
}

/// Returns the label's value in `a="1",b="2"`. Ids need no escapes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

/// Parses an OSD's page.
pub fn parse(text: &str) -> Page {
    let mut page = Page::default();
    for line in text.lines().filter(|line| line.starts_with("basalt_osd_")) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Some(value) = value.parse::<f64>().ok().filter(|value| value.is_finite()) else { continue };
        let (name, labels) =
            series.split_once('{').map_or((series, ""), |(name, rest)| (name, rest.trim_end_matches('}')));
        let Some(name) = name.strip_prefix("basalt_osd_") else { continue };
        match name {
            "log_segments_used" => page.log_used = value,
            "log_segments" => page.log_total = value,
            "requests" => page.waiting = value,
            "read_seconds_sum" => page.io.read.seconds = value,
            "write_seconds_sum" => page.io.write.seconds = value,
            _ => {}
        }
        let (io, name) = match name.strip_prefix("volume_") {
            None => (&mut page.io, name),
            Some(name) => {
                let (Some(pool), Some(volume)) = (label(labels, "pool"), label(labels, "volume")) else { continue };
                (page.volumes.entry((pool.to_owned(), volume.to_owned())).or_default(), name)
            }
        };
        match name {
            "reads_total" => io.read.count = value,
            "read_bytes_total" => io.read.bytes = value,
            "read_seconds_total" => io.read.seconds = value,
            "writes_total" => io.write.count = value,
            "write_bytes_total" => io.write.bytes = value,
            "write_seconds_total" => io.write.seconds = value,
            _ => {}
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gives_the_counters_of_the_osd_and_of_its_volumes() {
        let page = parse(
            "# TYPE basalt_osd_reads_total counter\nbasalt_osd_reads_total 10\nbasalt_osd_read_bytes_total 40960\n\
             basalt_osd_read_seconds_sum 0.5\nbasalt_osd_read_seconds_bucket{le=\"0.1\"} 7\nbasalt_osd_log_segments 16\n\
             basalt_osd_volume_writes_total{pool=\"1\",volume=\"7\"} 3\n\
             basalt_osd_volume_write_seconds_total{pool=\"1\",volume=\"7\"} 0.25\n\
             basalt_osd_volume_writes_total{pool=\"1\"} 9\nbasalt_osd_writes_total NaN\nbasalt_osd_writes_total\nprocess_x 1\n",
        );
        assert_eq!(page.io.read, Side { count: 10.0, bytes: 40960.0, seconds: 0.5 });
        assert_eq!(page.io.write, Side::default(), "what is no number is skipped");
        assert!((page.log_total - 16.0).abs() < 1e-9);
        let volume = page.volumes[&("1".to_owned(), "7".to_owned())];
        assert_eq!(volume.write, Side { count: 3.0, bytes: 0.0, seconds: 0.25 });
        assert_eq!(page.volumes.len(), 1);
    }

    #[test]
    fn a_rate_is_what_came_between_and_a_restart_counts_from_zero() {
        let side = |count: f64, seconds: f64| Side { count, bytes: count * 4096.0, seconds };
        let rate = side(30.0, 3.0).since(&side(10.0, 1.0), 2.0);
        assert_eq!(rate, Rate { iops: 10.0, bytes_per_s: 40960.0, latency_s: Some(0.1) });
        assert_eq!(side(10.0, 1.0).since(&side(10.0, 1.0), 1.0).latency_s, None);
        let rate = side(4.0, 0.4).since(&side(100.0, 9.0), 1.0);
        assert!((rate.iops - 4.0).abs() < 1e-9 && rate.latency_s.is_some_and(|l| (l - 0.1).abs() < 1e-9), "{rate:?}");
    }
}
