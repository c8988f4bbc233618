//! The renewal schedule of one OSD: one lease renewal per connected peer and period, one in `full_every` complete (R3).
//!
//! The loop passes in links, lease renewals and the time. It gets the renewals to send and, before it passes a
//! pre-vote to a group, whether the leader's OSD was heard. Invariant: sans-IO; one small entry per connected OSD.

use crate::{Group, Timing};
use std::collections::{BTreeMap, BTreeSet};
use types::{OsdId, PgId, Time};
use wire::{Contents, LeaseAck, LeaseRenewal};

/// State of one connected OSD.
#[derive(Debug)]
struct Pair {
    next_at: Time,
    sent: u64,
    /// Time of its last lease renewal, full or not.
    heard_at: Option<Time>,
    /// PGs that it leads by its last full lease renewal.
    named: BTreeSet<PgId>,
    /// Time of the last acknowledgement to it, and the values beside the renewals.
    acknowledged: Option<(Time, (u64, bool, u8))>,
}

/// All pairs of this OSD.
#[derive(Debug)]
pub struct Pairs {
    timing: Timing,
    pairs: BTreeMap<OsdId, Pair>,
}

impl Pairs {
    /// # Panics
    /// When the timing has a fault; the message names all.
    pub fn new(timing: Timing) -> Pairs {
        timing.validate().unwrap_or_else(|faults| panic!("{faults}"));
        Pairs { timing, pairs: BTreeMap::new() }
    }

    /// Notes that a connection came up (the first renewal on it is full, and due at once) or went down.
    pub fn handle_link(&mut self, now: Time, osd: OsdId, up: bool) {
        if up {
            self.pairs.insert(
                osd,
                Pair { next_at: now, sent: 0, heard_at: None, named: BTreeSet::new(), acknowledged: None },
            );
        } else {
            self.pairs.remove(&osd);
        }
    }

    /// Returns the peers that are due, and whether their renewal is full. The loop sends all [`Pairs::renewals`] now,
    /// also those that are empty.
    pub fn poll(&mut self, now: Time, out: &mut Vec<(OsdId, bool)>) {
        for (osd, pair) in self.pairs.iter_mut().filter(|(_, pair)| pair.next_at <= now) {
            out.push((*osd, pair.sent.is_multiple_of(u64::from(self.timing.full_every))));
            pair.sent += 1;
            // All pairs are on one grid, so that one turn serves them. Late turns are not made up for.
            let (grid, soonest) = (self.timing.renewal.as_nanos() as u64, now + self.timing.renewal / 2);
            pair.next_at = Time(soonest.0.next_multiple_of(grid));
        }
    }

    /// Makes the lease renewals for `due`, in its order, in one pass over the groups of this OSD.
    pub fn renewals<'a>(
        now: Time,
        due: &[(OsdId, bool)],
        groups: impl Iterator<Item = &'a Group>,
    ) -> Vec<LeaseRenewal> {
        let empty = |(_, full): &_| LeaseRenewal { sent_at: now.0, full: *full, spent_aus: 0, items: Vec::new() };
        let mut renewals: Vec<LeaseRenewal> = due.iter().map(empty).collect();
        for group in groups.filter(|group| group.is_leader()) {
            for ((osd, _), renewal) in due.iter().zip(&mut renewals) {
                let item = group.renewal_item_for(now, *osd).filter(|(_, active)| renewal.full || *active);
                renewal.items.extend(item.map(|(item, _)| item));
            }
        }
        renewals
    }

    /// Notes a received lease renewal. Its items then go to `Group::handle_renewal_item`, and the renewed ones into
    /// [`Pairs::ack`].
    pub fn heard(&mut self, now: Time, from: OsdId, renewal: &LeaseRenewal) {
        let Some(pair) = self.pairs.get_mut(&from) else { return };
        pair.heard_at = Some(now);
        if renewal.full {
            pair.named = renewal.items.iter().map(|item| item.pg).collect();
        }
    }

    /// Makes the acknowledgement of a lease renewal.
    pub fn ack(renewal: &LeaseRenewal, renewed: impl Iterator<Item = (PgId, Contents)>) -> LeaseAck {
        let terms: BTreeMap<PgId, types::Term> = renewal.items.iter().map(|item| (item.pg, item.term)).collect();
        let renewed = renewed.filter_map(|(pg, contents)| terms.get(&pg).map(|term| (pg, *term, contents))).collect();
        LeaseAck { sent_at: renewal.sent_at, granted_aus: 0, device_full: false, log_share_mib: 0, pace: 0, renewed }
    }

    /// Whether `ack` must be sent to `osd`. One that renews nothing tells its reader only that this OSD lives and what
    /// it may spend. That can wait for a few renewals, and an idle OSD is spared the turns.
    pub fn owes_ack(&mut self, now: Time, osd: OsdId, full: bool, ack: &LeaseAck) -> bool {
        let Some(pair) = self.pairs.get_mut(&osd) else { return true };
        let said = (ack.granted_aus, ack.device_full, ack.log_share_mib);
        let keeps =
            |(at, before): (Time, _)| before == said && now < at + self.timing.renewal * self.timing.empty_ack_every;
        let owes = full || !ack.renewed.is_empty() || !pair.acknowledged.is_some_and(keeps);
        if owes {
            pair.acknowledged = Some((now, said));
        }
        owes
    }

    /// Whether `leader` was heard within one promise and named itself leader of `pg` in its last full renewal.
    pub fn has_heard_leader(&self, now: Time, leader: OsdId, pg: PgId) -> bool {
        self.pairs.get(&leader).is_some_and(|pair| {
            pair.heard_at.is_some_and(|at| now < at + self.timing.promise) && pair.named.contains(&pg)
        })
    }

    /// Whether any OSD was heard so, as the leader of `pg`.
    pub fn has_heard_any_leader(&self, now: Time, pg: PgId) -> bool {
        self.pairs.keys().any(|osd| self.has_heard_leader(now, *osd, pg))
    }

    pub fn next_deadline(&self) -> Time {
        self.pairs.values().map(|pair| pair.next_at).min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Index, PoolId, ReplicaId, Term};
    use wire::RenewalItem;

    const PG: PgId = PgId { pool: PoolId(1), n: 7 };

    fn at_ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn renewal(full: bool, pgs: &[PgId]) -> LeaseRenewal {
        let item = |pg: &PgId| RenewalItem {
            pg: *pg,
            from: ReplicaId(1),
            to: ReplicaId(2),
            term: Term(3),
            commit: Index(0),
            complete: Index(0),
        };
        LeaseRenewal { sent_at: 5, full, spent_aus: 0, items: pgs.iter().map(item).collect() }
    }

    #[test]
    fn one_lease_renewal_a_period_and_every_twelfth_is_full() {
        let mut pairs = Pairs::new(Timing::default());
        pairs.handle_link(at_ms(0), OsdId(2), true);
        let mut fulls = Vec::new();
        for n in 0..25 {
            let mut due = Vec::new();
            assert_eq!(pairs.next_deadline(), at_ms(25 * n));
            pairs.poll(at_ms(25 * n), &mut due);
            assert_eq!(due.len(), 1);
            if due[0].1 {
                fulls.push(n);
            }
        }
        assert_eq!(fulls, [0, 12, 24]);
        pairs.handle_link(at_ms(900), OsdId(2), false);
        assert_eq!(pairs.next_deadline(), Time::NEVER);
    }

    #[test]
    fn a_late_loop_does_not_send_twice() {
        let mut pairs = Pairs::new(Timing::default());
        pairs.handle_link(at_ms(0), OsdId(2), true);
        let mut due = Vec::new();
        pairs.poll(at_ms(1000), &mut due);
        pairs.poll(at_ms(1000), &mut due);
        assert_eq!(due.len(), 1);
    }

    #[test]
    fn pairs_that_came_up_at_different_times_are_served_by_one_turn() {
        let mut pairs = Pairs::new(Timing::default());
        pairs.handle_link(at_ms(3), OsdId(2), true);
        pairs.poll(at_ms(3), &mut Vec::new());
        pairs.handle_link(at_ms(11), OsdId(3), true);
        pairs.poll(at_ms(11), &mut Vec::new());
        let mut due = Vec::new();
        pairs.poll(pairs.next_deadline(), &mut due);
        assert_eq!((due.len(), pairs.next_deadline()), (2, at_ms(50)));
    }

    #[test]
    fn lease_ack_without_news_is_sent_rarely() {
        let mut pairs = Pairs::new(Timing::default());
        pairs.handle_link(at_ms(0), OsdId(2), true);
        let empty = Pairs::ack(&renewal(false, &[]), std::iter::empty());
        let some = Pairs::ack(&renewal(false, &[PG]), [(PG, Contents::Whole)].into_iter());
        fn owed(pairs: &mut Pairs, ms: u64, full: bool, ack: &LeaseAck) -> bool {
            pairs.owes_ack(at_ms(ms), OsdId(2), full, ack)
        }
        assert!(owed(&mut pairs, 0, false, &empty), "the first word on a connection");
        assert!(!owed(&mut pairs, 25, false, &empty) && !owed(&mut pairs, 75, false, &empty));
        assert!(owed(&mut pairs, 100, false, &empty), "a sign of life");
        assert!(owed(&mut pairs, 125, true, &empty), "a full renewal is always acknowledged");
        assert!(owed(&mut pairs, 150, false, &some), "a renewal is");
        let granted = LeaseAck { granted_aus: 9, ..empty.clone() };
        assert!(owed(&mut pairs, 175, false, &granted), "a grant is");
        assert!(!owed(&mut pairs, 200, false, &granted));
        assert!(owed(&mut pairs, 225, false, &LeaseAck { device_full: true, ..granted.clone() }));
        assert!(owed(&mut pairs, 250, false, &LeaseAck { log_share_mib: 3, ..granted }));
    }

    #[test]
    fn a_leader_counts_as_heard_only_for_pgs_of_its_full_list() {
        let mut pairs = Pairs::new(Timing::default());
        pairs.handle_link(at_ms(0), OsdId(2), true);
        assert!(!pairs.has_heard_leader(at_ms(0), OsdId(2), PG));
        pairs.heard(at_ms(0), OsdId(2), &renewal(true, &[PG]));
        assert!(pairs.has_heard_leader(at_ms(149), OsdId(2), PG) && pairs.has_heard_any_leader(at_ms(149), PG));
        assert!(!pairs.has_heard_any_leader(at_ms(149), PgId { pool: PoolId(1), n: 8 }));
        assert!(!pairs.has_heard_leader(at_ms(150), OsdId(2), PG) && !pairs.has_heard_any_leader(at_ms(150), PG));
        pairs.heard(at_ms(140), OsdId(2), &renewal(false, &[]));
        assert!(pairs.has_heard_leader(at_ms(200), OsdId(2), PG), "an empty frame is a sign of life");
        pairs.heard(at_ms(210), OsdId(2), &renewal(true, &[]));
        assert!(!pairs.has_heard_leader(at_ms(211), OsdId(2), PG));
    }

    #[test]
    fn an_ack_names_what_was_renewed_with_the_leaders_term() {
        let renewal = renewal(false, &[PG]);
        let ack =
            Pairs::ack(&renewal, [PG, PgId { pool: PoolId(1), n: 8 }].into_iter().map(|pg| (pg, Contents::Whole)));
        assert_eq!((ack.sent_at, ack.renewed), (5, vec![(PG, Term(3), Contents::Whole)]));
        assert_eq!(Pairs::ack(&renewal, std::iter::empty()).renewed, []);
    }
}
