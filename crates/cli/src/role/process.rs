//! Metrics of the process: its program and its resources.
//!
//! The figures are read from `/proc/self` at each scrape. The names are those of the Prometheus client libraries, so
//! that dashboards for any process work.

use crate::version;
use telemetry::{Registry, Row};

/// Ticks per second of the times in `/proc/PID/stat`: fixed by the kernel's interface.
const TICKS_PER_S: f64 = 100.0;

telemetry::metrics! {
    /// Resources that the process uses.
    pub struct ProcessMetrics("process") {
        seconds cpu_seconds: "user and system CPU time spent";
        gauge resident_memory_bytes: "resident memory";
        gauge virtual_memory_bytes: "virtual memory";
        gauge open_fds: "open file descriptors";
        gauge threads: "threads";
        gauge start_time_seconds: "start of the process since the Unix epoch";
    }
}

telemetry::metrics! {
    /// Work of the program itself.
    pub struct ProgramMetrics("basalt_process") {
        counter allocations: "memory allocations by all threads, counted in steps";
    }
}

/// `basalt_build_info` and `basalt_osd_info`.
pub const INFO_ROWS: &[Row] = &[
    Row { name: "basalt_build_info", kind: "gauge", help: BUILD_HELP },
    Row { name: "basalt_osd_info", kind: "gauge", help: OSD_HELP },
];
const BUILD_HELP: &str = "always 1; labels: version, commit, role";
const OSD_HELP: &str = "always 1; labels: osd, and the host, rack and zone given to `osd run`";

/// Fields of `/proc/self/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    threads: i64,
    /// Start time since the boot.
    started_seconds: f64,
    virtual_bytes: i64,
}

/// Parses `/proc/self/stat`. The name in parentheses may hold any byte, so the fields are counted from the last
/// parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, tail) = text.rsplit_once(')')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok().map(|ticks| f64::from(ticks) / TICKS_PER_S);
    Some(Stat {
        cpu_seconds: ticks(11)? + ticks(12)?,
        threads: fields.get(17)?.parse().ok()?,
        started_seconds: fields.get(19)?.parse::<f64>().ok()? / TICKS_PER_S,
        virtual_bytes: fields.get(20)?.parse().ok()?,
    })
}

/// Returns `VmRSS` of `/proc/self/status`, in bytes.
fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok().map(|kib| kib * 1024)
}

/// Returns the time of the boot since the Unix epoch: `btime` of `/proc/stat`.
fn boot_seconds(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn refresh(metrics: &ProcessMetrics) {
    let read = |what: &str| std::fs::read_to_string(what).unwrap_or_default();
    if let Some(stat) = parse_stat(&read("/proc/self/stat")) {
        // Two concurrent scrapes may read at the same time; the counter never goes back.
        let more = stat.cpu_seconds - metrics.cpu_seconds.get();
        if more > 0.0 {
            metrics.cpu_seconds.inc_by(more);
        }
        metrics.threads.set(stat.threads);
        metrics.virtual_memory_bytes.set(stat.virtual_bytes);
        if let Some(boot) = boot_seconds(&read("/proc/stat")) {
            metrics.start_time_seconds.set((boot + stat.started_seconds) as i64);
        }
    }
    if let Some(bytes) = resident_bytes(&read("/proc/self/status")) {
        metrics.resident_memory_bytes.set(bytes);
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        metrics.open_fds.set(i64::try_from(fds.count()).unwrap_or(i64::MAX) - 1);
    }
}

/// Returns a registry with the metrics of this process, which serves as `role`.
pub fn registry(role: &'static str) -> Registry {
    let registry = Registry::default();
    let labels = [("version", version::VERSION), ("commit", version::COMMIT), ("role", role)];
    let labels = labels.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    registry.info("basalt_build", BUILD_HELP, labels);
    let metrics = ProcessMetrics::new(&registry);
    registry.on_render(move || refresh(&metrics));
    let program = ProgramMetrics::new(&registry);
    registry.on_render(move || {
        // Two concurrent scrapes may add the same twice; the counter never goes back.
        let total = bench::allocations::total();
        program.allocations.inc_by(total.saturating_sub(program.allocations.get()));
    });
    registry
}

/// Adds which OSD this is, and the place that it was given; only meta knows a registered place.
pub fn osd_info(registry: &Registry, config: &osd::OsdConfig) {
    let place = [("host", &config.host), ("rack", &config.rack), ("zone", &config.zone)];
    let given = place.into_iter().filter_map(|(label, value)| Some((label, value.clone()?)));
    let labels = std::iter::once(("osd", config.osd.0.to_string())).chain(given);
    registry.info("basalt_osd", OSD_HELP, labels.collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read_whatever_the_name_of_the_process() {
        let text = "42 (a) b) R 1 1 1 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 12345 1048576 200 1 1";
        let stat = Stat { cpu_seconds: 3.0, threads: 3, started_seconds: 123.45, virtual_bytes: 1_048_576 };
        assert_eq!(parse_stat(text), Some(stat));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(boot_seconds("cpu 1 2\nbtime 1700000000\n"), Some(1.7e9));
    }

    #[test]
    fn this_process_says_what_it_is_and_what_it_uses() {
        let text = telemetry::render(&[&registry("osd")], telemetry::Format::Prometheus);
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.split(' ').next() == Some(name));
            line.and_then(|line| line.split(' ').nth(1)).and_then(|v| v.parse().ok()).unwrap_or(0.0)
        };
        assert!(value("process_resident_memory_bytes") > 1e5, "{text}");
        assert!(value("process_start_time_seconds") > 1.6e9, "{text}");
        assert!(value("process_open_fds") >= 3.0 && value("process_threads") >= 1.0, "{text}");
        assert!(text.contains("basalt_build_info{version=\""), "{text}");
    }
}
