//! Snapshots under a verified load: each has every write that was acknowledged before its command, and none that began after its end.
//!
//! All OSDs are killed after the last one, so each snapshot is read from the devices. Then some are deleted, and the rest is read again. Clones
//! have the contents of their snapshots, also when these are deleted and all OSDs are killed; so has the volume after a rollback. Clones are
//! flattened while OSDs are killed. A clone of 1 TiB is ready within a second.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape};
use crate::flushes::Flushes;
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use crate::witness::{Moment, Witness};
use anyhow::{Context, Result, bail, ensure};
use std::time::{Duration, Instant};

/// Requests per second of each area of the load.
const RATE: u64 = 250;
const BETWEEN: Duration = Duration::from_millis(150);
/// Time until the witness has read the lines of all writes that were begun before.
const HEARD: Duration = Duration::from_millis(100);
/// Longest time of a command, with the start of its process, and longest request of the load meanwhile.
const CREATED_MAX: Duration = Duration::from_millis(100);
const WAITED_MAX: Duration = Duration::from_millis(50);
/// Longest time of a clone of 1 TiB, with the start of the process.
const CLONED_MAX: Duration = Duration::from_secs(1);
/// Most snapshots that are cloned.
const CLONES: usize = 4;
/// One of so many snapshots stays when the others are deleted.
const KEPT: usize = 10;

pub(super) struct Taken {
    pub name: String,
    pub asked: Moment,
    pub ended: Moment,
    from: Instant,
    took: Duration,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape { device_bytes: 4 << 30, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "snapshots", shape)?;
    if let Err(error) = under_load(&mut cluster, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn under_load(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut load = StampedLoad::new(cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    let known = load.witness.clone();
    clock::wait_until("writes", READY_MAX, || Ok(known.known().acked > 500))?;
    let flushes = Flushes::start(&cluster.dir)?;
    let mut taken = Vec::new();
    for n in 0..settings.rounds(100, 12) {
        clock::pause(BETWEEN);
        load.must_be_clean()?;
        taken.push(take(cluster, &load.witness, &format!("{POOL}/v@s{n}"))?);
    }
    clock::pause(BETWEEN);
    load.kill()?;
    tell_times(&taken, &load.witness, outcome);
    outcome.figure(flushes.end()?);

    start_again(cluster)?;
    let blocks = check_all(&load, &taken)?;
    load.check()?;
    outcome.figure(format!("{}; {blocks} blocks of {} snapshots checked", load.summary(), taken.len()));

    let (kept, deleted): (Vec<_>, Vec<_>) = taken.into_iter().enumerate().partition(|(n, _)| n % KEPT == 0);
    for (_, taken) in &deleted {
        cluster.basalt.run(&["snapshot", "rm", &taken.name])?;
    }
    let kept: Vec<Taken> = kept.into_iter().map(|(_, taken)| taken).collect();
    let blocks = check_all(&load, &kept)?;
    load.check()?;
    outcome.figure(format!("{} deleted; {blocks} blocks of the other {} checked again", deleted.len(), kept.len()));
    cluster.basalt.verify_deep()?;
    let listed = cluster.basalt.json(&["snapshot", "ls", &format!("{POOL}/v")])?;
    let listed = listed["snapshots"].as_array().context("a list")?.len();
    ensure!(listed == kept.len(), "{listed} snapshots are left of {}", kept.len());
    clones(cluster, &load, &kept, outcome)?;
    clone_of_a_tebibyte(cluster, outcome)
}

/// Kills all OSDs: each process starts from its device.
fn start_again(cluster: &mut Cluster) -> Result<()> {
    cluster.osds.values_mut().for_each(|osd| osd.kill());
    for osd in cluster.ids() {
        cluster.osd(osd).start()?;
    }
    cluster.basalt.wait_healthy(READY_MAX).map(drop)
}

/// Clones some of the snapshots, deletes these, and turns the volume back to another one.
fn clones(cluster: &mut Cluster, load: &StampedLoad, kept: &[Taken], outcome: &mut Outcome) -> Result<()> {
    let (last, parents) = kept.split_last().context("a snapshot")?;
    let check = |name: &str, of: &Taken| {
        let witness = load.witness.of_snapshot(&of.asked, &of.ended);
        load.check_snapshot(name, witness).with_context(|| format!("{name}, which is to be {}", of.name))
    };
    let name = |n: usize| format!("{POOL}/clone{n}");
    let parents: Vec<(String, &Taken)> = parents.iter().take(CLONES).enumerate().map(|(n, t)| (name(n), t)).collect();
    for (clone, parent) in &parents {
        cluster.basalt.run(&["volume", "clone", &parent.name, clone])?;
    }
    let mut blocks: u64 = parents.iter().map(|(clone, parent)| check(clone, parent)).sum::<Result<u64>>()?;
    for (_, parent) in &parents {
        let refusal = cluster.basalt.refusal(&["snapshot", "rm", &parent.name])?;
        ensure!(refusal.contains("BSLT-2057"), "{refusal}");
        cluster.basalt.run(&["snapshot", "rm", &parent.name, "--detach"])?;
    }
    cluster.basalt.run(&["snapshot", "rollback", &last.name])?;
    blocks += check(&format!("{POOL}/v"), last)?;
    start_again(cluster)?;
    blocks += parents.iter().map(|(clone, parent)| check(clone, parent)).sum::<Result<u64>>()?;
    blocks += check(&format!("{POOL}/v"), last)?;
    cluster.basalt.verify_deep()?;
    cluster.basalt.run(&["volume", "rm", &format!("{POOL}/v"), "--now", "--snapshots"])?;
    blocks += parents.iter().map(|(clone, parent)| check(clone, parent)).sum::<Result<u64>>()?;
    let names: Vec<&str> = parents.iter().map(|(clone, _)| clone.as_str()).collect();
    flatten(cluster, &names)?;
    blocks += parents.iter().map(|(clone, parent)| check(clone, parent)).sum::<Result<u64>>()?;
    outcome.figure(format!("{} clones and a rollback: {blocks} blocks checked", parents.len()));
    Ok(())
}

/// Flattens clones, while each OSD is killed once. Then they share nothing.
fn flatten(cluster: &mut Cluster, clones: &[&str]) -> Result<()> {
    for clone in clones {
        cluster.basalt.run(&["volume", "flatten", clone, "--no-wait"])?;
    }
    for osd in cluster.ids() {
        clock::pause(BETWEEN);
        cluster.osd(osd).kill();
        cluster.osd(osd).start()?;
        cluster.basalt.wait_healthy(READY_MAX)?;
    }
    for clone in clones {
        let parent = &cluster.basalt.json(&["volume", "info", clone])?["parent"];
        if !parent.is_null() {
            cluster.basalt.run(&["volume", "flatten", clone])?;
        }
        let usage = cluster.basalt.json(&["volume", "du", clone])?;
        ensure!(usage["exclusive_bytes"] == usage["allocated_bytes"], "{clone} shares space: {usage}");
    }
    cluster.basalt.verify_deep().map(drop)
}

/// Clones a volume of 1 TiB that was written in all its segments.
fn clone_of_a_tebibyte(cluster: &Cluster, outcome: &mut Outcome) -> Result<()> {
    let volume = cluster.volume("tebibyte", 1 << 40)?;
    // A few blocks at the begin of each segment: more would take more space than the devices have.
    let begins: Vec<String> = (0..1024).map(|gib| format!("{gib}GiB")).collect();
    let begins = begins.join(",");
    let write = ["bench", &volume, "--op", "randwrite", "--block", "4KiB", "--depth", "32", "--seconds", "8"];
    let write = [&write[..], &["--span", "16MiB", "--pieces", &begins]].concat();
    cluster.basalt.run(&write)?;
    let allocated = cluster.basalt.json(&["volume", "info", &volume])?["allocated_bytes"].as_u64();
    ensure!(allocated >= Some(1000 << 30), "{allocated:?} bytes of segments were written to");
    cluster.basalt.run(&["snapshot", "create", &format!("{volume}@s")])?;
    let from = clock::now();
    cluster.basalt.run(&["volume", "clone", &format!("{volume}@s"), &format!("{POOL}/copy")])?;
    let took = from.elapsed();
    outcome.figure(format!("a clone of 1 TiB in {} ms", took.as_millis()));
    outcome.aim(took <= CLONED_MAX, || format!("the clone took {} ms", took.as_millis()));
    // The comparison of replicas at the end would look at each of their chunks.
    cluster.basalt.run(&["volume", "rm", &format!("{POOL}/copy"), "--now"])?;
    cluster.basalt.run(&["volume", "rm", &volume, "--now", "--snapshots"]).map(drop)
}

/// Makes a snapshot, with the moments of the command.
pub(super) fn take(cluster: &Cluster, witness: &Witness, name: &str) -> Result<Taken> {
    let (asked, from) = (witness.moment(), clock::now());
    let made = cluster.basalt.json(&["snapshot", "create", name])?;
    let took = from.elapsed();
    if made["snapshots"][0]["state"] != "ready" {
        bail!("{name} is not ready: {made}");
    }
    clock::pause(HEARD);
    Ok(Taken { name: name.to_owned(), asked, ended: witness.moment(), from, took })
}

fn check_all(load: &StampedLoad, taken: &[Taken]) -> Result<u64> {
    let check = |taken: &Taken| {
        let witness = load.witness.of_snapshot(&taken.asked, &taken.ended);
        load.check_snapshot(&taken.name, witness).with_context(|| taken.name.clone())
    };
    taken.iter().map(check).sum()
}

/// Shows how long the commands took, and the longest request of the load that overlaps one, beside that of as long a time before it.
fn tell_times(taken: &[Taken], witness: &Witness, outcome: &mut Outcome) {
    let mut took: Vec<Duration> = taken.iter().map(|taken| taken.took).collect();
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    let p99 = |begin: &dyn Fn(&Taken) -> Instant| {
        let waited = |taken: &Taken| witness.longest_request(begin(taken), begin(taken) + taken.took).0;
        let mut waits: Vec<Duration> = taken.iter().map(waited).collect();
        waits.sort_unstable();
        waits[(waits.len() - 1) * 99 / 100]
    };
    let (longest, before) = (p99(&|taken| taken.from), p99(&|taken| taken.from - taken.took));
    outcome.figure(format!(
        "{} snapshots, each in {} ms (median), {} ms (p99), {} ms at most; longest request meanwhile: {} ms (p99), and {} ms in as long a time before",
        took.len(),
        at(50).as_millis(),
        at(99).as_millis(),
        at(100).as_millis(),
        longest.as_millis(),
        before.as_millis(),
    ));
    outcome.aim(at(99) <= CREATED_MAX, || format!("p99 of the commands is {} ms", at(99).as_millis()));
    outcome.aim(longest <= WAITED_MAX, || {
        format!("p99 of the longest requests is {} ms, and {} ms before", longest.as_millis(), before.as_millis())
    });
}
