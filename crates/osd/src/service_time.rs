//! Service times of one device, and the alarm when they double.
//!
//! Input: samples, each the share of a request's latency that the device spent on this request. Output: whether the device is slow. Times are
//! compared within a class (kind, length, depth, seek or sequential), so that another load is no alarm. A class that is new is compared
//! with the most that the known ones allow for it.
//!
//! Invariant: windows that are slow, or belong to an alarm, change no normal time. So the alarm does not end because the device stays slow.

use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;

/// Length of a window. Each has one verdict.
const WINDOW: Duration = Duration::from_secs(5);
/// Least samples of a kind that are judged: a slow device completes few.
const JUDGED_MIN: u32 = 4;
/// Least samples of a class that a window teaches something.
const LEARN_MIN: u32 = 8;
/// Windows without a verdict from which the normal time of a new class is learnt.
const LEARN_WINDOWS: u32 = 60;
/// Weight of a window in which other classes show that the device is well.
const GOOD_WEIGHT: u32 = 20;
/// Slow windows in a row that begin an alarm.
const BEGIN_WINDOWS: u32 = 4;
/// Good windows in a row that end it.
const END_WINDOWS: u32 = 6;
/// Windows in a row without a verdict behind which slow ones of before do not count.
const FORGET_WINDOWS: u32 = 6;
/// Windows in a row without a verdict that end it: an idle device tells nothing.
const IDLE_WINDOWS: u32 = 60;
/// No device is slow below this time: the scheduling of the host is part of what is measured.
const SLOW_MIN_NS: u64 = 4_000_000;
/// Longest request that has a class of its own, as a power of two of 4 KiB.
const LEN_MAX: u8 = 10;
/// Bytes that cost a device as much as one request more.
const COST_BYTES: u64 = 64 << 10;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Read,
    Write,
    /// A write and its flush.
    SyncWrite,
    Flush,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::SyncWrite, Kind::Flush];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::SyncWrite => "sync_write",
            Kind::Flush => "flush",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::SyncWrite => "writes with a flush",
            Kind::Flush => "flushes",
        }
    }
}

/// Returns what a request of this length costs, in requests without data.
pub(crate) fn cost(len_bytes: u64) -> u64 {
    1 + len_bytes / COST_BYTES
}

/// Requests that are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    kind: Kind,
    /// The request does not begin where the one before it ended.
    is_seek: bool,
    /// Power of two of 4 KiB; of a flush, that of the bytes that it covers.
    len: u8,
    /// Power of four of the number of requests in flight with it.
    depth: u8,
}

impl Class {
    /// `ahead`: requests in flight when this one was submitted.
    pub fn new(kind: Kind, len_bytes: u64, ahead: u32, is_seek: bool) -> Class {
        let len = len_bytes.div_ceil(4096).max(1).next_power_of_two().ilog2().min(u32::from(LEN_MAX)) as u8;
        let depth = ((ahead + 1).ilog2().div_ceil(2)).min(3) as u8;
        Class { kind, is_seek, len, depth }
    }

    /// Returns the most that a request of this class takes where one of `other` takes `normal_ns`. `None`: there is no bound.
    fn bound(self, other: Class, normal_ns: u64) -> Option<u64> {
        let comparable = self.kind == other.kind && (!self.is_seek || other.is_seek);
        let longer = self.len.saturating_sub(other.len);
        // A device that serves several requests at once needs up to so much longer for one alone.
        let alone = 2 * other.depth.saturating_sub(self.depth);
        comparable.then(|| normal_ns << (longer + alone))
    }
}

/// Number of samples by their time: eight buckets an octave, from 1 µs on.
#[derive(Clone, Debug)]
struct Histogram {
    buckets: Box<[u32; Histogram::LEN]>,
    count: u32,
}

impl Histogram {
    const LEN: usize = 224;
    /// Nanoseconds of the unit, an eighth of the first bucket's end.
    const UNIT: u64 = 128;

    fn new() -> Histogram {
        Histogram { buckets: Box::new([0; Histogram::LEN]), count: 0 }
    }

    fn add(&mut self, ns: u64) {
        let units = (ns / Histogram::UNIT).max(8);
        let octave = units.ilog2() - 3;
        let bucket = (octave * 8) as usize + (units >> octave & 7) as usize;
        self.buckets[bucket.min(Histogram::LEN - 1)] += 1;
        self.count += 1;
    }

    /// Returns the number of samples by their time, which is rounded down by an eighth at most.
    fn samples(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let time = |bucket: usize| (8 + bucket as u64 % 8) << (bucket / 8) << Histogram::UNIT.ilog2();
        self.buckets
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(move |(bucket, count)| (time(bucket), *count))
    }

    fn median(&self) -> u64 {
        let mut left = self.count / 2;
        for (time, count) in self.samples() {
            if left < count {
                return time;
            }
            left -= count;
        }
        0
    }

    fn clear(&mut self) {
        (*self.buckets, self.count) = ([0; Histogram::LEN], 0);
    }
}

/// Samples of the present window, and what is normal.
#[derive(Debug)]
struct Series {
    window: Histogram,
    normal_ns: u64,
    /// Weight of the windows that `normal_ns` was learnt from, up to [`LEARN_WINDOWS`].
    learnt: u32,
}

/// Last figures of a kind: the class in which the device spent most time in the last window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTime {
    pub kind: &'static str,
    pub median_us: u64,
    /// `None` while it is not known.
    pub normal_us: Option<u64>,
}

/// Verdict on a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Slow,
    /// Neither slow nor good.
    Between,
    Good,
    Unknown,
}

/// A begin or an end of the alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    Begins(String),
    Ends,
}

/// One class in the window that ends.
#[derive(Clone, Copy)]
struct Judged {
    class: Class,
    median: u64,
    reference: Option<u64>,
    count: u32,
    /// Samples that are slow, and samples that are good.
    slow: u32,
    good: u32,
}

impl Judged {
    fn new(class: Class, window: &Histogram, reference: Option<u64>) -> Judged {
        let of = |is: &dyn Fn(u64, u64) -> bool| -> u32 {
            let Some(normal) = reference else { return 0 };
            window.samples().filter(|(time, _)| is(*time, normal)).map(|(_, count)| count).sum()
        };
        let slow = of(&|time, normal| time >= (2 * normal).max(SLOW_MIN_NS));
        let good = of(&|time, normal| time < (normal + normal / 2).max(SLOW_MIN_NS));
        Judged { class, median: window.median(), reference, count: window.count, slow, good }
    }

    /// Returns the time that the device spent in it.
    fn weight(&self) -> u64 {
        self.median.saturating_mul(self.count.into())
    }

    fn is_slow(&self) -> bool {
        2 * self.slow > self.count
    }
}

/// Service times of one device.
#[derive(Debug, Default)]
pub(crate) struct ServiceTimes {
    classes: BTreeMap<Class, Series>,
    ends: Time,
    slow: Option<String>,
    /// Windows of the present kind of verdict, in a row.
    slow_windows: u32,
    good_windows: u32,
    idle_windows: u32,
    last: Vec<ServiceTime>,
}

impl ServiceTimes {
    /// Counts a sample. `now` is at or after the end of the request.
    pub fn add(&mut self, class: Class, service: Duration) {
        let fresh = || Series { window: Histogram::new(), normal_ns: 0, learnt: 0 };
        let ns = u64::try_from(service.as_nanos()).unwrap_or(u64::MAX);
        self.classes.entry(class).or_insert_with(fresh).window.add(ns);
    }

    /// Returns why the device is slow, if it is.
    pub fn slow(&self) -> Option<&str> {
        self.slow.as_deref()
    }

    /// Returns the figures of the last window, by kind.
    pub fn last(&self) -> &[ServiceTime] {
        &self.last
    }

    /// Ends the window if it is over.
    pub fn tick(&mut self, now: Time) -> Option<Alarm> {
        if now < self.ends {
            return None;
        }
        let is_first = self.ends == Time::ZERO;
        // After a pause of the process the samples belong to no time: they are not judged.
        let is_late = now.since(self.ends) > WINDOW;
        self.ends = now + WINDOW;
        if is_first || is_late {
            self.classes.values_mut().for_each(|series| series.window.clear());
            return None;
        }
        let judged = self.judge();
        let verdict = verdict(&judged);
        self.learn_all(verdict, &judged);
        self.classes.values_mut().for_each(|series| series.window.clear());
        self.take(verdict, &judged)
    }

    /// Returns the classes of this window.
    fn judge(&mut self) -> Vec<Judged> {
        let seen = self.classes.iter().filter(|(_, series)| series.window.count > 0);
        let judged = |(class, series): (&Class, &Series)| Judged::new(*class, &series.window, self.reference(*class));
        let judged: Vec<Judged> = seen.map(judged).collect();
        let of_kind = |kind| judged.iter().filter(move |judged| judged.class.kind == kind).max_by_key(|j| j.weight());
        let shown = |judged: &Judged| ServiceTime {
            kind: judged.class.kind.name(),
            median_us: judged.median / 1000,
            normal_us: judged.reference.map(|ns| ns / 1000),
        };
        let enough = |judged: &&Judged| judged.count >= JUDGED_MIN;
        self.last = Kind::ALL.into_iter().filter_map(of_kind).filter(enough).map(shown).collect();
        judged
    }

    /// Learns from a window of a device that is not slow. While other classes say nothing about it, a new class is learnt much later.
    fn learn_all(&mut self, verdict: Verdict, judged: &[Judged]) {
        let knows_nothing = self.classes.values().all(|series| series.learnt < LEARN_WINDOWS);
        let weight = match verdict {
            _ if self.slow.is_some() || self.slow_windows > 0 => return,
            Verdict::Good => GOOD_WEIGHT,
            Verdict::Unknown if knows_nothing => GOOD_WEIGHT,
            Verdict::Unknown => 1,
            Verdict::Slow | Verdict::Between => return,
        };
        judged
            .iter()
            .filter(|judged| judged.count >= LEARN_MIN && !judged.is_slow())
            .for_each(|j| self.learn(j, weight));
    }

    /// Returns what is normal for a class: by its own past, or else by what the other ones allow.
    fn reference(&self, class: Class) -> Option<u64> {
        let known = |series: &&Series| series.learnt >= LEARN_WINDOWS;
        if let Some(series) = self.classes.get(&class).filter(known) {
            return Some(series.normal_ns);
        }
        let others = self.classes.iter().filter(|(_, series)| known(series));
        others.filter_map(|(other, series)| class.bound(*other, series.normal_ns)).min()
    }

    /// Learns from a window. A normal time is that of the slowest of the first windows. Afterwards it falls soon, and rises very slowly.
    fn learn(&mut self, judged: &Judged, weight: u32) {
        let series = self.classes.get_mut(&judged.class).expect("it was judged");
        let median = judged.median;
        if series.learnt < LEARN_WINDOWS {
            if weight == GOOD_WEIGHT && !series.learnt.is_multiple_of(GOOD_WEIGHT) {
                // Windows without a verdict may have been slow.
                (series.learnt, series.normal_ns) = (0, 0);
            }
            series.learnt += weight;
            series.normal_ns = series.normal_ns.max(median);
        } else if median < series.normal_ns {
            let part = if 2 * median < series.normal_ns { 4 } else { 16 };
            series.normal_ns -= (series.normal_ns - median) / part;
        } else {
            series.normal_ns += (median - series.normal_ns) / 2048;
        }
    }

    fn take(&mut self, verdict: Verdict, judged: &[Judged]) -> Option<Alarm> {
        let counted = |is: bool, windows: u32| if is { windows + 1 } else { 0 };
        self.idle_windows = counted(verdict == Verdict::Unknown, self.idle_windows);
        if self.idle_windows >= FORGET_WINDOWS && self.slow.is_none() {
            // Slow windows count in a row, and not over hours.
            self.slow_windows = 0;
        }
        if verdict != Verdict::Unknown {
            self.slow_windows = counted(verdict == Verdict::Slow, self.slow_windows);
            self.good_windows = counted(verdict == Verdict::Good, self.good_windows);
        }
        if self.slow.is_none() && self.slow_windows >= BEGIN_WINDOWS && verdict == Verdict::Slow {
            let worst = judged.iter().filter(|judged| judged.is_slow()).max_by_key(|judged| judged.weight())?;
            let why = words(worst);
            self.slow = Some(why.clone());
            return Some(Alarm::Begins(why));
        }
        let ends = self.good_windows >= END_WINDOWS || self.idle_windows >= IDLE_WINDOWS;
        if ends && self.slow.take().is_some() {
            self.slow_windows = 0;
            return Some(Alarm::Ends);
        }
        None
    }
}

/// Judges a window: the device is slow when most samples of some kind are.
fn verdict(judged: &[Judged]) -> Verdict {
    let of_kind = |kind: Kind| {
        let known = || judged.iter().filter(move |judged| judged.class.kind == kind && judged.reference.is_some());
        let sum = |of: fn(&Judged) -> u32| known().map(of).sum::<u32>();
        let (all, slow, good) = (sum(|judged| judged.count), sum(|judged| judged.slow), sum(|judged| judged.good));
        match () {
            () if all < JUDGED_MIN => Verdict::Unknown,
            () if 2 * slow > all => Verdict::Slow,
            () if 2 * good > all => Verdict::Good,
            () => Verdict::Between,
        }
    };
    let kinds = Kind::ALL.map(of_kind);
    let worst = [Verdict::Slow, Verdict::Between, Verdict::Good].into_iter().find(|verdict| kinds.contains(verdict));
    worst.unwrap_or(Verdict::Unknown)
}

fn words(judged: &Judged) -> String {
    let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
    let normal = judged.reference.map_or_else(String::new, |normal| format!(", normally at most {}", ms(normal)));
    format!("{} take {}{normal}", judged.class.kind.plural(), ms(judged.median))
}

#[cfg(test)]
mod tests;
