//! A store as its OSD would serve it: mounted, with the committed entries of each replica applied over its checkpoint.
//!
//! Invariant: bytes come from the engine alone, so each block is verified.

use super::device::{Device, offline_error};
use crate::disk_args::{LogEnd, Source};
use crate::errors::UserError;
use anyhow::Result;
use engine::offline::{Access, Offline};
use engine::{ChunkHeld, Part, ReadData, ReplicaUse, Superblock};
use group::Until;
use group::decision::{Attached, Decision};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::map::Membership;
use types::store::Recovered;
use types::tree::{Role, Tree};
use types::units::{SECTORS_PER_BLOCK, SECTORS_PER_CHUNK};
use types::{
    ChunkKey, GenerationId, Index, IoBuf, PgId, ReplicaId, SectorRange, SnapshotId, Term, VolumeChunk, VolumeId, codes,
};

/// Sectors of one read: 512 KiB.
const STEP_SECTORS: u32 = 1024;

/// How far the log of a replica is applied.
pub struct Applied {
    pub commit: Index,
    pub last: Index,
    /// Term of the last entry.
    pub last_term: Term,
    /// Members of the PG at the end of the log: the newest ones that this device knows.
    pub members: Membership,
    /// `None`: the log could not be applied, and the reason; the contents are those of the checkpoint.
    pub stale: Option<String>,
    /// The attach records.
    pub volumes: BTreeMap<VolumeId, Attached>,
}

/// A mounted store.
pub struct View<'a> {
    pub store: Offline<'a>,
    pub superblock: Superblock,
    pub applied: BTreeMap<ReplicaId, Applied>,
    path: PathBuf,
}

/// A block that fails its checksum, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// [`View::name_of`] the chunk.
    pub chunk: String,
    pub block: u32,
    pub reason: String,
}

/// The verified bytes of a range; blocks of `bad` are zeros in them.
pub struct Bytes {
    /// `None`: all zeros.
    pub bytes: Option<IoBuf>,
    pub bad: Vec<BadBlock>,
}

impl<'a> View<'a> {
    /// Mounts the store of a device for reading.
    ///
    /// # Errors
    /// Those of [`Device::mount`].
    pub fn open(device: &'a mut Device, end: LogEnd) -> Result<View<'a>> {
        let path = device.path.clone();
        let (store, superblock, recovered) = device.mount(Access::Read)?;
        let mut view = View { store, superblock, applied: BTreeMap::new(), path };
        let until = if end.uncommitted { Until::End } else { Until::Commit };
        for found in recovered {
            let applied = view.apply(&found, until);
            view.applied.insert(found.identity.replica, applied);
        }
        Ok(view)
    }

    fn apply(&mut self, found: &Recovered, until: Until) -> Applied {
        let replica = found.identity.replica;
        let volumes = |bytes: &[u8]| Decision::decode(bytes).map(|state| state.volumes).unwrap_or_default();
        let at_checkpoint = (found.checkpoint.index, found.checkpoint.term);
        let newest = found.entries.last().filter(|entry| entry.index > found.checkpoint.index);
        let (last, last_term) = newest.map_or(at_checkpoint, |entry| (entry.index, entry.term));
        let stale = |reason: String| Applied {
            commit: found.hard_state.commit,
            last,
            last_term,
            members: group::members_in(found),
            stale: Some(reason),
            volumes: volumes(&found.checkpoint.bytes),
        };
        let done = match group::replay(found, until) {
            Ok(done) => done,
            Err(error) => return stale(error.to_string()),
        };
        // Either all of these entries are applied, or none: a stale replica shows exactly its checkpoint.
        let mut effects = done.effects.iter().filter_map(|(entry, applied)| match applied {
            group::Applied::Effect(effect) => Some((*entry, *effect)),
            group::Applied::Tree(..) => None,
        });
        if let Err(error) = effects.try_for_each(|(entry, effect)| self.store.check_payload(replica, entry, effect)) {
            return stale(error.to_string());
        }
        for (entry, applied) in done.effects {
            match applied {
                group::Applied::Effect(effect) => {
                    self.store.apply(replica, entry, effect).expect("its payload was checked");
                }
                group::Applied::Tree(tree, changes) => self.store.set_tree(replica, entry.0, tree, &changes),
            }
        }
        Applied {
            commit: done.commit,
            last: done.last,
            last_term,
            members: group::members_in(found),
            stale: None,
            volumes: volumes(&done.decision),
        }
    }

    /// Returns the replicas, ascending by PG and id.
    pub fn replicas(&self) -> Vec<ReplicaUse> {
        let mut replicas = self.store.engine().replicas_for_tools();
        replicas.sort_by_key(|replica| (replica.identity.pg, replica.identity.replica));
        replicas
    }

    /// Returns the replica of the PG that bytes are taken from: the one that is named, or the newest one that can be read.
    ///
    /// # Errors
    /// BSLT-3014 when the device has none; BSLT-3011 when it has failed and `--force` is not given.
    pub fn choose(&self, pg: PgId, source: Source) -> Result<ReplicaUse> {
        let of_pg: Vec<ReplicaUse> = self.replicas().into_iter().filter(|r| r.identity.pg == pg).collect();
        let is_whole = |r: &&ReplicaUse| self.stale(r.identity.replica).is_none();
        let chosen = match source.replica {
            Some(id) => of_pg.iter().find(|r| r.identity.replica == id),
            None => of_pg.iter().rev().find(is_whole).or(of_pg.last()),
        };
        let device = self.path.display();
        let Some(chosen) = chosen.cloned() else {
            let which = source.replica.map_or_else(|| "no replica".to_owned(), |id| format!("no replica {id}"));
            let what = format!("{device} holds {which} of PG {pg}");
            return Err(UserError::new(codes::REPLICA_NOT_HERE, what, format!("basalt disk ls {device}")).into());
        };
        match self.stale(chosen.identity.replica).filter(|_| !source.force) {
            None => Ok(chosen),
            Some(reason) => {
                let what = format!("{device}: the log cannot be applied: {reason}");
                let next = "take another replica of the PG, or the contents of the last checkpoint with --force";
                Err(UserError::new(codes::REPLICA_DAMAGED, what, next).into())
            }
        }
    }

    /// Returns the generations of the contents that [`View::read`] shows.
    pub fn tree(&self, replica: ReplicaId) -> Arc<Tree> {
        self.store.engine().tree_for_tools(replica).unwrap_or_default()
    }

    /// Returns the generation that is the volume, or this snapshot of it. `None`: the volume came to the PG after the snapshot, which
    /// reads as zeros here.
    ///
    /// # Errors
    /// BSLT-3014 when the replica has no such volume or snapshot; BSLT-3011 when its decision state cannot be read.
    pub fn generation(
        &self,
        replica: &ReplicaUse,
        volume: VolumeId,
        snapshot: Option<SnapshotId>,
    ) -> Result<Option<GenerationId>> {
        let (id, pg, device) = (replica.identity.replica, replica.identity.pg, self.path.display());
        let Some(tree) = self.store.engine().tree_for_tools(id) else {
            let what = format!("{device}: the decision state of {id} of PG {pg} cannot be read");
            return Err(UserError::new(codes::REPLICA_DAMAGED, what, "take another replica of the PG").into());
        };
        let role = snapshot.map_or(Role::Head(volume), |snapshot| Role::Snapshot(volume, snapshot));
        if let Some((generation, _)) = tree.iter().find(|(_, node)| node.role == role) {
            return Ok(Some(generation));
        }
        let attached = self.applied.get(&id).and_then(|applied| applied.volumes.get(&volume));
        let (Some(snapshot), Some(attached)) = (snapshot, attached) else {
            let what = format!("{device}: {id} of PG {pg} does not hold volume {volume}");
            return Err(UserError::new(codes::REPLICA_NOT_HERE, what, format!("basalt disk usage {device}")).into());
        };
        if snapshot.0 <= attached.first.0 {
            return Ok(None);
        }
        let what = format!("{device}: {id} of PG {pg} does not hold snapshot {snapshot} of volume {volume}");
        let next = format!("basalt disk ls {device} --pg {pg} --volume {} --chunks", volume.0);
        Err(UserError::new(codes::REPLICA_NOT_HERE, what, next).into())
    }

    /// Returns the name of a chunk for an operator: the volume and the index, with the snapshot or the generation if it is not the head.
    pub fn name_of(&self, replica: ReplicaId, chunk: ChunkKey) -> String {
        let tree = self.tree(replica);
        let Some(node) = tree.get(chunk.generation) else { return chunk.to_string() };
        let of_volume = VolumeChunk { volume: node.role.volume(), index: chunk.index };
        match node.role {
            Role::Head(_) => of_volume.to_string(),
            Role::Snapshot(_, snapshot) => format!("{of_volume} ({snapshot})"),
            Role::Hidden(_) => format!("{of_volume} ({})", chunk.generation),
        }
    }

    /// Returns why the contents of a replica are those of its checkpoint, if they are.
    pub fn stale(&self, replica: ReplicaId) -> Option<&str> {
        self.applied.get(&replica).and_then(|applied| applied.stale.as_deref())
    }

    /// Reads a range of a chunk that begins and ends with a block.
    ///
    /// # Errors
    /// The store itself fails; bad blocks are no error here.
    pub fn read(&mut self, replica: &ReplicaUse, chunk: ChunkKey, range: SectorRange) -> Result<Bytes> {
        if let Ok(data) = self.read_once(replica, chunk, range)? {
            return Ok(Bytes { bytes: bytes_of(data), bad: Vec::new() });
        }
        let mut whole = vec![0; range.len_bytes()];
        let (mut bad, name) = (Vec::new(), self.name_of(replica.identity.replica, chunk));
        for block in range.fragments() {
            match self.read_once(replica, chunk, block)? {
                Ok(data) => {
                    if let Some(bytes) = bytes_of(data) {
                        whole[types::range::fragment_bytes(range.start, block)].copy_from_slice(&bytes);
                    }
                }
                Err(reason) => {
                    bad.push(BadBlock { chunk: name.clone(), block: block.start / SECTORS_PER_BLOCK, reason });
                }
            }
        }
        Ok(Bytes { bytes: Some(IoBuf::copy_of(&whole)), bad })
    }

    fn read_once(
        &mut self,
        replica: &ReplicaUse,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Result<Result<ReadData, String>> {
        let id = replica.identity.replica;
        let read = match replica.part {
            Part::Failed(_) | Part::Filling => self.store.read_home(id, chunk, range),
            _ => self.store.read(id, chunk, range),
        };
        let read = read.map_err(|error| offline_error(&self.path, error))?;
        Ok(read.map_err(|error| error.to_string()))
    }

    /// Reads a range of a chunk of the volume or the snapshot that [`View::generation`] found.
    ///
    /// # Errors
    /// Those of [`View::read`].
    pub fn read_of(
        &mut self,
        replica: &ReplicaUse,
        generation: Option<GenerationId>,
        index: u32,
        range: SectorRange,
    ) -> Result<Bytes> {
        match generation {
            Some(generation) => self.read(replica, ChunkKey { generation, index }, range),
            None => Ok(Bytes { bytes: None, bad: Vec::new() }),
        }
    }

    /// Gives the pieces of a chunk that may hold data to `visit`, in order.
    ///
    /// # Errors
    /// Those of [`View::read`] and of `visit`.
    pub fn each_piece(
        &mut self,
        replica: &ReplicaUse,
        chunk: ChunkKey,
        visit: &mut dyn FnMut(SectorRange, Bytes) -> Result<()>,
    ) -> Result<()> {
        for start in (0..SECTORS_PER_CHUNK).step_by(STEP_SECTORS as usize) {
            let range = SectorRange::new(start, STEP_SECTORS);
            let bytes = self.read(replica, chunk, range)?;
            visit(range, bytes)?;
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn bytes_of(data: ReadData) -> Option<IoBuf> {
    match data {
        ReadData::Zeros => None,
        ReadData::Bytes { payload, .. } => Some(payload),
    }
}

/// Returns the volume to which the blocks of a chunk belong. Without a tree it is the one that began with the generation.
pub fn volume_of(held: &ChunkHeld) -> VolumeId {
    held.owner.map_or(held.chunk.of_first().volume, |(_, role)| role.volume())
}

/// Returns the error of a bad block.
pub fn bad_block(path: &Path, replica: &ReplicaUse, bad: &BadBlock) -> UserError {
    let BadBlock { chunk, block, reason } = bad;
    let (id, pg, at) = (replica.identity.replica, replica.identity.pg, u64::from(*block) * types::BLOCK);
    let what =
        format!("{}: block {block} (offset {at}) of chunk {chunk} of {id} of PG {pg} is bad: {reason}", path.display());
    UserError::new(codes::REPLICA_DAMAGED, what, "take another replica of the PG, or zeros for bad blocks with --force")
}

/// Returns the word for a replica's part in its PG.
pub fn part_word(part: &Part) -> &'static str {
    match part {
        Part::Running => "running",
        Part::Filling => "filling",
        Part::Repairing { .. } => "repairing",
        Part::Failed(_) => "failed",
    }
}
