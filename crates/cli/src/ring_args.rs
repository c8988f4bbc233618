//! The flag of processes whose event loop may poll before it sleeps.

use clap::Args;
use env::real::RealConfig;
use std::time::Duration;

#[derive(Args, Debug, Clone, Copy)]
pub struct RingArgs {
    /// Poll for completions for up to so many microseconds before each sleep, while they come that fast: shorter latency, at
    /// the price of a core; 0: never
    #[arg(long = "busy-poll", value_name = "MICROSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    busy_poll_us: u64,
}

impl RingArgs {
    pub fn config(self) -> RealConfig {
        RealConfig { busy_poll: Duration::from_micros(self.busy_poll_us), ..RealConfig::default() }
    }
}
