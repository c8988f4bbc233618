//! Volumes that meet on one OSD: a limit is the average, two busy volumes get halves, a small load waits little, and a floor is kept.
//!
//! The pool has one PG, so all its volumes are led by one OSD. Each load is a `basalt bench` of its own.

use super::Settings;
use crate::basalt::Basalt;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::report::Outcome;
use anyhow::{Context, Result};

const LIMIT: f64 = 500.0;
/// Neighbours of the volume with a floor.
const NEIGHBOURS: usize = 4;

/// One load, and how it went.
struct Load<'a> {
    volume: &'a str,
    depth: u32,
}

struct Rates {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster =
        Cluster::up(&settings.base, "shares", Shape { pgs: 1, device_bytes: 12 << 30, ..Shape::default() })?;
    if let Err(error) = share(&cluster, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn share(cluster: &Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let seconds = settings.rounds(30, 8);
    let names: Vec<String> =
        (0..=NEIGHBOURS).map(|n| cluster.volume(&format!("v{n}"), 1 << 30)).collect::<Result<_>>()?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    let run = |loads: &[(usize, u32)]| {
        let loads: Vec<Load> = loads.iter().map(|(n, depth)| Load { volume: &names[*n], depth: *depth }).collect();
        run_all(&cluster.basalt, &loads, seconds)
    };
    // The first load allocates.
    run(&[(0, 32), (1, 32)])?;

    cluster.basalt.run(&["volume", "set", &names[0], "--iops", &LIMIT.to_string()])?;
    let limited = run(&[(0, 32)])?;
    let off = (limited[0].iops / LIMIT - 1.0) * 100.0;
    outcome.figure(format!("limit of {LIMIT} IOPS: {:.1} in {seconds} s ({off:+.1} %)", limited[0].iops));
    outcome.need(off.abs() <= 3.0, || format!("{:.1} IOPS under a limit of {LIMIT}", limited[0].iops));
    cluster.basalt.run(&["volume", "set", &names[0], "--no-limit"])?;

    let halves = run(&[(0, 128), (1, 32)])?;
    let all = halves[0].iops + halves[1].iops;
    let part = halves[1].iops / all * 100.0;
    outcome.figure(format!("depths 128 and 32: {:.0} and {:.0} IOPS ({part:.1} %)", halves[0].iops, halves[1].iops));
    outcome.need((45.0..=55.0).contains(&part), || format!("the volume with depth 32 has {part:.1} % of the IOPS"));

    let (alone, small) = (run(&[(1, 1)])?, run(&[(0, 128), (1, 1)])?);
    let told = |rates: &Rates| format!("p50 {:.0} µs, p99 {:.0} µs", rates.p50_us, rates.p99_us);
    outcome.figure(format!("depth 1 alone: {}; beside depth 128: {}", told(&alone[0]), told(&small[1])));

    let busy: Vec<(usize, u32)> = (1..=NEIGHBOURS).map(|n| (n, 64)).chain([(0, 64)]).collect();
    let equal = run(&busy)?;
    let total: f64 = equal.iter().map(|rates| rates.iops).sum();
    let floor = (total * 0.4).floor();
    cluster.basalt.run(&["volume", "set", &names[0], "--floor-iops", &floor.to_string()])?;
    let kept = run(&busy)?;
    let (before, after) = (equal[NEIGHBOURS].iops, kept[NEIGHBOURS].iops);
    let others = kept.iter().take(NEIGHBOURS).map(|rates| format!("{:.0}", rates.iops)).collect::<Vec<_>>().join(", ");
    outcome.figure(format!(
        "five volumes: {before:.0} of {total:.0} IOPS; with a floor of {floor}: {after:.0}, others {others}"
    ));
    outcome.need(after >= floor * 0.95, || format!("{after:.0} IOPS with a floor of {floor}"));
    Ok(())
}

/// Runs loads side by side.
fn run_all(basalt: &Basalt, loads: &[Load], seconds: u32) -> Result<Vec<Rates>> {
    let one = |load: &Load| -> Result<Rates> {
        let (depth, seconds) = (load.depth.to_string(), seconds.to_string());
        let args = ["bench", load.volume, "--op", "randwrite", "--overwrite", "--depth", &depth, "--seconds", &seconds];
        let report = basalt.json(&args)?;
        let writes = &report["report"]["writes"];
        let number = |name: &str| writes["latency"][name].as_f64().context("a latency");
        let iops = writes["iops"].as_f64().context("a rate")?;
        Ok(Rates { iops, p50_us: number("p50_us")?, p99_us: number("p99_us")? })
    };
    let one = &one;
    std::thread::scope(|scope| {
        let running: Vec<_> = loads.iter().map(|load| scope.spawn(move || one(load))).collect();
        running.into_iter().map(|load| load.join().expect("a load does not panic")).collect()
    })
}
