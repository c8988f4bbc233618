//! Fair shares of an OSD between volumes: which request is served next, and which ones wait (ADR 0038).
//!
//! Requests in service share one log, one device and one thread, so a volume gets the part of the OSD that its requests have of all those in
//! service. While more than one volume has requests here, those in service cost [`WINDOW`] together, and each volume has an equal part of that.
//! A request goes at once while its volume has less than its part in service, or while there is room. Others wait in the order of
//! their arrival, volume by volume; the next one is of the volume that has least in service. The rest of a part that a volume leaves
//! is for the others.
//!
//! A floor is a rate up to which requests of a volume never wait here.
//!
//! Invariant: requests of one volume are served in the order of their arrival. A request that is in service for [`STUCK`] counts no longer: a
//! PG without a majority holds up no other volume. Nothing here is decision state (R1).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::qos::{Cost, Direction};
use types::{Time, VolumeId};

/// Cost of all requests in service, when more than one volume has some. So many of 4 KiB keep log and device busy.
const WINDOW: u32 = 32;
/// Bytes that cost as much as an operation.
const BYTES_PER_COST: u64 = 128 << 10;
/// A request that is in service for this long does not count any more. It is longer than a full window takes on a rotating disk.
const STUCK: Duration = Duration::from_secs(1);
/// A volume counts for this long behind its last request: one that waits for each answer before it asks again is not new each time.
const QUIET: Duration = Duration::from_millis(100);
/// Most requests of one volume that wait, if it is the only one that has some; of more volumes, each has an equal part. More are refused.
const WAITING_MAX: usize = 8192;
/// Most bytes of their payloads, in the same way.
const WAITING_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of all payloads that wait: parts shrink when a volume comes, and what waits already stays.
const WAITING_BYTES_OF_ALL: u64 = 4 * WAITING_BYTES_MAX;

/// A request, as far as shares go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub volume: VolumeId,
    pub direction: Direction,
    pub cost: Cost,
}

impl Demand {
    /// Returns the bytes that it holds while it waits.
    fn held_bytes(self) -> u64 {
        if self.direction == Direction::Write { self.cost.bytes } else { 0 }
    }

    /// Returns its part of the window.
    fn weight(self) -> u32 {
        1 + u32::try_from(self.cost.bytes / BYTES_PER_COST).unwrap_or(u32::MAX / 2)
    }
}

/// The floors of volumes.
pub(crate) trait Floors {
    /// Returns the time until a request is within the floor of its volume. `None`: the volume has none.
    fn wait(&mut self, now: Time, demand: Demand) -> Option<Duration>;

    /// Takes a request out of the floor of its volume.
    fn take(&mut self, now: Time, demand: Demand);
}

/// A request in service. Its end has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Outcome of an offer.
pub(crate) enum Offer<T> {
    Serve(T, Ticket),
    Waits,
    /// Too many wait already.
    Full(T),
}

/// A volume that has requests, or had some a moment ago.
struct Share<T> {
    /// Cost in service that counts.
    cost: u32,
    waiting: VecDeque<(Demand, T)>,
    waiting_bytes: u64,
    /// Number of its last turn: of volumes with equal costs in service, the one whose turn is longest ago is next.
    turn: u64,
    /// End of its last request, if it has none.
    quiet_since: Option<Time>,
}

/// The volumes that share an OSD; `T` is a request that waits.
pub(crate) struct Shares<T> {
    volumes: BTreeMap<VolumeId, Share<T>>,
    /// Cost in service that counts, over all volumes.
    cost: u32,
    /// Volumes with waiting requests: cost in service, last turn.
    queue: BTreeSet<(u32, u64, VolumeId)>,
    /// Those of them that have a floor.
    floored: BTreeSet<VolumeId>,
    waiting: usize,
    waiting_bytes: u64,
    /// Requests in service by number, from the oldest that counts on: when each began. `None`: it has ended.
    begun: VecDeque<Option<(Time, Demand)>>,
    /// Number of the first of them.
    first: u64,
    /// Volumes without requests, in the order in which they became quiet. An entry of one that has requests again is skipped.
    quiet: VecDeque<(Time, VolumeId)>,
}

impl<T> Default for Shares<T> {
    fn default() -> Shares<T> {
        Shares {
            volumes: BTreeMap::new(),
            cost: 0,
            queue: BTreeSet::new(),
            floored: BTreeSet::new(),
            waiting: 0,
            waiting_bytes: 0,
            begun: VecDeque::new(),
            first: 0,
            quiet: VecDeque::new(),
        }
    }
}

impl<T> Shares<T> {
    /// Returns the number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes a request: it is to be served now, or waits.
    pub fn offer(&mut self, now: Time, demand: Demand, item: T, floors: &mut dyn Floors) -> Offer<T> {
        self.expire(now);
        let new = Share { cost: 0, waiting: VecDeque::new(), waiting_bytes: 0, turn: 0, quiet_since: None };
        let share = self.volumes.entry(demand.volume).or_insert(new);
        share.quiet_since = None;
        let follows = !share.waiting.is_empty();
        let (alone, part) = (self.volumes.len() == 1, self.part());
        let share = &self.volumes[&demand.volume];
        let has_room = alone || share.cost < part || self.cost < WINDOW && self.queue.is_empty();
        let floor = floors.wait(now, demand);
        if !follows && (has_room || floor == Some(Duration::ZERO)) {
            return Offer::Serve(item, self.begin(now, demand, floors));
        }
        let (count, bytes) = (self.volumes.len(), demand.held_bytes());
        let share = self.volumes.get_mut(&demand.volume).expect("it was made above");
        let is_full = share.waiting.len() >= (WAITING_MAX / count).max(1)
            || share.waiting_bytes + bytes > (WAITING_BYTES_MAX / count as u64).max(bytes)
            || self.waiting_bytes + bytes > WAITING_BYTES_OF_ALL;
        if is_full {
            self.watch_quiet(now, demand.volume);
            return Offer::Full(item);
        }
        self.waiting += 1;
        self.waiting_bytes += bytes;
        share.waiting_bytes += bytes;
        share.waiting.push_back((demand, item));
        self.queue.insert((share.cost, share.turn, demand.volume));
        if floor.is_some() {
            self.floored.insert(demand.volume);
        }
        Offer::Waits
    }

    /// Returns the request of a volume that waits since the last moment.
    pub fn newest(&mut self, volume: VolumeId) -> Option<&mut T> {
        self.volumes.get_mut(&volume)?.waiting.back_mut().map(|(_, item)| item)
    }

    /// Returns a waiting request that is to be served now.
    pub fn next(&mut self, now: Time, floors: &mut dyn Floors) -> Option<(T, Ticket)> {
        if self.waiting == 0 {
            return None;
        }
        self.expire(now);
        let volume = self.within_floor(now, floors).or_else(|| self.within_window())?;
        let share = self.volumes.get_mut(&volume).expect("a volume that waits is known");
        let key = (share.cost, share.turn, volume);
        let (demand, item) = share.waiting.pop_front().expect("it waits");
        share.waiting_bytes -= demand.held_bytes();
        if share.waiting.is_empty() {
            self.queue.remove(&key);
            self.floored.remove(&volume);
        }
        self.waiting -= 1;
        self.waiting_bytes -= demand.held_bytes();
        let ticket = self.begin(now, demand, floors);
        Some((item, ticket))
    }

    /// Notes that a request is not in service any more.
    pub fn end(&mut self, now: Time, ticket: Ticket) {
        let begun = ticket.0.checked_sub(self.first).and_then(|at| self.begun.get_mut(usize::try_from(at).ok()?));
        if let Some((_, demand)) = begun.and_then(Option::take) {
            self.uncount(now, demand);
        }
        while let Some(None) = self.begun.front() {
            self.begun.pop_front();
            self.first += 1;
        }
    }

    /// Returns when a waiting request may be served though none ends: when one that is stuck counts no longer, or when a floor allows it.
    pub fn next_deadline(&mut self, now: Time, floors: &mut dyn Floors) -> Time {
        if self.waiting == 0 {
            return Time::NEVER;
        }
        if self.within_window().is_some() {
            return now;
        }
        let stuck = self.begun.iter().flatten().next().map_or(now, |(began, _)| *began + STUCK);
        let stuck = self.quiet.front().map_or(stuck, |(since, _)| stuck.min(*since + QUIET));
        let heads = self.floored.iter().filter_map(|volume| self.volumes.get(volume)?.waiting.front());
        heads.filter_map(|(demand, _)| floors.wait(now, *demand)).map(|wait| now + wait).fold(stuck, Time::min)
    }

    fn part(&self) -> u32 {
        (WINDOW / u32::try_from(self.volumes.len().max(1)).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns a waiting volume whose next request is within its floor.
    fn within_floor(&self, now: Time, floors: &mut dyn Floors) -> Option<VolumeId> {
        let is_within = |volume: &VolumeId| {
            let head = self.volumes.get(volume).and_then(|share| share.waiting.front());
            head.is_some_and(|(demand, _)| floors.wait(now, *demand) == Some(Duration::ZERO))
        };
        self.floored.iter().copied().find(is_within)
    }

    /// Returns the volume with least in service, if there is room for its next request.
    fn within_window(&self) -> Option<VolumeId> {
        let (cost, _, volume) = self.queue.first()?;
        (self.cost < WINDOW || *cost < self.part() || self.volumes.len() == 1).then_some(*volume)
    }

    fn begin(&mut self, now: Time, demand: Demand, floors: &mut dyn Floors) -> Ticket {
        if floors.wait(now, demand) == Some(Duration::ZERO) {
            floors.take(now, demand);
        }
        let number = self.first + self.begun.len() as u64;
        self.begun.push_back(Some((now, demand)));
        self.cost += demand.weight();
        let share = self.volumes.get_mut(&demand.volume).expect("it is known");
        let before = (share.cost, share.turn, demand.volume);
        share.cost += demand.weight();
        share.turn = number;
        if self.queue.remove(&before) {
            self.queue.insert((share.cost, share.turn, demand.volume));
        }
        Ticket(number)
    }

    /// Forgets quiet volumes, and counts requests no longer that are in service for too long.
    fn expire(&mut self, now: Time) {
        while let Some((since, volume)) = self.quiet.front().copied().filter(|(since, _)| now.since(*since) >= QUIET) {
            self.quiet.pop_front();
            if self.volumes.get(&volume).is_some_and(|share| share.quiet_since == Some(since)) {
                self.volumes.remove(&volume);
            }
        }
        while let Some(front) = self.begun.front() {
            match front {
                Some((began, _)) if now.since(*began) < STUCK => return,
                _ => {}
            }
            let front = self.begun.pop_front().flatten();
            self.first += 1;
            if let Some((_, demand)) = front {
                self.uncount(now, demand);
            }
        }
    }

    fn uncount(&mut self, now: Time, demand: Demand) {
        self.cost -= demand.weight();
        let Some(share) = self.volumes.get_mut(&demand.volume) else { return };
        let before = (share.cost, share.turn, demand.volume);
        share.cost -= demand.weight();
        if self.queue.remove(&before) {
            self.queue.insert((share.cost, share.turn, demand.volume));
        }
        self.watch_quiet(now, demand.volume);
    }

    /// Notes that a volume has no request any more, if that is so.
    fn watch_quiet(&mut self, now: Time, volume: VolumeId) {
        if let Some(share) = self.volumes.get_mut(&volume).filter(|share| share.cost == 0 && share.waiting.is_empty()) {
            share.quiet_since = Some(now);
            self.quiet.push_back((now, volume));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::qos::{Buckets, Strictness};
    use types::{QosLimits, RateLimit};

    const A: VolumeId = VolumeId(1);
    const B: VolumeId = VolumeId(2);

    /// Floors in operations per second.
    #[derive(Default)]
    struct Given(BTreeMap<VolumeId, Buckets>);

    impl Floors for Given {
        fn wait(&mut self, now: Time, demand: Demand) -> Option<Duration> {
            Some(self.0.get_mut(&demand.volume)?.wait(now, demand.direction))
        }

        fn take(&mut self, now: Time, demand: Demand) {
            if let Some(floor) = self.0.get_mut(&demand.volume) {
                floor.take(now, demand.direction, demand.cost);
            }
        }
    }

    fn floor(iops: u64) -> Buckets {
        let iops = Some(RateLimit { rate: iops, burst: 0, burst_seconds: 0 });
        let how = Strictness { depth: Duration::from_millis(100), slack_permille: 0 };
        Buckets::new(Time::ZERO, QosLimits { iops, ..QosLimits::NONE }, how)
    }

    fn demand(volume: VolumeId, bytes: u64) -> Demand {
        Demand { volume, direction: Direction::Write, cost: Cost { ops: 1, bytes } }
    }

    /// Clients that keep so many requests of one size outstanding each, and a device that ends the oldest request in service first.
    struct Load {
        shares: Shares<VolumeId>,
        floors: Given,
        in_service: VecDeque<(VolumeId, Ticket)>,
        bytes: BTreeMap<VolumeId, u64>,
        now: Time,
    }

    impl Load {
        fn new(clients: &[(VolumeId, usize, u64)]) -> Load {
            let bytes = clients.iter().map(|(volume, _, bytes)| (*volume, *bytes)).collect();
            let (shares, floors) = (Shares::default(), Given::default());
            let mut load = Load { shares, floors, in_service: VecDeque::new(), bytes, now: Time::ZERO };
            for (volume, depth, _) in clients {
                (0..*depth).for_each(|_| load.send(*volume));
            }
            load
        }

        fn send(&mut self, volume: VolumeId) {
            let demand = demand(volume, self.bytes[&volume]);
            if let Offer::Serve(volume, ticket) = self.shares.offer(self.now, demand, volume, &mut self.floors) {
                self.in_service.push_back((volume, ticket));
            }
        }

        /// Takes a request of a volume out of service.
        fn end_of(&mut self, volume: VolumeId) -> Ticket {
            let at = self.in_service.iter().position(|(of, _)| *of == volume).expect("it is in service");
            self.in_service.remove(at).expect("it was just seen").1
        }

        /// Ends one request in service each 100 µs; returns how many of each volume ended.
        fn run(&mut self, requests: u32) -> BTreeMap<VolumeId, u32> {
            let mut ended: BTreeMap<VolumeId, u32> = BTreeMap::new();
            for _ in 0..requests {
                self.now = self.now + Duration::from_micros(100);
                let (volume, ticket) = self.in_service.pop_front().expect("the OSD is never idle");
                self.shares.end(self.now, ticket);
                *ended.entry(volume).or_default() += 1;
                self.send(volume);
                while let Some((volume, ticket)) = self.shares.next(self.now, &mut self.floors) {
                    self.in_service.push_back((volume, ticket));
                }
            }
            ended
        }
    }

    #[test]
    fn volume_that_is_alone_never_waits() {
        let mut load = Load::new(&[(A, 1000, 4096)]);
        assert_eq!((load.in_service.len(), load.shares.waiting()), (1000, 0));
        load.run(5000);
        assert_eq!(load.shares.waiting(), 0);
    }

    #[test]
    fn two_busy_volumes_share_by_halves_however_deep_their_queues_are() {
        for (depths, bytes) in [((32, 32), 4096), ((128, 32), 4096), ((1000, 40), 4096), ((128, 32), 131072)] {
            let mut load = Load::new(&[(A, depths.0, bytes), (B, depths.1, bytes)]);
            load.run(2000);
            let ended = load.run(20_000);
            assert!(ended[&A].abs_diff(ended[&B]) <= 200, "{depths:?}: {ended:?}");
        }
    }

    /// A volume with one request at a time leaves gaps, in which its neighbour must not fill the OSD.
    #[test]
    fn neighbour_of_a_volume_that_pauses_is_bounded_until_it_is_alone() {
        let mut load = Load::new(&[(A, 500, 4096), (B, 1, 4096)]);
        load.run(2000);
        assert!(load.in_service.len() <= WINDOW as usize + 1, "{}", load.in_service.len());
        // B asks no more.
        let ended = load.end_of(B);
        load.shares.end(load.now, ended);
        load.run(100);
        assert!(load.in_service.len() <= WINDOW as usize, "{}", load.in_service.len());
        load.run(1000);
        assert_eq!((load.in_service.len(), load.shares.waiting()), (500, 0));
    }

    #[test]
    fn large_requests_count_by_their_bytes() {
        let mut load = Load::new(&[(A, 64, 512 << 10), (B, 64, 4096)]);
        load.run(2000);
        let ended = load.run(20_000);
        // 5 units and 1: the costs are about equal, and so many more small ones end.
        let costs = [ended[&A] * 5, ended[&B]];
        assert!(costs[0].abs_diff(costs[1]) <= costs[1] / 3, "{ended:?}");
    }

    #[test]
    fn rest_of_a_part_is_used_by_others_and_a_small_load_never_waits() {
        let mut load = Load::new(&[(A, 500, 4096), (B, 4, 4096)]);
        load.run(2000);
        let in_service = |load: &Load, of| load.in_service.iter().filter(|(volume, _)| *volume == of).count();
        assert_eq!((in_service(&load, B), load.shares.volumes[&B].waiting.len()), (4, 0));
        assert!((28..=32).contains(&in_service(&load, A)), "{}", in_service(&load, A));
    }

    #[test]
    fn floor_is_kept_among_many_neighbours() {
        let many: Vec<(VolumeId, usize, u64)> = (10..30).map(|n| (VolumeId(n), 100, 4096)).collect();
        let mut load = Load::new(&[&many[..], &[(B, 64, 4096)]].concat());
        load.run(5000);
        let equal = load.run(10_000)[&B];
        assert!((400..600).contains(&equal), "one of 21: {equal}");
        // The device does 10,000 a second; the floor is 3,000.
        load.floors.0.insert(B, floor(3000));
        load.run(10_000);
        let ended = load.run(10_000);
        assert!((2850..3300).contains(&ended[&B]), "{}", ended[&B]);
        let others: Vec<u32> = many.iter().map(|(volume, ..)| ended[volume]).collect();
        assert!(others.iter().all(|count| (300..400).contains(count)), "{others:?}");
    }

    #[test]
    fn requests_of_a_volume_are_served_in_the_order_of_their_arrival() {
        let mut shares: Shares<u32> = Shares::default();
        let floors = &mut Given::default();
        let mut in_service = VecDeque::new();
        for n in 0..200 {
            let volume = if n < 100 { A } else { B };
            if let Offer::Serve(n, ticket) = shares.offer(Time::ZERO, demand(volume, 4096), n, floors) {
                in_service.push_back((n, ticket));
            }
        }
        let mut order: Vec<u32> = in_service.iter().map(|(n, _)| *n).collect();
        while let Some((_, ticket)) = in_service.pop_front() {
            shares.end(Time::ZERO, ticket);
            while let Some((n, ticket)) = shares.next(Time::ZERO, floors) {
                order.push(n);
                in_service.push_back((n, ticket));
            }
        }
        let of = |first: bool| order.iter().copied().filter(|n| (*n < 100) == first).collect::<Vec<_>>();
        assert_eq!((of(true), of(false)), ((0..100).collect(), (100..200).collect()));
        assert_eq!((shares.waiting(), shares.cost, shares.begun.len()), (0, 0, 0));
        shares.expire(Time::ZERO + QUIET);
        assert_eq!((shares.volumes.len(), shares.quiet.len()), (0, 0));
    }

    #[test]
    fn requests_that_do_not_end_hold_up_no_other_volume() {
        let mut shares: Shares<u32> = Shares::default();
        let floors = &mut Given::default();
        let mut tickets = Vec::new();
        for n in 0..300 {
            let volume = if n % 2 == 0 { A } else { B };
            if let Offer::Serve(_, ticket) = shares.offer(Time::ZERO, demand(volume, 4096), n, floors) {
                tickets.push(ticket);
            }
        }
        // None of them ends. A third volume waits for nothing.
        assert!(matches!(shares.offer(Time::ZERO, demand(VolumeId(3), 4096), 0, floors), Offer::Serve(..)));
        assert!(shares.next(Time::ZERO, floors).is_none());
        let at = shares.next_deadline(Time::ZERO, floors);
        assert_eq!(at, Time::ZERO + STUCK);
        let served = std::iter::from_fn(|| shares.next(at, floors)).count();
        assert_eq!(served, WINDOW as usize, "those in service count no longer");
        tickets.into_iter().for_each(|ticket| shares.end(at, ticket));
        assert_eq!(shares.cost, WINDOW, "none counts twice");
    }

    #[test]
    fn waiting_requests_are_bounded_and_a_volume_takes_no_place_of_others() {
        for bytes in [4096, 512 << 10] {
            let mut shares: Shares<()> = Shares::default();
            let floors = &mut Given::default();
            let mut offer = |volume| shares.offer(Time::ZERO, demand(volume, bytes), (), floors);
            assert!(matches!(offer(B), Offer::Serve(..)));
            let mut waits = 0;
            loop {
                match offer(A) {
                    Offer::Waits => waits += 1,
                    Offer::Serve(..) => {}
                    Offer::Full(()) => break,
                }
            }
            assert!(waits <= WAITING_MAX / 2 && waits as u64 * bytes <= WAITING_BYTES_MAX / 2, "{waits}");
            let places = (0..100).filter(|_| !matches!(offer(B), Offer::Full(()))).count();
            assert!(places == 100 || bytes > 4096 && places >= 64, "{places}");
        }
    }
}
