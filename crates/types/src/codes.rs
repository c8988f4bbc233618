//! The registry of error codes that users see. A number is never reused. `basalt explain CODE` prints a row.
//!
//! Numbers stand in this table alone: other modules name the constants, and `cargo xtask tidy` checks calls with one.
//! A 2xxx code is also the `code` of a [`Refusal`](crate::control::Refusal), on which clients and OSDs decide.

/// One code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub number: u32,
    /// Name of the constant.
    pub name: &'static str,
    pub title: &'static str,
    /// Cause of the error.
    pub why: &'static str,
    /// Remedy that the user can apply; a refusal of a metadata server ends with it.
    pub fix: &'static str,
}

macro_rules! codes {
    ($($first:literal..=$last:literal {
        $($name:ident = $number:literal: $title:literal, $why:literal, $fix:literal;)+
    })+) => {
        $($(
            #[doc = $title]
            pub const $name: u32 = $number;
        )+)+

        /// All codes, ascending.
        pub const CODES: &[Code] = &[$($(
            Code { number: $number, name: stringify!($name), title: $title, why: $why, fix: $fix }
        ),+),+];

        // Each number lies in the range of its block.
        $($(
            const _: () = assert!($first <= $number && $number <= $last, stringify!($name));
        )+)+
    };
}

codes! {
    // 1xxx: command line and configuration.
    1001..=1999 {
        BAD_USAGE = 1001:
            "The command line is wrong",
            "A flag, a value or a name is not understood.",
            "Add --help to the command: it shows examples.";
        NO_CLUSTER = 1002:
            "No cluster is found",
            "No --meta was given and no dev cluster of this name exists.",
            "Run `basalt dev up`, or give --meta HOST:PORT.";
        CLUSTER_RUNS_ALREADY = 1003:
            "The dev cluster is already running",
            "Its processes are alive; `basalt dev up` starts only what does not run.",
            "`basalt dev status` shows it; `basalt dev down` stops it.";
        PROCESS_NOT_READY = 1004:
            "A process did not become ready",
            "It ended or did not answer in time; its log says why.",
            "Read the log that the message names.";
        NO_FREE_PORT = 1005:
            "No free ports",
            "All port blocks that were tried are taken, or another process listens at the address of a daemon of the \
             dev cluster.",
            "Stop the process that uses the port (`ss -ltnp` names it), or destroy a dev cluster that is not needed.";
        FILE_UNUSABLE = 1006:
            "A file or folder cannot be used",
            "The operating system refused it.",
            "The message ends with the reason: correct that and run the command again.";
        DAEMON_UNKNOWN = 1007:
            "No such daemon",
            "The number names no OSD of this dev cluster.",
            "`basalt dev status` lists them.";
        HOME_FOLDER_UNKNOWN = 1008:
            "The home folder is not known",
            "Neither HOME nor XDG_STATE_HOME is set, so there is no folder for dev clusters.",
            "export HOME=/root, or XDG_STATE_HOME to a folder on ext4 or xfs.";
        PROCESS_OF_OTHER_USER = 1009:
            "The process belongs to another user",
            "Signals may be sent to processes of the same user, or by root.",
            "Run the command as the user who started the cluster.";
        NO_IO_URING = 1010:
            "io_uring is not permitted here",
            "The kernel, or a container's seccomp profile, forbids io_uring.",
            "Allow io_uring in the container's profile; `sysctl kernel.io_uring_disabled` must print 0.";
        NOT_POSSIBLE_YET = 1011:
            "Not possible yet",
            "The verb is known from other storage systems; this version of Basalt cannot do it.",
            "\"What is missing today\" in README.md lists what this version cannot do.";
        OUTPUT_FAILED = 1012:
            "The output cannot be written",
            "Standard output refused bytes: its disk is full, or its device failed. The earlier output is incomplete.",
            "Free space where the output goes (`df -h .`), and run the command again.";
        BAD_ADVERTISED_ADDRESS = 1013:
            "The address cannot be advertised",
            "0.0.0.0 and [::] stand for all interfaces of a host: a peer on another host would connect to itself.",
            "Add --advertise HOST:PORT with a name or an address of this host.";
        VOLUME_NOT_EXPORTED = 1014:
            "The volume is not exported",
            "No NBD export of this volume runs in the dev cluster.",
            "`basalt dev up --export POOL/VOLUME` exports it; `basalt dev status` lists what runs.";
        BAD_BACKUP = 1030:
            "The file is not a complete backup of records",
            "It was cut off or changed, or another program wrote it.",
            "Give a file that `basalt meta backup` wrote.";
        BAD_ETCD_CONFIG = 1031:
            "The address or the certificates of etcd cannot be used",
            "A URL, the key prefix or a certificate is not written as it must be.",
            "Write --etcd https://HOST:PORT with --etcd-ca, or http://HOST:PORT without; `basalt meta --help`.";
    }
    // 2xxx: metadata server.
    2001..=2999 {
        META_UNAVAILABLE = 2001:
            "no metadata server answers, or none leads yet",
            "No process listens at the given addresses, the network is cut, or several metas run and their \
             election is not over.",
            "check that a meta runs (`basalt status --meta ADDR`); attached volumes go on without it";
        META_BUSY = 2002:
            "the metadata server has too much queued",
            "More requests came than the metadata server takes at once; a burst of attachments or a slow store of \
             records does that.",
            "try again in a moment";
        NOT_LEADER = 2003:
            "this metadata server does not lead",
            "Several metas run and one leads; a request that changes records is served by the leader alone. Clients \
             follow by themselves.",
            "connect to the leader that the answer names";
        BAD_REQUEST = 2004:
            "the request is malformed",
            "A field is missing or out of range: the two programs are of different versions, or another program \
             connected to the port.",
            "check that both sides run matching versions";
        STORE_FAILED = 2005:
            "the metadata store failed or was taken over by another meta",
            "A write to meta.redb or to etcd failed, or another meta was elected while the request was worked on. The \
             change may be lost.",
            "see the log of the meta and try again: another one may lead by now";
        POOL_UNKNOWN = 2010:
            "no such pool",
            "The name was mistyped, the pool was removed, or the command went to another cluster than intended.",
            "list pools with `basalt pool ls`";
        VOLUME_UNKNOWN = 2011:
            "no such volume",
            "The name was mistyped, the volume was removed, or the command went to another cluster than intended.",
            "list volumes with `basalt volume ls`";
        POOL_EXISTS = 2012:
            "a pool of this name exists",
            "Names of pools are unique in a cluster; a pool that is being removed keeps its name until its replicas \
             are gone.",
            "choose another name";
        VOLUME_EXISTS = 2013:
            "a volume of this name exists",
            "Names of volumes are unique in a pool; a volume that is being deleted keeps its name until its space is \
             given back.",
            "choose another name";
        BAD_NAME = 2014:
            "the name is not legal",
            "Names are parts of sockets, URIs and files, so only characters that are safe in all of them are taken.",
            "use a-z, 0-9 and . _ - (not first), at most 63 characters; volumes are written pool/volume";
        BAD_SIZE = 2015:
            "the size is not possible",
            "A volume is cut into segments of 1 GiB, of which it may have 65536, and blocks of 512 bytes are the least \
             that is addressed.",
            "use 1MiB to 64TiB, a multiple of 512 bytes";
        BAD_POOL = 2016:
            "the pool settings are not possible",
            "Other numbers of replicas have no majority worth their cost, and the number of PGs of a pool is fixed \
             at its creation.",
            "use 1, 2, 3 or 5 replicas, the failure domain osd, host, rack or zone, and 1 to 4096 PGs";
        CANNOT_PLACE = 2017:
            "there are too few failure domains for the replicas",
            "Replicas of a PG are never placed in the same failure domain, and there are fewer of these than replicas.",
            "start more OSDs (`basalt osd ls`), or take a smaller failure domain or fewer replicas";
        POOL_NOT_EMPTY = 2018:
            "the pool holds volumes",
            "A pool is removed only without volumes, so that no volume is deleted by accident.",
            "remove them first with `basalt volume rm`, and those in the trash with `basalt trash purge --all --pool POOL`";
        POOL_NOT_READY = 2019:
            "the pool is being created or removed",
            "The pool's PGs are being placed on OSDs, or its replicas are being dropped.",
            "try again in a moment";
        VOLUME_HELD = 2020:
            "the volume is open for writing elsewhere",
            "A volume that is not multi-writer has one writer. The client that has it open renews its lease every 2 s. After 10 s of silence \
             another client may open the volume without --steal.",
            "close it there, or take it over: a client with --steal, a command with --force; writes of the present client then fail";
        SESSION_FENCED = 2021:
            "another client attached the volume, or `meta recover` ended the session; this session may not write any \
             more",
            "Another client attached the volume with --steal or after this one was silent for 10 s, or `meta recover` \
             ended all sessions. Writes of this session are rejected by every OSD.",
            "open the volume again if this client is the one that should write";
        OUT_OF_RANGE = 2022:
            "the offset lies outside the volume",
            "A client requested a segment beyond the end of the volume: it works with another size.",
            "check the size of the volume";
        READ_ONLY = 2023:
            "the volume was opened read-only",
            "Space is taken at the first write of a segment, and this client attached the volume without the right to \
             write.",
            "open it for writing";
        OSD_UNKNOWN = 2024:
            "the cluster does not know this OSD",
            "The records hold no OSD of that number and uuid: its device was formatted for another cluster, or the \
             metadata store was created again.",
            "list OSDs with `basalt osd ls`";
        OSD_OTHER_LIFE = 2025:
            "another process serves this OSD, or the cluster knows another device under its id",
            "The records bind each OSD id to one uuid and one running process. This device carries another uuid, or it \
             is a copy of one that is being served.",
            "find the right device (`basalt osd ls --json` prints uuid and address) and start that one only; do not \
             format anything for this";
        WRONG_CLUSTER = 2026:
            "this OSD belongs to another cluster",
            "The superblock of the device names another cluster than these metadata servers serve.",
            "give it the metas of its own cluster (--meta); its device keeps the data of that cluster";
        TOO_MANY = 2027:
            "the request is too large",
            "Lists in requests are bounded, so that one request cannot take all the memory of a metadata server.",
            "split it";
        OSD_EXISTS = 2028:
            "this OSD number is registered for another device",
            "A number is reserved for one device at its format; another device has it.",
            "list OSDs with `basalt osd ls`";
        BAD_LOCATION = 2029:
            "the name of a host, a rack or a zone is too long",
            "The names of failure domains are kept in every record of an OSD, so their length is bounded.",
            "use at most 255 bytes each: `basalt osd run --host NAME --rack NAME --zone NAME`";
        STORE_BEHIND = 2030:
            "the metadata store is older than the watermarks on the OSDs: it was restored from a copy, or it belongs \
             to another cluster",
            "The store was restored from an older copy, or another cluster's store was put in its place. It would \
             assign ids again that OSDs have used.",
            "put the right store back, or see what is missing with `basalt meta recover --dry-run`; attached volumes \
             go on";
        NO_MAJORITY = 2031:
            "fewer than a majority of the OSDs confirm what the metadata store says, so nothing may be changed",
            "The watermarks that OSDs have recorded prove that the store is not an older copy, and too few OSDs are \
             up.",
            "start the OSDs that are down (`basalt osd ls`), then try again; if they are lost for good, see `basalt \
             meta recover --without`; attached volumes go on";
        CHECK_UNKNOWN = 2040:
            "no health check has this code",
            "The code of the check was mistyped, or another version has such a check. Codes are written in capitals.",
            "take the code from `basalt health`, for example OSD_DOWN";
        DEVICE_BEHIND = 2041:
            "the device is older than its last report to the cluster: it was restored from a copy, or it lost \
             writes that it had flushed",
            "The cluster records the end of the log of each device, and this device is behind that record. Its \
             replicas could vote for a leader that lacks acknowledged writes, so they fail and are replaced when \
             their PGs are served without them. Until then the OSD waits.",
            "start the current device of this OSD if there is one, or the other OSDs of its PGs. If this is all that is \
             left, start it once with `basalt osd run --after-restore`";
        OSD_IN_USE = 2042:
            "an OSD that is running or holds PGs cannot be removed",
            "An OSD with PGs holds the only other copies of their data, and one that runs would report again.",
            "move its PGs to other OSDs with `basalt osd drain OSD --wait`, then stop it";
        VOLUME_RECOVERING = 2043:
            "the metadata was recovered from an older copy, and the recovery is not finished: segments of the volume \
             may be missing",
            "Clients that held volumes before the recovery could still write to segments that the records do not know. \
             The recovery fences these clients first, and then restores these segments.",
            "run `basalt meta recover` again: it finishes the recovery";
        PG_UNKNOWN = 2044:
            "no such PG",
            "The name was mistyped, its pool was removed, or the command went to another cluster than intended.",
            "list PGs with `basalt pg ls`; they are written POOL.HEX";
        BAD_MOVE = 2045:
            "the replica cannot move there",
            "A replica moves from an OSD that holds the PG to one that serves, is in, holds no replica of the PG, and \
             shares no failure domain with the others.",
            "choose another OSD: `basalt pg ls` shows the members, `basalt osd ls` the OSDs";
        BAD_SETTING = 2046:
            "no such setting, or a value that it cannot have",
            "The name or the value was mistyped, or another version has such a setting.",
            "`basalt config ls` lists the settings with their values";
        BAD_REPLACEMENT = 2047:
            "the OSD cannot be replaced",
            "It is not registered, it takes over another OSD itself, or another OSD takes it over already.",
            "`basalt osd ls` shows which OSD replaces which; `basalt osd in` of the old OSD ends a replacement, and `basalt \
             osd out` of the new one lets the replicas go anywhere";
        BAD_FORCE = 2048:
            "the PG cannot be recovered by force",
            "A PG is forced when it has lost its majority for good: it then goes on from one replica, and acknowledged \
             writes that only the others had are lost. A PG that serves needs no force.",
            "`basalt pg force-recover PG --dry-run` shows what each member has; bring OSDs back if you can, and use \
             --accept-data-loss only when you cannot";
        BAD_STRIPE = 2049:
            "the stripe layout is not possible",
            "Each column of a segment lies in a PG of its own, so the pool needs at least as many PGs as the volume has \
             columns; columns hold whole chunks of 16 MiB and units whole blocks of 4 KiB.",
            "use a --stripe-count of 1, 2, 4, … 64 that is not above the PGs of the pool (basalt pool ls), and a \
             --stripe-unit that is a power of two from 4KiB to 16MiB";
        SNAPSHOT_UNKNOWN = 2050:
            "no such snapshot",
            "The name was mistyped, the snapshot was deleted, or it belongs to another volume.",
            "`basalt snapshot ls POOL/VOLUME` lists them; they are written POOL/VOLUME@SNAPSHOT";
        SNAPSHOT_EXISTS = 2051:
            "the volume has a snapshot of this name",
            "Snapshots of one volume have different names.",
            "choose another name, or delete the old one with `basalt snapshot rm`";
        SNAPSHOT_PROTECTED = 2052:
            "the snapshot is protected",
            "A protected snapshot cannot be deleted, and its volume neither.",
            "`basalt snapshot set POOL/VOLUME@SNAPSHOT --protect off` ends that";
        HAS_SNAPSHOTS = 2053:
            "the volume has snapshots",
            "Its snapshots would be deleted with it.",
            "delete them first (`basalt snapshot ls`, `basalt snapshot rm`), or all with `basalt volume rm --now --snapshots`; \
             without --now volume and snapshots go to the trash";
        CUT_FAILED = 2054:
            "the snapshot was given up: its PGs did not all take it",
            "During a snapshot the PGs of the volume hold its writes, at most 100 ms. When one of them has no leader or answers too late, \
             the snapshot is given up in all, and writes go on.",
            "try again; `basalt pg ls` shows PGs without a leader, `basalt status` what is wrong";
        VOLUME_BUSY = 2055:
            "another change of the volume is under way",
            "Some changes of a volume take steps in each of its PGs: a resize, a snapshot, an open. A PG without a leader that serves \
             holds these up, and one change goes on at a time.",
            "repeat the command when that change has ended: `basalt volume info` shows it, `basalt pg ls` the PGs without a leader, which \
             hold it up";
        SNAPSHOT_READ_ONLY = 2056:
            "a snapshot is only read",
            "Its contents are those of the volume at one point in time, so no client writes to it.",
            "open it read-only: `basalt nbd POOL/VOLUME@SNAPSHOT --read-only`";
        HAS_CLONES = 2057:
            "it has clones",
            "Volumes were made from this snapshot, or from snapshots of this volume. They keep their contents when it goes, and its space \
             comes back only with theirs.",
            "delete the clones first, or repeat the command with --detach to delete it and keep them";
        CLONE_DEPTH = 2058:
            "the volume has too many ancestors",
            "A clone of a clone of a clone: a read may have to look at each of them, so there are at most 16.",
            "make the clone from an older volume of the chain (`basalt volume info` shows the parent)";
        SHRINK_UNSAFE = 2059:
            "a volume is made shorter only on request",
            "What lies behind the new end goes, so a smaller size may be a mistake.",
            "shrink the file system in the volume first, then repeat the command with --shrink";
        NOT_IN_TRASH = 2060:
            "no such volume in the trash",
            "A volume leaves the trash when it is restored, and when its time is over: then its deletion begins.",
            "`basalt trash ls` lists ids and names";
        TRASH_NAME_AMBIGUOUS = 2061:
            "several volumes in the trash had this name",
            "A name is free again when its volume goes to the trash, so volumes that were removed one after another may have had \
             the same. A command that named one of them by that name could meet another.",
            "name the volume by its id, which `basalt trash ls` lists";
        BAD_LABEL = 2062:
            "the description or a label is not possible",
            "Descriptions and labels are kept in the record of the volume, so their sizes are bounded. They are printed in tables, so \
             they have no control characters.",
            "use at most 512 bytes of description and 32 labels: keys of a-z, A-Z, 0-9 and . _ / - (a letter or digit first, at most \
             63 characters), values of at most 127 bytes";
        NOT_A_CLONE = 2063:
            "the volume is no clone",
            "Only a volume that was made from a snapshot of another one shows blocks of that: there is nothing to copy.",
            "`basalt volume info` shows the parent of a clone";
        FLATTEN_SNAPSHOTS = 2064:
            "no snapshots during a flatten",
            "A flatten copies what the volume shows of its parent. Blocks of a snapshot are never changed, so a snapshot of the volume would \
             need the parent for ever.",
            "delete the snapshots of the volume before (`basalt snapshot ls`), and make new ones when the flatten has ended; \
             `basalt volume flatten POOL/VOLUME --cancel` stops it";
        SHRINK_DATA = 2065:
            "the volume has data behind the new end",
            "A shrink deletes what lies behind the new end. It ended without effect, because the volume shows data there: blocks that were \
             written and not discarded since, or blocks of its parent.",
            "shrink the file system in the volume first and discard what it does not use (`fstrim`), or repeat the command with \
             --discard-data";
        TOO_MANY_WRITERS = 2066:
            "the volume has as many writers as it can have",
            "A multi-writer volume is open for writing by at most 8 clients at a time, and all such volumes of a pool by 1,024. \
             The place of one that was silent for 10 s is free.",
            "close it in one of them; `basalt volume info POOL/VOLUME` names them, and `basalt volume fence` takes the \
             volume from one";
        WRITER_UNKNOWN = 2067:
            "the volume has no such writer",
            "The command names a client that does not have the volume open for writing, and is none of the last eight that lost \
             it. Each PG of the volume refuses clients that are not its writers.",
            "take a host, an address, a session or the whole name of a client from `basalt volume info POOL/VOLUME`";
        BAD_LIMIT = 2070:
            "the limit is not possible",
            "A limit has a rate, and may have a burst above it. A floor has a rate that is not above the limit of the same kind. Rates outside \
             the bounds would stop a volume, or limit nothing.",
            "use 10 to 100000000 for IOPS, 64KiB/s to 1TiB/s for bandwidth, a burst above its rate, 1 to 3600 for --burst-seconds; \
             0 removes a limit or a burst";
        POOL_QUOTA = 2072:
            "the quota of the pool is used up",
            "A pool may have a quota: a number of volumes, a sum of their sizes, and how much they may be together in percent of what its \
             OSDs have. Sizes count as they were created, whether data was written or not. Volumes in the trash count until they are erased.",
            "remove volumes (`basalt volume rm`, then `basalt trash purge`), or raise the quota with `basalt pool set NAME \
             --quota-bytes SIZE --quota-volumes N --quota-overcommit PERCENT`; 0 removes it";
        BAD_FAULT = 2080:
            "the fault is not possible",
            "A rehearsed fault is bounded: a volume that stays slow or silent for ever would be an outage, and no rehearsal of one.",
            "use --for with 1s to 24h, --latency with 1ms to 60s, --pct with 1 to 100, and at most 8 faults a volume: \
             `basalt volume fault ls POOL/VOLUME`";
        FAULT_UNKNOWN = 2081:
            "no such fault",
            "The volume has no fault with this number: it was removed, or its time is over.",
            "`basalt volume fault ls POOL/VOLUME` shows those that it has";
    }
    // 3xxx: store of an OSD.
    3001..=3999 {
        NO_DIRECT_IO = 3001:
            "The file system does not support O_DIRECT",
            "tmpfs and overlay file systems refuse it.",
            "Put the device on ext4, xfs, or use a block device.";
        DEVICE_IN_USE = 3002:
            "The device is in use",
            "Another process holds the device's lock.",
            "`basalt dev status` or `fuser DEVICE` shows which process.";
        DEVICE_NOT_EMPTY = 3003:
            "The device holds something else",
            "It carries foreign data, or an OSD of this cluster.",
            "If foreign data may be overwritten, run the command again with --force. An OSD is erased only with \
             --force and --erase-osd UUID (`basalt osd ls --json` prints it), and never while PGs are on it.";
        DEVICE_NOT_FORMATTED = 3004:
            "The device is not formatted",
            "There is no valid superblock on it.",
            "`basalt osd format --device PATH --meta HOST:PORT`.";
        DEVICE_OF_OTHER_CLUSTER = 3005:
            "The device belongs to another cluster",
            "Its superblock names another cluster or another OSD.",
            "Give the right device. An OSD of another cluster is erased only with --force and --erase-osd UUID.";
        DEVICE_TOO_SMALL = 3006:
            "The device is too small",
            "The log and the data area need more space than the device has.",
            "Use a larger device or the --log-size that the message names.";
        DEVICE_FORMAT_NEWER = 3007:
            "The device's format is newer than this program",
            "Its superblock has an incompatible feature that this version does not know.",
            "Run the version that formatted it, or a newer one.";
        DEVICE_FORMAT_OLDER = 3008:
            "The device's format is older than this program",
            "An older build wrote it. No release wrote that format, so no program converts it.",
            "The program that formatted the device still serves it: copy what is needed from there. Then format the \
             device again with --force; for a dev cluster: `basalt dev destroy --yes`, then `basalt dev up`.";
        STORE_POISONED = 3010:
            "The store has failed",
            "A write or flush failed, so the OSD stopped; its PGs go on with their other replicas.",
            "Check the device (kernel log, SMART, free space of its file system). If it is sound, start the OSD once \
             with --after-poison: nothing acknowledged is lost. If not, leave it down.";
        REPLICA_DAMAGED = 3011:
            "A replica is damaged",
            "Its log, its tables or its blocks fail their checksums.",
            "The PG goes on with its other replicas; `basalt pg ls` shows it.";
        REPLICAS_DIFFER = 3012:
            "Replicas of a PG differ",
            "Their bytes are not equal at one log index: a device or a program changed one of them.",
            "`basalt pg verify --deep --json` names the extents, and the OSD whose checksum differs from the others. \
             Check that device, and replace that replica: `basalt pg move` to another OSD, or `basalt disk rm --replace` \
             on the same one, which must be stopped.";
        MOUNT_FAILED = 3013:
            "The device cannot be mounted",
            "Its log or its tables are damaged beyond what a restart repairs, or it failed while they were read.",
            "Its PGs go on with their other replicas. `basalt disk check DEVICE` shows the damage. `basalt osd replace` \
             puts a new device in its place; without one, `basalt osd out` moves its replicas to other OSDs.";
        REPLICA_NOT_HERE = 3014:
            "The device holds no such replica",
            "No replica of this PG or id, no chunk of this volume, or no such snapshot is on the device.",
            "`basalt disk ls DEVICE` lists the replicas, `basalt pg ls` the OSDs of each PG.";
        OTHER_PART = 3015:
            "The device holds another part of an OSD",
            "An OSD that was formatted with --log-device has its log on one device and its home, the data area, on another.",
            "Name both devices as they were at the format: the home with --device, the log with --log-device.";
        OSD_SILENT = 3016:
            "The OSD does not tell of its devices",
            "The OSD is not up, has no HTTP address, or does not answer there.",
            "Start it, or see its log; `basalt disk info` shows the devices of an OSD that is stopped.";
    }
    // 4xxx: network of the data plane.
    4001..=4999 {
        PEER_OF_OTHER_CLUSTER = 4001:
            "Wrong cluster",
            "The process at that address belongs to another cluster.",
            "Check the address.";
        NO_COMMON_VERSION = 4002:
            "No common protocol version",
            "The versions of the two programs are too far apart.",
            "Upgrade the older one; adjacent versions are compatible.";
        WRONG_PEER = 4003:
            "Wrong peer",
            "Another OSD than expected answers at that address.",
            "Check for two OSDs with the same address.";
        BAD_FRAME = 4004:
            "A malformed frame",
            "The bytes at that port are not this protocol's.",
            "Check which program connects there; the connection was closed.";
        TOO_MANY_CONNECTIONS = 4005:
            "Too many connections",
            "The limit of connections is reached; it is fixed in the program.",
            "Close connections that are not needed.";
        HOST_NAME_UNRESOLVED = 4006:
            "A host name cannot be resolved",
            "The resolver of this host knows no address for it, or does not answer.",
            "`getent ahosts NAME` asks the same resolver; see /etc/hosts and /etc/resolv.conf.";
    }
    // 5xxx: volume.
    5001..=5999 {
        VOLUME_OPEN_ELSEWHERE = 5001:
            "The volume is open elsewhere",
            "Another client has it open for writing; metadata servers report this as BSLT-2020.",
            "Stop that client, or force-attach with --steal: its writes are rejected from then on.";
        VOLUME_TAKEN_OVER = 5002:
            "The volume was taken over",
            "Another client attached it with --steal or after this one was silent for 10 s, or a `meta recover` ended \
             all sessions: writes of this session are rejected.",
            "`basalt volume info POOL/VOLUME` names the present client; open the volume again when that client has \
             closed it.";
        NO_SPACE_LEFT = 5003:
            "No space left",
            "An OSD of the volume's PGs is full. One full OSD stops the writes of its PGs, although others have space.",
            "`basalt osd ls` shows which OSD is full. Delete volumes, or trim them. New OSDs take new pools only: this \
             version does not move data to them.";
        DATA_DAMAGED = 5004:
            "Stored data is damaged",
            "A block fails its checksum and no good copy was found.",
            "`basalt pg verify --deep` names the extents.";
        VOLUME_OF_OTHER_CLUSTER = 5005:
            "The volume belongs to another cluster",
            "This process holds volumes of one cluster already.",
            "Start another process for the other cluster.";
        TOO_MANY_VOLUMES = 5006:
            "Too many volumes are open",
            "One process holds at most 4096.",
            "Close some, or start another process.";
        REQUESTS_NOT_ANSWERED = 5007:
            "Requests were not answered",
            "The volume's PGs did not serve within the time, or the process was ending.",
            "`basalt status` shows which PGs do not serve.";
        VOLUME_NOT_EMPTY = 5008:
            "The volume holds data",
            "Space of the volume is allocated, so a write test would destroy its data.",
            "Measure a new volume, or give --overwrite if its data may be lost. `--op randread` and `--op read` write \
             nothing.";
        FAULT_REHEARSED = 5009:
            "A rehearsed fault",
            "An administrator rehearses errors of the storage on this volume (`basalt volume fault add --error`). Nothing was sent or done.",
            "`basalt volume fault ls POOL/VOLUME` shows the fault and its end; `basalt volume fault rm POOL/VOLUME --all` ends it.";
        WRITER_FENCED = 5010:
            "The volume was taken from this client",
            "A command fenced this client of a multi-writer volume, another client attached the volume with --steal, or a \
             `meta recover` ended all sessions. What this client has sent and was not answered has no effect, and must not be sent \
             again: the other clients have recovered its work.",
            "Restart this host, or whatever uses the volume on it, and then open the volume again.";
    }
    // 6xxx: frontends.
    6001..=6999 {
        EXPORT_FAILED = 6001:
            "The export cannot be served",
            "The socket or port cannot be used.",
            "Remove a stale socket, or choose another with --socket or --listen.";
        ENDED_BEFORE_OPEN = 6002:
            "A signal ended the process before its volume was open",
            "A signal came while it waited for meta or for a PG.",
            "Start it again when the cluster answers: `basalt status`.";
        BAD_CALL = 6003:
            "A call of a client library breaks a rule",
            "An argument is wrong, a handle is closed or still in use, or a queue is full.",
            "The manual of the library states the rules of each call: basalt.h for C, docs/python.md for Python.";
        NO_RESOURCES = 6004:
            "The system gives the client library no thread, descriptor or ring",
            "A limit of the process or of the machine is reached, or the ring has failed.",
            "The message has the reason of the system; compare `ulimit -a` and free memory with what the program needs.";
        KERNEL_DEVICE_FAILED = 6005:
            "A device of the kernel cannot be served",
            "The module nbd is not loaded, the process lacks CAP_SYS_ADMIN, or the device is in use.",
            "`modprobe nbd`, run it as root, or let --device auto choose a free device.";
    }
    // 7xxx: backups.
    7001..=7999 {
        BACKUP_STORE_FAILED = 7001:
            "The place of backups cannot be used",
            "The directory or the S3 server refuses or does not answer, or no backup was ever made there.",
            "Check --repo, AWS_ENDPOINT_URL and the credentials; `basalt backup create` makes a new repository.";
        BACKUP_DAMAGED = 7002:
            "A backup is damaged",
            "An object of the backup does not have the bytes that were written. Nothing of it was restored.",
            "`basalt backup verify` names the backups that are whole; restore one of them, and make a new one with --full.";
        BACKUP_UNKNOWN = 7003:
            "There is no such backup",
            "No record has this volume or id.",
            "`basalt backup ls` shows all.";
        BACKUP_NEWER = 7004:
            "The backups are of a newer version",
            "A later version of Basalt made this repository, in a format that this one does not know.",
            "Use the newer version.";
        BACKUP_TAKEN = 7005:
            "Another volume has a backup of this name",
            "Two clusters save volumes of the same name in one repository.",
            "Give each cluster a repository of its own, for example another prefix of the bucket.";
        BACKUP_GIVEN_UP = 7006:
            "The backup was given up",
            "Another `backup create` went on with it or has ended it, or `backup prune --drop-drafts` deleted its draft.",
            "`basalt backup ls` shows whether it is there; repeat `basalt backup create` otherwise.";
        STREAM_DAMAGED = 7007:
            "A stream is damaged or cut",
            "The bytes are not those that `basalt backup export` wrote, or end too early. The volume has a part of the contents at most.",
            "Copy the stream again, or export it again; then import it into the same volume.";
        BACKUP_BASE = 7008:
            "The volume is not at the base of the increment",
            "An increment needs a volume as the import of its base left it, and without a change since.",
            "Roll the volume back to the snapshot of that import, or import a stream without --since into a new volume.";
        STREAM_INCOMPARABLE = 7009:
            "The snapshots cannot be compared",
            "The volume was rolled back between them, or the older one was deleted.",
            "Choose another snapshot with --since, or export without it.";
    }
    // 9xxx: bugs.
    9001..=9999 {
        BUG = 9001:
            "A bug",
            "An invariant of Basalt itself is broken.",
            "Please report it with the log.";
    }
}

// Numbers ascend, so none is given twice.
const _: () = {
    let mut row = 1;
    while row < CODES.len() {
        assert!(CODES[row - 1].number < CODES[row].number, "codes do not ascend");
        row += 1;
    }
};

/// Returns the row of a code.
pub fn lookup(number: u32) -> Option<&'static Code> {
    CODES.iter().find(|c| c.number == number)
}

/// Returns a code as users read it, for example `BSLT-2020`.
pub fn label(number: u32) -> String {
    format!("BSLT-{number:04}")
}

#[cfg(test)]
mod tests {
    use super::{CODES, VOLUME_HELD, label, lookup};

    #[test]
    fn every_row_has_a_title_a_cause_and_a_remedy() {
        for code in CODES {
            assert!([code.title, code.why, code.fix].iter().all(|text| !text.is_empty()), "{}", code.name);
            assert!(!code.fix.ends_with(char::is_whitespace) && !code.why.contains("  "), "{}", code.name);
        }
    }

    #[test]
    fn a_code_is_found_by_its_number_and_has_the_name_of_its_constant() {
        assert_eq!(lookup(VOLUME_HELD).map(|code| (code.number, code.name)), Some((2020, "VOLUME_HELD")));
        assert_eq!(lookup(2000), None);
        assert_eq!(label(VOLUME_HELD), "BSLT-2020");
    }
}
