//! A step between storms: blocks of one device rot, stopped and in use. Users must never see it.
//!
//! One device of three is within the budget for lying disks: a minority of every PG's replicas. The step does not check
//! whether the damaged replica is repaired, or has failed and is replaced. It checks that no read returns rotten bytes.

use super::report::Summary;
use super::{HEAL_MAX, Storm};
use crate::cluster::POOL;
use crate::scenario::difference::{CHUNKS, piece, written};
use crate::session::Session;
use crate::surgeon::{Device, Harm};
use anyhow::{Context, Result, bail};
use device::{Answer, Request};
use types::units::CHUNK;
use types::{ChunkKey, GenerationId, VolumeId};

/// Number of blocks in each chunk that rot while the OSD is down, and that rot while it runs.
const BLOCKS: usize = 2;

pub(super) fn run(storm: &mut Storm, summary: &mut Summary) -> Result<()> {
    let volume_name = format!("rot{}", summary.rounds);
    let name = format!("{POOL}/{volume_name}");
    let (mut session, volume) = written(&storm.cluster, &volume_name)?;
    let osd = storm.data_osd()?;
    storm.cluster.osd(osd).kill();
    summary.stopped_flips += flip(storm, osd, volume)?;
    storm.start_osd(osd)?;
    read(&mut session, "with blocks that rotted while the OSD was down")?;
    summary.live_flips += flip(storm, osd, volume)?;
    read(&mut session, "with blocks that rotted while the OSD ran")?;
    session.close()?;
    let out = storm.cluster.basalt.output(&["pg", "verify", "--deep"])?;
    let text = String::from_utf8_lossy(&out.stdout);
    let last = text.lines().last().unwrap_or("").to_owned();
    let rounds = summary.rounds;
    summary.notes.push(format!("bit rot after round {rounds} on osd.{osd}: every read was right; pg verify: {last}"));
    if last.contains("differ in") {
        bail!("rot made replicas differ: {text}");
    }
    // The rotten blocks are deleted with their volume: the storm goes on with whole replicas.
    storm.cluster.basalt.run(&["volume", "rm", &name, "--now"])?;
    storm.cluster.basalt.wait_healthy(HEAL_MAX).context("without the volume that rotted")?;
    Ok(())
}

/// Flips a bit in some blocks of each chunk. Returns their number.
fn flip(storm: &mut Storm, osd: u32, volume: VolumeId) -> Result<u64> {
    let mut flips = 0;
    let device = Device::open(&storm.cluster.device(osd))?;
    for index in 0..CHUNKS as u32 {
        let place =
            device.find(ChunkKey { generation: GenerationId::first_of(volume), index }).context("it was destaged")?;
        for _ in 0..BLOCKS {
            device.harm(&place, storm.rng.below(256) as usize, Harm::Rotten)?;
            flips += 1;
        }
    }
    Ok(flips)
}

fn read(session: &mut Session, when: &str) -> Result<()> {
    for chunk in 0..CHUNKS {
        let len = piece(chunk).len() as u64;
        let answer = session.call(Request::Read { offset: chunk * CHUNK, len })?;
        let Ok(Answer::Data(pieces)) = answer else { bail!("chunk {chunk} {when}: {answer:?}") };
        let bytes: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
        if bytes != piece(chunk)[..] {
            bail!("chunk {chunk} {when} reads other bytes than were written");
        }
    }
    Ok(())
}
