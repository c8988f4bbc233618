//! `bench --trace` and the pages `/ops`, with real processes.

use crate::dev::Dev;
use crate::metrics::get;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// The cluster of this test.
const TRACED: &str = "clitrace";
/// Longest time until a write with a sampled number is among those of a run, on a busy machine.
const SAMPLED_MAX: Duration = Duration::from_secs(120);

/// Returns the sum of the rows of a table.
fn sum(rows: &Value) -> u64 {
    rows.as_array().expect("rows").iter().map(|row| row["us"].as_u64().expect("whole microseconds")).sum()
}

/// Returns the sampled writes that a process serves.
fn ops(addr: SocketAddr) -> Vec<Value> {
    let (_, body) = get(addr, "/ops", "*/*").unwrap_or_else(|e| panic!("{addr}: {e}"));
    let page: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{addr}: {e}: {body}"));
    assert_eq!((&page["schema"], &page["sample_every"]), (&"basalt.ops/1".into(), &128.into()), "{page}");
    page["ops"].as_array().expect("writes").clone()
}

#[test]
fn a_traced_write_has_a_table_whose_rows_add_up() {
    let dev = Dev::up_as(TRACED, &["--device-size", "1GiB"]);
    assert_eq!(dev.run(&["volume", "create", "main/traced", "64MiB"]).code, 0);
    dev.run(&["bench", "main/traced", "--trace"]).says_usage("BSLT-1001", "--op randwrite");
    let bench = ["bench", "main/traced", "--op", "randwrite", "--overwrite", "--trace", "--seconds", "5"];
    let vars = [("BASALT_CLUSTER", TRACED), ("BASALT_LOG", "off,basalt::op=trace")];
    let (mut trace, mut log) = (Value::Null, String::new());
    dev.wait_for("a sampled write", SAMPLED_MAX, || {
        let ran = dev.run_env(&vars, &[&bench[..], &["--json"]].concat());
        let told: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
        (trace, log) = (told["trace"].clone(), ran.err);
        trace.is_object()
    });
    assert_eq!(sum(&trace["rows"]), trace["total_us"].as_u64().expect("a total"), "{trace}");
    assert_eq!(sum(&trace["follower_rows"]), trace["acknowledged_us"].as_u64().expect("a sum"), "{trace}");
    assert!(trace["total_us"].as_u64() > Some(0) && trace["acknowledged_us"].as_u64() > Some(0), "{trace}");
    assert_eq!(trace["rows"].as_array().map(Vec::len), Some(8), "{trace}");
    let op = format!("{}.{}", trace["epoch"], trace["seq"]);
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let fields = events.filter(|event| event["target"] == "basalt::op").map(|event| event["fields"].clone());
    let stations: Vec<Value> = fields.filter(|f| f["op"] == op.as_str()).map(|f| f["station"].clone()).collect();
    assert_eq!(stations, ["submitted", "sent", "answered", "completed"], "{log}");
    let osds = dev.json(&["osd", "ls"]);
    let has_it = |osd: &Value| {
        let addr = osd["http"].as_str().and_then(|addr| addr.parse().ok()).expect("an address");
        ops(addr).iter().any(|op| op["pg"] == trace["pg"] && op["seq"] == trace["seq"] && op["epoch"] == trace["epoch"])
    };
    assert!(osds["osds"].as_array().expect("OSDs").iter().filter(|osd| has_it(osd)).count() >= 2, "{trace}");
    dev.wait_for("a table", SAMPLED_MAX, || {
        let table = dev.run(&bench).out;
        ["STEP", "network, both ways", "osd.", "first acknowledgement", "total"].iter().all(|word| table.contains(word))
    });
    an_export_serves_its_sampled_writes(&dev);
    its_requests_are_explained(&dev);
}

/// The hops of the volume's writes and reads, while a load runs.
fn its_requests_are_explained(dev: &Dev) {
    dev.run(&["explain", "volume"]).says_usage("BSLT-1001", "basalt explain volume POOL/VOLUME");
    dev.run(&["explain", "2020", "main/traced"]).says_usage("BSLT-1001", "--help");
    dev.run(&["explain", "volume", "main/absent", "--for", "0s"]).says("BSLT-2011", "volume ls");
    let idle = dev.run(&["explain", "volume", "main/traced", "--for", "1s"]);
    assert!(idle.code == 0 && idle.out.contains("nothing to explain"), "{idle:?}");
    let mut load = dev.spawn(&["bench", "main/traced", "--op", "randrw", "--overwrite", "--seconds", "120"]);
    let mut told = Value::Null;
    let enough = |side: &Value| side["sampled"].as_u64() >= Some(8);
    dev.wait_for("sampled writes and reads", SAMPLED_MAX, || {
        told = dev.json(&["explain", "volume", "main/traced", "--for", "5s"]);
        enough(&told["writes"]) && enough(&told["reads"])
    });
    let table = dev.run(&["explain", "volume", "main/traced", "--for", "3s"]);
    load.kill().expect("it runs");
    let _ = load.wait();
    for (side, steps) in [("writes", ["proposal", "reply"]), ("reads", ["read_wait", "read_data"])] {
        let side = &told[side];
        let shares = side["hops"].as_array().expect("hops").iter().map(|hop| hop["share"].as_f64().expect("a share"));
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-6, "{side}");
        let named: Vec<&str> =
            side["steps"].as_array().expect("steps").iter().filter_map(|s| s["step"].as_str()).collect();
        assert!(steps.iter().all(|step| named.contains(step)), "{side}");
        assert_eq!(side["slowest"]["hop"], side["hops"][0], "{side}");
        assert!(side["p50_us"].as_u64() > Some(0) && side["p99_us"].as_u64() >= side["p50_us"].as_u64(), "{side}");
    }
    assert!(["STEP OF A WRITE", "HOP", "osd."].iter().all(|word| table.out.contains(word)), "{table:?}");
}

fn an_export_serves_its_sampled_writes(dev: &Dev) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let socket = dev.file("trace.sock");
    let mut export = dev.spawn(&["nbd", "main/traced", "--socket", &socket, "--http", &free.to_string()]);
    dev.wait("the export's page", || get(free, "/ops", "*/*").is_ok());
    assert_eq!(ops(free), Vec::<Value>::new(), "nothing was written here");
    export.kill().expect("it runs");
    let _ = export.wait();
}
