//! `basalt pg verify` must find every difference. One device is altered so that its checksums approve, one forgets a
//! block, one rots. Each extent is named, with the odd replica, and the exit code is 1.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape};
use crate::report::Outcome;
use crate::session::{Open, Session};
use crate::surgeon::{Device, Harm};
use anyhow::{Context, Result, bail};
use bench::load::stamp;
use device::{Answer, Request};
use serde_json::Value;
use std::time::Duration;
use types::units::CHUNK;
use types::{ChunkKey, GenerationId, IoBufMut, VolumeId};

const VOLUME: u64 = 64 << 20;
/// Number of its chunks that are written.
pub(crate) const CHUNKS: u64 = 3;
/// Number of bytes written of each chunk: less than one CRC page covers.
const PIECE: u64 = 1 << 20;
const BLOCKS: u32 = (PIECE / types::BLOCK) as u32;
/// Number of bytes that `pg verify` compares at once, and names.
const PART: u64 = types::limits::PART_MAX;
/// Longest time until a checkpoint names written data.
const HOME_MAX: Duration = Duration::from_secs(60);

/// The damage, its chunk, the block in the chunk, and the OSD.
const HARMS: [(Harm, u32, usize, u32); 3] =
    [(Harm::Altered, 0, 7, 2), (Harm::Forgotten, 1, 130, 3), (Harm::Rotten, 2, 11, 1)];

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "verify-difference", Shape { pgs: 1, ..Shape::default() })?;
    if let Err(error) = all(&mut cluster, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    outcome.faults.extend(cluster.panics());
    cluster.keep = settings.keep && !outcome.passed();
    Ok(())
}

fn all(cluster: &mut Cluster, outcome: &mut Outcome) -> Result<()> {
    let name = format!("{POOL}/v");
    let (session, volume) = written(cluster, "v")?;
    session.close()?;
    cluster.basalt.verify_deep().context("before anything was planted")?;

    cluster.osds.values_mut().for_each(|osd| osd.kill());
    for (harm, index, block, osd) in HARMS {
        let device = Device::open(&cluster.device(osd))?;
        let place = device
            .find(ChunkKey { generation: GenerationId::first_of(volume), index })
            .with_context(|| format!("osd.{osd} lost chunk {index}"))?;
        device.harm(&place, block, harm).with_context(|| format!("{harm:?} on osd.{osd}"))?;
    }
    for osd in cluster.osds.values_mut() {
        osd.start()?;
    }
    wait_asked(cluster)?;
    tables(cluster, outcome).context("--tables")?;
    deep(cluster, outcome).context("--deep")?;
    users(cluster, &name, outcome)
}

/// Creates a volume with a piece in each of its chunks, and waits until each device has them at home. Returns a session with it.
pub(crate) fn written(cluster: &Cluster, name: &str) -> Result<(Session, VolumeId)> {
    let name = cluster.volume(name, VOLUME)?;
    let info = cluster.basalt.json(&["volume", "info", &name])?;
    let volume = VolumeId(info["volume"].as_u64().context("the volume's id")?);
    let metas = cluster.basalt.metas().to_vec();
    let mut session = Session::open(&metas, &name, Open::default())?;
    for chunk in 0..CHUNKS {
        let request = Request::Write { offset: chunk * CHUNK, buf: piece(chunk).freeze(), fua: true };
        session.call(request)?.map_err(|e| anyhow::anyhow!("writing chunk {chunk}: {e}"))?;
    }
    wait_home(cluster, volume)?;
    Ok((session, volume))
}

/// Returns the first bytes of a chunk.
pub(crate) fn piece(chunk: u64) -> IoBufMut {
    let mut buf = IoBufMut::new(PIECE as usize);
    stamp::fill(&mut buf, 1, 1, chunk * CHUNK, 1 + chunk);
    buf
}

/// Waits until the checkpoint of every device names every block.
fn wait_home(cluster: &Cluster, volume: VolumeId) -> Result<()> {
    for osd in cluster.basalt.data_osds()? {
        clock::wait_until(&format!("osd.{osd} to have destaged everything"), HOME_MAX, || {
            // A device in use may show a page that was just replaced.
            let Ok(device) = Device::open(&cluster.device(osd)) else { return Ok(false) };
            let whole = |index| {
                let place = device.find(ChunkKey { generation: GenerationId::first_of(volume), index });
                place.is_some_and(|place| device.blocks(&place).is_ok_and(|blocks| blocks == BLOCKS))
            };
            Ok((0..CHUNKS as u32).all(whole))
        })?;
    }
    Ok(())
}

/// Waits until every replica can be asked: meta's view may still be the earlier one.
fn wait_asked(cluster: &Cluster) -> Result<()> {
    clock::wait_until("all replicas to be asked", READY_MAX, || {
        let out = cluster.basalt.output(&["pg", "verify", "--tables", "--json"])?;
        let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        Ok(report["complete"] == true && report["chunks"] == 3)
    })?;
    cluster.basalt.wait_healthy(READY_MAX).map(|_| ())
}

/// Runs `pg verify`, which must end with 1. Returns its JSON.
fn verify(cluster: &Cluster, how: &str) -> Result<Value> {
    let out = cluster.basalt.output(&["pg", "verify", how, "--json"])?;
    let text = String::from_utf8_lossy(&out.stdout);
    if out.status.code() != Some(1) {
        let errors = String::from_utf8_lossy(&out.stderr);
        bail!("exit code {:?} instead of 1: {text}{errors}", out.status.code());
    }
    serde_json::from_str(&text).with_context(|| text.into_owned())
}

/// Returns (volume, chunk, offset, length, odd replicas) of every difference.
fn differences(report: &Value) -> Vec<(String, u64, u64, u64, Vec<u64>)> {
    let pgs = report["pgs"].as_array().map_or(&[][..], Vec::as_slice);
    let all = pgs.iter().flat_map(|pg| pg["differences"].as_array().into_iter().flatten());
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    all.map(|d| {
        let odd = d["odd"].as_array().into_iter().flatten().map(number).collect();
        let name = d["volume"].as_str().unwrap_or("").to_owned();
        (name, number(&d["chunk"]), number(&d["offset_bytes"]), number(&d["len_bytes"]), odd)
    })
    .collect()
}

fn expected(chunk: u64, block: u64, osd: u64) -> (String, u64, u64, u64, Vec<u64>) {
    let offset = (chunk * CHUNK + block * types::BLOCK) / PART * PART;
    ("main/v".to_owned(), chunk, offset, PART, vec![osd])
}

/// Checks that the tables show the forgotten block, and nothing else: no block is read.
fn tables(cluster: &Cluster, outcome: &mut Outcome) -> Result<()> {
    let report = verify(cluster, "--tables")?;
    let found = differences(&report);
    outcome.need(found == [expected(1, 130, 3)], || format!("--tables named {found:?}"));
    outcome.need(report["damaged"] == 0, || "--tables reads no block, but told of damage".into());
    outcome.figure(format!("--tables: exit code 1, names the forgotten block's extent and osd.3: {found:?}"));
    Ok(())
}

fn deep(cluster: &Cluster, outcome: &mut Outcome) -> Result<()> {
    let text = cluster.basalt.output(&["pg", "verify", "--deep", "--json"])?;
    let report: Value = serde_json::from_slice(&text.stdout)?;
    outcome.need(text.status.code() == Some(1), || format!("exit code {:?}", text.status.code()));
    let found = differences(&report);
    let wanted = [expected(0, 7, 2), expected(1, 130, 3)];
    outcome.need(found == wanted, || format!("--deep named {found:?} instead of {wanted:?}"));
    let damaged: Vec<&Value> = report["pgs"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|pg| pg["damaged"].as_array().into_iter().flatten())
        .collect();
    let rotten = damaged.len() == 1
        && damaged[0]["osd"] == 1
        && damaged[0]["chunk"] == 2
        && damaged[0]["offset_bytes"] == 2 * CHUNK
        && damaged[0]["len_bytes"] == PART;
    outcome.need(rotten, || format!("--deep named as damaged: {damaged:?}"));
    outcome.figure(format!("--deep: exit code 1, names {found:?}, and as damaged {damaged:?}"));
    // The text for people names the same.
    let said = cluster.basalt.refusal(&["pg", "verify", "--deep"])?;
    let named = ["BSLT-3012", "main/v differs at offset 0 (512 KiB, chunk 0)", "osd.2", "osd.1 "];
    for part in named {
        outcome.need(said.contains(part), || format!("no `{part}` in {said}"));
    }
    said.lines().for_each(|line| outcome.figure(format!("  {line}")));
    Ok(())
}

/// Checks that rot costs the user nothing: a read of the chunk returns what was written, whichever OSD led the PG.
fn users(cluster: &Cluster, name: &str, outcome: &mut Outcome) -> Result<()> {
    let how = Open { timeout: Some(Duration::from_secs(20)), ..Open::default() };
    let mut session = Session::open(cluster.basalt.metas(), name, how)?;
    let answer = session.call(Request::Read { offset: 2 * CHUNK, len: PIECE })?;
    let Ok(Answer::Data(pieces)) = answer else { bail!("a read over the rotten block: {answer:?}") };
    let bytes: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
    outcome.need(bytes == piece(2)[..], || "a read over the rotten block gave other bytes".into());
    session.close()
}
