//! Tunables of a client: its exchange with meta, its volumes, its connections.

use bus::BusTuning;
use std::time::Duration;
use types::config::{Check, ConfigFaults};
use volume::VolumeTuning;

/// Tunables of one client. The interval of keepalives is not among them: meta's lease of a holder rests on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTuning {
    /// Longest wait for the answer to a keepalive. Default 10 s.
    pub keepalive_patience: Duration,
    /// Pause between two attempts to tell meta that a volume is closed. Default 200 ms, at least 1 ms.
    pub parting_pause: Duration,
    /// Number of these attempts. When all fail the holder's lease expires by itself. Default 10, at least 1.
    pub parting_tries_max: u32,
    /// Least pause between two questions to meta for the addresses of OSDs that do not answer. Default 2 s.
    pub where_pause: Duration,
    /// Limits and times of each volume.
    pub volume: VolumeTuning,
    /// Limits and times of the connections.
    pub bus: BusTuning,
}

impl Default for ClientTuning {
    fn default() -> ClientTuning {
        ClientTuning {
            keepalive_patience: Duration::from_secs(10),
            parting_pause: Duration::from_millis(200),
            parting_tries_max: 10,
            where_pause: Duration::from_secs(2),
            volume: VolumeTuning::default(),
            bus: BusTuning::default(),
        }
    }
}

impl ClientTuning {
    /// Checks all fields.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(&self) -> Result<(), ConfigFaults> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let mut check = Check::new("a client");
        check.within("keepalive_patience", self.keepalive_patience, ms(1)..=s(600));
        check.within("parting_pause", self.parting_pause, ms(1)..=s(60));
        check.within("parting_tries_max", self.parting_tries_max, 1..=1000);
        check.within("where_pause", self.where_pause, ms(1)..=s(600));
        check.part("volume", self.volume.validate());
        check.part("bus", self.bus.validate());
        check.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_names_every_fault_of_its_parts() {
        let tuning = ClientTuning::default();
        tuning.validate().expect("the defaults agree");
        let zero = Duration::ZERO;
        let volume = VolumeTuning { probe: zero, ..tuning.volume };
        let bus = BusTuning { max_links: 0, ..tuning.bus };
        let cases: [(ClientTuning, &[&str]); 3] = [
            (
                ClientTuning { keepalive_patience: zero, where_pause: zero, ..tuning },
                &["keepalive_pat", "where_pause is"],
            ),
            (
                ClientTuning { parting_pause: zero, parting_tries_max: 0, ..tuning },
                &["parting_pause", "parting_tries_max"],
            ),
            (ClientTuning { volume, bus, ..tuning }, &["volume.probe is 0ns", "bus.max_links is 0"]),
        ];
        for (wrong, wants) in cases {
            let faults = wrong.validate().expect_err(wants[0]);
            assert_eq!(faults.faults().len(), wants.len(), "{faults}");
            assert!(wants.iter().all(|want| faults.to_string().contains(want)), "{wants:?} in {faults}");
        }
    }
}
