//! Requests that change data: from their arrival to their proposal (design §3, step 4).
//!
//! The loop passes in requests and attaches; once per turn all admitted ones are proposed together.
//! Invariant: the queue is bounded in operations and bytes. Admission refuses finally only what is certain;
//! everything else is decided at apply (R1, R6).

use crate::descriptor::{Command, Stamp, is_part};
use crate::fills::filled;
use crate::reads::{ReadOf, What};
use crate::{Action, Group, GroupLimits, Origin};
use bytes::BytesMut;
use std::collections::VecDeque;
use types::control::{Attach, AttachRefusal};
use types::cut::{CutEnd, CutRefusal, SnapshotAnswer};
use types::limits::PROPOSE_PAYLOAD_MAX;
use types::store::Crcs;
use types::{CutId, Errno, IoBuf, OsdId, SectorRange, SnapshotId, Time, VolumeId};
use wire::{Reject, Reply, ReplyBody, Request, RequestBody};

/// Receiver of the outcome of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    Request {
        origin: Origin,
        id: u64,
    },
    Attach {
        order: u64,
    },
    Cut {
        cut: CutId,
    },
    Remove {
        volume: VolumeId,
        snapshot: SnapshotId,
    },
    Fill {
        fill: u64,
    },
    /// Its outcome is seen in decision state.
    Detach,
    Wipe {
        volume: VolumeId,
        len_epoch: u32,
        chunk: u32,
    },
}

impl Waiter {
    /// Answers "busy" to a request or a copy that was not proposed.
    pub fn busy(self, actions: &mut Vec<Action>) {
        match self {
            Waiter::Request { origin, id } => reply(origin, id, Err(Reject::Busy), actions),
            Waiter::Fill { fill } => filled(fill, false, actions),
            Waiter::Wipe { .. } => self.wiped(Err(CutRefusal::Busy), actions),
            other => panic!("{other:?} is no request"),
        }
    }

    /// Answers "not here": the outcome is open.
    pub fn refuse(self, hint: Option<OsdId>, actions: &mut Vec<Action>) {
        match self {
            Waiter::Request { origin, id } => reply(origin, id, Err(Reject::NotLeader { hint }), actions),
            Waiter::Attach { order } => {
                actions.push(Action::Attached { order, result: Err(AttachRefusal::NotLeader { hint }) });
            }
            Waiter::Cut { cut } => {
                let result = Err(CutRefusal::NotLeader { hint });
                actions.push(Action::Snapshots(SnapshotAnswer::Cut { cut, result }));
            }
            Waiter::Remove { volume, snapshot } => {
                let result = Err(CutRefusal::NotLeader { hint });
                actions.push(Action::Snapshots(SnapshotAnswer::Removed { volume, snapshot, result }));
            }
            Waiter::Fill { fill } => filled(fill, false, actions),
            Waiter::Detach => {}
            Waiter::Wipe { .. } => self.wiped(Err(CutRefusal::NotLeader { hint }), actions),
        }
    }

    /// Answers an order to wipe.
    pub fn wiped(self, result: Result<(), CutRefusal>, actions: &mut Vec<Action>) {
        let Waiter::Wipe { volume, len_epoch, chunk } = self else { panic!("{self:?} wipes nothing") };
        actions.push(Action::Snapshots(SnapshotAnswer::Wiped { volume, len_epoch, chunk, result }));
    }
}

#[derive(Debug)]
struct Admitted {
    command: Command,
    payload: IoBuf,
    crcs: Crcs,
    waiter: Waiter,
}

impl Admitted {
    /// The volume of a change, or of a copy.
    fn volume(&self) -> Option<VolumeId> {
        let copied = || self.command.payload().or(self.command.changes()).map(|(chunk, _)| chunk.volume);
        self.command.stamp().map(|(volume, _)| volume).or_else(copied)
    }
}

/// Changes that wait for the end of the turn, orders of meta first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    orders: VecDeque<Admitted>,
    writes: VecDeque<Admitted>,
    /// Writes of volumes whose changes are held. They count as those that wait.
    held: VecDeque<Admitted>,
    held_bytes: u64,
    /// Payload of all writes.
    bytes: u64,
}

impl Queue {
    /// Whether nothing may be proposed.
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.writes.is_empty()
    }

    /// Whether nothing waits here, held or not.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && self.held.is_empty()
    }

    /// Returns the number of writes, their bytes, and the number of orders.
    pub fn fill(&self) -> (usize, u64, usize) {
        (self.writes.len() + self.held.len(), self.bytes, self.orders.len())
    }

    pub fn is_full(&self, len: usize, limits: &GroupLimits) -> bool {
        self.writes.len() + self.held.len() >= limits.queue_ops_max || self.bytes + len as u64 > limits.queue_bytes_max
    }

    /// Adds an order; its command has no payload.
    pub fn push_order(&mut self, command: Command, waiter: Waiter) {
        let (payload, crcs) = (IoBuf::EMPTY, Crcs::default());
        self.orders.push_back(Admitted { command, payload, crcs, waiter });
    }

    /// Adds a copy of a flatten.
    pub fn push_fill(&mut self, command: Command, (payload, crcs): (IoBuf, Crcs), fill: u64) {
        self.bytes += payload.len() as u64;
        self.writes.push_back(Admitted { command, payload, crcs, waiter: Waiter::Fill { fill } });
    }

    /// Adds the zeroing of a place behind the end of a volume.
    pub fn push_wipe(&mut self, command: Command, waiter: Waiter) {
        let (payload, crcs) = (IoBuf::EMPTY, Crcs::default());
        self.writes.push_back(Admitted { command, payload, crcs, waiter });
    }

    /// Whether the same zeroing waits already: a repeated order is answered with it.
    pub fn has_wipe(&self, command: &Command) -> bool {
        self.writes.iter().any(|write| write.command == *command)
    }

    /// Whether so many copies and bytes leave half of the room to clients.
    pub fn has_room_beside(&self, ops: usize, bytes: u64, limits: &GroupLimits) -> bool {
        let waiting = self.writes.len() + self.held.len() + ops;
        waiting <= limits.queue_ops_max / 2 && self.bytes + bytes <= limits.queue_bytes_max / 2
    }

    /// Whether so much is held that more would take the room of other volumes.
    fn is_half_full_of_held(&self, len: usize, limits: &GroupLimits) -> bool {
        self.held.len() >= limits.queue_ops_max.div_ceil(2) || self.held_bytes + len as u64 > limits.queue_bytes_max / 2
    }

    fn hold(&mut self, write: Admitted) {
        self.held_bytes += write.payload.len() as u64;
        self.held.push_back(write);
    }

    /// Lets the writes go on whose volumes are not held any more; true when there are some. They come before those that wait: the writes
    /// of each volume keep their order.
    pub fn release(&mut self, is_held: impl Fn(VolumeId) -> bool) -> bool {
        let (held, free): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.held).into_iter().partition(|write| write.volume().is_some_and(&is_held));
        self.held = held;
        self.held_bytes = self.held.iter().map(|write| write.payload.len() as u64).sum();
        let some = !free.is_empty();
        let waiting = std::mem::replace(&mut self.writes, free);
        self.writes.extend(waiting);
        some
    }

    /// Takes the writes out that wait and whose volume `is_its`.
    pub fn take_writes(&mut self, is_its: impl Fn(VolumeId) -> bool) -> Vec<Waiter> {
        let (taken, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.writes).into_iter().partition(|write| write.volume().is_some_and(&is_its));
        self.writes = left;
        self.bytes -= taken.iter().map(|write| write.payload.len() as u64).sum::<u64>();
        taken.into_iter().map(|write| write.waiter).collect()
    }

    pub fn holds_some(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether this order waits already: a repeated one is answered with it.
    pub fn has_order(&self, command: &Command) -> bool {
        self.orders.iter().any(|order| order.command == *command)
    }

    /// Takes the next change to propose that fits into `room` bytes, if any.
    fn next(&mut self, room: u64, writes: bool) -> Option<Admitted> {
        if let Some(order) = self.orders.pop_front() {
            return Some(order);
        }
        if !writes || self.writes.front()?.payload.len() as u64 > room {
            return None;
        }
        let write = self.writes.pop_front()?;
        self.bytes -= write.payload.len() as u64;
        Some(write)
    }
}

pub(crate) fn reply(origin: Origin, id: u64, result: Result<ReplyBody, Reject>, actions: &mut Vec<Action>) {
    actions.push(Action::Reply { origin, reply: Reply { id, result } });
}

/// Whether a client's write agrees with its own fields. The payload is verified here, once, before it is
/// replicated.
fn is_well_formed(body: &RequestBody) -> bool {
    let in_chunk = |range: &SectorRange| SectorRange::checked(range.start, range.count).is_some();
    match body {
        RequestBody::Write { range, seq, watermark, .. } => in_chunk(range) && is_part(*range) && watermark <= seq,
        RequestBody::Zero { range, seq, watermark, .. } => in_chunk(range) && watermark <= seq,
        RequestBody::Skip { seq, watermark, .. } => watermark <= seq,
        RequestBody::Read { range, .. } => in_chunk(range) && is_part(*range),
        RequestBody::Extents { range, .. } => in_chunk(range),
        RequestBody::FenceCheck { .. } | RequestBody::Unreached { .. } => true,
    }
}

impl Group {
    /// Handles a client's request. It is answered once, now or later.
    pub fn handle_request(&mut self, now: Time, origin: Origin, request: Request, actions: &mut Vec<Action>) {
        let id = request.id;
        if let RequestBody::Unreached { volume, leader } = request.body {
            let passed_on = self.pass_on(now, leader, (volume, request.session, request.epoch), actions);
            let result = if passed_on { Ok(ReplyBody::Done) } else { Err(Reject::NotReady) };
            return reply(origin, id, result, actions);
        }
        if !is_well_formed(&request.body) {
            return reply(origin, id, Err(Reject::Failed(Errno::Invalid)), actions);
        }
        if !self.serves() {
            let reject = match self.is_leader() && self.transfer.is_none() {
                true => Reject::NotReady,
                false => Reject::NotLeader { hint: self.hint() },
            };
            return reply(origin, id, Err(reject), actions);
        }
        self.last_io = Some(now);
        let (session, epoch) = (request.session, request.epoch);
        let stamp = |seq, watermark| Stamp { session, epoch, seq, watermark };
        let (command, payload, crcs) = match request.body {
            RequestBody::Read { chunk, range, snapshot } => {
                return self.read(now, origin, id, What::Bytes { of: ReadOf { chunk, snapshot }, range }, actions);
            }
            RequestBody::Extents { chunk, range, snapshot, since } => {
                let what = What::Extents { of: ReadOf { chunk, snapshot }, range, since };
                return self.read(now, origin, id, what, actions);
            }
            RequestBody::Unreached { .. } => unreachable!("it was taken above"),
            RequestBody::FenceCheck { volume } => {
                return self.read(now, origin, id, What::FenceCheck { volume, epoch }, actions);
            }
            RequestBody::Write { chunk, range, seq, watermark, crcs, payload } => {
                if !range.verify(&payload, &crcs) {
                    let reason = format!("payload of request {id} fails its checksum");
                    return actions.push(Action::BadOrigin { origin, reason });
                }
                let crcs = Crcs { start: range.start, values: crcs };
                (Command::Write { chunk, range, stamp: stamp(seq, watermark) }, payload, crcs)
            }
            RequestBody::Zero { chunk, range, seq, watermark } => {
                let command = Command::Zero { chunk, range, stamp: stamp(seq, watermark) };
                (command, IoBuf::EMPTY, Crcs::default())
            }
            RequestBody::Skip { volume, seq, watermark } => {
                let command = Command::Skip { volume, stamp: stamp(seq, watermark) };
                (command, IoBuf::EMPTY, Crcs::default())
            }
        };
        if let Some(reject) = self.refusal(&command, payload.len()) {
            return reply(origin, id, Err(reject), actions);
        }
        self.queue.bytes += payload.len() as u64;
        let admitted = Admitted { command, payload, crcs, waiter: Waiter::Request { origin, id } };
        match admitted.volume().is_some_and(|volume| self.is_held(volume)) {
            true => self.queue.hold(admitted),
            false => self.queue.writes.push_back(admitted),
        }
    }

    /// Returns why a change is refused at once. A newer attach record that is applied here is certain. An unknown
    /// volume is not (this leader may be deposed without knowing), so that is decided at apply.
    fn refusal(&self, command: &Command, payload_len: usize) -> Option<Reject> {
        let (volume, stamp) = command.stamp()?;
        if self.is_fenced(volume, stamp) {
            return Some(Reject::Failed(Errno::Fenced));
        }
        if self.full && payload_len > 0 {
            return Some(Reject::Failed(Errno::NoSpace));
        }
        let limits = &self.config.limits;
        let held = || self.is_held(volume) && self.queue.is_half_full_of_held(payload_len, limits);
        (self.queue.is_full(payload_len, limits) || held()).then_some(Reject::Busy)
    }

    /// Whether an attach record of the volume is committed here.
    pub fn has_volume(&self, volume: VolumeId) -> bool {
        self.decision.volumes.contains_key(&volume)
    }

    fn is_fenced(&self, volume: VolumeId, stamp: &Stamp) -> bool {
        self.decision.volumes.get(&volume).is_some_and(|attached| attached.is_fenced(stamp.epoch))
    }

    /// Handles an attach record to commit (R6). It is answered by one `Attached`.
    pub fn handle_attach(&mut self, _now: Time, attach: Attach, actions: &mut Vec<Action>) {
        let order = attach.order;
        let refuse = |refusal, actions: &mut Vec<Action>| {
            actions.push(Action::Attached { order, result: Err(refusal) });
        };
        if !self.is_leader() || self.transfer.is_some() {
            return refuse(AttachRefusal::NotLeader { hint: self.hint() }, actions);
        }
        if order <= self.decision.order {
            return refuse(AttachRefusal::StaleOrder { last: self.decision.order }, actions);
        }
        if !self.serves() || self.orders_are_full() {
            return refuse(AttachRefusal::Busy, actions);
        }
        self.queue.push_order(Command::Attach(Box::new(attach)), Waiter::Attach { order });
    }

    pub(crate) fn orders_are_full(&self) -> bool {
        self.queue.orders.len() >= self.config.limits.queue_attaches_max
    }

    /// Refuses all changes that were not proposed.
    pub(crate) fn refuse_queue(&mut self, hint: Option<OsdId>, actions: &mut Vec<Action>) {
        let queue = std::mem::take(&mut self.queue);
        self.fills.clear();
        for admitted in queue.orders.into_iter().chain(queue.held).chain(queue.writes) {
            match &admitted.command {
                Command::Snap(cut) => self.holds.snapped(cut.id),
                Command::Release { cut, end: CutEnd::TimedOut, .. } => self.holds.not_timed_out(*cut),
                _ => {}
            }
            admitted.waiter.refuse(hint, actions);
        }
    }

    /// Proposes the admitted changes: one message of raft, at most 1 MiB of payload, and no more than the log
    /// has space for (R9).
    pub(crate) fn propose(&mut self, actions: &mut Vec<Action>) {
        if self.queue.is_empty() || !self.serves() {
            return;
        }
        let uncommitted = self.node.uncommitted_payload();
        let entries = self.node.last_index().0 - self.node.commit_index().0;
        let mut room = self.propose_payload_max.saturating_sub(uncommitted).min(PROPOSE_PAYLOAD_MAX as u64);
        let Some(leading) = &mut self.leading else { return };
        room = room.min(leading.pace.unwrap_or(u64::MAX));
        let before = room;
        let limits = &self.config.limits;
        let free = limits.uncommitted_entries_max.saturating_sub(entries);
        let entries_max = free.min(limits.propose_entries_max as u64) as usize;
        let mut batch = Vec::new();
        while batch.len() < entries_max {
            let may_write = !self.blocked && self.write_room != Some(0);
            let Some(admitted) = self.queue.next(room, may_write) else { break };
            if !self.fills.pass(&admitted.command, &admitted.waiter) {
                admitted.waiter.busy(actions);
                continue;
            }
            room -= admitted.payload.len() as u64;
            let cost = (admitted.payload.len() as u64).max(types::BLOCK);
            self.write_room = self.write_room.map(|left| left.saturating_sub(cost));
            self.proposed += cost;
            batch.push(admitted);
        }
        if batch.is_empty() {
            return;
        }
        leading.pace = leading.pace.map(|pace| pace - (before - room));
        let mut bytes = BytesMut::with_capacity(batch.len() * 64);
        let mut descriptors = Vec::with_capacity(batch.len());
        for admitted in &batch {
            admitted.command.encode(&mut bytes);
            descriptors.push(bytes.split().freeze());
        }
        let first = self.node.propose(descriptors.iter().cloned()).expect("a serving leader takes proposals");
        let term = self.node.term();
        for (at, (admitted, descriptor)) in batch.into_iter().zip(descriptors).enumerate() {
            let index = types::Index(first.0 + at as u64);
            if !admitted.payload.is_empty() {
                let new = self.pending_payloads.keep(index, term, &descriptor, admitted.payload, admitted.crcs);
                assert!(new, "this leader proposes {index} for the first time");
            }
            self.waiting.push_back((index, admitted.waiter));
        }
    }
}
