//! `basalt volume du`: the space of a volume and its snapshots, counted by the leaders of its PGs.
//!
//! Input: the pages `/pg/PG/usage` of the OSDs that lead, chunk after chunk. Output: one sum.
//!
//! Invariant: figures are those of all PGs, or there are none.

use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::{json, table};
use crate::size::show;
use crate::verify::http;
use anyhow::Result;
use control::admin::{SnapshotView, VolumeView};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use types::units::AU;
use types::usage::{SnapshotUsage, Usage};
use types::{PgId, SnapshotId, VolumeId, codes};

/// Times that the leader of a PG is looked for, and the pause between two.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// PGs that are asked at the same time.
const ASKED_MAX: usize = 16;

/// Space of a volume.
#[derive(Debug)]
pub struct Measured {
    /// The space in one replica.
    usage: Usage,
    replicas: u32,
}

/// Answer of an OSD about some chunks.
#[derive(Deserialize)]
struct Page {
    leading: bool,
    usage: Usage,
    next: Option<u32>,
}

impl Measured {
    /// Returns bytes of the snapshot, and those that its deletion frees.
    pub fn of_snapshot(&self, id: SnapshotId) -> (u64, u64) {
        let SnapshotUsage { stored, frees } = self.usage.snapshots.get(&id).copied().unwrap_or_default();
        (stored * AU, frees * AU)
    }
}

/// Measures a volume.
///
/// # Errors
/// Meta's refusal, or BSLT-5007 when a PG has no leader that answers.
pub fn measure(admin: &Admin, volume: &VolumeView) -> Result<Measured> {
    let pool = volume.name.split('/').next().unwrap_or("").to_owned();
    let (mut left, mut usage, mut replicas) = (None::<Vec<PgId>>, Usage::default(), 0);
    for tried in 0..TRIES {
        if tried > 0 {
            pause();
        }
        let osds: BTreeMap<_, _> = admin.osds()?.into_iter().filter_map(|osd| Some((osd.osd, osd.http?))).collect();
        let pgs = admin.pgs(Some(&pool))?;
        replicas = replicas.max(pgs.iter().map(|pg| pg.members.len() as u32).max().unwrap_or(0));
        let wanted = left.take().unwrap_or_else(|| pgs.iter().map(|pg| pg.pg).collect());
        let leader = |pg: &PgId| pgs.iter().find(|view| view.pg == *pg)?.leader.and_then(|osd| osds.get(&osd).copied());
        let (asked, mut silent): (Vec<PgId>, Vec<PgId>) = wanted.into_iter().partition(|pg| leader(pg).is_some());
        let asked: Vec<(PgId, SocketAddr)> = asked.into_iter().filter_map(|pg| Some((pg, leader(&pg)?))).collect();
        for (pg, found) in ask(&asked, volume.volume) {
            match found {
                Some(found) => usage.add(&found),
                None => silent.push(pg),
            }
        }
        if silent.is_empty() {
            return Ok(Measured { usage, replicas });
        }
        left = Some(silent);
    }
    let silent: Vec<String> = left.iter().flatten().take(4).map(PgId::to_string).collect();
    let what =
        format!("{}: the space in PG {} could not be counted: no leader answers", volume.name, silent.join(", "));
    Err(UserError::new(codes::REQUESTS_NOT_ANSWERED, what, "basalt status shows which PGs do not serve").into())
}

#[allow(clippy::disallowed_methods, reason = "an election takes a while")]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// Asks leaders for the space of a volume. `None`: it does not lead any more, or does not answer.
fn ask(pgs: &[(PgId, SocketAddr)], volume: VolumeId) -> Vec<(PgId, Option<Usage>)> {
    let mut answers = Vec::new();
    for some in pgs.chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            let asked = |(pg, addr): (PgId, SocketAddr)| scope.spawn(move || (pg, in_pg(addr, pg, volume)));
            let threads: Vec<_> = some.iter().copied().map(asked).collect();
            answers.extend(threads.into_iter().filter_map(|thread| thread.join().ok()));
        });
    }
    answers
}

fn in_pg(leader: SocketAddr, pg: PgId, volume: VolumeId) -> Option<Usage> {
    let (mut usage, mut next) = (Usage::default(), Some(0));
    while let Some(from) = next {
        let (status, body) = http::get(leader, &format!("/pg/{pg}/usage?volume={}&from={from}", volume.0)).ok()?;
        let page: Page = serde_json::from_value(body).ok().filter(|_| status == 200)?;
        // Pages are foreign data: one that does not go on would never end.
        let goes_on = page.next.is_none_or(|next| next > from);
        if !page.leading || !goes_on {
            return None;
        }
        usage.add(&page.usage);
        next = page.next;
    }
    Some(usage)
}

/// Prints the space of a volume.
///
/// # Errors
/// Those of [`measure`].
pub fn run(admin: &Admin, name: &str, as_json: bool) -> Result<()> {
    let volume = admin.volume_info(name)?;
    let measured = measure(admin, &volume)?;
    let snapshots = admin.snapshots(&volume.name)?;
    if as_json {
        return json("volume.du", body(&volume, &measured, &snapshots));
    }
    let Measured { usage, replicas } = &measured;
    let bytes = |aus: u64| show(aus * AU);
    out!("volume       {} ({})", volume.name, volume.volume);
    out!("provisioned  {}", show(volume.len_bytes));
    out!("allocated    {}", bytes(usage.allocated));
    out!("  exclusive  {} (shared with no snapshot and no other volume)", bytes(usage.exclusive));
    out!("  shared     {}", bytes(usage.allocated.saturating_sub(usage.exclusive)));
    let raw = show(usage.stored * AU * u64::from(*replicas));
    out!("stored       {} with the snapshots, {raw} on {replicas} replicas", bytes(usage.stored));
    if usage.removed > 0 {
        out!("  removed    {} of deleted snapshots that clones need", bytes(usage.removed));
    }
    if usage.reclaimable > 0 {
        out!("reclaimable  {} of deleted snapshots, being freed in the background", bytes(usage.reclaimable));
    }
    if !snapshots.is_empty() {
        out!("");
        table(&["snapshot", "stored", "freed by its deletion"], snapshots.iter().map(|s| row(s, &measured)));
    }
    Ok(())
}

fn row(snapshot: &SnapshotView, measured: &Measured) -> Vec<String> {
    let (stored, frees) = measured.of_snapshot(snapshot.snapshot);
    vec![snapshot.name.clone(), show(stored), show(frees)]
}

fn body(volume: &VolumeView, measured: &Measured, snapshots: &[SnapshotView]) -> Value {
    let Measured { usage, replicas } = measured;
    let snapshot = |s: &SnapshotView| {
        let (stored, frees) = measured.of_snapshot(s.snapshot);
        json!({ "name": s.name, "snapshot": s.snapshot, "stored_bytes": stored, "frees_bytes": frees })
    };
    json!({
        "name": volume.name,
        "volume": volume.volume,
        "len_bytes": volume.len_bytes,
        "allocated_bytes": usage.allocated * AU,
        "exclusive_bytes": usage.exclusive * AU,
        "shared_bytes": usage.allocated.saturating_sub(usage.exclusive) * AU,
        "stored_bytes": usage.stored * AU,
        "removed_bytes": usage.removed * AU,
        "reclaimable_bytes": usage.reclaimable * AU,
        "replicas": replicas,
        "snapshots": snapshots.iter().map(snapshot).collect::<Vec<_>>(),
    })
}
