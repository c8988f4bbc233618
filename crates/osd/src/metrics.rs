//! Metrics of an OSD. `basalt explain metrics` prints these rows.

telemetry::metrics! {
    /// Counters and levels of one OSD.
    pub struct OsdMetrics("basalt_osd") {
        counter reads: "client reads answered";
        counter read_bytes: "bytes of answered client reads, unallocated ranges included";
        counter writes: "client writes acknowledged, zeroes and trims included";
        counter write_bytes: "bytes of acknowledged client writes";
        counter queries: "client requests without data that were answered: extents, fence checks, reports of unreachable leaders";
        counter refused: "client requests answered with a refusal";
        counter throttled: "client requests refused because of an I/O limit of their volume, among the refused ones";
        latency read_seconds: "from the event-loop iteration in which a read arrived to the end of the one that answered it";
        latency write_seconds: "from the event-loop iteration in which a write arrived to the end of the one that answered it";
        gauge requests: "client requests that wait for their reply";
        gauge requests_waiting: "client requests that wait for those of other volumes";
        counter turns: "iterations of the event loop";
        latency turn_seconds: "work of one iteration of the event loop, waits and kernel calls excluded";
        counter kernel_entries: "entries of the event loop into the kernel";
        counter copied_bytes: "bytes copied in memory: received blocks, log payloads that the device does not take as they lie, reads from several places";
        gauge pgs: "replicas on this OSD";
        gauge pgs_leading: "PGs led here";
        gauge pgs_quarantined: "replicas that are damaged and do not serve";
        gauge pgs_repairing: "replicas whose log is being repaired from their peers";
        gauge pgs_inconsistent: "replicas with damaged data of which no peer has a good copy";
        counter repaired_entries: "damaged log entries that were fetched from peers";
        counter repaired_replicas: "replicas whose log was repaired";
        counter blocks_mended: "bad blocks that a peer's copy has replaced";
        counter flatten_bytes: "bytes that leaders here have copied into clones from their parents";
        gauge blocks_bad: "blocks that cannot be read and wait for a peer's copy";
        counter log_batches: "log batches written";
        counter log_bytes: "bytes written to the log, headers and padding included";
        counter log_records: "records written to the log";
        counter flushes: "flushes of the device";
        counter device_read_bytes: "bytes read from the device";
        counter device_written_bytes: "bytes written to the device";
        counter destage_rounds: "completed destage rounds";
        gauge log_segments_used: "log segments in use";
        gauge log_segments: "log segments";
        gauge pace_bytes_per_second: "rate at which the log may grow, because home takes no more; 0: any";
        gauge destage_stuck: "1 while destaging makes no progress under pressure: `basalt status` says why";
        gauge full: "1 while this OSD takes no write that needs new space";
        gauge near_full: "1 while 85 % of the device space for data is used, or more";
        gauge overlay_bytes: "payload of committed writes that is not yet flushed from the log to the data area";
        gauge pending_free_bytes: "device space that waits for a checkpoint before reuse";
        gauge free_bytes: "device space that is free";
        gauge capacity_bytes: "device space for data";
        counter frames_in: "frames received";
        counter frames_out: "frames sent";
    }
}

telemetry::metrics! {
    /// Stages of the sampled operations (`types::limits::SAMPLE_EVERY`), as PGs led here and followed here pass them.
    pub struct StageMetrics("basalt_osd_stage") {
        latency write_proposal_seconds: "sampled writes: from their arrival at the leader to the engine; waits for space in log and device included";
        latency write_log_wait_seconds: "sampled writes: wait for the log batch at the leader";
        latency write_log_seconds: "sampled writes: write of the log batch at the leader, with its flush";
        latency write_follower_seconds: "sampled writes: from the leader's append to the first acknowledgement of a follower";
        latency write_majority_seconds: "sampled writes: from the end of the leader's log write until a majority has the write and it is applied";
        latency write_reply_seconds: "sampled writes: from their application at the leader to the reply";
        latency append_wait_seconds: "sampled writes at a follower: from the arrival of the append to the engine";
        latency append_log_wait_seconds: "sampled writes at a follower: wait for the log batch";
        latency append_log_seconds: "sampled writes at a follower: write of the log batch, with its flush";
        latency read_wait_seconds: "sampled reads: from their arrival until lease or majority allow them";
        latency read_data_seconds: "sampled reads: time in the engine, with reads of the device";
        latency read_reply_seconds: "sampled reads: from the data to the reply";
    }
}

telemetry::families! {
    /// Client I/O of one pool that PGs led here served. Labels: `pool` (its id).
    pub struct PoolFamilies => PoolMetrics("basalt_osd_pool") {
        counter reads: "client reads answered, by pool";
        counter read_bytes: "bytes of answered client reads, by pool";
        counter writes: "client writes acknowledged, by pool";
        counter write_bytes: "bytes of acknowledged client writes, by pool";
    }
}

telemetry::families! {
    /// Client I/O of one volume that PGs led here served. Labels: `pool` and `volume` (their ids).
    pub struct VolumeFamilies => VolumeMetrics("basalt_osd_volume") {
        counter reads: "client reads answered, by volume";
        counter read_bytes: "bytes of answered client reads, by volume";
        seconds read_seconds: "latency of answered client reads, summed, by volume";
        counter writes: "client writes acknowledged, by volume";
        counter write_bytes: "bytes of acknowledged client writes, by volume";
        seconds write_seconds: "latency of acknowledged client writes, summed, by volume";
    }
}

/// Returns every metric of an OSD, for the manual.
pub fn rows() -> impl Iterator<Item = &'static telemetry::Row> {
    let osd = OsdMetrics::ROWS.iter().chain(StageMetrics::ROWS).chain(crate::devices::rows());
    osd.chain(PoolFamilies::ROWS).chain(VolumeFamilies::ROWS)
}
