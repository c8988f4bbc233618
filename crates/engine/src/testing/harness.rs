//! An engine with models that check its events and answers.

use super::model::{Applied, Made, Model, Order, SECTORS, decision_bytes, decision_with};
use crate::{Disks, Engine, EngineConfig, EngineEvent, FormatParams, MountError, ReadData, ReadError, Superblock};
use env::{Event, Op};
use std::collections::BTreeMap;
use types::map::Member;
use types::store::{DecisionState, Effect, Failure, Persist, Recovered, ReplicaIdentity};
use types::{
    ChunkKey, ClusterId, Entry, Epoch, GenerationId, Index, IoBuf, OsdId, OsdUuid, PgId, PoolId, ReplicaId,
    SectorRange, Term, Time,
};

pub const IDS: (ClusterId, OsdId, OsdUuid) = (ClusterId([7; 16]), OsdId(3), OsdUuid([9; 16]));
pub const DISK_LEN: u64 = 48 << 20;

pub fn params() -> FormatParams {
    let (cluster, osd, uuid) = IDS;
    let (log_bytes, segment_bytes) = (16 << 20, 1 << 20);
    FormatParams {
        cluster,
        osd,
        uuid,
        log_bytes,
        segment_bytes,
        force: false,
        prezero: false,
        unix_s: 0,
        part: crate::DevicePart::Whole,
    }
}

pub fn chunks() -> [ChunkKey; 4] {
    let key = |generation, index| ChunkKey { generation: GenerationId(generation), index };
    [key(1, 0), key(1, 1), key(1, 2), key(2, 0)]
}

/// Returns the identity of a replica with this number of peers. Replicas without peers are below 100.
pub fn identity(replica: ReplicaId, peers: u32) -> ReplicaIdentity {
    let member = |n: u32| Member { replica: ReplicaId(replica.0 + 1000 * u64::from(n)), osd: OsdId(IDS.1.0 + n) };
    let pg = PgId { pool: PoolId(1), n: replica.0 as u32 };
    ReplicaIdentity { pg, replica, conf_epoch: Epoch(1), members: (0..=peers).map(member).collect() }
}

/// A read in flight.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    pub range: SectorRange,
    /// True if the engine had reported the replica as damaged before the read.
    pub of_damaged: bool,
}

#[derive(Debug)]
pub struct FailedRead {
    pub asked: Asked,
    pub error: ReadError,
    /// True if the replica was damaged when the read failed.
    pub damaged: bool,
}

#[derive(Clone, Debug)]
pub struct BadBlocks {
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    pub range: SectorRange,
    pub reason: String,
    /// True if a destage round or a read waits for the blocks.
    pub needed: bool,
}

/// Events of the engine that the caller judges.
#[derive(Default)]
pub struct Seen {
    pub mounted: bool,
    /// Replicas that the last mount found.
    pub recovered: Vec<Recovered>,
    pub mount_failed: Option<MountError>,
    pub created: Vec<ReplicaId>,
    pub destroyed: Vec<ReplicaId>,
    pub poison: Option<String>,
    pub checkpoints: u64,
    pub staged: u64,
    pub unstaged: Vec<ReplicaId>,
    /// States from which the groups of replicas that are being filled restart.
    pub filling: Vec<Recovered>,
    pub fill_refused: Vec<ReplicaId>,
    pub installed: Vec<ReplicaId>,
    pub refused: Vec<ReplicaId>,
    /// Answers to reads of the base of a stream; `None`: it could not be read.
    pub base_reads: BTreeMap<u64, Option<Vec<u8>>>,
    pub refilled: Vec<ReplicaId>,
    pub bad: Vec<BadBlocks>,
    pub failed: Vec<(ReplicaId, Failure)>,
    pub failed_reads: Vec<FailedRead>,
    /// Counts of earlier processes.
    pub log_bytes: u64,
    pub completed_blocks: u64,
}

/// An engine and the models of its replicas. The owner of the disk `D` passes operations and completions.
pub struct Harness<D> {
    pub disk: D,
    pub engine: Engine,
    pub config: EngineConfig,
    pub superblock: Superblock,
    /// Time of the present turn.
    pub now: Time,
    pub models: BTreeMap<ReplicaId, Model>,
    /// Operations that the disk has not been given.
    pub ops: Vec<Op>,
    pub poisoned: bool,
    pub seen: Seen,
    /// Number of reads whose bytes were compared.
    pub checked_reads: u64,
    ticket: u64,
    reads: BTreeMap<u64, Asked>,
    /// Reads of a base in flight.
    of_base: BTreeMap<u64, SectorRange>,
}

impl<D> Harness<D> {
    /// Starts the mount of a formatted disk.
    pub fn mount(
        disk: D,
        disks: impl Into<Disks>,
        superblock: Superblock,
        config: EngineConfig,
        now: Time,
    ) -> Harness<D> {
        let mut harness = Harness {
            disk,
            engine: Engine::new(config.clone(), disks, IDS),
            config,
            superblock,
            now,
            models: BTreeMap::new(),
            ops: Vec::new(),
            poisoned: false,
            seen: Seen::default(),
            checked_reads: 0,
            ticket: 0,
            reads: BTreeMap::new(),
            of_base: BTreeMap::new(),
        };
        harness.engine.start(now, &mut harness.ops);
        harness
    }

    /// Starts a new process on the same disks, and its mount.
    pub fn boot(&mut self, disks: impl Into<Disks>) {
        let stats = self.engine.stats();
        self.seen.log_bytes += stats.log_bytes;
        self.seen.completed_blocks += stats.completed_blocks;
        self.seen.mounted = false;
        self.seen.recovered.clear();
        self.poisoned = false;
        self.ops.clear();
        self.reads.clear();
        self.of_base.clear();
        self.models.values_mut().for_each(|model| model.reading = 0);
        self.engine = Engine::new(self.config.clone(), disks, IDS);
        self.engine.start(self.now, &mut self.ops);
    }

    /// Queues the create record of a replica with this number of peers.
    pub fn create_replica(&mut self, replica: ReplicaId, peers: u32) {
        let identity = identity(replica, peers);
        let bytes = decision_bytes(replica, Index(0));
        let decision = DecisionState { replica, index: Index(0), term: Term(0), bytes };
        self.engine.create_replica(identity.clone(), decision);
        self.models.insert(replica, Model::new(identity));
    }

    pub fn destroy(&mut self, replica: ReplicaId) {
        self.engine.destroy_replica(replica);
        self.models.remove(&replica);
    }

    fn model(&mut self, replica: ReplicaId) -> &mut Model {
        self.models.get_mut(&replica).expect("created")
    }

    /// Appends entries with these effects behind the last one.
    pub fn extend(&mut self, replica: ReplicaId, effects: Vec<Effect>) {
        let from = self.model(replica).last() + 1;
        self.append(replica, from, effects);
    }

    /// Appends entries with these effects, perhaps over a tail that was not committed.
    pub fn append(&mut self, replica: ReplicaId, from: u64, effects: Vec<Effect>) {
        let persist = self.persist(replica, from, effects);
        self.engine.append(persist);
    }

    /// Appends an entry that ends the failure of a revived replica.
    pub fn append_and_revive(&mut self, replica: ReplicaId) {
        let from = self.model(replica).last() + 1;
        let persist = self.persist(replica, from, vec![Effect::None]);
        self.engine.append_and_revive(persist);
    }

    /// Appends entries that change the tree, behind the last one.
    pub fn order(&mut self, replica: ReplicaId, orders: Vec<Order>) {
        let from = self.model(replica).last() + 1;
        self.append(replica, from, vec![Effect::None; orders.len()]);
        let model = self.model(replica);
        let term = model.term;
        model.orders.extend((from..).zip(orders).map(|(index, order)| ((index, term), order)));
    }

    fn persist(&mut self, replica: ReplicaId, from: u64, effects: Vec<Effect>) -> Persist {
        self.ticket += 1;
        let ticket = self.ticket;
        let model = self.model(replica);
        assert!(from > model.hard_state.commit.0);
        model.make(from, effects);
        let entries = (from..=model.last()).map(|i| model.entry(i)).collect();
        model.tickets.push((ticket, model.last(), model.hard_state.commit.0));
        let hard_state = Some(model.hard_state);
        Persist { replica, ticket, hard_state, entries }
    }

    /// Commits durable entries up to this index, and applies them.
    pub fn commit(&mut self, replica: ReplicaId, to: u64) {
        let model = self.model(replica);
        let to = to.min(model.durable);
        if to <= model.hard_state.commit.0 || model.reading > 0 {
            return;
        }
        model.hard_state.commit = Index(to);
        self.apply(replica, 0);
    }

    /// Applies the committed entries in the model, and in the engine those above an index.
    fn apply(&mut self, replica: ReplicaId, above: u64) {
        let model = self.models.get_mut(&replica).expect("created");
        while model.applied < model.hard_state.commit.0 {
            let applied = model.apply();
            if model.applied <= above {
                continue;
            }
            match applied {
                Applied::Effect(effect) => self.engine.apply(replica, Index(model.applied), effect),
                Applied::Tree(tree, changes) => self.engine.set_tree(replica, Index(model.applied), tree, &changes),
            }
        }
    }

    pub fn read(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        self.ticket += 1;
        let token = self.ticket;
        let model = self.model(replica);
        model.reading += 1;
        let of_damaged = model.damaged;
        self.reads.insert(token, Asked { replica, chunk, range, of_damaged });
        let mut out = Vec::new();
        self.engine.read(token, replica, chunk, range, &mut out);
        self.take(out);
    }

    /// Reads all sectors of this replica.
    pub fn read_all(&mut self, replica: ReplicaId) {
        let keys = self.models[&replica].keys();
        keys.into_iter().for_each(|chunk| self.read(replica, chunk, SectorRange::new(0, SECTORS)));
    }

    /// Reads contents as the base of a stream; the answer goes to `seen.base_reads` under the returned token.
    pub fn read_base(&mut self, base: ReplicaId, chunk: ChunkKey, range: SectorRange) -> u64 {
        self.ticket += 1;
        let token = self.ticket;
        self.of_base.insert(token, range);
        let mut out = Vec::new();
        self.engine.read_base(token, base, chunk, range, &mut out);
        self.take(out);
        token
    }

    /// Whether every read of a replica that is still here was answered.
    pub fn is_answered(&self) -> bool {
        self.reads.values().all(|asked| !self.models.contains_key(&asked.replica))
    }

    /// Begins a destage round of all replicas that are not damaged.
    pub fn round(&mut self) {
        let states = self.models.values().filter(|m| !m.damaged).map(Model::decision).collect();
        self.engine.begin_round(self.now, states);
    }

    /// Stages these bytes beside a replica. Returns false if there was no room.
    pub fn stage(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange, bytes: &[u8]) -> bool {
        self.ticket += 1;
        let data = bytes.iter().any(|b| *b != 0).then(|| (IoBuf::copy_of(bytes), range.fragment_crcs(bytes)));
        self.engine.stage(self.ticket, replica, chunk, range, data)
    }

    /// Repairs a lost payload: wrong bytes are refused, and the right ones are taken.
    pub fn refill(&mut self, replica: ReplicaId, genuine: &Entry) {
        let (index, payload) = (genuine.index, genuine.payload.clone());
        let wrong = IoBuf::copy_of(&vec![0xa5; payload.len()]);
        assert!(!self.engine.refill(replica, index, genuine.term, wrong), "wrong bytes are taken");
        let later = Term(genuine.term.0 + 1);
        assert!(!self.engine.refill(replica, index, later, payload.clone()), "another entry's payload is taken");
        let taken = self.engine.refill(replica, index, genuine.term, payload);
        assert!(taken, "{replica}: the right payload of entry {index} is refused");
    }

    pub fn handle_event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.engine.handle_event(self.now, event, &mut self.ops, &mut out);
        self.take(out);
    }

    pub fn end_turn(&mut self) {
        let mut out = Vec::new();
        self.engine.end_turn(self.now, &mut self.ops, &mut out);
        self.take(out);
    }

    fn take(&mut self, events: Vec<EngineEvent>) {
        for event in events {
            let seen = &mut self.seen;
            match event {
                EngineEvent::Mounted(recovered) => (seen.mounted, seen.recovered) = (true, recovered),
                EngineEvent::MountFailed(error) => seen.mount_failed = Some(error),
                EngineEvent::Created(replica) => seen.created.push(replica),
                EngineEvent::Destroyed(replica) => seen.destroyed.push(replica),
                EngineEvent::Persisted { replica, ticket, .. } => self.persisted(replica, ticket),
                EngineEvent::ReadDone { token, result } => self.read_done(token, result),
                EngineEvent::Checkpointed(_) => seen.checkpoints += 1,
                EngineEvent::Freed(_) => {}
                EngineEvent::Staged { .. } => seen.staged += 1,
                EngineEvent::Unstaged { replica } => seen.unstaged.push(replica),
                EngineEvent::Begun(recovered) => seen.filling.push(*recovered),
                EngineEvent::FillRefused { replica } => seen.fill_refused.push(replica),
                EngineEvent::Installed { replica } => seen.installed.push(replica),
                EngineEvent::InstallRefused { replica } => seen.refused.push(replica),
                EngineEvent::Refilled { replica } => seen.refilled.push(replica),
                EngineEvent::BadBlocks { replica, chunk, range, reason, needed } => {
                    seen.bad.push(BadBlocks { replica, chunk, range, reason, needed });
                }
                EngineEvent::Failed { replica, failure } => {
                    seen.failed.push((replica, failure));
                    if let Some(model) = self.models.get_mut(&replica) {
                        model.damaged = true;
                    }
                }
                EngineEvent::MapKept(_) => {}
                EngineEvent::Poisoned(reason) => (self.poisoned, seen.poison) = (true, Some(reason)),
            }
        }
    }

    fn persisted(&mut self, replica: ReplicaId, ticket: u64) {
        assert!(!self.poisoned, "an acknowledgement after the poison");
        // No group asked for a hard state with ticket 0.
        let Some(model) = self.models.get_mut(&replica).filter(|_| ticket != 0) else { return };
        let at = model.tickets.iter().position(|t| t.0 == ticket).expect("each ticket comes back once");
        assert_eq!(at, 0, "tickets come back in order");
        let (_, last, commit) = model.tickets.remove(0);
        model.durable = model.durable.max(last);
        model.durable_commit = model.durable_commit.max(commit);
    }

    fn read_done(&mut self, token: u64, result: Result<ReadData, ReadError>) {
        if let Some(range) = self.of_base.remove(&token) {
            let bytes = result.ok().map(|data| match data {
                ReadData::Zeros => vec![0; range.len_bytes()],
                ReadData::Bytes { payload, .. } => payload.to_vec(),
            });
            self.seen.base_reads.insert(token, bytes);
            return;
        }
        let asked = self.reads.remove(&token).expect("each read is answered once");
        let Asked { replica, chunk, range, of_damaged } = asked;
        let Some(model) = self.models.get_mut(&replica) else { return };
        model.reading -= 1;
        let data = match result {
            Err(ReadError::NoReplica(_)) if model.fills => return,
            // A replica that is being filled answers where its log covers the range.
            Ok(data) => data,
            Err(error) => {
                let damaged = model.damaged;
                return self.seen.failed_reads.push(FailedRead { asked, error, damaged });
            }
        };
        assert!(!of_damaged, "{replica} is damaged and answers");
        self.checked_reads += 1;
        let want = model.expected(chunk, range);
        match data {
            ReadData::Zeros => assert!(want.iter().all(|b| *b == 0), "{replica} {chunk} {range}: zeros"),
            ReadData::Bytes { crcs, payload } => {
                assert!(*payload == want[..], "{replica} {chunk} {range}: other bytes");
                assert!(range.verify(&payload, &crcs), "{replica} {chunk} {range}: CRCs");
            }
        }
    }

    /// Checks recovered state against the model. Afterwards model and engine stand at the same index. The disk may have
    /// lost a durable tail if `tail_in_doubt` is set.
    pub fn check_recovered(&mut self, found: Recovered, tail_in_doubt: bool) {
        let replica = found.identity.replica;
        let model = self.models.get_mut(&replica).expect("only what was created comes back");
        // Damage that was found while the engine ran is found again, or the damaged data is not read any more.
        model.damaged = false;
        model.fills = found.fills;
        assert_eq!(found.identity, model.identity);
        let k = found.checkpoint.index;
        let last = (found.before.0.0 + found.entries.len() as u64).max(k.0);
        let commit = found.hard_state.commit.0;
        assert!(k.0 <= commit && commit <= last, "K {k}, commit {commit}, last {last}");
        assert!(found.before.0 <= k, "entries begin at or below K");
        if !tail_in_doubt {
            assert!(last >= model.durable, "{replica}: {} was acknowledged, {last} came back", model.durable);
            assert!(commit >= model.durable_commit, "{replica}: commit {} came back as {commit}", model.durable_commit);
        }
        let decision = decision_with(&model.tree_at(k.0), replica, k);
        assert!(found.checkpoint.bytes == decision, "{replica}: decision state is exact as of K");
        for (n, entry) in found.entries.iter().enumerate() {
            let index = found.before.0.0 + 1 + n as u64;
            let genuine = model.entry_of(index, entry.term);
            assert!(genuine.as_ref() == Some(entry), "{replica}: entry {index} was never appended so");
            if model.made.get(index as usize - 1).is_some_and(|m| m.term == entry.term) {
                continue;
            }
            assert!(index > model.durable || tail_in_doubt, "acknowledged entry {index} is another");
            model.made.truncate(index as usize - 1);
            assert_eq!(model.last() + 1, index, "{replica}: nothing stands before entry {index}");
            model.made.push(Made { term: entry.term, effect: model.history[&(index, entry.term)] });
        }
        model.made.truncate(last as usize);
        assert_eq!(model.last(), last, "{replica}: entries are missing");
        assert_eq!(found.before.1, model.term_at(found.before.0.0), "term before the entries of {replica}");
        assert_eq!(found.checkpoint.term, model.term_at(k.0));
        model.tickets.clear();
        (model.durable, model.durable_commit) = (last, commit);
        model.hard_state = found.hard_state;
        model.term = model.term.max(found.hard_state.term);
        model.reading = 0;
        // The model applies all entries, and the engine those above the checkpoint index.
        *model = model.unapplied();
        self.apply(replica, k.0);
    }
}
