//! Hostile bytes go to every port while a load runs; devices that are foreign, or in use, are refused.

use super::Settings;
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::hostile::{self, End};
use crate::procs::Proc;
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result, bail};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use types::ClusterId;
use types::rng::Rng;

/// The rate is low: memory that the load itself makes daemons retain must not hide the effect of hostile bytes.
const RATE: u64 = 25;
/// Time for which an answer is awaited. It is longer when the answer must be a refusal.
const PATIENCE: Duration = Duration::from_millis(200);
const REFUSED_MAX: Duration = Duration::from_secs(3);
/// The kind of a frame that refuses a greeting.
const REFUSE: u8 = wire::FrameKind::Refuse as u8;
/// Limit for the growth of a daemon's peak memory under hostile bytes.
const GROWTH_MAX: u64 = 64 << 20;
/// Number of silent connections that are held open at once.
const SILENT: usize = 300;

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "bad-input", Shape::default())?;
    if let Err(error) = all(&mut cluster, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn all(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut load = StampedLoad::new(cluster, "v", settings.seed)?;
    load.config.rate_per_s = RATE;
    load.start()?;
    let export = cluster.volume("export", 64 << 20)?;
    cluster.export_tcp(&export)?;
    clock::wait_until("the load to run", READY_MAX, || {
        load.must_be_clean()?;
        Ok(load.witness.known().acked > 200)
    })?;
    let before = memory(cluster)?;
    let started = clock::now();
    let mut rng = Rng::new(settings.seed);
    for _ in 0..settings.rounds(3, 1) {
        talk(cluster, &mut rng, &mut load, outcome)?;
    }
    silent(cluster, outcome)?;
    clock::pause(Duration::from_secs(1));
    let gap = load.witness.longest_gap(started, clock::now());
    outcome.figure(format!("the load's longest gap meanwhile: {} ms", gap.as_millis()));
    for ((name, _, peak), (_, _, later)) in before.iter().zip(memory(cluster)?) {
        let grown = later.saturating_sub(*peak);
        outcome.need(grown <= GROWTH_MAX, || format!("{name} grew by {} MiB", grown >> 20));
    }
    let peaks: Vec<String> =
        memory(cluster)?.into_iter().map(|(name, now, peak)| format!("{name} {}/{}", now >> 20, peak >> 20)).collect();
    outcome.figure(format!("memory now/peak, MiB: {}", peaks.join(", ")));
    load.must_be_clean()?;
    load.kill()?;
    load.check()?;
    outcome.figure(load.summary());
    super::devices::refused(cluster, outcome)
}

/// Returns name, resident bytes and their peak of every daemon.
fn memory(cluster: &mut Cluster) -> Result<Vec<(String, u64, u64)>> {
    let all: Vec<&Proc> = cluster.metas.iter().chain(cluster.osds.values()).chain(&cluster.exports).collect();
    all.into_iter().map(|proc| proc.memory().map(|(now, peak)| (proc.spec.name.clone(), now, peak))).collect()
}

/// A port: its name, its address, and the described bytes that are sent to it.
type Port = (String, SocketAddr, Vec<(String, Vec<u8>)>);

/// Sends every kind of nonsense to every port, once.
fn talk(cluster: &mut Cluster, rng: &mut Rng, load: &mut StampedLoad, outcome: &mut Outcome) -> Result<()> {
    let text = cluster.basalt.json(&["status"])?["cluster"].as_str().context("the cluster's id")?.to_owned();
    let id: ClusterId = text.parse().ok().context("the cluster's id is a uuid")?;
    let mut ports: Vec<Port> = Vec::new();
    for n in cluster.ids() {
        ports.push((format!("osd.{n} data"), cluster.osd_addr(n), hostile::data_port(rng, id)));
    }
    ports.push(("osd.1 http".into(), cluster.osd_http(1), hostile::http_port(rng)));
    ports.push(("meta gRPC".into(), cluster.meta_addr(0), hostile::http_port(rng)));
    ports.push(("meta http".into(), cluster.meta_http(0), hostile::http_port(rng)));
    ports.push(("nbd".into(), cluster.export_addr(), hostile::nbd_port(rng)));
    let mut open = Vec::new();
    let mut sent = 0;
    for (port, addr, cases) in &ports {
        for (what, bytes) in cases {
            sent += 1;
            let patience = if must_refuse(port, what) { REFUSED_MAX } else { PATIENCE };
            let end = hostile::send(*addr, bytes, patience);
            if end == End::Refused {
                bail!("{port} accepts no connection any more after {what}");
            }
            let refused = matches!(&end, End::Closed(answer) if answer.get(6) == Some(&REFUSE));
            outcome.need(refused || !must_refuse(port, what), || {
                let (open, len) = (matches!(end, End::Open(_)), end.answer().len());
                format!("{port}: {what} was answered with {len} B of something else (still open: {open})")
            });
            if matches!(end, End::Open(_)) {
                open.push(format!("{port}: {what}"));
            }
        }
        cluster.must_live().with_context(|| format!("after nonsense to {port}"))?;
        load.must_be_clean().with_context(|| format!("after nonsense to {port}"))?;
    }
    outcome.figure(format!(
        "{sent} kinds of nonsense to {} ports; {} connections wait for more",
        ports.len(),
        open.len()
    ));
    Ok(())
}

/// Whether the port must answer this greeting with a reason before it closes the connection.
fn must_refuse(port: &str, what: &str) -> bool {
    let wrong = ["a greeting of no cluster", "a greeting of version 900", "a greeting of no version"];
    port.ends_with("data") && wrong.contains(&what)
}

/// Checks that many silent connections do not keep others out.
fn silent(cluster: &mut Cluster, outcome: &mut Outcome) -> Result<()> {
    let mut held = Vec::new();
    for addr in [cluster.osd_addr(1), cluster.meta_addr(0), cluster.osd_http(1), cluster.export_addr()] {
        held.extend((0..SILENT).filter_map(|_| TcpStream::connect_timeout(&addr, Duration::from_millis(200)).ok()));
    }
    let info = cluster.basalt.output(&["status"])?;
    outcome.need(info.status.code() == Some(0), || "the cluster is not well among silent connections".into());
    outcome.figure(format!("{} silent connections held at once", held.len()));
    drop(held);
    cluster.must_live()
}
