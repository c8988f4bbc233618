//! I/O limits of volumes at their leaders (ADR 0032): a request is admitted before its group sees it, or refused with the time to wait.
//!
//! Meta sends the limits of all limited volumes to every OSD, so a change of leaders needs no message, and no client is
//! believed. A volume has leaders on several OSDs. Each of them holds the whole limit, and takes out of its buckets what the others
//! say that they admitted. So the sum averages to the limit however the load is spread, and exceeds it by at most a depth and the
//! time between two messages for each OSD.
//!
//! Nothing here is decision state (R1, applied state decides alone): another leader may decide otherwise about the same request.
//! Invariant: an OSD queues no request for a limit. What a request was charged is given back when it is refused after all.

use crate::node::Osd;
use crate::shares::{Demand, Floors};
use bus::LinkId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::control::LimitsPart;
use types::planted::{Bug, on};
use types::qos::{Buckets, Cost, Direction, LimitKind, Strictness};
use types::{OsdId, QosLimits, Time, VolumeId};
use wire::{Message, Reject, Request, RequestBody, USED_MAX, Used};

/// A leader is a little less strict than a client: what an honest client sends is refused by none.
const HOW: Strictness = Strictness { depth: Duration::from_millis(500), slack_permille: 10 };
/// A floor holds over a time: a volume that was quiet may use this much of it at once.
const FLOOR_HOW: Strictness = Strictness { depth: Duration::from_millis(100), slack_permille: 0 };
/// Time between two messages about what this OSD admitted.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Shortest wait that a refusal names.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Cost that a request was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    direction: Direction,
    cost: Cost,
}

/// Operations and bytes of one direction that others were not told of. Below zero: they were told of some that were given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Untold {
    ops: i64,
    bytes: i64,
}

impl Untold {
    fn add(&mut self, cost: Cost, sign: i64) {
        self.ops = self.ops.saturating_add(sign * i64::from(cost.ops));
        self.bytes = self.bytes.saturating_add(sign.saturating_mul(i64::try_from(cost.bytes).unwrap_or(i64::MAX)));
    }

    /// Takes what a message can carry.
    fn take(&mut self) -> Cost {
        let ops = u32::try_from(self.ops.max(0)).unwrap_or(u32::MAX);
        let bytes = u64::try_from(self.bytes.max(0)).unwrap_or(0);
        self.add(Cost { ops, bytes }, -1);
        Cost { ops, bytes }
    }
}

struct Limited {
    buckets: Buckets,
    /// The rate up to which requests do not wait for those of other volumes, if it has one.
    floor: Option<Buckets>,
    read: Untold,
    write: Untold,
}

impl Limited {
    fn new(now: Time) -> Limited {
        let buckets = Buckets::new(now, QosLimits::NONE, HOW);
        Limited { buckets, floor: None, read: Untold::default(), write: Untold::default() }
    }

    fn change_floor(&mut self, now: Time, floor: QosLimits) {
        match &mut self.floor {
            _ if floor.is_none() => self.floor = None,
            Some(before) => before.change(now, floor),
            None => self.floor = Some(Buckets::new(now, floor, FLOOR_HOW)),
        }
    }

    fn untold(&mut self, direction: Direction) -> &mut Untold {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }
}

/// Operations or bytes that a peer without a link was not told of. They lapse at the rate of the limit: its bucket filled meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    amount: u64,
    since: Time,
}

impl Missed {
    /// Returns what the peer still has to hear.
    fn rest(self, now: Time, rate: Option<u64>) -> u64 {
        let Some(rate) = rate else { return 0 };
        let lapsed = u128::from(rate) * now.since(self.since).as_nanos() / 1_000_000_000;
        self.amount.saturating_sub(u64::try_from(lapsed).unwrap_or(u64::MAX))
    }

    fn add(&mut self, now: Time, rate: Option<u64>, amount: u64) {
        if self.rest(now, rate) == 0 {
            *self = Missed { amount: 0, since: now };
        }
        self.amount = self.amount.saturating_add(amount);
    }
}

/// All that one peer has missed of one volume: operations and bytes of reads, operations and bytes of writes.
type AllMissed = [Missed; 4];

/// Returns the rates at which what was missed lapses, the lowest that counts it.
fn rates_of(limits: &QosLimits) -> [Option<u64>; 4] {
    let least = |all, one| [limits.get(all), limits.get(one)].into_iter().flatten().map(|limit| limit.rate).min();
    [
        least(LimitKind::Iops, LimitKind::ReadIops),
        least(LimitKind::Bandwidth, LimitKind::ReadBandwidth),
        least(LimitKind::Iops, LimitKind::WriteIops),
        least(LimitKind::Bandwidth, LimitKind::WriteBandwidth),
    ]
}

fn rests(now: Time, missed: &AllMissed, limits: &QosLimits) -> [u64; 4] {
    let rates = rates_of(limits);
    std::array::from_fn(|i| missed[i].rest(now, rates[i]))
}

/// The limited volumes of the cluster, and the other OSDs.
#[derive(Default)]
pub(crate) struct Limits {
    volumes: BTreeMap<VolumeId, Limited>,
    /// Volumes that others were not told of.
    untold: BTreeSet<VolumeId>,
    /// Volumes of a list of all that has begun.
    listed: BTreeSet<VolumeId>,
    peers: Vec<OsdId>,
    /// Use that peers without a link were not told of: at most an entry for each of them and each volume, until it has lapsed.
    missed: BTreeMap<(OsdId, VolumeId), AllMissed>,
    tell_at: Option<Time>,
}

/// Returns direction and cost of a request that counts.
fn charge_of(body: &RequestBody) -> Option<(VolumeId, Charge)> {
    let one = |bytes| Cost { ops: 1, bytes };
    let (volume, direction, cost) = match body {
        RequestBody::Write { chunk, range, .. } => (chunk.volume, Direction::Write, one(range.len_bytes() as u64)),
        RequestBody::Zero { chunk, .. } => (chunk.volume, Direction::Write, one(0)),
        RequestBody::Skip { volume, .. } => (*volume, Direction::Write, one(0)),
        RequestBody::Read { chunk, range, .. } => (chunk.volume, Direction::Read, one(range.len_bytes() as u64)),
        RequestBody::Extents { chunk, .. } => (chunk.volume, Direction::Read, one(0)),
        RequestBody::FenceCheck { .. } | RequestBody::Unreached { .. } => return None,
    };
    Some((volume, Charge { direction, cost }))
}

/// Returns what a request asks of the OSD; `None`: it is answered at once.
pub(crate) fn demand_of(body: &RequestBody) -> Option<Demand> {
    charge_of(body).map(|(volume, Charge { direction, cost })| Demand { volume, direction, cost })
}

impl Floors for Limits {
    fn wait(&mut self, now: Time, demand: Demand) -> Option<Duration> {
        let floor = self.volumes.get_mut(&demand.volume)?.floor.as_mut()?;
        Some(floor.wait(now, demand.direction))
    }

    fn take(&mut self, now: Time, demand: Demand) {
        if let Some(floor) = self.volumes.get_mut(&demand.volume).and_then(|limited| limited.floor.as_mut()) {
            floor.take(now, demand.direction, demand.cost);
        }
    }
}

impl Limits {
    /// Whether no volume is limited.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    /// Sets the other OSDs of the cluster. Returns those that left it.
    pub fn set_peers(&mut self, peers: impl Iterator<Item = OsdId>) -> Vec<OsdId> {
        let before = std::mem::replace(&mut self.peers, peers.collect());
        self.missed.retain(|(osd, _), _| self.peers.contains(osd));
        before.into_iter().filter(|osd| !self.peers.contains(osd)).collect()
    }

    /// Takes limits from meta; those without any limit are limited no longer.
    pub fn handle_limits(&mut self, now: Time, part: LimitsPart, volumes: Vec<(VolumeId, QosLimits)>) {
        if part.begins {
            self.listed.clear();
        }
        for (volume, limits) in volumes {
            if part.is_list() {
                self.listed.insert(volume);
            }
            if limits.is_none() {
                self.forget(volume);
                continue;
            }
            let limited = self.volumes.entry(volume).or_insert_with(|| Limited::new(now));
            limited.buckets.change(now, limits);
            limited.change_floor(now, limits.floor());
        }
        if part.ends {
            let listed = std::mem::take(&mut self.listed);
            self.volumes.retain(|volume, _| listed.contains(volume));
            self.untold.retain(|volume| listed.contains(volume));
            self.missed.retain(|(_, volume), _| listed.contains(volume));
        }
    }

    fn forget(&mut self, volume: VolumeId) {
        self.volumes.remove(&volume);
        self.untold.remove(&volume);
        self.missed.retain(|(_, of), _| *of != volume);
    }

    /// Charges a request, or refuses it with the time to wait. `None`: its volume is not limited.
    pub fn admit(&mut self, now: Time, body: &RequestBody) -> Result<Option<Charge>, Reject> {
        let Some((volume, charge)) = charge_of(body) else { return Ok(None) };
        let Some(limited) = self.volumes.get_mut(&volume) else { return Ok(None) };
        if limited.buckets.are_none() {
            return Ok(None);
        }
        let wait = limited.buckets.wait(now, charge.direction);
        if !wait.is_zero() {
            let wait_us = u32::try_from(wait.max(WAIT_MIN).as_micros()).unwrap_or(u32::MAX);
            return Err(Reject::Throttled { wait_us });
        }
        limited.buckets.take(now, charge.direction, charge.cost);
        limited.untold(charge.direction).add(charge.cost, 1);
        self.untold.insert(volume);
        self.tell_at.get_or_insert(now + TELL_EVERY);
        Ok(Some(charge))
    }

    /// Gives back what a request was charged that was refused after all.
    pub fn give_back(&mut self, volume: VolumeId, charge: Charge) {
        if let Some(limited) = self.volumes.get_mut(&volume) {
            limited.buckets.give_back(charge.direction, charge.cost);
            limited.untold(charge.direction).add(charge.cost, -1);
        }
    }

    /// Takes out what another OSD admitted.
    pub fn handle_used(&mut self, now: Time, used: &[Used]) {
        for used in used {
            if on(Bug::UseOfOthersIgnored) {
                continue;
            }
            // A volume whose limits have not arrived here, or are gone, needs no books.
            if let Some(limited) = self.volumes.get_mut(&used.volume) {
                limited.buckets.take(now, Direction::Read, Cost { ops: used.read_ops, bytes: used.read_bytes });
                limited.buckets.take(now, Direction::Write, Cost { ops: used.write_ops, bytes: used.write_bytes });
            }
        }
    }

    pub fn next_deadline(&self) -> Time {
        self.tell_at.unwrap_or(Time::NEVER)
    }

    /// Returns what was admitted since the last message, when the next one is due.
    fn take_untold(&mut self, now: Time) -> Vec<Used> {
        if now < self.next_deadline() {
            return Vec::new();
        }
        self.tell_at = None;
        if !self.missed.is_empty() {
            self.lapse(now);
        }
        let mut all = Vec::new();
        for volume in std::mem::take(&mut self.untold) {
            let Some(limited) = self.volumes.get_mut(&volume) else { continue };
            let (read, write) = (limited.read.take(), limited.write.take());
            let (read_ops, read_bytes, write_ops, write_bytes) = (read.ops, read.bytes, write.ops, write.bytes);
            if (read, write) != Default::default() {
                all.push(Used { volume, read_ops, read_bytes, write_ops, write_bytes });
            }
        }
        all
    }

    /// Keeps for a peer without a link what it was not told of.
    fn keep_for(&mut self, now: Time, osd: OsdId, used: &[Used]) {
        for used in used {
            let Some(limited) = self.volumes.get(&used.volume) else { continue };
            let rates = rates_of(limited.buckets.limits());
            let amounts = [u64::from(used.read_ops), used.read_bytes, u64::from(used.write_ops), used.write_bytes];
            let missed = self.missed.entry((osd, used.volume)).or_default();
            for ((missed, rate), amount) in missed.iter_mut().zip(rates).zip(amounts) {
                missed.add(now, rate, amount);
            }
        }
        if !self.missed.is_empty() {
            self.tell_at.get_or_insert(now + TELL_EVERY);
        }
    }

    /// Takes what a peer has missed, now that it has a link.
    fn take_missed(&mut self, now: Time, osd: OsdId) -> Vec<Used> {
        let of_peer = (osd, VolumeId(0))..=(osd, VolumeId(u64::MAX));
        let volumes: Vec<VolumeId> = self.missed.range(of_peer).map(|((_, volume), _)| *volume).collect();
        let mut all = Vec::new();
        for volume in volumes {
            let missed = self.missed.remove(&(osd, volume)).expect("it was just seen");
            let Some(limited) = self.volumes.get(&volume) else { continue };
            let [read_ops, read_bytes, write_ops, write_bytes] = rests(now, &missed, limited.buckets.limits());
            let ops = |ops| u32::try_from(ops).unwrap_or(u32::MAX);
            all.push(Used { volume, read_ops: ops(read_ops), read_bytes, write_ops: ops(write_ops), write_bytes });
        }
        all
    }

    /// Forgets what was missed and does not matter any longer.
    fn lapse(&mut self, now: Time) {
        let volumes = &self.volumes;
        self.missed.retain(|(_, volume), missed| {
            let limited = volumes.get(volume);
            limited.is_some_and(|limited| rests(now, missed, limited.buckets.limits()) != [0; 4])
        });
    }
}

impl Osd {
    /// Charges a client's request to the limits of its volume.
    pub(crate) fn admit_limited(&mut self, request: &Request) -> Result<Option<Charge>, Reject> {
        if self.limits.is_empty() {
            return Ok(None);
        }
        let admitted = self.limits.admit(self.now, &request.body);
        if admitted.is_err() {
            self.stats.metrics.throttled.inc();
        }
        admitted
    }

    /// Makes links to all other OSDs as soon as any volume is limited. An OSD dials none of a higher id, so one that wanted links
    /// only after its first admission would reach none until those with higher ids admitted something, too.
    pub(crate) fn want_limit_links(&mut self) {
        if !self.limits.is_empty() {
            self.limits.peers.clone().into_iter().for_each(|osd| self.want_peer(osd));
        }
    }

    /// Takes over the other OSDs of the cluster. One that left it is not dialled for limits any more; a member of a PG here is.
    pub(crate) fn set_limit_peers(&mut self, peers: impl Iterator<Item = OsdId>) {
        for osd in self.limits.set_peers(peers) {
            if !self.pgs.iter().any(|slot| slot.others().any(|member| member.osd == osd)) {
                self.bus.unwant(osd, &mut self.turn.ops);
            }
        }
        self.want_limit_links();
    }

    /// Tells the other OSDs what was admitted here of limited volumes, and those that had no link what they have missed. A message that
    /// is lost with its connection is not repeated.
    pub(crate) fn tell_used(&mut self) {
        if self.now < self.limits.next_deadline() {
            return;
        }
        let used = self.limits.take_untold(self.now);
        for osd in self.limits.peers.clone() {
            let Some(link) = self.bus.link_to(osd) else {
                self.limits.keep_for(self.now, osd, &used);
                continue;
            };
            let missed = self.limits.take_missed(self.now, osd);
            self.send_used(link, &missed);
            self.send_used(link, &used);
        }
    }

    fn send_used(&mut self, link: LinkId, used: &[Used]) {
        for part in used.chunks(USED_MAX) {
            self.bus.send(link, Message::Used(part.to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{RateLimit, SectorRange, VolumeChunk};

    const V: VolumeId = VolumeId(7);
    const CHANGE: LimitsPart = LimitsPart { begins: false, goes_on: false, ends: false };

    fn iops(rate: u64) -> QosLimits {
        QosLimits { iops: Some(RateLimit { rate, burst: 0, burst_seconds: 0 }), ..QosLimits::NONE }
    }

    fn read(volume: VolumeId) -> RequestBody {
        RequestBody::Read { chunk: VolumeChunk { volume, index: 0 }, range: SectorRange::new(0, 8), snapshot: None }
    }

    fn limited(rate: u64) -> Limits {
        limited_to(iops(rate))
    }

    fn limited_to(of_volume: QosLimits) -> Limits {
        let mut limits = Limits::default();
        limits.handle_limits(Time::ZERO, CHANGE, vec![(V, of_volume)]);
        limits
    }

    /// Lets clients without a limiter send all that is admitted, to `leaders` in shares of `weights`, and carries the messages
    /// between leaders with a delay of a turn. Returns how many operations were admitted in each second.
    fn flood(leaders: &mut [Limits], weights: &[u64], seconds: u64) -> Vec<u64> {
        flood_with(leaders, weights, &read(V), 1, seconds)
    }

    fn flood_with(leaders: &mut [Limits], weights: &[u64], body: &RequestBody, turn_ms: u64, seconds: u64) -> Vec<u64> {
        let mut admitted = vec![0; seconds as usize];
        for ms in (0..seconds * 1000).step_by(turn_ms as usize) {
            let now = Time(ms * 1_000_000);
            for (leader, weight) in leaders.iter_mut().zip(weights) {
                for _ in 0..*weight {
                    admitted[(ms / 1000) as usize] += u64::from(leader.admit(now, body).is_ok());
                }
            }
            for from in 0..leaders.len() {
                let used = leaders[from].take_untold(now);
                for (to, leader) in leaders.iter_mut().enumerate().filter(|_| !used.is_empty()) {
                    if to != from {
                        leader.handle_used(now, &used);
                    }
                }
            }
        }
        admitted
    }

    #[test]
    fn leaders_share_a_limit_however_the_load_is_spread() {
        for weights in [&[5][..], &[5, 5, 5], &[50, 1, 1], &[9, 0, 0], &[3, 4, 5, 6, 7, 8, 9, 1]] {
            for rate in [500, 2_000] {
                let mut leaders: Vec<Limits> = weights.iter().map(|_| limited(rate)).collect();
                let admitted = flood(&mut leaders, weights, 70);
                // The depths of the start are used up in the first seconds.
                let sum: u64 = admitted[10..].iter().sum();
                let bound = 60 * rate * 3 / 100;
                assert!(sum.abs_diff(60 * rate) <= bound, "{sum} in 60 s at {rate}/s: {weights:?}");
                let all: u64 = admitted.iter().sum();
                // Each leader adds a depth, and what it admits until it hears of the others.
                let overshoot = weights.len() as u64 * rate * (500 + 2 * 200) / 1000;
                assert!(all <= 70 * rate * 101 / 100 + overshoot, "{all} in 70 s at {rate}/s: {weights:?}");
            }
        }
    }

    #[test]
    fn leaders_share_a_low_bandwidth_though_each_large_operation_owes_long() {
        let (rate, part) = (64 << 10, 512 << 10);
        let limit = Some(RateLimit { rate, burst: 0, burst_seconds: 0 });
        let limits = QosLimits { bandwidth: limit, ..QosLimits::NONE };
        let large = RequestBody::Read {
            chunk: VolumeChunk { volume: V, index: 0 },
            range: SectorRange::new(0, 1_024),
            snapshot: None,
        };
        let mut leaders: Vec<Limits> = (0..16).map(|_| limited_to(limits)).collect();
        let seconds = 2_000;
        let admitted = flood_with(&mut leaders, &[1; 16], &large, 50, seconds);
        let bytes = admitted.iter().sum::<u64>() * part;
        // On top of the rate each leader adds a depth and one operation, once.
        let bound = rate * seconds * 101 / 100 + 16 * (rate / 2 + rate * 2 / 5 + part);
        assert!(bytes <= bound, "{bytes} bytes in {seconds} s at {rate}/s");
        assert!(bytes >= rate * seconds, "{bytes} bytes in {seconds} s at {rate}/s");
    }

    #[test]
    fn refused_request_waits_as_long_as_the_bucket_needs() {
        let mut limits = limited(10);
        let now = Time(1_000_000_000);
        let mut admitted = 0;
        let wait_us = loop {
            match limits.admit(now, &read(V)) {
                Ok(_) => admitted += 1,
                Err(Reject::Throttled { wait_us }) => break wait_us,
                Err(other) => panic!("{other:?}"),
            }
        };
        assert_eq!(admitted, 6, "half a second of 10 a second, and one that leaves a debt");
        assert!(limits.admit(now + Duration::from_micros(u64::from(wait_us) - 1_000), &read(V)).is_err());
        assert!(limits.admit(now + Duration::from_micros(u64::from(wait_us) + 1), &read(V)).is_ok());
        assert!(limits.admit(now, &read(VolumeId(8))).is_ok_and(|charge| charge.is_none()), "it has no limit");
        assert!(limits.admit(now, &RequestBody::FenceCheck { volume: V }).is_ok_and(|charge| charge.is_none()));
    }

    #[test]
    fn longest_debt_fits_into_a_refusal() {
        let mut limits = limited(1);
        let most =
            Used { volume: V, read_ops: u32::MAX, read_bytes: u64::MAX, write_ops: u32::MAX, write_bytes: u64::MAX };
        limits.handle_used(Time::ZERO, &[most; 3]);
        let Err(Reject::Throttled { wait_us }) = limits.admit(Time::ZERO, &read(V)) else { panic!("it owes") };
        assert!((3_600_000_000..u32::MAX).contains(&wait_us), "{wait_us}");
    }

    #[test]
    fn peer_without_a_link_hears_later_what_has_not_lapsed() {
        let later = |seconds| Time::ZERO + TELL_EVERY + Duration::from_secs(seconds);
        let used = Used { volume: V, read_ops: 100, read_bytes: 1 << 20, write_ops: 0, write_bytes: 0 };
        let mut limits = limited(10);
        limits.set_peers([OsdId(2), OsdId(3)].into_iter());
        limits.keep_for(later(0), OsdId(2), &[used]);
        limits.keep_for(later(4), OsdId(2), &[Used { read_ops: 5, ..used }]);
        assert!(limits.next_deadline() <= later(1), "it is told without another admission");
        assert!(limits.take_missed(later(5), OsdId(3)).is_empty());
        // 105 operations, of which five seconds took 50. No limit counts the bytes.
        let told = limits.take_missed(later(5), OsdId(2));
        assert_eq!(told, [Used { read_ops: 55, read_bytes: 0, ..used }]);
        assert!(limits.take_missed(later(5), OsdId(2)).is_empty());
        // A load at the rate leaves nothing, and nothing keeps the timer when it has lapsed.
        for second in 10..100 {
            limits.keep_for(later(second), OsdId(2), &[Used { read_ops: 10, ..used }]);
        }
        limits.take_untold(later(101));
        assert_eq!((limits.missed.len(), limits.next_deadline()), (0, Time::NEVER));
        // Idle time is no credit for later use.
        limits.keep_for(later(200), OsdId(2), &[used]);
        limits.keep_for(later(300), OsdId(2), &[used]);
        assert_eq!(limits.take_missed(later(300), OsdId(2))[0].read_ops, 100);
        limits.keep_for(later(300), OsdId(2), &[used]);
        assert_eq!(limits.set_peers([OsdId(3)].into_iter()), [OsdId(2)]);
        assert!(limits.missed.is_empty());
    }

    #[test]
    fn refused_requests_cost_nothing_here_and_elsewhere() {
        let mut limits = limited(10);
        for _ in 0..100 {
            let charge = limits.admit(Time::ZERO, &read(V)).expect("it is given back each time").expect("limited");
            limits.give_back(V, charge);
        }
        assert!(limits.take_untold(Time::ZERO + TELL_EVERY).is_empty());
        let charge = limits.admit(Time::ZERO, &read(V)).expect("admitted").expect("limited");
        assert_eq!(limits.take_untold(Time::ZERO + TELL_EVERY).len(), 1);
        // Others know of it already: the next one is deducted.
        limits.give_back(V, charge);
        limits.admit(Time::ZERO, &read(V)).expect("admitted");
        assert!(limits.take_untold(Time::ZERO + TELL_EVERY * 2).is_empty());
    }

    #[test]
    fn list_of_all_limits_replaces_those_that_it_lacks_and_keeps_levels() {
        let mut limits = limited(10);
        limits.handle_limits(Time::ZERO, CHANGE, vec![(VolumeId(8), iops(10))]);
        while limits.admit(Time::ZERO, &read(V)).is_ok() {}
        let begins = LimitsPart { begins: true, goes_on: false, ends: false };
        let ends = LimitsPart { begins: false, goes_on: true, ends: true };
        limits.handle_limits(Time::ZERO, begins, vec![(V, iops(10))]);
        assert_eq!(limits.volumes.len(), 2, "the list is not whole yet");
        limits.handle_limits(Time::ZERO, ends, vec![(VolumeId(9), iops(10))]);
        assert_eq!(limits.volumes.keys().copied().collect::<Vec<_>>(), [V, VolumeId(9)]);
        assert!(limits.admit(Time::ZERO, &read(V)).is_err(), "a new stream of meta fills no bucket");
        limits.handle_limits(Time::ZERO, CHANGE, vec![(V, QosLimits::NONE)]);
        assert!(limits.admit(Time::ZERO, &read(V)).is_ok());
        limits.handle_limits(Time::ZERO, LimitsPart { begins: true, goes_on: false, ends: true }, Vec::new());
        assert!(limits.is_empty());
    }
}
