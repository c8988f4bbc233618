//! No silent failure: beyond the budget of lies a PG may be out of reach, and then a member must report it with a
//! reason.
//!
//! Input: the state of each member of a PG after everything had its time to settle. Output: the PG that is out of order
//! although no member complains, or although a majority of its members is sound.

use types::PgId;

/// State of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// The member has a group, has applied up to this index, and has no complaint.
    Sound(u64),
    /// The member serves at most in part, and gives the reason.
    Complains(String),
    /// The process is not there, or serves nothing, and has given the reason.
    Down(String),
    /// Nothing is heard of the member.
    Silent,
}

/// Checks a PG. `active`: exactly one leader serves.
///
/// # Errors
/// A fault of which no member speaks, or a sound majority without a leader.
pub fn check(pg: PgId, members: &[Member], active: bool) -> Result<(), String> {
    let sound: Vec<u64> =
        members.iter().filter_map(|m| if let Member::Sound(at) = m { Some(*at) } else { None }).collect();
    let complains = members.iter().any(|m| matches!(m, Member::Complains(_) | Member::Down(_)));
    let complaint = |what: &str| Err(format!("pg {pg} {what}: {members:?}"));
    if members.contains(&Member::Silent) {
        return complaint("has a member of which nothing is heard");
    }
    if !active && sound.len() > members.len() / 2 {
        return complaint("has a sound majority and no leader");
    }
    if !active && !complains {
        return complaint("has no leader, and no member says why");
    }
    match sound.windows(2).all(|two| two[0] == two[1]) || complains {
        true => Ok(()),
        false => complaint("has members that stay behind, and no member says why"),
    }
}

/// Checks that some member has given a reason when requests wait for ever, as `what` says.
///
/// # Errors
/// No member has given one.
pub fn check_unanswered<'a>(what: &str, mut all: impl Iterator<Item = &'a Member>) -> Result<(), String> {
    match all.any(|m| matches!(m, Member::Complains(_) | Member::Down(_))) {
        true => Ok(()),
        false => Err(format!("{what}; and no member says why")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PG: PgId = PgId { pool: types::PoolId(1), n: 0 };

    fn says(why: &str) -> Member {
        Member::Complains(why.to_owned())
    }

    #[test]
    fn a_pg_that_serves_or_says_why_not_is_right() {
        let sound = Member::Sound(7);
        check(PG, &[sound.clone(), sound.clone(), sound.clone()], true).expect("all is well");
        check(PG, &[sound.clone(), says("inconsistent"), Member::Down("gone".into())], false).expect("it says why");
        check(PG, &[sound.clone(), Member::Sound(3), says("inconsistent")], true).expect("the cause is known");
        check_unanswered("late", [sound, says("inconsistent")].iter()).expect("the cause is known");
    }

    #[test]
    fn silence_and_a_sound_majority_without_a_leader_are_found() {
        let sound = Member::Sound(7);
        let wrong = |members: &[Member], active| check(PG, members, active).expect_err("it is wrong");
        assert!(wrong(&[sound.clone(), Member::Silent, says("x")], false).contains("nothing is heard"));
        assert!(wrong(&[sound.clone(), sound.clone(), says("x")], false).contains("sound majority"));
        assert!(wrong(&[sound.clone(), Member::Sound(5), sound.clone()], true).contains("stay behind"));
        assert!(check_unanswered("late", [sound].iter()).expect_err("it is wrong").contains("no member says why"));
    }
}
