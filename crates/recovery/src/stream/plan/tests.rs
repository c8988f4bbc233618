//! A copy of all generations under writes and changes of the tree, against a plain model of generations.

use super::*;
use types::VolumeId;
use types::rng::Rng;
use types::tree::Role;
use types::units::SECTORS_PER_CHUNK;

/// Blocks of each chunk that are used, and the distance between two of them: they lie in two windows.
const USED: usize = 24;
const APART: usize = 8;
const CHUNKS: u32 = 2;
const GENERATIONS_MAX: u64 = 40;
const V1: VolumeId = VolumeId(1);

/// A block: open, zeros, or a value.
type State = Option<u64>;

/// A member: its tree, and the delta of each of its generations.
#[derive(Clone, Default)]
struct Store {
    tree: Tree,
    deltas: BTreeMap<ChunkKey, Vec<State>>,
}

#[derive(Clone, Debug)]
enum Op {
    Put(ChunkKey, usize, u64),
    Tree(Tree, Vec<Change>),
}

impl Store {
    fn state(&mut self, chunk: ChunkKey) -> &mut Vec<State> {
        self.deltas.entry(chunk).or_insert_with(|| vec![None; USED])
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(chunk, block, value) => self.state(*chunk)[*block] = Some(*value),
            Op::Tree(tree, changes) => {
                self.tree = tree.clone();
                changes.iter().for_each(|change| self.follow(*change));
            }
        }
    }

    fn follow(&mut self, change: Change) {
        let gone = match change {
            Change::Discard(gone) => gone,
            Change::Merge { from, .. } => from,
            Change::Shorten { generation, from_chunk } => {
                return self.deltas.retain(|key, _| key.generation != generation || key.index < from_chunk);
            }
        };
        let keys: Vec<ChunkKey> = self.deltas.keys().filter(|key| key.generation == gone).copied().collect();
        for key in keys {
            let older = self.deltas.remove(&key).expect("just listed");
            if let Change::Merge { into, through, .. } = change
                && key.index < through
            {
                let newer = self.state(ChunkKey { generation: into, ..key });
                newer.iter_mut().zip(older).for_each(|(newer, older)| *newer = newer.or(older));
            }
        }
    }

    /// Returns a block as a read shows it; 0 is zeros.
    fn full(&self, chunk: ChunkKey, block: usize) -> u64 {
        let shown = self.tree.path(chunk.generation).take_while(|(_, through)| chunk.index < *through);
        let own = |(generation, _)| self.deltas.get(&ChunkKey { generation, ..chunk })?[block];
        shown.into_iter().find_map(own).unwrap_or(0)
    }

    /// Drops marks that hide nothing, as a merge may.
    fn drop_marks(&mut self) {
        for chunk in self.deltas.keys().copied().collect::<Vec<_>>() {
            for block in 0..USED {
                if self.deltas[&chunk][block] == Some(0) {
                    self.state(chunk)[block] = None;
                    let hides = self.full(chunk, block) != 0;
                    self.state(chunk)[block] = hides.then_some(0);
                }
            }
        }
    }

    fn delta(&self, chunk: ChunkKey) -> ChunkDelta {
        let own = |n: usize| match self.deltas.get(&chunk).filter(|_| n.is_multiple_of(APART) && n / APART < USED) {
            None => Own::Open,
            Some(states) => match states[n / APART] {
                None => Own::Open,
                Some(0) => Own::Zeros,
                Some(_) => Own::Data,
            },
        };
        ChunkDelta { runs: (0..BLOCKS).map(|n| (SECTORS_PER_BLOCK, own(n))).collect(), is_deep: true }
    }

    /// Returns all blocks of all generations as reads show them.
    fn shown(&self) -> BTreeMap<(ChunkKey, usize), u64> {
        let chunks =
            self.tree.iter().flat_map(|(generation, _)| (0..CHUNKS).map(move |index| ChunkKey { generation, index }));
        let all = chunks.flat_map(|chunk| (0..USED).map(move |block| (chunk, block)));
        all.map(|(chunk, block)| ((chunk, block), self.full(chunk, block))).filter(|(_, value)| *value != 0).collect()
    }
}

/// A stream from a leader that goes on.
struct Copy {
    rng: Rng,
    leader: Store,
    staged: BTreeMap<ChunkKey, Vec<State>>,
    plan: Plan,
    reads: Vec<Part>,
    /// Answers to digests that are on their way: (chunk, block).
    wanted: Vec<(ChunkKey, usize)>,
    /// The tree behind which the follower's log begins, with the operations since; `None`: contents come first.
    log: Option<(Tree, Vec<Op>)>,
    /// The last tree that the follower got before contents, and the generations that it has staged without knowing them.
    tree: Tree,
    alone: BTreeSet<GenerationId>,
    /// The log begins with the end.
    come_first: bool,
    /// The log begins behind the start of this round.
    begun: bool,
    changed: bool,
    next: u64,
    merges: u32,
    /// Cuts that were taken back.
    undone: u32,
}

fn used(range: SectorRange) -> impl Iterator<Item = usize> {
    let blocks = range.start / SECTORS_PER_BLOCK..range.end() / SECTORS_PER_BLOCK;
    blocks.map(|n| n as usize).filter(|n| n.is_multiple_of(APART) && n / APART < USED).map(|n| n / APART)
}

fn sectors(block: usize) -> SectorRange {
    SectorRange::new((block * APART) as u32 * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK)
}

impl Copy {
    fn new(seed: u64) -> Copy {
        let mut leader = Store::default();
        leader.tree.begin(V1, GenerationId(1), None).expect("it is the first one");
        let mut copy = Copy {
            rng: Rng::new(seed),
            leader,
            staged: BTreeMap::new(),
            plan: Plan::default(),
            reads: Vec::new(),
            wanted: Vec::new(),
            log: None,
            tree: Tree::default(),
            alone: BTreeSet::new(),
            come_first: false,
            begun: false,
            changed: false,
            next: 2,
            merges: 0,
            undone: 0,
        };
        (0..120).for_each(|_| copy.change());
        copy
    }

    fn begin(&mut self) {
        let chunks: Vec<ChunkKey> = self.leader.deltas.keys().copied().collect();
        self.plan = Plan::new(chunks, self.rng.chance(1, 2));
        self.merges = 0;
        self.come_first = self.rng.chance(1, 4);
        if !self.come_first {
            self.begin_log();
        }
        self.begun = false;
        self.begin_round();
    }

    /// Contents that come before the log are of the tree of their round.
    fn begin_round(&mut self) {
        if self.log.is_none() {
            self.tree = self.leader.tree.clone();
            let Copy { plan, leader, .. } = self;
            plan.begin_at(Some(Arc::new(leader.tree.clone())), true, |chunk| leader.delta(chunk));
        }
    }

    /// The follower's log begins here.
    fn begin_log(&mut self) {
        self.log = Some((self.leader.tree.clone(), Vec::new()));
        let Copy { plan, leader, .. } = self;
        plan.begin_at(Some(Arc::new(leader.tree.clone())), false, |chunk| leader.delta(chunk));
        self.tree = self.leader.tree.clone();
        self.begun = true;
    }

    fn pick(&mut self, is: fn(Role) -> bool) -> Option<(GenerationId, VolumeId)> {
        let of = self.leader.tree.iter().filter(|(_, node)| is(node.role));
        let all: Vec<(GenerationId, VolumeId)> = of.map(|(id, node)| (id, node.role.volume())).collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize])
    }

    /// Does one operation.
    fn change(&mut self) {
        let (head, volume) = self.pick(|role| matches!(role, Role::Head(_))).expect("one stays");
        let snapshot = self.pick(|role| matches!(role, Role::Snapshot(..)));
        let index = self.rng.below(u64::from(CHUNKS)) as u32;
        let fresh = self.next < GENERATIONS_MAX;
        let mut tree = self.leader.tree.clone();
        let to = GenerationId(self.next);
        let op = match (self.rng.below(40), snapshot) {
            (0 | 38, _) if fresh => {
                tree.branch(volume, head, to, CHUNKS, 1).expect("it fits");
                Op::Tree(tree, Vec::new())
            }
            (1, Some((parent, _))) if fresh => {
                tree.begin(VolumeId(to.0), to, Some(parent)).expect("it fits");
                Op::Tree(tree, Vec::new())
            }
            (2, Some((snapshot, of))) if fresh => {
                let Some(head) = tree.iter().map(|(id, _)| id).find(|id| tree.is_head_of(of, *id)) else { return };
                let changes = tree.turn_back(head, Some(snapshot), to).expect("it fits");
                Op::Tree(tree, changes)
            }
            (39, Some(_)) if self.leader.deltas.keys().all(|key| key.generation != head) => {
                let Ok(changes) = tree.undo_branch(head) else { return };
                self.undone += 1;
                Op::Tree(tree, changes)
            }
            (3..=4, Some((id, _))) => {
                let changes = tree.remove(id).expect("it is there");
                Op::Tree(tree, changes)
            }
            (5, _) => {
                tree.shorten(head, index).expect("it is a head");
                Op::Tree(tree, vec![Change::Shorten { generation: head, from_chunk: index }])
            }
            (6, _) => return self.leader.drop_marks(),
            (kind, _) => {
                let value = if kind < 14 { 0 } else { self.rng.next_u64() | 1 };
                let block = self.rng.below(USED as u64) as usize;
                Op::Put(ChunkKey { generation: head, index }, block, value)
            }
        };
        self.next += u64::from(matches!(&op, Op::Tree(tree, _) if tree.get(to).is_some()));
        self.apply(op);
    }

    fn apply(&mut self, op: Op) {
        self.changed = true;
        self.leader.apply(&op);
        let Copy { plan, leader, .. } = self;
        match &op {
            Op::Put(chunk, block, 0) => plan.note(&Effect::Zero { chunk: *chunk, range: sectors(*block) }),
            Op::Put(chunk, block, _) => plan.note(&Effect::Write { chunk: *chunk, range: sectors(*block) }),
            Op::Tree(_, changes) => {
                plan.note_changes(changes, |chunk| leader.delta(chunk));
                self.merges += changes.iter().filter(|change| matches!(change, Change::Merge { .. })).count() as u32;
            }
        }
        self.log.iter_mut().for_each(|(_, ops)| ops.push(op.clone()));
    }

    fn stage(&mut self, chunk: ChunkKey, block: usize, value: u64) {
        if self.tree.get(chunk.generation).is_none() {
            self.alone.insert(chunk.generation);
        }
        self.staged.entry(chunk).or_insert_with(|| vec![None; USED])[block] = Some(value);
    }

    /// One part is read, and arrives.
    fn arrive(&mut self) {
        let at = self.rng.below(self.reads.len() as u64) as usize;
        let part = self.reads.swap_remove(at);
        if self.plan.has_ended(part.chunk.generation) {
            return;
        }
        for block in used(part.range) {
            let value = self.leader.full(part.chunk, block);
            match part.own {
                Some(own) if own >> ((block * APART) % 128) & 1 == 0 => {}
                // The follower has none of it.
                Some(_) if value != 0 => self.wanted.push((part.to, block)),
                Some(_) => self.stage(part.to, block, 0),
                None => self.stage(part.to, block, value),
            }
        }
    }

    /// Reads until the round is over. True: nothing is owed.
    fn round(&mut self, busy: bool) -> bool {
        self.changed = false;
        loop {
            let leader = &self.leader;
            match self.plan.next(|chunk| leader.delta(chunk)) {
                Some(part) if part.content == Content::Zeros => {
                    used(part.range).for_each(|block| self.stage(part.to, block, 0));
                }
                Some(part) => self.reads.push(part),
                None if self.reads.is_empty() && self.wanted.is_empty() => break,
                None => {}
            }
            if !self.reads.is_empty() && self.rng.chance(1, 2) {
                self.arrive();
            }
            if self.rng.chance(1, 2) {
                let wanted = self.wanted.pop();
                wanted.into_iter().for_each(|(chunk, block)| self.plan.owe(chunk, sectors(block)));
            }
            if busy && self.rng.chance(1, 2) {
                self.change();
            }
            if busy && !self.come_first && self.rng.chance(1, 60) {
                self.begin_log();
            }
        }
        !self.plan.owes()
    }

    /// Returns the follower's contents.
    fn installed(&self) -> Store {
        let (tree, ops) = self.log.clone().unwrap_or_else(|| (self.leader.tree.clone(), Vec::new()));
        let is_known = |key: &ChunkKey| tree.get(key.generation).is_some();
        let fits = |id: &GenerationId| tree.get(*id).is_none_or(|node| node.family == *id);
        assert!(self.alone.iter().all(fits), "the installation refuses {:?}", self.alone);
        let deltas = self.staged.iter().filter(|(key, _)| is_known(key)).map(|(key, states)| (*key, states.clone()));
        let mut store = Store { deltas: deltas.collect(), tree: tree.clone() };
        ops.iter().for_each(|op| store.apply(op));
        store
    }
}

#[test]
fn copy_under_writes_and_tree_changes_ends_up_equal() {
    let (mut merges, mut again, mut firsts, mut undone) = (0, 0, 0, 0);
    // The last one unmaps a generation, and merges it in the round that was to say so.
    for seed in (0..1000).chain([13_319]) {
        let mut copy = Copy::new(seed);
        copy.begin();
        loop {
            let busy = copy.plan.rounds < 3;
            let is_whole = copy.round(busy);
            let may_end = match copy.log {
                Some(_) => is_whole && !std::mem::take(&mut copy.begun),
                None => is_whole && !copy.changed,
            };
            if may_end {
                break;
            }
            if busy && !copy.come_first && copy.rng.chance(1, 3) {
                again += u32::from(copy.log.is_some());
                copy.begin_log();
                copy.begun = false;
            }
            copy.plan.next_round();
            copy.begin_round();
        }
        firsts += u32::from(copy.come_first && copy.merges > 0);
        merges += copy.merges;
        undone += copy.undone;
        // The follower's log has all that the leader has done since.
        assert!(copy.installed().shown() == copy.leader.shown(), "seed {seed} differs");
    }
    let teeth = (merges > 500, again > 100, firsts > 100, undone > 100);
    assert!(teeth == (true, true, true, true), "{merges} merges, {again} logs that began again, {firsts}, {undone}");
}

#[test]
fn marks_are_sent_and_blocks_that_are_open_are_not() {
    let deep = |_: ChunkKey| ChunkDelta {
        runs: vec![(8, Own::Data), (8, Own::Zeros), (SECTORS_PER_CHUNK - 16, Own::Open)],
        is_deep: true,
    };
    let chunk = ChunkKey { generation: GenerationId(2), index: 0 };
    let mut plan = Plan::new([chunk], false);
    let mut next = || plan.next(deep).map(|part| (part.range, part.content));
    assert_eq!(next(), Some((SectorRange::new(0, 8), Content::Data)));
    assert_eq!(next(), Some((SectorRange::new(8, 8), Content::Zeros)));
    assert_eq!(next(), None);
    let mut plan = Plan::new([chunk], true);
    let part = plan.next(deep).expect("it has blocks of its own");
    assert_eq!((part.content, part.own), (Content::Digests, Some(0b11)));
}
