//! Schedules aimed at I/O limits: an administrator limits the volume, changes the limit, and the leaders of its PGs change all the time.

use super::Strike;
use crate::workload::VOLUME;
use control::admin::{AdminAsk, VolumeText};
use std::time::Duration;
use types::LimitKind;
use types::qos::{QosBase, QosChange, RateChange};

/// Time for which a limit stays: long enough that the average shows.
const STAYS: Duration = Duration::from_secs(10);

/// Sets another limit when the last one has stood for its time; otherwise a leadership moves.
pub fn strike(s: &mut Strike<'_>) -> bool {
    let (now, set_at) = (s.cluster.world.now(), s.cluster.observers.limits.borrow().set_at());
    if set_at.is_some_and(|at| now < at + STAYS) {
        s.cluster.transfer(s.rng);
        return true;
    }
    let rate = [60, 120, 240][s.rng.below(3) as usize];
    let change = RateChange { rate: Some(rate), ..RateChange::default() };
    let limits = QosChange { base: QosBase::Kept, rates: vec![(LimitKind::Iops, change)] };
    let text = VolumeText { limits, ..VolumeText::default() };
    s.cluster.admin(AdminAsk::VolumeSet { name: VOLUME.to_owned(), text });
    s.cluster.observers.limits.borrow_mut().note(now, rate);
    true
}
