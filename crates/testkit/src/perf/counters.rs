//! Use of resources by the processes of a cluster during a run: CPU time, page faults, switches, and the counters of the OSDs.

use crate::clock;
use crate::cluster::Cluster;
use crate::http;
use anyhow::{Context, Result};
use bench::cpu::{self, CpuSample};
use std::collections::BTreeMap;
use std::time::Duration;

/// Figures of one run by name.
pub type Figures = BTreeMap<String, f64>;

/// Counters of the OSDs, summed, that are given for each request.
const PER_OP: [(&str, &str); 9] = [
    ("basalt_osd_turns_total", "turns"),
    ("basalt_osd_kernel_entries_total", "kernel_entries"),
    ("basalt_process_allocations_total", "allocations.osds"),
    ("basalt_osd_copied_bytes_total", "copied_bytes"),
    ("basalt_osd_frames_out_total", "frames"),
    ("basalt_osd_log_batches_total", "batches"),
    ("basalt_osd_flushes_total", "flushes"),
    ("basalt_osd_log_bytes_total", "log_bytes"),
    ("basalt_osd_device_read_bytes_total", "device_read_bytes"),
];
const WRITTEN: &str = "basalt_osd_device_written_bytes_total";
const TURNS: &str = "basalt_osd_turn_seconds";
/// Stands for a turn that was longer than the last bucket, in seconds.
const TURN_MAX: f64 = 100.0;
const ROUNDS: &str = "basalt_osd_destage_rounds_total";

/// An OSD publishes its counters with its heartbeats, once a second.
const PUBLISHED_AFTER: Duration = Duration::from_millis(1200);

/// State of all counters before or after a run.
pub struct Counters {
    usage: Usage,
    osds: Figures,
}

/// Counts of the kernel at one moment.
struct Usage {
    cpu: Vec<CpuSample>,
    switches: u64,
    machine: (u64, u64),
}

/// Returns the processes of the cluster with the names of their roles.
fn processes(cluster: &Cluster) -> Vec<(&str, u32)> {
    let all = cluster.metas.iter().chain(cluster.osds.values()).chain(&cluster.exports);
    all.filter_map(|proc| Some((proc.spec.name.as_str(), proc.pid()?))).collect()
}

impl Usage {
    fn read(cluster: &Cluster) -> Result<Usage> {
        let all = processes(cluster);
        let pids: Vec<u32> = all.iter().map(|(_, pid)| *pid).collect();
        let mut cpu = cpu::sample(&pids)?;
        cpu.iter_mut().zip(&all).for_each(|(sample, (name, _))| sample.name = (*name).to_owned());
        let switches = pids.iter().map(|pid| switches(*pid)).sum::<Result<u64>>()?;
        Ok(Usage { cpu, switches, machine: machine()? })
    }
}

/// Returns the counters of the OSDs, summed, once everything up to now is in them. No client is at work.
fn published(cluster: &Cluster) -> Result<Figures> {
    clock::pause(PUBLISHED_AFTER);
    let mut osds = Figures::new();
    for n in cluster.ids() {
        for (name, value) in http::metrics(cluster.osd_http(n))? {
            *osds.entry(name).or_insert(0.0) += value;
        }
    }
    Ok(osds)
}

impl Counters {
    /// Reads all counters before a run.
    ///
    /// # Errors
    /// A process of the cluster has ended.
    pub fn before(cluster: &Cluster) -> Result<Counters> {
        let osds = published(cluster)?;
        Ok(Counters { usage: Usage::read(cluster)?, osds })
    }

    /// Reads all counters after a run.
    ///
    /// # Errors
    /// A process of the cluster has ended.
    pub fn after(cluster: &Cluster) -> Result<Counters> {
        let usage = Usage::read(cluster)?;
        Ok(Counters { usage, osds: published(cluster)? })
    }

    /// Returns what was used since `before`, for each of `ops` requests with `user_bytes` written in all.
    pub fn since(&self, before: &Counters, ops: f64, user_bytes: f64, replicas: u32) -> Figures {
        let mut figures = Figures::new();
        let used = cpu::between(&before.usage.cpu, &self.usage.cpu);
        for sample in &used {
            figures.insert(format!("cpu_us.{}", sample.name), sample.total_us() as f64 / ops);
        }
        let user: u64 = used.iter().map(|sample| sample.user_us).sum();
        figures.insert("daemons_user_us".into(), user as f64 / ops);
        let faults: u64 = used.iter().map(|sample| sample.minor_faults).sum();
        figures.insert("minor_faults".into(), faults as f64 / ops);
        figures.insert("switches".into(), self.usage.switches.saturating_sub(before.usage.switches) as f64 / ops);
        let counted = |name: &str| self.osds.get(name).unwrap_or(&0.0) - before.osds.get(name).unwrap_or(&0.0);
        for (metric, name) in PER_OP {
            figures.insert(name.to_owned(), counted(metric) / ops);
        }
        if user_bytes > 0.0 {
            let amplification = counted(WRITTEN) / user_bytes / f64::from(replicas);
            figures.insert("device_bytes_per_user_byte".into(), amplification);
        }
        figures.insert("destage_rounds".into(), counted(ROUNDS));
        figures.extend(turns(&self.osds, &counted));
        let (now, then) = (self.usage.machine, before.usage.machine);
        let (busy, idle) = (now.0 - then.0, now.1 - then.1);
        figures.insert("machine_idle".into(), idle as f64 / (busy + idle).max(1) as f64);
        figures
    }
}

/// Returns the turns of more than 1 ms for each thousand turns, and the upper bound of the longest one in ms. Time in which
/// another process had the core counts.
fn turns(osds: &Figures, counted: &dyn Fn(&str) -> f64) -> BTreeMap<String, f64> {
    let bound =
        |name: &str| name.strip_prefix(TURNS)?.strip_prefix("_bucket{le=\"")?.strip_suffix("\"}")?.parse::<f64>().ok();
    let mut buckets: Vec<(f64, f64)> = osds.keys().filter_map(|name| Some((bound(name)?, counted(name)))).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    let short = buckets.iter().rfind(|(le, _)| *le <= 0.001).map_or(0.0, |(_, count)| *count);
    let longest = buckets.iter().find(|(_, count)| *count >= all).map_or(0.0, |(le, _)| le.min(TURN_MAX));
    BTreeMap::from([
        ("long_turns".to_owned(), (all - short) * 1000.0 / all.max(1.0)),
        ("turn_ms_max".to_owned(), longest * 1000.0),
    ])
}

/// Returns the resident bytes of the largest OSD.
///
/// # Errors
/// An OSD does not run.
pub fn largest_osd(cluster: &Cluster) -> Result<u64> {
    let sizes = cluster.osds.values().map(|osd| Ok(osd.memory()?.0)).collect::<Result<Vec<u64>>>()?;
    sizes.into_iter().max().context("a cluster has OSDs")
}

/// Returns how often the threads of a process have left a core.
fn switches(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the two reads.
        let Ok(text) = std::fs::read_to_string(task?.path().join("status")) else { continue };
        let counts = text.lines().filter(|line| line.contains("ctxt_switches:"));
        sum += counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}

/// Returns busy and idle ticks of all cores.
fn machine() -> Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let idle = ticks.get(3).context("/proc/stat has an unknown form")? + ticks.get(4).unwrap_or(&0);
    Ok((ticks.iter().sum::<u64>() - idle, idle))
}

/// Returns the idle share of the machine over a pause.
///
/// # Errors
/// `/proc/stat` cannot be read.
pub fn idle_share(pause: Duration) -> Result<f64> {
    let (busy, idle) = machine()?;
    clock::pause(pause);
    let (busy_then, idle_then) = machine()?;
    let (busy, idle) = (busy_then - busy, idle_then - idle);
    Ok(idle as f64 / (busy + idle).max(1) as f64)
}
