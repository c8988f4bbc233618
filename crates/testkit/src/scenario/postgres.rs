//! PostgreSQL on ext4 on a volume: snapshots under pgbench, a clone of each, and PostgreSQL on the clone.
//!
//! The server on a clone starts as after a power cut: it recovers from its log. It must have every transaction that was committed before the
//! snapshot was asked for, none that began after it was made, and pg_amcheck must find no fault.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape};
use crate::mounted::{self, Mounted, sh};
use crate::procs::{Proc, Spec};
use crate::report::Outcome;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

const VOLUME: u64 = 2 << 30;
const BIN: &str = "/usr/lib/postgresql/15/bin";
const BETWEEN: Duration = Duration::from_secs(1);

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    if !mounted::are_possible()? || !Path::new(BIN).join("pg_amcheck").exists() {
        outcome.skip("it needs root, /dev/fuse and PostgreSQL 15");
        return Ok(());
    }
    let shape = Shape { device_bytes: 6 << 30, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "postgres", shape)?;
    sh("chmod", &["755", &settings.base.display().to_string(), &cluster.dir.display().to_string()])?;
    if let Err(error) = clones_of_a_database(&mut cluster, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// A server on a mounted volume. It dies with this value.
struct Server {
    mount: Mounted,
    data: PathBuf,
    sockets: PathBuf,
    running: bool,
}

/// Runs a program of PostgreSQL as its user.
fn as_postgres(program: &str, args: &[&str]) -> Result<String> {
    let program = format!("{BIN}/{program}");
    sh("runuser", &[&["-u", "postgres", "--", &program], args].concat())
}

impl Server {
    fn new(cluster: &Cluster, name: &str, mount: Mounted) -> Result<Server> {
        let (data, sockets) = (mount.folder().join("data"), cluster.dir.join(format!("{name}.sockets")));
        std::fs::create_dir_all(&sockets)?;
        sh("chown", &["postgres", &sockets.display().to_string()])?;
        Ok(Server { mount, data, sockets, running: false })
    }

    fn start(&mut self) -> Result<()> {
        let options = format!("-c listen_addresses='' -k {}", self.sockets.display());
        let (data, log) = (self.data.display().to_string(), self.sockets.join("log").display().to_string());
        self.running = true;
        as_postgres("pg_ctl", &["-D", &data, "-l", &log, "-w", "-o", &options, "start"]).map(drop)
    }

    /// Ends it at once, without a checkpoint.
    fn stop(&mut self) -> Result<()> {
        if std::mem::take(&mut self.running) {
            as_postgres("pg_ctl", &["-D", &self.data.display().to_string(), "-m", "immediate", "-w", "stop"])?;
        }
        Ok(())
    }

    fn at(&self) -> String {
        self.sockets.display().to_string()
    }

    fn query(&self, text: &str) -> Result<String> {
        let out = as_postgres("psql", &["-h", &self.at(), "-XAtq", "-c", text, "postgres"])?;
        Ok(out.trim().to_owned())
    }

    /// Returns the number of transactions that pgbench has committed.
    fn committed(&self) -> Result<u64> {
        Ok(self.query("SELECT count(*) FROM pgbench_history")?.parse()?)
    }

    /// Looks for damage in tables and indexes.
    fn check(&self) -> Result<()> {
        as_postgres("pg_amcheck", &["-h", &self.at(), "--install-missing", "--heapallindexed", "--all"]).map(drop)
    }

    fn down(&mut self) -> Result<()> {
        self.stop()?;
        self.mount.down()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            eprintln!("{}: {e:#}", self.data.display());
        }
    }
}

fn clones_of_a_database(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let volume = cluster.volume("pg", VOLUME)?;
    let uri = cluster.export(&volume)?;
    let mut mount = Mounted::attach(cluster, "pg", &uri, VOLUME)?;
    mount.format()?;
    mount.mount()?;
    let mut server = Server::new(cluster, "pg", mount)?;
    let data = server.data.display().to_string();
    std::fs::create_dir_all(&server.data)?;
    sh("chown", &["postgres", &data])?;
    as_postgres("initdb", &["-D", &data, "--data-checksums", "-A", "trust"])?;
    server.start()?;
    as_postgres("pgbench", &["-h", &server.at(), "-q", "-i", "-s", "5", "postgres"])?;
    let args =
        ["-u", "postgres", "--", &format!("{BIN}/pgbench"), "-h", &server.at(), "-c", "4", "-T", "3600", "postgres"];
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let spec = Spec { name: "pgbench".into(), program: "runuser".into(), args, log: cluster.dir.join("pgbench.log") };
    let mut load = Proc::new(spec);
    load.start()?;
    clock::wait_until("transactions", READY_MAX, || Ok(server.committed()? > 100))?;
    let mut transactions = 0;
    let rounds = settings.rounds(20, 3);
    for n in 0..rounds {
        clock::pause(BETWEEN);
        load.must_live()?;
        transactions = on_a_clone(cluster, &server, n).with_context(|| format!("clone {n}"))?;
    }
    load.kill();
    server.check().context("the database itself")?;
    let all = server.committed()?;
    server.down()?;
    outcome.figure(format!(
        "{rounds} clones under pgbench: each recovered with all that was committed, pg_amcheck clean; {transactions} transactions \
         in the last one, {all} at the end"
    ));
    Ok(())
}

/// Takes a snapshot of the running database and looks at a clone of it. Returns the number of its transactions.
fn on_a_clone(cluster: &mut Cluster, server: &Server, n: u32) -> Result<u64> {
    let (snapshot, clone) = (format!("{POOL}/pg@s{n}"), format!("{POOL}/clone{n}"));
    let before = server.committed()?;
    cluster.basalt.run(&["snapshot", "create", &snapshot])?;
    let after = server.committed()?;
    cluster.basalt.run(&["volume", "clone", &snapshot, &clone])?;
    let uri = cluster.export(&clone)?;
    let mut export = cluster.exports.pop().context("it was just started")?;
    let looked = look_at(cluster, &uri, (before, after));
    export.signal("TERM")?;
    export.finish(READY_MAX)?;
    let transactions = looked?;
    cluster.basalt.run(&["volume", "rm", &clone, "--now"])?;
    Ok(transactions)
}

fn look_at(cluster: &Cluster, uri: &str, (before, after): (u64, u64)) -> Result<u64> {
    let mut mount = Mounted::attach(cluster, "clone", uri, VOLUME)?;
    mount.mount()?;
    let mut server = Server::new(cluster, "clone", mount)?;
    let _ = std::fs::remove_file(server.data.join("postmaster.pid"));
    server.start()?;
    let found = server.committed()?;
    ensure!(
        (before..=after).contains(&found),
        "{found} transactions: there were {before} before, and {after} after it"
    );
    server.check()?;
    server.down()?;
    Ok(found)
}
