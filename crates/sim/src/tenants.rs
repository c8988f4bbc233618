//! Many small volumes that come and go, each with I/O of its own: tenants of the cluster.
//!
//! ```text
//! rest → an administrator makes a volume → its machine opens it and works, and the volume becomes longer → it is removed,
//!      often in the middle, and perhaps by way of the trash and back → rest, the next one often under the same name
//! ```
//!
//! A tenant's history goes to the same checker as all others. So a volume that begins with an earlier one's bytes, or
//! whose writes vanish with another's removal, is found. A removed volume must leave nothing behind on any OSD once
//! everything rests.
//!
//! Invariant: the dice are the tenants' own; a run without tenants is the same as before.

use crate::client::ClientNode;
use crate::cluster::{CLIENTS, Cluster};
use crate::workload::{Block, Pattern, Shape, Workload};
use ::client::ClientTuning;
use control::VolumeState;
use control::admin::{AdminAsk, VolumeRemove};
use simenv::World;
use std::fmt::Write;
use std::time::Duration;
use types::rng::Rng;
use types::units::CHUNK;
use types::{ChunkKey, OsdId, PgId, SectorRange, Time, VolumeId};

/// Number of machines of tenants.
const TENANTS: usize = 3;
/// Number of names that a tenant uses again and again.
const NAMES: u64 = 2;
/// Length of the longest new volume, and of the longest one.
const NEW_LEN_MAX: u64 = 3 * CHUNK;
const LEN_MAX: u64 = 6 * CHUNK;
/// Time between two looks of a tenant at meta's records, and between two submissions of its command.
const LOOK: Duration = Duration::from_millis(50);
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Resting,
    Making { name: String, len_bytes: u64 },
    Living { name: String, volume: VolumeId },
    Leaving { name: String, volume: VolumeId },
}

struct Tenant {
    stage: Stage,
    /// When it acts next.
    at: Time,
    asked_at: Time,
    leaves_at: Time,
}

/// All tenants.
pub struct Tenants {
    all: Vec<Tenant>,
    rng: Rng,
    /// Dice of commands that lengthen volumes and use the trash, in a run with such commands.
    later: Option<Rng>,
    /// Tenants create no more volumes.
    closing: bool,
    removed: Vec<VolumeId>,
}

impl Tenants {
    pub fn new(mut rng: Rng, lengthens: bool, now: Time) -> Tenants {
        let later = lengthens.then(|| rng.clone().fork());
        let tenant = |_| {
            let at = now + Duration::from_millis(rng.below(1000));
            Tenant { stage: Stage::Resting, at, asked_at: Time::ZERO, leaves_at: Time::NEVER }
        };
        let all = (0..TENANTS).map(tenant).collect();
        Tenants { all, rng, later, closing: false, removed: Vec::new() }
    }

    /// Returns the machines of the tenants.
    pub fn machines(world: &World, tuning: ClientTuning, rng: &mut Rng) -> Vec<ClientNode> {
        let machine = |n| {
            let node = world.add_node(&format!("tenant.{n}"));
            let mut machine = ClientNode::new(node, CLIENTS + n, true, rng.fork());
            machine.tuning = tuning;
            machine
        };
        (0..TENANTS).map(machine).collect()
    }

    pub fn next(&self) -> Option<Time> {
        self.all.iter().map(|t| t.at).min().filter(|at| *at != Time::NEVER)
    }

    /// Closes: a tenant with a volume finishes and has it removed; no tenant creates another.
    pub fn close(&mut self, now: Time) {
        self.closing = true;
        for tenant in &mut self.all {
            tenant.at = now;
            tenant.leaves_at = Time::NEVER;
        }
    }

    /// Returns the number of volumes that came and went.
    pub fn removed(&self) -> u64 {
        self.removed.len() as u64
    }

    /// Whether all tenants have left, and nothing of any removed volume is left.
    pub fn are_gone(&self, cluster: &Cluster) -> bool {
        self.all.iter().all(|t| t.stage == Stage::Resting)
            && self.removed.iter().all(|v| left_on(cluster, *v).is_none())
    }

    /// Describes the tenants, for a failure's text.
    pub fn describe(&self, cluster: &Cluster) -> String {
        let all: Vec<String> = self.all.iter().map(|t| format!("{:?}", t.stage)).collect();
        let mut text = format!("tenants: {}", all.join(", "));
        for volume in &self.removed {
            if let Some((osd, pg, chunk)) = left_on(cluster, *volume) {
                let _ = write!(text, "; chunk {chunk} of {volume} is left on {osd} in {pg}");
            }
        }
        text
    }

    /// Lets each tenant act whose action is due.
    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        for n in 0..self.all.len() {
            if self.all[n].at <= now {
                self.step(n, now, cluster);
            }
        }
    }

    fn step(&mut self, n: usize, now: Time, cluster: &mut Cluster) {
        self.all[n].at = now + LOOK;
        match self.all[n].stage.clone() {
            Stage::Resting if self.closing => self.all[n].at = Time::NEVER,
            Stage::Resting => {
                let name = format!("main/tenant{n}-{}", self.rng.below(NAMES));
                let len_bytes = self.rng.between(1, NEW_LEN_MAX >> 20) << 20;
                self.all[n].stage = Stage::Making { name, len_bytes };
                self.all[n].asked_at = Time::ZERO;
            }
            Stage::Making { name, len_bytes } => {
                let Some(records) = cluster.meta.records() else { return };
                match records.volume(&name) {
                    Ok(volume) => {
                        let volume = volume.id;
                        self.move_in(n, &name, volume, len_bytes, now, cluster);
                    }
                    // An earlier volume of this name is still on its way out.
                    Err(_) if self.is_to_ask(n, now) => {
                        cluster.admin(AdminAsk::VolumeCreate {
                            name,
                            len_bytes,
                            stripe: types::Stripe::NONE,
                            text: Default::default(),
                        });
                    }
                    Err(_) => {}
                }
            }
            Stage::Living { name, volume } => {
                let work = cluster.tenant(n).workload.as_mut().expect("it was given one");
                if self.closing && !work.is_finishing() {
                    work.finish();
                }
                let is_at_work = !work.is_finishing();
                let over = if self.closing { work.is_done() } else { now >= self.all[n].leaves_at };
                if over {
                    // Half of the tenants end their process before.
                    if self.rng.chance(1, 2) {
                        cluster.tenant(n).hang_up();
                    }
                    cluster.tenant(n).removed();
                    self.all[n].asked_at = Time::ZERO;
                    self.all[n].stage = Stage::Leaving { name, volume };
                } else if is_at_work && self.later.as_mut().is_some_and(|dice| dice.chance(1, 10)) {
                    self.lengthen(name, volume, cluster);
                }
            }
            Stage::Leaving { name, volume } => {
                let Some(records) = cluster.meta.records() else { return };
                if let Some(known) = records.volumes.get(&volume) {
                    let state = known.state;
                    if self.is_to_ask(n, now) {
                        cluster.admin(self.removal(name, volume, state));
                    }
                } else if cluster.tenant(n).workload.as_ref().is_none_or(|w| w.inflight() == 0) {
                    cluster.tenant(n).hang_up();
                    self.removed.push(volume);
                    self.all[n].stage = Stage::Resting;
                    self.all[n].at = now + Duration::from_millis(self.rng.below(500));
                }
            }
        }
    }

    /// Lengthens a volume, perhaps by a part of a chunk. Its machine hears of it, and uses the new end.
    fn lengthen(&mut self, name: String, volume: VolumeId, cluster: &mut Cluster) {
        let known = cluster.meta.records().and_then(|records| records.volumes.get(&volume));
        let (Some(dice), Some(known)) = (&mut self.later, known) else { return };
        let len_bytes = (known.len_bytes + (dice.between(1, (2 * CHUNK) >> 20) << 20)).min(LEN_MAX);
        cluster.admin(AdminAsk::VolumeResize { name, to: control::admin::Resizing::to(len_bytes) });
    }

    /// Returns the next command of the removal of a volume: at once, or by way of the trash, from which it may come back.
    fn removal(&mut self, name: String, volume: VolumeId, state: VolumeState) -> AdminAsk {
        let other = self.later.as_mut().is_some_and(|dice| dice.chance(1, 2));
        let which = volume.0.to_string();
        match state {
            VolumeState::Trashed if other => AdminAsk::TrashRestore { which, name: None },
            VolumeState::Trashed => AdminAsk::TrashPurge { which },
            _ => {
                AdminAsk::VolumeRemove(VolumeRemove { name, force: true, now: !other, snapshots: true, detach: false })
            }
        }
    }

    /// Whether it is time to submit the command (again).
    fn is_to_ask(&mut self, n: usize, now: Time) -> bool {
        let due = self.all[n].asked_at == Time::ZERO || now >= self.all[n].asked_at + ASK_AGAIN;
        if due {
            self.all[n].asked_at = now;
        }
        due
    }

    fn move_in(&mut self, n: usize, name: &str, volume: VolumeId, len_bytes: u64, now: Time, cluster: &mut Cluster) {
        let life = Duration::from_millis(self.rng.between(100, 4000));
        let operations = self.rng.between(5, 150);
        let shape = Shape {
            pattern: Pattern::Random,
            len_bytes,
            window: [4 << 10, 32 << 10, 128 << 10][self.rng.below(3) as usize],
            depth: self.rng.between(1, 6) as usize,
            sectors_max: [1, 16, 64][self.rng.below(3) as usize],
            read_pct: self.rng.between(10, 60),
            trim_pct: self.rng.between(0, 15),
            operations,
            forger: None,
            whole_blocks: false,
            whole_aus_pct: 0,
            may_be_full: false,
            spread: 0,
        };
        let mut work = Block::on(name, volume.0, (CLIENTS + n) as u64, shape, self.rng.fork());
        if self.closing {
            // The tenant only opens the volume, and reads nothing more.
            work.limit(0);
        }
        cluster.house(n, Box::new(work), if self.closing { Duration::ZERO } else { life });
        self.all[n].leaves_at = if self.closing { Time::NEVER } else { now + life };
        self.all[n].stage = Stage::Living { name: name.to_owned(), volume };
    }
}

/// Returns a replica that serves and holds something of the volume, or of a generation that its PG does not have: that one has ended with
/// some volume or snapshot. A replica whose disk has lied, and which does not serve, may keep data. At rest all other replicas have applied
/// the same, which shows that none of them is excused.
pub fn left_on(cluster: &Cluster, volume: VolumeId) -> Option<(OsdId, PgId, ChunkKey)> {
    let of_pg = |id: OsdId, osd: &osd::Osd, pg: PgId| {
        let tree = osd.tree_for_tools(pg).unwrap_or_default();
        let may_be_left = |chunk: &ChunkKey| tree.get(chunk.generation).is_none_or(|node| node.role.volume() == volume);
        let has_data =
            |chunk: &ChunkKey| osd.extents_for_tools(pg, *chunk, SectorRange::CHUNK).iter().any(|(_, data)| *data);
        let chunks = osd.chunks_for_tools(pg);
        chunks.into_iter().filter(may_be_left).find(has_data).map(|chunk| (id, pg, chunk))
    };
    let mut replicas = cluster.running().flat_map(|(id, osd)| {
        let serving = osd.reports_for_tools().into_iter();
        serving.map(move |report| (id, osd, report.pg))
    });
    replicas.find_map(|(id, osd, pg)| of_pg(id, osd, pg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::overrides::Overrides;
    use crate::run::Run;
    use types::control::OsdDown;
    use types::cut::{Cut, CutEnd, CutItem, SnapshotOrder};
    use types::{CutId, GenerationId, SnapshotId};

    /// Returns a run in which a volume was written.
    fn written() -> (Run, VolumeId) {
        let mut rng = Rng::new(1);
        let options = Options::draw(&mut rng);
        let mut run = Run::new(1, options, rng, false, &Overrides::default());
        assert!(run.set_up().is_ok(), "nothing is broken");
        run.cluster.begin(&run.volumes, Duration::from_secs(1), &mut run.rng);
        let alive = run.volumes[0];
        assert_eq!(left_on(&run.cluster, alive), None, "nothing was written");
        for _ in 0..5000 {
            let step = run.step(Time::NEVER);
            assert!(step.is_ok(), "nothing is broken: {step:?}");
        }
        (run, alive)
    }

    /// Gives an order to all PGs in the place of meta.
    fn order(run: &mut Run, order: &SnapshotOrder) {
        let pgs: Vec<PgId> = run.cluster.meta.records().map_or_else(Vec::new, |r| r.pgs.keys().copied().collect());
        pgs.iter().for_each(|pg| run.cluster.order(*pg, &OsdDown::Snapshots { pg: *pg, order: order.clone() }));
        let end = run.cluster.world.now() + Duration::from_millis(30);
        while run.cluster.world.now() < end {
            let step = run.step(end);
            assert!(step.is_ok(), "nothing is broken: {step:?}");
        }
    }

    #[test]
    fn what_a_living_volume_holds_is_not_taken_for_gone() {
        let (run, alive) = written();
        assert!(left_on(&run.cluster, alive).is_some(), "it was written");
        assert_eq!(left_on(&run.cluster, VolumeId(alive.0 + 1)), None, "there is no such volume");
    }

    #[test]
    fn volume_whose_first_generation_is_gone_is_not_taken_for_gone() {
        let (mut run, alive) = written();
        let has_first = |run: &Run| {
            let pages =
                run.cluster.running().flat_map(|(_, osd)| osd.reports_for_tools().into_iter().map(move |r| (osd, r)));
            let mut trees = pages.filter_map(|(osd, report)| osd.tree_for_tools(report.pg));
            trees.any(|tree| tree.get(GenerationId::first_of(alive)).is_some())
        };
        assert!(has_first(&run));
        // A cut may be given up under load.
        for to in (1 << 20..).take(100) {
            let items: std::sync::Arc<[CutItem]> = [CutItem { volume: alive, to: GenerationId(to) }].into();
            let cut = CutId(to);
            order(&mut run, &SnapshotOrder::Cut(Cut { id: cut, created_ms: 1000, items: items.clone() }));
            order(&mut run, &SnapshotOrder::Release { cut, end: CutEnd::Release, items });
            order(&mut run, &SnapshotOrder::Remove { volume: alive, snapshot: SnapshotId(to) });
            if !has_first(&run) {
                break;
            }
        }
        assert!(!has_first(&run), "each PG has removed a snapshot");
        assert!(left_on(&run.cluster, alive).is_some(), "its head has the data");
    }
}
