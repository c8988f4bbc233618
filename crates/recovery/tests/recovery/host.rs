//! A host without an engine and without groups: a test sets the facts, and takes the actions.

use recovery::{Action, BlockKey, Follow, Host, Lead, Part, Staged};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::map::{Member, Membership};
use types::store::{ChunkDelta, DecisionState, Own, ReadData};
use types::tree::Tree;
use types::units::{AU, BLOCK, SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{
    BlockPlace, ChunkKey, Epoch, GenerationId, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId, SectorRange, Time,
    VolumeChunk, VolumeId,
};

pub const ME: ReplicaId = ReplicaId(1);
pub const PG: PgId = PgId { pool: PoolId(1), n: 0 };
pub const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(1), index: 0 };
const BLOCKS_PER_AU: u32 = (AU / BLOCK) as u32;

pub struct Fake {
    pub now: Time,
    pub down: BTreeSet<OsdId>,
    pub is_led: bool,
    pub is_full: bool,
    /// Every bad block delays a destage round.
    pub delays_destage: bool,
    pub log_wait: Duration,
    /// The applied index of the replica.
    pub applied: Index,
    pub members: Membership,
    pub actions: Vec<Action>,
    /// The state of a leader. Its log begins for the follower only if `counts`.
    pub lead: Option<Lead>,
    pub counts: bool,
    pub follow: Option<Follow>,
    pub base: Option<ReplicaId>,
    /// The chunk that has blocks of its own: [`CHUNK`], until its generation is merged.
    pub chunk: ChunkKey,
    /// Blocks of that chunk that hold data, each with the value of its bytes.
    pub blocks: BTreeMap<u32, u8>,
    /// Contents that a stream has brought: AUs of `blocks` that are kept, blocks, and the tokens of those that are being written.
    pub kept: BTreeSet<u32>,
    pub staged: BTreeMap<u32, u8>,
    pub writing: Vec<u64>,
    pub has_space: bool,
    /// The replica is being filled.
    pub fills: bool,
    /// The block that the log makes of older contents, if it makes one.
    pub in_log: Option<IoBuf>,
    /// Dissolved generations with their heirs, generations whose blocks are open here, and those that show below [`CHUNK`].
    pub heirs: BTreeMap<GenerationId, GenerationId>,
    pub open: BTreeSet<GenerationId>,
    pub older: Vec<GenerationId>,
}

pub fn member(n: u64) -> Member {
    Member { replica: ReplicaId(n), osd: OsdId(n as u32) }
}

pub fn number(word: &str) -> u64 {
    word.trim_end_matches(',').parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

pub fn blocks_of(range: SectorRange) -> std::ops::Range<u32> {
    range.start / SECTORS_PER_BLOCK..range.end() / SECTORS_PER_BLOCK
}

/// Returns a decision state with this generation. It is the heir of the one of [`CHUNK`], or that one.
fn state(generation: GenerationId) -> bytes::Bytes {
    let (mut tree, mut bytes) = (Tree::default(), bytes::BytesMut::new());
    tree.begin(VolumeId(1), CHUNK.generation, None).expect("it is the first one");
    if generation != CHUNK.generation {
        tree.branch(VolumeId(1), CHUNK.generation, generation, 1, 1).expect("it is a head");
        tree.remove(CHUNK.generation).expect("it is a snapshot");
    }
    tree.encode_decision(&mut bytes);
    bytes.freeze()
}

impl Fake {
    /// Makes the host of a PG of so many members.
    pub fn new(count: u64) -> Fake {
        let members: Vec<Member> = (1..=count).map(member).collect();
        Fake {
            now: Time::ZERO,
            down: BTreeSet::new(),
            is_led: true,
            is_full: false,
            delays_destage: false,
            log_wait: Duration::ZERO,
            applied: Index(10),
            members: Membership::fresh(Epoch(1), &members),
            actions: Vec::new(),
            lead: None,
            counts: true,
            follow: None,
            base: None,
            chunk: CHUNK,
            blocks: BTreeMap::new(),
            kept: BTreeSet::new(),
            staged: BTreeMap::new(),
            writing: Vec::new(),
            has_space: true,
            fills: false,
            in_log: None,
            heirs: BTreeMap::new(),
            open: BTreeSet::new(),
            older: Vec::new(),
        }
    }

    /// Reads whole blocks.
    pub fn read(&self, range: SectorRange) -> ReadData {
        let values: Vec<u8> = blocks_of(range).map(|n| self.blocks.get(&n).copied().unwrap_or(0)).collect();
        if values.iter().all(|value| *value == 0) {
            return ReadData::Zeros;
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| [*value; BLOCK as usize]).collect();
        ReadData::Bytes { crcs: range.fragment_crcs(&bytes), payload: IoBuf::copy_of(&bytes) }
    }

    /// Returns the contents that a stream has brought.
    pub fn brought(&self) -> BTreeMap<u32, u8> {
        let kept = self.blocks.iter().filter(|(n, _)| self.kept.contains(&(*n / BLOCKS_PER_AU)));
        kept.chain(&self.staged).map(|(n, value)| (*n, *value)).collect()
    }
}

impl Host for Fake {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
    fn now(&self) -> Time {
        self.now
    }
    fn reaches(&self, osd: OsdId) -> bool {
        !self.down.contains(&osd)
    }
    fn is_led(&self, _: PgId) -> bool {
        self.is_led
    }
    fn can_refill(&self) -> bool {
        true
    }
    fn part(&self, _: ReplicaId) -> Option<Part> {
        let others = self.members.iter().filter(|m| m.replica != ME).collect();
        Some(Part { pg: PG, members: self.members.clone(), others, runs: true })
    }
    fn needs_block(&self, _: BlockKey) -> bool {
        true
    }
    fn delays_destage(&self, _: BlockKey) -> bool {
        self.delays_destage
    }
    fn reads_as_of(&self, _: BlockKey, _: u16) -> Option<Index> {
        (!self.fills).then_some(self.applied)
    }
    fn hash_of(&self, _: BlockKey) -> Option<u32> {
        Some(0)
    }
    fn over_older(&self, _: BlockKey, _: &IoBuf) -> Option<IoBuf> {
        self.in_log.clone()
    }
    fn is_reading(&self, _: ReplicaId, _: u64) -> bool {
        true
    }
    fn is_log_full(&self) -> bool {
        self.is_full
    }
    fn is_pressed(&self) -> bool {
        false
    }
    fn log_wait(&self) -> Duration {
        self.log_wait
    }
    fn pair_with(&self, _: PgId, osd: OsdId) -> Option<(ReplicaId, ReplicaId)> {
        Some((ME, ReplicaId(u64::from(osd.0))))
    }
    fn lead(&self, _: ReplicaId, _: ReplicaId) -> Option<Lead> {
        self.lead.clone()
    }
    fn decision(&self, replica: ReplicaId) -> Option<DecisionState> {
        let Lead { applied: index, term, .. } = *self.lead.as_ref()?;
        Some(DecisionState { replica, index, term, bytes: state(self.chunk.generation) })
    }
    fn fill_state(&mut self, replica: ReplicaId, _: ReplicaId, _: Option<Index>) -> Option<DecisionState> {
        self.decision(replica).filter(|_| self.counts)
    }
    fn chunks(&self, _: ReplicaId) -> Vec<ChunkKey> {
        if self.blocks.is_empty() { Vec::new() } else { vec![self.chunk] }
    }
    fn delta(&self, _: ReplicaId, chunk: ChunkKey) -> ChunkDelta {
        let all = 0..SECTORS_PER_CHUNK / SECTORS_PER_BLOCK;
        let own = |n| if self.blocks.contains_key(&n) && chunk == self.chunk { Own::Data } else { Own::Open };
        ChunkDelta { runs: all.map(|n| (SECTORS_PER_BLOCK, own(n))).collect(), is_deep: false }
    }
    fn tree(&self, _: ReplicaId) -> Option<Arc<Tree>> {
        Tree::of_decision(&state(self.chunk.generation)).ok().map(Arc::new)
    }
    fn has_tree_since(&self, _: ReplicaId, _: Index) -> bool {
        true
    }
    fn is_open(&self, (_, chunk, _): BlockKey, _: u16) -> bool {
        self.open.contains(&chunk.generation)
    }
    fn owner_of(&self, _: ReplicaId, chunk: ChunkKey) -> ChunkKey {
        ChunkKey { generation: self.heirs.get(&chunk.generation).copied().unwrap_or(chunk.generation), ..chunk }
    }
    fn volume_chunk(&self, _: ReplicaId, chunk: ChunkKey) -> VolumeChunk {
        chunk.of_first()
    }
    fn place_of(&self, (_, chunk, block): BlockKey) -> BlockPlace {
        chunk.in_own_family(block)
    }
    fn older_of(&self, _: ReplicaId, chunk: ChunkKey) -> Vec<ChunkKey> {
        self.older.iter().map(|generation| ChunkKey { generation: *generation, ..chunk }).collect()
    }
    fn shows_block(&self, _: ChunkKey, _: BlockKey) -> bool {
        true
    }
    fn reads_looked_up_again(&self) -> u64 {
        0
    }
    fn follow(&self, _: ReplicaId) -> Option<Follow> {
        self.follow.clone()
    }
    fn base_for(&self, _: ReplicaId) -> Option<ReplicaId> {
        self.base
    }
    fn is_member(&self, _: ReplicaId, peer: Member) -> bool {
        self.members.osd_of(peer.replica) == Some(peer.osd)
    }
    fn can_start_from(&self, _: ReplicaId, bytes: &[u8]) -> bool {
        Tree::of_decision(bytes).is_ok()
    }
    fn keeps(&self, _: ReplicaId, _: ChunkKey, au: u32) -> bool {
        self.kept.contains(&au)
    }
    fn keep(&mut self, _: ReplicaId, _: ReplicaId, _: ChunkKey, au: u32) -> bool {
        self.kept.insert(au)
    }
    fn release(&mut self, _: ReplicaId, _: ReplicaId, _: ChunkKey, au: u32) -> bool {
        self.kept.remove(&au)
    }
    fn unkeep(&mut self, _: ReplicaId, _: ChunkKey, au: u32) {
        self.kept.remove(&au);
    }
    fn stage(&mut self, token: u64, _: ReplicaId, _: ChunkKey, range: SectorRange, data: Staged) -> bool {
        if !self.has_space {
            return false;
        }
        for (at, n) in blocks_of(range).enumerate() {
            match &data {
                Some((payload, _)) => _ = self.staged.insert(n, payload[at * BLOCK as usize]),
                None => _ = self.staged.remove(&n),
            }
        }
        self.writing.push(token);
        true
    }
    fn stages_marks(&self, _: ReplicaId, _: ChunkKey) -> bool {
        false
    }
    fn stage_as_of(&mut self, _: ReplicaId, _: &[u8]) -> bool {
        true
    }
    fn unstage(&mut self, _: ReplicaId) {
        self.kept.clear();
        self.staged.clear();
        self.writing.clear();
    }
}
