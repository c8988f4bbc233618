//! Volumes with snapshots, rollbacks, clones and shrinks: an administrator, and a machine that uses the volumes one after the other.
//!
//! ```text
//! choose → a new volume │ a clone of a snapshot │ a rollback │ a removal │ a life: the machine opens a volume and works, snapshots are made
//!    ↑                                                                     and removed meanwhile, and its process ends or reads all back
//!    └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A clone, and a volume after a rollback, have a history of their own in [`Linear`]: it begins with the writes that the snapshot may
//! show. So a write that is lost, or one that comes back, is found in each of them, whatever happens to its parents. A volume that gets
//! shorter and longer again ([`cuts`]) has zeros behind the nearer end. A removed volume must
//! leave nothing behind once everything rests.
//!
//! Invariant: the dice are its own; a run without families is the same as before.

mod cuts;

use crate::check::linear::At;
use crate::client::ClientNode;
use crate::cluster::Cluster;
use crate::tenants::left_on;
use crate::workload::{Block, Pattern, Shape, Workload};
use ::client::ClientTuning;
use control::admin::{AdminAsk, CutAsk, VolumeClone, VolumeRemove};
use control::{Records, SnapshotState, VolumeState};
use simenv::World;
use std::ops::Range;
use std::time::Duration;
use types::rng::Rng;
use types::units::{CHUNK, SEGMENT};
use types::{GenerationId, Time, VolumeId};

/// Time between two looks at meta's records, and between two submissions of a command.
const LOOK: Duration = Duration::from_millis(50);
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A command that has no effect after this time was lost with its metadata server.
const LOST_AFTER: Duration = Duration::from_secs(8);
/// Changes of the volumes besides snapshots, rollbacks and clones.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    /// Clones are flattened.
    pub flattens: bool,
    /// Volumes get shorter, and longer again.
    pub shrinks: bool,
}

/// Most volumes, and most snapshots of one, at one time.
const LINES_MAX: usize = 3;
const SHOTS_MAX: usize = 3;
/// Bytes of each window of requests: all volumes have the first three at the same places.
const WINDOW: u64 = 64 << 10;

/// A history in [`crate::check::linear::Linear`], with those that it began from.
#[derive(Clone, Debug)]
struct History {
    key: u64,
    ancestors: Vec<u64>,
}

impl History {
    /// Returns a history that begins from this one.
    fn next(&self, key: u64) -> History {
        let ancestors = self.ancestors.iter().copied().chain([self.key]).collect();
        History { key, ancestors }
    }
}

/// A snapshot.
#[derive(Clone, Debug)]
struct Shot {
    /// `pool/volume@snapshot`.
    name: String,
    of: History,
    /// The command was submitted at the first time, and its end was seen at the last; [`At::MAX`] before.
    within: Range<At>,
    /// It is to be removed.
    goes: bool,
    asked_at: Time,
}

/// A volume.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    volume: VolumeId,
    len_bytes: u64,
    history: History,
    shots: Vec<Shot>,
    /// It shows blocks of a parent.
    is_clone: bool,
    /// All of it was read back at the end.
    is_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Choosing,
    Making {
        name: String,
        len_bytes: u64,
    },
    Cloning {
        line: usize,
        shot: String,
        name: String,
    },
    /// `before`: the newest number of the volume when the command was first submitted.
    Turning {
        line: usize,
        shot: String,
        before: Option<GenerationId>,
    },
    Living {
        line: usize,
        ends_at: Time,
    },
    Over,
}

/// A volume that is being removed.
struct Leaving {
    name: String,
    volume: VolumeId,
    at: Time,
    now: bool,
}

/// All volumes of the administrator, and the machine.
pub struct Families {
    rng: Rng,
    machine: usize,
    flattens: bool,
    shrinks: bool,
    /// The shrink that goes on.
    cut: Option<cuts::Cutting>,
    stage: Stage,
    at: Time,
    asked_at: Time,
    lines: Vec<Line>,
    leaving: Vec<Leaving>,
    removed: Vec<VolumeId>,
    closing: bool,
    /// Numbers of names, lives and rollbacks.
    next: u64,
    counts: Counts,
    failure: Option<String>,
}

/// Numbers of things that a run has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub clones: u64,
    pub rollbacks: u64,
    pub flattens: u64,
    pub shrinks: u64,
    pub lives: u64,
    /// Volumes that were read back or removed at the end.
    pub closed: u64,
}

impl Families {
    pub fn new(mut rng: Rng, machine: usize, now: Time, changes: Changes) -> Families {
        let Changes { flattens, shrinks } = changes;
        let at = now + Duration::from_millis(rng.below(300));
        Families {
            rng,
            machine,
            flattens,
            shrinks,
            cut: None,
            stage: Stage::Choosing,
            at,
            asked_at: Time::ZERO,
            lines: Vec::new(),
            leaving: Vec::new(),
            removed: Vec::new(),
            closing: false,
            next: 0,
            counts: Counts::default(),
            failure: None,
        }
    }

    /// Returns the machine that uses the volumes.
    pub fn machine(world: &World, tuning: ClientTuning, number: usize, rng: &mut Rng) -> ClientNode {
        let mut machine = ClientNode::new(world.add_node("families"), number, true, rng.fork());
        machine.tuning = tuning;
        machine
    }

    pub fn next(&self) -> Option<Time> {
        Some(self.at).filter(|at| *at != Time::NEVER)
    }

    /// Makes no more volumes: each is read back once more, and removed.
    pub fn close(&mut self, now: Time) {
        (self.closing, self.at) = (true, now);
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether all volumes are removed, and nothing of any is left.
    pub fn are_gone(&self, cluster: &Cluster) -> bool {
        self.stage == Stage::Over
            && self.leaving.is_empty()
            && self.removed.iter().all(|volume| left_on(cluster, *volume).is_none())
    }

    /// Describes the volumes, for a failure's text.
    pub fn describe(&self, cluster: &Cluster) -> String {
        let lines: Vec<String> =
            self.lines.iter().map(|l| format!("{} ({}) {:?}", l.name, l.volume, l.shots)).collect();
        let leaving: Vec<&str> = self.leaving.iter().map(|l| l.name.as_str()).collect();
        let left = self.removed.iter().find_map(|volume| left_on(cluster, *volume).map(|at| (volume, at)));
        format!("families: {:?}; {}; leaving {leaving:?}; left behind {left:?}", self.stage, lines.join(", "))
    }

    /// Returns the first thing that no consistent store does.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Acts if an action is due.
    pub fn act(&mut self, now: Time, cluster: &mut Cluster) {
        if self.at > now {
            return;
        }
        self.at = now + LOOK;
        let Some(records) = cluster.meta.records() else { return };
        for line in &mut self.lines {
            line.look(now, records, &mut self.failure);
            self.counts.flattens += u64::from(line.is_flat(records));
        }
        self.drop_shots(now, cluster);
        self.remove_lines(now, cluster);
        self.go_on_cutting(now, cluster);
        match self.stage.clone() {
            Stage::Choosing if self.cut.is_some() => self.choose_beside_cut(now, cluster),
            Stage::Choosing if self.closing => self.choose_last(now, cluster),
            Stage::Choosing => self.choose(now, cluster),
            Stage::Making { name, len_bytes } => self.make(now, name, len_bytes, cluster),
            Stage::Cloning { line, shot, name } => self.clone_shot(now, (line, &shot), name, cluster),
            Stage::Turning { line, shot, before } => self.turn_back(now, (line, &shot), before, cluster),
            Stage::Living { line, ends_at } => self.live(now, line, ends_at, cluster),
            Stage::Over => self.at = if self.leaving.is_empty() { Time::NEVER } else { now + LOOK },
        }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_to_ask(&mut self, now: Time) -> bool {
        let due = self.asked_at == Time::ZERO || now >= self.asked_at + ASK_AGAIN;
        if due {
            self.asked_at = now;
        }
        due
    }

    fn go_to(&mut self, stage: Stage) {
        (self.stage, self.asked_at) = (stage, Time::ZERO);
    }

    /// Chooses what comes next.
    fn choose(&mut self, now: Time, cluster: &mut Cluster) {
        let has_room = self.lines.len() < LINES_MAX;
        if self.lines.is_empty() || has_room && self.rng.chance(1, 12) {
            let name = format!("main/family{}", self.fresh());
            let len_bytes = if self.rng.chance(1, 2) { SEGMENT + CHUNK } else { 3 * CHUNK };
            return self.go_to(Stage::Making { name, len_bytes });
        }
        let line = self.rng.below(self.lines.len() as u64) as usize;
        let shot = self.some_shot(line);
        let kinds = 8 + u64::from(self.flattens) + 2 * u64::from(self.shrinks);
        match (self.rng.below(kinds), shot) {
            (9.., _) => drop(self.begin_cut(now, line, cluster)),
            (8, _) => self.flatten_some(cluster),
            (0..3, Some(shot)) if has_room => {
                let name = format!("main/family{}", self.fresh());
                self.go_to(Stage::Cloning { line, shot, name });
            }
            (3..6, Some(_)) => drop(self.begin_turn(line)),
            (6, _) if self.lines.len() == LINES_MAX => self.leave(now, line),
            _ => self.begin_life(now, line, cluster),
        }
    }

    /// Has a clone flattened, or has that stopped. It goes on while the machine works.
    fn flatten_some(&mut self, cluster: &mut Cluster) {
        let clones: Vec<String> =
            self.lines.iter().filter(|l| l.is_clone && l.shots.is_empty()).map(|l| l.name.clone()).collect();
        if clones.is_empty() {
            return;
        }
        let name = clones[self.rng.below(clones.len() as u64) as usize].clone();
        let cancel = self.rng.chance(1, 6);
        tracing::info!(name, cancel, "a clone is to be flattened");
        cluster.admin(AdminAsk::VolumeFlatten { name, cancel });
    }

    fn some_shot(&mut self, line: usize) -> Option<String> {
        let ready: Vec<String> = self.lines[line].ready().map(|shot| shot.name.clone()).collect();
        (!ready.is_empty()).then(|| ready[self.rng.below(ready.len() as u64) as usize].clone())
    }

    /// Begins a rollback, if the volume has a snapshot.
    fn begin_turn(&mut self, line: usize) -> bool {
        let Some(shot) = self.some_shot(line) else { return false };
        self.go_to(Stage::Turning { line, shot, before: None });
        true
    }

    /// Reads each volume back, and then removes all.
    fn choose_last(&mut self, now: Time, cluster: &mut Cluster) {
        if let Some(line) = self.lines.iter().position(|line| !line.is_read) {
            self.lines[line].is_read = true;
            return self.begin_life(now, line, cluster);
        }
        while !self.lines.is_empty() {
            let line = self.rng.below(self.lines.len() as u64) as usize;
            self.leave(now, line);
        }
        self.go_to(Stage::Over);
    }

    fn leave(&mut self, now: Time, line: usize) {
        let Line { name, volume, .. } = self.lines.remove(line);
        let (at, at_once) = (now + Duration::from_millis(self.rng.below(2000)), self.rng.chance(1, 2));
        self.leaving.push(Leaving { name, volume, at, now: at_once });
    }

    fn make(&mut self, now: Time, name: String, len_bytes: u64, cluster: &mut Cluster) {
        let Some(records) = cluster.meta.records() else { return };
        if let Ok(known) = records.volume(&name) {
            let history = History { key: known.id.0, ancestors: Vec::new() };
            let volume = known.id;
            let shots = Vec::new();
            self.lines.push(Line { name, volume, len_bytes, history, shots, is_clone: false, is_read: false });
            return self.go_to(Stage::Choosing);
        }
        if self.is_to_ask(now) {
            let stripe = cuts::some_stripe(self.shrinks.then_some(&mut self.rng), cluster);
            cluster.admin(AdminAsk::VolumeCreate { name, len_bytes, stripe, text: Default::default() });
        }
    }

    /// Makes a clone; its parent is not in use meanwhile, or is removed in this very time.
    fn clone_shot(&mut self, now: Time, (line, shot): (usize, &str), name: String, cluster: &mut Cluster) {
        let Some(records) = cluster.meta.records() else { return };
        let known = records.volume(&name).map(|known| (known.id, known.cloning));
        match known {
            Ok((_, true)) => {}
            Ok((volume, false)) => {
                let parent = &self.lines[line];
                let of = parent.shots.iter().find(|s| s.name == shot).expect("it is not removed meanwhile");
                cluster.linear.branch(volume.0, of.of.key, of.within.clone());
                let (history, len_bytes) = (of.of.next(volume.0), parent.len_bytes);
                tracing::info!(name, %volume, shot, of = of.of.key, within = ?of.within, "a clone is made");
                let shots = Vec::new();
                self.lines.push(Line { name, volume, len_bytes, history, shots, is_clone: true, is_read: false });
                self.counts.clones += 1;
                if self.flattens && self.rng.chance(1, 3) {
                    self.flatten_some(cluster);
                }
                self.go_to(Stage::Choosing);
            }
            Err(_) if self.is_to_ask(now) => {
                let ask = VolumeClone { snapshot: shot.to_owned(), name, ..VolumeClone::default() };
                cluster.admin(AdminAsk::VolumeClone(ask));
            }
            Err(_) => {}
        }
    }

    /// Turns a volume back. It is asked for again as long as meta knows nothing of it: one that is done must not be repeated.
    fn turn_back(
        &mut self,
        now: Time,
        (line, shot): (usize, &str),
        before: Option<GenerationId>,
        cluster: &mut Cluster,
    ) {
        let Some(records) = cluster.meta.records() else { return };
        let volume = self.lines[line].volume;
        let Some(known) = records.volumes.get(&volume) else { return };
        let is_cut = records.cut_of(volume).is_some() || self.lines[line].shots.iter().any(|s| !s.is_ready());
        match before {
            // A snapshot that is made names a number, too.
            None if is_cut => {}
            None => {
                let before = Some(known.newest);
                self.stage = Stage::Turning { line, shot: shot.to_owned(), before };
            }
            Some(before) if known.newest == before => {
                if self.is_to_ask(now) {
                    cluster.admin(AdminAsk::SnapshotRollback { name: shot.to_owned(), force: true });
                }
            }
            Some(_) if known.rollback.is_some() => {}
            Some(_) => self.turned_back(volume, (line, shot), cluster),
        }
    }

    fn turned_back(&mut self, volume: VolumeId, (line, shot): (usize, &str), cluster: &mut Cluster) {
        let key = volume.0 | self.fresh() << 40;
        let line = &mut self.lines[line];
        let of = line.shots.iter().find(|s| s.name == shot).expect("it is not removed meanwhile");
        tracing::info!(%volume, key, shot, of = of.of.key, within = ?of.within, "a volume has turned back");
        cluster.linear.branch(key, of.of.key, of.within.clone());
        line.history = of.of.next(key);
        self.counts.rollbacks += 1;
        let client = cluster.client(self.machine);
        client.hang_up();
        client.workload = None;
        self.go_to(Stage::Choosing);
    }

    fn begin_life(&mut self, now: Time, line: usize, cluster: &mut Cluster) {
        let life = Duration::from_millis(self.rng.between(50, 1000));
        let shape = Shape {
            pattern: Pattern::Random,
            len_bytes: self.lines[line].len_bytes,
            window: WINDOW,
            depth: self.rng.between(1, 6) as usize,
            sectors_max: [1, 16, 64][self.rng.below(3) as usize],
            read_pct: self.rng.between(10, 50),
            trim_pct: self.rng.between(0, 20),
            operations: self.rng.between(5, 100),
            forger: None,
            whole_blocks: false,
            whole_aus_pct: [0, 20][self.rng.below(2) as usize],
            may_be_full: false,
            spread: 0,
        };
        let number = self.fresh() << 8 | self.machine as u64;
        let Line { name, volume, history, .. } = &self.lines[line];
        let mut work = Block::on(name, volume.0, number, shape, self.rng.fork());
        work.go_on_from(history.key, &history.ancestors);
        if let Some(cut) = self.cut.as_mut().filter(|cut| cut.volume == *volume) {
            cut.cover(now, work.areas(), &mut cluster.linear);
            work.be_cut(cut.end);
        }
        if self.closing {
            work.limit(0);
        }
        let client = cluster.client(self.machine);
        client.begin(Box::new(work), if self.closing { Duration::ZERO } else { life });
        cluster.restart_reader(self.machine);
        self.counts.lives += 1;
        tracing::info!(volume = name, history = history.key, life = number, "the machine opens a volume");
        self.go_to(Stage::Living { line, ends_at: now + life });
    }

    fn live(&mut self, now: Time, line: usize, ends_at: Time, cluster: &mut Cluster) {
        let work = cluster.client(self.machine).workload.as_mut().expect("it was given one");
        if self.closing && !work.is_finishing() {
            work.limit(0);
            work.finish();
        }
        let (is_done, is_finishing) = (work.is_done(), work.is_finishing());
        let has_lost = cluster.client(self.machine).has_lost();
        if has_lost
            || is_finishing && is_done
            || !self.closing && !is_finishing && now >= ends_at && self.rng.chance(1, 2)
        {
            cluster.client(self.machine).hang_up();
            cluster.client(self.machine).workload = None;
            self.counts.closed += 1;
            return self.go_to(Stage::Choosing);
        }
        if is_finishing {
            return;
        }
        // The client is taken by surprise.
        if now >= ends_at && !self.closing && self.cut.is_none() && self.rng.chance(1, 4) && self.begin_turn(line) {
            let client = cluster.client(self.machine);
            if !client.is_open() {
                // An open that is still on its way would come behind the rollback.
                return client.hang_up();
            }
            client.workload.iter_mut().for_each(|work| work.be_surprised());
            return client.preempted();
        }
        if now >= ends_at {
            return cluster.client(self.machine).workload.iter_mut().for_each(|work| work.finish());
        }
        if self.cut.is_some() || self.shrinks && self.rng.chance(1, 4) && self.begin_cut(now, line, cluster) {
            return;
        }
        let taken = &mut self.lines[line];
        let known = cluster.meta.records().and_then(|records| records.volumes.get(&taken.volume));
        // It takes no snapshots during a flatten.
        let is_flattened = known.is_some_and(|known| known.flatten.is_some());
        if self.flattens && taken.is_clone && taken.shots.is_empty() && !is_flattened && self.rng.chance(1, 2) {
            // Copies then meet the writes of the machine.
            let name = taken.name.clone();
            tracing::info!(name, "a clone is to be flattened while it is used");
            cluster.admin(AdminAsk::VolumeFlatten { name, cancel: false });
        } else if taken.shots.len() < SHOTS_MAX && !is_flattened && self.rng.chance(1, 3) {
            let name = format!("{}@s{}", taken.name, self.next);
            self.next += 1;
            let within = now.0..At::MAX;
            let ask = CutAsk { names: vec![name.clone()], ..CutAsk::default() };
            taken.shots.push(Shot { name, of: taken.history.clone(), within, goes: false, asked_at: now });
            cluster.admin(AdminAsk::SnapshotCreate(ask));
        } else if taken.ready().count() > 1 && self.rng.chance(1, 16) {
            let n = self.rng.below(taken.shots.len() as u64) as usize;
            let shot = &mut taken.shots[n];
            (shot.goes, shot.asked_at) = (shot.is_ready(), Time::ZERO);
        }
    }

    /// Has snapshots removed that are to go, with or without clones.
    fn drop_shots(&mut self, now: Time, cluster: &mut Cluster) {
        for shot in self.lines.iter_mut().flat_map(|line| &mut line.shots).filter(|shot| shot.goes) {
            if shot.asked_at == Time::ZERO || now >= shot.asked_at + ASK_AGAIN {
                shot.asked_at = now;
                cluster.admin(AdminAsk::SnapshotRemove { name: shot.name.clone(), detach: true });
            }
        }
    }

    /// Has volumes removed that are to go, at once or by way of the trash.
    fn remove_lines(&mut self, now: Time, cluster: &mut Cluster) {
        let mut all = std::mem::take(&mut self.leaving);
        all.retain_mut(|leaving| {
            let Some(known) = cluster.meta.records().map(|records| records.volumes.get(&leaving.volume)) else {
                return true;
            };
            let Some(state) = known.map(|known| known.state) else {
                self.removed.push(leaving.volume);
                self.counts.closed += 1;
                return false;
            };
            if now >= leaving.at {
                leaving.at = now + ASK_AGAIN;
                let name = leaving.name.clone();
                cluster.admin(match state {
                    VolumeState::Trashed => AdminAsk::TrashPurge { which: leaving.volume.0.to_string() },
                    _ => AdminAsk::VolumeRemove(VolumeRemove {
                        name,
                        force: true,
                        now: leaving.now,
                        snapshots: leaving.now,
                        detach: leaving.now,
                    }),
                });
            }
            true
        });
        self.leaving = all;
    }
}

impl Line {
    fn ready(&self) -> impl Iterator<Item = &Shot> {
        self.shots.iter().filter(|shot| shot.is_ready() && !shot.goes)
    }

    /// Whether it is seen for the first time that the volume needs its parent no longer.
    fn is_flat(&mut self, records: &Records) -> bool {
        let known = records.volumes.get(&self.volume);
        let is_flat = self.is_clone && known.is_some_and(|known| known.clone_of.is_none());
        self.is_clone &= !is_flat;
        is_flat
    }

    /// Takes note of the records.
    fn look(&mut self, now: Time, records: &Records, failure: &mut Option<String>) {
        let found = |shot: &Shot| {
            let own = shot.name.rsplit_once('@').map_or("", |(_, own)| own);
            records.snapshots_of(self.volume).find(|s| s.name == own).map(|s| s.state)
        };
        self.shots.retain_mut(|shot| match found(shot) {
            Some(SnapshotState::Ready) => {
                if !shot.is_ready() {
                    tracing::info!(shot.name, history = shot.of.key, "a snapshot is ready");
                }
                shot.within.end = shot.within.end.min(now.0);
                true
            }
            Some(SnapshotState::Deleting) => false,
            None if shot.goes => false,
            None if shot.is_ready() => {
                failure.get_or_insert(format!("{} was ready, and is gone", shot.name));
                false
            }
            None if now >= shot.asked_at + LOST_AFTER => false,
            Some(SnapshotState::Cutting) | None => true,
        });
    }
}

impl Shot {
    fn is_ready(&self) -> bool {
        self.within.end != At::MAX
    }
}
