//! Loads against a device in memory and against devices that lie.

use super::stamp::{BLOCK_LEN, Found};
use super::*;
use device::{BlockDevice, Ram};

const MS: Duration = Duration::from_millis(1);

fn config() -> LoadConfig {
    LoadConfig {
        read_percent: 50,
        depth: 8,
        ops_max: 2000,
        duration: Duration::from_secs(3600),
        span_bytes: 1 << 20,
        verify: true,
        volume: 9,
        run: 4,
        ..LoadConfig::default()
    }
}

/// Runs the load to its end; each completion takes one millisecond. `bend` may change an answer.
fn run(load: &mut Load, ram: &mut Ram, mut bend: impl FnMut(&Request, &mut Result<Answer, Errno>)) -> Time {
    let mut now = Time::ZERO;
    let (mut asked, mut done, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    while !load.is_done(now) {
        load.next_requests(now, &mut asked);
        assert!(load.in_flight() <= 8 && !(asked.is_empty() && sent.is_empty()));
        for (request, token) in asked.drain(..) {
            ram.submit(now, request.clone(), token).expect("memory is never busy");
            sent.push((request, token));
        }
        ram.completions(&mut done);
        for completion in done.drain(..) {
            let at = sent.iter().position(|(_, token)| *token == completion.token).expect("sent");
            let mut result = completion.result;
            bend(&sent.swap_remove(at).0, &mut result);
            now = now + MS;
            load.completed(now, completion.token, &result);
        }
    }
    now
}

#[test]
fn an_honest_device_verifies_and_is_counted() {
    let (mut load, mut ram) = (Load::new(config(), Time::ZERO).unwrap(), Ram::new("r", 1 << 20));
    let now = run(&mut load, &mut ram, |_, _| {});
    let report = load.report(now);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.ops(), report.elapsed_us), (2000, 2_000_000));
    assert_eq!(report.verified_blocks, report.reads.ops);
    assert!(report.reads.ops > 800 && report.writes.ops > 800);
    assert_eq!(report.writes.bytes, report.writes.ops * 4096);
    assert!((report.reads.iops + report.writes.iops - 1000.0).abs() < 1e-6);
    assert_eq!(report.longest_gap_us, 1000);
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.starts_with(r#"{"schema":"basalt.bench.load/1","elapsed_us":2000000"#), "{text}");
    assert_eq!(serde_json::from_str::<LoadReport>(&text).unwrap(), report);
}

/// Runs with one kind of lie and returns the violations.
fn lie(mut bend: impl FnMut(&mut Vec<u8>, u64, u64) -> bool) -> Vec<Found> {
    let mut load = Load::new(config(), Time::ZERO).unwrap();
    let mut ram = Ram::new("r", 1 << 20);
    let mut written = std::collections::BTreeMap::new();
    let mut told = false;
    run(&mut load, &mut ram, |request, result| match (request, result) {
        (Request::Write { offset, .. }, _) => *written.entry(*offset).or_insert(0u64) += 1,
        (Request::Read { offset, .. }, Ok(Answer::Data(pieces))) if !told && pieces[0].iter().any(|b| *b != 0) => {
            let mut bytes = pieces[0].to_vec();
            told = bend(&mut bytes, *offset, written.get(offset).copied().unwrap_or(0));
            *pieces = vec![IoBuf::copy_of(&bytes)];
        }
        _ => {}
    });
    assert!(told, "the lie was told");
    let report = load.report(Time::ZERO);
    assert_eq!(report.violation_count as usize, report.violations.len());
    load.violations.iter().map(|violation| violation.found).collect()
}

#[test]
fn every_kind_of_lie_is_found() {
    let lost = lie(|bytes, _, writes| {
        bytes.fill(0);
        writes > 0
    });
    assert_eq!(lost, [Found::Zeros]);
    let torn = lie(|bytes, _, _| {
        bytes[3000] ^= 1;
        true
    });
    assert_eq!(torn, [Found::Torn]);
    let foreign = lie(|bytes, offset, _| {
        stamp::fill(bytes, 8, 4, offset, 1_000_000);
        true
    });
    assert!(matches!(foreign[..], [Found::Stamp(stamp)] if stamp.volume == 8));
    let misplaced = lie(|bytes, offset, _| {
        stamp::fill(bytes, 9, 4, offset ^ 4096, 1);
        true
    });
    assert_eq!(misplaced.len(), 1);
    let garbage = lie(|bytes, _, writes| {
        bytes.fill(0xee);
        writes > 0
    });
    assert_eq!(garbage, [Found::Unstamped]);
    let mut first = std::collections::BTreeMap::new();
    let stale = lie(|bytes, offset, writes| {
        let kept = first.entry(offset).or_insert_with(|| (bytes.clone(), writes)).clone();
        let old = kept.1 + 2 <= writes;
        if old {
            bytes.copy_from_slice(&kept.0);
        }
        old
    });
    assert!(matches!(stale[..], [Found::Stamp(_)]), "{stale:?}");
}

#[test]
fn unacknowledged_write_may_be_read_until_the_next_is_acknowledged() {
    let config = LoadConfig { span_bytes: 4096, depth: 1, read_percent: 0, ..config() };
    let mut ledger = Ledger::new(9, 4, 4096);
    let block = |sequence| {
        let mut buf = vec![0; BLOCK_LEN];
        stamp::fill(&mut buf, 9, 4, 0, sequence);
        vec![IoBuf::copy_of(&buf)]
    };
    for (sequence, acked) in [(1, true), (2, false), (3, false)] {
        ledger.begin(0, 4096, sequence);
        assert!(ledger.is_writing(0, 4096));
        ledger.end(0, 4096, sequence, acked);
    }
    let floors = ledger.floors(0, 4096);
    assert_eq!(floors, [1]);
    for sequence in 1..=3 {
        assert_eq!(ledger.check(0, 0, &floors, &block(sequence)), []);
    }
    assert_eq!(ledger.check(0, 0, &floors, &block(4)).len(), 1, "never begun");
    // A ledger that was stored and read back, as between two processes, is the same.
    let text = serde_json::to_string(&ledger).unwrap();
    let mut load = Load::resume(config.clone(), serde_json::from_str(&text).unwrap(), Time::ZERO).unwrap();
    let mut out = Vec::new();
    load.next_requests(Time::ZERO, &mut out);
    load.completed(Time(1), out[0].1, &Ok(Answer::Done));
    let mut ledger = load.into_ledger().unwrap();
    let floors = ledger.floors(0, 4096);
    assert_eq!(floors, [4], "sequences go on");
    assert_eq!(ledger.check(0, 0, &floors, &block(3)).len(), 1);
    assert!(Load::resume(LoadConfig { volume: 1, ..config }, ledger, Time::ZERO).is_err());
}

#[test]
fn a_read_that_began_before_an_acknowledgement_may_give_the_older_value() {
    let mut ledger = Ledger::new(9, 4, 4096);
    let before = ledger.floors(0, 4096);
    ledger.begin(0, 4096, 1);
    ledger.end(0, 4096, 1, true);
    assert_eq!(ledger.check(0, 0, &before, &[IoBuf::zeros(4096)]), []);
    let after = ledger.floors(0, 4096);
    assert_eq!(ledger.check(0, 0, &after, &[IoBuf::zeros(512), IoBuf::zeros(3584)]).len(), 1);
}

#[test]
fn an_open_loop_counts_from_when_a_request_was_due() {
    let config = LoadConfig { rate_per_s: 1000, depth: 4, verify: false, ops_max: 0, duration: 100 * MS, ..config() };
    let mut load = Load::new(config, Time::ZERO).unwrap();
    let mut out = Vec::new();
    load.next_requests(Time::ZERO, &mut out);
    assert_eq!((out.len(), load.next_deadline(Time::ZERO)), (1, Time::ZERO + MS));
    // A stall of 50 ms: only `depth` requests could start, and the others are late.
    let stalled = Time::ZERO + 50 * MS;
    load.next_requests(stalled, &mut out);
    assert_eq!((out.len(), load.next_deadline(stalled)), (4, Time::ZERO + 100 * MS));
    for (_, token) in out.split_off(0) {
        load.completed(stalled, token, &Ok(Answer::Done));
    }
    load.next_requests(stalled, &mut out);
    assert_eq!(out.len(), 4);
    out.drain(..).for_each(|(_, token)| load.completed(stalled, token, &Ok(Answer::Done)));
    let report = load.report(stalled);
    assert_eq!(report.longest_gap_us, 50_000);
    let worst = report.reads.latency.max_us.max(report.writes.latency.max_us);
    let best = [report.reads, report.writes].iter().filter(|s| s.ops > 0).map(|s| s.latency.min_us as u64).min();
    assert!((worst - 50_000.0).abs() < 100.0, "{worst}");
    assert!(best.is_some_and(|best| (42_900..43_100).contains(&best)), "{best:?}: the eighth was due at 7 ms");
}

#[test]
fn the_run_ends_by_time_and_its_last_gap_counts() {
    let config = LoadConfig { duration: 10 * MS, ops_max: 0, depth: 2, ..config() };
    let mut load = Load::new(config, Time::ZERO).unwrap();
    let mut out = Vec::new();
    load.next_requests(Time::ZERO, &mut out);
    let end = Time::ZERO + 10 * MS;
    assert!(load.is_spent(end) && !load.is_done(end));
    assert_eq!(load.report(Time::ZERO + 70 * MS).longest_gap_us, 70_000);
    out.drain(..).for_each(|(_, token)| load.completed(end, token, &Err(Errno::TimedOut)));
    assert!(load.is_done(end));
    load.next_requests(end, &mut out);
    assert!(out.is_empty());
    let report = load.report(end + MS);
    assert_eq!((report.errors, report.elapsed_us), (vec![("timed out".into(), 2)], 10_000));
}

#[test]
fn equal_seeds_give_equal_requests_and_sequential_walks_the_span() {
    let asked = |config: &LoadConfig| {
        let mut load = Load::new(config.clone(), Time::ZERO).unwrap();
        let mut out = Vec::new();
        load.next_requests(Time::ZERO, &mut out);
        out
    };
    let random = LoadConfig { depth: 200, read_percent: 30, ..config() };
    assert_eq!(asked(&random), asked(&random));
    assert_ne!(asked(&random), asked(&LoadConfig { seed: 2, ..random.clone() }));
    let walk = LoadConfig { pattern: Pattern::Sequential, offset_bytes: 8192, verify: false, depth: 300, ..random };
    let offsets: Vec<u64> = asked(&walk).iter().map(|(request, _)| request.span().unwrap().0).collect();
    assert_eq!((offsets[0], offsets[1], offsets[255], offsets[256]), (8192, 12288, 8192 + 255 * 4096, 8192));
}

#[test]
fn completions_are_counted_by_second_of_the_last_minute() {
    let mut load = Load::new(LoadConfig { ops_max: 130, ..config() }, Time::ZERO).unwrap();
    let (mut out, mut now) = (Vec::new(), Time::ZERO);
    while !load.is_done(now) {
        load.next_requests(now, &mut out);
        now = now + 500 * MS;
        let (_, token) = out.pop().unwrap();
        load.completed(now, token, &Err(Errno::TimedOut));
        let at_rest = out.len();
        assert!(at_rest < 8);
    }
    assert_eq!(load.report(now).ops_by_second, Vec::<u64>::new(), "failed requests do not count");
    let mut seconds = super::report::Seconds::default();
    for half in 0..140_u64 {
        seconds.count(half as u32 * 500 * MS);
    }
    seconds.count(Duration::from_secs(2));
    assert_eq!(seconds.whole(Duration::from_millis(69_900)), vec![2; 60]);
    assert_eq!(seconds.whole(Duration::from_secs(3)), Vec::<u64>::new());
}

#[test]
fn pieces_cut_the_span_and_every_request_lies_in_one() {
    let pieces = vec![0, 1 << 30, 5 << 30];
    let config = LoadConfig { span_bytes: 3 << 16, offset_bytes: 4096, pieces, ..config() };
    assert_eq!((config.piece_bytes(), config.end_bytes()), (1 << 16, 4096 + (5 << 30) + (1 << 16)));
    let mut load =
        Load::new(LoadConfig { pattern: Pattern::Sequential, depth: 48, ..config.clone() }, Time::ZERO).unwrap();
    let mut out = Vec::new();
    load.next_requests(Time::ZERO, &mut out);
    let offsets: Vec<u64> = out.iter().map(|(request, _)| request.span().unwrap().0).collect();
    let walk = |start: u64| (0..16).map(move |block| 4096 + start + block * 4096);
    assert_eq!(offsets, walk(0).chain(walk(1 << 30)).chain(walk(5 << 30)).collect::<Vec<_>>());
    let faults = |pieces: &[u64], span_bytes| {
        let wrong = LoadConfig { pieces: pieces.to_vec(), span_bytes, ..config.clone() };
        Load::new(wrong, Time::ZERO).err().map_or(0, |error| error.0.len())
    };
    assert_eq!([faults(&[0, 4096], 16384), faults(&[0, 1000], 8192), faults(&[8192, 0], 8192)], [1, 1, 1]);
    assert_eq!([faults(&[0, 4096, 8192], 8192), faults(&[0, !4095], 8192), faults(&[0, 4096], 8192)], [1, 1, 0]);
}

#[test]
fn data_in_pieces_is_verified_at_its_place() {
    let config = LoadConfig { pieces: vec![0, 1 << 19, 3 << 19], span_bytes: 3 << 16, ..config() };
    let (mut load, mut ram) = (Load::new(config, Time::ZERO).unwrap(), Ram::new("r", 2 << 20));
    let now = run(&mut load, &mut ram, |_, _| {});
    let report = load.report(now);
    assert!(report.is_clean() && report.verified_blocks > 800, "{report:?}");
}

#[test]
fn two_writes_of_one_block_are_never_in_flight_when_verifying() {
    let config = LoadConfig { read_percent: 0, span_bytes: 16384, depth: 64, ..config() };
    let mut load = Load::new(config, Time::ZERO).unwrap();
    let mut out = Vec::new();
    load.next_requests(Time::ZERO, &mut out);
    let mut offsets: Vec<u64> = out.iter().map(|(request, _)| request.span().unwrap().0).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 4096, 8192, 12288]);
}

#[test]
fn a_wrong_configuration_names_all_its_faults() {
    let wrong = LoadConfig { read_percent: 101, depth: 0, block_bytes: 512, ..config() };
    let faults = Load::new(wrong, Time::ZERO).err().unwrap().0;
    assert_eq!(faults.len(), 3, "{faults:?}");
}
