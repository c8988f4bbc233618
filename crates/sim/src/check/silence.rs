//! Never silence: beyond the budget of lies a PG may be out of reach, and then somebody says so and why.
//!
//! Comes in: how each member of a PG stands when everything had its time to settle. Goes out: the PG that is out of
//! order although nobody complains, or although a majority of its members is sound.

use types::PgId;

/// How one member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// It has a group, has applied this far, and complains of nothing.
    Sound(u64),
    /// It serves at most in part, and says why.
    Complains(String),
    /// Its process is not there, or serves nothing, and has said why.
    Down(String),
    /// Nothing is heard of it.
    Silent,
}

/// Looks at a PG; `active`: exactly one leader serves.
///
/// # Errors
/// What nobody speaks of.
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
        return complaint("has no leader, and nobody says why");
    }
    match sound.windows(2).all(|two| two[0] == two[1]) || complains {
        true => Ok(()),
        false => complaint("has members that stay behind, and nobody says why"),
    }
}

/// Requests wait for ever, as `what` says: some PG must have said why.
///
/// # Errors
/// When none has.
pub fn check_unanswered<'a>(what: &str, mut all: impl Iterator<Item = &'a Member>) -> Result<(), String> {
    match all.any(|m| matches!(m, Member::Complains(_) | Member::Down(_))) {
        true => Ok(()),
        false => Err(format!("{what}; and nobody says why")),
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
        assert!(check_unanswered("late", [sound].iter()).expect_err("it is wrong").contains("nobody says why"));
    }
}
