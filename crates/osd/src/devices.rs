//! The devices of this OSD: what they can do, how long they take, and whether one has become slow.
//!
//! Input: the operations that leave with a turn, and the completions that the next turns bring. A request's latency is divided by what was in flight with it: the
//! device's share is its service time, and the rest is queue time. By Little's law that is right on average, for one request at a time and for many.
//!
//! Invariant: no measurement changes what the OSD does.

use crate::service_time::{Alarm, Class, Kind, ServiceTime, ServiceTimes, cost};
use engine::{DevicePart, Disks};
use env::{DiskId, DiskInfo, Event, Op, Token, WriteCache};
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::{Labels, Registry};
use types::Time;

telemetry::families! {
    /// Properties of the devices of the OSD.
    pub struct CapabilityFamilies => CapabilityMetrics("basalt_osd_device") {
        gauge capabilities: "always 1; labels: part (whole, log or home), path, block_device, file_system, rotational, write_cache, \
            discard_max_bytes, write_zeroes_max_bytes and atomic_write_max_bytes, each `unknown` when the kernel does not tell";
    }
}

telemetry::families! {
    /// State of the devices of the OSD. Label: `part` (whole, log or home).
    pub struct DeviceFamilies => DeviceMetrics("basalt_osd_device") {
        gauge slow: "1 while the service time of the device is twice the normal one or more, by part";
    }
}

telemetry::families! {
    /// Requests to the devices of the OSD. Labels: `part` (whole, log or home) and `op` (read, write, sync_write, flush).
    pub struct DeviceIoFamilies => DeviceIoMetrics("basalt_osd_device_io") {
        counter requests: "requests that the device has completed, by part and op";
        seconds service_seconds: "time that the device spent on these requests, summed, by part and op";
        seconds queue_seconds: "time that these requests waited for others, summed, by part and op";
    }
}

/// Returns the rows of the manual.
pub(crate) fn rows() -> impl Iterator<Item = &'static telemetry::Row> {
    CapabilityFamilies::ROWS.iter().chain(DeviceFamilies::ROWS).chain(DeviceIoFamilies::ROWS)
}

/// A device and the part of the OSD that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    pub part: DevicePart,
    pub disk: DiskInfo,
    /// The reason why it counts as slow.
    pub slow: Option<String>,
    /// Figures of the last 5 s, by kind of request.
    pub service: Vec<ServiceTime>,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    device: usize,
    kind: Kind,
    class: Class,
    submitted: Time,
    cost: u64,
    /// Cost of this request and of those ahead of it.
    costs: u64,
}

struct Device {
    disk: DiskInfo,
    part: DevicePart,
    times: ServiceTimes,
    in_flight: u32,
    costs: u64,
    /// End of the last read or write.
    end: u64,
    /// Bytes that no flush has covered.
    unflushed: u64,
    slow: DeviceMetrics,
    io: [DeviceIoMetrics; Kind::ALL.len()],
}

/// The devices of one OSD, that of the log first.
pub(crate) struct Devices {
    list: Vec<Device>,
    flights: BTreeMap<(Token, u64), Flight>,
    submitted: u64,
    /// Duration of the work of the last turn: completions that came meanwhile were seen late by up to that.
    blind: Duration,
}

impl Devices {
    pub fn new(disks: &Disks, registry: &Registry) -> Devices {
        let (capabilities, states, io) =
            (CapabilityFamilies::new(registry), DeviceFamilies::new(registry), DeviceIoFamilies::new(registry));
        let device = |(disk, part): (&DiskInfo, DevicePart)| {
            capabilities.add(&labels(disk, part)).capabilities.set(1);
            let of = |op: Option<Kind>| -> Labels {
                let op = op.map(|kind| ("op", kind.name().to_owned()));
                std::iter::once(("part", part.name().to_owned())).chain(op).collect()
            };
            Device {
                disk: disk.clone(),
                part,
                times: ServiceTimes::default(),
                in_flight: 0,
                costs: 0,
                end: 0,
                unflushed: 0,
                slow: states.add(&of(None)),
                io: Kind::ALL.map(|kind| io.add(&of(Some(kind)))),
            }
        };
        let list = disks.each().into_iter().map(device).collect();
        Devices { list, flights: BTreeMap::new(), submitted: 0, blind: Duration::ZERO }
    }

    pub fn reports(&self) -> Vec<DeviceReport> {
        let report = |device: &Device| DeviceReport {
            part: device.part,
            disk: device.disk.clone(),
            slow: device.times.slow().map(str::to_owned),
            service: device.times.last().to_vec(),
        };
        self.list.iter().map(report).collect()
    }

    /// Returns why devices are slow, each with its path.
    pub fn slow(&self) -> Option<String> {
        let slow = |device: &Device| device.times.slow().map(|why| format!("{}: {why}", device.name()));
        let slow: Vec<String> = self.list.iter().filter_map(slow).collect();
        (!slow.is_empty()).then(|| slow.join("; "))
    }

    /// Counts the operations that leave with the turn that began at `began`.
    pub fn submit(&mut self, began: Time, now: Time, ops: &[Op]) {
        self.blind = now.since(began);
        for op in ops {
            let (token, disk, kind, range) = match op {
                Op::DiskRead { token, disk, offset, buf } => (*token, *disk, Kind::Read, Some((*offset, buf.len()))),
                Op::DiskWrite { token, disk, offset, bufs, flush } => {
                    let kind = if *flush { Kind::SyncWrite } else { Kind::Write };
                    (*token, *disk, kind, Some((*offset, bufs.iter().map(|buf| buf.len()).sum())))
                }
                Op::DiskFlush { token, disk } => (*token, *disk, Kind::Flush, None),
                _ => continue,
            };
            let range = range.map(|(offset, len)| (offset, len as u64));
            self.submit_one(now, (token, disk), kind, range);
        }
    }

    fn submit_one(&mut self, now: Time, (token, disk): (Token, DiskId), kind: Kind, range: Option<(u64, u64)>) {
        let Some(at) = self.list.iter().position(|device| device.disk.id == disk) else { return };
        let device = &mut self.list[at];
        let (offset, len) = range.unwrap_or((device.end, device.unflushed));
        let is_seek = device.end != offset;
        device.end = range.map_or(device.end, |(offset, len)| offset + len);
        match kind {
            Kind::Read => {}
            Kind::Write => device.unflushed += len,
            Kind::SyncWrite | Kind::Flush => device.unflushed = 0,
        }
        let class = Class::new(kind, len, device.in_flight, is_seek);
        // A flush costs the device more than its bytes tell: it has a class of its own, and no share of it is another one's.
        let cost = cost(if kind == Kind::Flush { 0 } else { len });
        device.in_flight += 1;
        device.costs += cost;
        let flight = Flight { device: at, kind, class, submitted: now, cost, costs: device.costs };
        self.submitted += 1;
        self.flights.insert((token, self.submitted), flight);
    }

    /// Counts a completion that the loop sees at `now`.
    pub fn complete(&mut self, now: Time, event: &Event) {
        let (Event::DiskRead { token, .. } | Event::DiskWrite { token, .. } | Event::DiskFlush { token, .. }) = event
        else {
            return;
        };
        // Requests of one batch have one token: they are told apart by their order.
        let first = self.flights.range((*token, 0)..=(*token, u64::MAX)).next().map(|(key, _)| *key);
        let Some(flight) = first.and_then(|key| self.flights.remove(&key)) else { return };
        let device = &mut self.list[flight.device];
        device.in_flight -= 1;
        device.costs -= flight.cost;
        let latency = now.since(flight.submitted);
        let service = latency.mul_f64(flight.cost as f64 / flight.costs as f64);
        let io = &device.io[flight.kind as usize];
        io.requests.inc();
        io.service_seconds.inc_by(service.as_secs_f64());
        io.queue_seconds.inc_by(latency.saturating_sub(service).as_secs_f64());
        // The request may have ended while the loop worked. Its time is certain enough when that is a small part of it.
        if self.blind * 4 <= latency {
            device.times.add(flight.class, service);
        }
    }

    /// Ends the windows that are over, and logs begins and ends of alarms.
    pub fn tick(&mut self, now: Time) {
        for device in &mut self.list {
            let Some(alarm) = device.times.tick(now) else { continue };
            device.slow.slow.set(i64::from(device.times.slow().is_some()));
            let name = device.name();
            match alarm {
                Alarm::Begins(why) => tracing::warn!(device = name, why, "a device has become slow"),
                Alarm::Ends => tracing::info!(device = name, "a device is no longer slow"),
            }
        }
    }
}

impl Device {
    fn name(&self) -> String {
        let what = match self.part {
            DevicePart::Whole => "device",
            DevicePart::Home => "home device",
            DevicePart::Log => "log device",
        };
        format!("{what} {}", self.disk.path.display())
    }
}

fn labels(disk: &DiskInfo, part: DevicePart) -> Labels {
    fn word<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
    }
    let of = &disk.capabilities;
    let cache = of.write_cache.map(|cache| if cache == WriteCache::Back { "back" } else { "through" });
    let file_system = of.file_system.as_ref().map_or_else(|| "none".to_owned(), |of| word(of.name.as_ref()));
    vec![
        ("part", part.name().to_owned()),
        ("path", disk.path.display().to_string()),
        ("block_device", word(of.block_device.as_ref())),
        ("file_system", file_system),
        ("rotational", word(of.is_rotational)),
        ("write_cache", word(cache)),
        ("discard_max_bytes", word(of.discard_max_bytes)),
        ("write_zeroes_max_bytes", word(of.write_zeroes_max_bytes)),
        ("atomic_write_max_bytes", word(of.atomic_writes.map(|of| of.max_bytes))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Capabilities, DiskKind};
    use types::{IoBuf, IoBufMut};

    fn disk(id: u32) -> DiskInfo {
        DiskInfo {
            id: DiskId(id),
            path: format!("/dev/sd{id}").into(),
            kind: DiskKind::Block,
            size_bytes: 1 << 30,
            align_bytes: 512,
            volatile_cache: false,
            capabilities: Capabilities::default(),
        }
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn write(token: u32, disk: u32, offset: u64) -> Op {
        let (token, bufs) = (Token::new(1, 0, token), vec![IoBuf::copy_of(&[0; 4096])]);
        Op::DiskWrite { token, disk: DiskId(disk), offset, bufs, flush: false }
    }

    fn written(token: u32) -> Event {
        Event::DiskWrite { token: Token::new(1, 0, token), result: Ok(()) }
    }

    fn value(registry: &Registry, name: &str) -> f64 {
        let text = telemetry::render(&[registry], telemetry::Format::Prometheus);
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().expect("a value").parse().expect("a number")
    }

    #[test]
    fn latency_is_divided_between_a_request_and_those_ahead_of_it() {
        let registry = Registry::default();
        let mut devices = Devices::new(&Disks { home: disk(0), log: disk(1) }, &registry);
        // Four writes, one after the other: 10 ms each on a device that does one at a time.
        devices.submit(at(0), at(0), &[write(1, 0, 0), write(2, 0, 8192), write(3, 0, 65536), write(4, 0, 0)]);
        (1..=4).for_each(|n| devices.complete(at(10 * u64::from(n)), &written(n)));
        let of =
            |what: &str| value(&registry, &format!("basalt_osd_device_io_{what}_total{{part=\"home\",op=\"write\"}}"));
        assert_eq!(of("requests"), 4.0);
        assert!((of("service_seconds") - 0.040).abs() < 1e-6, "{}", of("service_seconds"));
        assert!((of("queue_seconds") - 0.060).abs() < 1e-6, "{}", of("queue_seconds"));
        assert!(devices.flights.is_empty() && devices.list.iter().all(|d| (d.in_flight, d.costs) == (0, 0)));
        assert_eq!(value(&registry, "basalt_osd_device_io_requests_total{part=\"log\",op=\"write\"}"), 0.0);
    }

    #[test]
    fn requests_of_one_token_are_counted_on_their_own_devices() {
        let registry = Registry::default();
        let mut devices = Devices::new(&Disks { home: disk(0), log: disk(1) }, &registry);
        devices.submit(at(0), at(0), &[write(7, 1, 0), write(7, 0, 0)]);
        devices.complete(at(1), &written(7));
        devices.complete(at(2), &written(7));
        devices.complete(at(3), &written(7));
        for part in ["home", "log"] {
            let name = format!("basalt_osd_device_io_requests_total{{part=\"{part}\",op=\"write\"}}");
            assert_eq!(value(&registry, &name), 1.0, "{part}");
        }
    }

    #[test]
    fn slow_device_is_named_until_it_is_well_again() {
        let registry = Registry::default();
        let mut devices = Devices::new(&Disks { home: disk(0), log: disk(1) }, &registry);
        let mut now = 1000;
        // One write at a time; the loop sees each end at once.
        let mut run = |devices: &mut Devices, seconds: u64, ms: u64| {
            let until = now + seconds * 1000;
            let mut offset = 0;
            while now < until {
                offset = (offset + 999 * 4096) % (1 << 29);
                devices.submit(at(now), at(now), &[write(1, 0, offset)]);
                now += ms;
                devices.complete(at(now), &written(1));
                devices.tick(at(now));
            }
        };
        run(&mut devices, 60, 2);
        assert_eq!(devices.slow(), None);
        run(&mut devices, 30, 50);
        let why = devices.slow().expect("it is slow");
        assert!(why.starts_with("home device /dev/sd0: writes take "), "{why}");
        assert_eq!(value(&registry, "basalt_osd_device_slow{part=\"home\"}"), 1.0);
        assert_eq!(value(&registry, "basalt_osd_device_slow{part=\"log\"}"), 0.0);
        run(&mut devices, 60, 2);
        assert_eq!((devices.slow(), value(&registry, "basalt_osd_device_slow{part=\"home\"}")), (None, 0.0));
    }

    #[test]
    fn completions_that_a_long_turn_delays_say_nothing_about_the_device() {
        let registry = Registry::default();
        let mut devices = Devices::new(&Disks::from(disk(0)), &registry);
        let mut now = 0;
        let mut run = |devices: &mut Devices, turns: u64, work: u64| {
            for _ in 0..turns {
                devices.submit(at(now), at(now + work), &[write(1, 0, 0), write(2, 0, 1 << 20)]);
                now += work + 2;
                (1..=2).for_each(|n| devices.complete(at(now), &written(n)));
                devices.tick(at(now));
            }
        };
        run(&mut devices, 30_000, 0);
        run(&mut devices, 600, 100);
        assert_eq!(devices.slow(), None);
    }

    #[test]
    fn reads_and_flushes_are_kinds_of_their_own() {
        let registry = Registry::default();
        let mut devices = Devices::new(&Disks::from(disk(0)), &registry);
        let (read, flush) = (Token::new(1, 0, 1), Token::new(1, 0, 2));
        let buf = || IoBufMut::new(4096);
        devices.submit(
            at(0),
            at(0),
            &[
                Op::DiskRead { token: read, disk: DiskId(0), offset: 0, buf: buf() },
                Op::DiskFlush { token: flush, disk: DiskId(0) },
            ],
        );
        devices.complete(at(4), &Event::DiskRead { token: read, buf: buf(), result: Ok(()) });
        devices.complete(at(8), &Event::DiskFlush { token: flush, result: Ok(()) });
        for op in ["read", "flush"] {
            let name = format!("basalt_osd_device_io_service_seconds_total{{part=\"whole\",op=\"{op}\"}}");
            assert!((value(&registry, &name) - 0.004).abs() < 1e-6, "{op}");
        }
    }
}
