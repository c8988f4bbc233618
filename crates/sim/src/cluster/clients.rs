//! Clients of a cluster: the owner of the first volume, its rivals, the reader, and the machines of tenants.

use super::{CLIENTS, Cluster, WRITERS};
use crate::client::ClientNode;
use crate::families::{Changes, Families};
use crate::snapshots::Snapshots;
use crate::tenants::Tenants;
use crate::workload::Kind;
use std::time::Duration;
use types::VolumeId;
use types::rng::Rng;

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
