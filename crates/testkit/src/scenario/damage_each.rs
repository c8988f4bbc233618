//! One replica is damaged in each way that a device fails, and heals with no operator: pages of the log, of home and of the
//! superblock, a whole device lost, a device restored from an older copy.
//!
//! The OSD is killed under load and stays down while its device is damaged. The load goes on. Each case shows that its damage
//! took effect: entries or blocks were repaired, replicas were replaced, or the page is whole again.

use super::Settings;
use super::back::{copy, stop_osd, write_on};
use super::difference::written;
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape, wait_listening};
use crate::http;
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use crate::surgeon::log::{self, LogHarm};
use crate::surgeon::{self, Device, Harm};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::time::Duration;
use types::{ChunkKey, GenerationId, VolumeId};

/// Requests per second of each area of the load.
const RATE: u64 = 150;
/// Number of writes before and after each damage.
const WRITES: u64 = 1000;
/// Longest time from the start of the OSD until all PGs are active and whole.
const HEAL_MAX: Duration = Duration::from_secs(60);
/// Longest time until a checkpoint names data at home.
const HOME_MAX: Duration = Duration::from_secs(60);

/// The block that rots, in a chunk whose first MiB is written.
const BLOCK_HARMED: usize = 13;

/// Line of an OSD that has read the records of a batch from a copy.
const COPIED: &str = "its records are those of the next one's copy";

/// A kind of damage.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Log(LogHarm),
    MapPage,
    Block,
    Superblock,
    DeviceLost,
    OlderCopy,
}

/// The effect by which a damage is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The records of a batch were read from the copy in the next one.
    Records,
    /// Log entries were fetched from peers.
    Entries,
    /// Blocks were fetched from peers.
    Blocks,
    /// Replicas of the OSD have failed and have new ids.
    Replicas,
    /// The page is written again.
    Page,
}

const ALL: [(&str, Damage, Effect); 8] = [
    ("a header page of the log", Damage::Log(LogHarm::Header), Effect::Records),
    ("two neighbouring header pages", Damage::Log(LogHarm::TwoHeaders), Effect::Replicas),
    ("a payload in the log", Damage::Log(LogHarm::Payload), Effect::Entries),
    ("a map page of home", Damage::MapPage, Effect::Replicas),
    ("a block at home", Damage::Block, Effect::Blocks),
    ("one of two superblocks", Damage::Superblock, Effect::Page),
    ("the whole device, osd replace", Damage::DeviceLost, Effect::Replicas),
    ("the device, restored from a copy", Damage::OlderCopy, Effect::Replicas),
];

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape { device_bytes: 2 << 30, log_bytes: 64 << 20, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "damage-each", shape)?;
    let mut load = StampedLoad::new(&cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    // The load overwrites its own blocks, and what it has overwritten is no damage any more.
    let (session, still) = written(&cluster, "still")?;
    session.close()?;
    for (n, (name, damage, effect)) in ALL.into_iter().enumerate() {
        let ids = cluster.ids();
        let osd = ids[n % ids.len()];
        match one(&mut cluster, &mut load, (osd, still), damage, effect) {
            Ok(told) => outcome.figure(format!("{name:<34} osd.{osd}: {told}")),
            Err(error) => {
                outcome.faults.push(format!("{name} on osd.{osd}: {error:#}"));
                // The next case needs a whole cluster.
                load.proc.kill();
                if cluster.must_live().and_then(|()| cluster.basalt.wait_healthy(HEAL_MAX)).is_err() {
                    break;
                }
                load.hear_out()?;
            }
        }
    }
    load.kill()?;
    outcome.figure(load.summary());
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// Damages one device under load and waits until all is whole again. Returns the line of the report.
fn one(
    cluster: &mut Cluster,
    load: &mut StampedLoad,
    (osd, still): (u32, VolumeId),
    damage: Damage,
    effect: Effect,
) -> Result<String> {
    load.start()?;
    write_on(load, WRITES)?;
    let replicas = replicas_of(cluster, osd)?;
    ensure!(!replicas.is_empty(), "it holds no replica");
    let (place, new) = strike(cluster, load, (osd, still), damage)?;
    write_on(load, WRITES / 2).context("with two OSDs")?;
    let since = clock::now();
    let addr = cluster.osd_addr(new);
    cluster.osd(new).start()?;
    wait_listening(cluster.osd(new), addr)?;
    if new != osd {
        wait_gone(cluster, osd)?;
    }
    cluster.basalt.wait_healthy(HEAL_MAX)?;
    let took = since.elapsed();
    write_on(load, WRITES / 2).context("when it was whole again")?;
    load.kill()?;
    let compared = match damage {
        // Nothing else reads it.
        Damage::Block => verify_until_equal(cluster)?,
        _ => cluster.basalt.verify_deep()?,
    };
    let before = load.witness.known().checked;
    load.check().context("a lost write")?;
    let checked = load.witness.known().checked - before;
    let seen = seen(cluster, new, effect, &replicas)?;
    Ok(format!("{place}; whole after {} ms; {seen}; {checked} blocks read, 0 lost; {compared}", took.as_millis()))
}

/// Kills an OSD and damages its device. `still`: a volume without load. Returns the place of the damage, and
/// the OSD that is to be started.
fn strike(
    cluster: &mut Cluster,
    load: &mut StampedLoad,
    (osd, still): (u32, VolumeId),
    damage: Damage,
) -> Result<(String, u32)> {
    let path = cluster.device(osd);
    if let Damage::OlderCopy = damage {
        let old = cluster.dir.join("old.device");
        stop_osd(cluster, osd)?;
        copy(&path, &old)?;
        cluster.osd(osd).start()?;
        cluster.basalt.wait_healthy(READY_MAX)?;
        write_on(load, WRITES)?;
        cluster.osd(osd).kill();
        copy(&old, &path)?;
        std::fs::remove_file(&old)?;
        return Ok((format!("{WRITES} writes older"), osd));
    }
    let chunk = ChunkKey { generation: GenerationId::first_of(still), index: 0 };
    let has_data = || {
        let Ok(device) = Device::open(&path) else { return Ok(false) };
        let place =
            if let Damage::Block = damage { device.find(chunk) } else { device.any().ok().map(|(place, _)| place) };
        Ok(place.is_some())
    };
    if let Damage::MapPage | Damage::Block = damage {
        clock::wait_until("data at home", HOME_MAX, has_data)?;
    }
    cluster.osd(osd).kill();
    let place = match damage {
        Damage::Log(harm) => log::harm(&path, harm)?,
        Damage::MapPage => {
            let device = Device::open(&path)?;
            let (place, _) = device.any()?;
            device.harm_map(&place)?;
            place.to_string()
        }
        Damage::Block => {
            let device = Device::open(&path)?;
            let place = device.find(chunk).context("it was at home")?;
            device.harm(&place, BLOCK_HARMED, Harm::Rotten)?;
            format!("block {BLOCK_HARMED} of {place}")
        }
        Damage::Superblock => {
            surgeon::harm_superblock(&path)?;
            ensure!(surgeon::bad_superblocks(&path)? == [0], "the first copy is not the only bad one");
            "the first copy".to_owned()
        }
        Damage::DeviceLost => {
            cluster.lose_osd(osd)?;
            let new = cluster.format_osd(&["replace", &osd.to_string()])?;
            let device = cluster.device(new).display().to_string();
            cluster.insert_osd(new, &device)?;
            return Ok((format!("osd.{new} takes over"), new));
        }
        Damage::OlderCopy => bail!("it is handled above"),
    };
    Ok((place, osd))
}

/// Returns the ids of the replicas of an OSD.
fn replicas_of(cluster: &Cluster, osd: u32) -> Result<BTreeSet<u64>> {
    let pgs = cluster.basalt.pgs()?;
    let members = pgs.iter().filter_map(|pg| pg["members"].as_array()).flatten();
    Ok(members.filter(|m| m["osd"] == osd).filter_map(|m| m["replica"].as_u64()).collect())
}

/// Checks that the damage took effect, and says how.
fn seen(cluster: &mut Cluster, osd: u32, effect: Effect, before: &BTreeSet<u64>) -> Result<String> {
    let http = cluster.osd_http(osd);
    let count = |name: &str| http::metric(http, name);
    let (count, what) = match effect {
        Effect::Records => {
            (cluster.osd(osd).log_tail(usize::MAX).matches(COPIED).count() as u64, "header read from its copy")
        }
        Effect::Entries => (count("basalt_osd_repaired_entries_total")?, "log entries fetched"),
        Effect::Blocks => (count("basalt_osd_blocks_mended_total")?, "blocks fetched"),
        Effect::Replicas => {
            let now = replicas_of(cluster, osd)?;
            (now.difference(before).count() as u64, "replicas replaced")
        }
        Effect::Page => (
            1u64.saturating_sub(surgeon::bad_superblocks(&cluster.device(osd))?.len() as u64),
            "superblock written again",
        ),
    };
    ensure!(count > 0, "the damage had no effect: 0 {what}");
    Ok(format!("{count} {what}"))
}

fn wait_gone(cluster: &Cluster, osd: u32) -> Result<()> {
    let waited = clock::wait_until(&format!("the record of osd.{osd} to be gone"), HEAL_MAX, || {
        let list = cluster.basalt.json(&["osd", "ls"])?;
        Ok(list["osds"].as_array().context("osds")?.iter().all(|of| of["osd"] != osd))
    });
    waited.map(drop)
}

/// Compares all replicas until no block is damaged: each comparison reads every block, so bad ones are repaired.
fn verify_until_equal(cluster: &Cluster) -> Result<String> {
    let (mut last, mut runs) = (Ok(String::new()), 0);
    let waited = clock::wait_until("equal replicas", HEAL_MAX, || {
        runs += 1;
        last = cluster.basalt.verify_deep();
        Ok(last.is_ok())
    });
    let text = last?;
    waited?;
    ensure!(runs > 1, "the first comparison did not name the block");
    Ok(format!("{text} (comparison {runs})"))
}
