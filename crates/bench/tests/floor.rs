//! The floor end to end, with this test binary as its own nodes: `harness = false`, so that the child's
//! arguments are ours.

use bench::floor::{FloorConfig, FloorMode, node_main, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "floor-node") {
        node_main(&args[1..]).expect("a node of the floor");
        return;
    }
    // The temporary folder may be a tmpfs, which has no O_DIRECT.
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("floor-{}", std::process::id()));
    let config = FloorConfig {
        dir: dir.clone(),
        secs: 0.6,
        modes: vec![FloorMode::Plp, FloorMode::Sync],
        depths: vec![8],
        leaders: vec![1, 3],
        log_bytes: 16 << 20,
        node_command: vec![std::env::current_exe().expect("our own path").into(), "floor-node".into()],
    };
    let rows = run(&config, |row| println!("{row:?}"));
    std::fs::remove_dir_all(&dir).expect("remove the logs");
    let rows = rows.expect("the floor runs");
    assert_eq!(rows.iter().map(|row| row.leaders).collect::<Vec<_>>(), [1, 3, 1, 3]);
    for row in &rows {
        assert!(row.writes > 0 && row.p50_us > 0.0 && row.p99_us >= row.p50_us, "{row:?}");
        assert!((row.cpu_us_per_write - row.cpu_us_by_role.iter().sum::<f64>()).abs() < 1e-9);
    }
    println!("test the_floor_answers_writes_of_one_and_three_leaders_in_both_modes ... ok");
    println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}
