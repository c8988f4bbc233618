//! Streams, kept space and block repair with several generations: what they take of a member, and what another one makes of it.

use super::crash::config;
use super::lineage::{apply_all, branch, check_space, destage, key, order, quiet, random_order, step, write, zero};
use super::rig::Rig;
use super::stream::{Came, Stream};
use crate::testing::{CHUNKS, Model, Order, SECTORS};
use types::store::{BlockCopy, ChunkDelta, Effect, MendRefusal, Own};
use types::tree::Role;
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, GenerationId, Index, IoBuf, ReplicaId, SectorRange, SnapshotId, VolumeId, crc32c};

const R1: ReplicaId = ReplicaId(1);
const V1: VolumeId = VolumeId(1);

/// Returns the runs of a delta, in blocks that the tests use.
fn blocks(delta: &ChunkDelta) -> Vec<Own> {
    let all: Vec<Own> = delta.runs.iter().flat_map(|(sectors, own)| (0..*sectors).map(|_| *own)).collect();
    let of_block = |sectors: &[Own]| match sectors.contains(&Own::Data) {
        true => Own::Data,
        false => sectors[0],
    };
    all[..SECTORS as usize].chunks(SECTORS_PER_BLOCK as usize).map(of_block).collect()
}

fn block(n: usize) -> SectorRange {
    SectorRange::of_blocks(n as u16, 1)
}

/// Returns the deltas of all live generations. What is open, or zeros, over nothing is the same.
fn deltas(rig: &Rig) -> Vec<(ChunkKey, usize, Own)> {
    let model = &rig.models[&R1];
    let mut all = Vec::new();
    for chunk in model.keys() {
        for (n, own) in blocks(&rig.engine.delta(R1, chunk)).into_iter().enumerate() {
            let is_zeros = model.expected(chunk, block(n)).iter().all(|b| *b == 0);
            all.push((chunk, n, if is_zeros { Own::Zeros } else { own }));
        }
    }
    all
}

/// Creates a follower of the same PG, which has nothing, beside another replica.
fn follower(seed: u64) -> Rig {
    let mut rig = Rig::new(seed, !seed.is_multiple_of(3), config(1));
    (1..=2).for_each(|id| rig.create(id));
    rig
}

/// Stages what a leader has, as a stream brings it. `None`: the process is to die now.
fn bring(leader: &Rig, rig: &mut Rig, stream: &mut Stream) -> Option<()> {
    let model = &leader.models[&R1];
    (rig.seen.staged, rig.seen.refused) = (0, Vec::new());
    let mut sent = 0;
    for chunk in leader.engine.chunks(R1) {
        assert!(model.tree.get(chunk.generation).is_some(), "{chunk} is not of a live generation");
        for (n, own) in blocks(&leader.engine.delta(R1, chunk)).into_iter().enumerate() {
            let bytes = match own {
                Own::Open => continue,
                Own::Zeros => vec![0; BLOCK as usize],
                Own::Data => model.expected(chunk, block(n)),
            };
            assert!(rig.stage(R1, chunk, block(n), &bytes), "there is room");
            sent += 1;
        }
    }
    while rig.seen.staged < sent {
        stream.step(rig)?;
    }
    Some(())
}

/// Fills the follower with the contents of the leader.
fn fill(leader: &Rig, rig: &mut Rig, stream: &mut Stream) -> Option<()> {
    let model: Model = leader.models[&R1].ahead(Vec::new());
    rig.models.remove(&R1);
    stream.begin(rig, model)?;
    bring(leader, rig, stream)?;
    install(rig, stream)
}

/// Installs the contents. The group does nothing meanwhile, so that they stay those of the leader.
fn install(rig: &mut Rig, stream: &mut Stream) -> Option<()> {
    rig.engine.install(R1);
    stream.installs = Some(rig.models[&R1].applied);
    while rig.seen.installed.is_empty() {
        assert_eq!(rig.seen.refused, []);
        stream.step(rig)?;
    }
    assert_eq!(rig.seen.installed.pop(), Some(R1));
    stream.installed = true;
    rig.models.get_mut(&R1).expect("it began").fills = false;
    Some(())
}

pub(super) fn leader(seed: u64, next: &mut u64) -> Rig {
    let mut rig = Rig::with_long_segments(seed, true, 1 << 20, config(seed));
    rig.create(1);
    rig.order(R1, vec![Order::Begin { volume: V1, parent: None }, Order::Begin { volume: VolumeId(2), parent: None }]);
    apply_all(&mut rig);
    for _ in 0..rig.rng().between(100, 700) {
        step(&mut rig, next);
        if rig.rng().chance(1, 20) {
            random_order(&mut rig, next);
        }
    }
    apply_all(&mut rig);
    rig.settle();
    rig
}

#[test]
fn follower_behind_the_log_gets_all_generations() {
    let (mut generations, mut dissolved) = (0, 0);
    for seed in 0..24 {
        let mut next = 3;
        let leader = leader(seed, &mut next);
        let mut rig = follower(seed);
        fill(&leader, &mut rig, &mut Stream::new(R1, u64::MAX)).expect("no crash");
        generations += rig.models[&R1].tree.len();
        dissolved += leader.engine.replicas[&R1].lineage.dissolved_bytes().len();
        rig.check_all_sectors();
        let (ours, theirs) = (deltas(&rig), deltas(&leader));
        let differ: Vec<_> = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).collect();
        assert!(differ.is_empty(), "seed {seed}: {differ:?}");
        assert!(rig.engine.replicas[&R1].lineage.dissolved_bytes().is_empty(), "a stream brings live generations");
        // Life goes on, with the next generations.
        for _ in 0..100 {
            step(&mut rig, &mut next);
        }
        rig.settle();
        rig.disk.power_cut();
        rig.restart_and_check();
        check_space(&rig);
    }
    assert!(generations > 80 && dissolved > 100, "{generations} {dissolved}: the test lost its teeth");
}

/// One history with a snapshot, and blocks of either generation; the target has its beginning.
fn cut_short(turns: u64) -> Came {
    let history = |rig: &mut Rig, whole: bool| {
        order(rig, Order::Begin { volume: V1, parent: None });
        write(rig, 0, 256);
        if rig.engine.replicas[&R1].applied == Index(2) {
            destage(rig);
        }
        branch(rig, 2);
        if whole {
            write(rig, 3, 10);
            zero(rig, 64, 8);
            destage(rig);
            write(rig, 200, 3);
        }
    };
    let mut leader = follower(100);
    history(&mut leader, true);
    let mut rig = follower(turns);
    history(&mut rig, false);
    let old = rig.models[&R1].clone();
    let mut stream = Stream::new(R1, turns);
    let _ = fill(&leader, &mut rig, &mut stream);
    rig.disk.power_cut();
    rig.restart();
    assert_eq!(rig.seen.mount_failed, None);
    rig.engine.audit().expect("the books balance");
    let came = stream.judge(&mut rig, old);
    for found in std::mem::take(&mut rig.seen.recovered) {
        rig.check_recovered(found, false);
    }
    rig.check_all_sectors();
    if came == Came::Filling {
        // The tree of the beginning of its log decides about marks again.
        let mut again = Stream::again(&rig, R1);
        bring(&leader, &mut rig, &mut again).expect("no crash");
        again.lead(&mut rig);
        again.catch_up(&mut rig).expect("no crash");
        again.install(&mut rig).expect("no crash");
    }
    if came != Came::Old {
        assert_eq!(rig.engine.delta(R1, key(1, 0)), leader.engine.delta(R1, key(1, 0)));
        destage(&mut rig);
    }
    rig.disk.power_cut();
    rig.restart_and_check();
    came
}

#[test]
fn two_generations_are_old_or_filling_or_whole_at_every_crash() {
    let (mut old, mut filling, mut whole) = (0, 0, 0);
    for turns in 0..120 {
        match cut_short(turns) {
            Came::Old => old += 1,
            Came::Filling => filling += 1,
            Came::Whole => whole += 1,
        }
    }
    assert!(old > 0 && filling > 10 && whole > 10, "{old} {filling} {whole}");
}

#[test]
fn blocks_of_generations_that_end_before_the_log_begins_are_dropped() {
    let mut leader = quiet(31);
    write(&mut leader, 0, 16);
    branch(&mut leader, 2);
    write(&mut leader, 0, 8);
    let mut rig = follower(31);
    let mut stream = Stream::new(R1, u64::MAX);
    rig.models.remove(&R1);
    stream.begin(&mut rig, leader.models[&R1].ahead(Vec::new())).expect("no crash");
    bring(&leader, &mut rig, &mut stream).expect("no crash");
    order(&mut leader, Order::Remove(GenerationId(1)));
    // The log begins again, where the snapshot is gone.
    stream.begin(&mut rig, leader.models[&R1].ahead(Vec::new())).expect("no crash");
    bring(&leader, &mut rig, &mut stream).expect("no crash");
    stream.install(&mut rig).expect("no crash");
    let home = rig.engine.home.as_ref().expect("mounted");
    assert_eq!(home.chunks(R1).collect::<Vec<_>>(), [key(2, 0)]);
    rig.check_all_sectors();
    rig.disk.power_cut();
    rig.restart_and_check();
}

/// The last volume of the PG ends while its blocks are on their way: the log of the target begins behind that, and will not say it.
#[test]
fn blocks_of_the_last_volume_of_a_pg_are_dropped_with_it() {
    for exact in [false, true] {
        let mut leader = quiet(33);
        write(&mut leader, 0, 16);
        let mut rig = follower(33);
        let mut stream = Stream::new(R1, u64::MAX);
        let mut end =
            leader.models[&R1].ahead(vec![Effect::Unmap { generation: GenerationId(1), from_chunk: 0 }]).decision();
        let mut bytes = bytes::BytesMut::new();
        types::tree::Tree::default().encode_decision(&mut bytes);
        end.bytes = bytes.freeze();
        if exact {
            bring(&leader, &mut rig, &mut stream).expect("no crash");
            rig.engine.install_as_of(end);
        } else {
            rig.models.remove(&R1);
            stream.begin(&mut rig, leader.models[&R1].ahead(Vec::new())).expect("no crash");
            bring(&leader, &mut rig, &mut stream).expect("no crash");
            rig.models.remove(&R1);
            rig.engine.fill(end);
            rig.settle();
            assert_eq!(rig.seen.filling.len(), 1);
            rig.engine.install(R1);
        }
        rig.settle();
        let home = rig.engine.home.as_ref().expect("mounted");
        assert_eq!(home.chunks(R1).count(), 0, "nothing of the volume is left");
        assert_eq!(rig.seen.refused, []);
        rig.engine.audit().expect("the books balance");
        rig.models.clear();
    }
}

/// Contents that come first are of generations that the target does not know.
#[test]
fn generation_that_no_tree_has_is_refused_unless_the_stream_brings_it() {
    for with_tree in [false, true] {
        let mut leader = quiet(32);
        write(&mut leader, 0, 16);
        branch(&mut leader, 2);
        write(&mut leader, 0, 3);
        zero(&mut leader, 8, 8);
        let mut rig = follower(32);
        order(&mut rig, Order::Begin { volume: V1, parent: None });
        let new = leader.models[&R1].ahead(Vec::new());
        if with_tree {
            assert!(!rig.engine.stage_as_of(R1, b"no decision state"));
            assert!(rig.engine.stage_as_of(R1, &new.decision().bytes));
        }
        assert_eq!(rig.engine.stages_marks(R1, key(2, 0)), with_tree);
        let mut stream = Stream::new(R1, u64::MAX);
        bring(&leader, &mut rig, &mut stream).expect("no crash");
        rig.engine.install_as_of(new.decision());
        rig.settle();
        if !with_tree {
            assert_eq!(std::mem::take(&mut rig.seen.refused), [R1], "its blocks have other checksums");
            rig.check_all_sectors();
            continue;
        }
        assert_eq!(rig.seen.refused, []);
        let found = rig.seen.filling.pop().expect("its log began with the contents");
        rig.models.insert(R1, new);
        rig.check_recovered(found, false);
        rig.check_all_sectors();
        rig.disk.power_cut();
        rig.restart_and_check();
    }
}

#[test]
fn older_contents_are_kept_only_in_their_own_generation() {
    let mut rig = quiet(33);
    rig.create(2);
    write(&mut rig, 0, 256);
    branch(&mut rig, 2);
    write(&mut rig, 0, 8);
    write(&mut rig, 128, 128);
    destage(&mut rig);
    let new = rig.models.remove(&R1).expect("created").ahead(vec![Effect::None]);
    let mut stream = Stream::new(R1, u64::MAX);
    stream.begin(&mut rig, new).expect("no crash");
    let keep = |rig: &mut Rig, generation, au| rig.engine.keep(R1, R1, key(generation, 0), au);
    assert!(keep(&mut rig, 1, 0) && keep(&mut rig, 2, 1));
    assert!(!keep(&mut rig, 2, 0), "the snapshot shows in it");
    assert!(!keep(&mut rig, 2, 2), "nothing is there");
}

/// The checksum of a block names the family of its generation. Members that went back in time may know a clone as a volume of its own.
#[test]
fn older_contents_are_kept_only_in_the_same_family() {
    const V2: VolumeId = VolumeId(2);
    let begin = |rig: &mut Rig, parent: Option<GenerationId>| {
        order(rig, Order::Begin { volume: V2, parent });
        rig.extend(R1, vec![Effect::Write { chunk: key(2, 0), range: SectorRange::new(128, 128) }]);
        apply_all(rig);
    };
    for is_clone in [false, true] {
        let mut leader = quiet(35);
        write(&mut leader, 0, 256);
        branch(&mut leader, 3);
        begin(&mut leader, is_clone.then_some(GenerationId(1)));
        let mut rig = quiet(35);
        rig.create(2);
        write(&mut rig, 0, 256);
        begin(&mut rig, None);
        destage(&mut rig);
        rig.models.remove(&R1);
        let mut stream = Stream::new(R1, u64::MAX);
        stream.begin(&mut rig, leader.models[&R1].ahead(vec![Effect::None])).expect("no crash");
        assert!(rig.engine.keep(R1, R1, key(1, 0), 0), "of the same family in both");
        assert_eq!(rig.engine.keep(R1, R1, key(2, 0), 1), !is_clone);
    }
}

/// Flips a bit of this block at home, and reads it, so that the engine finds it bad.
fn rot(rig: &mut Rig, chunk: ChunkKey, bytes: &[u8]) {
    let home = rig.superblock.home_start as usize;
    let at = rig.disk.bytes()[home..].chunks(4096).position(|page| page == bytes).expect("it is at home") * 4096;
    rig.disk.flip(home + at + 5);
    rig.seen.bad.clear();
    rig.read(R1, chunk, SectorRange::new(0, SECTORS));
    rig.engine.now = rig.now;
    while rig.seen.bad.is_empty() {
        rig.end_turn();
        rig.disk.submit(&mut rig.ops);
        if let Some(event) = rig.disk.step() {
            rig.handle_event(event);
        }
    }
    rig.seen.failed_reads.clear();
}

fn copy_of(peer: &Rig, chunk: ChunkKey, n: usize) -> BlockCopy {
    let (bytes, at) = (peer.models[&R1].expected(chunk, block(n)), Index(peer.models[&R1].applied));
    BlockCopy { low: at, high: at, data: Some((IoBuf::copy_of(&bytes), crc32c(&bytes))) }
}

/// One member has the blocks of a removed snapshot under its old id, and the other under the id of its heir: a stream has filled it.
#[test]
fn member_that_has_merged_repairs_one_that_has_not() {
    for partly in [false, true] {
        let mut asks = quiet(34);
        write(&mut asks, 0, 24);
        destage(&mut asks);
        branch(&mut asks, 2);
        write(&mut asks, 16, 8);
        let second = asks.models[&R1].expected(key(1, 0), block(1));
        destage(&mut asks);
        order(&mut asks, Order::Remove(GenerationId(1)));
        destage(&mut asks);
        if partly {
            write(&mut asks, 9, 2);
        }
        let mut peer = follower(34);
        fill(&asks, &mut peer, &mut Stream::new(R1, u64::MAX)).expect("no crash");
        rot(&mut asks, key(2, 0), &second);
        let bad = asks.bad_blocks();
        assert!(bad.iter().all(|at| *at == (R1, key(1, 0), block(1))), "{bad:?}: it lies under the removed snapshot");
        // The names on the way: that of the heir, which both have.
        let named = asks.engine.owner_of(R1, key(1, 0));
        assert_eq!(named, key(2, 0));
        let volume = |chunk| asks.engine.volume_chunk(R1, chunk).to_string();
        assert_eq!([volume(key(1, 0)), volume(named)], ["v1/0", "v1/0"], "reports name the volume");
        assert!(
            peer.engine.is_open(R1, key(1, 0), block(1)),
            "it does not know the snapshot, and tells no zeros of it"
        );
        assert!(!peer.engine.is_open(R1, named, block(1)));
        assert!(asks.engine.shows_block(R1, key(2, 0), (key(1, 0), 1)));
        assert_eq!(asks.engine.delays_destage(R1, key(1, 0), 1), partly);
        let zeros = BlockCopy { data: None, ..copy_of(&peer, named, 1) };
        if !partly {
            assert_eq!(asks.engine.mend(R1, key(1, 0), 1, &zeros), Err(MendRefusal::Differs));
        }
        assert_eq!(asks.engine.mend(R1, key(1, 0), 1, &copy_of(&peer, named, 1)), Ok(()));
        assert!(!asks.engine.needs_mend(R1, key(1, 0), 1) && !asks.engine.has_bad_blocks(R1));
        asks.settle();
        asks.check_all_sectors();
        destage(&mut asks);
        asks.check_all_sectors();
        asks.disk.power_cut();
        asks.restart_and_check();
        let home = asks.engine.home.as_ref().expect("mounted");
        assert!(home.hash_of(R1, key(2, 0), 1).is_some(), "the copy is the heir's");
    }
}

#[test]
fn member_that_has_not_merged_gives_the_blocks_of_an_heir() {
    let mut peer = quiet(35);
    write(&mut peer, 0, 24);
    destage(&mut peer);
    branch(&mut peer, 2);
    let range = SectorRange::of_blocks(0, 3);
    assert!(peer.engine.is_open(R1, key(2, 0), range), "the snapshot's blocks are no blocks of the head");
    assert!(!peer.engine.is_open(R1, key(1, 0), range));
    order(&mut peer, Order::Remove(GenerationId(1)));
    assert!(!peer.engine.is_open(R1, key(2, 0), range), "now they are");
    assert!(peer.engine.is_open(R1, key(2, 0), SectorRange::of_blocks(2, 2)), "one is open");
    assert_eq!(peer.engine.chunks(R1), [key(2, 0)]);
    assert_eq!(blocks(&peer.engine.delta(R1, key(2, 0)))[..4], [Own::Data, Own::Data, Own::Data, Own::Open]);
}

#[test]
fn block_that_is_owned_in_part_counts_as_it_will_be_at_home() {
    let mut rig = quiet(36);
    write(&mut rig, 0, 16);
    zero(&mut rig, 8, 8);
    branch(&mut rig, 2);
    zero(&mut rig, 3, 2);
    zero(&mut rig, 11, 2);
    zero(&mut rig, 16, 8);
    zero(&mut rig, 27, 2);
    let want = [Own::Data, Own::Zeros, Own::Zeros, Own::Zeros, Own::Open];
    assert_eq!(blocks(&rig.engine.delta(R1, key(2, 0)))[..5], want);
    destage(&mut rig);
    assert_eq!(blocks(&rig.engine.delta(R1, key(2, 0)))[..5], want);
    rig.check_all_sectors();
}

/// Returns the numbers of the blocks that may differ.
fn changed(rig: &Rig, chunk: ChunkKey, since: u64) -> Vec<usize> {
    let runs = rig.engine.changed(R1, chunk, GenerationId(since), SectorRange::new(0, SECTORS));
    assert!(runs.windows(2).all(|w| w[0].1 != w[1].1) && runs.iter().map(|r| r.0).sum::<u32>() == SECTORS, "{runs:?}");
    let all: Vec<bool> = runs.into_iter().flat_map(|(sectors, is)| (0..sectors).map(move |_| is)).collect();
    let blocks = all.chunks(SECTORS_PER_BLOCK as usize).map(|of| {
        assert!(of.iter().all(|is| *is == of[0]), "a block counts as a whole");
        of[0]
    });
    blocks.enumerate().filter(|(_, is)| *is).map(|(n, _)| n).collect()
}

#[test]
fn changed_blocks_are_those_of_the_generations_in_between() {
    let mut rig = quiet(41);
    write(&mut rig, 0, 4 * SECTORS_PER_BLOCK);
    branch(&mut rig, 2);
    write(&mut rig, 1, 1);
    zero(&mut rig, 2 * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK);
    branch(&mut rig, 3);
    write(&mut rig, 4 * SECTORS_PER_BLOCK, 1);
    branch(&mut rig, 4);
    for at_home in [false, true] {
        if at_home {
            destage(&mut rig);
        }
        assert_eq!(changed(&rig, key(4, 0), 1), [0, 2, 4], "a block that is zeroed counts");
        assert_eq!(changed(&rig, key(4, 0), 2), [4]);
        assert_eq!(changed(&rig, key(4, 0), 3), [0; 0], "nothing was written since");
        assert_eq!(changed(&rig, key(3, 0), 1), [0, 2, 4], "a snapshot against an older one");
    }
    let runs = rig.engine.changed(R1, key(4, 0), GenerationId(1), SectorRange::new(4, 5));
    assert_eq!(runs, [(4, true), (1, false)], "a range may begin within a block");
    // The blocks of a deleted snapshot belong to the next one, merged or not.
    order(&mut rig, Order::Remove(GenerationId(2)));
    assert_eq!(changed(&rig, key(4, 0), 1), [0, 2, 4]);
    destage(&mut rig);
    assert_eq!((changed(&rig, key(4, 0), 1), changed(&rig, key(4, 0), 3)), (vec![0, 2, 4], vec![]));
}

/// Extents between all pairs of a snapshot and an older one, through rounds, merges and removals.
#[test]
fn changed_blocks_miss_no_difference() {
    let (mut pairs, mut differ, mut named) = (0, 0, 0);
    for seed in 0..40 {
        let mut next = 3;
        let rig = leader(seed, &mut next);
        let model = &rig.models[&R1];
        for (id, _) in model.tree.iter() {
            for (since, _) in model.tree.path(id).skip(1) {
                for index in 0..CHUNKS {
                    let (chunk, older) = (ChunkKey { generation: id, index }, ChunkKey { generation: since, index });
                    let changed = changed(&rig, chunk, since.0);
                    pairs += 1;
                    named += changed.len();
                    for n in (0..(SECTORS / SECTORS_PER_BLOCK) as usize).filter(|n| !changed.contains(n)) {
                        let [new, old] = [chunk, older].map(|chunk| model.expected(chunk, block(n)));
                        assert!(new == old, "seed {seed}: block {n} of {chunk} is not that of {since}");
                    }
                    let is_other = |n: &usize| model.expected(chunk, block(*n)) != model.expected(older, block(*n));
                    differ += changed.iter().filter(|n| is_other(n)).count();
                }
            }
        }
    }
    assert!(pairs > 200 && differ * 10 > named * 5, "{pairs} pairs, {named} blocks named, {differ} differ");
}

#[test]
fn bad_block_of_a_discarded_generation_keeps_no_round_back() {
    let mut rig = quiet(37);
    write(&mut rig, 0, 8);
    destage(&mut rig);
    let old = rig.models[&R1].expected(key(1, 0), block(0));
    branch(&mut rig, 2);
    rot(&mut rig, key(1, 0), &old);
    assert!(rig.engine.has_bad_blocks(R1));
    write(&mut rig, 3, 2);
    assert!(rig.engine.needs_bad_block(R1), "the head is completed from it");
    // The volume ends.
    order(&mut rig, Order::Remove(GenerationId(2)));
    order(&mut rig, Order::Remove(GenerationId(1)));
    assert!(!rig.engine.has_bad_blocks(R1) && !rig.engine.needs_bad_block(R1));
}

#[test]
fn tools_see_the_generations_of_the_contents_that_they_read() {
    let mut rig = quiet(36);
    write(&mut rig, 0, 24);
    destage(&mut rig);
    branch(&mut rig, 2);
    write(&mut rig, 16, 8);
    let owners =
        |rig: &Rig| -> Vec<_> { rig.engine.chunks_for_tools(R1).iter().map(|held| (held.chunk, held.owner)).collect() };
    let (first, second) = (GenerationId(1), GenerationId(2));
    let (snapshot, head) = (Role::Snapshot(V1, SnapshotId(2)), Role::Head(V1));
    assert_eq!(owners(&rig), [(key(1, 0), Some((first, snapshot))), (key(2, 0), Some((second, head)))]);
    order(&mut rig, Order::Remove(first));
    assert_eq!(owners(&rig), [1, 2].map(|id| (key(id, 0), Some((second, head)))), "the removed one is the head's");
    let is_head = |rig: &Rig, id| rig.engine.tree_for_tools(R1).is_some_and(|tree| tree.is_head_of(V1, id));
    assert!(is_head(&rig, second));
    rig.engine.fail(R1, "for this test".to_owned());
    assert!(is_head(&rig, first), "home alone counts, which has the checkpoint before the snapshot");
}
