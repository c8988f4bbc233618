//! The alarm under virtual time.

use super::*;

/// A device under a steady load.
struct Load {
    times: ServiceTimes,
    now: Time,
    alarms: Vec<(u64, bool)>,
}

impl Load {
    fn new() -> Load {
        let mut load =
            Load { times: ServiceTimes::default(), now: Time::ZERO + Duration::from_secs(1), alarms: Vec::new() };
        assert_eq!(load.times.tick(load.now), None);
        load
    }

    /// Serves requests of a class, one after the other, for so many seconds.
    fn run(&mut self, seconds: u64, class: Class, us: u64) -> &mut Load {
        self.mixed(seconds, &[(class, us)])
    }

    /// Serves requests of several classes in turn; each takes so many microseconds, and up to an eighth more.
    fn mixed(&mut self, seconds: u64, mix: &[(Class, u64)]) -> &mut Load {
        let until = self.now + Duration::from_secs(seconds);
        let mut turn = 0u64;
        while self.now < until {
            let (class, us) = mix[turn as usize % mix.len()];
            let took = Duration::from_micros(us + us * (turn % 8) / 64);
            turn += 1;
            // At most 200 requests a second: the device has pauses.
            self.now = self.now + took.max(Duration::from_millis(5));
            self.times.add(class, took);
            self.tick();
        }
        self
    }

    fn idle(&mut self, seconds: u64) -> &mut Load {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.tick();
        }
        self
    }

    fn tick(&mut self) {
        if let Some(alarm) = self.times.tick(self.now) {
            self.alarms.push((self.now.since(Time::ZERO).as_secs(), matches!(alarm, Alarm::Begins(_))));
        }
    }
}

fn write(len_bytes: u64) -> Class {
    Class::new(Kind::Write, len_bytes, 0, true)
}

#[test]
fn device_that_goes_to_50_ms_is_slow_within_30_s_and_well_again_later() {
    let mut load = Load::new();
    load.run(60, write(4096), 900);
    assert_eq!((load.alarms.len(), load.times.slow()), (0, None));
    let began = load.now.since(Time::ZERO).as_secs();
    load.run(300, write(4096), 50_000);
    let [(at, true)] = load.alarms[..] else { panic!("{:?}", load.alarms) };
    assert!(at - began < 30, "after {} s", at - began);
    let why = load.times.slow().expect("it is slow").to_owned();
    assert!(why.starts_with("writes take 5") && why.contains("normally at most 0.9 ms"), "{why}");
    load.run(60, write(4096), 900);
    assert_eq!((load.alarms.len(), load.times.slow()), (2, None), "it has not learnt the slow state");
    load.run(60, write(4096), 50_000);
    assert_eq!(load.alarms.len(), 3, "nor forgotten the normal one");
}

#[test]
fn doubled_service_time_is_an_alarm_and_half_more_is_none() {
    for (us, alarms) in [(4500, 0), (5700, 0), (7200, 1)] {
        let mut load = Load::new();
        load.run(60, write(4096), 3000).run(600, write(4096), us);
        assert_eq!(load.alarms.len(), alarms, "{us}");
    }
}

#[test]
fn another_load_is_no_alarm() {
    let mut load = Load::new();
    load.run(60, write(4096), 800);
    // Longer requests take longer, seeks take their time, and a flush is no write.
    load.run(120, write(1 << 20), 9000);
    load.run(120, Class::new(Kind::Read, 4096, 0, true), 8000);
    load.run(120, Class::new(Kind::Flush, 1 << 20, 0, false), 30_000);
    load.mixed(120, &[(write(64 << 10), 2500), (Class::new(Kind::Read, 4096, 7, true), 4000)]);
    assert_eq!(load.alarms, []);
    let mut load = Load::new();
    load.run(60, Class::new(Kind::Write, 4096, 0, false), 600).run(120, write(4096), 8000);
    assert_eq!(load.alarms, [], "sequential writes tell nothing about seeks");
}

#[test]
fn slow_device_is_found_though_its_slowness_changes_the_load() {
    let mut load = Load::new();
    load.run(60, write(4096), 900);
    let began = load.now.since(Time::ZERO).as_secs();
    // Group commit puts more into each write of a slow log.
    load.run(60, write(32 << 10), 50_000);
    let [(at, true)] = load.alarms[..] else { panic!("{:?}", load.alarms) };
    assert!(at - began < 30);
}

#[test]
fn load_that_comes_with_the_slowness_is_not_learnt() {
    let mut load = Load::new();
    let read = Class::new(Kind::Read, 4096, 0, true);
    // Nothing is known of reads when the device becomes slow: no alarm, and no normal time either.
    load.run(60, write(4096), 900).run(120, read, 50_000);
    assert_eq!(load.alarms, []);
    load.mixed(60, &[(write(4096), 900), (read, 8000)]).run(60, read, 50_000);
    assert_eq!(load.alarms.len(), 1);
    // Without any other load, a new one is learnt in five minutes.
    let mut load = Load::new();
    load.run(60, write(4096), 900).run(320, read, 8000).run(60, read, 50_000);
    assert_eq!(load.alarms.len(), 1);
}

#[test]
fn few_completions_of_a_slow_device_are_enough() {
    let mut load = Load::new();
    load.run(60, write(4096), 900).run(60, write(4096), 1_200_000);
    assert_eq!(load.alarms.len(), 1, "four in a window");
    // The slow kind counts, however many requests of another kind a cache answers.
    let mut load = Load::new();
    let read = Class::new(Kind::Read, 4096, 0, true);
    load.mixed(60, &[(write(4096), 900), (read, 5000)]);
    let cached = (write(4096), 800);
    load.mixed(60, &[cached, cached, cached, cached, cached, cached, cached, (read, 60_000)]);
    assert_eq!(load.alarms.len(), 1);
}

#[test]
fn device_at_its_limit_does_not_make_the_alarm_flap() {
    let mut load = Load::new();
    load.run(60, write(4096), 3000);
    for _ in 0..60 {
        load.run(15, write(4096), 7500).run(5, write(4096), 3000);
    }
    assert_eq!(load.alarms, [], "three slow windows in a row are not enough");
    load.run(60, write(4096), 7500);
    for _ in 0..60 {
        load.run(15, write(4096), 3000).run(5, write(4096), 7500);
    }
    assert_eq!(load.alarms.len(), 1, "and three good ones do not end it");
}

#[test]
fn slow_state_that_is_there_from_the_begin_on_is_normal() {
    let mut load = Load::new();
    load.run(600, write(4096), 50_000);
    assert_eq!(load.alarms, []);
    load.run(120, write(4096), 1000).run(600, write(4096), 50_000);
    assert_eq!(load.alarms.len(), 1, "once it was better, the same is slow");
}

#[test]
fn requests_below_four_milliseconds_are_never_slow() {
    let mut load = Load::new();
    load.run(60, write(4096), 60).run(60, write(4096), 3000);
    assert_eq!(load.alarms, []);
    load.run(60, write(4096), 5000);
    assert_eq!(load.alarms.len(), 1);
}

#[test]
fn alarm_of_an_idle_device_ends_after_five_minutes() {
    let mut load = Load::new();
    load.run(60, write(4096), 1000).run(60, write(4096), 20_000).idle(280);
    assert_eq!(load.alarms.len(), 1);
    load.idle(40);
    assert_eq!((load.alarms.len(), load.times.slow()), (2, None));
}

#[test]
fn median_is_within_an_eighth_of_the_true_one() {
    for us in [2u64, 17, 99, 1234, 50_000, 3_000_000] {
        let mut histogram = Histogram::new();
        (0..99).for_each(|_| histogram.add(us * 1000));
        histogram.add(1 << 40);
        let median = histogram.median();
        assert!(median <= us * 1000 && us * 1000 <= median + median / 8 + 128, "{us}: {median}");
    }
}
