//! The example of this crate, with a cluster of processes.

use std::path::Path;
use std::process::Command;
use testkit::cluster::{Cluster, Shape};

/// Returns an example, which cargo builds with this test.
fn example(name: &str) -> Command {
    let here = std::env::current_exe().expect("a path");
    let built = here.parent().and_then(Path::parent).expect("a folder of the profile").join("examples").join(name);
    assert!(built.is_file(), "{} is missing", built.display());
    let mut command = Command::new("timeout");
    command.arg("60").arg(built);
    command
}

#[test]
fn the_example_writes_reads_and_closes_a_volume() {
    let shape = Shape { pgs: 4, device_bytes: 1 << 30, log_bytes: 64 << 20, ..Shape::default() };
    let cluster = Cluster::up(Path::new(env!("CARGO_TARGET_TMPDIR")), "client", shape).expect("a cluster");
    cluster.volume("example", 64 << 20).expect("a volume");
    let meta = cluster.basalt.metas()[0].to_string();
    for _ in 0..2 {
        // The second run finds the volume closed.
        let out = example("own_loop").args([&meta, "main/example"]).output().expect("it runs");
        let (text, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{text}{error}");
        assert_eq!(text, "main/example has 67108864 bytes\n256 blocks are written\n256 blocks are equal\n");
    }
    let out = example("own_loop").args([&meta, "main/missing"]).output().expect("it runs");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.contains("does not exist"), "{error}");
}
