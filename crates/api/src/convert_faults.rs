//! Messages of rehearsed faults.

use crate::convert::Malformed;
use crate::pb;
use control::admin::{FaultAdd, FaultView};
use types::faults::{Fault, FaultEffect, ToldFault};
use types::limits::FAULTS_MAX;

fn fault_out(fault: &Fault) -> pb::Fault {
    use pb::fault::Effect;
    let effect = match fault.effect {
        FaultEffect::Latency(ms) => Effect::LatencyMs(ms),
        FaultEffect::Error => Effect::Error(pb::Empty {}),
        FaultEffect::Pause => Effect::Pause(pb::Empty {}),
    };
    let Fault { percent, reads, writes, .. } = *fault;
    pb::Fault { effect: Some(effect), percent: percent.into(), reads, writes }
}

/// Returns the fault in a message; its bounds are the concern of the caller.
fn fault_in(fault: Option<pb::Fault>) -> Result<Fault, Malformed> {
    use pb::fault::Effect;
    let pb::Fault { effect, percent, reads, writes } = fault.ok_or(Malformed::Missing("fault"))?;
    let effect = match effect.ok_or(Malformed::Missing("effect"))? {
        Effect::LatencyMs(ms) => FaultEffect::Latency(ms),
        Effect::Error(_) => FaultEffect::Error,
        Effect::Pause(_) => FaultEffect::Pause,
    };
    let percent = u8::try_from(percent).map_err(|_| Malformed::Range("percent"))?;
    Ok(Fault { effect, percent, reads, writes })
}

/// Returns the message of the faults that a client is told.
pub(crate) fn told_out(faults: &[ToldFault]) -> Vec<pb::ToldFault> {
    let one =
        |told: &ToldFault| pb::ToldFault { id: told.id, fault: Some(fault_out(&told.fault)), left_ms: told.left_ms };
    faults.iter().map(one).collect()
}

/// Returns the faults in a message for a client. One that meta never gives out is refused: it might never end.
pub(crate) fn told_in(faults: Vec<pb::ToldFault>) -> Result<Vec<ToldFault>, Malformed> {
    if faults.len() > FAULTS_MAX {
        return Err(Malformed::Range("faults"));
    }
    let one = |told: pb::ToldFault| {
        let told = ToldFault { id: told.id, fault: fault_in(told.fault)?, left_ms: told.left_ms };
        if told.is_possible() { Ok(told) } else { Err(Malformed::Range("faults")) }
    };
    faults.into_iter().map(one).collect()
}

/// Returns the message of a fault to rehearse.
pub(crate) fn add_out(name: String, ask: &FaultAdd) -> pb::VolumeFaultAddRequest {
    pb::VolumeFaultAddRequest { name, fault: Some(fault_out(&ask.fault)), for_ms: ask.for_ms }
}

/// Returns the fault to rehearse that a message asks for, unchecked.
///
/// # Errors
/// When it names no fault.
pub fn fault_add_in(r: pb::VolumeFaultAddRequest) -> Result<(String, FaultAdd), Malformed> {
    Ok((r.name, FaultAdd { fault: fault_in(r.fault)?, for_ms: r.for_ms }))
}

pub(crate) fn view_out(v: FaultView) -> pb::FaultView {
    let FaultView { id, kind, latency_ms, percent, reads, writes, since_ms, until_ms, by } = v;
    pb::FaultView { id, kind, latency_ms, percent, reads, writes, since_ms, until_ms, by }
}

pub(crate) fn view_in(v: pb::FaultView) -> FaultView {
    let pb::FaultView { id, kind, latency_ms, percent, reads, writes, since_ms, until_ms, by } = v;
    FaultView { id, kind, latency_ms, percent, reads, writes, since_ms, until_ms, by }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_faults_come_back_and_endless_ones_are_refused() {
        let fault = |effect, percent| Fault { effect, percent, reads: true, writes: false };
        let told = |effect, percent, left_ms| ToldFault { id: 4, fault: fault(effect, percent), left_ms };
        let all = vec![
            told(FaultEffect::Latency(500), 10, 60_000),
            told(FaultEffect::Error, 100, 1),
            told(FaultEffect::Pause, 100, 86_400_000),
        ];
        assert_eq!(told_in(told_out(&all)), Ok(all.clone()));
        for wrong in [
            told(FaultEffect::Pause, 100, 86_400_001),
            told(FaultEffect::Pause, 100, 0),
            told(FaultEffect::Error, 0, 9),
        ] {
            assert!(told_in(told_out(&[wrong])).is_err(), "{wrong:?}");
        }
        assert!(told_in(told_out(&[all[0]].repeat(9))).is_err(), "too many");
        let ask = FaultAdd { fault: all[1].fault, for_ms: 7 };
        assert_eq!(fault_add_in(add_out("p/a".into(), &ask)), Ok(("p/a".to_owned(), ask)));
        assert!(fault_add_in(pb::VolumeFaultAddRequest::default()).is_err());
    }
}
