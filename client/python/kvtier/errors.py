# SPDX-License-Identifier: Apache-2.0
"""Status codes of libkvtier and the exceptions they become.

UNAVAILABLE (no daemon, or the connection was lost) is not a failure of the caller. Calls that can
answer "miss" do so instead of raising; the others raise UnavailableError.
"""

from __future__ import annotations

from typing import Any

from . import _library
from ._cheader import HeaderEnum, enum_of, unnamed_member


@enum_of(_library.abi, "KVT_OK")
class Status(HeaderEnum):
    """How a call, or one entry of a commit or release, ended: kvt_status without the prefix, for
    example OK, ALREADY_EXISTS, STALE_HANDLE. Numbers may be added."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return unnamed_member(cls, value, "STATUS")


class KvtierError(Exception):
    """The request cannot be served.

    status: the code; reason: short and stable, for programs ("pool_full"); context: the
    particulars, for people, possibly empty.
    """

    def __init__(self, status: Status, reason: str, context: str = "") -> None:
        self.status = status
        self.reason = reason
        self.context = context
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.status.name.lower()}: {self.reason}"
        return f"{text} ({self.context})" if self.context else text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.reason, self.context)


class InvalidArgumentError(KvtierError, ValueError):
    """An argument is out of its range, or the object is closed."""


class NotFoundError(KvtierError, LookupError):
    """No such model, device or load."""


class AlreadyExistsError(KvtierError):
    """It is there already."""


class PermissionDeniedError(KvtierError, PermissionError):
    """This user belongs to no tenant, or may not use the admin socket."""


class ResourceExhaustedError(KvtierError):
    """The pool is full: try later or release something. Nothing is held by the failed call."""


class StaleHandleError(KvtierError):
    """The sequence, block or load belongs to a connection that was lost, or was freed since."""


class NotOwnerError(KvtierError):
    """The block is another session's."""


class WrongStateError(KvtierError):
    """Not now: for example a wait is due first."""


class LimitExceededError(KvtierError):
    """More than the daemon takes in one call or holds for one session."""


class UnavailableError(KvtierError, ConnectionError):
    """No daemon, or the connection was lost. Go on without the cache and call again later."""


class IoError(KvtierError, OSError):
    """Memory, a socket or a copy failed."""


class CorruptError(KvtierError):
    """The daemon broke the protocol."""


class TimedOutError(KvtierError, TimeoutError):
    """The daemon did not answer in time."""


class UnsupportedError(KvtierError):
    """Not possible with this daemon or on this device."""


class CancelledError(KvtierError):
    """Given up before it was done."""


class InternalError(KvtierError):
    """A fault of the library or the daemon."""


# A status that only a newer library knows becomes a plain KvtierError.
_ERRORS: dict[Status, type[KvtierError]] = {
    Status.INVALID_ARGUMENT: InvalidArgumentError,
    Status.NOT_FOUND: NotFoundError,
    Status.ALREADY_EXISTS: AlreadyExistsError,
    Status.PERMISSION_DENIED: PermissionDeniedError,
    Status.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    Status.STALE_HANDLE: StaleHandleError,
    Status.NOT_OWNER: NotOwnerError,
    Status.WRONG_STATE: WrongStateError,
    Status.LIMIT_EXCEEDED: LimitExceededError,
    Status.UNAVAILABLE: UnavailableError,
    Status.IO_ERROR: IoError,
    Status.CORRUPT: CorruptError,
    Status.TIMEOUT: TimedOutError,
    Status.UNSUPPORTED: UnsupportedError,
    Status.CANCELLED: CancelledError,
    Status.INTERNAL: InternalError,
}


def error_of(status: int, reason: str, context: str = "") -> KvtierError:
    """The exception for a status that is not OK."""
    code = Status(status)
    return _ERRORS.get(code, KvtierError)(code, reason, context)


def check(status: int) -> None:
    """Raises the calling thread's last error unless `status` is OK."""
    if status != Status.OK:
        error = _library.load().kvt_last_error().contents
        raise error_of(error.code, _text(error.reason), _text(error.context))


def check_available(status: int) -> bool:
    """False if `status` is UNAVAILABLE, True if OK; raises for the rest."""
    if status == Status.UNAVAILABLE:
        return False
    check(status)
    return True


def invalid(reason: str, context: str = "") -> InvalidArgumentError:
    """For arguments that this package refuses itself."""
    return InvalidArgumentError(Status.INVALID_ARGUMENT, reason, context)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
