//! What one seed decides about a run: sizes, speeds, shapes. Each hostile value stands beside its usual one.

use crate::workload::Shape;
use engine::EngineConfig;
use std::time::Duration;
use types::rng::Rng;

/// Settings of one run.
#[derive(Clone, Debug)]
pub struct Options {
    pub osds: u32,
    pub replicas: u32,
    pub pgs: u32,
    pub device_bytes: u64,
    pub log_bytes: u64,
    pub segment_bytes: u64,
    pub engine: EngineConfig,
    pub net_delay: (Duration, Duration),
    pub drift: bool,
    pub lease_reads: bool,
    pub shape: Shape,
    /// How long faults last.
    pub faults: Duration,
    /// After the faults, everything must be answered within this time.
    pub calm: Duration,
}

impl Options {
    /// Draws all settings.
    pub fn draw(rng: &mut Rng) -> Options {
        let us = Duration::from_micros;
        let replicas = [3, 3, 3, 3, 5, 2, 1][rng.below(7) as usize];
        let slow_net = rng.chance(1, 4);
        let engine = EngineConfig {
            round_idle: Duration::from_millis(rng.between(50, 3000)),
            round_pressure: [0.5, 0.1, 0.0][rng.below(3) as usize],
            ..EngineConfig::default()
        };
        Options {
            osds: replicas.max(3),
            replicas,
            pgs: rng.between(1, 4) as u32,
            device_bytes: 192 << 20,
            log_bytes: 16 << 20,
            segment_bytes: 1 << 20,
            engine,
            net_delay: if slow_net { (us(100), us(20_000)) } else { (us(20), us(800)) },
            drift: rng.chance(1, 2),
            lease_reads: rng.chance(4, 5),
            shape: Shape {
                len_bytes: (1 << 30) + (64 << 20),
                window: [32 << 10, 128 << 10, 2 << 20][rng.below(3) as usize],
                depth: rng.between(1, 24) as usize,
                sectors_max: [1, 16, 64, 512, 2048][rng.below(5) as usize].min(64),
                read_pct: rng.between(10, 60),
                trim_pct: rng.between(0, 15),
                operations: rng.between(200, 1500),
            },
            faults: Duration::from_millis(rng.between(1000, 12_000)),
            calm: Duration::from_secs(60),
        }
    }
}
