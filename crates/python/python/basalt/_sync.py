"""The blocking interface: a cluster and its volumes."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from basalt import _native
from basalt._errors import Error, NotFound, _closed
from basalt._views import (
    EventInfo,
    Extent,
    FaultInfo,
    Limit,
    PoolInfo,
    SnapshotInfo,
    Space,
    Status,
    TrashInfo,
    VolumeInfo,
    _Extents,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

#: Guards the sets of clusters. A handler of a signal may close a cluster while the same thread does so.
_lock = threading.RLock()
#: Clusters that the program has not closed. They are closed when the interpreter ends. The program may drop one: its threads then
#: end by themselves.
_clusters: WeakSet[Cluster] = WeakSet()
#: Clusters whose close has begun and has not ended: the interpreter waits for those, dropped or not.
_closing: set[Cluster] = set()


def _rates(limits: Mapping[str, int | Limit] | None) -> dict[str, tuple[int | None, int | None, int | None]]:
    every = {name: limit if isinstance(limit, Limit) else Limit(limit) for name, limit in (limits or {}).items()}
    return {name: (limit.rate, limit.burst, limit.burst_seconds) for name, limit in every.items()}


def connect(
    meta: str | Iterable[str] | None = None,
    *,
    connect_timeout: float = 15.0,
    io_timeout: float | None = None,
    full_wait: float = 20.0,
    on_unavailable: float | Literal["freeze", "wait", "error"] = "freeze",
) -> Cluster:
    """Connect to a cluster.

    ``meta`` names its metadata servers, as ``"HOST:PORT,HOST:PORT"`` or as a list; without it, the environment variable
    ``BASALT_META`` does. Times are seconds: ``connect_timeout`` is the longest wait for a metadata server, here and in each call
    of an administrator. A request to a volume fails after ``io_timeout``; ``None``: it waits as long as it takes. A write
    waits for space in a full pool for ``full_wait``, unless :attr:`VolumeInfo.when_full` says otherwise.

    ``on_unavailable`` is about requests whose part of the volume no replica has served for 5 s. With ``"freeze"`` they wait as
    long as it takes; with a number, each fails when it is so many seconds old (``"wait"``: 30); with ``"error"`` they fail at
    once until the storage is back. They raise :class:`basalt.TimedOut`; such a write may have taken effect, or do so later.
    """
    return Cluster(
        meta,
        connect_timeout=connect_timeout,
        io_timeout=io_timeout,
        full_wait=full_wait,
        on_unavailable=on_unavailable,
    )


class Cluster:
    """A cluster. Its methods may be called from any thread. It is a context manager that closes it.

    Each method raises :class:`basalt.Error`, whose subclass tells the kind.
    """

    def __init__(
        self,
        meta: str | Iterable[str] | None = None,
        *,
        connect_timeout: float = 15.0,
        io_timeout: float | None = None,
        full_wait: float = 20.0,
        on_unavailable: float | Literal["freeze", "wait", "error"] = "freeze",
    ) -> None:
        """See :func:`basalt.connect`."""
        #: Held through a close: a later caller waits for the first.
        self._ending = threading.RLock()
        #: Guards what follows.
        self._lock = threading.RLock()
        self._is_closing = False
        #: A volume that the program drops is closed in the background, so this does not keep it.
        self._volumes: WeakSet[Volume] = WeakSet()
        metas = meta if meta is None or isinstance(meta, str) else ",".join(meta)
        #: ``None`` when the close has ended.
        self._native: _native.Cluster | None = _native.Cluster(
            metas, connect_timeout, io_timeout, full_wait, on_unavailable
        )
        with _lock:
            _clusters.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _close_after(self.close, error)

    @property
    def closed(self) -> bool:
        """Whether it was closed; also while that goes on."""
        return self._is_closing

    def close(self) -> None:
        """Close the volumes that are open, and end the threads of the library. A second call waits for the first.

        Requests in flight get 3 s, and the metadata server gets 2 s. When the wait is interrupted, the close goes on, and the end of
        the program waits for it.
        """
        with self._ending:
            if (native := self._native) is None:
                return
            volumes = self._begin_close()
            failure: Exception | None = None
            try:
                for volume in volumes:
                    try:
                        volume._native.begin_close()
                    except Error as error:
                        failure = failure or error
                for volume in volumes:
                    try:
                        volume.close()
                    except Error as error:
                        failure = failure or error
            finally:
                # Whatever was interrupted: this closes the volumes that are left.
                native.begin_stop()
            native.stop()
            self._native = None
            with _lock:
                _clusters.discard(self)
                _closing.discard(self)
        if failure is not None:
            raise failure

    def _begin_close(self) -> list[Volume]:
        """Take no call any more. Return the volumes."""
        with _lock:
            _closing.add(self)
        with self._lock:
            self._is_closing = True
            return list(self._volumes)

    def _opened(self) -> _native.Cluster:
        if (native := self._native) is None or self._is_closing:
            raise _closed("cluster")
        return native

    def _ask(self, request: str, **arguments: Any) -> Any:
        return self._opened().admin(request, arguments)

    def open(self, name: str, *, read_only: bool = False, steal: bool = False) -> Volume:
        """Open ``pool/volume`` as its only writer, or for reading beside a writer; a snapshot is opened for reading.

        ``steal`` takes the volume over from its present writer, whose writes then raise :class:`basalt.Fenced`. Without it
        :class:`basalt.Busy` names that client. :class:`basalt.TimedOut` after 15 s without an answer, whatever
        ``connect_timeout`` is.
        """
        return self._adopt(self._begin_open(name, read_only, steal).wait())

    def _begin_open(self, name: str, read_only: bool, steal: bool) -> _native.Opening:
        return self._opened().begin_open(name, read_only or "@" in name, steal)

    def _adopt(self, native: _native.Volume) -> Volume:
        """Return a volume that was opened. If the cluster is being closed, that closes the volume, too."""
        with self._lock:
            if self._is_closing:
                raise _closed("cluster")
            volume = Volume(native, self)
            self._volumes.add(volume)
            return volume

    def status(self) -> Status:
        """Return the state of the cluster."""
        return Status(**self._ask("status"))

    def pools(self) -> list[PoolInfo]:
        """Return the pools."""
        return [PoolInfo(**raw) for raw in self._ask("pools")]

    def events(self, after: int = 0, *, max_age: float | None = None) -> list[EventInfo]:
        """Return the events above a number, the oldest first; with ``max_age`` those of so many seconds.

        To follow the cluster, ask again with the number of the last event.
        """
        age = None if max_age is None else round(max_age * 1000)
        found: list[EventInfo] = []
        while True:
            last, page = self._ask("events", after=after, age_ms_max=age)
            found.extend(EventInfo._of(raw) for raw in page)
            if not page or found[-1].number >= last:
                return found
            after = found[-1].number

    # Volumes

    def space(self, name: str) -> Space:
        """Return the space of ``pool/volume`` and its snapshots.

        The leaders of all PGs count it: it takes longer than other requests, and the servers of the OSDs (HTTP) have to be in reach.
        """
        return Space._of(self._opened().space(name))

    def create_volume(
        self,
        name: str,
        size: int,
        *,
        stripe_count: int = 1,
        stripe_unit: int | None = None,
        description: str = "",
        labels: Mapping[str, str] | None = None,
        when_full: Literal["client", "wait", "error"] | None = None,
        multi_writer: bool = False,
        limits: Mapping[str, int | Limit] | None = None,
    ) -> VolumeInfo:
        """Create ``pool/volume`` with ``size`` bytes: 1 MiB to 64 TiB. Space is taken when it is written.

        ``when_full`` says what writes do while the pool is full; ``"client"`` is the setting ``full_wait`` of their client. With
        ``multi_writer`` several clients may write at a time, as cluster file systems need it. ``limits`` are those of
        :meth:`set_volume`.
        """
        raw = self._ask(
            "volume_create",
            name=name,
            size=size,
            stripe_count=stripe_count,
            stripe_unit=stripe_unit,
            description=description,
            labels=dict(labels or {}),
            when_full=when_full,
            multi_writer=multi_writer,
            limits=_rates(limits),
        )
        return VolumeInfo._of(raw)

    def clone_volume(
        self,
        snapshot: str,
        name: str,
        *,
        description: str = "",
        labels: Mapping[str, str] | None = None,
        when_full: Literal["client", "wait", "error"] | None = None,
        multi_writer: bool = False,
        limits: Mapping[str, int | Limit] | None = None,
    ) -> VolumeInfo:
        """Create ``pool/volume`` with the contents of ``pool/volume@snapshot``, without copying; the others as of :meth:`create_volume`."""
        raw = self._ask(
            "volume_clone",
            snapshot=snapshot,
            name=name,
            description=description,
            labels=dict(labels or {}),
            when_full=when_full,
            multi_writer=multi_writer,
            limits=_rates(limits),
        )
        return VolumeInfo._of(raw)

    def flatten_volume(self, name: str, *, cancel: bool = False) -> VolumeInfo:
        """Begin to copy into a clone all that it shows of its parent, in the background, or stop that with ``cancel``.

        :attr:`VolumeInfo.parent` of :meth:`volume` is ``None`` when it has ended.
        """
        return VolumeInfo._of(self._ask("volume_flatten", name=name, cancel=cancel))

    def add_fault(
        self,
        name: str,
        kind: Literal["latency", "error", "pause"],
        seconds: float,
        *,
        latency: float | None = None,
        percent: int = 100,
        reads: bool = True,
        writes: bool = True,
    ) -> FaultInfo:
        """Rehearse storage trouble on a volume for ``seconds``, at most a day; see ``basalt volume fault add``.

        ``latency`` is in seconds, for the kind ``"latency"`` alone. Writers learn of the fault within 2 s.
        """
        raw = self._ask(
            "fault_add",
            name=name,
            kind=kind,
            latency_ms=None if latency is None else round(latency * 1000),
            percent=percent,
            reads=reads,
            writes=writes,
            for_ms=round(seconds * 1000),
        )
        return VolumeInfo._of(raw).faults[-1]

    def remove_fault(self, name: str, id: int | None = None) -> VolumeInfo:
        """End one rehearsed fault of a volume, or all of them."""
        return VolumeInfo._of(self._ask("fault_remove", name=name, id=id))

    def volumes(self, pool: str = "") -> list[VolumeInfo]:
        """Return the volumes of a pool, or all."""
        return [VolumeInfo._of(raw) for raw in self._ask("volumes", pool=pool)]

    def volume(self, name: str) -> VolumeInfo:
        """Return one volume."""
        return VolumeInfo._of(self._ask("volume_info", name=name))

    def set_volume(
        self,
        name: str,
        *,
        description: str | None = None,
        labels: Mapping[str, str] | None = None,
        removed_labels: Sequence[str] = (),
        when_full: Literal["client", "wait", "error"] | None = None,
        multi_writer: bool | None = None,
        limits: Mapping[str, int | Limit] | None = None,
        limits_base: Literal["none", "pool"] | None = None,
    ) -> VolumeInfo:
        """Change the description, the labels, the policies and the limits of a volume; what is not given stays.

        ``multi_writer`` changes only while no client has the volume open for writing. ``limits`` are rates by the names of
        :attr:`VolumeInfo.limits`, for example ``{"iops": 500, "bandwidth": Limit(100 << 20, burst=200 << 20, burst_seconds=30)}``; a rate of
        0 removes the limit. With ``limits_base`` all others end: ``"none"`` leaves the volume without them, ``"pool"`` gives it those of
        its pool. A client that has the volume open hears of it within 2 s.
        """
        raw = self._ask(
            "volume_set",
            name=name,
            description=description,
            labels=dict(labels or {}),
            removed_labels=list(removed_labels),
            when_full=when_full,
            multi_writer=multi_writer,
            limits=_rates(limits),
            limits_base=limits_base,
        )
        return VolumeInfo._of(raw)

    def fence_volume(self, name: str, client: str | None = None, *, session: int | None = None) -> VolumeInfo:
        """Take a volume from clients: none of their writes takes effect any more when the call returns.

        ``client`` is a host, an address or a whole name of :attr:`VolumeInfo.writers`; ``session`` names one client in place of it.
        """
        return VolumeInfo._of(self._ask("volume_fence", name=name, client=client, session=session))

    def resize_volume(
        self, name: str, size: int, *, shrink: bool = False, discard_data: bool = False, force: bool = False
    ) -> VolumeInfo:
        """Make a volume longer or, with ``shrink``, shorter; also while it is open.

        A :class:`Volume` keeps the size that it was opened with. A shrink ends with BSLT-2065 when the volume has data behind the
        new end, unless ``discard_data``. It waits for the client of the volume; when that takes longer than a few seconds, the call ends
        with BSLT-2055, the shrink goes on, and the same call joins it. ``force`` takes the volume from that client.
        """
        how = {"shrink": shrink, "discard_data": discard_data, "force": force}
        return VolumeInfo._of(self._ask("volume_resize", name=name, size=size, **how))

    def rename_volume(self, name: str, new: str) -> VolumeInfo:
        """Give a volume another name in its pool, also while it is open."""
        return VolumeInfo._of(self._ask("volume_rename", name=name, new=new))

    def remove_volume(
        self, name: str, *, force: bool = False, now: bool = False, snapshots: bool = False, detach: bool = False
    ) -> TrashInfo | None:
        """Move a volume to the trash. With ``now`` its data is deleted at once, and the answer is ``None``.

        ``force``: although a client has it open. With ``now``: ``snapshots`` deletes its snapshots, too, and ``detach`` lets its
        clones stay.
        """
        raw = self._ask("volume_remove", name=name, force=force, now=now, snapshots=snapshots, detach=detach)
        return None if raw is None else TrashInfo._of(raw)

    # Trash

    def trash(self, pool: str = "") -> list[TrashInfo]:
        """Return the removed volumes of a pool, or all."""
        return [TrashInfo._of(raw) for raw in self._ask("trash", pool=pool)]

    def restore_volume(self, which: str | int, *, name: str | None = None) -> VolumeInfo:
        """Give a removed volume back, by its id, or by its name if only one had it; ``name`` is a new one, without the pool."""
        return VolumeInfo._of(self._ask("trash_restore", which=str(which), name=name))

    def purge_volume(self, which: str | int) -> None:
        """Delete a volume of the trash, by its id, or by its name if only one had it."""
        self._ask("trash_purge", which=str(which))

    # Snapshots

    def create_snapshots(
        self, names: Sequence[str], *, description: str = "", labels: Mapping[str, str] | None = None
    ) -> list[SnapshotInfo]:
        """Make snapshots ``pool/volume@snapshot`` of several volumes at one point in time, also while they are used."""
        raw = self._ask("snapshot_create", names=list(names), description=description, labels=dict(labels or {}))
        return [SnapshotInfo._of(one) for one in raw]

    def create_snapshot(self, name: str, *, description: str = "", labels: Mapping[str, str] | None = None) -> SnapshotInfo:
        """Make the snapshot ``pool/volume@snapshot``, also while the volume is used."""
        return self.create_snapshots([name], description=description, labels=labels)[0]

    def snapshots(self, of: str = "") -> list[SnapshotInfo]:
        """Return the snapshots of ``pool/volume``, of a pool, or all."""
        return [SnapshotInfo._of(raw) for raw in self._ask("snapshots", of=of)]

    def snapshot(self, name: str) -> SnapshotInfo:
        """Return the snapshot ``pool/volume@snapshot``."""
        # A name without `@` would list the snapshots of a volume.
        found = self.snapshots(name if "@" in name else f"{name}@")
        if not found:
            raise NotFound("BSLT-2050", f"there is no snapshot {name}", "list them with Cluster.snapshots()", 2)
        return found[0]

    def set_snapshot(
        self,
        name: str,
        *,
        protect: bool | None = None,
        description: str | None = None,
        labels: Mapping[str, str] | None = None,
        removed_labels: Sequence[str] = (),
    ) -> SnapshotInfo:
        """Change the protection, the description and labels of a snapshot; what is not given stays.

        A protected snapshot cannot be removed, and its volume neither.
        """
        changes = {"description": description, "labels": dict(labels or {}), "removed_labels": list(removed_labels)}
        return SnapshotInfo._of(self._ask("snapshot_set", name=name, protect=protect, **changes)[0])

    def rename_snapshot(self, name: str, new: str) -> SnapshotInfo:
        """Give a snapshot another name."""
        return SnapshotInfo._of(self._ask("snapshot_set", name=name, new=new)[0])

    def rollback_snapshot(self, name: str, *, force: bool = False) -> VolumeInfo:
        """Give a volume the contents of its snapshot again; with ``force`` although a client has it open."""
        return VolumeInfo._of(self._ask("snapshot_rollback", name=name, force=force))

    def remove_snapshot(self, name: str, *, detach: bool = False) -> None:
        """Delete a snapshot. Its space comes back in the background. ``detach``: although it has clones, which stay."""
        self._ask("snapshot_remove", name=name, detach=detach)


class Volume:
    """An open volume, from :meth:`Cluster.open`. Its methods may be called from any thread. It is a context manager that closes it.

    Offsets and lengths are bytes, multiples of ``block_size``. A write that has returned is durable on a majority of its
    replicas. Requests of several threads have no order among each other.
    """

    def __init__(self, native: _native.Volume, cluster: Cluster) -> None:
        self._native = native
        # A volume keeps its cluster, which closes it when the interpreter ends.
        self._cluster = cluster
        #: ``pool/volume``, or ``pool/volume@snapshot``.
        self.name = native.name
        #: Length in bytes when it was opened.
        self.size = native.size
        #: Offsets and lengths are multiples of this: 512.
        self.block_size = native.block_size
        #: Requests that are aligned to this are cheaper: 4096.
        self.preferred_block_size = native.preferred_block_size
        self.read_only = native.read_only

    def __repr__(self) -> str:
        return f"<basalt.Volume {self.name}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _close_after(self.close, error)

    def __del__(self) -> None:
        if getattr(self, "_native", None) is not None and not self.closed:
            warnings.warn(f"the volume {self.name} was not closed", ResourceWarning, source=self, stacklevel=2)

    @property
    def closed(self) -> bool:
        """Whether it was closed; also while that goes on."""
        return self._native.closed

    def close(self) -> None:
        """Close the volume: requests in flight get 3 s to end and then raise :class:`basalt.Closed`.

        It waits until the metadata server knows, for 5 s in all. A second call waits for the first. When the wait is interrupted,
        the close goes on.
        """
        self._native.close()

    def _opened(self) -> _native.Volume:
        if self._native.closed:
            raise _closed("volume")
        return self._native

    def read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes, 32 MiB at most."""
        return self._opened().read(offset, length)

    def readinto(self, offset: int, buffer: Buffer) -> int:
        """Fill a writable, contiguous buffer (``bytearray``, ``memoryview``, an array of numpy); return its length in bytes.

        The buffer is filled after the read has ended, so one that failed or was interrupted leaves it as it was.
        """
        return self._opened().readinto(offset, buffer)

    def write(self, offset: int, data: Buffer) -> int:
        """Write all bytes of a contiguous buffer, 32 MiB at most; return their number."""
        return self._opened().write(offset, data)

    def flush(self) -> None:
        """Wait until every write that has returned is durable. It is so when it returns: a flush costs nothing."""
        self._opened().flush()

    def discard(self, offset: int, length: int) -> None:
        """Free the space of a range, which then reads as zeroes. It may cover the volume."""
        self._opened().discard(offset, length)

    def write_zeroes(self, offset: int, length: int, *, allocate: bool = False) -> None:
        """Make a range read as zeroes. With ``allocate`` it takes its space, so that a later write finds no full pool."""
        self._opened().write_zeroes(offset, length, allocate)

    def extents(self, offset: int = 0, length: int | None = None, *, since: SnapshotInfo | int | None = None) -> list[Extent]:
        """Return the runs of bytes from ``offset`` on, to the end of the volume or for ``length``; each has data, or reads as zeroes.

        With ``since``, an older snapshot of the volume or its id, ``data`` tells where the contents may differ from that snapshot.
        :class:`basalt.InvalidArgument` when the volume does not descend from it, as after a rollback to an older one.
        """
        found, snapshot = _Extents(self.size, offset, length), _snapshot_id(since)
        while found.add(self._opened().extents(found.at, found.end - found.at, snapshot)):
            pass
        return found.joined


def _snapshot_id(snapshot: SnapshotInfo | int | None) -> int | None:
    return snapshot.id if isinstance(snapshot, SnapshotInfo) else snapshot


def _close_after(close: Callable[[], None], error: BaseException | None) -> None:
    """Close at the end of a block. A failure of the close does not hide the exception that has ended the block."""
    try:
        close()
    except Error:
        if error is None:
            raise


def _after_fork() -> None:
    """Make locks that a thread of the parent may hold again. The extension module refuses the calls of a child."""
    global _lock
    _lock = threading.RLock()
    for cluster in {*_clusters, *_closing}:
        cluster._ending, cluster._lock = threading.RLock(), threading.RLock()
    # The parent closes them.
    _clusters.clear()
    _closing.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    """Close what the program has left open, so that the next client need not wait for leases to end."""
    with _lock:
        clusters = {*_clusters, *_closing}
    for cluster in clusters:
        try:
            cluster.close()
        except Error:
            # A child of a fork has nothing to close, and a cluster that does not answer ends the leases by itself.
            pass
