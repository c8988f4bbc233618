//! Messages of connections: client requests, raft messages and lease renewals. And the replies to them.

use crate::counting::{Counted, Kind};
use crate::limits::{Charge, demand_of};
use crate::node::{Osd, Touch};
use crate::shares::{Offer, Ticket};
use crate::space::Held;
use bus::{BusEvent, LinkId};
use engine::FillRoom;
use group::{Origin, Pairs};
use slab::Slab;
use telemetry::ops::OpId;
use types::{IoBuf, OsdId, ReplicaId, Time, VolumeId};
use wire::{Contents, LeaseRenewal, Message, Peer, RaftKind, RaftMsg, Reject, Reply, Request, RequestBody};

/// Client requests between arrival and reply. `Origin` is the key.
#[derive(Default)]
pub struct Inflight {
    slab: Slab<Waiting>,
}

impl Inflight {
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns the identity of a request, if it is sampled.
    pub fn sampled(&self, origin: Origin) -> Option<OpId> {
        self.slab.get(origin.0 as usize)?.op
    }
}

struct Waiting {
    link: LinkId,
    counted: Counted,
    space: Option<Held>,
    /// Cost that the limits of the volume were charged.
    charge: Option<Charge>,
    /// Its place in the share of its volume; `None`: it is answered at once.
    ticket: Option<Ticket>,
    /// The request, if it is sampled.
    op: Option<OpId>,
}

/// A client request that is not served yet.
pub(crate) struct Arrived {
    link: LinkId,
    request: Request,
    counted: Counted,
    charge: Option<Charge>,
    op: Option<OpId>,
}

impl Arrived {
    /// Lets go of what came with it: a small payload may be a part of a large block of memory.
    fn hold(&mut self) {
        if let RequestBody::Write { payload, .. } = &mut self.request.body
            && payload.region_bytes() > 2 * payload.len()
        {
            *payload = IoBuf::copy_of(payload);
        }
    }
}

impl Osd {
    pub(crate) fn handle_bus(&mut self, event: BusEvent) {
        match event {
            BusEvent::Up { peer: Peer::Osd(osd), .. } => {
                self.meta.reachable(osd);
                self.pairs.handle_link(self.now, osd, true);
                self.space.handle_link(self.now, osd, true);
                self.tell_groups_of_link(osd, true);
                self.recovery.payloads.hurry();
            }
            BusEvent::Down { peer: Peer::Osd(osd), reason, .. } => {
                tracing::info!(peer = %osd, cause = reason, "connection lost");
                self.pairs.handle_link(self.now, osd, false);
                self.space.handle_link(self.now, osd, false);
                self.tell_groups_of_link(osd, false);
                self.recover(|r, here| r.streams.handle_link_lost(here, osd));
            }
            BusEvent::Up { .. } | BusEvent::Down { .. } => {}
            BusEvent::Unreachable { osd, reason } => {
                self.meta.unreachable(osd, reason);
            }
            BusEvent::Message { link, message } => {
                if let Some(peer) = self.bus.peer_of(link) {
                    self.handle_message(link, peer, message);
                }
            }
        }
    }

    fn tell_groups_of_link(&mut self, osd: OsdId, up: bool) {
        for key in self.pgs.keys() {
            if self.pgs.get(key).has_member_on(osd) {
                self.with_slot(key, Touch::Always, |group, now, actions| group.handle_link(now, osd, up, actions));
            }
        }
    }

    fn handle_message(&mut self, link: LinkId, peer: Peer, message: Message) {
        match (peer, message) {
            (_, Message::Request(request)) => self.handle_request(link, request),
            (Peer::Osd(from), Message::Raft(raft)) => self.handle_raft(from, raft),
            (Peer::Osd(from), Message::LeaseRenewal(renewal)) => self.handle_renewal(link, from, renewal),
            (Peer::Osd(from), Message::LeaseAck(ack)) => {
                let sent_at = Time(ack.sent_at);
                self.space.handle_granted(self.now, from, ack.granted_aus, ack.device_full);
                self.hear_log_share(from, ack.log_share_mib);
                self.hear_pace(from, ack.pace);
                for (pg, term, contents) in ack.renewed {
                    self.with_pg(pg, |group, now, actions| {
                        group.handle_lease_ack(now, from, sent_at, (term, contents), actions);
                    });
                }
            }
            (Peer::Osd(from), Message::LeaseRelease(pgs)) => {
                for pg in pgs {
                    self.with_pg(pg, |group, now, actions| group.handle_lease_release(now, from, actions));
                }
            }
            (Peer::Osd(from), Message::PassedOn(msg)) => {
                self.with_pg(msg.pg, |group, now, actions| group.handle_passed_on(now, from, &msg, actions));
            }
            (Peer::Osd(_), Message::Used(used)) => self.limits.handle_used(self.now, &used),
            (Peer::Osd(from), Message::Stream(msg)) => self.handle_stream(from, msg),
            (Peer::Osd(from), Message::Repair(msg)) => self.handle_repair(link, from, msg),
            (Peer::Osd(from), Message::Mend(msg)) => self.handle_mend(link, from, msg),
            (peer, _) => {
                let reason = format!("{peer:?} sent a message that only others may send");
                self.bus.disconnect(link, &reason);
            }
        }
    }

    fn handle_raft(&mut self, from: OsdId, raft: RaftMsg) {
        self.stats.traced.raft_received(&raft, self.now);
        let Some(key) = self.pgs.by_pg(raft.pg) else { return };
        if raft.kind == RaftKind::PreVote {
            let leader = self.pgs.group(key).and_then(|g| g.leader());
            let leader_recently_heard = leader.is_some_and(|osd| self.pairs.has_heard_leader(self.now, osd, raft.pg));
            if let Some(group) = self.pgs.group(key) {
                group.set_leader_recently_heard(leader_recently_heard);
            }
        }
        if raft.kind == RaftKind::Append && self.pgs.get(key).has_failed() {
            return self.drop_append(key, from, raft);
        }
        // A log without contents takes no more than its share: this follower counts again when its log begins at a later index.
        let brings = raft.kind == RaftKind::Append && !raft.entries.is_empty();
        let room = || self.engine.fill_room(self.pgs.get(key).identity.replica);
        if brings && room().is_some_and(|room| room.left == 0) && !self.recovery.streams.has_end(raft.pg) {
            return;
        }
        // Most acknowledgements commit nothing: the majority is complete with one of them.
        let touch = if raft.kind == RaftKind::AppendResponse { Touch::IfWanted } else { Touch::Always };
        self.with_slot(key, touch, |group, now, actions| group.handle_raft(now, from, raft, actions));
    }

    /// Closes the connection of a client that sent bytes that fail their checksum.
    pub(crate) fn bad_origin(&mut self, origin: Origin, reason: &str) {
        let waiting = self.inflight.slab.remove(origin.0 as usize);
        self.settle_space(waiting.space);
        waiting.ticket.into_iter().for_each(|ticket| self.shares.end(self.now, ticket));
        tracing::warn!(reason, "closing the connection of a client that sent bad bytes");
        self.bus.disconnect(waiting.link, reason);
    }

    pub(crate) fn handle_request(&mut self, link: LinkId, request: Request) {
        let (kind, volume, bytes) = match &request.body {
            RequestBody::Write { chunk, range, .. } | RequestBody::Zero { chunk, range, .. } => {
                (Kind::Write, chunk.volume, range.len_bytes() as u64)
            }
            RequestBody::Skip { volume, .. } => (Kind::Write, *volume, 0),
            RequestBody::Read { chunk, range, .. } => (Kind::Read, chunk.volume, range.len_bytes() as u64),
            RequestBody::Extents { chunk, .. } => (Kind::Query, chunk.volume, 0),
            RequestBody::FenceCheck { volume } | RequestBody::Unreached { volume, .. } => (Kind::Query, *volume, 0),
        };
        let counted = Counted { kind, pool: request.pg.pool, volume, bytes, since: self.now };
        let op = self.stats.traced.received(&request, self.now);
        tracing::trace!(%link, ?request, "request");
        let slot = self.pgs.by_pg(request.pg);
        let served_by = slot.and_then(|key| self.pgs.group(key)).filter(|group| group.serves());
        let is_known = served_by.map(|group| group.has_volume(volume));
        let mut arrived = Arrived { link, request, counted, charge: None, op };
        // The leader of its PG charges it; here it has no share.
        let Some(mut demand) = demand_of(&arrived.request.body).filter(|_| is_known.is_some()) else {
            return self.pass_on(arrived, None);
        };
        match self.admit_limited(&arrived.request) {
            Err(reject) => return self.refuse(arrived, reject),
            Ok(charge) => arrived.charge = charge,
        }
        // Numbers that a client draws have one share together.
        if is_known == Some(false) {
            demand.volume = VolumeId(0);
        }
        match self.shares.offer(self.now, demand, arrived, &mut self.limits) {
            Offer::Serve(arrived, ticket) => self.pass_on(arrived, Some(ticket)),
            Offer::Waits => self.shares.newest(demand.volume).into_iter().for_each(Arrived::hold),
            Offer::Full(arrived) => self.refuse(arrived, Reject::Busy),
        }
    }

    /// Serves waiting requests, as many as their volumes may have in service.
    pub(crate) fn serve_waiting(&mut self) {
        while let Some((arrived, ticket)) = self.shares.next(self.now, &mut self.limits) {
            self.pass_on(arrived, Some(ticket));
        }
    }

    fn refuse(&mut self, arrived: Arrived, reject: Reject) {
        let Arrived { link, request, counted, charge, op } = arrived;
        let waiting = Waiting { link, counted, space: None, charge, ticket: None, op };
        let origin = Origin(self.inflight.slab.insert(waiting) as u64);
        self.reply(origin, Reply { id: request.id, result: Err(reject) });
    }

    /// Hands a request to its group.
    fn pass_on(&mut self, arrived: Arrived, ticket: Option<Ticket>) {
        let Arrived { link, request, counted, charge, op } = arrived;
        let (id, slot) = (request.id, self.pgs.by_pg(request.pg));
        let (space, refused) = match slot.map(|key| self.take_space(key, &request)) {
            Some(Err(reject)) => (None, Some(reject)),
            Some(Ok(held)) => (held, None),
            None => (None, None),
        };
        let waiting = Waiting { link, counted, space, charge, ticket, op };
        let origin = Origin(self.inflight.slab.insert(waiting) as u64);
        if let Some(reject) = refused {
            return self.reply(origin, Reply { id, result: Err(reject) });
        }
        match slot {
            Some(key) if self.pgs.group(key).is_some() => {
                self.with_slot(key, Touch::IfWanted, |group, now, actions| {
                    group.handle_request(now, origin, request, actions);
                });
            }
            _ => self.reply(origin, Reply { id, result: Err(Reject::NoSuchPg) }),
        }
    }

    /// Sends a reply and counts it.
    ///
    /// # Panics
    /// When a request is answered twice.
    pub(crate) fn reply(&mut self, origin: Origin, reply: Reply) {
        let mut waiting = self.inflight.slab.remove(origin.0 as usize);
        self.settle_space(waiting.space.take());
        waiting.ticket.take().into_iter().for_each(|ticket| self.shares.end(self.now, ticket));
        tracing::trace!(link = %waiting.link, id = reply.id, result = ?reply.result, "reply");
        if let Some(op) = waiting.op {
            self.stats.traced.replied(op, reply.result.is_ok());
        }
        match &reply.result {
            Ok(_) => self.stats.counting.answered(waiting.counted),
            Err(_) => {
                self.stats.metrics.refused.inc();
                if let Some(charge) = waiting.charge {
                    self.limits.give_back(waiting.counted.volume, charge);
                }
            }
        }
        self.bus.send(waiting.link, Message::Reply(reply));
    }

    /// Handles a lease renewal (R3): the acknowledgement carries the sender's own time and the renewed promises.
    fn handle_renewal(&mut self, link: LinkId, from: OsdId, renewal: LeaseRenewal) {
        self.pairs.heard(self.now, from, &renewal);
        let every = renewal.full;
        let mut renewed = Vec::with_capacity(renewal.items.len());
        for item in renewal.items {
            let full = renewal.full;
            let mut ok = None;
            self.with_pg(item.pg, |group, now, actions| {
                let promised = group.handle_renewal_item(now, from, item, full, actions);
                ok = promised.then(|| (group.identity().replica, group.is_whole()));
            });
            renewed.extend(ok.map(|(replica, whole)| (item.pg, item.term, self.contents_of(replica, whole))));
        }
        let granted_aus = self.space.handle_spent(from, renewal.spent_aus);
        let device_full = self.space.is_full();
        let log_share_mib = self.log_shares.mib();
        let (sent_at, pace) = (renewal.sent_at, self.told_pace());
        let ack = wire::LeaseAck { sent_at, granted_aus, device_full, log_share_mib, pace, renewed };
        if self.pairs.owes_ack(self.now, from, every, &ack) {
            self.bus.send(link, Message::LeaseAck(ack));
        }
    }

    fn contents_of(&self, replica: ReplicaId, whole: bool) -> Contents {
        if whole {
            return Contents::Whole;
        }
        // It may be whole in the engine already, or wait for contents without a log that begins.
        let room = self.engine.fill_room(replica).unwrap_or(FillRoom { left: u64::MAX, share: u64::MAX });
        let room_kib = u32::try_from(room.left >> 10).unwrap_or(u32::MAX);
        Contents::Filling { room_kib, is_short: room.left < room.share / 2 }
    }

    /// Sends the lease renewals that are due, one frame an OSD pair.
    pub(crate) fn renew_promises(&mut self) {
        let mut due = Vec::new();
        self.pairs.poll(self.now, &mut due);
        if due.is_empty() {
            return;
        }
        let renewals = Pairs::renewals(self.now, &due, self.pgs.groups());
        for ((osd, _), mut renewal) in due.into_iter().zip(renewals) {
            let Some(link) = self.bus.link_to(osd) else { continue };
            renewal.spent_aus = self.space.spent(self.now, osd);
            self.bus.send(link, Message::LeaseRenewal(renewal));
        }
    }
}
