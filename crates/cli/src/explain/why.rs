//! Reasons of the refusals of a metadata server, by 2xxx code. Their titles and advice are in `control::codes`.

/// Returns the reason behind a code; empty for a code without one.
pub fn of(code: u32) -> &'static str {
    REASONS.iter().find(|(number, _)| *number == code).map_or("", |(_, why)| why)
}

const REASONS: &[(u32, &str)] = &[
    (
        2001,
        "No process listens at the addresses that were asked, the network is cut, or several metas run and their election is not over.",
    ),
    (
        2002,
        "More requests came than the metadata server takes at once; a burst of attachments or a slow store of records does that.",
    ),
    (
        2003,
        "Several metas run and one leads; a request that changes records is served by the leader alone. Clients follow by themselves.",
    ),
    (
        2004,
        "A field is missing or out of range: the two programs are of different versions, or another program connected to the port.",
    ),
    (
        2005,
        "A write to meta.redb or to etcd failed, or another meta was elected while the request was worked on. The change may be lost.",
    ),
    (2010, "The name was mistyped, the pool was removed, or the command asked another cluster than was meant."),
    (2011, "The name was mistyped, the volume was removed, or the command asked another cluster than was meant."),
    (
        2012,
        "Names of pools are unique in a cluster; a pool that is being removed keeps its name until its replicas are gone.",
    ),
    (
        2013,
        "Names of volumes are unique in a pool; a volume that is being deleted keeps its name until its space is given back.",
    ),
    (2014, "Names are parts of sockets, URIs and files, so only characters that are safe in all of them are taken."),
    (
        2015,
        "A volume is cut into segments of 1 GiB, of which it may have 65536, and blocks of 512 bytes are the least that is addressed.",
    ),
    (
        2016,
        "Other numbers of replicas have no majority worth their cost, and the number of PGs of a pool is fixed when it is made.",
    ),
    (2017, "Replicas of a PG are never placed in the same failure domain, and there are fewer of these than replicas."),
    (2018, "Removing a pool would delete its volumes; that is done volume by volume, so that none goes by accident."),
    (2019, "The pool's PGs are being placed on OSDs, or its replicas are being dropped."),
    (
        2020,
        "A volume has one writer. The holder still sends keepalives, every 2 s; one that is silent for 10 s is replaced without --steal.",
    ),
    (
        2021,
        "Another client attached the volume with --steal or after this one was silent for 10 s, or `meta recover` ended all sessions. Writes of this session are rejected by every OSD.",
    ),
    (2022, "A segment beyond the end of the volume was asked for: the client believes in another size."),
    (
        2023,
        "Space is taken at the first write of a segment, and this client attached the volume without the right to write.",
    ),
    (
        2024,
        "The records hold no OSD of that number and uuid: its device was formatted for another cluster, or the metadata store was made again.",
    ),
    (
        2025,
        "The records bind each OSD id to one uuid and one running process. This device carries another uuid, or it is a copy of one that is being served.",
    ),
    (2026, "The superblock of the device names another cluster than these metadata servers serve."),
    (2027, "Lists in requests are bounded, so that one request cannot take all the memory of a metadata server."),
    (2028, "A number is reserved for one device at its format; another device has it."),
    (2029, "The names of failure domains are kept in every record of an OSD, so their length is bounded."),
    (
        2030,
        "The store was restored from an older copy, or another cluster's store was put in its place. It would give out ids again that OSDs have used.",
    ),
    (
        2031,
        "What OSDs remember is the proof that the store is not an older copy, and too few of them are up to give it.",
    ),
    (2040, "The code of the check was mistyped, or another version has such a check. Codes are written in capitals."),
    (
        2041,
        "The cluster remembers how far the log of each device had come; this device is behind that. Served as it is, it could vote for a past in which acknowledged writes are missing.",
    ),
    (
        2043,
        "Clients that held volumes before the recovery could still write to segments that the records do not know. They are shut out first, then these segments are put back.",
    ),
    (2042, "An OSD with PGs holds the only other copies of their data, and one that runs would report again."),
];
