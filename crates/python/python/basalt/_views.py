"""What the cluster tells about itself. Sizes are bytes, times are UTC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


@dataclass(frozen=True)
class VolumeInfo:
    """One volume."""

    id: int
    #: ``pool/volume``.
    name: str
    size: int
    #: Bytes of segments (1 GiB each) that were written to.
    allocated: int
    #: ``ready``, ``cloning`` or ``deleting``.
    state: str
    created: datetime
    #: The client that has it open for writing; of several the last one.
    holder: str | None
    #: All clients that have it open for writing, in the order of their opens.
    writers: tuple[WriterInfo, ...]
    #: Clients that :meth:`Cluster.fence_volume` fences, until it is certain that they are.
    being_fenced: tuple[WriterInfo, ...]
    #: Whether several clients may write at a time.
    multi_writer: bool
    #: Length of a stripe unit; ``None`` when the volume is not striped.
    stripe_unit: int | None
    stripe_count: int
    description: str
    labels: dict[str, str]
    #: What writes do while the pool is full: ``client``, ``wait`` or ``error``.
    when_full: str
    #: Limits of its I/O by name: ``iops``, ``read-iops``, ``write-iops``, ``bandwidth``, ``read-bandwidth``, ``write-bandwidth``,
    #: ``floor-iops``, ``floor-bandwidth``.
    limits: dict[str, Limit]
    #: Whose limits they are: ``volume``, ``pool`` or ``none``.
    limits_of: str
    #: The size that a resize gives it.
    resizing_to: int | None
    #: While it gets shorter: ``client``, ``search``, ``chunks`` or ``wipe``.
    shrink_step: str | None
    #: The snapshot to which it is being turned back.
    rollback_to: str | None
    #: The snapshot with whose contents it began.
    parent: str | None
    #: While it is flattened: the part that is copied, in percent.
    flattened_percent: int | None
    #: Faults that are rehearsed on it.
    faults: tuple[FaultInfo, ...]
    #: Number of its snapshots.
    snapshots: int
    #: Number of its clones.
    clones: int

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> VolumeInfo:
        faults = tuple(FaultInfo._of(fault) for fault in raw.pop("faults"))
        writers = tuple(WriterInfo._of(writer) for writer in raw.pop("writers"))
        fenced = tuple(WriterInfo._of(writer) for writer in raw.pop("being_fenced"))
        limits = {name: Limit(*limit) for name, limit in raw.pop("limits").items()}
        created = _moment(raw.pop("created_ms"))
        return cls(created=created, faults=faults, writers=writers, being_fenced=fenced, limits=limits, **raw)


@dataclass(frozen=True)
class Limit:
    """A limit of I/O."""

    #: Operations or bytes per second; 0 removes the limit.
    rate: int
    #: A higher rate after a quiet time; 0 removes it.
    burst: int | None = None
    #: The time for which it holds.
    burst_seconds: int | None = None


@dataclass(frozen=True)
class WriterInfo:
    """One client that has a volume open for writing."""

    session: int
    #: Kind of client, host and process.
    name: str
    address: str
    since: datetime
    #: Whether its lease has not expired.
    alive: bool

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> WriterInfo:
        return cls(since=_moment(raw.pop("since_ms")), **raw)


@dataclass(frozen=True)
class FaultInfo:
    """One rehearsed fault of a volume."""

    id: int
    #: ``latency``, ``error`` or ``pause``.
    kind: str
    #: Seconds that requests begin later; ``None``: it is no latency.
    latency: float | None
    #: Share of the requests.
    percent: int
    reads: bool
    writes: bool
    since: datetime
    #: It ends by itself then.
    until: datetime
    #: The administrator that asked for it.
    by: str

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> FaultInfo:
        since, until = _moment(raw.pop("since_ms")), _moment(raw.pop("until_ms"))
        return cls(since=since, until=until, **raw)


@dataclass(frozen=True)
class TrashInfo:
    """One removed volume whose data is still kept."""

    id: int
    #: ``pool/volume``, as it was called.
    name: str
    size: int
    allocated: int
    #: ``trashed`` or ``deleting``.
    state: str
    since: datetime
    #: When its deletion begins.
    until: datetime
    #: Whether that time has come.
    expired: bool
    #: The administrator that removed it.
    by: str
    description: str
    labels: dict[str, str]

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> TrashInfo:
        since, until = _moment(raw.pop("since_ms")), _moment(raw.pop("until_ms"))
        return cls(since=since, until=until, **raw)


@dataclass(frozen=True)
class SnapshotInfo:
    """One snapshot."""

    id: int
    volume_id: int
    #: ``pool/volume@snapshot``.
    name: str
    #: Size of the volume at that time.
    size: int
    created: datetime
    #: ``cutting``, ``ready`` or ``deleting``.
    state: str
    #: Snapshots of one cut are of the same point in time.
    cut: int
    protected: bool
    #: The administrator that asked for it.
    by: str
    description: str
    labels: dict[str, str]
    #: Number of its clones.
    clones: int

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> SnapshotInfo:
        return cls(created=_moment(raw.pop("created_ms")), **raw)


@dataclass(frozen=True)
class SnapshotSpace:
    """Space of one snapshot, in bytes of one replica."""

    id: int
    #: ``pool/volume@snapshot``.
    name: str
    #: Bytes that it shows and that are stored for it, perhaps for others, too.
    stored: int
    #: Bytes that its deletion would give back.
    freed: int


@dataclass(frozen=True)
class Space:
    """Space of a volume and its snapshots, in bytes of one replica."""

    #: Bytes that the volume shows.
    allocated: int
    #: Those of them that no snapshot and no other volume has, too.
    exclusive: int
    #: Those of them that are shared.
    shared: int
    #: Bytes of the volume and its snapshots.
    stored: int
    #: Bytes of deleted snapshots that clones need.
    removed: int
    #: Bytes of deleted snapshots that are being freed.
    reclaimable: int
    #: Replicas of each PG: each holds ``stored`` bytes.
    replicas: int
    snapshots: list[SnapshotSpace]

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> Space:
        return cls(snapshots=[SnapshotSpace(**one) for one in raw.pop("snapshots")], **raw)


@dataclass(frozen=True)
class Extent:
    """A run of bytes of a volume."""

    offset: int
    length: int
    #: Whether data is stored there, which may be zeroes; with ``since``, whether it may differ from that snapshot.
    data: bool


class _Extents:
    """Joins the extents of several answers: neighbours that agree become one."""

    def __init__(self, volume_size: int, offset: int, length: int | None) -> None:
        self.at = offset
        self.end = volume_size if length is None else offset + length
        self.joined: list[Extent] = []

    def add(self, runs: Iterable[tuple[int, bool]]) -> bool:
        """Add the runs from ``at`` on. Return whether more are missing."""
        before = self.at
        for length, data in runs:
            last = self.joined[-1] if self.joined else None
            if last is not None and last.data == data:
                self.joined[-1] = Extent(last.offset, last.length + length, data)
            else:
                self.joined.append(Extent(self.at, length, data))
            self.at += length
        return before < self.at < self.end


@dataclass(frozen=True)
class PoolInfo:
    """One pool."""

    id: int
    name: str
    replicas: int
    #: The failure domain: ``osd``, ``host``, ``rack`` or ``zone``.
    domain: str
    pg_count: int
    #: ``creating``, ``ready`` or ``deleting``.
    state: str
    volumes: int
    #: Volumes in the trash, which ``volumes`` does not count.
    trashed: int
    #: Sum of the sizes of its volumes, with those in the trash.
    provisioned: int
    #: Most that this sum may be; ``None``: no bound.
    quota: int | None
    quota_volumes: int | None
    #: Class of the OSDs that its replicas lie on; ``None``: any.
    device_class: str | None
    #: What all volumes on its OSDs could take, in percent of what these have; ``None``: not known.
    overcommit_percent: int | None
    #: Bytes that can be written before the first of its OSDs is full; ``None``: no OSD has reported.
    available: int | None
    #: ``none`` or ``zstd``: of backups of its volumes that ask for none.
    backup_compression: str


@dataclass(frozen=True)
class EventInfo:
    """One thing that happened in the cluster. The newest 10 000 are kept."""

    #: Grows by one with each event of the cluster.
    number: int
    at: datetime
    #: As ``volume.created``; the manual page of ``basalt events`` lists them.
    kind: str
    #: ``info`` or ``warning``.
    level: str
    #: ``volume main/vm1``, ``osd.3``, ``pg 1.1f``, ``pool main``, ``meta`` or ``cluster``.
    subject: str
    #: Name and address of the client that caused it; empty when no client did.
    by: str
    text: str

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> EventInfo:
        return cls(at=_moment(raw.pop("at_ms")), **raw)


@dataclass(frozen=True)
class Status:
    """The cluster as a whole."""

    #: Its uuid.
    cluster: str
    #: ``ok``, ``waiting``, ``degraded`` or ``down``.
    health: str
    #: One line each.
    problems: list[str]
    osds: int
    osds_up: int
    pools: int
    volumes: int
    capacity: int
    used: int
    free: int
    #: Version of the leading metadata server.
    version: str
