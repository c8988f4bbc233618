//! Inputs that the floor refuses. It runs end to end in `tests/floor.rs`, which can be its own nodes.

use super::*;

#[test]
fn a_node_refuses_a_role_that_it_does_not_know() {
    let error = node_main(&["boss".into()]).expect_err("no such role");
    assert!(error.to_string().contains("boss"), "{error}");
    assert!(node_main(&["client".into(), "0".into(), "1".into(), "127.0.0.1:1".into()]).is_err());
    assert!(node_main(&["server".into(), "/tmp/x".into(), "maybe".into(), "true".into()]).is_err());
}

#[test]
fn a_wrong_configuration_is_refused_before_anything_is_made() {
    let good = FloorConfig {
        dir: "/nonexistent/floor".into(),
        secs: 1.0,
        modes: vec![FloorMode::Plp],
        depths: vec![1],
        leaders: vec![3],
        log_bytes: 16 << 20,
        node_command: vec!["true".into()],
    };
    for (wrong, word) in [
        (FloorConfig { secs: f64::NAN, ..good.clone() }, "secs"),
        (FloorConfig { depths: vec![1, 0], ..good.clone() }, "depth 0"),
        (FloorConfig { leaders: vec![4], ..good.clone() }, "leaders is 4"),
        (FloorConfig { log_bytes: 1, ..good.clone() }, "log_bytes"),
        (FloorConfig { node_command: vec![], ..good.clone() }, "command"),
    ] {
        let error = run(&wrong, |_| {}).expect_err("wrong").to_string();
        assert!(error.contains(word), "{error}");
    }
}
