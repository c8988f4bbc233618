"""Volumes of a Basalt cluster: administration, blocking I/O, and asynchronous I/O in :mod:`basalt.aio`.

    import basalt

    with basalt.connect("meta1:7300") as cluster:
        cluster.create_volume("main/vm1", 1 << 30)
        with cluster.open("main/vm1") as volume:
            volume.write(0, b"hello".ljust(512))
            print(volume.read(0, 512))

The manual is docs/python.md of the repository.
"""

from basalt._errors import (
    AlreadyExists,
    Busy,
    Closed,
    Damaged,
    Error,
    Fenced,
    InvalidArgument,
    NoSpace,
    NotFound,
    NotSupported,
    ReadOnly,
    TimedOut,
    TryAgain,
    Unavailable,
)
from basalt._native import REQUEST_BYTES_MAX
from basalt._sync import Cluster, Volume, connect
from basalt._views import (
    EventInfo,
    Extent,
    FaultInfo,
    Limit,
    PoolInfo,
    SnapshotInfo,
    SnapshotSpace,
    Space,
    Status,
    TrashInfo,
    VolumeInfo,
    WriterInfo,
)

__all__ = [
    "REQUEST_BYTES_MAX",
    "AlreadyExists",
    "Busy",
    "Closed",
    "Cluster",
    "Damaged",
    "Error",
    "EventInfo",
    "Extent",
    "FaultInfo",
    "Fenced",
    "InvalidArgument",
    "Limit",
    "NoSpace",
    "NotFound",
    "NotSupported",
    "PoolInfo",
    "ReadOnly",
    "SnapshotInfo",
    "SnapshotSpace",
    "Space",
    "Status",
    "TimedOut",
    "TrashInfo",
    "TryAgain",
    "Unavailable",
    "Volume",
    "VolumeInfo",
    "WriterInfo",
    "connect",
]
