//! A stream to one replica: what the OSD's loop and a leader do to the engine, step by step, until it ends or the process dies.
//!
//! The blocks are fuzzy, as a leader that goes on sends them: each piece is from any of the states that the replica has applied
//! when it is installed.

use super::crash::{step, step_of};
use super::rig::Rig;
use crate::testing::{Model, SECTORS, chunks, decision_bytes};
use std::collections::BTreeMap;
use types::store::{DecisionState, Effect};
use types::units::{SECTORS_PER_AU, SECTORS_PER_BLOCK};
use types::{BLOCK, ChunkKey, Index, ReplicaId, SectorRange, Term};

type Place = (ChunkKey, u32);

/// One stream. `None` of its steps: the process is to die now.
pub(super) struct Stream {
    pub target: ReplicaId,
    /// Where the log begins, durably.
    pub begins: Option<u64>,
    /// Where it was asked to begin, and there is no answer yet.
    pub asked: Option<Model>,
    /// The later index behind which it was asked to begin.
    pub later: Option<u64>,
    /// The index that was applied when the installation was asked for.
    pub installs: Option<u64>,
    pub installed: bool,
    /// AUs of the base that were taken over as they are.
    pub kept: Vec<Place>,
    /// Contents of the blocks that are staged or kept.
    shown: BTreeMap<Place, Vec<u8>>,
    /// The leader's states from the beginning of the log on.
    states: Vec<Model>,
    /// Steps before the process dies.
    left: u64,
}

fn au_range(au: u32) -> SectorRange {
    let start = au * SECTORS_PER_AU;
    SectorRange::new(start, (SECTORS - start).min(SECTORS_PER_AU))
}

fn blocks_of(range: SectorRange) -> impl Iterator<Item = u32> {
    range.start / SECTORS_PER_BLOCK..range.end() / SECTORS_PER_BLOCK
}

fn block_range(block: u32) -> SectorRange {
    SectorRange::new(block * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK)
}

pub(super) fn effects(rig: &mut Rig, count: u64) -> Vec<Effect> {
    (0..count).map(|_| rig.effect()).collect()
}

impl Stream {
    pub fn new(target: ReplicaId, left: u64) -> Stream {
        let (begins, asked, installs, installed) = (None, None, None, false);
        let (kept, shown, states) = (Vec::new(), BTreeMap::new(), Vec::new());
        Stream { target, begins, asked, later: None, installs, installed, kept, shown, states, left }
    }

    /// Goes on with a replica that came back half filled: nothing is staged any more.
    pub fn again(rig: &Rig, target: ReplicaId) -> Stream {
        let begins = Some(rig.engine.fills_from(target).0);
        Stream { begins, ..Stream::new(target, u64::MAX) }
    }

    pub fn step(&mut self, rig: &mut Rig) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        if rig.rng().chance(1, 3) {
            step(rig);
        }
        let completions = rig.rng().below(4);
        rig.turn(completions);
        rig.engine.audit().expect("the books balance at every step");
        Some(())
    }

    /// Has the log begin behind the applied index of this state.
    pub fn begin(&mut self, rig: &mut Rig, new: Model) -> Option<()> {
        rig.engine.fill(new.decision());
        self.asked = Some(new);
        while rig.seen.filling.is_empty() {
            assert_eq!(rig.seen.fill_refused, []);
            self.step(rig)?;
        }
        let found = rig.seen.filling.pop().expect("seen above");
        let new = self.asked.take().expect("asked above");
        self.begins = Some(new.applied);
        assert!(found.fills && found.checkpoint == new.decision() && found.entries.is_empty());
        assert_eq!(rig.engine.fills_from(self.target).0, new.applied);
        rig.models.insert(self.target, new);
        rig.check_recovered(found, false);
        Some(())
    }

    /// Has the log begin behind a later entry that it has and that the leader has applied: it keeps those that follow. Blocks that
    /// have changed up to there come again.
    pub fn begin_later(&mut self, rig: &mut Rig) -> Option<()> {
        let model = &rig.models[&self.target];
        let begins = self.begins.expect("it has begun");
        let agreed = (begins + 1..=self.end().last().min(model.last())).rev();
        let agreed = agreed.into_iter().find(|index| model.term_at(*index) == self.end().term_at(*index));
        let Some(agreed) = agreed else { return Some(()) };
        let index = rig.rng().between(begins + 1, agreed);
        let (replica, term) = (self.target, self.end().term_at(index));
        let bytes = decision_bytes(replica, Index(index));
        rig.engine.fill(DecisionState { replica, index: Index(index), term, bytes });
        self.later = Some(index);
        while rig.seen.filling.is_empty() && rig.seen.fill_refused.is_empty() {
            self.step(rig)?;
        }
        if rig.seen.fill_refused.pop().is_some() {
            self.later = None;
            return Some(());
        }
        let found = rig.seen.filling.pop().expect("seen above");
        assert!(found.fills && found.checkpoint.index.0 == index && found.before == (Index(index), term));
        self.begins = Some(index);
        self.states.retain(|state| state.applied >= index);
        rig.check_recovered(found, false);
        Some(())
    }

    /// The leader goes on. Some histories give the log entries of a leader of an older term before, which are never committed.
    pub fn lead(&mut self, rig: &mut Rig) {
        let durable = rig.models[&self.target].durable;
        rig.commit(self.target, durable);
        if rig.rng().chance(1, 2) {
            self.spoil_tail(rig);
        }
        let model = &rig.models[&self.target];
        let term = Term(model.term.0 + u64::from(model.last() > model.applied));
        let model = model.clone();
        let count = rig.rng().below(9);
        let effects = effects(rig, count);
        self.states = model.states(term, effects);
    }

    /// Appends entries that are never committed.
    pub fn spoil_tail(&mut self, rig: &mut Rig) {
        let count = rig.rng().between(1, 4);
        let effects = effects(rig, count);
        rig.extend(self.target, effects);
    }

    fn end(&self) -> &Model {
        self.states.last().expect("there is the first one")
    }

    /// Appends what the leader has, up to `count` entries, and commits what is durable of it.
    fn follow(&mut self, rig: &mut Rig, count: u64) {
        let model = &rig.models[&self.target];
        let agrees = |index: u64| index <= model.last() && self.end().term_at(index) == model.term_at(index);
        let from = (model.applied + 1..=self.end().last()).find(|index| !agrees(*index));
        if let Some(from) = from.filter(|_| rig.engine.pressure().max() < 1.0) {
            let to = self.end().last().min(from + count - 1);
            let effects = (from..=to).map(|index| self.end().made[index as usize - 1].effect).collect();
            rig.append(self.target, from, effects);
        }
        let agreed = from.map_or(self.end().last(), |from| from - 1);
        rig.commit(self.target, agreed);
    }

    pub fn is_applied(&self, rig: &Rig) -> bool {
        rig.models[&self.target].applied >= self.end().applied
    }

    /// Applies all that the leader has.
    pub fn catch_up(&mut self, rig: &mut Rig) -> Option<()> {
        while !self.is_applied(rig) {
            self.follow(rig, 3);
            self.step(rig)?;
        }
        Some(())
    }

    /// Returns contents of the range in any of the leader's states.
    fn fuzzy(&self, rig: &mut Rig, chunk: ChunkKey, range: SectorRange) -> Vec<u8> {
        let n = rig.rng().below(self.states.len() as u64) as usize;
        self.states[n].expected(chunk, range)
    }

    fn is_shown(&self, chunk: ChunkKey, block: u32) -> bool {
        let shown = self.shown.get(&(chunk, block));
        shown.is_some_and(|bytes| self.states.iter().any(|state| state.expected(chunk, block_range(block)) == *bytes))
    }

    /// Keeps AUs of the base that are in one of the leader's states. The base is the replica itself, or an older one.
    pub fn keep(&mut self, rig: &mut Rig, base: ReplicaId, old: Option<&Model>) -> Option<()> {
        for (chunk, au) in chunks().into_iter().flat_map(|chunk| [(chunk, 0), (chunk, 1)]) {
            let range = au_range(au);
            let token = rig.read_base(base, chunk, range);
            while !rig.seen.base_reads.contains_key(&token) {
                self.step(rig)?;
            }
            let bytes = rig.seen.base_reads.remove(&token).expect("seen above").expect("the base can be read");
            if let Some(old) = old {
                assert!(bytes == old.expected(chunk, range), "{chunk} {range}: the base is not as it was");
            }
            let is_one = self.states.iter().any(|state| state.expected(chunk, range) == bytes);
            if !is_one || !rig.engine.keep(self.target, base, chunk, au) {
                continue;
            }
            if rig.rng().chance(1, 4) {
                assert!(rig.engine.release(self.target, base, chunk, au), "nothing has changed");
                continue;
            }
            self.kept.push((chunk, au));
            for (n, block) in blocks_of(range).enumerate() {
                let at = n * BLOCK as usize;
                self.shown.insert((chunk, block), bytes[at..at + BLOCK as usize].to_vec());
            }
        }
        Some(())
    }

    /// Stages what is not staged yet, or no longer what one of the leader's states has; some blocks after other bytes in the same
    /// place. Meanwhile the replica follows.
    pub fn stage(&mut self, rig: &mut Rig) -> Option<()> {
        self.release_outdated(rig);
        for chunk in chunks() {
            for again in [rig.rng().chance(1, 2), false] {
                rig.seen.staged = 0;
                let sent = self.stage_chunk(rig, chunk, again);
                while rig.seen.staged < sent {
                    self.follow(rig, 2);
                    self.step(rig)?;
                }
            }
        }
        rig.engine.audit().expect("the books balance with staged chunks");
        Some(())
    }

    fn release_outdated(&mut self, rig: &mut Rig) {
        for (chunk, au) in std::mem::take(&mut self.kept) {
            let stays = blocks_of(au_range(au)).all(|block| self.is_shown(chunk, block));
            if stays {
                self.kept.push((chunk, au));
                continue;
            }
            rig.engine.unkeep(self.target, chunk, au);
            blocks_of(au_range(au)).for_each(|block| drop(self.shown.remove(&(chunk, block))));
        }
    }

    fn stage_chunk(&mut self, rig: &mut Rig, chunk: ChunkKey, again: bool) -> u64 {
        let mut sent = 0;
        let mut block = 0;
        while block < SECTORS / SECTORS_PER_BLOCK {
            let most = rig.rng().between(1, 8) as u32;
            let count = (block..SECTORS / SECTORS_PER_BLOCK).take(most as usize);
            let count = count.take_while(|block| !self.is_shown(chunk, *block)).count() as u32;
            if count == 0 {
                block += 1;
                continue;
            }
            let range = SectorRange::new(block * SECTORS_PER_BLOCK, count * SECTORS_PER_BLOCK);
            let mut bytes = self.fuzzy(rig, chunk, range);
            if again {
                bytes.fill(0xee);
            }
            assert!(rig.stage(self.target, chunk, range, &bytes), "there is room");
            sent += 1;
            let pieces = blocks_of(range).zip(bytes.chunks(BLOCK as usize));
            self.shown.extend(pieces.filter(|_| !again).map(|(block, bytes)| ((chunk, block), bytes.to_vec())));
            block += count;
        }
        sent
    }

    /// Installs the contents. Meanwhile the group of the replica goes on.
    pub fn install(&mut self, rig: &mut Rig) -> Option<()> {
        rig.engine.install(self.target);
        self.installs = Some(rig.models[&self.target].applied);
        while rig.seen.installed.is_empty() {
            assert_eq!(rig.seen.refused, []);
            if rig.rng().chance(1, 3) {
                step_of(rig, self.target);
            }
            self.step(rig)?;
        }
        assert_eq!(rig.seen.installed.pop(), Some(self.target));
        self.installed = true;
        rig.models.get_mut(&self.target).expect("it began").fills = false;
        rig.check_all_sectors();
        Some(())
    }

    /// Takes the replica to the end of the stream from wherever it is.
    pub fn finish(&mut self, rig: &mut Rig) -> Option<()> {
        self.lead(rig);
        self.stage(rig)?;
        self.catch_up(rig)?;
        self.install(rig)
    }

    /// Selects the model of the target that came back after a crash; returns whether it is whole with the new contents. `old`: what
    /// it was before the stream.
    pub fn judge(&self, rig: &mut Rig, old: Model) -> Came {
        let found =
            rig.seen.recovered.iter().find(|r| r.identity.replica == self.target).expect("the target comes back");
        let (k, fills, commit) = (found.checkpoint.index.0, found.fills, found.hard_state.commit.0);
        let asked = self.asked.as_ref().filter(|asked| asked.applied == k);
        if let Some(asked) = asked {
            assert!(fills, "nothing was installed behind {k}");
            rig.models.insert(self.target, asked.clone());
            return Came::Filling;
        }
        let Some(begins) = self.begins else {
            assert!(!fills, "{k} is not where the log was to begin");
            rig.models.insert(self.target, old);
            return Came::Old;
        };
        assert!(k >= begins, "a log that began durably begins there");
        if fills {
            let later = self.later.is_some_and(|later| later == k);
            assert!((k == begins || later) && !self.installed, "what was reported installed stays installed");
            return Came::Filling;
        }
        let applied = self.installs.expect("nothing was to be installed");
        assert!(commit >= applied, "the blocks show entry {applied}, and a mount applies no more than {commit}");
        Came::Whole
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Old,
    Filling,
    Whole,
}
