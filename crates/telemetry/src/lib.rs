//! Metrics, declared once: a declaration yields the metric, its registration and its row in the manual.
//!
//! Ring 2. Rooms keep a struct made by [`metrics!`] and count into it; the HTTP endpoint of the process
//! renders a [`Registry`]. Names are `basalt_<component>_<thing>_<unit>[_total]`.
//!
//! Invariant: counting never blocks and never allocates; labels are fixed at declaration.

use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Inner;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Only grows.
pub type Counter = prometheus_client::metrics::counter::Counter<u64, AtomicU64>;
/// Goes up and down.
pub type Gauge = prometheus_client::metrics::gauge::Gauge<i64, AtomicI64>;

/// Upper borders of latency buckets, in seconds: 20 µs to 10 s.
pub const LATENCY_BUCKETS: [f64; 18] = [
    20e-6, 50e-6, 100e-6, 200e-6, 350e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3,
    500e-3, 2.0, 10.0,
];

/// A latency histogram in seconds.
pub fn latency() -> Histogram {
    Histogram::new(LATENCY_BUCKETS)
}

/// Counts one latency.
pub fn observe(histogram: &Histogram, took: Duration) {
    histogram.observe(took.as_secs_f64());
}

/// A row of the manual page of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: &'static str,
    pub kind: &'static str,
    pub help: &'static str,
}

/// All metrics of one process; cheap to clone.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Inner>>);

impl Registry {
    /// Runs `register` on the inner registry: what [`metrics!`] calls.
    pub fn with(&self, register: impl FnOnce(&mut Inner)) {
        register(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// The Prometheus (OpenMetrics) text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let inner = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        encode(&mut text, &inner).expect("writing to a string does not fail");
        text
    }
}

/// Declares a struct of metrics. Counters get `_total` from the exposition format by themselves.
///
/// ```text
/// telemetry::metrics! {
///     /// What an OSD counts.
///     pub struct OsdMetrics("basalt_osd") {
///         counter writes: "client writes acknowledged";
///         gauge log_segments: "log segments in use";
///         latency write_seconds: "from admission to reply";
///     }
/// }
/// ```
#[macro_export]
macro_rules! metrics {
    ($(#[$doc:meta])* pub struct $name:ident($prefix:literal) { $($kind:ident $field:ident : $help:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name { $(#[doc = $help] pub $field: $crate::metrics!(@type $kind),)+ }

        impl $name {
            /// Fresh metrics, registered with `registry`.
            pub fn new(registry: &$crate::Registry) -> $name {
                let metrics = $name { $($field: $crate::metrics!(@new $kind),)+ };
                registry.with(|r| {
                    $(r.register(concat!($prefix, "_", stringify!($field)), $help, metrics.$field.clone());)+
                });
                metrics
            }

            /// The rows of the manual.
            pub const ROWS: &'static [$crate::Row] = &[
                $($crate::Row { name: concat!($prefix, "_", stringify!($field)), kind: stringify!($kind), help: $help },)+
            ];
        }
    };
    (@type counter) => { $crate::Counter };
    (@type gauge) => { $crate::Gauge };
    (@type latency) => { $crate::Histogram };
    (@new counter) => { $crate::Counter::default() };
    (@new gauge) => { $crate::Gauge::default() };
    (@new latency) => { $crate::latency() };
}

#[cfg(test)]
mod tests {
    metrics! {
        /// For the test.
        pub struct Probe("basalt_probe") {
            counter ops: "operations";
            gauge depth: "in flight";
            latency op_seconds: "how long";
        }
    }

    #[test]
    fn a_declared_metric_is_rendered_and_documented() {
        let registry = crate::Registry::default();
        let probe = Probe::new(&registry);
        probe.ops.inc();
        probe.depth.set(3);
        crate::observe(&probe.op_seconds, std::time::Duration::from_micros(70));
        let text = registry.render();
        assert!(text.contains("basalt_probe_ops_total 1"), "{text}");
        assert!(text.contains("basalt_probe_depth 3"), "{text}");
        assert!(text.contains("basalt_probe_op_seconds_bucket{le=\"0.0001\"} 1"), "{text}");
        assert_eq!(Probe::ROWS.len(), 3);
    }
}
