//! A volume that a restore or an import fills.
//!
//! A label marks it until it has all, and says what it gets. Now and then, and when the command is interrupted, a snapshot is made whose
//! label says up to which byte it has that: a *note*. The same command goes on from there.
//!
//! Invariants:
//! - The command writes to contents that are proven: those of a new or emptied volume, or of a snapshot to which it was rolled back.
//! - A note stays true, also when another client has had the volume since. Its label is written when no other client had it before the snapshot was made.

use super::volume::New;
use super::{RESTORING, failed, refused};
use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::remark;
use anyhow::Result;
use backup::{Subject, Target};
use clientthread::{Access, Cluster};
use control::admin::{SnapshotChange, SnapshotView, VolumeText, VolumeView};
use std::collections::BTreeMap;
use types::codes;

/// The volume, and what it gets.
pub struct Filling<'a> {
    pub admin: &'a Admin,
    /// `POOL/VOLUME`.
    pub name: &'a str,
    /// Names what the volume gets, and what it has before.
    pub mark: String,
}

/// A volume that is open, and ready to be written.
pub struct Begun {
    pub target: New,
    /// It has its contents up to here.
    pub done_bytes: u64,
}

fn text(label: String) -> VolumeText {
    VolumeText { labels: BTreeMap::from([(RESTORING.to_owned(), label)]), ..VolumeText::default() }
}

/// Returns the mark of a volume that is being filled.
pub fn marked(volume: &VolumeView) -> Option<&str> {
    volume.labels.get(RESTORING).filter(|_| volume.state == "ready").map(String::as_str)
}

impl Filling<'_> {
    /// Whether the volume is one with which this goes on.
    pub fn is_begun(&self, volume: &VolumeView) -> bool {
        marked(volume) == Some(&self.mark)
    }

    pub fn refusal(&self, code: u32, what: &str, next: impl std::fmt::Display) -> anyhow::Error {
        UserError::new(code, format!("{} {what}", self.name), next.to_string()).into()
    }

    /// Makes a volume for all of the contents, or goes on with the one that was begun. `drop` names more snapshots that are to go.
    pub fn begin(&self, cluster: &Cluster, subject: &Subject, drop: impl Fn(&SnapshotView) -> bool) -> Result<Begun> {
        let there = self.admin.volume(self.name)?.filter(|volume| self.is_begun(volume));
        if there.is_none() {
            // The mark alone: the labels of the volume may be as many as one can have.
            let stripe = subject.stripe.unwrap_or_default();
            self.admin.create_volume(self.name, subject.len_bytes, stripe, text(self.mark.clone()))?;
        }
        if there.is_some_and(|volume| volume.len_bytes != subject.len_bytes) {
            let next = format!("basalt volume rm {} --now --snapshots, then again", self.name);
            return Err(self.refusal(codes::VOLUME_BUSY, "has another length than what it is to get", next));
        }
        let target = self.open_begun(cluster)?;
        let held = self.drop_leftovers(drop).and_then(|snapshots| {
            let note = self.noted(&snapshots, subject.len_bytes).map(|(note, done)| (note.clone(), done));
            if note.is_none() {
                let all = 0..subject.len_bytes;
                target.clear(vec![all]).map_err(|lost| failed(backup::Error::Volume(lost)))?;
            }
            Ok(note)
        });
        let (target, note) = self.or_close(target, held)?;
        match note {
            None => Ok(Begun { target, done_bytes: 0 }),
            Some((note, done_bytes)) => Ok(Begun { target: self.roll_back(cluster, target, &note)?, done_bytes }),
        }
    }

    pub fn open(&self, cluster: &Cluster) -> Result<New> {
        let target = cluster.open(self.name, Access::Write).map(New).map_err(refused)?;
        let checked = self.check_own(&target);
        self.or_close(target, checked).map(|(target, _)| target)
    }

    /// Opens the volume. Another command may have filled it meanwhile; from here on none does.
    pub fn open_begun(&self, cluster: &Cluster) -> Result<New> {
        let target = self.open(cluster)?;
        let checked = self.admin.volume_info(self.name).and_then(|volume| match self.is_begun(&volume) {
            true => Ok(()),
            false => {
                let next = format!("basalt volume info {}   # it may be whole", self.name);
                Err(self.refusal(codes::VOLUME_BUSY, "is not being filled any more: another command came before", next))
            }
        });
        self.or_close(target, checked).map(|(target, _)| target)
    }

    /// Deletes the snapshots that an interrupted command could not label, and those that `drop` names. The volume is open, so that no other
    /// command makes or needs them. Returns the others.
    pub fn drop_leftovers(&self, drop: impl Fn(&SnapshotView) -> bool) -> Result<Vec<SnapshotView>> {
        let mut snapshots = self.admin.snapshots(self.name)?;
        let is_left = |snapshot: &SnapshotView| snapshot.labels.get(RESTORING) == Some(&self.mark) || drop(snapshot);
        self.drop_all(&snapshots, is_left)?;
        snapshots.retain(|snapshot| !is_left(snapshot));
        Ok(snapshots)
    }

    /// Returns the open volume and the result; after an error it is closed, so that the next command need not wait for its lease.
    pub fn or_close<T>(&self, target: New, result: Result<T>) -> Result<(New, T)> {
        if result.is_err() {
            // The first error is the one that counts.
            let _ = target.0.close();
        }
        result.map(|value| (target, value))
    }

    /// Gives a volume that was begun, and that this command has open, the contents of its snapshot. Opens it again.
    pub fn roll_back(&self, cluster: &Cluster, held: New, to: &SnapshotView) -> Result<New> {
        held.0.close().map_err(refused)?;
        self.admin.roll_back(&to.name, false)?;
        let target = self.open_begun(cluster)?;
        self.check_at(cluster, target, to)
    }

    /// Returns the volume when nothing has changed since the snapshot.
    pub fn check_at(&self, cluster: &Cluster, target: New, from: &SnapshotView) -> Result<New> {
        let base = || cluster.open(&from.name, Access::Read);
        let checked = match target.is_unchanged_since(from.snapshot, base).map_err(refused) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.changed(from)),
            Err(error) => Err(error),
        };
        self.or_close(target, checked).map(|(target, _)| target)
    }

    pub fn changed(&self, from: &SnapshotView) -> anyhow::Error {
        let next = format!("basalt snapshot rollback {}   # its changes since then are lost", from.name);
        self.refusal(codes::BACKUP_BASE, &format!("has changed since {}, with which this begins", from.name), next)
    }

    /// Marks a volume that this command has open.
    pub fn set_mark(&self, target: &New) -> Result<()> {
        self.admin.set_volume(self.name, text(self.mark.clone()))?;
        self.check_own(target).inspect_err(|_| {
            let removed_labels = vec![RESTORING.to_owned()];
            let _ = self.admin.set_volume(self.name, VolumeText { removed_labels, ..VolumeText::default() });
        })
    }

    /// Takes the mark off a volume that has all, with `text_of`, and deletes the notes. The volume is still open.
    pub fn unmark(&self, target: &New, text_of: VolumeText) -> Result<()> {
        self.check_own(target)?;
        self.admin.set_volume(self.name, text_of)?;
        // The process may have been stopped between the two requests, and another command may fill the volume.
        self.check_own(target).inspect_err(|_| {
            let _ = self.admin.set_volume(self.name, text(self.mark.clone()));
        })?;
        let dropped = self.admin.snapshots(self.name).and_then(|all| self.drop_all(&all, |one| self.is_note(one)));
        if let Err(error) = dropped {
            remark(&format!("{error:#}; snapshots {RESTORING}-… of {} are of no use: basalt snapshot ls", self.name));
        }
        Ok(())
    }

    /// Returns the last note, with the bytes of the volume that have their contents in it.
    pub fn noted<'s>(&self, snapshots: &'s [SnapshotView], len_bytes: u64) -> Option<(&'s SnapshotView, u64)> {
        let done = |snapshot: &SnapshotView| {
            let done = snapshot.labels.get(RESTORING)?.strip_prefix(&self.mark)?.strip_prefix('+')?;
            done.parse().ok().filter(|done| *done <= len_bytes && snapshot.state == "ready")
        };
        let all = snapshots.iter().filter_map(|snapshot| Some((snapshot, done(snapshot)?)));
        all.max_by_key(|(snapshot, _)| snapshot.snapshot)
    }

    /// Whether a snapshot is a note of this, labelled or not.
    fn is_note(&self, snapshot: &SnapshotView) -> bool {
        let rest = snapshot.labels.get(RESTORING).and_then(|label| label.strip_prefix(&self.mark));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    }

    /// Makes a note in place of the ones before. One that is missing costs time, and nothing else.
    pub fn note(&self, target: &New, done_bytes: u64) {
        let name = format!("{}@{RESTORING}-{done_bytes}", self.name);
        let Ok(before) = self.admin.snapshots(self.name) else { return };
        if self.cut(target, &name, text(format!("{}+{done_bytes}", self.mark))).is_ok() {
            // One that stays goes with the next note, or at the end.
            let _ = self.drop_all(&before, |one| self.is_note(one));
        }
    }

    /// Makes a snapshot of what this command has written. Its labels come when that is sure.
    pub fn cut(&self, target: &New, name: &str, text_of: VolumeText) -> Result<SnapshotView> {
        self.admin.create_snapshots(&[name.to_owned()], text(self.mark.clone()))?;
        let made = self.check_own(target).and_then(|()| {
            self.admin.set_snapshot(name, SnapshotChange { text: text_of, ..SnapshotChange::default() })
        });
        if made.is_err() {
            let _ = self.admin.remove_snapshot(name, false);
        }
        made
    }

    /// Fails when another client has had the volume since this command opened it: a process may be stopped for longer than its lease. A
    /// multi-writer volume lets others in without a sign.
    fn check_own(&self, target: &New) -> Result<()> {
        let volume = self.admin.volume_info(self.name)?;
        if volume.multi_writer {
            let next = format!("basalt volume set {} --multi-writer=off, then again", self.name);
            return Err(self.refusal(
                codes::VOLUME_BUSY,
                "may have several writers, which would write beside this",
                next,
            ));
        }
        if volume.session == target.0.session() {
            return Ok(());
        }
        let next = format!("basalt volume info {}   # it shows the client; then this command again", self.name);
        Err(self.refusal(codes::VOLUME_BUSY, "was taken over by another client", next))
    }

    /// Deletes snapshots.
    fn drop_all(&self, snapshots: &[SnapshotView], is: impl Fn(&SnapshotView) -> bool) -> Result<()> {
        let mut found = snapshots.iter().filter(|snapshot| is(snapshot) && snapshot.state != "deleting");
        found.try_for_each(|snapshot| self.admin.remove_snapshot(&snapshot.name, false))
    }
}
