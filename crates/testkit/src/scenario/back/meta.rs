//! The records are replaced by a copy that is some minutes old: of their file, then of their backup.
//!
//! Between the copy and the loss, volumes are created, and a volume that the copy knows grows by segments that it does
//! not know.

use super::{RATE, copy, judge, put_records_back, redb, start_meta, wait_standing, write_on, write_once};
use crate::cluster::{Cluster, POOL, READY_MAX, Shape};
use crate::report::Outcome;
use crate::scenario::Settings;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Number of volumes that are created after the copy, and again after the recovery.
const VOLUMES: u64 = 3;
/// Number of writes to a volume before it is left alone.
const WRITES: u64 = 400;

#[derive(Clone, Copy, PartialEq)]
enum How {
    Copy,
    Backup,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    outcome.figure("before ADR 0011: 882 blocks lost, 1 721 wrong of 32 768, silently");
    let mut cluster = Cluster::up(&settings.base, "meta-back", Shape::default())?;
    let mut load = StampedLoad::new(&cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    for how in [How::Copy, How::Backup] {
        if let Err(error) = went_back(&mut cluster, &mut load, how, settings, outcome) {
            outcome.faults.push(format!("{error:#}"));
        }
    }
    load.kill()?;
    judge(&mut load, "the volume that was open all the time", outcome);
    outcome.figure(load.summary());
    super::super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn went_back(
    cluster: &mut Cluster,
    load: &mut StampedLoad,
    how: How,
    settings: &Settings,
    outcome: &mut Outcome,
) -> Result<()> {
    let name = if how == How::Copy { "copy" } else { "backup" };
    write_on(load, 1000)?;
    let mut grown = StampedLoad::new(cluster, &format!("grown-{name}"), settings.seed + 1)?;
    let records = take_copy(cluster, how)?;
    write_once(&mut grown, WRITES).context("a volume that grows")?;
    let lost = make_volumes(cluster, &format!("lost-{name}"), settings.seed + 2)?;
    write_on(load, 500)?;

    put_back(cluster, how, &records)?;
    let behind = wait_standing(cluster, "behind", 3)?;
    for change in [&["volume", "create", "main/refused", "1GiB"][..], &["volume", "rm", "main/v"]] {
        let said = cluster.basalt.refusal(change)?;
        outcome.need(said.contains("BSLT-2030"), || format!("expected BSLT-2030, was told {said}"));
    }
    let opened =
        crate::session::Session::open(cluster.basalt.metas(), &format!("{POOL}/grown-{name}"), Default::default());
    let said = opened.err().map_or_else(String::new, |e| format!("{e:#}"));
    outcome.need(said.contains("BSLT-2030"), || format!("an open while the records are behind: {said:?}"));
    write_on(load, 200).context("the open volume goes on while the records are behind")?;
    outcome.figure(format!("{name}: meta refuses changes (BSLT-2030): {}", behind["reasons"][0]));
    listed(&behind, lost.len() as u64, how, outcome);

    load.kill()?;
    let moved = cluster.basalt.json(&["meta", "recover"])?;
    outcome.need(moved["moved"] == true, || format!("a recovery that moved nothing: {moved}"));
    let healthy = cluster.basalt.wait_healthy(READY_MAX)?;
    // The recovery has ended the hold: the loader opens the volume again, and checks all that was acknowledged before.
    load.start()?;
    write_on(load, 200).context("the volume that was open goes on after the recovery")?;
    let mut read = judge(&mut grown, "the volume that had grown", outcome);
    // The new volumes have the names of the lost ones: ids that were given out twice would show.
    let mut again = make_volumes(cluster, &format!("lost-{name}"), settings.seed + 20)?;
    for load in &mut again {
        read += judge(load, "a volume made after the recovery", outcome);
    }
    outcome.figure(format!(
        "{name}: healthy {} ms after the recovery; {} acknowledged blocks of {} volumes read back",
        healthy.as_millis(),
        read,
        again.len() + 1
    ));
    Ok(())
}

/// Checks that the report names everything that the copy lacks.
fn listed(behind: &serde_json::Value, volumes: u64, how: How, outcome: &mut Outcome) {
    let next = |of: &str| behind[of]["next_volume"].as_u64().unwrap_or(0);
    let missing = next("highest").saturating_sub(next("records"));
    outcome.need(missing == volumes, || format!("{missing} volumes are said to be missing, {volumes} are: {behind}"));
    let unknown = behind["volumes"].as_array().map_or(0, Vec::len) as u64;
    // The records that the first recovery did not bring back are still missing.
    let (name, all) = if how == How::Copy { ("copy", volumes) } else { ("backup", 2 * volumes) };
    outcome.need(unknown == all, || format!("the contents of {unknown} unknown volumes are listed: {behind}"));
    let segments = behind["segments"].as_array().map_or(0, Vec::len);
    outcome.need(segments as u64 == crate::stamped::AREAS, || format!("{segments} unknown segments listed: {behind}"));
    outcome.figure(format!("{name}: listed as missing: {unknown} volumes, {segments} segments of known volumes"));
}

fn take_copy(cluster: &mut Cluster, how: How) -> Result<PathBuf> {
    match how {
        How::Copy => {
            let to = cluster.dir.join("copy.redb");
            cluster.metas[0].kill();
            copy(&redb(cluster), &to)?;
            start_meta(cluster)?;
            wait_standing(cluster, "sound", 2)?;
            Ok(to)
        }
        How::Backup => {
            let to = cluster.dir.join("backup.jsonl");
            cluster.basalt.run(&["meta", "backup", &to.display().to_string()])?;
            Ok(to)
        }
    }
}

fn put_back(cluster: &mut Cluster, how: How, records: &Path) -> Result<()> {
    if how == How::Copy {
        return put_records_back(cluster, records);
    }
    cluster.metas[0].kill();
    let (records, dir) = (records.display().to_string(), cluster.dir.join("meta.0").display().to_string());
    cluster.basalt.run(&["meta", "restore", &records, "--dir", &dir, "--force"])?;
    start_meta(cluster)
}

/// Creates volumes and writes to each.
fn make_volumes(cluster: &Cluster, name: &str, seed: u64) -> Result<Vec<StampedLoad>> {
    let make = |n: u64| {
        let mut load = StampedLoad::with_areas(cluster, &format!("{name}-{n}"), seed + n, 2)?;
        write_once(&mut load, WRITES / 4)?;
        Ok(load)
    };
    (0..VOLUMES).map(make).collect()
}
