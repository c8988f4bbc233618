//! The space of a volume and its snapshots, counted by the leaders of its PGs.
//!
//! Input: the pages `/pg/PG/usage` of the OSDs that lead, chunk after chunk. Output: one sum.
//!
//! Invariant: figures are those of all PGs, or there are none.

use crate::http;
use control::admin::{AdminAnswer, AdminAsk, OsdView, PgView, VolumeView};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use types::units::AU;
use types::usage::{SnapshotUsage, Usage};
use types::{PgId, SnapshotId, VolumeId};

/// Times that the leader of a PG is looked for, and the pause between two.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// PGs that are asked at the same time.
const ASKED_MAX: usize = 16;

/// A way to the metadata server.
pub trait Directory {
    /// Failure of a question.
    type Error;

    /// Asks the leading metadata server.
    ///
    /// # Errors
    /// Its refusal, or the failure of the way to it.
    fn ask(&self, ask: AdminAsk) -> Result<AdminAnswer, Self::Error>;
}

/// Reason why the space of a volume is not known.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError<E> {
    /// The metadata server does not answer, or refuses.
    #[error("{0}")]
    Directory(E),
    /// It answered another question.
    #[error("the metadata server answered {0} with something else")]
    Strange(&'static str),
    /// For 10 s no leader of these PGs answered.
    #[error("{volume}: the space in PG {} could not be counted: no leader answers", named(pgs))]
    Silent {
        /// `POOL/VOLUME`.
        volume: String,
        /// All of them.
        pgs: Vec<PgId>,
    },
}

fn named(pgs: &[PgId]) -> String {
    pgs.iter().take(4).map(PgId::to_string).collect::<Vec<_>>().join(", ")
}

/// Space of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The space in one replica, in AUs.
    usage: Usage,
    /// Replicas of each PG; of the pool's PGs, the one with the most members counts.
    pub replicas: u32,
}

/// Answer of an OSD about some chunks.
#[derive(Deserialize)]
struct Page {
    leading: bool,
    usage: Usage,
    next: Option<u32>,
}

impl Space {
    /// Returns the bytes that the volume shows.
    pub fn allocated_bytes(&self) -> u64 {
        self.usage.allocated * AU
    }

    /// Returns those of them that no snapshot and no other volume has, too.
    pub fn exclusive_bytes(&self) -> u64 {
        self.usage.exclusive * AU
    }

    /// Returns those of them that are shared.
    pub fn shared_bytes(&self) -> u64 {
        self.usage.allocated.saturating_sub(self.usage.exclusive) * AU
    }

    /// Returns the bytes of the volume and its snapshots in one replica.
    pub fn stored_bytes(&self) -> u64 {
        self.usage.stored * AU
    }

    /// Returns bytes of deleted snapshots that clones need.
    pub fn removed_bytes(&self) -> u64 {
        self.usage.removed * AU
    }

    /// Returns bytes of deleted snapshots that are being freed.
    pub fn reclaimable_bytes(&self) -> u64 {
        self.usage.reclaimable * AU
    }

    /// Returns bytes of a snapshot, and those that its deletion frees.
    pub fn of_snapshot(&self, id: SnapshotId) -> (u64, u64) {
        let SnapshotUsage { stored, frees } = self.usage.snapshots.get(&id).copied().unwrap_or_default();
        (stored * AU, frees * AU)
    }
}

/// Measures a volume. Blocks; while a PG has no leader that answers, for 10 s.
///
/// # Errors
/// The failure of the directory, or [`SpaceError::Silent`].
pub fn measure<D: Directory>(directory: &D, volume: &VolumeView) -> Result<Space, SpaceError<D::Error>> {
    let pool = volume.name.split('/').next().unwrap_or("").to_owned();
    let mut space = Space::default();
    let mut left = None::<Vec<PgId>>;
    for tried in 0..TRIES {
        if tried > 0 {
            pause();
        }
        let (osds, pgs) = leaders(directory, &pool)?;
        space.replicas = space.replicas.max(pgs.iter().map(|pg| pg.members.len() as u32).max().unwrap_or(0));
        let wanted = left.take().unwrap_or_else(|| pgs.iter().map(|pg| pg.pg).collect());
        let leader = |pg: &PgId| pgs.iter().find(|view| view.pg == *pg)?.leader.and_then(|osd| osds.get(&osd).copied());
        let (asked, mut silent): (Vec<PgId>, Vec<PgId>) = wanted.into_iter().partition(|pg| leader(pg).is_some());
        let asked: Vec<(PgId, SocketAddr)> = asked.into_iter().filter_map(|pg| Some((pg, leader(&pg)?))).collect();
        for (pg, found) in ask(&asked, volume.volume) {
            match found {
                Some(found) => space.usage.add(&found),
                None => silent.push(pg),
            }
        }
        if silent.is_empty() {
            return Ok(space);
        }
        left = Some(silent);
    }
    Err(SpaceError::Silent { volume: volume.name.clone(), pgs: left.unwrap_or_default() })
}

/// OSDs that show pages, with their addresses.
type Osds = BTreeMap<types::OsdId, SocketAddr>;

fn leaders<D: Directory>(directory: &D, pool: &str) -> Result<(Osds, Vec<PgView>), SpaceError<D::Error>> {
    let AdminAnswer::Osds(osds) = directory.ask(AdminAsk::OsdList).map_err(SpaceError::Directory)? else {
        return Err(SpaceError::Strange("the list of OSDs"));
    };
    let ask = AdminAsk::PgList { pool: pool.to_owned() };
    let AdminAnswer::Pgs(pgs) = directory.ask(ask).map_err(SpaceError::Directory)? else {
        return Err(SpaceError::Strange("the list of PGs"));
    };
    Ok((osds.into_iter().filter_map(|OsdView { osd, http, .. }| Some((osd, http?))).collect(), pgs))
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
