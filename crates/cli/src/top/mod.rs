//! `basalt top`: the present I/O of each OSD and each volume, refreshed until `q` is pressed.
//!
//! Meta returns the OSDs with their HTTP addresses and the names of volumes; the OSDs' `/metrics` return counters.
//! Two samples make one screen. The figures of a volume are the sum over the OSDs that lead its PGs.

mod sample;

use crate::admin::Admin;
use crate::args::TopArgs;
use crate::output;
use crate::size::show;
use anyhow::Result;
use console::{Key, Term};
use control::admin::{OsdView, VolumeView};
use osdpages::http;
use sample::{Io, Page, Rate, VolumeId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use types::OsdId;

/// The counters of all OSDs and volumes at one moment.
struct Sample {
    at: Instant,
    osds: Vec<OsdView>,
    volumes: Vec<VolumeView>,
    pages: BTreeMap<OsdId, Page>,
}

/// Returns the HTTP addresses of the OSDs that are up.
pub fn http_addrs(osds: &[OsdView]) -> Vec<(OsdId, SocketAddr)> {
    osds.iter().filter(|osd| osd.live == "up").filter_map(|osd| Some((osd.osd, osd.http?))).collect()
}

#[allow(clippy::disallowed_methods, reason = "rates need the time between two samples")]
fn take(admin: &Admin) -> Result<Sample> {
    let (osds, volumes) = (admin.osds()?, admin.volumes(None)?);
    let at = Instant::now();
    // An OSD that does not answer has an empty row; its state shows the reason.
    let texts = http::ask_all(&http_addrs(&osds), |addr| http::text(addr, "/metrics").ok());
    let pages = texts.into_iter().map(|(osd, text)| (osd, sample::parse(&text))).collect();
    Ok(Sample { at, osds, volumes, pages })
}

/// One row: its subject and its rates.
struct Row<T> {
    of: T,
    read: Rate,
    write: Rate,
}

struct Screen {
    elapsed_s: f64,
    osds: Vec<Row<(OsdView, Option<Page>)>>,
    /// Busiest first.
    volumes: Vec<Row<(String, Option<VolumeView>)>>,
}

fn rates<T>(of: T, now: &Io, before: &Io, elapsed_s: f64) -> Row<T> {
    Row { of, read: now.read.since(&before.read, elapsed_s), write: now.write.since(&before.write, elapsed_s) }
}

/// Sums the rates of one volume over the OSDs: a restart of one OSD does not distort the rates of the others.
fn sum(rates: &[Rate]) -> Rate {
    // The sum of no floats is -0.0.
    let total = |of: fn(&Rate) -> f64| rates.iter().map(of).fold(0.0, |sum, each| sum + each);
    let count = total(|r| r.iops);
    let seconds = total(|r| r.latency_s.unwrap_or(0.0) * r.iops);
    Rate { iops: count, bytes_per_s: total(|r| r.bytes_per_s), latency_s: (count > 0.0).then(|| seconds / count) }
}

fn screen(before: &Sample, now: &Sample) -> Screen {
    let elapsed_s = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let nothing = Io::default();
    let mut osds = Vec::new();
    let mut volumes: BTreeMap<&VolumeId, (Vec<Rate>, Vec<Rate>)> = BTreeMap::new();
    for osd in &now.osds {
        let (page, was) = (now.pages.get(&osd.osd), before.pages.get(&osd.osd));
        let io = page.map_or(&nothing, |page| &page.io);
        // Without an earlier page there is no rate: the totals since the OSD's start are none.
        osds.push(rates((osd.clone(), page.cloned()), io, was.map_or(io, |was| &was.io), elapsed_s));
        let (Some(page), Some(was)) = (page, was) else { continue };
        for (id, io) in &page.volumes {
            let row = rates((), io, was.volumes.get(id).unwrap_or(&nothing), elapsed_s);
            let (reads, writes) = volumes.entry(id).or_default();
            reads.push(row.read);
            writes.push(row.write);
        }
    }
    let mut rows: Vec<_> = volumes
        .into_iter()
        .map(|((pool, id), (reads, writes))| {
            let view = now.volumes.iter().find(|v| v.volume.0.to_string() == *id).cloned();
            let name = view.as_ref().map_or_else(|| format!("pool {pool}, volume {id}"), |v| v.name.clone());
            Row { of: (name, view), read: sum(&reads), write: sum(&writes) }
        })
        .collect();
    let quiet = now.volumes.iter().filter(|v| rows.iter().all(|row| row.of.0 != v.name)).cloned().collect::<Vec<_>>();
    rows.extend(quiet.into_iter().map(|v| Row { of: (v.name.clone(), Some(v)), read: sum(&[]), write: sum(&[]) }));
    rows.sort_by(|a, b| (b.read.iops + b.write.iops).total_cmp(&(a.read.iops + a.write.iops)));
    Screen { elapsed_s, osds, volumes: rows }
}

fn cells(read: &Rate, write: &Rate) -> Vec<String> {
    let side = |rate: &Rate| {
        let latency = rate.latency_s.map_or_else(|| "-".to_owned(), |s| format!("{:.2}", s * 1e3));
        [format!("{:.0}", rate.iops), format!("{:.1}", rate.bytes_per_s / f64::from(1 << 20)), latency]
    };
    [side(read), side(write)].concat()
}

const IO_HEAD: [&str; 6] = ["read/s", "mib/s", "ms", "write/s", "mib/s", "ms"];

/// Returns the two tables as lines, at most `height` of them if that is given.
fn lines(screen: &Screen, height: Option<usize>) -> Vec<String> {
    let osds = screen.osds.iter().map(|row| {
        let (osd, page) = &row.of;
        let log =
            page.as_ref().filter(|p| p.log_total > 0.0).map(|p| format!("{:.0} %", p.log_used / p.log_total * 100.0));
        let space = format!("{} of {}", show(osd.used_bytes), show(osd.capacity_bytes));
        let tail = vec![space, log.unwrap_or_else(|| "-".to_owned())];
        [vec![osd.osd.to_string(), osd.host.clone(), osd.live.clone()], cells(&row.read, &row.write), tail].concat()
    });
    let volumes = screen.volumes.iter().map(|row| {
        let (name, view) = &row.of;
        let space = view.as_ref().map_or_else(|| "-".to_owned(), |v| show(v.allocated_bytes));
        [vec![name.clone()], cells(&row.read, &row.write), vec![space]].concat()
    });
    let mut all = output::table_lines(&[&["osd", "host", "state"][..], &IO_HEAD, &["used", "log"]].concat(), osds);
    all.push(String::new());
    all.extend(output::table_lines(&[&["volume"][..], &IO_HEAD, &["allocated"]].concat(), volumes));
    if let Some(height) = height
        && all.len() > height
    {
        let more = all.len() + 1 - height;
        all.truncate(height.saturating_sub(1));
        all.push(format!("… {more} lines more: make the window higher, or basalt top --once"));
    }
    all
}

fn as_json(screen: &Screen) -> Value {
    let side = |rate: &Rate| json!({ "iops": rate.iops, "bytes_per_s": rate.bytes_per_s, "latency_us": rate.latency_s.map(|s| s * 1e6) });
    let osds = screen.osds.iter().map(|row| {
        let (osd, page) = &row.of;
        json!({
            "osd": osd.osd, "host": osd.host, "live": osd.live, "version": osd.version,
            "read": side(&row.read), "write": side(&row.write),
            "used_bytes": osd.used_bytes, "capacity_bytes": osd.capacity_bytes,
            "log_segments_used": page.as_ref().map(|p| p.log_used), "log_segments": page.as_ref().map(|p| p.log_total),
            "requests": page.as_ref().map(|p| p.waiting),
        })
    });
    let volumes = screen.volumes.iter().map(|row| {
        let (name, view) = &row.of;
        json!({
            "name": name, "read": side(&row.read), "write": side(&row.write),
            "allocated_bytes": view.as_ref().map(|v| v.allocated_bytes), "len_bytes": view.as_ref().map(|v| v.len_bytes),
        })
    });
    json!({ "interval_s": screen.elapsed_s, "osds": osds.collect::<Vec<_>>(), "volumes": volumes.collect::<Vec<_>>() })
}

/// Reads pressed keys; the thread ends with the process.
fn keys() -> Receiver<Key> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let term = Term::stdout();
        while let Ok(key) = term.read_key() {
            if sender.send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Runs until `q`; with `--once`, `--json` or without a terminal it prints one sample.
///
/// # Errors
/// Meta's refusal, or an error when no meta answers.
#[allow(clippy::disallowed_methods, reason = "a sample takes a moment of real time")]
pub fn run(admin: &Admin, args: &TopArgs, json: bool) -> Result<()> {
    let every = Duration::from_secs(args.interval);
    let mut before = take(admin)?;
    let term = Term::stdout();
    if json || args.once || !term.is_term() {
        std::thread::sleep(every);
        let screen = screen(&before, &take(admin)?);
        if json {
            return output::json("top", as_json(&screen));
        }
        lines(&screen, None).iter().for_each(|line| out!("{line}"));
        return Ok(());
    }
    let keys = keys();
    term.clear_screen()?;
    loop {
        match keys.recv_timeout(every) {
            Ok(Key::Char('q' | 'Q') | Key::Escape | Key::CtrlC) => break,
            Ok(_) => continue,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = take(admin)?;
        let (height, width) = term.size();
        let (height, width) = (usize::from(height).max(3), usize::from(width).max(20));
        let mut text = format!("basalt top, every {} s; q quits\n\n", args.interval);
        for line in lines(&screen(&before, &now), Some(height - 3)) {
            text.extend(line.chars().take(width));
            text.push('\n');
        }
        term.clear_screen()?;
        term.write_str(&text)?;
        before = now;
    }
    term.clear_screen()?;
    Ok(())
}
