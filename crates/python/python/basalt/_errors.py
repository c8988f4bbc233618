"""Exceptions. Each has the code that ``basalt explain`` knows, the cause and the next step."""

from __future__ import annotations

import errno as _errno


class Error(Exception):
    """A call or a request failed.

    ``str()`` of it is one line: ``BSLT-NNNN: message; hint``.
    """

    #: The code, for example ``"BSLT-2011"``. Codes are stable: a program may decide on them.
    code: str
    #: What failed, on which thing, and why.
    message: str
    #: What to do next.
    hint: str
    #: An errno of Linux, for example ``errno.ENOENT``.
    errno: int

    def __init__(self, code: str, message: str, hint: str, errno: int) -> None:
        super().__init__(code, message, hint, errno)
        self.code = code
        self.message = message
        self.hint = hint
        self.errno = errno

    def __str__(self) -> str:
        line = f"{self.code}: {self.message}"
        return f"{line}; {self.hint}" if self.hint else line


class InvalidArgument(Error, ValueError):
    """A range, a name, a size or another argument is wrong."""


class NotFound(Error):
    """There is no such pool, volume or snapshot."""


class AlreadyExists(Error):
    """The name is taken."""


class Busy(Error):
    """The thing is in use: another client has the volume open for writing, or it has snapshots, clones or a protection."""


class TryAgain(Error):
    """The thing is not ready yet, or the metadata server has too much queued: the same call may succeed in a moment."""


class Unavailable(Error):
    """No metadata server answers, or none leads. A command that was sent may have been done."""


class TimedOut(Error):
    """The time that was set is over. A write may still take effect."""


class Fenced(Error):
    """Another client has taken the volume over: no write of this one succeeds any more."""


class ReadOnly(Error):
    """A write to a volume that is open for reading, or to a snapshot."""


class NoSpace(Error):
    """The pool is full, or its quota is used up."""


class Damaged(Error):
    """Stored data is damaged, and no good copy was found."""


class Closed(Error):
    """The volume or the cluster was closed. A request that was in flight may have taken effect."""


class NotSupported(Error):
    """The process was forked from one that uses the library."""


_CLASSES: dict[int, type[Error]] = {
    _errno.EINVAL: InvalidArgument,
    _errno.ENOENT: NotFound,
    _errno.EEXIST: AlreadyExists,
    _errno.EBUSY: Busy,
    _errno.EAGAIN: TryAgain,
    _errno.EHOSTUNREACH: Unavailable,
    _errno.ETIMEDOUT: TimedOut,
    _errno.ESTALE: Fenced,
    _errno.EROFS: ReadOnly,
    _errno.ENOSPC: NoSpace,
    _errno.EDQUOT: NoSpace,
    _errno.ESHUTDOWN: Closed,
    _errno.EBADF: Closed,
    _errno.ENOTSUP: NotSupported,
}

_DAMAGED = "BSLT-5004"


def _raised(errno: int, code: str, message: str, hint: str) -> Error:
    """Make the exception of a failure; the extension module calls this."""
    kind = Damaged if code == _DAMAGED else _CLASSES.get(errno, Error)
    return kind(code, message, hint, errno)


def _closed(what: str) -> Closed:
    return Closed("BSLT-6003", f"the {what} was closed", "open it again", _errno.EBADF)
