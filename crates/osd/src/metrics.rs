//! What an OSD counts. `basalt explain metrics` prints these rows.

telemetry::metrics! {
    /// Counters and levels of one OSD.
    pub struct OsdMetrics("basalt_osd") {
        counter reads: "client reads answered";
        counter read_bytes: "bytes of client reads";
        counter writes: "client writes acknowledged, zeroes and trims included";
        counter write_bytes: "bytes of acknowledged client writes";
        counter refused: "client requests answered with a refusal";
        latency read_seconds: "from a read's arrival to its reply";
        latency write_seconds: "from a write's arrival to its reply";
        counter turns: "turns of the loop";
        gauge pgs: "replicas on this OSD";
        gauge pgs_leading: "PGs led here";
        gauge pgs_quarantined: "replicas that are damaged and do not serve";
        gauge pgs_repairing: "replicas whose log is being repaired from their peers";
        gauge pgs_inconsistent: "replicas with contents of which no peer has a good copy";
        counter repaired_entries: "damaged log entries that peers brought back";
        counter repaired_replicas: "replicas whose log was repaired";
        counter blocks_mended: "bad blocks that a peer's copy has replaced";
        gauge blocks_bad: "blocks that cannot be read and wait for a peer's copy";
        counter log_batches: "log batches written";
        counter log_bytes: "bytes written to the log, headers and padding included";
        counter log_records: "records written to the log";
        counter flushes: "flushes of the device";
        counter device_read_bytes: "bytes read from the device";
        counter device_written_bytes: "bytes written to the device";
        counter destage_rounds: "destage rounds that became current";
        gauge log_segments_used: "log segments in use";
        gauge log_segments: "log segments";
        gauge overlay_bytes: "payload that is applied and not yet at home";
        gauge limbo_bytes: "device space that waits for a checkpoint before reuse";
        gauge free_bytes: "device space that is free";
        gauge capacity_bytes: "device space for data";
        counter frames_in: "frames received";
        counter frames_out: "frames sent";
    }
}
