//! The 2xxx codes: one registry, never reused.

use types::control::Refusal;
pub use types::control::refusal::{
    META_UNAVAILABLE, OSD_OTHER_LIFE, OUT_OF_RANGE, READ_ONLY, SESSION_FENCED, STORE_BEHIND, VOLUME_HELD,
    VOLUME_UNKNOWN, WRONG_CLUSTER,
};

/// An error code with the texts that a user reads about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub code: u32,
    pub what: &'static str,
    /// Advice; also the end of each refusal with this code.
    pub next: &'static str,
}

pub const META_BUSY: u32 = 2002;
pub const NOT_LEADER: u32 = 2003;
pub const BAD_REQUEST: u32 = 2004;
pub const STORE_FAILED: u32 = 2005;
pub const POOL_UNKNOWN: u32 = 2010;
pub const POOL_EXISTS: u32 = 2012;
pub const VOLUME_EXISTS: u32 = 2013;
pub const BAD_NAME: u32 = 2014;
pub const BAD_SIZE: u32 = 2015;
pub const BAD_POOL: u32 = 2016;
pub const CANNOT_PLACE: u32 = 2017;
pub const POOL_NOT_EMPTY: u32 = 2018;
pub const POOL_NOT_READY: u32 = 2019;
pub const OSD_UNKNOWN: u32 = 2024;
pub const TOO_MANY: u32 = 2027;
pub const OSD_EXISTS: u32 = 2028;
pub const BAD_LOCATION: u32 = 2029;
pub const CHECK_UNKNOWN: u32 = 2040;
pub const NO_MAJORITY: u32 = 2031;
/// An OSD that is up or holds PGs is not removed.
pub const OSD_IN_USE: u32 = 2042;
/// A volume whose hold a recovery of the records has ended, before the recovery is finished.
pub const VOLUME_RECOVERING: u32 = 2043;
/// The device is behind what meta last heard of it (R17).
pub const DEVICE_BEHIND: u32 = 2041;

/// Every code with its texts.
pub const REGISTRY: &[Code] = &[
    Code {
        code: META_UNAVAILABLE,
        what: "no metadata server answers, or none leads yet",
        next: "check that a meta runs (`basalt status --meta ADDR`); attached volumes go on without it",
    },
    Code { code: META_BUSY, what: "the metadata server has too much queued", next: "ask again in a moment" },
    Code { code: NOT_LEADER, what: "this metadata server does not lead", next: "ask the leader that the answer names" },
    Code { code: BAD_REQUEST, what: "the request is malformed", next: "check that both sides run matching versions" },
    Code {
        code: STORE_FAILED,
        what: "the metadata store failed or was taken over by another meta",
        next: "see the log of the meta; ask again: another one may lead by now",
    },
    Code { code: POOL_UNKNOWN, what: "no such pool", next: "list pools with `basalt pool ls`" },
    Code { code: VOLUME_UNKNOWN, what: "no such volume", next: "list volumes with `basalt volume ls`" },
    Code { code: POOL_EXISTS, what: "a pool of this name exists", next: "choose another name" },
    Code { code: VOLUME_EXISTS, what: "a volume of this name exists", next: "choose another name" },
    Code {
        code: BAD_NAME,
        what: "the name is not legal",
        next: "use a-z, 0-9 and . _ - (not first), at most 63 characters; volumes are written pool/volume",
    },
    Code { code: BAD_SIZE, what: "the size is not possible", next: "use 1MiB to 64TiB, a multiple of 512 bytes" },
    Code {
        code: BAD_POOL,
        what: "the pool settings are not possible",
        next: "use 1, 2, 3 or 5 replicas, the failure domain osd, host, rack or zone, and 1 to 4096 PGs",
    },
    Code {
        code: CANNOT_PLACE,
        what: "there are too few separate places for the replicas",
        next: "start more OSDs (`basalt osd ls`), or take a smaller failure domain or fewer replicas",
    },
    Code { code: POOL_NOT_EMPTY, what: "the pool holds volumes", next: "remove them first with `basalt volume rm`" },
    Code { code: POOL_NOT_READY, what: "the pool is being made or removed", next: "ask again in a moment" },
    Code {
        code: VOLUME_HELD,
        what: "the volume is open for writing elsewhere",
        next: "close it there, or take it over with --steal: writes of the holder then fail",
    },
    Code {
        code: SESSION_FENCED,
        what: "another opener took the volume, or `meta recover` ended its session; this one may not write any more",
        next: "open it again if this is the right place for it",
    },
    Code { code: OUT_OF_RANGE, what: "the place lies outside the volume", next: "check the size of the volume" },
    Code { code: READ_ONLY, what: "the volume was opened read-only", next: "open it for writing" },
    Code { code: OSD_UNKNOWN, what: "the cluster does not know this OSD", next: "list OSDs with `basalt osd ls`" },
    Code {
        code: OSD_OTHER_LIFE,
        what: "another process serves this OSD, or the cluster knows another device under its id",
        next: "find the right device (`basalt osd ls --json` prints uuid and address) and start that one only; \
               do not format anything for this",
    },
    Code {
        code: WRONG_CLUSTER,
        what: "this OSD belongs to another cluster",
        next: "give it the metas of its own cluster (--meta); its device keeps the data of that cluster",
    },
    Code { code: TOO_MANY, what: "the request asks for too much at once", next: "split it" },
    Code {
        code: OSD_EXISTS,
        what: "this OSD number is registered for another device",
        next: "list OSDs with `basalt osd ls`",
    },
    Code {
        code: BAD_LOCATION,
        what: "the name of a host, a rack or a zone is too long",
        next: "use at most 255 bytes each: `basalt osd run --host NAME --rack NAME --zone NAME`",
    },
    Code {
        code: CHECK_UNKNOWN,
        what: "no health check has this code",
        next: "take the code from `basalt health`, for example OSD_DOWN",
    },
    Code {
        code: STORE_BEHIND,
        what: "the metadata store is older than what OSDs remember: it was restored from a copy, or it is not this cluster's store",
        next: "put the right store back, or see what is missing with `basalt meta recover --dry-run`; attached volumes go on",
    },
    Code {
        code: NO_MAJORITY,
        what: "fewer than a majority of the OSDs confirm what the metadata store says, so nothing may be changed",
        next: "start the OSDs that are down (`basalt osd ls`), then ask again; if they are lost for good, see `basalt meta recover --without`; attached volumes go on",
    },
    Code {
        code: OSD_IN_USE,
        what: "an OSD that is running or holds PGs cannot be removed",
        next: "an OSD that holds PGs stays: this version cannot move PGs to other OSDs. One that holds none is stopped first",
    },
    Code {
        code: VOLUME_RECOVERING,
        what: "the metadata was recovered from an older copy, and the recovery is not finished: segments of the volume may be missing",
        next: "run `basalt meta recover` again: it finishes the recovery",
    },
    Code {
        code: DEVICE_BEHIND,
        what: "the device is older than what the cluster last heard of it: it was restored from a copy, or it lost \
               writes that it had flushed",
        next: "start the current device of this OSD if there is one. If this is all that is left of it, start it once \
               with `basalt osd run --after-restore`: its replicas then follow their peers without a vote until they \
               have caught up",
    },
];

/// Returns the text about a code; `None` for an unknown one.
pub fn explain(code: u32) -> Option<&'static Code> {
    REGISTRY.iter().find(|c| c.code == code)
}

/// Returns a refusal: what failed and why, followed by the advice of the code.
///
/// # Panics
/// When the code is not in the registry.
pub fn refuse(code: u32, what: impl std::fmt::Display) -> Refusal {
    let known = explain(code);
    assert!(known.is_some(), "BSLT-{code} is not registered");
    Refusal { code, message: format!("{what}; {}", known.map_or("", |c| c.next)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_registered_once_and_says_what_to_do() {
        let codes: Vec<u32> = REGISTRY.iter().map(|c| c.code).collect();
        let mut sorted = codes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(codes.len(), sorted.len(), "a code appears twice");
        assert!(codes.iter().all(|c| (2001..3000).contains(c)));
        assert!(REGISTRY.iter().all(|c| !c.what.is_empty() && !c.next.is_empty()));
        assert_eq!(
            refuse(POOL_UNKNOWN, "pool \"x\" does not exist").message,
            "pool \"x\" does not exist; list pools with `basalt pool ls`"
        );
    }
}
