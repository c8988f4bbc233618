//! Clients of a cluster: the owner of the first volume, its rivals, the reader, and the machines of tenants.

use super::{CLIENTS, Cluster, WRITERS};
use crate::client::ClientNode;
use crate::families::{Changes, Families};
use crate::sharing::Sharing;
use crate::snapshots::Snapshots;
use crate::tenants::Tenants;
use crate::workload::Kind;
use std::time::Duration;
use types::rng::Rng;
use types::{Time, VolumeId};

impl Cluster {
    /// Ends the process of the owner (or of the reader). The next process preempts it.
    pub fn restart_client(&mut self, reader: bool) {
        let number = if reader { CLIENTS - 1 } else { self.owner };
        self.clients[number].restart(&self.world);
    }

    /// A recovery of the records ends every hold: each client may be fenced from now on.
    pub fn every_hold_ends(&mut self) {
        self.clients.iter_mut().for_each(ClientNode::preempted);
    }

    /// After that the owner, the reader and the tenants open their volumes again.
    pub fn open_again(&mut self) {
        for number in 0..self.clients.len() {
            let is_one = number == self.owner || number >= WRITERS;
            if is_one && self.clients[number].is_running() {
                self.clients[number].restart(&self.world);
            }
        }
    }

    pub fn has_reader(&self) -> bool {
        self.clients[CLIENTS - 1].has_begun()
    }

    /// Makes the owner and the clients that do not write hurry; a preempted writer submits nothing more.
    pub fn hurry(&mut self) {
        for (number, client) in self.clients.iter_mut().enumerate() {
            if number == self.owner || number >= WRITERS { client.hurry() } else { client.be_quiet() }
        }
    }

    /// Whether the owner's work is done, and no client waits for an answer.
    pub fn work_done(&self) -> bool {
        let done = |c: &ClientNode| c.workload.as_ref().is_none_or(|w| w.inflight() == 0);
        self.clients.iter().all(done) && self.clients[self.owner].workload.as_ref().is_some_and(|w| w.is_done())
    }

    /// Returns the number of answered requests of the volumes' owner.
    pub fn owners_answers(&self) -> u64 {
        self.clients[self.owner].workload.as_ref().map_or(0, |w| w.answered())
    }

    /// Starts the reader as soon as the owner is open: most segments are allocated while it reads.
    pub(super) fn start_reader(&mut self) {
        let has_work = self.clients[CLIENTS - 1].workload.is_some();
        if has_work && !self.has_reader() && self.clients[self.owner].is_open() {
            self.restart_client(true);
        }
    }

    /// Tells all other writers that they are fenced, when an open has returned.
    pub(super) fn note_opens(&mut self) {
        for number in 0..WRITERS {
            if self.clients[number].take_just_opened() {
                let others = self.clients[..WRITERS].iter_mut().enumerate().filter(|(n, _)| *n != number);
                others.for_each(|(_, other)| other.fenced());
            }
        }
    }

    /// Starts the tenants, which come and go by these dice. `lengthens`: they lengthen their volumes, and use the trash.
    pub fn let_in_tenants(&mut self, mut rng: Rng, lengthens: bool) {
        self.clients.extend(Tenants::machines(&self.world, self.options.tuned.client, &mut rng));
        self.tenants = Some(Tenants::new(rng, lengthens, self.world.now()));
    }

    /// Lets the tenants and the administrators act if an action is due.
    pub(super) fn tend(&mut self, now: Time) {
        if let Some(mut tenants) = self.tenants.take() {
            tenants.act(now, self);
            self.tenants = Some(tenants);
        }
        if let Some(mut snapshots) = self.snapshots.take() {
            snapshots.act(now, self);
            self.snapshots = Some(snapshots);
        }
        if let Some(mut families) = self.families.take() {
            families.act(now, self);
            self.families = Some(families);
        }
        if let Some(mut sharing) = self.sharing.take() {
            sharing.act(now, self);
            self.sharing = Some(sharing);
        }
    }

    pub fn tenants(&self) -> Option<&Tenants> {
        self.tenants.as_ref()
    }

    /// Returns the machine of the n-th tenant.
    pub fn tenant(&mut self, n: usize) -> &mut ClientNode {
        &mut self.clients[CLIENTS + n]
    }

    /// Starts the work of the n-th tenant.
    pub fn house(&mut self, n: usize, work: Box<dyn crate::workload::Workload>, over: Duration) {
        let client = &mut self.clients[CLIENTS + n];
        client.begin(work, over);
        client.restart(&self.world);
    }

    /// Starts an administrator that makes snapshots of the volumes by these dice.
    pub fn let_in_snapshots(&mut self, mut rng: Rng, volumes: Vec<(String, VolumeId)>) {
        let bank = (self.options.workload == Kind::Bank).then_some(self.options.shape.len_bytes);
        let machine = self.clients.len();
        self.clients.push(Snapshots::reader(&self.world, self.options.tuned.client, machine, &mut rng));
        self.snapshots = Some(Snapshots::new(rng, volumes, bank, machine, self.world.now()));
    }

    /// Starts an administrator of volumes with snapshots and clones, by these dice; `changes`: what is done to the volumes besides.
    pub fn let_in_families(&mut self, (mut rng, changes): (Rng, Changes)) {
        let machine = self.clients.len();
        self.clients.push(Families::machine(&self.world, self.options.tuned.client, machine, &mut rng));
        self.families = Some(Families::new(rng, machine, self.world.now(), changes));
    }

    /// Starts the machines of a volume with several writers, by these dice. `over`: the time over which their work is spread.
    pub fn let_in_sharing(&mut self, mut rng: Rng, over: Duration) {
        let first = self.clients.len();
        self.clients.extend(Sharing::machines(&self.world, self.options.tuned.client, first, &mut rng));
        self.sharing = Some(Sharing::new(rng, first, over, self.world.now()));
    }

    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// Starts a process of one of several writers; one that runs dies.
    pub fn restart_writer(&mut self, n: usize) {
        self.clients[n].restart(&self.world);
    }

    /// Makes one of several writers close the volume.
    pub fn close_writer(&mut self, n: usize) {
        if !self.world.is_paused(self.clients[n].node) {
            self.clients[n].close();
            self.clients[n].turn(&self.world, &mut self.linear, &mut self.post);
        }
    }

    /// Makes one of several writers fence the others with its next open.
    pub fn steal_shared(&mut self, n: usize) {
        self.clients[n].steal_next();
        self.restart_writer(n);
    }

    /// Notes that a life of a machine writes nothing to a volume after `at`: each PG has a record without it.
    pub fn fence_life(&mut self, n: usize, life: u32, volume: VolumeId, at: Time) {
        let client = &mut self.clients[n];
        let stamps = (n as u64) << 40..(n as u64 + 1) << 40;
        self.linear.abandon(volume.0, stamps, client.span_of(life), at.0);
        if client.is_in_life(life) {
            client.fenced();
        }
    }

    pub fn families(&self) -> Option<&Families> {
        self.families.as_ref()
    }

    /// Returns the number of volumes of families that were read back or removed.
    pub fn families_closed(&self) -> u64 {
        self.families.as_ref().map_or(0, |families| families.counts().closed)
    }

    pub fn snapshots(&self) -> Option<&Snapshots> {
        self.snapshots.as_ref()
    }

    /// Returns the number of snapshots that were read at the end.
    pub fn snapshots_read(&self) -> u64 {
        self.snapshots.as_ref().map_or(0, Snapshots::read_last)
    }

    /// Returns a client machine.
    pub fn client(&mut self, n: usize) -> &mut ClientNode {
        &mut self.clients[n]
    }

    /// Starts the process of a machine that only reads.
    pub fn restart_reader(&mut self, n: usize) {
        self.clients[n].restart(&self.world);
    }
}
