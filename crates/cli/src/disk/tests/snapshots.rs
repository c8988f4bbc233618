//! Devices with generations: a volume with a snapshot, one that was removed, and a volume that came to the PG later.

use super::TempDevice;
use crate::disk::view::View;
use crate::disk::{cat, cp, ls, space};
use crate::disk_args::{DiskCat, DiskCp, DiskDevice, DiskLs, LogEnd, Source};
use crate::errors::UserError;
use bytes::BytesMut;
use engine::offline::Access;
use engine::{Engine, EngineConfig, EngineEvent};
use env::real::{RealConfig, RealEnv};
use env::{DiskSpec, Env, Op};
use group::decision::{Decided, Decision};
use group::descriptor::{Command, Stamp};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use types::control::Attach;
use types::cut::{Cut, CutEnd, CutItem};
use types::map::Member;
use types::store::{Crcs, DecisionState, Persist, ReplicaIdentity};
use types::writers::Writers;
use types::{
    CHUNK, ClusterId, CutId, Entry, EntryKind, Epoch, GenerationId, Index, IoBuf, OsdId, OsdUuid, PgId, PoolId,
    ReplicaId, SectorRange, SessionId, SnapshotId, Term, VolumeChunk, VolumeId, codes,
};

const PG: PgId = PgId { pool: PoolId(1), n: 2 };
const REPLICA: ReplicaId = ReplicaId(7);
const TERM: Term = Term(1);
const V3: VolumeId = VolumeId(3);
/// It comes to the PG with a head above the snapshot.
const V4: VolumeId = VolumeId(4);
const SNAPSHOT: SnapshotId = SnapshotId(12);
const SOURCE: Source = Source { replica: None, force: false, end: LogEnd { uncommitted: false } };
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The store of an OSD with one replica, the only voter of its PG.
struct Writer {
    env: RealEnv,
    engine: Engine,
    decision: Decision,
    ops: Vec<Op>,
    last: u64,
    seq: u64,
}

impl Writer {
    fn new(device: &TempDevice) -> Writer {
        let mut env = RealEnv::new(RealConfig::default()).expect("io_uring");
        let spec = DiskSpec { path: device.0.clone(), assume_plp: false, read_only: false };
        let disk = env.open_disk(&spec).expect("it opens");
        let ids = (ClusterId([7; 16]), OsdId(3), OsdUuid([9; 16]));
        let mut engine = Engine::new(EngineConfig::default(), disk, ids);
        let mut ops = Vec::new();
        engine.start(env.now(), &mut ops);
        let members = vec![Member { replica: REPLICA, osd: OsdId(3) }];
        let decision = Decision::fresh(Epoch(1), &members);
        let mut writer = Writer { env, engine, decision, ops, last: 0, seq: 0 };
        writer.until(|event| matches!(event, EngineEvent::Mounted(_)));
        let identity = ReplicaIdentity { pg: PG, replica: REPLICA, conf_epoch: Epoch(1), members };
        writer.engine.create_replica(identity, writer.state(Term(0)));
        writer.until(|event| matches!(event, EngineEvent::Created(_)));
        writer
    }

    fn state(&self, term: Term) -> DecisionState {
        DecisionState { replica: REPLICA, index: Index(self.last), term, bytes: self.decision.encode() }
    }

    /// Runs turns until this happens.
    fn until(&mut self, happens: impl Fn(&EngineEvent) -> bool) {
        let (mut events, mut happened) = (Vec::new(), Vec::new());
        let end = self.env.now() + Duration::from_secs(60);
        loop {
            let now = self.env.now();
            assert!(now < end, "the engine does not go on");
            for event in events.drain(..) {
                self.engine.handle_event(now, event, &mut self.ops, &mut happened);
            }
            self.engine.end_turn(now, &mut self.ops, &mut happened);
            if happened.iter().any(&happens) {
                return;
            }
            let deadline = if happened.drain(..).next().is_some() { now } else { now + WAIT_MAX };
            let deadline = self.engine.next_deadline().min(deadline);
            self.env.turn(&mut self.ops, &mut events, deadline).expect("the device works");
        }
    }

    /// Appends a command, and applies it when it is durable.
    fn take(&mut self, command: &Command, payload: IoBuf, crcs: Crcs) {
        self.last += 1;
        let mut descriptor = BytesMut::new();
        command.encode(&mut descriptor);
        let (index, descriptor) = (Index(self.last), descriptor.freeze());
        let entry = Entry { term: TERM, index, kind: EntryKind::Normal, descriptor, payload, crcs };
        let ticket = self.last;
        self.engine.append(Persist { replica: REPLICA, ticket, hard_state: None, entries: vec![entry] });
        self.until(|event| matches!(event, EngineEvent::Persisted { ticket: done, .. } if *done == ticket));
        let Decided { outcome, changes } = self.decision.decide(command);
        match changes {
            Some(changes) => self.engine.set_tree(REPLICA, index, self.decision.tree.clone(), &changes),
            None => self.engine.apply(REPLICA, index, outcome.effect()),
        }
    }

    fn order(&mut self, command: &Command) {
        let before = self.decision.tree.clone();
        self.take(command, IoBuf::EMPTY, Crcs::default());
        let is_end = matches!(command, Command::Release { .. });
        assert!(is_end || *before != *self.decision.tree, "{command:?} has no effect");
    }

    fn attach(&mut self, volume: VolumeId, head: u64) {
        let (session, order) = (SessionId(9), self.last + 1);
        let head = GenerationId(head);
        self.order(&Command::Attach(Box::new(Attach {
            order,
            volume,
            writers: Writers::one(session, Epoch(1)),
            epoch: Epoch(1),
            chunk_count: 4,
            len_epoch: 0,
            head,
            base: None,
        })));
    }

    /// Writes 4 KiB of this byte.
    fn write(&mut self, volume: VolumeId, index: u32, block: u16, byte: u8) {
        self.seq += 1;
        let range = SectorRange::of_blocks(block, 1);
        let payload = IoBuf::copy_of(&vec![byte; range.len_bytes()]);
        let crcs = Crcs { start: range.start, values: range.fragment_crcs(&payload) };
        let stamp = Stamp { session: SessionId(9), epoch: Epoch(1), seq: self.seq, watermark: self.seq };
        self.take(&Command::Write { chunk: VolumeChunk { volume, index }, range, stamp }, payload, crcs);
    }

    fn cut(&mut self) {
        let items: Arc<[CutItem]> = [CutItem { volume: V3, to: GenerationId(SNAPSHOT.0) }].into();
        let cut = CutId(SNAPSHOT.0);
        self.order(&Command::Snap(Cut { id: cut, created_ms: 1000, items: items.clone() }));
        self.order(&Command::Release { cut, end: CutEnd::Release, items });
    }

    /// Puts everything at home.
    fn destage(&mut self) {
        let state = self.state(TERM);
        self.engine.begin_round(self.env.now(), vec![state]);
        self.until(|event| matches!(event, EngineEvent::Checkpointed(_)));
    }
}

/// Returns a device with a snapshot of volume 3, that has blocks of 1 in chunks 0 and 2. Since then block 1 of chunk 0 and block 0
/// of chunk 1 have become 2. The snapshot is at home, and what came later in the log, or at home, too.
fn with_a_snapshot(what: &str, at_home: bool) -> (TempDevice, Writer) {
    let device = TempDevice::formatted(what);
    let mut writer = Writer::new(&device);
    writer.attach(V3, V3.0);
    [(0, 0), (0, 1), (2, 0)].into_iter().for_each(|(chunk, block)| writer.write(V3, chunk, block, 1));
    writer.destage();
    writer.cut();
    [(0, 1), (1, 0)].into_iter().for_each(|(chunk, block)| writer.write(V3, chunk, block, 2));
    writer.attach(V4, 20);
    writer.write(V4, 0, 0, 4);
    if at_home {
        writer.destage();
    }
    (device, writer)
}

fn store(device: &TempDevice) -> DiskDevice {
    DiskDevice { device: device.0.clone(), log_device: None }
}

/// Returns the first bytes of blocks 0 and 1 of a chunk.
fn blocks(device: &TempDevice, volume: VolumeId, chunk: u32, snapshot: Option<u64>) -> Result<[u8; 2], u32> {
    let (offset, len, snapshot) = (0, Some(8192), snapshot.map(SnapshotId));
    let args = DiskCat { store: store(device), pg: PG, volume, chunk, snapshot, offset, len, source: SOURCE };
    let mut bytes = Vec::new();
    let done = cat::read(&args, &mut |some| bytes.extend_from_slice(some));
    done.map_err(|error| error.downcast_ref::<UserError>().map_or(0, |error| error.code))?;
    Ok([bytes[0], bytes[4096]])
}

/// A copy that is removed with the test.
struct Copied(PathBuf);

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn cp_args(device: &TempDevice, file: PathBuf, volume: VolumeId, snapshot: Option<u64>) -> DiskCp {
    DiskCp {
        store: store(device),
        file,
        volume,
        pg: None,
        chunk: None,
        snapshot: snapshot.map(SnapshotId),
        stripe_unit: None,
        stripe_count: None,
        source: SOURCE,
    }
}

/// Copies a volume or a snapshot; returns the number of chunks, and the first bytes of blocks 0 and 1 of each.
fn copy(device: &TempDevice, volume: VolumeId, snapshot: Option<u64>) -> Result<Vec<[u8; 2]>, u32> {
    let made = Copied(device.0.with_extension("copy"));
    let args = cp_args(device, made.0.clone(), volume, snapshot);
    cp::run(&args, true).map_err(|error| error.downcast_ref::<UserError>().map_or(0, |error| error.code))?;
    let bytes = std::fs::read(&made.0).expect("it was made");
    Ok(bytes.chunks(CHUNK as usize).map(|chunk| [chunk[0], chunk[4096]]).collect())
}

/// Returns (volume, generation, role, chunk) of each listed chunk.
fn listed(device: &TempDevice, volume: Option<VolumeId>) -> Vec<Value> {
    let args = DiskLs { store: store(device), pg: None, volume, chunks: true, end: SOURCE.end };
    let mut device = device.open(Access::Read).expect("it opens");
    let view = View::open(&mut device, args.end).expect("it mounts");
    let replicas = ls::listed(&view, &args);
    let chunks = replicas.iter().flat_map(|(_, chunks)| chunks).map(ls::chunk_json);
    chunks.map(|chunk| json!([chunk["volume"], chunk["generation"], chunk["role"], chunk["chunk"]])).collect()
}

#[test]
fn head_and_snapshot_are_read_as_a_reader_sees_them() {
    for at_home in [false, true] {
        let (device, writer) = with_a_snapshot("reads", at_home);
        drop(writer);
        let chunks = |snapshot| [0, 1, 2].map(|chunk| blocks(&device, V3, chunk, snapshot));
        assert_eq!(chunks(None), [Ok([1, 2]), Ok([2, 0]), Ok([1, 0])], "the head shows what it has not written itself");
        assert_eq!(chunks(Some(12)), [Ok([1, 1]), Ok([0, 0]), Ok([1, 0])]);
        assert_eq!(blocks(&device, V4, 0, None), Ok([4, 0]));
        assert_eq!(blocks(&device, V4, 0, Some(12)), Ok([0, 0]), "the volume came to the PG after that cut");
        for (volume, snapshot) in [(V3, Some(13)), (V4, Some(21)), (VolumeId(5), None), (VolumeId(12), None)] {
            assert_eq!(blocks(&device, volume, 0, snapshot), Err(codes::REPLICA_NOT_HERE), "{volume} {snapshot:?}");
        }
    }
}

#[test]
fn copy_has_the_chunks_that_older_generations_hold() {
    for at_home in [false, true] {
        let (device, writer) = with_a_snapshot("copies", at_home);
        drop(writer);
        assert_eq!(copy(&device, V3, None), Ok(vec![[1, 2], [2, 0], [1, 0], [0, 0]]));
        assert_eq!(copy(&device, V3, Some(12)), Ok(vec![[1, 1], [0, 0], [1, 0], [0, 0]]));
        assert_eq!(copy(&device, V3, Some(13)), Err(codes::REPLICA_NOT_HERE));
        assert_eq!(copy(&device, VolumeId(12), None), Err(codes::REPLICA_NOT_HERE), "a head is no volume");
    }
}

#[test]
fn lists_and_sums_count_generations_for_their_volumes() {
    let (device, mut writer) = with_a_snapshot("lists", true);
    let rows = |rows: &[(u64, u64, &str, u32)]| rows.iter().map(|row| json!(row)).collect::<Vec<_>>();
    let of_v3 = [(3, 3, "snap12", 0), (3, 3, "snap12", 2), (3, 12, "head", 0), (3, 12, "head", 1)];
    let sums = |device: &TempDevice| -> Vec<(u64, u64, u64)> {
        let mut opened = device.open(Access::Read).expect("it opens");
        let view = View::open(&mut opened, SOURCE.end).expect("it mounts");
        space::find(&view).volumes.iter().map(|(volume, of)| (volume.0, of.chunks, of.aus)).collect()
    };
    writer.order(&Command::Remove { volume: V3, snapshot: SNAPSHOT });
    drop(writer);
    // The removal is in the log; home has the blocks of the snapshot under its id.
    let removed = [(3, 3, "dissolved", 0), (3, 3, "dissolved", 2), (3, 12, "head", 0), (3, 12, "head", 1)];
    assert_eq!(listed(&device, Some(V3)), rows(&removed));
    assert_eq!(sums(&device), [(3, 4, 4), (4, 1, 1)]);
    assert_eq!(blocks(&device, V3, 0, None), Ok([1, 2]));
    assert_eq!(blocks(&device, V3, 0, Some(12)), Err(codes::REPLICA_NOT_HERE));
    assert_eq!(copy(&device, V3, None), Ok(vec![[1, 2], [2, 0], [1, 0], [0, 0]]));
    let (device, writer) = with_a_snapshot("lists.kept", true);
    drop(writer);
    assert_eq!(listed(&device, Some(V3)), rows(&of_v3));
    assert_eq!(listed(&device, None), rows(&[&of_v3[..], &[(4, 20, "head", 0)]].concat()));
    assert_eq!(sums(&device), [(3, 4, 4), (4, 1, 1)]);
}

#[test]
fn copy_names_a_pg_that_an_older_replica_alone_holds() {
    let (device, mut writer) = with_a_snapshot("two", true);
    let members = vec![Member { replica: ReplicaId(8), osd: OsdId(3) }];
    let bytes = Decision::fresh(Epoch(2), &members).encode();
    let decision = DecisionState { replica: ReplicaId(8), index: Index(0), term: Term(0), bytes };
    let identity = ReplicaIdentity { pg: PG, replica: ReplicaId(8), conf_epoch: Epoch(2), members };
    writer.engine.create_replica(identity, decision);
    writer.until(|event| matches!(event, EngineEvent::Created(_)));
    drop(writer);
    assert_eq!(copy(&device, V3, None), Err(codes::REPLICA_NOT_HERE));
    let mut opened = device.open(Access::Read).expect("it opens");
    let view = View::open(&mut opened, SOURCE.end).expect("it mounts");
    let args = cp_args(&device, PathBuf::new(), V3, None);
    let left_out = |replica| {
        let its = view.replicas().into_iter().find(|at| at.identity.replica == replica).expect("it is here");
        cp::left_out(&view, &its, &args)
    };
    assert_eq!(view.choose(PG, SOURCE).expect("one").identity.replica, ReplicaId(8));
    let text = left_out(ReplicaId(8)).expect("it is named");
    assert!(text.contains("r8, which is read, holds no chunk of volume v3; r7 does"), "{text}");
    assert_eq!(left_out(REPLICA), None);
}
