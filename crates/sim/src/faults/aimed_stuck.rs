//! Schedules aimed at isolation (§7.6): most replicas of one PG fail, and it has no quorum for seconds, while the other PGs on the same
//! OSDs are whole. Then an administrator lets the PG go on by force.

use super::Strike;
use super::aimed_forced::{COMMANDS, command, draw};
use std::time::Duration;

/// Time without a quorum: longer than a request beside the PG may wait.
const STUCK: Duration = Duration::from_secs(5);
const _: () = assert!(STUCK.as_millis() > 2 * crate::check::isolation::WAIT_MAX.as_millis());

/// Strikes once in a run: a PG that gets its members back is not whole for a while.
pub fn strike(s: &mut Strike<'_>) -> bool {
    if s.cluster.observers.isolation.borrow().has_struck() {
        return false;
    }
    let Some((pg, _, lost)) = draw(s) else { return false };
    for osd in lost {
        let Some(replica) = s.cluster.fail_replica(osd, pg) else { continue };
        s.after(Duration::from_secs(1), move |s| s.cluster.note_failed(replica));
    }
    let since = s.cluster.world.now();
    s.cluster.observers.isolation.borrow_mut().note(pg, since, since + STUCK);
    s.after(STUCK, move |s| command(s, pg, COMMANDS));
    true
}
