//! Bounded queues and memory (what must never happen, 7): queues and buffers of OSDs and clients stay under their
//! limits.
//!
//! The check looks from time to time, between turns, at engines, at the queues of every group, at the connections of
//! both sides, and at each client's requests. The highest fill of each goes into the summary.

use std::collections::BTreeMap;

/// Fill of a queue or buffer: its name, its amount, and its limit.
pub type Fill = (&'static str, u64, u64);

/// Returns the fill of one connection: the bytes that wait on it.
pub fn queued(bytes: usize) -> Fill {
    ("bytes that wait on a connection", bytes as u64, bus::QUEUE_BYTES_MAX as u64)
}

/// Returns the fills of an engine with a log of this length.
pub fn engine(stats: &engine::EngineStats, log_bytes: u64) -> [Fill; 3] {
    [
        ("log segments in use", stats.segments_in_use.into(), stats.segments.into()),
        // The overlay holds nothing that is not in the log.
        ("bytes in the overlay", stats.overlay_bytes, log_bytes),
        // An entry takes 64 bytes of the log at least, and has one interval for most.
        ("items to be dropped", stats.drops_waiting, log_bytes / 32),
    ]
}

/// Highest fill of each queue or buffer, in thousandths of its limit.
#[derive(Clone, Debug, Default)]
pub struct Fullest(pub BTreeMap<&'static str, u64>);

impl Fullest {
    /// Takes in some fills.
    ///
    /// # Errors
    /// A fill that is beyond its limit.
    pub fn look(&mut self, fills: impl IntoIterator<Item = Fill>) -> Result<(), String> {
        for (what, now, max) in fills {
            if now > max {
                return Err(format!("{now} {what}; at most {max}"));
            }
            let most = self.0.entry(what).or_default();
            *most = (*most).max(now * 1000 / max.max(1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_beyond_its_limit_is_named_and_the_fullest_is_kept() {
        let mut fullest = Fullest::default();
        let stats = engine::EngineStats { segments: 16, segments_in_use: 8, ..Default::default() };
        fullest.look(engine(&stats, 1 << 24)).expect("half full");
        fullest.look([queued(0)]).expect("empty");
        assert_eq!(fullest.0["log segments in use"], 500);
        let (limits, tuning) = (group::GroupLimits::default(), volume::VolumeTuning::default());
        let group = group::GroupFill::default();
        fullest.look(group.limits(&limits)).expect("empty");
        fullest.look(volume::VolumeFill::default().limits(&tuning)).expect("empty");
        for (beyond, name) in [
            (engine(&engine::EngineStats { segments_in_use: 17, ..stats }, 1 << 24).to_vec(), "segments"),
            (engine(&engine::EngineStats { overlay_bytes: (1 << 24) + 1, ..stats }, 1 << 24).to_vec(), "overlay"),
            (vec![queued(bus::QUEUE_BYTES_MAX + 1)], "connection"),
            (group::GroupFill { reads: usize::MAX, ..group }.limits(&limits).to_vec(), "reads"),
            (group::GroupFill { uncommitted: u64::MAX, ..group }.limits(&limits).to_vec(), "uncommitted"),
            (volume::VolumeFill { pg_parts: u32::MAX, ..Default::default() }.limits(&tuning).to_vec(), "one PG"),
        ] {
            assert!(fullest.look(beyond).expect_err(name).contains(name));
        }
    }
}
