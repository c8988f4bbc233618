//! Daemons that die at a failpoint: started anew with one armed, and looked for until they have died at it.
//!
//! Comes in: whom to arm; goes out: how often each point was armed and how often it struck. A process that died
//! by itself without having been armed is a fault, as everywhere.
//!
//! Invariant: whoever is listed here runs with a failpoint; after [`Storm::disarm`] nobody does.

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

/// What has been armed, and what came of it.
#[derive(Debug, Default)]
pub struct Points {
    armed: BTreeMap<Who, Point>,
    /// Times armed, times died.
    counts: BTreeMap<Point, (u64, u64)>,
}

impl Points {
    /// One line a point.
    pub fn print(&self) {
        for (point, (armed, died)) in &self.counts {
            let name = point.row().name;
            println!("  failpoint {name:<34} {died:>6}  of {armed} times armed");
        }
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

    /// Starts a daemon that does not run; with a point, it dies at that pass of it.
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

    /// Draws a point for a running daemon and starts it anew with that; `None` when it does not run.
    pub(super) fn arm(&mut self, who: Who) -> Result<Option<(Undo, u64)>> {
        if self.proc(who).pid().is_none() || self.points.is_armed(who) {
            return Ok(None);
        }
        let by = if who == Who::Meta { By::Meta } else { By::Osd };
        let points: Vec<Point> = REGISTRY.iter().filter(|row| row.by == by).map(|row| row.point).collect();
        let point = points[self.rng.below(points.len() as u64) as usize];
        let nth = match point {
            // Passed many times a second.
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

    /// Whoever is still armed is killed and started without.
    pub(super) fn disarm(&mut self, who: Who) -> Result<()> {
        if !self.points.is_armed(who) || self.bury(who)? {
            return Ok(());
        }
        self.proc(who).kill();
        self.start(who, None)
    }

    /// Whether an armed daemon has died of its failpoint; it comes back after a while.
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

    /// Whether an armed daemon has died of its failpoint; then it is reaped and counted.
    ///
    /// # Errors
    /// When it ended in another way.
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
