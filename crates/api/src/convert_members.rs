//! Members of a PG and their changes, as messages.

use crate::convert::{Malformed, log_end_in, log_end_out, need, osd, pg};
use crate::pb;
use types::limits::REPLICAS_MAX;
use types::map::{ForceMembers, Member, MemberChange, Membership};
use types::{Epoch, PgId, ReplicaId};

fn member_out(member: Member) -> pb::Member {
    pb::Member { replica: member.replica.0, osd: member.osd.0 }
}

fn member_in(member: pb::Member) -> Result<Member, Malformed> {
    let replica = Some(member.replica).filter(|id| *id != 0).ok_or(Malformed::Range("replica"))?;
    Ok(Member { replica: ReplicaId(replica), osd: osd(member.osd, "osd")? })
}

fn members_in(members: Vec<pb::Member>) -> Result<Vec<Member>, Malformed> {
    if members.len() > REPLICAS_MAX {
        return Err(Malformed::Range("members"));
    }
    let members = members.into_iter().map(member_in).collect::<Result<Vec<Member>, Malformed>>()?;
    let twice = |(n, m): (usize, &Member)| members[..n].iter().any(|o| o.replica == m.replica || o.osd == m.osd);
    if members.iter().enumerate().any(twice) {
        return Err(Malformed::Range("members"));
    }
    Ok(members)
}

pub(crate) fn membership_out(members: Membership) -> pb::Membership {
    let out = |members: Vec<Member>| members.into_iter().map(member_out).collect();
    pb::Membership {
        epoch: members.epoch.0,
        base: members.base.0,
        voters: out(members.voters),
        outgoing: out(members.outgoing),
        learners: out(members.learners),
        left: members.left,
        floor: members.floor.0,
    }
}

pub(crate) fn membership_in(members: pb::Membership) -> Result<Membership, Malformed> {
    Ok(Membership {
        epoch: Epoch(members.epoch),
        base: Epoch(members.base),
        voters: members_in(members.voters)?,
        outgoing: members_in(members.outgoing)?,
        learners: members_in(members.learners)?,
        left: members.left,
        floor: ReplicaId(members.floor),
    })
}

pub(crate) fn change_out(of: PgId, change: MemberChange) -> pb::ChangeMembers {
    pb::ChangeMembers {
        pg: Some(of.into()),
        expected: change.expected.0,
        add: change.add.map(member_out),
        remove: change.remove.map(|id| id.0),
        cancel: change.cancel,
    }
}

pub(crate) fn change_in(change: pb::ChangeMembers) -> Result<(PgId, MemberChange), Malformed> {
    let add = change.add.map(member_in).transpose()?;
    let (expected, remove) = (Epoch(change.expected), change.remove.map(ReplicaId));
    Ok((pg(change.pg)?, MemberChange { expected, add, remove, cancel: change.cancel }))
}

pub(crate) fn force_out(of: PgId, force: ForceMembers) -> pb::ForceMembers {
    let ForceMembers { keep, floor, fence, epoch, end } = force;
    let (pg, keep, end) = (Some(of.into()), Some(member_out(keep)), Some(log_end_out(end)));
    pb::ForceMembers { pg, keep, floor: floor.0, fence, epoch: epoch.0, end }
}

pub(crate) fn force_in(force: pb::ForceMembers) -> Result<(PgId, ForceMembers), Malformed> {
    let floor = Some(force.floor).filter(|id| *id != 0).ok_or(Malformed::Range("floor"))?;
    let (keep, floor) = (member_in(need(force.keep, "keep")?)?, ReplicaId(floor));
    let end = log_end_in(need(force.end, "end")?);
    Ok((pg(force.pg)?, ForceMembers { keep, floor, fence: force.fence, epoch: Epoch(force.epoch), end }))
}
