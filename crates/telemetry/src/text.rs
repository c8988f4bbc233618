//! The two text formats of `/metrics`: OpenMetrics 1.0 and the Prometheus text format 0.0.4.
//!
//! Input: registries and an `Accept` header. Output: a page. The library encodes OpenMetrics; the older format is
//! derived from it line by line. They differ in the names in the lines `HELP` and `TYPE` (a counter's ends in `_total`
//! in the older one, an info's in `_info`). The older one also lacks the type `info`, units, and the end mark.
//!
//! Invariant: both formats name the same series with the same values.

use crate::Registry;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use std::fmt::Write;
use std::sync::PoisonError;

/// Format that a scraper understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// The format that `promtool check metrics` and `curl` get.
    Prometheus,
}

impl Format {
    /// Returns the best format that an `Accept` header names: OpenMetrics only for a scraper that requests it.
    pub fn of_accept(accept: &str) -> Format {
        let weight = |kind: &str| {
            let offers = accept.split(',').map(|offer| offer.split(';').map(str::trim));
            let mut weights = offers.filter_map(|mut offer| {
                (offer.next() == Some(kind)).then(|| {
                    let q = offer.find_map(|parameter| parameter.strip_prefix("q="));
                    q.map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0))
                })
            });
            weights.next().unwrap_or(0.0)
        };
        let open = weight("application/openmetrics-text");
        if open > 0.0 && open >= weight("text/plain") { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Returns the value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns one page of all metrics of `registries`, which declare no name twice.
pub fn render(registries: &[&Registry], format: Format) -> String {
    let mut text = String::new();
    for registry in registries {
        for refresh in registry.refresh.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            refresh();
        }
        let metrics = registry.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        encode_registry(&mut text, &metrics).expect("writing to a string does not fail");
    }
    match format {
        Format::OpenMetrics => {
            encode_eof(&mut text).expect("writing to a string does not fail");
            text
        }
        Format::Prometheus => prometheus(&text),
    }
}

/// Converts an OpenMetrics page into the older format.
fn prometheus(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    // `HELP` comes first, but only `TYPE` shows the suffix of the name.
    let mut help = None;
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), rest) => help = Some((name, rest.unwrap_or(""))),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                if let Some((of, help)) = help.take() {
                    assert_eq!(of, name, "help and type of a metric stand together");
                    writeln!(text, "# HELP {name}{suffix} {help}").expect("a string takes it");
                }
                writeln!(text, "# TYPE {name}{suffix} {kind}").expect("a string takes it");
            }
            (Some("#"), ..) => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}
