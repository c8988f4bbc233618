//! An OSD that is lost for good: its process is killed, its device is removed, and `osd replace` makes another one in its
//! place.
//!
//! The loss is over when the record of the old OSD is gone: then every replica of it has a whole successor.
//!
//! Invariant: one device is lost at a time, and the next one only after a round has ended with every PG whole. The other
//! steps that destroy data run between rounds. A drained OSD serves until its replicas are whole elsewhere. So each PG
//! keeps the devices of a majority of its members.

use super::faults::Undo;
use super::points::Who;
use super::{HEAL_MAX, Storm};
use crate::clock;
use crate::cluster::OSD_ID_MAX;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// The loss of this round.
pub(super) struct Lost {
    old: u32,
    since: Instant,
    /// The OSD that takes over, when its process was started.
    pub(super) new: Option<u32>,
    /// Error of the last `osd replace`.
    refused: String,
}

/// Completed losses, for the report: the time from each loss until the old record was gone.
#[derive(Default)]
pub(super) struct Losses(pub(super) Vec<Duration>);

impl Storm {
    /// Loses an OSD for good; `None` when this round has lost one, or no id is left.
    pub(super) fn lose(&mut self, osd: u32) -> Result<Option<(Undo, u64)>> {
        if self.lost.is_some() || self.cluster.ids().last() >= Some(&(OSD_ID_MAX - 1)) {
            return Ok(None);
        }
        self.cluster.lose_osd(osd)?;
        self.forget(osd);
        if let Some(disks) = &mut self.slow {
            disks.remove(osd);
        }
        if let Some(net) = &mut self.cluster.net {
            net.remove(osd);
        }
        self.lost = Some(Lost { old: osd, since: clock::now(), new: None, refused: String::new() });
        Ok(Some((Undo::Replace(osd), self.rng.between(0, 8000))))
    }

    /// Formats and starts the OSD that takes over. Returns `false` when meta does not take the command now.
    pub(super) fn replace(&mut self, old: u32) -> Result<bool> {
        if self.meta_is_away() {
            return Ok(false);
        }
        let made = self.cluster.format_osd(&["replace", &old.to_string()]);
        let lost = self.lost.as_mut().context("only a lost OSD is replaced")?;
        let new = match made {
            Ok(new) => new,
            Err(error) => {
                lost.refused = format!("{error:#}");
                return Ok(false);
            }
        };
        lost.new = Some(new);
        let file = self.cluster.device(new);
        let device = match &mut self.slow {
            Some(disks) => disks.add(new, &file)?,
            None => file.display().to_string(),
        };
        self.cluster.insert_osd(new, &device)?;
        self.start(Who::Osd(new), None)?;
        Ok(true)
    }

    /// Waits until the record of the lost OSD is gone.
    pub(super) fn wait_replaced(&mut self) -> Result<()> {
        let Some(lost) = &self.lost else { return Ok(()) };
        let Some(new) = lost.new else { bail!("osd.{} was not replaced: {}", lost.old, lost.refused) };
        let what = format!("the record of osd.{} to be gone, which osd.{new} replaces", lost.old);
        let mut last = String::new();
        let gone = clock::wait_until(&what, HEAL_MAX, || {
            let Ok(list) = self.cluster.basalt.json(&["osd", "ls"]) else { return Ok(false) };
            last = list["osds"].to_string();
            let osds = list["osds"].as_array().context("osds")?;
            Ok(osds.iter().all(|osd| osd["osd"] != lost.old))
        });
        gone.with_context(|| last)?;
        self.losses.0.push(lost.since.elapsed());
        Ok(())
    }
}
