//! One replica of the engine end to end, on a small span.

use bench::replica::{CASES, ReplicaConfig, run};

#[test]
fn engine_and_raw_writes_are_measured_and_compared() {
    // The temporary folder may be a tmpfs, which has no O_DIRECT.
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replica-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let config = ReplicaConfig { dir: dir.clone(), seconds: 1, flush: true, redirect_min: None, span_bytes: 32 << 20 };
    let row = run(&config, &CASES[2]);
    std::fs::remove_dir_all(&dir).expect("remove the files");
    let row = row.expect("it runs");
    let (engine, raw) = (&row.engine, &row.raw);
    assert!(engine.writes > 0 && raw.writes > 0 && engine.p99_us >= engine.p50_us, "{row:?}");
    assert!(row.share > 0.0 && engine.device_bytes >= 1.0 && engine.flushes_per_write > 0.0, "{row:?}");
}
