//! Intervals, patience and limits of the metadata server's decisions.
//!
//! They belong to one process. The next leader may hold other ones, because no record rests on them. Sizes of
//! transactions, bounds of what is kept for the status, and texts of events are constants beside their code.

use std::time::Duration;
use types::config::{Check, ConfigFaults};

/// Settings of a [`crate::Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Silence after which an OSD is down. Default 6 s; above the OSDs' heartbeat interval.
    pub down_after: Duration,
    /// Time for which a new leader calls no OSD down, and for which a new PG may report. Default 10 s.
    pub grace: Duration,
    /// Interval at which missing replicas are requested again, and the number that is requested at once. Default 2 s and
    /// 256; at least 1.
    pub ensure_every: Duration,
    pub ensure_burst: usize,
    /// Interval at which the order of a change of members is repeated. Default 500 ms.
    pub orders_every: Duration,
    /// Least time between two replacements of failed replicas of one PG, doubled each time that one follows soon. Default 10 s.
    pub replace_pause: Duration,
    /// Time after which an OSD that is down is out, unless `basalt config` says another one. Default 10 min.
    pub osd_out_after: Duration,
    /// Replicas that may move to one OSD at once, unless `basalt config` says another number. Default 2; at least 1.
    pub osd_backfills: usize,
    /// Time that a removed volume stays in the trash, unless `basalt config` says another one. Default 7 days; zero: the trash is not
    /// used.
    pub trash_retention: Duration,
    /// Interval at which the trash is searched for volumes whose time is over. Default 1 s.
    pub trash_every: Duration,
    /// Time for which a new leader deletes nothing of the trash: its clock may be wrong. Default 1 h.
    pub trash_grace: Duration,
    /// Time that the answer to a resize waits for the PGs of the volume. Default 6 s.
    pub resize_patience: Duration,
    /// Time that a request for a snapshot waits until nothing else changes its volumes, and for which it is tried again. Default 2 s.
    pub cut_patience: Duration,
    /// Time within which all PGs of a cut must have their snapshots; that of a hold of a leader. Default 100 ms.
    pub cut_hold_max: Duration,
    /// Time within which all PGs must have ended their hold after that. Default 1 s.
    pub cut_release_max: Duration,
    /// Interval at which moves are planned. Default 1 s.
    pub moves_every: Duration,
    /// Time for which a move waits for an OSD that is down. Default 60 s.
    pub move_patience: Duration,
    /// Time for which an OSD is no target after a move to it was given up. Default 10 min.
    pub avoid_for: Duration,
    /// Interval at which the log position of an OSD is recorded (R17). Default 60 s.
    pub position_every: Duration,
    /// Time until the next try of a pool whose PGs cannot be placed now. Default 1 s.
    pub pools_every: Duration,
    /// Time after which an unanswered attach is sent again. Default 1 s.
    pub attach_resend: Duration,
    /// Time until the next try when no leader is known, or the leader is busy. Default 150 ms; at most `attach_resend`.
    pub attach_retry: Duration,
    /// Interval between two passes that balance leaders. Default 2 s.
    pub leaders_every: Duration,
    /// Least time that a leader has led before it is moved, and that the target OSD has been connected. Default 5 s;
    /// zero: none.
    pub leader_steady: Duration,
    /// Time within which a transfer is expected to complete. Default 3 s.
    pub transfer_comes: Duration,
    /// Time after which a PG that did not follow a transfer is asked again. Default 30 s; at least `transfer_comes`.
    pub transfer_again: Duration,
    /// Transfers in one pass: this many, or one PG of `transfers_share` if that is more. Default 4 and 32; at least 1.
    pub transfers_min: usize,
    pub transfers_share: usize,
    /// Time within which peers and clients that could not reach an OSD try again and report. Default 5 s.
    pub reach_settle: Duration,
    /// Time that a change waits for a majority of the OSDs before it is refused. Default 3 s.
    pub majority_patience: Duration,
    /// A PG without a leader that serves is not called down for this long after its leader gave up, or took over. A PG that
    /// stays without one for `grace` is down, however often its leader changes. Default 3 s; at most `grace`.
    pub election: Duration,
    /// Interval of the comparison that finds events. Default 1 s.
    pub watch_every: Duration,
    /// Least time between two events of one entity, and the most after many events. Default 1 s and 300 s.
    pub event_gap_min: Duration,
    pub event_gap_max: Duration,
    /// Time without a change after which an entity has the least gap again. Default 60 s.
    pub event_quiet: Duration,
    /// Most inputs that wait for a commit. Default 8,192; at least 1.
    pub inbox_max: usize,
    /// Most answers that wait for an attach, a pool or a removal. Default 4,096; at least 1.
    pub waits_max: usize,
    /// Most actions that wait until a majority remembers them; above it changes are refused. Default 16,384; at least 1.
    pub gate_max: usize,
}

impl Default for ControlConfig {
    fn default() -> ControlConfig {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        ControlConfig {
            down_after: s(6),
            grace: s(10),
            ensure_every: s(2),
            ensure_burst: 256,
            orders_every: ms(500),
            replace_pause: s(10),
            osd_out_after: s(600),
            osd_backfills: 2,
            trash_retention: s(7 * 86_400),
            trash_every: s(1),
            trash_grace: s(3600),
            resize_patience: s(6),
            cut_patience: s(2),
            cut_hold_max: ms(100),
            cut_release_max: s(1),
            moves_every: s(1),
            move_patience: s(60),
            avoid_for: s(600),
            position_every: s(60),
            pools_every: s(1),
            attach_resend: s(1),
            attach_retry: ms(150),
            leaders_every: s(2),
            leader_steady: s(5),
            transfer_comes: s(3),
            transfer_again: s(30),
            transfers_min: 4,
            transfers_share: 32,
            reach_settle: s(5),
            majority_patience: s(3),
            election: s(3),
            watch_every: s(1),
            event_gap_min: s(1),
            event_gap_max: s(300),
            event_quiet: s(60),
            inbox_max: 8192,
            waits_max: 4096,
            gate_max: 16_384,
        }
    }
}

impl ControlConfig {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("the metadata server");
        for (field, time) in [
            ("down_after", self.down_after),
            ("grace", self.grace),
            ("ensure_every", self.ensure_every),
            ("orders_every", self.orders_every),
            ("replace_pause", self.replace_pause),
            ("trash_every", self.trash_every),
            ("trash_grace", self.trash_grace),
            ("resize_patience", self.resize_patience),
            ("cut_patience", self.cut_patience),
            ("cut_hold_max", self.cut_hold_max),
            ("cut_release_max", self.cut_release_max),
            ("moves_every", self.moves_every),
            ("move_patience", self.move_patience),
            ("avoid_for", self.avoid_for),
            ("position_every", self.position_every),
            ("pools_every", self.pools_every),
            ("attach_resend", self.attach_resend),
            ("attach_retry", self.attach_retry),
            ("leaders_every", self.leaders_every),
            ("transfer_comes", self.transfer_comes),
            ("reach_settle", self.reach_settle),
            ("majority_patience", self.majority_patience),
            ("election", self.election),
            ("watch_every", self.watch_every),
            ("event_gap_min", self.event_gap_min),
            ("event_quiet", self.event_quiet),
        ] {
            check.within(field, time, ms(1)..=s(3600));
        }
        check.within("osd_out_after", self.osd_out_after, ms(1)..=s(30 * 86_400));
        check.within("trash_retention", self.trash_retention, Duration::ZERO..=s(3650 * 86_400));
        check.within("osd_backfills", self.osd_backfills, 1..=1 << 10);
        check.within("leader_steady", self.leader_steady, Duration::ZERO..=s(3600));
        check.within("ensure_burst", self.ensure_burst, 1..=1 << 16);
        check.within("transfers_min", self.transfers_min, 1..=1 << 16);
        check.within("transfers_share", self.transfers_share, 1..=1 << 16);
        check.within("inbox_max", self.inbox_max, 1..=1 << 20);
        check.within("waits_max", self.waits_max, 1..=1 << 20);
        check.within("gate_max", self.gate_max, 1..=1 << 20);
        check.ensure(self.attach_retry <= self.attach_resend, "attach_retry is above attach_resend");
        check.ensure(self.transfer_comes <= self.transfer_again, "transfer_comes is above transfer_again");
        check.ensure(self.election <= self.grace, "election is above grace");
        check.ensure(self.event_gap_min <= self.event_gap_max, "event_gap_min is above event_gap_max");
        check.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_names_every_fault() {
        let config = ControlConfig::default();
        config.validate().expect("the defaults agree");
        let (ms, zero) = (Duration::from_millis, Duration::ZERO);
        let cases: [(ControlConfig, &[&str]); 6] = [
            (
                ControlConfig { down_after: zero, watch_every: zero, ..config },
                &["down_after is 0ns", "watch_every is 0ns"],
            ),
            (ControlConfig { attach_resend: ms(149), ..config }, &["attach_retry is above"]),
            (ControlConfig { transfer_again: ms(2999), ..config }, &["transfer_comes is above"]),
            (ControlConfig { grace: ms(2999), ..config }, &["election is above grace"]),
            (ControlConfig { event_gap_max: ms(999), ..config }, &["event_gap_min is above"]),
            (
                ControlConfig {
                    ensure_burst: 0,
                    transfers_share: 0,
                    inbox_max: 0,
                    waits_max: 0,
                    gate_max: 0,
                    ..config
                },
                &["ensure_burst is 0", "transfers_share is 0", "inbox_max is 0", "waits_max is 0", "gate_max is 0"],
            ),
        ];
        for (wrong, wants) in cases {
            let faults = wrong.validate().expect_err(wants[0]);
            assert_eq!(faults.faults().len(), wants.len(), "{faults}");
            assert!(wants.iter().all(|want| faults.to_string().contains(want)), "{wants:?} in {faults}");
        }
    }
}
