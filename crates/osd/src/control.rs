//! The OSD's side of the control plane: it carries out the commands of meta.
//!
//! The loop gets plain values, and any carrier may bring them. With no meta in reach all state
//! here stays as it is: the last map is used, PGs go on.

use crate::node::{Osd, Phase, Touch};
use crate::pgs::State;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use types::codes;
use types::control::{Attach, AttachRefusal, OsdDown, OsdUp, Watermarks};
use types::cut::{CutRefusal, SnapshotAnswer, SnapshotOrder};
use types::limits::{POISON_REASON_LEN_MAX, clip};
use types::map::{Membership, OsdAddr, PgMap};
use types::store::{DecisionState, HardState, Recovered, ReplicaIdentity};
use types::{Index, OsdId, PgId, ReplicaId, Term, Time};

/// State of the loop's exchange with meta.
#[derive(Default)]
pub struct Meta {
    pub(crate) inbox: VecDeque<OsdDown>,
    pub(crate) outbox: Vec<OsdUp>,
    /// True while a stream is open and this OSD has sent its hello.
    pub(crate) connected: bool,
    pub(crate) poisoned: Option<String>,
    /// Code and reason, once meta has refused this OSD.
    pub(crate) refusal: Option<(u32, String)>,
    /// Reason that was last logged for a metadata server of another cluster.
    strange: Option<String>,
    /// Unreachable peers, each with the reason that was last logged.
    pub(crate) unreachable: BTreeMap<OsdId, String>,
    /// Watermarks from meta that the device keeps (R17).
    pub(crate) kept: Watermarks,
    /// Last watermarks from meta; above `kept` while they are being written.
    wanted: Watermarks,
    next_report: Option<Time>,
}

impl Meta {
    /// Lets the next report leave at once, because of a change that meta should know.
    pub(crate) fn report_soon(&mut self, now: Time) {
        if self.connected {
            self.next_report = Some(now);
        }
    }

    pub(crate) fn reachable(&mut self, osd: OsdId) {
        if self.unreachable.remove(&osd).is_some() {
            tracing::info!(peer = %osd, "the peer is connected again");
        }
    }

    /// Logs one line for each reason, however often the dial is repeated.
    pub(crate) fn unreachable(&mut self, osd: OsdId, reason: String) {
        if self.unreachable.get(&osd) != Some(&reason) {
            tracing::warn!(peer = %osd, reason, "this OSD cannot reach a peer; more such lines only when the reason changes");
            self.unreachable.insert(osd, reason);
        }
    }

    pub(crate) fn poisoned(&mut self, now: Time, reason: String) {
        self.poisoned = Some(clip(&reason, POISON_REASON_LEN_MAX).to_owned());
        self.report_soon(now);
    }

    pub(crate) fn next_report(&self) -> Time {
        self.next_report.unwrap_or(Time::NEVER)
    }

    /// Notes a report; the next one follows after the pause.
    pub(crate) fn reported(&mut self, now: Time, pause: Duration) {
        self.next_report = self.connected.then(|| now + pause);
    }
}

impl Osd {
    /// Handles a new stream to the leading meta: sends a hello, and all reports again.
    fn meta_connected(&mut self) {
        self.meta.connected = true;
        self.meta.outbox.clear();
        self.meta.outbox.push(OsdUp::Hello(self.hello()));
        for key in self.pgs.keys() {
            self.pgs.get_mut(key).reported = None;
        }
        self.meta.report_soon(self.now);
    }

    /// Returns code and reason, once meta has refused this OSD.
    pub fn refusal(&self) -> Option<(u32, &str)> {
        self.meta.refusal.as_ref().map(|(code, reason)| (*code, reason.as_str()))
    }

    /// Sets the address at which peers and clients reach this OSD. Meta is told, and tells the others.
    pub fn set_advertised(&mut self, addr: SocketAddr, http: Option<SocketAddr>) {
        if (self.config.advertise, self.config.http) == (Some(addr), http) {
            return;
        }
        (self.config.advertise, self.config.http) = (Some(addr), http);
        if self.meta.connected {
            self.meta_connected();
        }
    }

    /// Notes that the stream is gone; reports stop until the next one.
    pub fn meta_lost(&mut self) {
        self.meta.connected = false;
        self.meta.outbox.clear();
        self.meta.reported(self.now, self.config.tuning.heartbeat);
    }

    /// Queues a message from meta, for the next turn.
    pub fn handle_control(&mut self, down: OsdDown) {
        self.meta.inbox.push_back(down);
    }

    /// Takes the messages for meta, in order.
    pub fn take_reports(&mut self) -> Vec<OsdUp> {
        std::mem::take(&mut self.meta.outbox)
    }

    pub(crate) fn drain_control(&mut self) {
        while self.meta.inbox.front().is_some_and(|down| self.hears(down)) {
            let down = self.meta.inbox.pop_front().expect("it was just seen");
            self.obey(down);
        }
    }

    fn obey(&mut self, down: OsdDown) {
        match down {
            OsdDown::Connected => self.meta_connected(),
            OsdDown::Welcome { osds, .. } => {
                self.welcomed();
                self.learn_addresses(&osds);
            }
            OsdDown::Osds { osds, .. } => self.learn_addresses(&osds),
            OsdDown::EnsureReplica { created, replica } => self.ensure_replica(created, replica),
            OsdDown::Peers(osds) => {
                self.recovery.payloads.handle_peers(osds.iter().copied().filter(|osd| *osd != self.config.osd));
                osds.into_iter().for_each(|osd| self.want_peer(osd));
            }
            OsdDown::ChangeMembers { pg, change } => {
                self.with_pg(pg, |group, _, _| group.handle_change(change));
            }
            OsdDown::ForceMembers { pg, force } => self.force_members(pg, force),
            OsdDown::DropReplica { pg, replica, keep } => self.drop_replica(pg, replica, keep),
            OsdDown::ReplicaFloor(floor) => self.engine.set_replica_floor(floor),
            OsdDown::Attach { pg, attach } => self.attach(pg, attach),
            OsdDown::Snapshots { pg, order: SnapshotOrder::Flatten { volume } } => self.order_flatten(pg, volume),
            OsdDown::Snapshots { pg, order: SnapshotOrder::Find { volume, len_epoch, tail } } => {
                self.order_find(pg, (volume, len_epoch), &tail);
            }
            OsdDown::Snapshots { pg, order } => self.order_snapshots(pg, order),
            OsdDown::Limits { part, volumes } => {
                self.limits.handle_limits(self.now, part, volumes);
                self.want_limit_links();
            }
            OsdDown::TransferLeader { pg, to } => {
                self.with_pg(pg, |group, now, actions| group.handle_transfer(now, to, actions));
            }
            OsdDown::Remember(told) => self.remember(told),
            OsdDown::Behind { reason, hold } => self.store_is_behind(&reason, hold),
            OsdDown::Refused { code, reason } if code == codes::WRONG_CLUSTER && self.meta.kept.revision > 0 => {
                self.strange_meta(reason);
            }
            OsdDown::FailReplicas { reason, mount } => self.fail_replicas(reason, mount),
            OsdDown::Refused { code, reason }
                if self.waits_for_rival(code, &reason) || self.asks_again_as_older(code, &reason) =>
            {
                self.meta_lost();
            }
            OsdDown::Refused { code, reason } => self.refused(code, reason),
        }
    }

    /// Ends service because meta has refused this process.
    pub(crate) fn refused(&mut self, code: u32, reason: String) {
        self.stop_serving(format!("{}: {reason}", codes::label(code)));
        self.meta.refusal = Some((code, reason));
    }

    /// Handles a metadata server of another cluster. This OSD has served its own: an emptied store, or a wrong
    /// address, must not end the service of clients. It goes on as without meta, and asks again.
    fn strange_meta(&mut self, reason: String) {
        if self.meta.strange.as_ref() != Some(&reason) {
            let code = codes::WRONG_CLUSTER;
            tracing::error!(
                code,
                reason,
                "the metadata server serves another cluster; the PGs of this OSD go on without it"
            );
            self.meta.strange = Some(reason);
        }
        self.meta_lost();
    }

    fn learn_addresses(&mut self, osds: &[OsdAddr]) {
        for entry in osds.iter().filter(|o| o.osd != self.config.osd) {
            self.bus.set_osd_addr(entry.osd, entry.addr);
        }
        let own = self.config.osd;
        self.set_limit_peers(osds.iter().map(|o| o.osd).filter(|osd| *osd != own));
        // Without meta only the peers of this OSD's own PGs matter, and they are few.
        let text = map_text(self.meta.wanted, &addresses_text(osds));
        if text.len() <= engine::MAP_MAX && self.phase == Phase::Running {
            self.engine.set_map(text.into());
        }
    }

    /// Keeps watermarks of the cluster's records. One write is under way at a time; newer watermarks go with the next.
    fn remember(&mut self, told: Watermarks) {
        if self.phase != Phase::Running {
            return;
        }
        let idle = self.meta.wanted == self.meta.kept;
        self.meta.wanted = self.meta.wanted.max(told);
        self.engine.set_next_replica(ReplicaId(self.meta.wanted.next_replica));
        if self.meta.wanted == self.meta.kept {
            self.meta.outbox.push(OsdUp::Remembers(self.meta.kept));
        } else if idle {
            self.write_watermarks();
        }
    }

    /// Repeats which watermarks are durable: a full queue may have lost the first message. Watermarks from before the Welcome are
    /// in the Hello, where meta can compare them.
    pub(crate) fn say_kept_again(&mut self) {
        if self.service.welcomed && self.meta.wanted == self.meta.kept {
            self.meta.outbox.push(OsdUp::Remembers(self.meta.kept));
        }
    }

    fn write_watermarks(&mut self) {
        self.write_map(self.meta.wanted);
    }

    fn write_map(&mut self, watermarks: Watermarks) {
        let map = String::from_utf8_lossy(self.engine.map()).into_owned();
        let addresses: String = map.lines().filter(|l| !l.starts_with(WATERMARKS)).flat_map(|l| [l, "\n"]).collect();
        let mut text = map_text(watermarks, &addresses);
        if text.len() > engine::MAP_MAX {
            text = map_text(watermarks, "");
        }
        self.engine.set_map(text.into());
    }

    /// Erases the watermarks of a restored device, which are old (R17). This run still reports them to meta, marked as such;
    /// later runs do not know them.
    pub(crate) fn forget_watermarks(&mut self) {
        self.write_map(Watermarks::default());
    }

    /// Starts with empty watermarks once meta has let the restored device in: from here on it keeps those that meta sends.
    pub(crate) fn begin_to_remember(&mut self) {
        (self.meta.kept, self.meta.wanted) = (Watermarks::default(), Watermarks::default());
    }

    /// Notes that a map is durable, and with it the watermarks that meta had sent before it was written.
    pub(crate) fn map_kept(&mut self, map: &[u8]) {
        let kept = watermarks_in(&String::from_utf8_lossy(map));
        if kept == self.meta.kept {
            return;
        }
        self.meta.kept = self.meta.kept.max(kept);
        if self.meta.connected {
            self.meta.outbox.push(OsdUp::Remembers(self.meta.kept));
        }
        if self.meta.wanted != self.meta.kept && self.phase == Phase::Running {
            self.write_watermarks();
        }
    }

    /// Restores the last addresses of the peers, for a start with no meta in reach.
    pub(crate) fn recall_addresses(&mut self) {
        let text = String::from_utf8_lossy(self.engine.map()).into_owned();
        for (osd, addr) in addresses_in(&text).filter(|(osd, _)| *osd != self.config.osd) {
            self.bus.set_osd_addr(osd, addr);
        }
    }

    /// Restores the watermarks from before this start; the Hello carries them.
    pub(crate) fn recall_watermarks(&mut self) {
        self.meta.kept = watermarks_in(&String::from_utf8_lossy(self.engine.map()));
        self.meta.wanted = self.meta.kept;
    }

    fn ensure_replica(&mut self, map: PgMap, replica: ReplicaId) {
        let elsewhere = map.members.iter().any(|m| m.replica == replica && m.osd != self.config.osd);
        if elsewhere || replica.0 == 0 {
            tracing::warn!(pg = %map.pg, %replica,
                "ignored an order of the metadata server: the replica belongs on another OSD, or is none");
            return;
        }
        let other = self.pgs.by_replica(replica).filter(|key| self.pgs.get(*key).identity.pg != map.pg);
        if let Some(key) = other {
            let holds = self.pgs.get(key).identity.pg;
            tracing::error!(pg = %map.pg, replica = replica.0, %holds,
                "ignored an order of the metadata server: the replica id belongs to another PG");
            return;
        }
        if self.pgs.by_replica(replica).is_some() || !matches!(self.phase, Phase::Running) {
            return;
        }
        let before = self.pgs.by_pg(map.pg).map(|key| self.pgs.get(key));
        if let Some(old) = before.filter(|slot| slot.identity.replica < replica && slot.yields()) {
            self.fail_replica(old.identity.replica, format!("{replica} takes its place"));
        }
        if !self.pgs.is_newest(map.pg, replica) {
            tracing::debug!(pg = %map.pg, %replica, "another replica of the PG takes part here: this one is not created");
            return;
        }
        if self.engine.is_gone(replica) {
            tracing::warn!(pg = %map.pg, %replica,
                "ignored an order of the metadata server: the replica was removed for good");
            return;
        }
        if !self.engine.has_room_for_replica() {
            tracing::warn!(pg = %map.pg, %replica,
                "the log's segments are too small for one more replica: it is not created; format with a larger \
                 --log-size");
            return;
        }
        let identity = ReplicaIdentity { pg: map.pg, replica, conf_epoch: map.conf_epoch, members: map.members };
        self.engine.create_replica(identity.clone(), fresh_state(&identity));
        let members = Membership::fresh(identity.conf_epoch, &identity.members);
        self.pgs.insert(identity, members, State::Creating);
    }

    pub(crate) fn replica_created(&mut self, replica: ReplicaId) {
        let Some(slot) = self.pgs.remove(replica) else { return };
        let identity = slot.identity;
        tracing::info!(pg = %identity.pg, replica = replica.0, "replica created");
        let checkpoint = fresh_state(&identity);
        self.add_recovered(Recovered {
            identity,
            hard_state: HardState::default(),
            checkpoint,
            before: (Index(0), Term(0)),
            entries: Vec::new(),
            lost: Vec::new(),
            failure: self.engine.failure(replica),
            fills: false,
        });
        self.share_log();
        self.meta.report_soon(self.now);
    }

    fn drop_replica(&mut self, pg: PgId, replica: ReplicaId, keep: bool) {
        if let Some(key) = self.pgs.by_replica(replica) {
            self.with_slot(key, Touch::Never, |group, _, actions| group.end("dropped".to_owned(), actions));
            self.pgs.remove(replica);
            self.recovery.payloads.forget(replica);
            tracing::info!(%pg, replica = replica.0, "removing a replica: its PG was deleted or has other members");
            match keep {
                true => self.engine.retire_replica(replica, self.now + self.config.tuning.removed_kept),
                false => self.engine.destroy_replica(replica),
            }
            self.share_log();
            self.meta.report_soon(self.now);
        }
        // The PG may be gone. A replica of it that is here may be compared with what was kept.
        if !keep && self.pgs.by_pg(pg).is_none() {
            self.engine.drop_relics_of(pg);
        }
    }

    fn attach(&mut self, pg: PgId, attach: Attach) {
        match self.pgs.by_pg(pg) {
            Some(key) if self.pgs.group(key).is_some() => {
                self.with_slot(key, Touch::Always, |group, now, actions| group.handle_attach(now, attach, actions));
            }
            _ => {
                let result = Err(AttachRefusal::NotLeader { hint: None });
                self.meta.outbox.push(OsdUp::Attached { pg, order: attach.order, result });
            }
        }
    }

    fn order_snapshots(&mut self, pg: PgId, order: SnapshotOrder) {
        match self.pgs.by_pg(pg) {
            Some(key) if self.pgs.group(key).is_some() => self.with_slot(key, Touch::Always, |group, now, actions| {
                group.handle_snapshot_order(now, order, actions);
            }),
            _ => {
                let answer = order.refuse(CutRefusal::NotLeader { hint: None });
                self.meta.outbox.push(OsdUp::Snapshots { pg, answer });
            }
        }
    }

    pub(crate) fn snapshots_answered(&mut self, slot: usize, answer: SnapshotAnswer) {
        let pg = self.pgs.get(slot).identity.pg;
        if self.meta.connected {
            self.meta.outbox.push(OsdUp::Snapshots { pg, answer });
        }
    }

    pub(crate) fn attached(&mut self, slot: usize, order: u64, result: Result<(), AttachRefusal>) {
        let pg = self.pgs.get(slot).identity.pg;
        if self.meta.connected {
            self.meta.outbox.push(OsdUp::Attached { pg, order, result });
        }
    }
}

/// Makes the part of the address map that the device keeps: one line `ID=ADDRESS` each.
fn addresses_text(osds: &[OsdAddr]) -> String {
    osds.iter().map(|o| format!("{}={}\n", o.osd.0, o.addr)).collect()
}

/// Prefix of the line with the watermarks.
const WATERMARKS: &str = "watermarks=";

/// Makes the text that the device keeps for a start without meta: the watermarks and the address map.
fn map_text(seen: Watermarks, addresses: &str) -> String {
    let w = seen;
    let ids = [w.revision, w.next_osd.into(), w.next_pool.into(), w.next_replica, w.next_volume, w.next_session];
    let ids: Vec<String> = ids.iter().chain([&w.map_epoch]).map(u64::to_string).collect();
    format!("{WATERMARKS}{}\n{addresses}", ids.join(","))
}

fn watermarks_in(text: &str) -> Watermarks {
    let line = text.lines().find_map(|l| l.strip_prefix(WATERMARKS)).unwrap_or_default();
    let ids: Vec<u64> = line.split(',').filter_map(|id| id.parse().ok()).collect();
    let [revision, next_osd, next_pool, next_replica, next_volume, next_session, map_epoch] = ids[..] else {
        return Watermarks::default();
    };
    let narrow = |id: u64| u32::try_from(id).unwrap_or(u32::MAX);
    let (next_osd, next_pool) = (narrow(next_osd), narrow(next_pool));
    Watermarks { revision, next_osd, next_pool, next_replica, next_volume, next_session, map_epoch }
}

fn addresses_in(text: &str) -> impl Iterator<Item = (OsdId, SocketAddr)> + '_ {
    text.lines().filter_map(|line| {
        let (osd, addr) = line.split_once('=')?;
        Some((OsdId(osd.parse().ok()?), addr.parse().ok()?))
    })
}

/// Makes the decision state of a replica that has applied no entry.
pub(crate) fn fresh_state(identity: &ReplicaIdentity) -> DecisionState {
    DecisionState {
        replica: identity.replica,
        index: Index(0),
        term: Term(0),
        bytes: group::Group::fresh_decision(identity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_map_survives_as_text() {
        let osds = [(1, "127.0.0.1:7410"), (20, "[::1]:7430")]
            .map(|(n, addr)| OsdAddr { osd: OsdId(n), addr: addr.parse().expect("an address") });
        let back: Vec<_> = addresses_in(&addresses_text(&osds)).map(|(osd, addr)| OsdAddr { osd, addr }).collect();
        assert_eq!(back, osds);
        assert_eq!(addresses_in("x\n1=y\n=\n").count(), 0);
        let seen = Watermarks {
            revision: u64::MAX,
            next_osd: 2,
            next_pool: u32::MAX,
            next_replica: 4,
            next_volume: 5,
            next_session: 6,
            map_epoch: 7,
        };
        let text = map_text(seen, &addresses_text(&osds));
        assert_eq!((watermarks_in(&text), addresses_in(&text).count()), (seen, 2));
        assert_eq!(watermarks_in("watermarks=1,2\n"), Watermarks::default());
    }
}
