//! The contents of a stopped replica: effects of the entries between its checkpoint index and its commit index.
//!
//! A replica as mount found it comes in; the effects that its group would apply go out. Tools use it that read the device of
//! a stopped OSD.
//!
//! Invariant: the effects are those of [`crate::Group`], in the same order, because the same decision state decides (R1).

use crate::decision::{Decided, Decision, DecisionError};
use crate::descriptor::{self, Command, DescriptorError};
use crate::members::{forced_step, proven_commit};
use bytes::Bytes;
use std::sync::Arc;
use types::map::Membership;
use types::store::{Effect, Recovered};
use types::tree::{Change, Tree};
use types::{Entry, EntryKind, Index, PgId, ReplicaId, Term};

/// How far a log is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// To the commit index that the device knows or proves: later entries may be committed or not.
    Commit,
    /// To the last entry of the log, as if all of it was committed.
    End,
}

/// The state of a replica after the replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The commit index that the device knows or proves.
    pub commit: Index,
    /// The last entry of the log, or the checkpoint index when the log holds no later one.
    pub last: Index,
    /// The last entry that was replayed, with its term.
    pub applied: (Index, Term),
    /// Effects of the entries above the checkpoint index, ascending, each with index and term of its entry.
    pub effects: Vec<((Index, Term), Applied)>,
    /// Decision state at `applied`, encoded.
    pub decision: Bytes,
}

/// Effect of one entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    Effect(Effect),
    /// The generations of the PG from this entry on, and the steps that lead to them.
    Tree(Arc<Tree>, Vec<Change>),
}

/// Why a replica cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("{replica} of PG {pg} has failed: {reason}")]
    Failed { pg: PgId, replica: ReplicaId, reason: String },
    #[error("{replica} of PG {pg} has lost the payload of entry {index}")]
    Lost { pg: PgId, replica: ReplicaId, index: Index },
    #[error("{replica} of PG {pg} waits for a stream with its contents")]
    Fills { pg: PgId, replica: ReplicaId },
    #[error("the decision state of {replica} cannot be read: {source}")]
    Decision { replica: ReplicaId, source: DecisionError },
    #[error("entry {index} of {replica} cannot be read: {source}")]
    Entry { replica: ReplicaId, index: Index, source: DescriptorError },
    #[error("the log of {replica} lacks entry {index}, or holds a foreign one there")]
    Gap { replica: ReplicaId, index: Index },
}

/// Replays the log of a replica over its checkpoint.
///
/// # Errors
/// A [`ReplayError`]; never a panic, whatever the entries are.
pub fn replay(recovered: &Recovered, until: Until) -> Result<Replayed, ReplayError> {
    let Recovered { identity, checkpoint, entries, .. } = recovered;
    let (pg, replica) = (identity.pg, identity.replica);
    if let Some(failure) = &recovered.failure {
        return Err(ReplayError::Failed { pg, replica, reason: failure.reason.clone() });
    }
    if let Some(lost) = recovered.lost.first() {
        return Err(ReplayError::Lost { pg, replica, index: lost.index });
    }
    if recovered.fills {
        return Err(ReplayError::Fills { pg, replica });
    }
    let mut decision = match checkpoint.bytes.is_empty() {
        true => Decision::fresh(identity.conf_epoch, &identity.members),
        false => Decision::decode(&checkpoint.bytes).map_err(|source| ReplayError::Decision { replica, source })?,
    };
    let above = || entries.iter().filter(|entry| entry.index > checkpoint.index);
    let steps = above().map(|entry| (entry.index, &*entry.descriptor));
    let proven = proven_commit(decision.members.epoch, steps).max(forced_step(replica, entries));
    let last = entries.last().map_or(checkpoint.index, |entry| entry.index.max(checkpoint.index));
    let commit = recovered.hard_state.commit.max(proven.unwrap_or_default()).max(checkpoint.index);
    let commit = committed_alone(replica, decision.members.clone(), above(), commit);
    let end = if until == Until::End { last } else { commit };
    let (mut effects, mut applied) = (Vec::new(), (checkpoint.index, checkpoint.term));
    for entry in above().take_while(|entry| entry.index <= end) {
        let index = entry.index;
        if index.0 != applied.0.0 + 1 || entry.kind != EntryKind::Normal {
            return Err(ReplayError::Gap { replica, index: Index(applied.0.0 + 1) });
        }
        let command = Command::decode(&entry.descriptor);
        let command = command.map_err(|source| ReplayError::Entry { replica, index, source })?;
        applied = (index, entry.term);
        let Decided { outcome, changes } = decision.decide(&command);
        effects.push((
            applied,
            match changes {
                Some(changes) => Applied::Tree(decision.tree.clone(), changes),
                None => Applied::Effect(outcome.effect()),
            },
        ));
    }
    if applied.0 < end {
        return Err(ReplayError::Gap { replica, index: Index(applied.0.0 + 1) });
    }
    Ok(Replayed { commit, last, applied, effects, decision: decision.encode() })
}

/// Returns the commit index when entries count that this replica commits alone. `members`: those before the first of `entries`.
///
/// Under members with this replica as the only voter, an entry is committed once it is durable here. This ends behind a step that
/// adds a voter: later entries may need that one.
fn committed_alone<'a>(
    me: ReplicaId,
    mut members: Membership,
    entries: impl Iterator<Item = &'a Entry>,
    mut commit: Index,
) -> Index {
    for entry in entries {
        let is_alone = !members.is_joint() && members.voters.len() == 1 && members.is_voter(me);
        if entry.index > commit && !is_alone {
            break;
        }
        commit = commit.max(entry.index);
        if descriptor::is_members(&entry.descriptor)
            && let Ok(Command::Members { expected, step }) = Command::decode(&entry.descriptor)
            && let Ok(after) = members.after(expected, step)
        {
            members = after;
        }
    }
    commit
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use types::control::Attach;
    use types::map::{Member, MembersStep};
    use types::store::{DecisionState, Failure, HardState, ReplicaIdentity};
    use types::writers::Writers;
    use types::{Epoch, GenerationId, IoBuf, OsdId, PoolId, SectorRange, SessionId, VolumeChunk, VolumeId};

    const REPLICA: ReplicaId = ReplicaId(4);
    const NONE: Applied = Applied::Effect(Effect::None);

    fn entry(index: u64, command: &Command) -> Entry {
        let mut descriptor = BytesMut::new();
        command.encode(&mut descriptor);
        let (kind, payload) = (EntryKind::Normal, IoBuf::EMPTY);
        Entry {
            term: Term(1),
            index: Index(index),
            kind,
            descriptor: descriptor.freeze(),
            payload,
            crcs: Default::default(),
        }
    }

    fn attach(order: u64) -> Command {
        let (volume, session, epoch) = (VolumeId(1), SessionId(9), Epoch(1));
        Command::Attach(Box::new(Attach {
            volume,
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count: 4,
            len_epoch: 0,
            order,
            head: GenerationId::first_of(volume),
            base: None,
        }))
    }

    fn zero(seq: u64, session: u64) -> Command {
        let stamp = crate::descriptor::Stamp { session: SessionId(session), epoch: Epoch(1), seq, watermark: 0 };
        let chunk = VolumeChunk { volume: VolumeId(1), index: 0 };
        Command::Zero { chunk, range: SectorRange::new(0, 8), stamp }
    }

    fn recovered(commit: u64, commands: &[Command]) -> Recovered {
        let pg = PgId { pool: PoolId(1), n: 2 };
        let (index, term) = (Index(0), Term(0));
        Recovered {
            identity: ReplicaIdentity { pg, replica: REPLICA, conf_epoch: Epoch(1), members: Vec::new() },
            hard_state: HardState { term: Term(1), vote: None, commit: Index(commit) },
            checkpoint: DecisionState { replica: REPLICA, index, term, bytes: Bytes::new() },
            before: (index, term),
            entries: commands.iter().zip(1..).map(|(command, index)| entry(index, command)).collect(),
            lost: Vec::new(),
            failure: None,
            fills: false,
        }
    }

    #[test]
    fn entries_take_effect_up_to_the_commit_index_as_decision_state_says() {
        let found = recovered(3, &[attach(1), zero(1, 9), zero(1, 9), zero(2, 8), zero(2, 9)]);
        let committed = replay(&found, Until::Commit).expect("it is whole");
        assert_eq!((committed.commit, committed.last, committed.applied.0), (Index(3), Index(5), Index(3)));
        let takes_effect = |done: &Replayed| -> Vec<bool> { done.effects.iter().map(|(_, e)| *e != NONE).collect() };
        assert_eq!(takes_effect(&committed), [true, true, false], "a duplicate has no effect");
        let all = replay(&found, Until::End).expect("it is whole");
        assert_eq!(takes_effect(&all), [true, true, false, false, true], "a fenced write has no effect");
        assert_eq!(all.applied, (Index(5), Term(1)));
    }

    /// Returns (commit, applied) of a replica that knows its first entry to be committed. `voters`: those of the new PG.
    fn committed(voters: &[u64], commands: &[Command]) -> (u64, u64) {
        let mut found = recovered(1, commands);
        found.identity.members = voters.iter().map(|id| member(*id)).collect();
        let done = replay(&found, Until::Commit).expect("it is whole");
        (done.commit.0, done.applied.0.0)
    }

    fn member(id: u64) -> Member {
        Member { replica: ReplicaId(id), osd: OsdId(id as u32) }
    }

    fn step(expected: u64, step: MembersStep) -> Command {
        Command::Members { expected: Epoch(expected), step }
    }

    #[test]
    fn durable_entries_of_the_only_voter_are_committed() {
        let writes = [attach(1), zero(1, 9), zero(2, 9)];
        assert_eq!(committed(&[4], &writes), (3, 3));
        assert_eq!(committed(&[4, 5], &writes), (1, 1));
        assert_eq!(committed(&[5], &writes), (1, 1), "another replica is the only voter");
    }

    #[test]
    fn entries_count_alone_only_under_members_with_one_voter() {
        let grows = [
            attach(1),
            step(1, MembersStep::AddLearner(member(5))),
            zero(1, 9),
            step(2, MembersStep::Enter { add: Some(ReplicaId(5)), remove: None }),
            zero(2, 9),
        ];
        assert_eq!(committed(&[4], &grows), (4, 4), "entries behind the joint phase's begin need both voters");
        let shrinks = [
            attach(1),
            step(1, MembersStep::Enter { add: None, remove: Some(ReplicaId(5)) }),
            step(2, MembersStep::Leave),
            zero(1, 9),
            step(3, MembersStep::Done),
            zero(2, 9),
        ];
        assert_eq!(committed(&[4, 5], &shrinks[..4]), (2, 2), "the end of the joint phase needs both voters");
        assert_eq!(committed(&[4, 5], &shrinks), (6, 6), "a later step proves that end");
    }

    #[test]
    fn a_replica_that_could_not_take_part_is_refused_with_the_reason() {
        let whole = recovered(1, &[attach(1)]);
        let failure = Some(Failure { reason: "a gap".to_owned(), is_past: true });
        let failed = replay(&Recovered { failure, ..whole.clone() }, Until::Commit);
        assert!(matches!(failed, Err(ReplayError::Failed { .. })), "{failed:?}");
        let filling = replay(&Recovered { fills: true, ..whole.clone() }, Until::Commit);
        assert!(matches!(filling, Err(ReplayError::Fills { .. })), "{filling:?}");
        let short = recovered(2, &[attach(1)]);
        assert_eq!(replay(&short, Until::Commit), Err(ReplayError::Gap { replica: REPLICA, index: Index(2) }));
        let mut foreign = whole;
        foreign.entries[0].descriptor = Bytes::from_static(b"no command");
        assert!(matches!(replay(&foreign, Until::Commit), Err(ReplayError::Entry { .. })));
    }
}
