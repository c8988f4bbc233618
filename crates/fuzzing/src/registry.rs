//! The one list of targets: name → function over bytes.
//!
//! The driver, libFuzzer and the tests find a target by name. Invariant: every decoder of the project is in the list.

use crate::{
    Verdict, admin, backups, canary, client_peer, home, log, mount, nbd_door, osd_peer, raft_peers, store, store_model,
    text, volume_peer, wire_frame,
};
use types::rng::Rng;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub what: &'static str,
    pub run: fn(&[u8]) -> Verdict,
    /// Function that returns a sound input, made by the encoders.
    pub seed: fn(&mut Rng) -> Vec<u8>,
    /// Function that corrects the checksums and lengths of a damaged input, so that the input passes those checks.
    pub fix: fn(&mut Vec<u8>),
    pub len_max: usize,
    /// Number of runs in CI: it takes some seconds, and the inputs are the same on every machine.
    pub ci_runs: u64,
    /// True for a target that must fail.
    pub is_canary: bool,
}

/// CI runs of a target that builds a world for each input.
const CI_RUNS: u64 = 5_000;
/// CI runs of a target that only decodes.
const CI_RUNS_OF_DECODERS: u64 = 300_000;

fn as_it_is(_: &mut Vec<u8>) {}

/// Returns random bytes, for targets that read choices out of them.
fn choices(rng: &mut Rng) -> Vec<u8> {
    let len = rng.between(16, 600);
    // Repeated choices reach deeper states than uniform noise.
    let mut out = Vec::new();
    while out.len() < len as usize {
        let byte = rng.next_u64() as u8;
        let count = if rng.chance(1, 4) { rng.between(1, 12) } else { 1 };
        out.extend(std::iter::repeat_n(byte, count as usize));
    }
    out
}

const fn target(name: &'static str, what: &'static str, run: fn(&[u8]) -> Verdict) -> Target {
    Target { name, what, run, seed: choices, fix: as_it_is, len_max: 1 << 10, ci_runs: CI_RUNS, is_canary: false }
}

const fn decoder(target: Target, seed: fn(&mut Rng) -> Vec<u8>, fix: fn(&mut Vec<u8>), len_max: usize) -> Target {
    Target { seed, fix, len_max, ci_runs: CI_RUNS_OF_DECODERS, ..target }
}

const fn canary(name: &'static str, what: &'static str, run: fn(&[u8]) -> Verdict) -> Target {
    let plain = decoder(target(name, what, run), canary::seed, canary::fix, 64);
    Target { is_canary: true, ..plain }
}

/// Returns the target with this number of CI runs.
const fn counted(ci_runs: u64, target: Target) -> Target {
    Target { ci_runs, ..target }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    decoder(
        target("wire_frame", "hello, refusal and batch frames of the data plane", wire_frame::run),
        wire_frame::seed,
        wire_frame::fix,
        64 << 10,
    ),
    decoder(target("log_batch", "header and records of a log batch", log::run), log::seed, log::fix, 16 << 10),
    counted(
        3_000,
        decoder(
            target("log_mount", "a whole device: scan, replay, checkpoint, groups", mount::run),
            mount::seed,
            as_it_is,
            1 << 10,
        ),
    ),
    decoder(
        target("superblock", "the superblock", home::superblock),
        home::superblock_seed,
        home::superblock_fix,
        4096,
    ),
    decoder(target("poison", "the mark of a poisoned store", home::poison), home::poison_seed, home::poison_fix, 4096),
    decoder(target("home_page", "map, directory and CRC pages", home::page), home::page_seed, as_it_is, 4097),
    decoder(
        target("checkpoint", "checkpoint records", home::checkpoint),
        home::checkpoint_seed,
        home::checkpoint_fix,
        16 << 10,
    ),
    decoder(
        target("dissolved", "the list of dissolved generations", home::dissolved),
        home::dissolved_seed,
        as_it_is,
        512,
    ),
    decoder(target("decision", "decision state", store::decision), store::decision_seed, as_it_is, 4096),
    decoder(target("tree", "the tree of a decision state", store::tree), store::tree_seed, as_it_is, 256),
    decoder(target("descriptor", "descriptors of entries", store::descriptor), store::descriptor_seed, as_it_is, 64),
    decoder(target("records", "records of the metadata store", store::records), store::records_seed, as_it_is, 8192),
    counted(40_000, decoder(target("admin", "gRPC inputs: convert and plan", admin::run), admin::seed, as_it_is, 4096)),
    decoder(
        target("backup_stream", "streams of backups", backups::stream),
        backups::stream_seed,
        |data| backups::stream_fix(data),
        16 << 10,
    ),
    counted(
        40_000,
        decoder(
            target("backup_object", "pieces, indexes and records of backups", backups::object),
            backups::object_seed,
            backups::object_fix,
            16 << 10,
        ),
    ),
    decoder(
        target("nbd_handshake", "NBD negotiation, in pieces of any size", nbd_door::handshake),
        nbd_door::handshake_seed,
        as_it_is,
        4096,
    ),
    decoder(
        target("nbd_door", "an NBD client's whole life on a device", nbd_door::door),
        nbd_door::door_seed,
        as_it_is,
        8192,
    ),
    decoder(target("text", "sizes, names, ids, addresses that users type", text::run), text::seed, as_it_is, 200),
    counted(300_000, target("raft_start", "what a disk gave back, before raft is built on it", raft_peers::start)),
    counted(15_000, target("raft_peer", "peers' messages to a group that votes, follows and leads", raft_peers::peer)),
    target("osd_peer", "a running OSD among peers, clients and a meta that lie, on a failing device", osd_peer::run),
    target("volume_peer", "what OSDs and meta say to the client side of a volume", volume_peer::run),
    target("client_peer", "frames and meta's protobuf to a running client", client_peer::run),
    counted(1_000, target("engine", "the engine against a model, on a failing disk", store_model::run)),
    canary("canary_panic", "panics", canary::panics),
    canary("canary_memory", "believes a length", canary::allocates),
    canary("canary_stack", "recurses as deep as it is told", canary::recurses),
    canary("canary_hang", "does not end", canary::hangs),
];

/// Returns the target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}
