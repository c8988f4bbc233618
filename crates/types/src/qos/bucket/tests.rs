//! Averages, bursts, debts and changes of buckets, on a scripted clock.

use super::*;

const HOW: Strictness = Strictness { depth: Duration::from_millis(100), slack_permille: 0 };
const ONE: Cost = Cost { ops: 1, bytes: 4096 };

fn rate(rate: u64) -> Option<RateLimit> {
    Some(RateLimit { rate, burst: 0, burst_seconds: 0 })
}

fn burst(rate: u64, burst: u64, burst_seconds: u32) -> Option<RateLimit> {
    Some(RateLimit { rate, burst, burst_seconds })
}

/// Lets operations go as soon as they may from `from` on, in steps of 1 ms at least. Returns how many went in each second.
fn saturate(buckets: &mut Buckets, from: Time, seconds: u64, direction: Direction, cost: Cost) -> Vec<u64> {
    let (mut now, mut counts) = (from, vec![0; seconds as usize]);
    let end = from + Duration::from_secs(seconds);
    while now < end {
        let wait = buckets.wait(now, direction);
        if wait.is_zero() {
            buckets.take(now, direction, cost);
            counts[(now.since(from).as_secs()) as usize] += u64::from(cost.ops);
        } else {
            now = now + wait.max(Duration::from_millis(1));
        }
    }
    counts
}

#[test]
fn average_is_the_rate_and_each_second_is_near_it() {
    for (limit, per_second) in [(10, 10), (500, 500), (100_000, 100_000)] {
        let limits = QosLimits { iops: rate(limit), ..QosLimits::NONE };
        let mut buckets = Buckets::new(Time(7), limits, HOW);
        let counts = saturate(&mut buckets, Time(7), 60, Direction::Write, ONE);
        let sum: u64 = counts.iter().sum();
        let depth = per_second / 10 + 1;
        assert!((60 * per_second..=60 * per_second + depth).contains(&sum), "{sum} at {limit}");
        let near = |count: &u64| count.abs_diff(per_second) <= per_second / 100 + 1;
        assert!(counts[1..].iter().all(near), "{counts:?} at {limit}");
    }
}

#[test]
fn bytes_of_large_operations_average_to_the_rate() {
    let limits = QosLimits { bandwidth: rate(4 << 20), ..QosLimits::NONE };
    let mut buckets = Buckets::new(Time::ZERO, limits, HOW);
    let large = Cost { ops: 1, bytes: 512 << 10 };
    let sum: u64 = saturate(&mut buckets, Time::ZERO, 60, Direction::Read, large).iter().sum();
    assert!((480..=482).contains(&sum), "{sum} operations of 512 KiB in 60 s at 4 MiB/s");
}

#[test]
fn burst_lasts_its_seconds_and_then_the_rate_holds() {
    let limits = QosLimits { iops: burst(500, 2_000, 5), ..QosLimits::NONE };
    let mut buckets = Buckets::new(Time::ZERO, limits, HOW);
    let counts = saturate(&mut buckets, Time::ZERO, 60, Direction::Read, ONE);
    assert!(counts[..4].iter().all(|count| (1_980..=2_201).contains(count)), "{counts:?}");
    let sum: u64 = counts[..5].iter().sum();
    assert!((10_000..=10_101).contains(&sum), "{sum} in the 5 s of the burst");
    assert!(counts[6..].iter().all(|count| (495..=505).contains(count)), "{counts:?}");
    // A quiet time of a third of the burst gives a third of it back.
    let later = Time::ZERO + Duration::from_secs(65);
    let counts = saturate(&mut buckets, later, 5, Direction::Read, ONE);
    assert!(counts[0] > 1_900 && counts[3] < 600, "{counts:?}");
}

#[test]
fn directions_wait_for_their_own_limits_and_for_those_of_both() {
    let limits = QosLimits { read_iops: rate(10), iops: rate(1_000), ..QosLimits::NONE };
    let mut buckets = Buckets::new(Time::ZERO, limits, HOW);
    buckets.take(Time::ZERO, Direction::Read, ONE);
    assert!(buckets.wait(Time::ZERO, Direction::Read) > Duration::ZERO);
    assert_eq!(buckets.wait(Time::ZERO, Direction::Write), Duration::ZERO, "no read keeps a write");
    buckets.take(Time::ZERO, Direction::Write, Cost { ops: 1_100, bytes: 0 });
    let wait = buckets.wait(Time::ZERO, Direction::Write);
    assert!((999..=1_003).contains(&wait.as_millis()), "{wait:?}");
}

#[test]
fn change_keeps_the_level_and_gives_no_operation_away() {
    let limits = |n| QosLimits { iops: rate(n), ..QosLimits::NONE };
    let mut buckets = Buckets::new(Time::ZERO, limits(100), HOW);
    while buckets.wait(Time::ZERO, Direction::Read).is_zero() {
        buckets.take(Time::ZERO, Direction::Read, ONE);
    }
    for n in 0..1_000 {
        buckets.change(Time::ZERO, limits(100 + n % 7));
        assert!(!buckets.wait(Time::ZERO, Direction::Read).is_zero(), "change {n} gave an operation");
    }
    // A debt of 2 s stays one of 2 s at a tenth of the rate.
    buckets.take(Time::ZERO, Direction::Read, Cost { ops: 200, bytes: 0 });
    let before = buckets.wait(Time::ZERO, Direction::Read);
    buckets.change(Time::ZERO, limits(10));
    assert!(buckets.wait(Time::ZERO, Direction::Read).abs_diff(before) < Duration::from_millis(1));
    buckets.change(Time::ZERO, QosLimits::NONE);
    assert_eq!(buckets.wait(Time::ZERO, Direction::Read), Duration::ZERO);
}

#[test]
fn raised_limit_ends_a_long_wait_and_a_lowered_one_does_not_lengthen_it() {
    let limits = |n| QosLimits { bandwidth: rate(n), ..QosLimits::NONE };
    let mut buckets = Buckets::new(Time::ZERO, limits(1 << 10), HOW);
    buckets.take(Time::ZERO, Direction::Read, Cost { ops: 1, bytes: 1 << 20 });
    assert!(buckets.wait(Time::ZERO, Direction::Read) > Duration::from_secs(1_000));
    buckets.change(Time::ZERO, limits(1 << 20));
    let wait = buckets.wait(Time::ZERO, Direction::Read);
    assert!((990..=1_001).contains(&wait.as_millis()), "{wait:?}: 1 MiB at 1 MiB/s");
    buckets.change(Time::ZERO, limits(1 << 10));
    assert!(buckets.wait(Time::ZERO, Direction::Read) <= wait + Duration::from_millis(1));
}

#[test]
fn debt_has_an_end_and_what_is_given_back_counts() {
    let mut buckets = Buckets::new(Time::ZERO, QosLimits { bandwidth: rate(1 << 20), ..QosLimits::NONE }, HOW);
    buckets.take(Time::ZERO, Direction::Read, Cost { ops: u32::MAX, bytes: u64::MAX });
    assert!(buckets.wait(Time::ZERO, Direction::Write) <= DEBT_MAX + Duration::from_millis(1));
    let mut buckets = Buckets::new(Time::ZERO, QosLimits { iops: rate(10), ..QosLimits::NONE }, HOW);
    buckets.take(Time::ZERO, Direction::Read, ONE);
    assert!(!buckets.wait(Time::ZERO, Direction::Read).is_zero());
    buckets.give_back(Direction::Read, ONE);
    assert!(buckets.wait(Time::ZERO, Direction::Read).is_zero());
    buckets.give_back(Direction::Read, Cost { ops: 1_000, bytes: 0 });
    buckets.take(Time::ZERO, Direction::Read, ONE);
    assert!(!buckets.wait(Time::ZERO, Direction::Read).is_zero(), "no more than the depth is there");
}

#[test]
fn clock_that_stands_or_steps_back_gives_nothing() {
    let mut buckets = Buckets::new(Time(5_000_000_000), QosLimits { iops: rate(10), ..QosLimits::NONE }, HOW);
    buckets.take(Time(5_000_000_000), Direction::Read, Cost { ops: 10, bytes: 0 });
    let wait = buckets.wait(Time(5_000_000_000), Direction::Read);
    assert_eq!(buckets.wait(Time(4_000_000_000), Direction::Read), wait);
    assert_eq!(buckets.wait(Time(5_000_000_000), Direction::Read), wait);
}
