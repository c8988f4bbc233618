//! Large writes once (ADR 0030): order of writes, space, and payloads that no round adopts.

use super::laws::{put_wide, run_rounds, write};
use super::rig::Rig;
use crate::EngineConfig;
use crate::testing::{Model, chunks};
use env::{Event, Op};
use std::time::Duration;
use types::store::Effect;
use types::units::{AUS_PER_CHUNK, SECTORS_PER_AU};
use types::{AU, ChunkKey, Index, ReplicaId, SectorRange};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);

/// Returns a config in which every AU is placed, and no round begins by itself.
pub(super) fn config() -> EngineConfig {
    EngineConfig {
        redirect_min: Some(AU),
        round_pressure: 100.0,
        round_idle: Duration::from_secs(1000),
        ..EngineConfig::default()
    }
}

pub(super) fn new(seed: u64, config: EngineConfig) -> Rig {
    let mut rig = Rig::new(seed, true, config);
    rig.create(1);
    rig.create(2);
    rig
}

pub(super) fn aus(chunk: ChunkKey, au: u32, count: u32) -> Effect {
    Effect::Write { chunk, range: SectorRange::new(au * SECTORS_PER_AU, count * SECTORS_PER_AU) }
}

pub(super) fn put(rig: &mut Rig, replica: ReplicaId, effects: Vec<Effect>) {
    rig.extend(replica, effects);
    rig.settle();
    rig.commit(replica, u64::MAX);
}

pub(super) fn one_round(rig: &mut Rig) {
    let rounds = rig.engine.stats().rounds;
    rig.round();
    rig.settle();
    assert_eq!(rig.engine.stats().rounds, rounds + 1);
    rig.engine.audit().expect("the books balance");
}

pub(super) fn logged_aus(rig: &Rig) -> u64 {
    rig.engine.stats().home.logged_bytes / AU
}

/// Completes an operation as a disk does that has no cache; returns whether the append was acknowledged.
fn complete(rig: &mut Rig, op: &Op, more: &mut Vec<Op>) -> bool {
    let event = match op {
        Op::DiskWrite { token, .. } => Event::DiskWrite { token: *token, result: Ok(()) },
        Op::DiskFlush { token, .. } => Event::DiskFlush { token: *token, result: Ok(()) },
        other => panic!("{other:?}"),
    };
    let mut out = Vec::new();
    rig.engine.handle_event(rig.now, event, more, &mut out);
    out.iter().any(|event| matches!(event, crate::EngineEvent::Persisted { .. }))
}

#[test]
fn payload_at_home_record_and_flush_precede_the_acknowledgement() {
    for (order, kind) in (0..6).flat_map(|order| [0, 1, 2].map(|kind| (order, kind))) {
        let mut rig = match kind {
            0 => Rig::new(1, true, config()),
            1 => Rig::new(1, false, config()),
            _ => Rig::on_file(1, config()),
        };
        rig.create(1);
        // An AU that is taken in between splits the payload into two runs.
        let home = rig.engine.home.as_mut().expect("mounted");
        let first = home.place(R2, 3)[0].unit;
        let between = layout::log::PlacedRun { unit: first + 4, count: 1 };
        assert!(home.claim_placed(R2, &[between]));
        rig.extend(R1, vec![aus(chunks()[0], 0, 3)]);
        let (mut ops, mut out) = (Vec::new(), Vec::new());
        rig.engine.end_turn(rig.now, &mut ops, &mut out);
        let linked = ops.iter().filter(|op| matches!(op, Op::DiskWrite { flush: true, .. })).count();
        assert_eq!((ops.len(), linked, out.len()), (3, 0, 0), "record and two runs are in flight at once: {ops:?}");
        let mut more = Vec::new();
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let acks = orders[order].map(|nth| complete(&mut rig, &ops[nth], &mut more));
        let flushes = kind != 1;
        assert_eq!((acks, more.len()), ([false, false, !flushes], usize::from(flushes)), "{order}, {kind}");
        if let Some(op) = more.pop() {
            assert!(matches!(op, Op::DiskFlush { .. }) && complete(&mut rig, &op, &mut more));
        }
        assert!(more.is_empty());
    }
}

#[test]
fn batch_without_placed_payloads_keeps_its_linked_flush() {
    let mut rig = Rig::on_file(1, config());
    rig.create(1);
    rig.extend(R1, vec![write(0, 8)]);
    let (mut ops, mut out) = (Vec::new(), Vec::new());
    rig.engine.end_turn(rig.now, &mut ops, &mut out);
    assert!(
        matches!(ops[..], [Op::DiskWrite { flush: false, .. }]),
        "the log of a file is written to its end: {ops:?}"
    );
    assert!(complete(&mut rig, &ops[0], &mut Vec::new()));
}

#[test]
fn failed_write_of_a_placed_payload_poisons_the_store() {
    for failed in 0..2 {
        let mut rig = new(1, config());
        rig.extend(R1, vec![aus(chunks()[0], 0, 3)]);
        rig.disk.fails = rig.disk.ended + failed..rig.disk.ended + failed + 1;
        rig.turn(16);
        assert!(rig.poisoned && rig.models[&R1].durable == 0);
    }
}

/// Returns the bytes that the device takes for an overwrite of everything, over those of the payload.
fn amplification(redirect_min: Option<u64>) -> f64 {
    let mut rig = new(2, EngineConfig { redirect_min, ..config() });
    let all = || chunks().into_iter().map(|chunk| aus(chunk, 0, 3)).collect::<Vec<_>>();
    put(&mut rig, R1, all());
    one_round(&mut rig);
    let written = rig.engine.stats().device_written_bytes;
    let payload: u64 = 12 * AU;
    put(&mut rig, R1, all());
    one_round(&mut rig);
    rig.check_all_sectors();
    assert_eq!(logged_aus(&rig), 0);
    let bytes = rig.engine.stats().device_written_bytes - written;
    rig.disk.power_cut();
    rig.restart_and_check();
    bytes as f64 / payload as f64
}

#[test]
fn large_write_that_nothing_overwrites_is_written_once() {
    let (once, twice) = (amplification(Some(AU)), amplification(None));
    // Five pages of each chunk, and those of the replica, are much beside three AUs.
    assert!(once < 1.2 && twice > 2.0, "{once} and {twice}");
}

#[test]
fn smaller_or_unaligned_payload_goes_inline() {
    let mut rig = new(3, EngineConfig { redirect_min: Some(2 * AU), ..config() });
    put(&mut rig, R1, vec![aus(chunks()[0], 0, 1), write(8, 256), write(0, 257)]);
    assert_eq!((rig.engine.stats().placed_bytes, logged_aus(&rig)), (0, 0));
    assert_eq!(rig.engine.stats().copied_bytes, 0, "the device takes sectors as they lie");
    put(&mut rig, R1, vec![aus(chunks()[0], 1, 2)]);
    assert_eq!((rig.engine.stats().placed_bytes, logged_aus(&rig)), (2 * AU, 2));
}

#[test]
fn placed_bytes_fill_the_log_as_inline_ones() {
    let levels = [Some(AU), None].map(|redirect_min| {
        let mut rig = new(4, EngineConfig { redirect_min, ..config() });
        for n in 0..60 {
            put(&mut rig, R1, vec![aus(chunks()[n % 4], 0, 3)]);
        }
        let stats = rig.engine.stats();
        rig.disk.power_cut();
        rig.restart_and_check();
        let again = rig.engine.pressure().log;
        (rig.seen.log_bytes, stats.segments_in_use, again)
    });
    let [(once, segments, pressure), (twice, as_many, as_high)] = levels;
    assert_eq!(segments, as_many, "both logs are as full");
    assert!(once < twice / 4, "{once} and {twice} bytes of log");
    assert!((pressure - as_high).abs() < 0.1 && pressure > 0.5, "{pressure} and {as_high} after a mount");
}

#[test]
fn payload_under_an_overwrite_stays_as_the_log_needs_it() {
    for cut in 0..60 {
        let mut rig = new(cut, config());
        put(&mut rig, R1, vec![aus(chunks()[0], 0, 3)]);
        put(&mut rig, R1, vec![write(130, 1), Effect::Zero { chunk: chunks()[0], range: SectorRange::new(300, 9) }]);
        rig.round();
        for _ in 0..cut {
            rig.turn(1);
        }
        rig.disk.power_cut();
        rig.restart_and_check();
        one_round_or_none(&mut rig);
        one_round_or_none(&mut rig);
        assert_eq!(logged_aus(&rig), 0);
        rig.check_all_sectors();
    }
}

fn one_round_or_none(rig: &mut Rig) {
    rig.round();
    rig.settle();
    rig.engine.audit().expect("the books balance");
}

/// Runs rounds until the last placed payload is dropped or adopted.
fn sweep(rig: &mut Rig) {
    // A round of no replica is none: another one writes something.
    put(rig, R2, vec![write(0, 8)]);
    one_round(rig);
    assert_eq!(logged_aus(rig), 0);
    let (free, held) = (rig.engine.stats().home.free_bytes, rig.engine.stats().home.used_bytes);
    assert_eq!(free + held, rig.engine.stats().home.capacity_bytes, "nothing is pending free");
    rig.disk.power_cut();
    rig.restart_and_check();
    assert_eq!(logged_aus(rig), 0);
}

#[test]
fn payload_of_a_truncated_entry_is_released() {
    let mut rig = new(5, config());
    rig.extend(R1, vec![aus(chunks()[0], 0, 3)]);
    rig.settle();
    rig.append(R1, 1, vec![write(0, 8)]);
    assert_eq!(logged_aus(&rig), 3);
    rig.settle();
    sweep(&mut rig);
}

#[test]
fn payload_is_held_while_the_truncation_of_its_entry_is_not_durable() {
    let mut rig = new(6, config());
    rig.extend(R1, vec![aus(chunks()[0], 0, 3)]);
    put(&mut rig, R2, vec![write(0, 8)]);
    rig.append(R1, 1, vec![write(0, 8)]);
    // The append waits for the batch in flight; the mark of the round is queued in front of nothing of it.
    let run = crate::round::Run::install(
        crate::home_api::RoundState {
            decision: rig.models[&R2].decision(),
            commit: Index(1),
            dissolved: bytes::Bytes::new(),
        },
        0,
        None,
    );
    assert!(rig.engine.unnamed(&run).is_empty(), "the log on the device may produce it still");
    rig.settle();
    assert_eq!(rig.engine.unnamed(&run).values().map(Vec::len).sum::<usize>(), 3);
    sweep(&mut rig);
}

#[test]
fn payload_that_is_zeroed_or_unmapped_is_released() {
    let mut rig = new(7, config());
    let [a, b, ..] = chunks();
    put(&mut rig, R1, vec![aus(a, 0, 2), aus(b, 0, 3)]);
    let zero = Effect::Zero { chunk: a, range: SectorRange::new(0, 2 * SECTORS_PER_AU) };
    put(&mut rig, R1, vec![zero, Effect::Unmap { generation: b.generation, from_chunk: b.index }]);
    assert_eq!(logged_aus(&rig), 5);
    sweep(&mut rig);
    assert_eq!(rig.engine.stats().home.used_bytes, AU, "the block of the sweep is all that is left");
}

#[test]
fn payload_of_an_entry_without_effect_is_released() {
    let mut rig = new(8, config());
    rig.extend(R1, vec![aus(chunks()[0], 0, 3)]);
    rig.settle();
    // A fence or a duplicate: the entry is applied without its write.
    let g: &mut Model = rig.models.get_mut(&R1).expect("created");
    (g.hard_state.commit, g.applied) = (Index(1), 1);
    g.made[0].effect = Effect::None;
    rig.engine.apply(R1, Index(1), Effect::None);
    one_round(&mut rig);
    assert_eq!(logged_aus(&rig), 0);
    assert_eq!(rig.engine.stats().home.used_bytes, 0);
}

#[test]
fn payloads_of_a_destroyed_or_failed_replica_are_released() {
    for fails in [false, true] {
        let mut rig = new(9, config());
        put(&mut rig, R1, vec![aus(chunks()[0], 0, 3)]);
        rig.extend(R1, vec![aus(chunks()[1], 0, 3)]);
        rig.settle();
        match fails {
            true => rig.engine.fail(R1, "a test".to_owned()),
            false => rig.destroy(R1),
        }
        rig.settle();
        assert_eq!(logged_aus(&rig), 6);
        put(&mut rig, R2, vec![aus(chunks()[0], 0, 1)]);
        one_round(&mut rig);
        assert_eq!(logged_aus(&rig), 0);
        rig.disk.power_cut();
        rig.restart();
        rig.engine.audit().expect("the books balance");
        assert_eq!((rig.seen.mount_failed.take(), logged_aus(&rig)), (None, 0), "it claims nothing");
    }
}

#[test]
fn copied_entry_keeps_its_place_and_is_not_written_again() {
    let mut rig = new(10, EngineConfig { round_pressure: 0.3, ..config() });
    rig.extend(R2, (0..4).map(|n| aus(chunks()[n], 0, 3)).collect());
    rig.settle();
    let mut n = 0;
    while rig.engine.stats().copied_entries < 4 {
        rig.extend(R1, vec![write(n * 32 % 160, 32), aus(chunks()[3], 1, 1)]);
        rig.turn(8);
        rig.commit(R1, u64::MAX);
        run_rounds(&mut rig);
        n += 1;
        assert!(n < 2000, "nothing is copied");
    }
    rig.disk.power_cut();
    rig.restart_and_check();
    assert!(logged_aus(&rig) >= 12, "the entries of R2 were never committed");
    let at = rig.models[&R2].last();
    rig.commit(R2, at);
    one_round(&mut rig);
    assert_eq!(logged_aus(&rig), 0);
    rig.disk.power_cut();
    rig.restart_and_check();
}

#[test]
fn near_a_full_device_payloads_go_inline_and_none_is_refused() {
    let mut rig = new(11, EngineConfig { round_idle: Duration::from_millis(20), round_pressure: 0.5, ..config() });
    let (mut placed, mut written, mut misses) = (0, 0, 0);
    let generation = chunks()[0].generation;
    let mut at = 0;
    while misses < 200 {
        let key = ChunkKey { generation, index: at / AUS_PER_CHUNK };
        let range = SectorRange::new(at % AUS_PER_CHUNK * SECTORS_PER_AU, SECTORS_PER_AU);
        let need = rig.engine.new_aus(R1, key, range);
        if u64::from(need) > rig.engine.space().available_aus || rig.engine.pressure().max() >= 1.0 {
            misses += 1;
            rig.now = rig.now + Duration::from_millis(5);
            rig.turn(16);
            continue;
        }
        (misses, at, written) = (0, at + 1, written + 1);
        put_wide(&mut rig, vec![Effect::Write { chunk: key, range }]);
        placed = rig.engine.stats().placed_bytes / AU;
        assert!(!rig.engine.destage.refused, "what was promised fits: {:?}", rig.engine.space());
        rig.engine.audit().expect("the books balance");
    }
    let capacity = rig.engine.stats().home.capacity_bytes / AU;
    assert!(placed > 0 && placed < written, "{placed} of {written} placed");
    assert!(written + 24 > capacity, "{written} of {capacity}: the device is filled to its reserve");
    // Overwrites of all of it need no space.
    for n in 0..written as u32 {
        let key = ChunkKey { generation, index: n / AUS_PER_CHUNK };
        let range = SectorRange::new(n % AUS_PER_CHUNK * SECTORS_PER_AU, SECTORS_PER_AU);
        put_wide(&mut rig, vec![Effect::Write { chunk: key, range }]);
        rig.now = rig.now + Duration::from_millis(5);
        rig.turn(16);
        assert!(!rig.engine.destage.refused, "{:?}", rig.engine.space());
    }
    rig.engine.audit().expect("the books balance");
}

#[test]
fn exchanged_space_is_no_pressure() {
    let mut rig = new(12, config());
    for _ in 0..2 {
        put_wide(&mut rig, (0..12).map(|n| aus(chunks()[0], 8 * n, 8)).collect());
        rig.round();
        let mut highest = 0.0_f32;
        for _ in 0..400 {
            rig.turn(1);
            highest = highest.max(rig.engine.pressure().pending_free);
        }
        rig.settle();
        assert!(highest < 0.5, "{highest}: 96 AUs are dropped for as many that the log had taken");
        assert_eq!(logged_aus(&rig), 0);
    }
}
