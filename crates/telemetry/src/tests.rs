//! Results of a declaration, and the two formats.

use crate::{Format, Registry, render};

metrics! {
    /// For the test.
    pub struct Probe("basalt_probe") {
        counter ops: "operations";
        gauge depth: "in flight";
        latency op_seconds: "how long";
        seconds busy_seconds: "time spent";
    }
}

families! {
    /// For the test.
    pub struct ThingFamilies => ThingMetrics("basalt_thing") {
        counter reads: "reads of the thing";
    }
}

fn filled() -> Registry {
    let registry = Registry::default();
    let probe = Probe::new(&registry);
    probe.ops.inc();
    probe.depth.set(3);
    probe.busy_seconds.inc_by(0.25);
    crate::observe(&probe.op_seconds, std::time::Duration::from_micros(70));
    registry
}

#[test]
fn a_declared_metric_is_rendered_and_documented() {
    for format in [Format::OpenMetrics, Format::Prometheus] {
        let text = render(&[&filled()], format);
        assert!(text.contains("basalt_probe_ops_total 1\n"), "{text}");
        assert!(text.contains("basalt_probe_depth 3\n"), "{text}");
        assert!(text.contains("basalt_probe_busy_seconds_total 0.25\n"), "{text}");
        assert!(text.contains("basalt_probe_op_seconds_bucket{le=\"0.0001\"} 1\n"), "{text}");
    }
    let names: Vec<_> = Probe::ROWS.iter().map(|row| (row.name, row.kind)).collect();
    let busy = ("basalt_probe_busy_seconds_total", "counter");
    let seconds = ("basalt_probe_op_seconds", "histogram");
    assert_eq!(names, [("basalt_probe_ops_total", "counter"), ("basalt_probe_depth", "gauge"), seconds, busy]);
}

#[test]
fn the_older_format_names_help_and_type_as_the_series() {
    let registry = filled();
    registry.info("basalt_build", "the program", vec![("version", "1.2".to_owned())]);
    let text = render(&[&registry], Format::Prometheus);
    for line in [
        "# HELP basalt_probe_ops_total operations.",
        "# TYPE basalt_probe_ops_total counter",
        "# TYPE basalt_probe_op_seconds histogram",
        "# TYPE basalt_build_info gauge",
        "basalt_build_info{version=\"1.2\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    assert!(!text.contains("EOF"), "{text}");
    let series =
        |text: &str| -> Vec<String> { text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect() };
    assert_eq!(series(&text), series(&render(&[&registry], Format::OpenMetrics)), "the same series");
}

#[test]
fn a_page_of_two_registries_ends_once() {
    let other = Registry::with_labels(vec![("volume", "a/b".to_owned())]);
    ThingFamilies::new(&other).add(&Vec::new()).reads.inc();
    let text = render(&[&filled(), &other], Format::OpenMetrics);
    assert_eq!(text.matches("# EOF").count(), 1, "{text}");
    assert!(text.ends_with("basalt_thing_reads_total{volume=\"a/b\"} 1\n# EOF\n"), "{text}");
}

#[test]
fn series_come_and_go_with_their_labels() {
    let registry = Registry::default();
    let families = ThingFamilies::new(&registry);
    let labels = |n: u32| vec![("thing", n.to_string())];
    families.add(&labels(1)).reads.inc();
    families.add(&labels(1)).reads.inc();
    families.add(&labels(2)).reads.inc();
    families.remove(&labels(2));
    assert_eq!(ThingFamilies::ROWS[0].name, "basalt_thing_reads_total");
    let text = render(&[&registry], Format::Prometheus);
    assert!(text.contains("basalt_thing_reads_total{thing=\"1\"} 2"), "{text}");
    assert!(!text.contains("thing=\"2\""), "{text}");
}

#[test]
fn figures_are_refreshed_when_they_are_asked_for() {
    let registry = Registry::default();
    let probe = Probe::new(&registry);
    registry.on_render(move || {
        probe.depth.set(7);
    });
    assert!(render(&[&registry], Format::Prometheus).contains("basalt_probe_depth 7"));
}

#[test]
fn open_metrics_are_rendered_only_on_request() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    for (accept, format) in [
        (prometheus, Format::OpenMetrics),
        ("application/openmetrics-text; version=1.0.0", Format::OpenMetrics),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.9", Format::Prometheus),
        ("application/openmetrics-text;q=0", Format::Prometheus),
        ("text/plain;version=0.0.4", Format::Prometheus),
        ("*/*", Format::Prometheus),
        ("", Format::Prometheus),
    ] {
        assert_eq!(Format::of_accept(accept), format, "{accept}");
    }
}
