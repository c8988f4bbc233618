//! Logs that rot while their process is away: what is acknowledged must be there, and every replica whole again.
//!
//! These runs are outside the swarm, because they aim: they read the log's bytes, and hit chosen ones.

use crate::faults::Class;
use crate::hurt::Region;
use crate::options::Options;
use crate::run::{End, Run};
use engine::Superblock;
use layout::log::{BATCH_ALIGN, BatchHeader, LogIdentity, Record, decode_records, verified_area};
use simenv::DiskImage;
use std::collections::BTreeMap;
use std::time::Duration;
use types::rng::Rng;
use types::{Index, IoBuf, ReplicaId, Time};

/// A late destage: much of the log must not be at home yet, nor be dropped by the others.
const LATE: Duration = Duration::from_secs(5);
/// An early destage: much must be at home.
const EARLY: Duration = Duration::from_millis(50);

/// Returns all batches of the log with their offsets, those of earlier segment lives included. A wiped device has none.
pub(crate) fn batches(image: &DiskImage) -> Vec<(u64, BatchHeader)> {
    // One of the superblock's copies may have rotted.
    let copies = Superblock::offsets(image.size_bytes()).into_iter().filter_map(|at| {
        let mut copy = vec![0; layout::superblock::SUPERBLOCK_LEN];
        image.read(at, &mut copy);
        Superblock::decode(&copy).ok()
    });
    let Some(superblock) = copies.into_iter().next() else { return Vec::new() };
    let end = superblock.log_start + superblock.segment_bytes * u64::from(superblock.segment_count);
    let (mut at, mut found) = (superblock.log_start, Vec::new());
    let mut page = vec![0; BATCH_ALIGN];
    while at < end {
        image.read(at, &mut page);
        match BatchHeader::decode(&page, &superblock.log_identity(), at) {
            Some(header) => {
                found.push((at, header));
                at += header.len_bytes();
            }
            None => at += BATCH_ALIGN as u64,
        }
    }
    found
}

/// Whether a batch of the log can be read as a whole, with all payloads that lie in it.
pub(crate) fn has_whole_batch(image: &DiskImage, log: &LogIdentity) -> bool {
    batches(image).iter().any(|(at, header)| {
        if image.is_unreadable(*at, header.len_bytes()) {
            return false;
        }
        let mut bytes = vec![0; header.len_bytes() as usize];
        image.read(*at, &mut bytes);
        let area = IoBuf::copy_of(&bytes[header.header_len as usize..]);
        let records = header.records(&bytes).and_then(|records| decode_records(records, header.record_count).ok());
        records.is_some_and(|records| verified_area(log, header, &records, area).1)
    })
}

/// Flips a bit of each payload that `which` chooses and that is known to be durable. Returns their number.
pub(crate) fn payloads(image: &DiskImage, which: impl Fn(ReplicaId, Index) -> bool) -> u64 {
    let batches = batches(image);
    let durable = batches.iter().map(|(_, header)| header.durable_seq).max().unwrap_or(0);
    let mut count = 0;
    for (at, header) in batches.iter().filter(|(_, header)| header.seq <= durable) {
        let mut bytes = vec![0; header.header_len as usize];
        image.read(*at, &mut bytes);
        let records = header.records(&bytes).and_then(|r| decode_records(r, header.record_count).ok());
        for record in records.expect("nothing else is damaged") {
            if let Record::Append { replica, index, payload, .. } = record
                && payload.len > 0
                && which(replica, index)
            {
                image.flip_bit(at + u64::from(header.header_len) + u64::from(payload.offset) + 77, 3);
                count += 1;
            }
        }
    }
    count
}

/// Damages the headers of one durable batch out of `one_in` and of the batch behind it, which copies its records. Returns the
/// number of batches whose records are lost. Where that would lose a segment opening or a create record, after which a
/// replica is not created again (R4), the header is damaged alone: then its records are those of the copy.
pub(crate) fn headers(image: &DiskImage, one_in: u64, rng: &mut Rng) -> u64 {
    let batches = batches(image);
    let durable = batches.iter().map(|(_, header)| header.durable_seq).max().unwrap_or(0);
    let by_seq: BTreeMap<u64, (u64, BatchHeader)> = batches.into_iter().map(|batch| (batch.1.seq, batch)).collect();
    let (mut count, mut spared) = (0, 0);
    for (seq, (at, header)) in &by_seq {
        let Some((next, _)) = by_seq.get(&(seq + 1)) else { continue };
        if *seq < spared || seq + 2 > durable || !rng.chance(1, one_in) {
            continue;
        }
        let mut bytes = vec![0; header.header_len as usize];
        image.read(*at, &mut bytes);
        let records = header.records(&bytes).and_then(|r| decode_records(r, header.record_count).ok());
        let birth = records.is_none_or(|all| all.iter().any(|record| matches!(record, Record::Create(_))));
        image.flip_bit(at + 60, 3);
        if !birth && header.seq != header.segment_seq {
            image.flip_bit(next + 60, 3);
            count += 1;
        }
        // The next batches hold the copies.
        spared = seq + 3;
    }
    count
}

/// Damages the header that opens the newest segment.
pub(crate) fn newest_opening(image: &DiskImage) {
    let batches = batches(image);
    let newest = batches.iter().map(|(_, header)| header.segment_seq).max();
    if let Some((at, _)) = batches.iter().find(|(_, header)| Some(header.seq) == newest) {
        image.flip_bit(at + 60, 3);
    }
}

/// Result of a run of rot.
#[derive(Debug, Default)]
pub struct Rotten {
    /// Payloads that were hit, and those that came back from peers.
    pub hit: u64,
    pub back: u64,
    pub replicas: u64,
    /// Replicas that were replaced, because they have failed.
    pub replaced: u64,
    pub compared: u64,
}

/// Under load, `victims` of three OSDs die, their logs rot at different entries, and they start again.
///
/// # Errors
/// Data was lost, or did not come back.
pub fn run(seed: u64, victims: usize) -> Result<Rotten, String> {
    with(seed, LATE, |run| rotten(run, victims)).map_err(|what| format!("seed {seed}, {victims} victims: {what}"))
}

/// Under load, one of three OSDs dies, headers of its log rot, and it starts again; perhaps it dies again before it has
/// caught up, perhaps another one is away meanwhile.
///
/// # Errors
/// Data was lost, or did not come back.
pub fn run_headers(seed: u64) -> Result<Rotten, String> {
    with(seed, LATE, lost_headers).map_err(|what| format!("seed {seed}: {what}"))
}

/// Under load, one of three OSDs dies, pages of its home rot (tables, data, one copy of the superblock), and it starts
/// again. Perhaps it starts twice, perhaps another one is away meanwhile.
///
/// # Errors
/// Data was lost, or did not come back.
pub fn run_home(seed: u64) -> Result<Rotten, String> {
    with(seed, EARLY, lost_home).map_err(|what| format!("seed {seed}: {what}"))
}

fn with(seed: u64, round_idle: Duration, what: impl FnOnce(&mut Run) -> Result<Rotten, End>) -> Result<Rotten, String> {
    let mut rng = Rng::new(seed ^ 0x0707);
    let mut options = Options::draw(&mut rng);
    (options.osds, options.replicas, options.device_bytes) = (3, 3, 1 << 30);
    (options.engine.round_idle, options.engine.round_pressure) = (round_idle, 0.5);
    (options.shape.operations, options.shape.read_pct) = (3000, 30);
    options.shape.sectors_max = options.shape.sectors_max.min(16);
    options.faults = Duration::from_secs(4);
    let mut run = Run::new(seed, options, rng, false, &crate::overrides::Overrides::default());
    what(&mut run).map_err(|end| match end {
        End::Failed(what) => what,
        End::Stopped => unreachable!("it was never told to stop"),
    })
}

fn pass(run: &mut Run, span: Duration) -> Result<(), End> {
    let until = run.cluster.world.now() + span;
    while run.cluster.world.now() < until {
        run.step(until)?;
    }
    Ok(())
}

fn rotten(run: &mut Run, victims: usize) -> Result<Rotten, End> {
    run.set_up()?;
    let over = run.cluster.options.faults;
    run.cluster.begin(&run.volumes, over, &mut run.rng);
    let before = run.rng.between(300, 1500);
    pass(run, Duration::from_millis(before))?;
    let first = run.rng.below(3) as usize;
    let hurt: Vec<usize> = (0..victims).map(|n| (first + n) % 3).collect();
    hurt.iter().for_each(|i| run.cluster.stop_osd(*i, true));
    let mut rotten = Rotten::default();
    for (n, i) in hurt.iter().enumerate() {
        // Every other entry is hit, and no entry on two devices.
        rotten.hit += run.cluster.rot_payloads(*i, |_, index| index.0 % victims.max(2) as u64 == n as u64);
    }
    let away = run.rng.between(1, 200);
    pass(run, Duration::from_millis(away))?;
    hurt.iter().for_each(|i| run.cluster.start_osd(*i));
    pass(run, over)?;
    judge(run, rotten)
}

fn lost_headers(run: &mut Run) -> Result<Rotten, End> {
    run.set_up()?;
    let over = run.cluster.options.faults;
    run.cluster.begin(&run.volumes, over, &mut run.rng);
    let before = run.rng.between(300, 1500);
    pass(run, Duration::from_millis(before))?;
    let first = run.rng.below(3) as usize;
    run.cluster.stop_osd(first, true);
    let one_in = [10, 50, 200][run.rng.below(3) as usize];
    let hit = run.cluster.rot_headers(first, one_in);
    let other = run.rng.chance(1, 2).then_some((first + 1) % 3);
    other.into_iter().for_each(|i| run.cluster.stop_osd(i, true));
    let away = run.rng.between(1, 200);
    pass(run, Duration::from_millis(away))?;
    run.cluster.start_osd(first);
    let again = run.rng.below(3);
    for _ in 0..again {
        let alive = run.rng.between(1, 300);
        pass(run, Duration::from_millis(alive))?;
        run.cluster.stop_osd(first, true);
        run.cluster.start_osd(first);
    }
    other.into_iter().for_each(|i| run.cluster.start_osd(i));
    pass(run, over)?;
    judge(run, Rotten { hit, ..Rotten::default() })
}

fn lost_home(run: &mut Run) -> Result<Rotten, End> {
    run.set_up()?;
    let over = run.cluster.options.faults;
    run.cluster.begin(&run.volumes, over, &mut run.rng);
    let before = run.rng.between(500, 2000);
    pass(run, Duration::from_millis(before))?;
    let first = run.rng.below(3) as usize;
    run.cluster.stop_osd(first, true);
    let mut hit = 0;
    for (class, region, most) in [
        (Class::BitRotTables, Region::Tables, 12),
        (Class::BitRotData, Region::Data, 40),
        (Class::BitRotSuper, Region::Superblock, 2),
    ] {
        let pages = run.cluster.region(first, region, &mut run.rng);
        let count = run.rng.below(most).min(pages.len() as u64);
        for _ in 0..count {
            let page = pages[run.rng.below(pages.len() as u64) as usize];
            run.cluster.image(first).flip_bit(page + run.rng.below(4096), run.rng.below(8) as u8);
        }
        hit += if region == Region::Tables { count } else { 0 };
        run.cluster.budget.note_aimed(first, class);
    }
    let other = run.rng.chance(1, 3).then_some((first + 1) % 3);
    other.into_iter().for_each(|i| run.cluster.stop_osd(i, true));
    let away = run.rng.between(1, 200);
    pass(run, Duration::from_millis(away))?;
    run.cluster.start_osd(first);
    if run.rng.chance(1, 2) {
        let alive = run.rng.between(1, 300);
        pass(run, Duration::from_millis(alive))?;
        run.cluster.stop_osd(first, true);
        run.cluster.start_osd(first);
    }
    other.into_iter().for_each(|i| run.cluster.start_osd(i));
    pass(run, over)?;
    let rotten = judge(run, Rotten { hit, ..Rotten::default() })?;
    run.cluster.lies_are_mended()?;
    Ok(rotten)
}

fn judge(run: &mut Run, mut rotten: Rotten) -> Result<Rotten, End> {
    run.calm()?;
    run.cluster.failure()?;
    run.compare()?;
    if let Some(violation) = run.cluster.linear.violations().first() {
        return Err(violation.to_string().into());
    }
    for (_, osd) in run.cluster.running() {
        let (entries, replicas) = osd.repaired();
        (rotten.back, rotten.replicas) = (rotten.back + entries, rotten.replicas + replicas);
        if let Some((pg, why)) = osd.quarantined().first() {
            return Err(format!("pg {pg} has not been replaced: {why}").into());
        }
        if let Some((pg, lost)) = osd.repairing().first() {
            return Err(format!("pg {pg} is still being repaired, without {lost:?}").into());
        }
    }
    let changes = run.cluster.meta.records().into_iter().flat_map(|records| records.pgs.values()).map(|pg| pg.changes);
    rotten.replaced = changes.sum();
    assert!(run.cluster.world.now() > Time::ZERO);
    rotten.compared = run.compared;
    Ok(rotten)
}
