//! The faults of a storm: the effect of each, its duration, and how it is undone.
//!
//! A round draws a subset of the kinds (swarm testing) and then faults of these kinds, one after another, some at the
//! same time. Only the loss of a device ([`super::lost`]) takes back what a disk has acknowledged. Any number of processes may
//! die.
//!
//! Invariant: after [`Storm::heal`] nothing is cut, stopped, slow or down.

use super::netns::Loss;
use super::points::Who;
use super::proxy::{Effect, End, Rule, RuleId};
use super::{Storm, volume::Volume};
use crate::procs::Proc;
use anyhow::Result;
use types::rng::Rng;

const MS: u64 = 1_000_000;
/// Number of faults that may be active at the same time.
const ACTIVE_MAX: usize = 4;
/// Time until a command is tried again that meta did not take.
const AGAIN_MS: u64 = 300;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Delay,
    Trickle,
    CutOneWay,
    CutOff,
    Reset,
    HalfClose,
    Silence,
    Flip,
    Duplicate,
    Garbage,
    Reorder,
    MetaDelay,
    MetaCut,
    MetaReset,
    MetaSilence,
    NetCut,
    NetLoss,
    KillOsd,
    TermOsd,
    KillMeta,
    KillAll,
    FailOsd,
    FailMeta,
    KillClient,
    Steal,
    StopOsd,
    StopMeta,
    StopClient,
    SlowDisk,
    DrainOsd,
    ReplaceOsd,
}

impl Kind {
    pub const ALL: &[Kind] = &[
        Kind::Delay,
        Kind::Trickle,
        Kind::CutOneWay,
        Kind::CutOff,
        Kind::Reset,
        Kind::HalfClose,
        Kind::Silence,
        Kind::Flip,
        Kind::Duplicate,
        Kind::Garbage,
        Kind::Reorder,
        Kind::MetaDelay,
        Kind::MetaCut,
        Kind::MetaReset,
        Kind::MetaSilence,
        Kind::NetCut,
        Kind::NetLoss,
        Kind::KillOsd,
        Kind::TermOsd,
        Kind::KillMeta,
        Kind::KillAll,
        Kind::FailOsd,
        Kind::FailMeta,
        Kind::KillClient,
        Kind::Steal,
        Kind::StopOsd,
        Kind::StopMeta,
        Kind::StopClient,
        Kind::SlowDisk,
        Kind::DrainOsd,
        Kind::ReplaceOsd,
    ];

    /// Returns the kind in words, for the report.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Delay => "delay and jitter between two ends",
            Kind::Trickle => "bytes trickle",
            Kind::CutOneWay => "one-way cut (bytes held)",
            Kind::CutOff => "an OSD cut off, both ways",
            Kind::Reset => "connection ends inside a frame",
            Kind::HalfClose => "half of a connection closed",
            Kind::Silence => "half-open: bytes vanish without an error",
            Kind::Flip => "a bit flipped on the wire",
            Kind::Duplicate => "bytes repeated on the wire",
            Kind::Garbage => "noise inserted on the wire",
            Kind::Reorder => "bytes reordered on the wire",
            Kind::MetaDelay => "meta far away",
            Kind::MetaCut => "meta cut off",
            Kind::MetaReset => "connections to meta end",
            Kind::MetaSilence => "half-open connections to meta",
            Kind::NetCut => "packets dropped one way (nftables)",
            Kind::NetLoss => "some packets dropped one way (nftables)",
            Kind::KillOsd => "kill -9 of an OSD",
            Kind::TermOsd => "SIGTERM of an OSD",
            Kind::KillMeta => "kill -9 of meta",
            Kind::KillAll => "kill -9 of all daemons at once",
            Kind::FailOsd => "an OSD dies at a failpoint",
            Kind::FailMeta => "meta dies at a failpoint",
            Kind::KillClient => "kill -9 of a client",
            Kind::Steal => "a second writer steals",
            Kind::StopOsd => "SIGSTOP of an OSD",
            Kind::StopMeta => "SIGSTOP of meta",
            Kind::StopClient => "SIGSTOP of a client, preempted meanwhile",
            Kind::SlowDisk => "slow disk",
            Kind::DrainOsd => "an OSD drained or out, and in again",
            Kind::ReplaceOsd => "a device lost, and its OSD replaced",
        }
    }

    /// Draws a subset for one round.
    pub fn swarm(rng: &mut Rng, without: &[Kind]) -> Vec<Kind> {
        loop {
            let known = Kind::ALL.iter().copied().filter(|kind| !without.contains(kind));
            let some: Vec<Kind> = known.filter(|_| rng.chance(1, 3)).collect();
            if some.len() >= 4 {
                return some;
            }
        }
    }
}

/// The action that undoes a fault.
pub(super) enum Undo {
    Nothing,
    Rules(Vec<RuleId>),
    StartOsd(u32),
    StartMeta,
    StartAll,
    StartClient(usize),
    ContOsd(u32),
    ContMeta,
    /// Sends SIGCONT to the stopped client of a volume, by its pid.
    ContClient(u32),
    Fast(u32),
    HealNet(u32),
    PutIn(u32),
    /// Replaces an OSD that was lost for good.
    Replace(u32),
    /// Restarts a daemon without its failpoint, unless it has died by then.
    Disarm(Who),
}

impl Undo {
    /// Whether the action is about this OSD alone.
    fn is_of(&self, osd: u32) -> bool {
        match self {
            Undo::StartOsd(of) | Undo::ContOsd(of) | Undo::Fast(of) | Undo::HealNet(of) | Undo::PutIn(of) => *of == osd,
            Undo::Disarm(who) => *who == Who::Osd(osd),
            _ => false,
        }
    }
}

/// A fault that is active.
pub(super) struct Active {
    pub kind: Kind,
    pub from: u64,
    pub until: u64,
    pub undo: Undo,
}

impl Storm {
    /// Starts one fault of these kinds.
    pub(super) fn strike(&mut self, kinds: &[Kind]) -> Result<()> {
        if self.active.len() >= ACTIVE_MAX {
            return Ok(());
        }
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        let now = self.now();
        let Some((undo, ms)) = self.start_fault(kind)? else { return Ok(()) };
        // An armed daemon counts only when it has died.
        if !matches!(undo, Undo::Disarm(_)) {
            self.tally.entry(kind).or_default().count += 1;
        }
        self.active.push(Active { kind, from: now, until: now + ms * MS, undo });
        Ok(())
    }

    /// Starts a fault. Returns its undo action and its duration in milliseconds; `None` when it is impossible now.
    fn start_fault(&mut self, kind: Kind) -> Result<Option<(Undo, u64)>> {
        use Kind as K;
        let osd = self.any_osd();
        Ok(match kind {
            K::Delay | K::Trickle | K::CutOneWay | K::CutOff | K::MetaDelay | K::MetaCut => {
                Some(self.weather(kind, osd))
            }
            K::Reset | K::HalfClose | K::Silence | K::Flip | K::Duplicate | K::Garbage | K::Reorder => {
                Some(self.blow(kind))
            }
            K::MetaReset | K::MetaSilence => Some(self.blow(kind)),
            K::NetCut | K::NetLoss => self.lose_packets(kind, osd)?,
            K::KillOsd | K::TermOsd | K::StopOsd | K::SlowDisk => self.hurt_osd(kind, osd)?,
            K::FailOsd => self.arm(Who::Osd(osd))?,
            K::FailMeta => self.arm_meta()?,
            K::KillMeta if self.cluster.metas[0].pid().is_some() => {
                self.cluster.metas[0].kill();
                Some((Undo::StartMeta, self.rng.between(0, 2500)))
            }
            K::StopMeta if self.cluster.metas[0].pid().is_some() => {
                self.cluster.metas[0].signal("STOP")?;
                Some((Undo::ContMeta, self.rng.between(100, 4000)))
            }
            K::KillAll => {
                let (metas, osds) = (&mut self.cluster.metas, &mut self.cluster.osds);
                metas.iter_mut().chain(osds.values_mut()).for_each(Proc::kill_async);
                metas.iter_mut().chain(osds.values_mut()).for_each(|proc| {
                    proc.reap();
                });
                Some((Undo::StartAll, self.rng.between(0, 800)))
            }
            K::KillClient | K::Steal | K::StopClient => {
                let volume = self.rng.below(self.volumes.len() as u64) as usize;
                self.hurt_client(kind, volume)?
            }
            K::DrainOsd => self.drain(osd),
            K::ReplaceOsd => self.lose(osd)?,
            K::KillMeta | K::StopMeta => None,
        })
    }

    fn rules(&self, rules: impl IntoIterator<Item = Rule>) -> Undo {
        let sky = self.cluster.sky.as_ref().expect("a storm has proxies");
        Undo::Rules(rules.into_iter().map(|rule| sky.add(rule)).collect())
    }

    /// Starts a fault of the network that lasts.
    fn weather(&mut self, kind: Kind, osd: u32) -> (Undo, u64) {
        let here = Some(End::Osd(osd));
        let other = match self.rng.below(4) {
            0 => Some(End::Client),
            1 => None,
            _ => {
                let others: Vec<u32> = self.cluster.ids().into_iter().filter(|id| *id != osd).collect();
                Some(End::Osd(others[self.rng.below(others.len() as u64) as usize]))
            }
        };
        let ms = self.rng.between(1, 60);
        let delay = Effect::Delay { ms, jitter_ms: self.rng.between(0, 2 * ms) };
        let rule = |from, to, effect| Rule { from, to, effect, times: u32::MAX };
        let both = |a, b, effect| [rule(a, b, effect), rule(b, a, effect)];
        let meta = Some(End::Meta);
        let long = self.rng.between(200, 4000);
        match kind {
            Kind::Delay => (self.rules(both(here, other, delay)), long),
            Kind::Trickle => (self.rules(both(here, other, Effect::Trickle)), long / 2),
            Kind::CutOneWay if self.rng.chance(1, 2) => (self.rules([rule(here, other, Effect::Hold)]), long),
            Kind::CutOneWay => (self.rules([rule(other, here, Effect::Hold)]), long),
            Kind::CutOff => (self.rules(both(here, None, Effect::Hold)), long),
            Kind::MetaDelay => (self.rules(both(meta, None, delay)), long),
            _ => (self.rules(both(meta, None, Effect::Hold)), long),
        }
    }

    /// Starts a fault that strikes some pieces of a stream and is over.
    fn blow(&mut self, kind: Kind) -> (Undo, u64) {
        let effect = match kind {
            Kind::Reset | Kind::MetaReset => Effect::Reset,
            Kind::HalfClose => Effect::HalfClose,
            Kind::Silence | Kind::MetaSilence => Effect::Silence,
            Kind::Flip => Effect::Flip,
            Kind::Duplicate => Effect::Duplicate,
            Kind::Garbage => Effect::Garbage,
            _ => Effect::Reorder,
        };
        let ends = if matches!(kind, Kind::MetaReset | Kind::MetaSilence) {
            if self.rng.chance(1, 2) { (Some(End::Meta), None) } else { (None, Some(End::Meta)) }
        } else {
            let osd = Some(End::Osd(self.any_osd()));
            let client = self.rng.chance(1, 3).then_some(End::Client);
            if self.rng.chance(1, 2) { (osd, client) } else { (client, osd) }
        };
        let times = 1 + self.rng.below(3) as u32;
        (self.rules([Rule { from: ends.0, to: ends.1, effect, times }]), 1000)
    }

    /// Drops the packets of one OSD, all or some, one way; `None` while another such fault lasts there.
    fn lose_packets(&mut self, kind: Kind, osd: u32) -> Result<Option<(Undo, u64)>> {
        let busy = self.active.iter().any(|fault| matches!(fault.undo, Undo::HealNet(n) if n == osd));
        let lower = self.cluster.ids().into_iter().filter(|id| *id < osd);
        let dials: Vec<u16> = lower.chain([0]).map(|n| self.cluster.proxy_addr(n).port()).collect();
        let Some(net) = self.cluster.net.as_ref().filter(|_| !busy) else { return Ok(None) };
        let percent = if kind == Kind::NetCut { 100 } else { self.rng.between(5, 40) as u8 };
        net.lose(osd, Loss::draw(&mut self.rng, &dials, percent))?;
        Ok(Some((Undo::HealNet(osd), self.rng.between(200, 5000))))
    }

    fn hurt_osd(&mut self, kind: Kind, osd: u32) -> Result<Option<(Undo, u64)>> {
        if self.cluster.osd(osd).pid().is_none() {
            return Ok(None);
        }
        Ok(Some(match kind {
            Kind::KillOsd => {
                self.cluster.osd(osd).kill();
                (Undo::StartOsd(osd), self.rng.between(0, 3000))
            }
            Kind::TermOsd => {
                // A stopped process gets the signal when it continues. The kill is for a process that ignores the
                // signal.
                let proc = self.cluster.osd(osd);
                let _ = proc.signal("CONT");
                proc.signal("TERM")?;
                let _ = proc.finish(std::time::Duration::from_secs(5));
                (Undo::StartOsd(osd), self.rng.between(0, 2000))
            }
            Kind::StopOsd => {
                self.cluster.osd(osd).signal("STOP")?;
                (Undo::ContOsd(osd), self.rng.between(50, 4000))
            }
            _ => {
                let Some(disks) = &self.slow else { return Ok(None) };
                let kib_per_s = 64 << self.rng.below(6);
                disks.limit(osd, kib_per_s << 10)?;
                (Undo::Fast(osd), self.rng.between(500, 4000))
            }
        }))
    }

    /// Drains an OSD, or puts it out; `None` while no metadata server takes the command.
    fn drain(&mut self, osd: u32) -> Option<(Undo, u64)> {
        let intent = ["drain", "out"][self.rng.below(2) as usize];
        let ms = self.rng.between(300, 12_000);
        let done = !self.meta_is_away() && self.cluster.basalt.run(&["osd", intent, &osd.to_string()]).is_ok();
        done.then_some((Undo::PutIn(osd), ms))
    }

    /// Whether the metadata server is stopped or does not run, so that no command may be tried.
    pub(super) fn meta_is_away(&self) -> bool {
        let stopped = self.active.iter().any(|fault| matches!(fault.undo, Undo::ContMeta));
        stopped || self.cluster.metas[0].pid().is_none()
    }

    /// Gives up the undo actions of an OSD that is gone; its faults end with it.
    pub(super) fn forget(&mut self, osd: u32) {
        self.points.forget(Who::Osd(osd));
        for fault in self.active.iter_mut().filter(|fault| fault.undo.is_of(osd)) {
            fault.undo = Undo::Nothing;
        }
    }

    /// Arms meta, and lets a preempting client make it commit a record.
    fn arm_meta(&mut self) -> Result<Option<(Undo, u64)>> {
        let armed = self.arm(Who::Meta)?;
        let volume = self.rng.below(self.volumes.len() as u64) as usize;
        let (left, metas, seed) = (self.millis_left(), self.cluster.metas_for_daemons(), self.rng.next_u64());
        if armed.is_some() && self.volumes[volume].pid().is_some() {
            self.volumes[volume].start(&metas, seed, left)?;
        }
        Ok(armed)
    }

    fn hurt_client(&mut self, kind: Kind, volume: usize) -> Result<Option<(Undo, u64)>> {
        let left = self.millis_left();
        let metas = self.cluster.metas_for_daemons();
        let seed = self.rng.next_u64();
        let pause = self.rng.between(200, 3000);
        let steal = |volume: &mut Volume| volume.start(&metas, seed, left);
        let volume_of = &mut self.volumes[volume];
        let Some(pid) = volume_of.pid() else { return Ok(None) };
        Ok(Some(match kind {
            Kind::KillClient => {
                volume_of.kill()?;
                (Undo::StartClient(volume), pause / 3)
            }
            Kind::Steal => {
                steal(volume_of)?;
                (Undo::Nothing, 500)
            }
            _ => {
                volume_of.signal("STOP")?;
                if self.rng.chance(1, 2) {
                    steal(volume_of)?;
                }
                (Undo::ContClient(pid), pause)
            }
        }))
    }

    /// Undoes the faults that are due, or all of them.
    pub(super) fn expire(&mut self, all: bool) -> Result<()> {
        let now = self.now();
        let (due, rest): (Vec<Active>, Vec<Active>) =
            std::mem::take(&mut self.active).into_iter().partition(|fault| all || fault.until <= now);
        self.active = rest;
        for fault in due {
            let counted = !matches!(fault.undo, Undo::Disarm(_));
            if let Undo::Replace(old) = fault.undo {
                if self.replace(old)? {
                    self.past.push((fault.kind, fault.from, self.now()));
                } else {
                    self.active.push(Active { until: self.now() + AGAIN_MS * MS, ..fault });
                }
                continue;
            }
            self.undo(fault.undo)?;
            if counted {
                self.past.push((fault.kind, fault.from, self.now()));
            }
        }
        Ok(())
    }

    fn undo(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Nothing | Undo::Replace(_) => {}
            Undo::Rules(ids) => {
                let sky = self.cluster.sky.as_ref().expect("a storm has proxies");
                ids.into_iter().for_each(|id| sky.remove(id));
            }
            Undo::StartOsd(osd) => self.start_osd(osd)?,
            Undo::StartMeta => self.start_meta()?,
            Undo::Disarm(who) => self.disarm(who)?,
            Undo::HealNet(osd) => {
                if let Some(net) = &self.cluster.net {
                    net.heal(osd)?;
                }
            }
            // Without a metadata server it stays as it is until the storm is over.
            Undo::PutIn(osd) if self.cluster.metas[0].pid().is_some() => {
                let _ = self.cluster.basalt.run(&["osd", "in", &osd.to_string()]);
            }
            Undo::PutIn(_) => {}
            Undo::StartAll => {
                self.start_meta()?;
                self.cluster.ids().into_iter().try_for_each(|osd| self.start_osd(osd))?;
            }
            Undo::StartClient(volume) => {
                let (left, metas, seed) = (self.millis_left(), self.cluster.metas_for_daemons(), self.rng.next_u64());
                if self.volumes[volume].pid().is_none() {
                    self.volumes[volume].start(&metas, seed, left)?;
                }
            }
            // A process that died or was restarted meanwhile is not stopped any more.
            Undo::ContOsd(osd) => drop(self.cluster.osd(osd).signal("CONT")),
            Undo::ContMeta => drop(self.cluster.metas[0].signal("CONT")),
            Undo::ContClient(pid) => self.volumes.iter().for_each(|volume| volume.go_on(pid)),
            Undo::Fast(osd) => {
                if let Some(disks) = &self.slow {
                    disks.limit(osd, 0)?;
                }
            }
        }
        Ok(())
    }
}
