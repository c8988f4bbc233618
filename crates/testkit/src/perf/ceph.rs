//! The peer of the suite: a throw-away Ceph from Debian's packages, measured on the same machine (`--peer ceph`).
//!
//! The cluster has one monitor, one manager and three BlueStore OSDs in a folder of its own. fio drives one RBD image with
//! librbd. The phase begins after the cluster of Basalt has ended, because two clusters would disturb each other.
//!
//! Invariant: a setting has Ceph's default, or a reason in [`settings`].

use super::book::{Record, RowRecord, compare, medians};
use super::counters::Figures;
use super::measure::End;
use super::rows::{LARGE, LARGE_DEPTH, Op, SMALL, Yardstick, chooses, kib, yardstick};
use super::{Config, line, measure};
use crate::basalt::Basalt;
use crate::clock;
use crate::devices::{Devices, LoopDevice};
use crate::procs::{Proc, Spec};
use anyhow::{Context, Result, ensure};
use bench::cpu::{self, CpuSample};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Name of the peer: value of `--peer`, and first part of the names of its rows.
pub const NAME: &str = "ceph";
/// Ceph flushes its devices before it acknowledges a write, so it is measured in this mode only.
pub const MODE: &str = "flush";

const PROGRAMS: [&str; 6] = ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rbd", "fio"];
const INSTALL: &str = "apt install --no-install-recommends ceph-mon ceph-mgr ceph-osd ceph-common fio";

/// Variable that names the configuration to every program of Ceph, and to librbd within fio.
const CONF: &str = "CEPH_CONF";
const MON: &str = "a";
const MGR: &str = "x";
/// The cluster has as many OSDs as the default pool has replicas, so each OSD holds all data.
const OSDS: u32 = 3;
const PGS: u64 = 64;
const POOL: &str = "bench";
const IMAGE: &str = "image";
/// Size of the image: that of the volume behind the NBD server.
const IMAGE_SIZE: &str = "4G";
const DEVICE_BYTES: u64 = 8 << 30;

/// Longest time of one command, of each step of the start, and of writing the image once.
const COMMAND_MAX: Duration = Duration::from_secs(60);
const READY_MAX: Duration = Duration::from_secs(120);
const FILL_MAX: Duration = Duration::from_secs(600);
/// Seconds in which `ceph` must reach the monitor.
const CONNECT_MAX: &str = "5";
/// The OSDs are idle when they use less CPU time than this within a window. The window is longer than
/// `bluestore_max_defer_interval`, after which an idle OSD writes what it has deferred.
const IDLE_WINDOW: Duration = Duration::from_secs(4);
const IDLE_US: u64 = 400_000;
const IDLE_MAX: Duration = Duration::from_secs(180);
/// One tick of `/proc/PID/stat`: 100 a second on every architecture with Debian's Ceph.
const TICK_US: u64 = 10_000;

/// One row of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerRow {
    op: Op,
    block: u32,
    depth: u32,
}

impl fmt::Display for PeerRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}/{}-{}/d{}", self.op.word(), kib(self.block), self.depth)
    }
}

impl PeerRow {
    /// Whether the text chooses this row.
    pub fn is_meant(&self, text: &str) -> bool {
        chooses(text, &self.to_string())
    }

    fn yardstick(&self) -> Yardstick {
        yardstick(self.op, self.block, self.depth)
    }
}

/// Returns all rows of the peer.
pub fn all() -> Vec<PeerRow> {
    let depths = |op| [1, 32, 128].map(|depth| PeerRow { op, block: SMALL, depth });
    let large = |op| PeerRow { op, block: LARGE, depth: LARGE_DEPTH };
    let mut rows = Vec::new();
    rows.extend(depths(Op::RandWrite));
    rows.extend(depths(Op::RandRead));
    rows.push(PeerRow { op: Op::Mixed, block: SMALL, depth: 32 });
    rows.extend([Op::Write, Op::Read].map(large));
    rows
}

/// Whether a row of a record is of the peer.
pub fn is_row(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|rest| rest.starts_with('/'))
}

/// Checks that all programs of the peer are installed.
///
/// # Errors
/// A program or the `rbd` engine of fio is missing. The text names the packages.
pub fn check_installed() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = missing(&std::env::split_paths(&path).collect::<Vec<_>>());
    ensure!(missing.is_empty(), "--peer {NAME} needs {}: {INSTALL}", missing.join(", "));
    let engine = Command::new("fio").arg("--enghelp=rbd").output().context(INSTALL)?;
    ensure!(engine.status.success(), "--peer {NAME} needs a fio with the engine rbd, which Debian's has: {INSTALL}");
    Ok(())
}

/// Returns the programs that are in none of these folders.
fn missing(folders: &[PathBuf]) -> Vec<&'static str> {
    PROGRAMS.into_iter().filter(|program| !folders.iter().any(|folder| folder.join(program).is_file())).collect()
}

/// Measures the rows of the peer, on a cluster of its own, and adds them to the record.
///
/// # Errors
/// The cluster does not come up, or a request failed. The logs of the cluster are kept then.
pub(super) fn phase(config: &Config, record: &mut Record) -> Result<()> {
    let mut ceph = Ceph::up(&config.base, config.devices())?;
    record.machine.insert(NAME.to_owned(), ceph.run("ceph", &["--version"], COMMAND_MAX)?.trim().to_owned());
    let dir = ceph.yardsticks();
    std::fs::create_dir_all(&dir)?;
    // The yardsticks use no cluster, so no metadata server listens at this address.
    let basalt = Basalt::new(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 1))])?;
    let rows = &config.peer_rows;
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); rows.len()];
    let mut yardsticks: BTreeMap<Yardstick, Vec<Figures>> = BTreeMap::new();
    for round in 1..=config.repeats {
        for (row, runs) in rows.iter().zip(&mut runs) {
            let what = row.yardstick();
            ceph.settle()?;
            let bare = measure::yardstick(&basalt, &dir, what, false, config.seconds)?;
            eprintln!("round {round}, {MODE}, {what}: {}", line(&bare));
            let mut figures = ceph.measure(row, config.seconds)?;
            compare(&mut figures, &bare, "");
            eprintln!("round {round}, {MODE}, {row}: {}", line(&figures));
            yardsticks.entry(what).or_default().push(bare);
            runs.push(figures);
        }
    }
    for (row, runs) in rows.iter().zip(runs) {
        record.rows.push(RowRecord::new(row, MODE, row.yardstick(), runs));
    }
    for (what, runs) in yardsticks {
        // Basalt's own rows may have the same yardstick, measured at another time.
        record.yardsticks.insert(format!("{MODE} {what} beside {NAME}"), medians(&runs));
    }
    ceph.has_failed = false;
    Ok(())
}

/// A running Ceph. Dropping it kills its daemons and removes its folder; after a failure, its logs stay.
struct Ceph {
    dir: PathBuf,
    daemons: Vec<Proc>,
    /// Block devices of the OSDs; detached after the daemons have ended.
    block_devices: Vec<LoopDevice>,
    has_failed: bool,
}

impl Ceph {
    /// Starts a cluster with an image that is written in full.
    fn up(base: &Path, devices: Devices) -> Result<Ceph> {
        let dir = base.join(format!("{NAME}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let mut ceph = Ceph { dir, daemons: Vec::new(), block_devices: Vec::new(), has_failed: true };
        ceph.start(devices)?;
        ceph.create_image()?;
        Ok(ceph)
    }

    fn start(&mut self, devices: Devices) -> Result<()> {
        let paths = (0..OSDS).map(|n| self.prepare_device(n, devices)).collect::<Result<Vec<String>>>()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let text = settings(&self.dir.display().to_string(), &uuid()?, port, &paths);
        std::fs::write(self.conf(), text)?;
        let osds = (0..OSDS).map(|n| format!("osd.{n}"));
        for folder in osds.chain([format!("mon.{MON}"), format!("mgr.{MGR}"), "run".to_owned()]) {
            let folder = self.dir.join(folder);
            std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        }
        self.run("ceph-mon", &["--mkfs", "-i", MON], COMMAND_MAX)?;
        self.start_daemon("mon", MON)?;
        self.wait("a quorum of Ceph's monitor", &["quorum_status"], |status| status["quorum_names"][0] == MON)?;
        self.start_daemon("mgr", MGR)?;
        for n in 0..OSDS {
            let (id, uuid) = (n.to_string(), uuid()?);
            let given = self.run("ceph", &["osd", "new", &uuid], COMMAND_MAX)?;
            ensure!(given.trim() == id, "Ceph gave osd.{n} the id `{}`", given.trim());
            self.run("ceph-osd", &["--mkfs", "-i", &id, "--osd-uuid", &uuid], COMMAND_MAX)?;
            self.start_daemon("osd", &id)?;
        }
        self.wait("Ceph's OSDs to be up", &["osd", "stat"], |stat| stat["num_up_osds"] == OSDS)
    }

    fn create_image(&mut self) -> Result<()> {
        let pgs = PGS.to_string();
        self.run("ceph", &["osd", "pool", "create", POOL, &pgs, &pgs, "replicated"], COMMAND_MAX)?;
        self.wait("Ceph's PGs to be active and clean", &["pg", "stat"], is_clean)?;
        let image = format!("{POOL}/{IMAGE}");
        self.run("rbd", &["pool", "init", POOL], COMMAND_MAX)?;
        self.run("rbd", &["create", &image, "--size", IMAGE_SIZE], COMMAND_MAX)?;
        let load = ["--io-type", "write", "--io-pattern", "seq", "--io-size", "1M", "--io-threads", "8"];
        self.run("rbd", &[&["bench", &image, "--io-total", IMAGE_SIZE], &load[..]].concat(), FILL_MAX)?;
        Ok(())
    }

    /// Prepares the device of OSD `n`, and returns its path. The OSD itself makes a sparse file, if one is wanted.
    fn prepare_device(&mut self, n: u32, devices: Devices) -> Result<String> {
        let file = self.device_file(n);
        let device = devices.prepare(&file, DEVICE_BYTES)?;
        let path = device.as_ref().map_or_else(|| file.display().to_string(), |device| device.path.clone());
        self.block_devices.extend(device);
        Ok(path)
    }

    fn device_file(&self, n: u32) -> PathBuf {
        self.dir.join(format!("osd-{n}.img"))
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// Returns the folder of the yardsticks, which is on the disk of the devices.
    fn yardsticks(&self) -> PathBuf {
        self.dir.join("yardsticks")
    }

    /// Starts a daemon in the foreground. It writes its log to the file that also gets its standard error.
    fn start_daemon(&mut self, kind: &str, id: &str) -> Result<()> {
        let log = self.dir.join(format!("{kind}.{id}.log"));
        let name = if kind == "osd" { format!("osd.{id}") } else { kind.to_owned() };
        let args = ["-f", "-i", id].map(str::to_owned).to_vec();
        let mut daemon = Proc::new(Spec { name, program: format!("ceph-{kind}").into(), args, log });
        daemon.env.push((CONF, self.conf().display().to_string()));
        daemon.start()?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Runs a program to its end, which must come within `max`, and returns its output.
    fn run(&self, program: &str, args: &[&str], max: Duration) -> Result<String> {
        let out = Command::new("timeout")
            .args(["-s", "KILL", &max.as_secs().to_string(), program])
            .args(args)
            .env(CONF, self.conf())
            .stdin(Stdio::null())
            .output()
            .with_context(|| program.to_owned())?;
        let (text, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        ensure!(
            out.status.success(),
            "`{program} {}` failed or took {} s ({}): {}{}; logs: {}/*.log",
            args.join(" "),
            max.as_secs(),
            out.status,
            text.trim(),
            error.trim(),
            self.dir.display()
        );
        Ok(text.into_owned())
    }

    /// Waits until the answer of the monitor to a command is `done`.
    fn wait(&mut self, what: &str, command: &[&str], done: impl Fn(&Value) -> bool) -> Result<()> {
        let mut last = String::new();
        let waited = clock::wait_until(what, READY_MAX, || {
            self.must_live()?;
            let args = [&["--connect-timeout", CONNECT_MAX, "--format", "json"], command].concat();
            match self.run("ceph", &args, COMMAND_MAX) {
                Ok(text) => {
                    let met = serde_json::from_str(&text).is_ok_and(|answer: Value| done(&answer));
                    last = text.trim().to_owned();
                    Ok(met)
                }
                // The monitor does not answer yet.
                Err(e) => {
                    last = format!("{e:#}");
                    Ok(false)
                }
            }
        });
        waited.with_context(|| format!("logs: {}/*.log; last answer: {last}", self.dir.display()))?;
        Ok(())
    }

    fn must_live(&mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(Proc::must_live)
    }

    /// Waits until the OSDs have written what they deferred, so that a yardstick has the disk for itself.
    fn settle(&self) -> Result<()> {
        let mut before = self.sample()?;
        let what = format!("Ceph's OSDs to be idle; logs: {}/osd.*.log", self.dir.display());
        clock::wait_until(&what, IDLE_MAX, || {
            clock::pause(IDLE_WINDOW);
            let now = self.sample()?;
            let used = cpu::between(&before, &now);
            before = now;
            let osds = used.iter().filter(|sample| sample.name.starts_with("osd."));
            Ok(osds.map(CpuSample::total_us).sum::<u64>() < IDLE_US)
        })?;
        Ok(())
    }

    /// Samples the CPU time of all daemons, each under the name of its role.
    fn sample(&self) -> Result<Vec<CpuSample>> {
        let pids = self.daemons.iter().map(|daemon| daemon.pid().context("a daemon of Ceph does not run"));
        let mut samples = cpu::sample(&pids.collect::<Result<Vec<u32>>>()?)?;
        samples.iter_mut().zip(&self.daemons).for_each(|(sample, daemon)| sample.name.clone_from(&daemon.spec.name));
        Ok(samples)
    }

    /// Runs a row.
    fn measure(&mut self, row: &PeerRow, seconds: u64) -> Result<Figures> {
        let conf = self.conf();
        let engine = ["--ioengine=rbd", "--clientname=admin"].map(str::to_owned);
        let place = [&engine[..], &[format!("--pool={POOL}"), format!("--rbdname={IMAGE}")]].concat();
        let (before, children_us_before) = (self.sample()?, children_us()?);
        let end = End { seconds, ops: None };
        let run = measure::fio(Some((CONF, conf.as_path())), &place, row.op, row.block, row.depth, end);
        // A daemon that ended is the cause of the failed request.
        self.must_live()?;
        let mut figures = run?;
        let (after, fio_us) = (self.sample()?, children_us()? - children_us_before);
        let ops = figures.get("ops").copied().unwrap_or(0.0).max(1.0);
        for used in cpu::between(&before, &after) {
            figures.insert(format!("cpu_us.{}", used.name), used.total_us() as f64 / ops);
        }
        // fio reports one thread. librbd has threads of its own in the same process.
        figures.insert("cpu_us.fio".into(), fio_us as f64 / ops);
        measure::add_up(&mut figures);
        let osds = self.daemons.iter().filter(|daemon| daemon.spec.name.starts_with("osd."));
        let sizes = osds.map(|osd| Ok(osd.memory()?.0)).collect::<Result<Vec<u64>>>()?;
        let largest = sizes.into_iter().max().context("Ceph has OSDs")?;
        figures.insert("osd_rss_mib".into(), largest as f64 / f64::from(1 << 20));
        Ok(figures)
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        self.daemons.iter_mut().for_each(Proc::kill);
        if self.has_failed {
            eprintln!("the logs of Ceph are kept: {}", self.dir.display());
            (0..OSDS).for_each(|n| _ = std::fs::remove_file(self.device_file(n)));
            let _ = std::fs::remove_dir_all(self.yardsticks());
        } else if let Err(e) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("{} stays: {e}", self.dir.display());
        }
    }
}

/// Returns the configuration of a cluster in `dir`. Every setting that is no place or address has its reason here.
fn settings(dir: &str, fsid: &str, port: u16, devices: &[String]) -> String {
    let mut text = format!(
        "[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{port}
run_dir = {dir}/run
crash_dir = {dir}/run
log_file = {dir}/$name.log
mon_cluster_log_file = {dir}/cluster.log
mon_data = {dir}/$name
mgr_data = {dir}/$name
osd_data = {dir}/$name
# Basalt's cluster has no authentication either. All daemons listen on 127.0.0.1 alone.
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
# One host holds all replicas.
osd_crush_chooseleaf_type = 0
# The number of PGs must not change during a run.
osd_pool_default_pg_autoscale_mode = off
# The default is 100 GiB. It is the size of a sparse file; other devices have a size of their own.
bluestore_block_size = {DEVICE_BYTES}
[mgr]
public_addr = 127.0.0.1
[osd]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
[client]
# With this cache, librbd acknowledges a write before an OSD has it. Basalt acknowledges durable writes alone.
rbd_cache = false
"
    );
    for (n, device) in devices.iter().enumerate() {
        text.push_str(&format!("[osd.{n}]\nbluestore_block_path = {device}\n"));
    }
    text
}

fn uuid() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    Ok(std::fs::read_to_string(path).context(path)?.trim().to_owned())
}

/// Whether all PGs are active and clean, in the answer to `ceph pg stat`. The manager may have a pool of its own.
fn is_clean(stat: &Value) -> bool {
    let summary = &stat["pg_summary"];
    let states = summary["num_pg_by_state"].as_array().map_or(&[][..], Vec::as_slice);
    let clean = states.iter().filter(|state| state["name"] == "active+clean");
    let clean: u64 = clean.filter_map(|state| state["num"].as_u64()).sum();
    clean >= PGS && summary["num_pgs"] == clean
}

/// Returns the CPU time of all processes that this one has started and waited for.
fn children_us() -> Result<u64> {
    let path = "/proc/self/stat";
    children_us_of(&std::fs::read_to_string(path)?).with_context(|| format!("{path} has an unknown form"))
}

/// Parses the fields `cutime` and `cstime`. The name stands in parentheses and may hold any byte.
fn children_us_of(stat: &str) -> Option<u64> {
    let (_, tail) = stat.rsplit_once(')')?;
    let mut fields = tail.split_whitespace().skip(13);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) * TICK_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_of_the_peer_have_unique_names_and_yardsticks() {
        let names: BTreeSet<String> = all().iter().map(PeerRow::to_string).collect();
        let yardsticks: BTreeSet<Yardstick> = all().iter().map(PeerRow::yardstick).collect();
        assert_eq!((names.len(), yardsticks.len()), (all().len(), all().len()));
        assert!(names.iter().all(|name| is_row(name)), "{names:?}");
        assert!(names.contains("ceph/randwrite-4k/d32") && names.contains("ceph/read-512k/d16"), "{names:?}");
        assert!(!is_row("nbd/randwrite-4k/d32"));
        let chosen = |text: &str| all().iter().filter(|row| row.is_meant(text)).count();
        assert_eq!((chosen("ceph"), chosen("randwrite-4k/d1"), chosen("nbd")), (9, 1, 0));
    }

    #[test]
    fn programs_that_are_in_no_folder_are_missing() {
        let dir = std::env::temp_dir().join(format!("basalt-peer-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(missing(std::slice::from_ref(&dir)), PROGRAMS);
        std::fs::write(dir.join("rbd"), "").unwrap();
        let others: Vec<&str> = PROGRAMS.into_iter().filter(|program| *program != "rbd").collect();
        assert_eq!(missing(&[PathBuf::from("nowhere"), dir.clone()]), others);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn pgs_are_clean_when_all_of_them_are() {
        let stat = |states: &[(&str, u64)]| {
            let list: Vec<Value> =
                states.iter().map(|(name, num)| serde_json::json!({ "name": name, "num": num })).collect();
            let num_pgs: u64 = states.iter().map(|(_, num)| num).sum();
            serde_json::json!({ "pg_ready": true, "pg_summary": { "num_pg_by_state": list, "num_pgs": num_pgs } })
        };
        assert!(is_clean(&stat(&[("active+clean", 65)])));
        assert!(!is_clean(&stat(&[("active+clean", 64), ("unknown", 1)])));
        assert!(!is_clean(&stat(&[("active+clean", 1)])), "only the pool of the manager is there");
        assert!(!is_clean(&stat(&[])) && !is_clean(&Value::Null));
    }

    #[test]
    fn settings_name_the_device_of_each_osd() {
        let text = settings("/dir", "id", 7, &["/dev/loop0".to_owned(), "/dir/osd-1.img".to_owned()]);
        assert!(text.contains("mon_host = v2:127.0.0.1:7\n") && text.contains("log_file = /dir/$name.log\n"), "{text}");
        let devices = "[osd.0]\nbluestore_block_path = /dev/loop0\n[osd.1]\nbluestore_block_path = /dir/osd-1.img\n";
        assert!(text.ends_with(devices), "{text}");
    }

    #[test]
    fn the_time_of_children_stands_behind_our_own() {
        let text = "42 (a) (b c) S 1 2 3 4 5 6 7 8 9 10 150 25 30 4 20 0 1 0 99";
        assert_eq!(children_us_of(text), Some(340_000));
        assert_eq!(children_us_of("42 (x) S 1"), None);
        assert!(children_us().is_ok());
    }
}
