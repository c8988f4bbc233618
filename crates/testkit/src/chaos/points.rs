//! Daemons that die at a failpoint: each is restarted with one armed, and watched until it has died there.
//!
//! Input: the daemon to arm. Output: how often each point was armed and how often it struck. A daemon that died without
//! an armed failpoint is a fault, as everywhere.
//!
//! Invariant: every daemon that is listed here runs with a failpoint; after [`Storm::disarm`] the daemon does not.

use super::Storm;
use super::faults::{Active, Kind, Undo};
use crate::procs::Proc;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use types::failpoint::{By, Point, REGISTRY};

const SIGABRT: i32 = 6;
const MS: u64 = 1_000_000;

/// A daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Osd(u32),
    Meta,
}

/// The armed failpoints, and their counts.
#[derive(Debug, Default)]
pub struct Points {
    armed: BTreeMap<Who, Point>,
    /// How often each point was armed, and how often a daemon died at it.
    counts: BTreeMap<Point, (u64, u64)>,
}

impl Points {
    /// Prints one line for each point.
    pub fn print(&self) {
        for (point, (armed, died)) in &self.counts {
            let name = point.row().name;
            println!("  failpoint {name:<34} {died:>6}  of {armed} times armed");
        }
    }

    /// Forgets a daemon that is gone.
    pub(super) fn forget(&mut self, who: Who) {
        self.armed.remove(&who);
    }

    pub(super) fn is_armed(&self, who: Who) -> bool {
        self.armed.contains_key(&who)
    }
}

impl Storm {
    pub(super) fn proc(&mut self, who: Who) -> &mut Proc {
        match who {
            Who::Osd(n) => self.cluster.osd(n),
            Who::Meta => &mut self.cluster.metas[0],
        }
    }

    /// Starts a daemon that does not run; with a point, it dies at that pass of the point.
    pub(super) fn start(&mut self, who: Who, point: Option<(Point, u64)>) -> Result<()> {
        let env = point.map(|(point, nth)| ("BASALT_FAILPOINT", format!("{}:{nth}", point.row().name)));
        let proc = self.proc(who);
        proc.env = env.into_iter().collect();
        proc.start()?;
        let pid = proc.pid();
        self.points.armed.remove(&who);
        if let Some((point, _)) = point {
            self.points.armed.insert(who, point);
            self.points.counts.entry(point).or_default().0 += 1;
        }
        match (who, &self.slow) {
            (Who::Osd(n), Some(disks)) => disks.enter(n, pid),
            _ => Ok(()),
        }
    }

    /// Draws a point for a running daemon and restarts the daemon with it; `None` when the daemon does not run.
    pub(super) fn arm(&mut self, who: Who) -> Result<Option<(Undo, u64)>> {
        if self.proc(who).pid().is_none() || self.points.is_armed(who) {
            return Ok(None);
        }
        let by = if who == Who::Meta { By::Meta } else { By::Osd };
        let points: Vec<Point> = REGISTRY.iter().filter(|row| row.by == by).map(|row| row.point).collect();
        let point = points[self.rng.below(points.len() as u64) as usize];
        let nth = match point {
            // These points are passed many times a second.
            Point::LogWritten | Point::LogDurable | Point::RepliesReady => {
                let most = 1 << self.rng.below(9);
                self.rng.between(1, most)
            }
            _ => 1,
        };
        self.proc(who).kill();
        self.start(who, Some((point, nth)))?;
        Ok(Some((Undo::Disarm(who), self.rng.between(2000, 8000))))
    }

    /// Kills a daemon that is still armed, and starts it without a failpoint.
    pub(super) fn disarm(&mut self, who: Who) -> Result<()> {
        if !self.points.is_armed(who) || self.bury(who)? {
            return Ok(());
        }
        self.proc(who).kill();
        self.start(who, None)
    }

    /// Whether an armed daemon has died at its failpoint; it is started again after a while.
    pub(super) fn bury(&mut self, who: Who) -> Result<bool> {
        if !self.has_died(who)? {
            return Ok(false);
        }
        let (kind, undo) = match who {
            Who::Osd(n) => (Kind::FailOsd, Undo::StartOsd(n)),
            Who::Meta => (Kind::FailMeta, Undo::StartMeta),
        };
        self.tally.entry(kind).or_default().count += 1;
        let (from, down) = (self.now(), self.rng.between(0, 2500));
        self.active.push(Active { kind, from, until: from + down * MS, undo });
        Ok(true)
    }

    /// Whether an armed daemon has died at its failpoint; then it is reaped and counted.
    ///
    /// # Errors
    /// The daemon ended in another way.
    pub(super) fn has_died(&mut self, who: Who) -> Result<bool> {
        let proc = self.proc(who);
        if proc.pid().is_none() || proc.is_alive() {
            return Ok(false);
        }
        let (status, tail, name) = (proc.reap(), proc.log_tail(8), proc.spec.name.clone());
        let point = self.points.armed.remove(&who);
        match (point, status.and_then(|status| status.signal())) {
            (Some(point), Some(SIGABRT)) => self.points.counts.entry(point).or_default().1 += 1,
            _ => bail!("{name} ended ({status:?}); its log ends with:\n{tail}"),
        }
        Ok(true)
    }
}
