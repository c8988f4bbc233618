//! The registry of error codes that users see: one table, never reused. `basalt explain CODE` prints a row.
//!
//! 1xxx command line and configuration, 2xxx meta (those are in `control::codes`), 3xxx store, 4xxx network, 5xxx volume,
//! 6xxx frontends, 9xxx bug.

/// One code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub number: u32,
    pub title: &'static str,
    /// Cause of the error.
    pub why: &'static str,
    /// Remedy that the user can apply.
    pub fix: &'static str,
}

macro_rules! codes {
    ($($number:literal $title:literal, $why:literal, $fix:literal;)+) => {
        /// All codes, ascending.
        pub const CODES: &[Code] = &[$(Code { number: $number, title: $title, why: $why, fix: $fix }),+];
    };
}

codes! {
    1001 "The command line is wrong", "A flag, a value or a name is not understood.", "Add --help to the command: it shows examples.";
    1002 "No cluster is found", "No --meta was given and no dev cluster of this name exists.", "Run `basalt dev up`, or give --meta HOST:PORT.";
    1003 "The dev cluster is already running", "Its processes are alive; `basalt dev up` starts only what does not run.", "`basalt dev status` shows it; `basalt dev down` stops it.";
    1004 "A process did not become ready", "It ended or did not answer in time; its log says why.", "Read the log that the message names.";
    1005 "No free ports", "All port blocks that were tried are taken, or another process listens at the address of a daemon of the dev cluster.", "Stop the process that uses the port (`ss -ltnp` names it), or destroy a dev cluster that is not needed.";
    1006 "A file or folder cannot be used", "The operating system refused it.", "The message ends with the reason: mend that and run the command again.";
    1007 "No such daemon", "The number names no OSD of this dev cluster.", "`basalt dev status` lists them.";
    1008 "The home folder is not known", "Neither HOME nor XDG_STATE_HOME is set, so there is no place for dev clusters.", "export HOME=/root, or XDG_STATE_HOME to a folder on ext4 or xfs.";
    1009 "The process belongs to another user", "Signals may be sent to processes of the same user, or by root.", "Run the command as the user who started the cluster.";
    1010 "io_uring is not permitted here", "The kernel, or a container's seccomp profile, forbids io_uring.", "Allow io_uring in the container's profile; `sysctl kernel.io_uring_disabled` must print 0.";
    1011 "Not possible yet", "The verb is known from other storage systems; this version of Basalt cannot do it.", "\"What is missing today\" in README.md lists what this version cannot do.";
    1012 "The output cannot be written", "Standard output refused bytes: its disk is full, or its device failed. What was printed before is not complete.", "Make room where the output goes (`df -h .`), and run the command again.";
    1013 "The address cannot be advertised", "0.0.0.0 and [::] stand for all interfaces of a host: a peer on another host that is told to connect there connects to itself.", "Add --advertise HOST:PORT with a name or an address of this host.";
    1014 "The volume is not exported", "No NBD export of this volume runs in the dev cluster.", "`basalt dev up --export POOL/VOLUME` exports it; `basalt dev status` lists what runs.";
    1030 "The file is no whole backup of records", "It was cut off or changed, or another program wrote it.", "Give a file that `basalt meta backup` wrote.";
    1031 "The address or the certificates of etcd cannot be used", "A URL, the key prefix or a certificate is not written as it must be.", "Write --etcd https://HOST:PORT with --etcd-ca, or http://HOST:PORT without; `basalt meta --help`.";
    3001 "The file system does not support O_DIRECT", "tmpfs and overlay file systems refuse it.", "Put the device on ext4, xfs, or use a block device.";
    3002 "The device is in use", "Another process holds the device's lock.", "`basalt dev status` or `fuser DEVICE` shows who.";
    3003 "The device holds something else", "It carries foreign data, or an OSD of this cluster.", "Foreign data that may go: run the command again with --force. An OSD is erased only with --force and --erase-osd UUID (`basalt osd ls --json` prints it), and never while PGs are on it.";
    3004 "The device is not formatted", "There is no valid superblock on it.", "`basalt osd format --device PATH --meta HOST:PORT`.";
    3005 "The device belongs to another cluster", "Its superblock names another cluster or another OSD.", "Give the right device. An OSD of another cluster is erased only with --force and --erase-osd UUID.";
    3006 "The device is too small", "Log and home need more space than it has.", "Use a larger device or the --log-size that the message names.";
    3007 "The device's format is newer than this program", "Its superblock has an incompatible feature that this version does not know.", "Run the version that formatted it, or a newer one.";
    3008 "The device's format is older than this program", "An older build wrote it. No release wrote that format, so no program converts it.", "The program that formatted the device still serves it: copy what is needed from there. Then format the device again with --force; for a dev cluster: `basalt dev destroy --yes`, then `basalt dev up`.";
    3010 "The store is poisoned", "A write or flush failed, so the OSD stopped; its PGs go on with their other replicas.", "Look at the device (kernel log, SMART, free space of its file system). If it is sound, start the OSD once with --after-poison: nothing acknowledged is lost. If not, leave it down.";
    3011 "A replica is damaged", "Its log, its tables or its blocks fail their checksums.", "The PG goes on with its other replicas; `basalt pg ls` shows it.";
    3012 "Replicas of a PG differ", "Their bytes are not equal at one log index: a device or a program changed one of them.", "`basalt pg verify --deep --json` names the extents, and the OSD whose checksum differs from the others. Check that device. This version cannot rebuild one replica by command: keep the others running and copy the volume's data to a new volume.";
    3013 "The device cannot be mounted", "Its log or its tables are damaged beyond what a restart repairs, or it failed while they were read.", "Its PGs go on with their other replicas, degraded. This version cannot move replicas to another OSD: keep the others running, and copy the data of its PGs' volumes to a new pool or cluster.";
    4001 "Wrong cluster", "The process at that address belongs to another cluster.", "Check the address.";
    4002 "No common protocol version", "The two programs are too far apart in age.", "Upgrade the older one; neighbours in version can talk.";
    4003 "Wrong peer", "Another OSD than expected answers at that address.", "Check for two OSDs with the same address.";
    4004 "A malformed frame", "The bytes at that port are not this protocol's.", "Check what connects there; the connection was closed.";
    4005 "Too many connections", "The limit of connections is reached; it is fixed in the program.", "Close connections that are not needed.";
    4006 "A host name cannot be resolved", "The resolver of this host knows no address for it, or does not answer.", "`getent ahosts NAME` asks the same resolver; see /etc/hosts and /etc/resolv.conf.";
    5001 "The volume is open elsewhere", "A client holds it for writing; metadata servers say so with BSLT-2020.", "Stop the holder, or add --steal: its writes are rejected from then on.";
    5002 "The volume was taken over", "Another client attached it with --steal or after this one was silent for 10 s, or a `meta recover` ended all sessions: writes of this session are rejected.", "`basalt volume info POOL/VOLUME` names the holder; open the volume again when that one is done.";
    5003 "No space left", "An OSD of the volume's PGs is full. One full OSD stops the writes of its PGs, although others have space.", "`basalt osd ls` shows which OSD is full. Delete volumes, or trim them. New OSDs take new pools only: this version does not move data to them.";
    5004 "Stored data is damaged", "A block fails its checksum and no good copy was found.", "`basalt pg verify --deep` names the extents.";
    5005 "The volume belongs to another cluster", "This process holds volumes of one cluster already.", "Start another process for the other cluster.";
    5006 "Too many volumes are open", "One process holds at most 4096.", "Close some, or start another process.";
    5007 "Requests were not answered", "The volume's PGs did not serve within the time, or the process was ending.", "`basalt status` shows which PGs do not serve.";
    5008 "The volume holds data", "Space of the volume is allocated, so a write test would destroy what is there.", "Measure a new volume, or give --overwrite if its data may go. `--op randread` and `--op read` write nothing.";
    6001 "The export cannot be served", "The socket or port cannot be used.", "Remove a stale socket, or choose another with --socket or --listen.";
    6002 "The process was asked to end before its volume was open", "A signal came while it waited for meta or for a PG.", "Start it again when the cluster answers: `basalt status`.";
    9001 "A bug", "An invariant of Basalt itself is broken.", "Please report it with the log.";
}

/// Returns the row of a code.
pub fn lookup(number: u32) -> Option<&'static Code> {
    CODES.iter().find(|c| c.number == number)
}

#[cfg(test)]
mod tests {
    use super::CODES;

    #[test]
    fn numbers_ascend_and_are_never_given_twice() {
        assert!(CODES.windows(2).all(|w| w[0].number < w[1].number));
    }
}
