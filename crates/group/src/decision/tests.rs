//! Tests of the decision state: write permission, duplicates, and the contents of a checkpoint.

use super::*;
use types::rng::Rng;
use types::writers::{Writer, Writers};
use types::{ChunkKey, GenerationId, SectorRange, VolumeChunk};

fn attach(order: u64, session: u64, epoch: u64, chunk_count: u32) -> Command {
    let (session, epoch) = (SessionId(session), Epoch(epoch));
    Command::Attach(Box::new(Attach {
        order,
        volume: VolumeId(1),
        writers: Writers::one(session, epoch),
        epoch,
        chunk_count,
        len_epoch: 0,
        head: GenerationId(1),
        base: None,
    }))
}

fn write(session: u64, epoch: u64, seq: u64, chunk: u32) -> Command {
    Command::Write {
        chunk: VolumeChunk { volume: VolumeId(1), index: chunk },
        range: SectorRange::new(0, 8),
        stamp: Stamp { session: SessionId(session), epoch: Epoch(epoch), seq, watermark: 0 },
    }
}

fn landed(chunk: u32) -> Outcome {
    let chunk = ChunkKey { generation: GenerationId(1), index: chunk };
    Outcome::Done(Effect::Write { chunk, range: SectorRange::new(0, 8) })
}

const DROPPED: Outcome = Outcome::Done(Effect::None);

fn members() -> Vec<Member> {
    (1..=3).map(|n| Member { replica: ReplicaId(10 + u64::from(n)), osd: OsdId(n) }).collect()
}

#[test]
fn only_the_attached_session_writes_and_each_number_once() {
    let mut d = Decision::fresh(Epoch(1), &members());
    let refused = Outcome::Refused;
    for (command, want) in [
        (write(7, 1, 0, 0), refused(Errno::Gone)),
        (attach(5, 7, 1, 4), DROPPED),
        (write(7, 1, 0, 0), landed(0)),
        (write(7, 1, 0, 0), DROPPED),
        (write(7, 1, 1, 4), refused(Errno::Invalid)),
        (write(7, 1, 1, 3), landed(3)),
        (write(7, 2, 2, 0), refused(Errno::Fenced)),
        (write(8, 1, 2, 0), refused(Errno::Fenced)),
        (write(7, 1, 300, 0), refused(Errno::Invalid)),
        (attach(5, 8, 2, 4), Outcome::StaleOrder { last: 5 }),
        (attach(4, 8, 2, 4), Outcome::StaleOrder { last: 5 }),
        // The same session again keeps its window, also when the volume grows.
        (attach(6, 7, 1, 8), DROPPED),
        (write(7, 1, 0, 0), DROPPED),
        (write(7, 1, 2, 7), landed(7)),
        // A new owner: the old session is fenced, and its numbers have no meaning.
        (attach(9, 8, 2, 8), DROPPED),
        (write(7, 1, 3, 0), refused(Errno::Fenced)),
        (write(8, 2, 0, 0), landed(0)),
        // No session is attached: the volume is fenced.
        (attach(10, 0, 3, 8), DROPPED),
        (write(8, 2, 1, 0), refused(Errno::Fenced)),
        (write(0, 3, 1, 0), refused(Errno::Fenced)),
        // Older records name fewer chunks than the PG has; a recovery names none.
        (attach(11, 9, 4, 2), DROPPED),
        (write(9, 4, 0, 7), landed(7)),
        (write(9, 4, 1, 8), refused(Errno::Invalid)),
        (attach(12, 0, 5, 0), DROPPED),
        (write(9, 4, 0, 0), refused(Errno::Gone)),
    ] {
        assert_eq!(d.decide(&command).outcome, want, "{command:?}");
    }
}

/// An attach record of several writers: (session, epoch) each.
fn attach_shared(order: u64, epoch: u64, writers: &[(u64, u64)]) -> Command {
    let Command::Attach(attach) = attach(order, 0, epoch, 4) else { unreachable!("it is one") };
    let with = |list: Writers, (session, epoch): &(u64, u64)| {
        list.with(Writer { epoch: Epoch(*epoch), session: SessionId(*session) }).expect("they fit")
    };
    Command::Attach(Box::new(Attach { writers: writers.iter().fold(Writers::NONE, with), ..*attach }))
}

#[test]
fn each_writer_of_a_shared_volume_has_numbers_of_its_own() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach_shared(1, 2, &[(7, 1), (8, 2)]));
    for session in [(7, 1), (8, 2)] {
        assert_eq!(d.decide(&write(session.0, session.1, 5, 0)), landed(0).into(), "{session:?}");
        assert_eq!(d.decide(&write(session.0, session.1, 5, 0)), DROPPED.into(), "{session:?} again");
    }
    for (session, epoch) in [(7, 2), (8, 1), (9, 1), (0, 1)] {
        let refused = Outcome::Refused(Errno::Fenced).into();
        assert_eq!(d.decide(&write(session, epoch, 6, 0)), refused, "{session} under {epoch}");
    }
    // A third one comes: the others keep their windows.
    d.decide(&attach_shared(2, 3, &[(7, 1), (8, 2), (9, 3)]));
    assert_eq!(d.decide(&write(7, 1, 5, 0)), DROPPED.into());
    assert_eq!(d.decide(&write(9, 3, 5, 0)), landed(0).into());
    // One is fenced: the epoch rises, and the others go on.
    d.decide(&attach_shared(3, 4, &[(8, 2), (9, 3)]));
    assert_eq!(d.decide(&write(7, 1, 9, 0)), Outcome::Refused(Errno::Fenced).into());
    assert_eq!(d.decide(&write(8, 2, 6, 0)), landed(0).into());
    let attached = &d.volumes[&VolumeId(1)];
    let fenced: Vec<bool> = (1..=5).map(|epoch| attached.is_fenced(Epoch(epoch))).collect();
    assert_eq!(fenced, [true, false, false, false, false], "that of a record to come is not");
    assert_eq!(Decision::decode(&d.encode()), Ok(d.clone()));
    // The newest has gone, and one stays.
    d.decide(&attach_shared(4, 5, &[(8, 2)]));
    assert_eq!(Decision::decode(&d.encode()), Ok(d.clone()));
    assert_eq!(d.decide(&write(8, 2, 6, 0)), DROPPED.into(), "its window is in the checkpoint");
}

#[test]
fn writers_of_shared_volumes_are_bounded_in_each_pg() {
    let mut d = Decision::fresh(Epoch(1), &members());
    let all: Vec<(u64, u64)> = (1..=8).map(|n| (n, n)).collect();
    let shared = |volume: u64| {
        let Command::Attach(attach) = attach_shared(volume, 8, &all) else { unreachable!("it is one") };
        Command::Attach(Box::new(Attach {
            volume: VolumeId(volume),
            head: GenerationId::first_of(VolumeId(volume)),
            ..*attach
        }))
    };
    let most = (SHARED_WRITERS_MAX / 8) as u64;
    for volume in 1..=most {
        assert_eq!(d.decide(&shared(volume)).outcome, Outcome::Done(Effect::None), "volume {volume}");
    }
    let before = d.clone();
    assert_eq!(d.decide(&shared(most + 1)).outcome, Outcome::TooMany);
    assert_eq!(d, before);
    assert_eq!(Decision::decode(&d.encode()), Ok(d));
    // A writer whose open is not the newest one takes a place, too.
    let mut d = Decision::fresh(Epoch(1), &members());
    let older = |volume: u64| {
        let Command::Attach(attach) = attach_shared(volume, 8, &[(volume, 7)]) else { unreachable!("it is one") };
        Command::Attach(Box::new(Attach {
            volume: VolumeId(volume),
            head: GenerationId::first_of(VolumeId(volume)),
            ..*attach
        }))
    };
    let most = SHARED_WRITERS_MAX as u64;
    for volume in 1..=most {
        assert_eq!(d.decide(&older(volume)).outcome, Outcome::Done(Effect::None), "volume {volume}");
    }
    assert_eq!(d.decide(&older(most + 1)).outcome, Outcome::TooMany);
    assert_eq!(Decision::decode(&d.encode()), Ok(d));
}

#[test]
fn skipped_write_never_takes_effect() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach(1, 7, 1, 4));
    let stamp = Stamp { session: SessionId(7), epoch: Epoch(1), seq: 3, watermark: 0 };
    assert_eq!(d.decide(&Command::Skip { volume: VolumeId(1), stamp }).outcome, DROPPED);
    assert_eq!(d.decide(&write(7, 1, 3, 0)).outcome, DROPPED);
}

#[test]
fn a_checkpoint_gives_back_exactly_what_was_stored() {
    let mut d = Decision::fresh(Epoch(1), &members());
    for command in [attach(5, 7, 1, 4), write(7, 1, 0, 0), write(7, 1, 200, 1)] {
        d.decide(&command);
    }
    let bytes = d.encode();
    assert_eq!(Decision::decode(&bytes), Ok(d));
    for len in 0..bytes.len() {
        assert!(Decision::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert_eq!(Decision::decode(&longer), Err(DecisionError::Shape));
    longer[0] = 9;
    assert_eq!(Decision::decode(&longer), Err(DecisionError::Version(9)));
}

#[test]
fn golden_bytes_of_version_4_never_change() {
    let mut d = Decision::fresh(Epoch(1), &members()[..1]);
    d.decide(&attach(5, 7, 2, 4));
    d.decide(&write(7, 2, 1, 0));
    let hex: String = d.encode().iter().map(|b| format!("{b:02x}")).collect();
    let golden = concat!(
        "04000000",
        "03000000",
        "010000",
        "0500000000000000",
        "0100000000000000",
        "0100000000000000",
        "00",
        "0000000000000000",
        "0100",
        "0b0000000000000001000000",
        "0000",
        "0000",
        "01000000",
        "0100000000000000",
        "0700000000000000",
        "0200000000000000",
        "0400000000000000",
        "0100000000000000",
        "0100000000000000",
        "0100000000000000",
        "0000000000000000",
        "0200000000000000",
        "0000000000000000",
        "0000000000000000",
        "0000000000000000",
        "0000",
        "00000000",
    );
    assert_eq!(hex, golden);
}

#[test]
fn tree_is_exact_at_each_applied_index() {
    let mut rng = Rng::new(3);
    let command = |order: u64, rng: &mut Rng| {
        let (volume, session) = (VolumeId(rng.between(1, 4)), SessionId(rng.between(1, 3)));
        // An old order has no effect, and 0 chunks end the volume.
        let order = order - rng.below(3);
        Command::Attach(Box::new(Attach {
            order,
            volume,
            writers: Writers::one(session, Epoch(1)),
            epoch: Epoch(1),
            chunk_count: rng.below(4) as u32,
            len_epoch: 0,
            head: GenerationId::first_of(volume),
            base: None,
        }))
    };
    let commands: Vec<Command> = (3..200).map(|order| command(order, &mut rng)).collect();
    let states = |mut d: Decision, commands: &[Command]| -> Vec<Bytes> {
        let decided = commands.iter().map(|command| {
            d.decide(command);
            let heads: Vec<(VolumeId, GenerationId)> = d.volumes.iter().map(|(id, of)| (*id, of.head)).collect();
            let nodes: Vec<_> = d.tree.iter().map(|(id, node)| (node.role.volume(), id)).collect();
            assert_eq!(heads, nodes, "after {command:?}");
            d.encode()
        });
        decided.collect()
    };
    let all = states(Decision::fresh(Epoch(1), &members()), &commands);
    for (n, bytes) in all.iter().enumerate() {
        let mounted = Decision::decode(bytes).expect("its own bytes");
        assert_eq!(Tree::of_decision(bytes).as_ref(), Ok(&*mounted.tree), "the store finds it, too");
        assert_eq!(states(mounted, &commands[n + 1..]), all[n + 1..], "a checkpoint at {n} decides alike");
    }
}

#[test]
fn decision_whose_head_is_no_node_is_refused() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach(5, 7, 1, 4));
    let with = |change: &dyn Fn(&mut Decision)| {
        let mut changed = d.clone();
        change(&mut changed);
        Decision::decode(&changed.encode())
    };
    let of = |d: &mut Decision, head: u64, first: u64, last: u64| {
        let attached = d.volumes.get_mut(&VolumeId(1)).expect("it is attached");
        (attached.head, attached.first, attached.last) = (GenerationId(head), GenerationId(first), GenerationId(last));
    };
    let tree = |d: &mut Decision, change: &dyn Fn(&mut Tree)| change(Arc::make_mut(&mut d.tree));
    let aborted = with(&|d| of(d, 1, 1, 9)).expect("an order that was aborted named it");
    assert_eq!(aborted.volumes[&VolumeId(1)].last, GenerationId(9), "and it counts after a restart");
    let (lacks, later, lost) = (with(&|d| of(d, 9, 1, 9)), with(&|d| of(d, 1, 2, 2)), with(&|d| of(d, 1, 1, 0)));
    let none = with(&|d| tree(d, &|tree| *tree = Tree::default()));
    let more = with(&|d| tree(d, &|tree| tree.begin(VolumeId(2), GenerationId(2), None).expect("a new one")));
    let other = with(&|d| {
        tree(d, &|tree| {
            *tree = Tree::default();
            tree.begin(VolumeId(2), GenerationId(1), None).expect("a new one");
        });
    });
    for refused in [lacks, later, lost, none, more, other] {
        assert_eq!(refused, Err(DecisionError::Shape));
    }
}

#[test]
fn write_lands_in_the_head_and_the_end_of_the_volume_ends_it() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach(5, 7, 1, 4));
    let mut tree = Tree::default();
    tree.begin(VolumeId(1), GenerationId(6), None).expect("a new one");
    d.tree = Arc::new(tree);
    d.volumes.values_mut().for_each(|attached| (attached.head, attached.last) = (GenerationId(6), GenerationId(6)));
    let chunk = ChunkKey { generation: GenerationId(6), index: 3 };
    let landed = Outcome::Done(Effect::Write { chunk, range: SectorRange::new(0, 8) });
    assert_eq!(d.decide(&write(7, 1, 0, 3)).outcome, landed);
    assert_eq!(d.in_head(VolumeChunk { volume: VolumeId(1), index: 3 }), Some(chunk));
    d.decide(&attach(6, 8, 2, 4));
    assert_eq!(d.volumes[&VolumeId(1)].head, GenerationId(6), "a fence keeps it");
    let ended = Decided { outcome: DROPPED, changes: Some(vec![Change::Discard(GenerationId(6))]) };
    assert_eq!(d.decide(&attach(7, 0, 3, 0)), ended);
    assert_eq!(d.decide(&attach(8, 0, 3, 0)), DROPPED.into(), "it is gone already");
    assert!(d.tree.is_empty());
}

/// An attach record with the epoch of its length.
fn attach_len(order: u64, (len_epoch, chunk_count): (u32, u32), base: Option<Base>) -> Command {
    let (volume, session, epoch, head) =
        (VolumeId(1), SessionId(7), Epoch(1), GenerationId(base.map_or(1, |b| b.to.0)));
    Command::Attach(Box::new(Attach {
        order,
        volume,
        writers: Writers::one(session, epoch),
        epoch,
        chunk_count,
        len_epoch,
        head,
        base,
    }))
}

fn length(d: &Decision) -> (u32, u32) {
    let attached = &d.volumes[&VolumeId(1)];
    (attached.len_epoch, attached.chunk_count)
}

#[test]
fn shorter_length_drops_chunks_and_no_older_record_brings_them_back() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach_len(1, (0, 9), None));
    let decided = d.decide(&attach_len(2, (2, 4), None));
    let shorten = Change::Shorten { generation: GenerationId(1), from_chunk: 4 };
    assert_eq!((decided.outcome, decided.changes), (DROPPED, Some(vec![shorten])));
    assert_eq!(d.decide(&write(7, 1, 0, 4)).outcome, Outcome::Refused(Errno::Invalid));
    assert_eq!(d.decide(&write(7, 1, 0, 3)).outcome, landed(3));
    assert_eq!(Decision::decode(&d.encode()), Ok(d.clone()), "a checkpoint keeps the epoch");
    // A record from before the shrink, with a later order, and one of a recovery that knows no length.
    d.decide(&attach_len(3, (0, 9), None));
    d.decide(&attach_len(4, (0, types::control::CHUNKS_KEPT), None));
    assert_eq!(length(&d), (2, 4));
    // The same epoch makes it longer, and an older record of that no shorter.
    d.decide(&attach_len(5, (3, 6), None));
    assert_eq!(d.decide(&attach_len(6, (3, 5), None)).changes, None);
    assert_eq!(length(&d), (3, 6));
}

#[test]
fn place_is_wiped_under_the_epoch_of_its_length_alone() {
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach_len(1, (2, 4), None));
    let range = SectorRange::new(8, 100);
    let wipe = |index, len_epoch| Command::Wipe { chunk: VolumeChunk { volume: VolumeId(1), index }, range, len_epoch };
    let chunk = ChunkKey { generation: GenerationId(1), index: 3 };
    assert_eq!(d.decide(&wipe(3, 2)).outcome, Outcome::Done(Effect::Zero { chunk, range }));
    for (index, len_epoch) in [(3, 1), (3, 3), (4, 2)] {
        assert_eq!(d.decide(&wipe(index, len_epoch)).outcome, Outcome::Refused(Errno::Invalid));
    }
    // The volume is longer again: a late order must not zero what was written since.
    d.decide(&attach_len(2, (3, 4), None));
    assert_eq!(d.decide(&wipe(3, 2)).outcome, Outcome::Refused(Errno::Invalid));
}

#[test]
fn head_of_a_shorter_volume_shows_its_snapshot_below_the_end_alone() {
    let snap = |to: u64| {
        let items = [types::cut::CutItem { volume: VolumeId(1), to: GenerationId(to) }].into();
        Command::Snap(types::cut::Cut { id: types::CutId(to), created_ms: 1, items })
    };
    let release = |to: u64| {
        let items = [types::cut::CutItem { volume: VolumeId(1), to: GenerationId(to) }].into();
        Command::Release { cut: types::CutId(to), end: types::cut::CutEnd::Release, items }
    };
    let mut d = Decision::fresh(Epoch(1), &members());
    d.decide(&attach_len(1, (0, 9), None));
    d.decide(&snap(12));
    // During a cut the volume keeps its length: the cut may be taken back.
    assert_eq!(d.decide(&attach_len(2, (2, 4), None)).outcome, Outcome::Refused(Errno::Invalid));
    assert_eq!((length(&d), d.order), ((0, 9), 1), "the order is not used up");
    d.decide(&release(12));
    let through = |d: &Decision| d.tree.get(d.volumes[&VolumeId(1)].head).expect("a head").through;
    assert_eq!(through(&d), u32::MAX);
    d.decide(&attach_len(2, (2, 4), None));
    d.decide(&attach_len(3, (3, 9), None));
    assert_eq!((through(&d), length(&d)), (4, (3, 9)), "it is longer, and shows nothing of the snapshot there");
    assert_eq!(d.tree.get(GenerationId(1)).expect("the snapshot").chunk_count, 9, "which keeps its length");
    // A head that is put on the snapshot shows no more of it than the volume has.
    d.decide(&attach_len(4, (4, 3), None));
    let base = Base { volume: VolumeId(1), snapshot: types::SnapshotId(12), to: GenerationId(20) };
    d.decide(&attach_len(5, (4, 3), Some(base)));
    assert_eq!((d.volumes[&VolumeId(1)].head, through(&d)), (GenerationId(20), 3));
    d.decide(&attach_len(6, (5, 9), Some(base)));
    assert_eq!((through(&d), length(&d)), (3, (5, 9)));
}
