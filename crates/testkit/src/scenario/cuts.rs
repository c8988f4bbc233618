//! Partial cuts: packets between a client and one OSD are lost one way, or those between an OSD and meta.
//!
//! The client runs in a network namespace of its own, so packets are lost under live TCP connections. The scenario
//! needs root, iproute2 and nftables; without them it says so and judges nothing.

use super::Settings;
use crate::chaos::netns::{Loss, Namespaces};
use crate::clock;
use crate::cluster::{Cluster, READY_MAX, Shape};
use crate::report::Outcome;
use crate::stamped::StampedLoad;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

const OSDS: u32 = 3;
/// The namespace behind those of the OSDs.
const CLIENT: u32 = OSDS + 1;
const CUT: Duration = Duration::from_secs(30);
const CUT_SHORT: Duration = Duration::from_secs(12);
const CALM: Duration = Duration::from_secs(2);
/// Time after a heal in which stalls are looked for.
const AFTER: Duration = Duration::from_secs(5);
/// Detection takes 400 ms (R3), the transfer at most one second.
const STALL_CUT_MAX: Duration = Duration::from_millis(1_500);
const STALL_HEALED_MAX: Duration = Duration::from_secs(2);
/// Longest standstill of a volume after a heal, before the scenario gives up.
const STANDSTILL_MAX: Duration = Duration::from_secs(90);

fn cut_time(settings: &Settings) -> Duration {
    if settings.short { CUT_SHORT } else { CUT }
}

/// Starts a cluster whose OSDs have networks of their own, and one more for the client; `None` where that is
/// impossible.
fn gather(name: &str, settings: &Settings, outcome: &mut Outcome) -> Result<Option<Cluster>> {
    let net = match Namespaces::set_up(CLIENT) {
        Ok(net) => net,
        Err(error) => {
            outcome.figure(format!("not judged: no network namespaces here: {error:#}"));
            return Ok(None);
        }
    };
    let shape = Shape { osds: OSDS, proxies: Some(settings.seed), ..Shape::default() };
    Cluster::up_within(&settings.base, name, shape, Some(net)).map(Some)
}

fn net(cluster: &Cluster) -> Result<&Namespaces> {
    cluster.net.as_ref().context("the cluster has namespaces")
}

/// Starts a load on one PG, in the client's namespace.
fn load(cluster: &Cluster, settings: &Settings) -> Result<StampedLoad> {
    let mut load = StampedLoad::with_areas(cluster, "v", settings.seed, 1)?;
    load.within = net(cluster)?.enter(CLIENT);
    load.config.rate_per_s = 300;
    load.start()?;
    let known = load.witness.clone();
    clock::wait_until("writes", READY_MAX, || Ok(known.known().acked > 100))?;
    Ok(load)
}

/// Returns the OSD that leads the PG of the load.
fn leader(cluster: &Cluster) -> Result<u32> {
    let leaders = cluster.basalt.data_leaders()?;
    ensure!(leaders.len() == 1, "the load lies in one PG, led by one OSD, not {leaders:?}");
    Ok(u32::try_from(*leaders.first().context("one leader")?)?)
}

/// Returns the status page, whatever it says of the cluster's health.
fn status_of(cluster: &Cluster) -> Result<serde_json::Value> {
    let out = cluster.basalt.output(&["status", "--json"])?;
    Ok(serde_json::from_slice(&out.stdout)?)
}

pub fn client(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let Some(mut cluster) = gather("client-cut", settings, outcome)? else { return Ok(()) };
    let mut load = load(&cluster, settings)?;
    for sent in [true, false] {
        if let Err(error) = one_way(&cluster, &mut load, sent, settings, outcome) {
            outcome.faults.push(format!("{error:#}"));
        }
    }
    load.kill()?;
    load.check()?;
    outcome.figure(load.summary());
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

/// Drops packets between the client and the leader: those that the client sends, or those that arrive.
fn one_way(
    cluster: &Cluster,
    load: &mut StampedLoad,
    sent: bool,
    settings: &Settings,
    outcome: &mut Outcome,
) -> Result<()> {
    clock::pause(CALM);
    let osd = leader(cluster)?;
    let port = cluster.proxy_addr(osd).port();
    let way = if sent { format!("client → osd.{osd}") } else { format!("osd.{osd} → client") };
    let cut_at = clock::now();
    net(cluster)?.lose(CLIENT, Loss { sent, port: Some(port), percent: 100 })?;
    clock::pause(cut_time(settings) / 2);
    let status = status_of(cluster)?.to_string();
    clock::pause(cut_time(settings) / 2);
    net(cluster)?.heal(CLIENT)?;
    let healed_at = clock::now();
    let stall = load.witness.longest_gap(cut_at, healed_at);
    clock::pause(AFTER);
    let standing = |load: &StampedLoad| load.witness.longest_gap(clock::now(), clock::now()) > STALL_HEALED_MAX;
    clock::wait_until("I/O after the heal", STANDSTILL_MAX, || Ok(!standing(load)))?;
    let after = stall_after(load, healed_at);
    load.must_be_clean()?;
    outcome.figure(format!(
        "{way} cut for {} s: longest stall {} ms, {} ms after the heal; led by osd.{} then",
        cut_time(settings).as_secs(),
        stall.as_millis(),
        after.as_millis(),
        leader(cluster)?
    ));
    outcome.need(stall <= STALL_CUT_MAX, || format!("{way}: a stall of {} ms in the cut", stall.as_millis()));
    outcome.need(after <= STALL_HEALED_MAX, || format!("{way}: a stall of {} ms after it", after.as_millis()));
    let link = format!("cannot reach osd.{osd}");
    outcome.need(status.contains(&link), || format!("{way}: status does not say that the client {link}: {status}"));
    Ok(())
}

/// Returns the longest standstill of the volume after the heal. For a gap that began before it, only the part after the
/// heal counts.
fn stall_after(load: &StampedLoad, healed_at: Instant) -> Duration {
    let known = load.witness.known();
    let behind = known.gaps.iter().filter(|gap| gap.from + gap.len > healed_at);
    behind.map(|gap| (gap.from + gap.len) - gap.from.max(healed_at)).max().unwrap_or_default()
}

pub fn meta(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let Some(mut cluster) = gather("meta-cut", settings, outcome)? else { return Ok(()) };
    let mut load = load(&cluster, settings)?;
    clock::pause(CALM);
    let osd = leader(&cluster)?;
    let cut_at = clock::now();
    let port = cluster.proxy_addr(0).port();
    net(&cluster)?.lose(osd, Loss { sent: true, port: Some(port), percent: 100 })?;
    clock::pause(cut_time(settings) - CALM);
    let status = status_of(&cluster)?;
    clock::pause(CALM);
    net(&cluster)?.heal(osd)?;
    cluster.basalt.wait_healthy(READY_MAX)?;
    let stall = load.witness.longest_gap(cut_at, clock::now());
    load.must_be_clean()?;
    let (active, all) = (status["pgs_active"].as_u64(), status["pgs"].as_u64());
    outcome.figure(format!("osd.{osd} cut from meta: longest stall {} ms, status: {status}", stall.as_millis()));
    outcome.need(stall <= STALL_CUT_MAX, || format!("a stall of {} ms", stall.as_millis()));
    outcome.need(active == all, || format!("{active:?} of {all:?} PGs are called active; all of them serve"));
    let says = format!("osd.{osd} cannot reach the metadata server");
    outcome.need(status.to_string().contains(&says), || format!("status does not say: {says}"));
    load.kill()?;
    load.check()?;
    outcome.figure(load.summary());
    super::close(&mut cluster, settings, outcome);
    Ok(())
}
