//! Backups under a verified load, in a directory and in an S3 bucket; then the cluster is destroyed, and another one gets them back.
//!
//! Each restored volume has what was acknowledged before the snapshot of its backup, and nothing that began after it. One backup is killed in
//! the middle and made again. A changed byte in the bucket is found.

use super::Settings;
use super::snapshots::{Taken, take};
use crate::clock;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape};
use crate::mounted::sh;
use crate::procs::{Proc, Spec};
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const RATE: u64 = 250;
const BETWEEN: Duration = Duration::from_secs(1);
const PORT: &str = "7990";
const BUCKET: &str = "basalt";
/// Time after which a backup is killed: it has read a part of the volume.
const KILLED_AFTER: Duration = Duration::from_millis(120);

/// A repository. The S3 server dies with this value.
struct Repo {
    address: String,
    env: Vec<(&'static str, String)>,
    _server: Option<Proc>,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let directory = settings.base.join("backups.repository");
    let _ = std::fs::remove_dir_all(&directory);
    let mut repos = vec![Repo { address: directory.display().to_string(), env: Vec::new(), _server: None }];
    match bucket(settings) {
        Ok(repo) => repos.push(repo),
        Err(error) => outcome.skip(format!("S3: {error:#}")),
    }
    let shape = Shape { device_bytes: 4 << 30, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "backups", shape.clone())?;
    let mut saved = Vec::new();
    let made = save(&mut cluster, settings, &repos, (&mut saved, outcome));
    if made.is_err() || saved.is_empty() {
        super::close(&mut cluster, settings, outcome);
    }
    let mut load = made?;
    drop(cluster);
    let mut cluster = Cluster::up(&settings.base, "restored", shape)?;
    if let Err(error) = restore(&mut cluster, &mut load, &repos, (&saved, outcome)) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    std::fs::remove_dir_all(&directory).context("the repository")
}

/// Starts an S3 server.
fn bucket(settings: &Settings) -> Result<Repo> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/s3-server");
    sh(&script.display().to_string(), &["install"])?;
    let args = ["run", PORT, BUCKET].map(str::to_owned).to_vec();
    let log = settings.base.join("s3-server.log");
    let mut server = Proc::new(Spec { name: "s3-server".into(), program: script, args, log });
    let out = server.start_piped()?;
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
    ensure!(line.trim() == "ready", "the S3 server does not start: {}", server.log_tail(3));
    let env = vec![
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{PORT}")),
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    Ok(Repo { address: format!("s3://{BUCKET}/cluster"), env, _server: Some(server) })
}

impl Repo {
    /// Runs `basalt backup ...`. Returns its JSON.
    fn run(&self, cluster: &Cluster, words: &[&str]) -> Result<Value> {
        let args = [&["backup"][..], words, &["--repo", &self.address, "--json"]].concat();
        let out = cluster.basalt.output_with(&self.env, &args)?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        if !matches!(out.status.code(), Some(0 | 3)) {
            bail!("`basalt {}`: {text}{}", args.join(" "), String::from_utf8_lossy(&out.stderr));
        }
        serde_json::from_str(&text).with_context(|| text)
    }
}

/// Makes backups of snapshots under load, in each repository.
fn save(
    cluster: &mut Cluster,
    settings: &Settings,
    repos: &[Repo],
    (saved, outcome): (&mut Vec<Taken>, &mut Outcome),
) -> Result<StampedLoad> {
    let mut load = StampedLoad::new(cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    let known = load.witness.clone();
    clock::wait_until("writes", READY_MAX, || Ok(known.known().acked > 500))?;
    let mut read = Vec::new();
    for n in 0..settings.rounds(4, 3) {
        clock::pause(BETWEEN);
        load.must_be_clean()?;
        let taken = take(cluster, &load.witness, &format!("{POOL}/v@s{n}"))?;
        if n == 0 {
            killed(cluster, &repos[0], &taken.name, outcome)?;
        }
        for (r, repo) in repos.iter().enumerate() {
            let made = repo.run(cluster, &["create", &taken.name])?;
            ensure!(made["parent"].is_null() == (n == 0), "backup {n} begins with {}", made["parent"]);
            if r == 0 {
                read.push(made["read_bytes"].as_u64().context("a number")?);
            }
        }
        saved.push(taken);
    }
    load.kill()?;
    for repo in repos {
        let found = repo.run(cluster, &["verify"])?;
        ensure!(found["faults"].as_array().is_some_and(Vec::is_empty), "{found}");
    }
    let mib = |bytes: &u64| format!("{:.1}", *bytes as f64 / f64::from(1 << 20));
    let read: Vec<String> = read.iter().map(mib).collect();
    outcome.figure(format!("{}; MiB read by the backups: {}", load.summary(), read.join(", ")));
    Ok(load)
}

/// Kills a backup in the middle. The next attempt makes it.
fn killed(cluster: &Cluster, repo: &Repo, snapshot: &str, outcome: &mut Outcome) -> Result<()> {
    let args = ["backup", "create", snapshot, "--repo", &repo.address];
    let mut args: Vec<String> = args.map(str::to_owned).to_vec();
    args.push(cluster.basalt.meta_flag());
    let log = cluster.dir.join("killed.log");
    let spec = Spec { name: "backup".into(), program: crate::basalt::binary()?, args, log };
    let mut backup = Proc::new(spec);
    backup.start()?;
    clock::pause(KILLED_AFTER);
    let was_alive = backup.is_alive();
    backup.kill();
    let listed = repo.run(cluster, &["ls"]).map_or(0, |listed| listed["backups"].as_array().map_or(0, Vec::len));
    ensure!(listed == usize::from(!was_alive), "{listed} backups are listed");
    outcome.figure(format!("a backup was killed {}", if was_alive { "in the middle" } else { "too late" }));
    Ok(())
}

/// Restores each backup in a cluster that knows nothing of them.
fn restore(
    cluster: &mut Cluster,
    load: &mut StampedLoad,
    repos: &[Repo],
    (saved, outcome): (&[Taken], &mut Outcome),
) -> Result<()> {
    load.config.metas = cluster.metas_for_daemons();
    load.config.ledger = cluster.dir.join("v.ledger.json");
    load.proc.spec.log = cluster.dir.join("v.loader.log");
    let name = format!("{POOL}/v");
    let mut blocks = 0;
    for (r, repo) in repos.iter().enumerate() {
        let listed = repo.run(cluster, &["ls", &name])?;
        let listed = listed["backups"].as_array().context("a list")?;
        ensure!(listed.len() == saved.len(), "{} backups of {}", listed.len(), saved.len());
        for (n, (backup, taken)) in listed.iter().zip(saved).enumerate() {
            let (id, new) = (backup["id"].as_str().context("an id")?, format!("{POOL}/r{r}-{n}"));
            repo.run(cluster, &["restore", &name, &new, "--id", id])?;
            let witness = load.witness.of_snapshot(&taken.asked, &taken.ended);
            blocks += load.check_snapshot(&new, witness).with_context(|| format!("{new} of {}", taken.name))?;
        }
    }
    let places: Vec<&str> = repos.iter().map(|repo| repo.address.as_str()).collect();
    outcome.figure(format!("{} backups restored from {}: {blocks} blocks checked", saved.len(), places.join(" and ")));
    if let Some(repo) = repos.iter().find(|repo| repo.address.starts_with("s3://")) {
        let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/s3-server");
        let object = sh(&script.display().to_string(), &["flip", PORT, BUCKET, "cluster/objects"])?;
        let found = repo.run(cluster, &["verify"])?;
        let faults = found["faults"].as_array().context("a list")?;
        let is_named = faults.len() == 1 && object.trim().ends_with(faults[0]["object"].as_str().unwrap_or("-"));
        ensure!(is_named, "a byte of {object} was changed, and verify found {found}");
        outcome.figure("a changed byte in the bucket is found".to_owned());
    }
    Ok(())
}
