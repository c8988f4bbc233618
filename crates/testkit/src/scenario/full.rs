//! Small devices are written until they are full. Writes are refused, everything else works, and freed space can be
//! written again.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::report::Outcome;
use crate::session::{Open, Session};
use anyhow::{Context, Result, bail};
use bench::load::stamp;
use device::{Answer, Request};
use std::process::Command;
use std::time::Duration;
use types::{Errno, IoBufMut};

const DEVICE: u64 = 640 << 20;
const LOG: u64 = 256 << 20;
const VOLUME: u64 = 2 << 30;
const PIECE: u64 = 1 << 20;
/// Bytes in the first volume, which is deleted as a whole.
const FIRST: u64 = 64 << 20;
/// Longest time until freed space is available again.
const FREED_MAX: Duration = Duration::from_secs(30);
/// Longest time until meta hears that a device is full.
const TOLD_MAX: Duration = Duration::from_secs(10);

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let shape = Shape { device_bytes: DEVICE, log_bytes: LOG, ..Shape::default() };
    let mut cluster = Cluster::up(&settings.base, "full-device", shape)?;
    if let Err(error) = fill(&mut cluster, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// Returns the bytes that pass `pass` writes at `offset` of volume `volume`.
fn piece(volume: u64, pass: u64, offset: u64) -> IoBufMut {
    let mut buf = IoBufMut::new(PIECE as usize);
    stamp::fill(&mut buf, volume, pass, offset, 1);
    buf
}

fn write(session: &mut Session, volume: u64, pass: u64, offset: u64) -> Result<Result<Answer, Errno>> {
    session.call(Request::Write { offset, buf: piece(volume, pass, offset).freeze(), fua: false })
}

/// Writes pieces from `from` on until `to` or until there is no space. Returns where it stopped.
fn write_on(session: &mut Session, volume: u64, pass: u64, from: u64, to: u64) -> Result<u64> {
    let mut offset = from;
    while offset < to {
        match write(session, volume, pass, offset)? {
            Ok(_) => offset += PIECE,
            Err(Errno::NoSpace) => break,
            Err(other) => bail!("write at {offset}: {other}"),
        }
    }
    Ok(offset)
}

/// Checks that every piece of `from..to` is there.
fn check(session: &mut Session, volume: u64, pass: u64, from: u64, to: u64) -> Result<()> {
    for offset in (from..to).step_by(PIECE as usize) {
        let answer = session.call(Request::Read { offset, len: PIECE })?;
        let Ok(Answer::Data(pieces)) = answer else { bail!("read at {offset}: {answer:?}") };
        let bytes: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
        if bytes != piece(volume, pass, offset)[..] {
            bail!("the piece at {offset} of volume {volume} is not what was acknowledged");
        }
    }
    Ok(())
}

fn fill(cluster: &mut Cluster, outcome: &mut Outcome) -> Result<()> {
    let (first, second) = (cluster.volume("first", VOLUME)?, cluster.volume("second", VOLUME)?);
    let metas = cluster.basalt.metas().to_vec();
    let mut session = Session::open(&metas, &first, Open::default())?;
    let end = write_on(&mut session, 1, 1, 0, FIRST)?;
    outcome.need(end == FIRST, || format!("the first volume was full at {end} already"));
    session.close()?;

    let mut session = Session::open(&metas, &second, Open::default())?;
    let end = write_on(&mut session, 2, 1, 0, VOLUME)?;
    outcome.need(end < VOLUME, || "the device never got full".into());
    outcome.figure(format!(
        "ENOSPC after {} MiB on devices with {} MiB beside the log",
        (end + FIRST) >> 20,
        (DEVICE - LOG) >> 20
    ));
    let end = told_full(cluster, &mut session, end)?;
    outcome.figure(format!("full for good after {} MiB; `osd ls` says so", (end + FIRST) >> 20));
    check(&mut session, 2, 1, 0, end).context("reads of a full device")?;
    session.close()?;
    through_nbd(cluster, &second, end)?;
    outcome.figure("NBD clients are told ENOSPC, and read on".to_owned());

    // A trim frees space.
    let mut session = Session::open(&metas, &second, Open::default())?;
    let half = end / 2 / PIECE * PIECE;
    let trimmed = session.call(Request::Trim { offset: 0, len: half })?;
    outcome.need(trimmed == Ok(Answer::Done), || format!("a trim on a full device: {trimmed:?}"));
    let again = wait_space(&mut session, 2, 2, 0)?;
    outcome.figure(format!("trimmed {} MiB: writes work again after {} ms", half >> 20, again.as_millis()));
    check(&mut session, 2, 1, half, end).context("what was not trimmed")?;
    // Grants to idle leaders and moved pages may take the rest.
    let refilled = half - half / 8 / PIECE * PIECE;
    let (took, refused) = refill(&mut session, 2, 2, PIECE, refilled).context("after a trim")?;
    outcome.figure(format!("wrote {} MiB of it again in {} ms", refilled >> 20, took.as_millis()));
    outcome
        .aim(refused == 0, || format!("{refused} writes were refused while trimmed space was still on its way back"));
    let full = write_on(&mut session, 2, 1, end, VOLUME)?;

    // A deleted volume frees space, too.
    cluster.basalt.run(&["volume", "rm", &first, "--now"])?;
    let end = full + FIRST / 2;
    let (took, _) = refill(&mut session, 2, 1, full, end).context("after a volume was deleted")?;
    outcome.figure(format!(
        "deleted a volume of {} MiB: half of it written again after {} ms",
        FIRST >> 20,
        took.as_millis()
    ));
    check(&mut session, 2, 2, 0, refilled).context("what was written again")?;
    check(&mut session, 2, 1, half, end).context("what was there all the time")?;
    session.close()
}

/// Waits until the piece at `offset` can be written.
fn wait_space(session: &mut Session, volume: u64, pass: u64, offset: u64) -> Result<Duration> {
    clock::wait_until("a write to find space", FREED_MAX, || match write(session, volume, pass, offset)? {
        Ok(_) => Ok(true),
        Err(Errno::NoSpace) => {
            clock::pause(Duration::from_millis(20));
            Ok(false)
        }
        Err(other) => bail!("write at {offset}: {other}"),
    })
}

/// Writes `from..to`, and tries writes again that find no space. Returns the duration and the number of refused writes.
fn refill(session: &mut Session, volume: u64, pass: u64, from: u64, to: u64) -> Result<(Duration, u32)> {
    let (start, mut at, mut refused) = (clock::now(), from, 0);
    while at < to {
        at = write_on(session, volume, pass, at, to)?;
        if at < to {
            refused += 1;
            wait_space(session, volume, pass, at).with_context(|| format!("{} MiB on", (at - from) >> 20))?;
            at += PIECE;
        }
    }
    Ok((start.elapsed(), refused))
}

/// Goes on writing until `osd ls` reports a full device, because grants to idle leaders come back. Returns where the
/// writes stopped.
fn told_full(cluster: &Cluster, session: &mut Session, from: u64) -> Result<u64> {
    let mut end = from;
    clock::wait_until("`basalt osd ls` to say that devices are full", TOLD_MAX, || {
        end = write_on(session, 2, 1, end, VOLUME)?;
        let list = cluster.basalt.json(&["osd", "ls"])?;
        let osds = list["osds"].as_array().context("osds")?;
        Ok(osds.iter().any(|osd| osd["full"] == true))
    })?;
    Ok(end)
}

/// Checks the full device as an NBD client sees it.
fn through_nbd(cluster: &mut Cluster, volume: &str, end: u64) -> Result<()> {
    let uri = cluster.export(volume)?;
    let io = |command: String| -> Result<(bool, String)> {
        let out = Command::new("timeout").args(["60", "qemu-io", "-f", "raw", "-c", &command, &uri]).output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        Ok((out.status.success(), text))
    };
    // The write is long, because the last grants may leave room for a few blocks.
    let (_, text) = io(format!("write -P 7 {end} 32M"))?;
    if !text.contains("No space left on device") {
        bail!("an NBD write on a full device: {text}");
    }
    let (ok, text) = io("read 0 1M".to_owned())?;
    if !ok || !text.contains("read 1048576/1048576") {
        bail!("an NBD read on a full device: {text}");
    }
    let mut export = cluster.exports.pop().context("it was exported")?;
    export.signal("TERM")?;
    export.finish(Duration::from_secs(10)).map(|_| ())
}
