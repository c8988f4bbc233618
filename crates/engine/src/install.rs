//! Installation: a stream's contents become those of a replica that is being filled (R12, R16).
//!
//! The OSD's loop stages blocks, in any number of calls, and then asks for the installation. It begins when no round runs, and is
//! a round of its own: home drops the old contents and adopts the staged ones, as of the checkpoint index at which the replica's
//! log begins. A staged block may show later entries. These are applied here when the installation begins, so the overlay covers what
//! they have changed; and the commit index that is durable with the checkpoint makes a mount apply them again.
//!
//! Invariant: until the checkpoint of that round is durable, the replica is one that is being filled; from then on it is whole.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home_api::{BlockData, Round, RoundState};
use crate::log::Work;
use crate::replica::ReplicaState;
use crate::round::{RoundStep, Run};
use types::failpoint::{Point, pass};
use types::planted::{Bug, on};
use types::store::DecisionState;
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, Index, IoBuf, ReplicaId, SectorRange};

impl Engine {
    /// Whether a destage round is running: from its begin to its flip.
    pub fn is_round_running(&self) -> bool {
        !matches!(self.round, RoundStep::Idle)
    }

    /// Whether the running round replaces a replica's contents with those of a stream.
    pub fn is_installing_for_tools(&self) -> bool {
        self.round.installs().is_some()
    }

    /// Returns the replica whose installation was requested and has not begun.
    pub fn awaits_install_for_tools(&self) -> Option<ReplicaId> {
        self.installs.front().copied()
    }

    /// Stages whole blocks beside the contents of the replica: `payload` with one CRC a block, or zeros. Ends with
    /// [`EngineEvent::Staged`]. False: there is no room, or the blocks of the last stream are not freed yet.
    ///
    /// # Panics
    /// When the range is not made of whole blocks, or the payload is not the range's.
    pub fn stage(
        &mut self,
        token: u64,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        payload: Option<(IoBuf, Vec<u32>)>,
    ) -> bool {
        let aligned = range.start.is_multiple_of(SECTORS_PER_BLOCK) && range.count.is_multiple_of(SECTORS_PER_BLOCK);
        assert!(aligned, "{range} is not made of blocks");
        let usable = self.replicas.get(&replica).is_some_and(|r| r.is_filling());
        if !usable || !matches!(self.state, State::Running) {
            return false;
        }
        let numbers = (range.start / SECTORS_PER_BLOCK) as u16..(range.end() / SECTORS_PER_BLOCK) as u16;
        let blocks = match payload {
            None => numbers.map(|block| (block, BlockData::Zero)).collect(),
            Some((payload, crcs)) => {
                assert_eq!((payload.len(), crcs.len()), (range.len_bytes(), range.fragment_count()), "{range}");
                let slice = |n: usize| payload.slice(n * BLOCK as usize..(n + 1) * BLOCK as usize);
                let block = |(n, (block, crc))| (block, BlockData::Bytes { buf: slice(n), crc });
                numbers.zip(crcs).enumerate().map(block).collect()
            }
        };
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        let staged = home.stage(token, replica, chunk, blocks, &mut self.ops, &mut events);
        let is_full = !staged && home.is_staging_full();
        self.home_events(events);
        if is_full {
            self.drop_relics();
        }
        staged
    }

    /// Drops the staged blocks of the replica, unless it is being installed. An installation that has not begun is
    /// refused.
    pub fn unstage(&mut self, replica: ReplicaId) {
        if let Some(home) = &mut self.home {
            home.unstage(replica);
        }
        if self.cancel_install(replica) {
            self.events.push(EngineEvent::InstallRefused { replica });
        }
    }

    /// Cancels an installation that has not begun: without the staged blocks it would leave an empty replica. True when
    /// there was one.
    pub(crate) fn cancel_install(&mut self, replica: ReplicaId) -> bool {
        let count = self.installs.len();
        self.installs.retain(|id| *id != replica);
        self.installs.len() < count
    }

    /// Makes the staged blocks the contents of a replica that is being filled, as of its checkpoint index. All of them were reported
    /// staged, and what they show of later entries is applied here: the overlay lies above it. Ends with
    /// [`EngineEvent::Installed`] or [`EngineEvent::InstallRefused`]; the group goes on meanwhile.
    pub fn install(&mut self, replica: ReplicaId) {
        self.installs.push_back(replica);
    }

    /// Begins the next installation, unless a round runs.
    pub(crate) fn begin_install(&mut self) {
        if !matches!(self.round, RoundStep::Idle) {
            return;
        }
        let Some(replica) = self.installs.pop_front() else { return };
        let spoiled = self.home.as_ref().is_some_and(|home| home.is_spoiled(replica));
        let usable = !spoiled && !self.is_beginning(replica);
        let Some(r) = self.replicas.get_mut(&replica).filter(|r| r.is_filling() && usable) else {
            self.unstage(replica);
            return self.events.push(EngineEvent::InstallRefused { replica });
        };
        pass(Point::InstallBegun);
        let (index, term) = r.checkpoint;
        let decision = DecisionState { replica, index, term, bytes: r.first_decision.clone() };
        // The staged blocks show entries up to the applied index: a mount applies them before anything is read.
        let commit = r.written_hard_state.commit.max(r.applied);
        if r.written_hard_state.commit < commit && !on(Bug::InstallForgetsCommit) {
            self.queue(Work::Commit { replica, commit });
        }
        let base = self.home.as_ref().and_then(|home| home.base_of(replica));
        // The record precedes the checkpoint that empties the base.
        base.into_iter().for_each(|base| self.end_past(base));
        let round = RoundState { decision, commit };
        self.round = RoundStep::Home { run: Run::install(round.clone(), self.horizon) };
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        let round = Round { states: vec![round], installs: vec![replica], ..Round::default() };
        home.begin_round(self.now, round, &mut self.ops, &mut events);
        self.home_events(events);
    }

    /// Gives up an installation that does not fit the device.
    pub(crate) fn install_full(&mut self, replica: ReplicaId) {
        self.copy_forward();
        self.unstage(replica);
        self.drop_relics();
        self.events.push(EngineEvent::InstallRefused { replica });
    }

    /// Completes an installation whose checkpoint is durable: the replica has the new contents, which show entries up to `shows`.
    pub(crate) fn installed(&mut self, replica: ReplicaId, shows: Index) {
        let Some(r) = self.replicas.get_mut(&replica) else { return };
        (r.fills_from, r.first_decision, r.shows) = (None, bytes::Bytes::new(), shows);
        if r.has_failed() {
            return;
        }
        r.turn(ReplicaState::Running);
        // A round can free the log of it now.
        self.k_lags = true;
        self.judge_all_space(replica);
        self.events.push(EngineEvent::Installed { replica });
    }

    /// Drops staged blocks for a round that did not fit into home. False when there were none.
    pub(crate) fn evict_staged(&mut self) -> bool {
        let home = self.home.as_mut().expect("a running engine has a home");
        let evicted = home.evict_staged();
        let some = !evicted.is_empty();
        for replica in evicted {
            let awaited = !on(Bug::InstallOfNothing) && self.cancel_install(replica);
            self.events.push(match awaited {
                true => EngineEvent::InstallRefused { replica },
                false => EngineEvent::Unstaged { replica },
            });
        }
        some
    }
}
