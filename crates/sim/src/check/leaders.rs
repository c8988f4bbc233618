//! Laws of the election of metadata servers, seen from the store.
//!
//! At any moment the transactions of at most one server take effect. The revision of the records only rises. A server tells
//! nothing that is not committed, and plans nothing after another server was elected. The elected server knows all that is
//! committed.

use types::Time;

/// A process of a metadata server: its number and its life.
pub type Process = (usize, u32);

struct Election {
    fence: i64,
    by: Process,
    at: Time,
}

/// Elections and commits so far.
#[derive(Default)]
pub struct Leaders {
    elections: Vec<Election>,
    /// Revision of the committed records.
    revision: u64,
    commits: u64,
    pub failure: Option<String>,
}

impl Leaders {
    /// Notes that a process has created the election key.
    pub fn elected(&mut self, fence: i64, by: Process, at: Time) {
        self.elections.push(Election { fence, by, at });
    }

    /// Returns the process that has created the election key at this revision.
    pub fn winner(&self, fence: i64) -> Option<Process> {
        self.elections.iter().rev().find(|e| e.fence == fence).map(|e| e.by)
    }

    /// Returns how many elections were won, and how many transactions took effect.
    pub fn counts(&self) -> (u64, u64) {
        (self.elections.len() as u64, self.commits)
    }

    /// Returns the revision of the committed records.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Notes that the records were replaced.
    pub fn replaced(&mut self, revision: u64) {
        self.revision = revision;
    }

    /// Takes a transaction of a process that has just taken effect; `fence`: the present election, `revision`: of the records.
    pub fn committed(&mut self, by: Process, fence: Option<i64>, revision: u64) {
        self.commits += 1;
        if fence.and_then(|fence| self.winner(fence)) != Some(by) {
            self.fail(format!("a transaction of meta {by:?} took effect, which was not elected"));
        }
        if revision < self.revision {
            self.fail(format!("the records went from revision {} to {revision}", self.revision));
        }
        self.revision = revision;
    }

    /// Takes a message of a process to an OSD or a client; `planned`: when the process decided on it, `revision`: of the records
    /// that it rests on.
    pub fn told(&mut self, by: Process, fence: i64, planned: Time, revision: u64) {
        if revision > self.revision {
            self.fail(format!("meta {by:?} has told of revision {revision}, and {} is committed", self.revision));
        }
        let later = self.elections.iter().find(|e| e.fence > fence && e.at <= planned);
        if let Some(Election { by: other, at, .. }) = later {
            self.fail(format!("meta {by:?} has told what it planned at {planned:?}; {other:?} was elected at {at:?}"));
        }
    }

    /// Looks at the records in memory of the process that is elected, while no transaction of it is under way.
    pub fn knows(&mut self, by: Process, revision: u64) {
        if revision != self.revision {
            let committed = self.revision;
            self.fail(format!(
                "meta {by:?} is elected with revision {revision} in memory, and {committed} is committed"
            ));
        }
    }

    fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Leaders {
        let mut leaders = Leaders::default();
        leaders.elected(3, (0, 1), Time(10));
        leaders.committed((0, 1), Some(3), 5);
        leaders.elected(7, (1, 1), Time(20));
        assert_eq!(leaders.failure, None);
        leaders
    }

    #[test]
    fn each_law_finds_what_breaks_it_and_nothing_else() {
        let check = |law: &str, act: &dyn Fn(&mut Leaders)| {
            let mut leaders = two();
            act(&mut leaders);
            let found = leaders.failure.unwrap_or_default();
            assert!(if law.is_empty() { found.is_empty() } else { found.contains(law) }, "{law:?}: {found:?}");
        };
        check("was not elected", &|l| l.committed((0, 1), Some(7), 6));
        check("was not elected", &|l| l.committed((1, 1), None, 6));
        check("was not elected", &|l| l.committed((1, 2), Some(7), 6));
        check("went from revision 5 to 4", &|l| l.committed((1, 1), Some(7), 4));
        check("", &|l| l.committed((1, 1), Some(7), 6));
        check("told of revision 6", &|l| l.told((1, 1), 7, Time(30), 6));
        check("was elected at", &|l| l.told((0, 1), 3, Time(20), 5));
        check("", &|l| l.told((0, 1), 3, Time(19), 5));
        check("", &|l| l.told((1, 1), 7, Time(30), 5));
        check("in memory", &|l| l.knows((1, 1), 4));
        check("", &|l| l.knows((1, 1), 5));
    }
}
