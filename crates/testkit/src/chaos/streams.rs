//! A step between storms: an OSD is away while more is written than the others' logs keep. Then it receives streams,
//! and dies at the moments of a stream and its installation, one after another. In the end it must have what was
//! written.
//!
//! The step needs the build with failpoints. Without it nothing is done, and the table says so.

use super::points::Who;
use super::report::Summary;
use super::{HEAL_MAX, Storm};
use crate::clock;
use crate::session::{Open, Session};
use anyhow::{Context, Result, anyhow, bail};
use bench::load::stamp;
use device::{Answer, Request};
use std::time::Duration;
use types::failpoint::Point;
use types::{IoBufMut, limits::PART_MAX};

/// Longest wait for each point: the stream has to begin again for it.
const DIE_MAX: Duration = Duration::from_secs(60);
/// Bytes that are written meanwhile, in lengths of the log.
const LOGS: u64 = 2;
/// Limit of the written bytes, so that a large log does not take minutes.
const WRITTEN_MAX: u64 = 400 << 20;

pub(super) fn run(storm: &mut Storm, summary: &mut Summary) -> Result<()> {
    if !storm.cluster.shape.failpoints {
        return Ok(());
    }
    let written = (storm.cluster.shape.log_bytes * LOGS).min(WRITTEN_MAX) / PART_MAX * PART_MAX;
    let name = storm.cluster.volume(&format!("streams{}", summary.rounds), written)?;
    let mut session = Session::open(storm.cluster.basalt.metas(), &name, Open::default())?;
    // A part is written before: its old bytes could be mistaken for new ones.
    write(&mut session, written / 4, 1)?;
    let osd = storm.data_osd()?;
    storm.cluster.osd(osd).kill();
    write(&mut session, written, 2)?;
    let back = clock::now();
    let mut died = Vec::new();
    for point in order(storm) {
        storm.start(Who::Osd(osd), Some((point, 1)))?;
        let what = format!("osd.{osd} to be streamed to and to die at {}", point.row().name);
        clock::wait_until(&what, DIE_MAX, || storm.has_died(Who::Osd(osd)))?;
        died.push(point.row().name);
    }
    storm.start_osd(osd)?;
    storm.cluster.basalt.wait_healthy(HEAL_MAX)?;
    let whole = back.elapsed();
    // The read covers its replica, too, wherever it leads.
    read(&mut session, written)?;
    session.close()?;
    storm.cluster.must_live()?;
    let equal = storm.cluster.basalt.verify_deep()?;
    let mib = written >> 20;
    summary.notes.push(format!(
        "streams after round {}: osd.{osd} missed {mib} MiB, died at {}, was whole {} ms after its return; {equal}",
        summary.rounds,
        died.join(", "),
        whole.as_millis()
    ));
    storm.cluster.basalt.run(&["volume", "rm", &name, "--now"]).map(drop)
}

/// Returns the points in drawn order; the last one leaves nothing to be streamed.
fn order(storm: &mut Storm) -> Vec<Point> {
    let mut first = vec![Point::PieceStaged, Point::InstallBegun, Point::InstallFlushed];
    for n in (1..first.len()).rev() {
        first.swap(n, storm.rng.below(n as u64 + 1) as usize);
    }
    first.push(Point::InstallDurable);
    first
}

fn piece(offset: u64, version: u64) -> IoBufMut {
    let mut buf = IoBufMut::new(PART_MAX as usize);
    stamp::fill(&mut buf, 1, 1, offset, version + offset);
    buf
}

fn write(session: &mut Session, len: u64, version: u64) -> Result<()> {
    for offset in (0..len).step_by(PART_MAX as usize) {
        let request = Request::Write { offset, buf: piece(offset, version).freeze(), fua: false };
        session.call(request)?.map_err(|e| anyhow!("writing at {offset}: {e}"))?;
    }
    Ok(())
}

fn read(session: &mut Session, len: u64) -> Result<()> {
    for offset in (0..len).step_by(PART_MAX as usize) {
        let answer = session.call(Request::Read { offset, len: PART_MAX }).context("a read")?;
        let Ok(Answer::Data(pieces)) = answer else { bail!("the read at {offset}: {answer:?}") };
        let bytes: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
        if bytes != piece(offset, 2)[..] {
            bail!("a lost write: {PART_MAX} bytes at {offset} are not those that were written");
        }
    }
    Ok(())
}
