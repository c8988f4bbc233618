//! Metrics, declared once: a declaration yields the metric, its registration and its row in the manual. [`ops`] records
//! the stations of sampled writes.
//!
//! Ring 2. Crates keep a struct made by [`metrics!`] and count into it. The HTTP endpoint of the process renders its
//! [`Registry`]s in the format that the client accepts ([`render`]). Names are
//! `basalt_<component>_<thing>_<unit>[_total]`.
//!
//! Invariant: counting never blocks and never allocates. Series with labels are made by [`families!`]; their creator
//! bounds their number.

pub mod ops;
mod text;

pub use text::{Format, render};

use prometheus_client::metrics::family::Family as AnyFamily;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry as Inner;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A counter of events.
pub type Counter = prometheus_client::metrics::counter::Counter<u64, AtomicU64>;
/// A value that goes up and down.
pub type Gauge = prometheus_client::metrics::gauge::Gauge<i64, AtomicI64>;

/// A counter of seconds.
pub type Seconds = prometheus_client::metrics::counter::Counter<f64, AtomicU64>;
/// Label names and values of one series.
pub type Labels = Vec<(&'static str, String)>;
/// The series of one metric, one for each set of labels.
pub type Family<M> = AnyFamily<Labels, M>;

/// Upper bounds of latency buckets, in seconds: 20 µs to 10 s.
pub const LATENCY_BUCKETS: [f64; 18] = [
    20e-6, 50e-6, 100e-6, 200e-6, 350e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3,
    500e-3, 2.0, 10.0,
];

/// Returns a latency histogram in seconds.
pub fn latency() -> Histogram {
    Histogram::new(LATENCY_BUCKETS)
}

/// Counts one latency.
pub fn observe(histogram: &Histogram, took: Duration) {
    histogram.observe(took.as_secs_f64());
}

/// A row of the manual page of metrics. The name is the one that a query uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    pub help: &'static str,
}

type Refresh = Box<dyn Fn() + Send + Sync>;

/// All metrics of one process; cheap to clone.
#[derive(Clone, Default)]
pub struct Registry {
    metrics: Arc<Mutex<Inner>>,
    refresh: Arc<Mutex<Vec<Refresh>>>,
}

impl Registry {
    /// Returns a registry whose metrics all carry these labels.
    pub fn with_labels(labels: Labels) -> Registry {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        let metrics = Arc::new(Mutex::new(Inner::with_labels(labels)));
        Registry { metrics, refresh: Arc::default() }
    }

    /// Runs `register` on the inner registry; called by [`metrics!`].
    pub fn with(&self, register: impl FnOnce(&mut Inner)) {
        register(&mut self.metrics.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Adds the metric `NAME_info`, which is always 1 and carries its information in labels.
    pub fn info(&self, name: &'static str, help: &'static str, labels: Labels) {
        self.with(|r| r.register(name, help, Info::new(labels)));
    }

    /// Calls `refresh` before each rendering, for figures that are read at a scrape.
    pub fn on_render(&self, refresh: impl Fn() + Send + Sync + 'static) {
        self.refresh.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Box::new(refresh));
    }
}

/// Declares a struct of metrics. The exposition format adds `_total` to the names of counters.
///
/// ```text
/// telemetry::metrics! {
///     /// What an OSD counts.
///     pub struct OsdMetrics("basalt_osd") {
///         counter writes: "client writes acknowledged";
///         gauge log_segments: "log segments in use";
///         latency write_seconds: "from admission to reply";
///         seconds busy_seconds: "time that the loop was busy";
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
                $($crate::Row {
                    name: $crate::metrics!(@name $kind, concat!($prefix, "_", stringify!($field))),
                    kind: $crate::metrics!(@kind $kind),
                    help: $help,
                },)+
            ];
        }
    };
    (@type counter) => { $crate::Counter };
    (@type gauge) => { $crate::Gauge };
    (@type latency) => { $crate::Histogram };
    (@type seconds) => { $crate::Seconds };
    (@new counter) => { $crate::Counter::default() };
    (@new gauge) => { $crate::Gauge::default() };
    (@new latency) => { $crate::latency() };
    (@new seconds) => { $crate::Seconds::default() };
    (@name counter, $name:expr) => { concat!($name, "_total") };
    (@name seconds, $name:expr) => { concat!($name, "_total") };
    (@name gauge, $name:expr) => { $name };
    (@name latency, $name:expr) => { $name };
    (@kind counter) => { "counter" };
    (@kind seconds) => { "counter" };
    (@kind gauge) => { "gauge" };
    (@kind latency) => { "histogram" };
}

/// Declares metrics with labels: a struct of families, and a struct of the series of one set of labels, which are
/// counted into without a look-up.
///
/// ```text
/// telemetry::families! {
///     /// One series for each volume.
///     pub struct VolumeFamilies => VolumeMetrics("basalt_osd_volume") {
///         counter reads: "client reads of the volume";
///     }
/// }
/// ```
#[macro_export]
macro_rules! families {
    ($(#[$doc:meta])* pub struct $families:ident => $one:ident($prefix:literal) {
        $($kind:ident $field:ident : $help:literal;)+
    }) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $families { $($field: $crate::Family<$crate::metrics!(@type $kind)>,)+ }

        /// The series of one set of labels.
        #[derive(Clone)]
        pub struct $one { $(#[doc = $help] pub $field: $crate::metrics!(@type $kind),)+ }

        impl $families {
            /// Families without series, registered with `registry`.
            pub fn new(registry: &$crate::Registry) -> $families {
                let families = $families { $($field: $crate::Family::default(),)+ };
                registry.with(|r| {
                    $(r.register(concat!($prefix, "_", stringify!($field)), $help, families.$field.clone());)+
                });
                families
            }

            /// The series with these labels; they are made if they are not there.
            pub fn add(&self, labels: &$crate::Labels) -> $one {
                $one { $($field: self.$field.get_or_create_owned(labels),)+ }
            }

            /// Drops the series with these labels.
            pub fn remove(&self, labels: &$crate::Labels) {
                $(self.$field.remove(labels);)+
            }

            /// The rows of the manual.
            pub const ROWS: &'static [$crate::Row] = &[
                $($crate::Row {
                    name: $crate::metrics!(@name $kind, concat!($prefix, "_", stringify!($field))),
                    kind: $crate::metrics!(@kind $kind),
                    help: $help,
                },)+
            ];
        }
    };
}

#[cfg(test)]
mod tests;
