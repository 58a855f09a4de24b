# SPDX-License-Identifier: Apache-2.0
"""How the package holds the library's objects and hands it values.

Each C object is freed once, and before the one it depends on; Python values get the forms that C
takes, checked here where ctypes would cut them instead.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

from . import _library
from .errors import Status, check, error_of, invalid

HASH_BYTES = 32

#: Token ids: any sequence of integers from 0 to 2**32 - 1; arrays of uint32 are used as they are.
Tokens = Union[Sequence[int], "npt.NDArray[Any]"]
#: Block hashes: 32 bytes each, or all of them in one bytes object.
Hashes = Union[bytes, Iterable[bytes]]

_Self = TypeVar("_Self", bound="Scoped")


class Scoped:
    """The block's value is the object itself; at its end, however it ends, `close` is called."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Handle:
    """Owns one C object, which is freed when this is closed and nothing needs it any more: objects
    made from it are closed first, and pins are waited for.

    Closing is idempotent and may happen in any order and on any thread, as the garbage collector
    likes it, but not while another thread uses the object.
    """

    def __init__(
        self,
        noun: str,
        pointer: int | None,
        free: Callable[[int], object],
        parent: Handle | None = None,
    ) -> None:
        if pointer is None:
            raise ValueError(f"no {noun} was made")
        self._noun = noun
        self._pointer = pointer
        self._free = free
        self._parent = parent
        self._pid = os.getpid()
        # Reentrant: the garbage collector may close one handle while another is being closed.
        self._lock: threading.RLock = parent._lock if parent else threading.RLock()
        self._open = True
        self._freed = False
        self._children: set[Handle] = set()
        self._users = 0  # children that are not freed
        self._pins = 0
        if parent is not None:
            with self._lock:
                parent._children.add(self)
                parent._users += 1

    @property
    def closed(self) -> bool:
        return not self._open

    def get(self) -> int:
        """The C pointer. Raises InvalidArgumentError "closed"; WrongStateError "forked"."""
        if not self._open:
            raise invalid("closed", f"the {self._noun} is closed")
        if os.getpid() != self._pid:
            raise error_of(Status.WRONG_STATE, "forked", f"the {self._noun} is the parent's")
        return self._pointer

    def sibling(self, pointer: int | None) -> Handle:
        """Owns another object of the same kind and the same parent."""
        return Handle(self._noun, pointer, self._free, self._parent)

    def close_with(self, owner: object) -> None:
        """Closes this when `owner` is collected; at exit not, for threads may still use it, and the
        daemon notices the end of the process."""
        weakref.finalize(owner, self.close).atexit = False

    def pin(self) -> None:
        """Puts freeing off until `unpin`. Raises as `get`."""
        with self._lock:
            self.get()
            self._pins += 1

    def unpin(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._pins -= 1
        self._free_if_unused()

    def call_unpinned(self, call: Callable[[int], object]) -> None:
        """Calls with the C pointer while nothing is pinned. Raises WrongStateError "in_use"; as
        `get`."""
        with self._lock:
            pointer = self.get()
            if self._pins > 0:
                raise error_of(Status.WRONG_STATE, "in_use", f"{self._pins} arrays")
            call(pointer)

    def close(self) -> None:
        # A forked child shares the parent's socket: an object that it freed would be freed for the
        # parent.
        # Nor may it take the lock, which a thread that it lacks may hold.
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._open:
                return
            self._open = False
            children = list(self._children)
        for child in children:
            child.close()
        self._free_if_unused()

    def _drop_user(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._users -= 1
        self._free_if_unused()

    def _free_if_unused(self) -> None:
        with self._lock:
            if self._open or self._users + self._pins > 0 or self._freed:
                return
            self._freed = True
        self._free(self._pointer)
        if self._parent is not None:
            self._parent._children.discard(self)
            self._parent._drop_user()


class Owner(Scoped):
    """The base of classes that stand for one C object and make its calls. Methods raise
    InvalidArgumentError "closed" after `close`, WrongStateError "forked" in the child of a fork."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._library = _library.load()
        handle.close_with(self)

    @property
    def handle(self) -> Handle:
        """The C object, for objects made from it."""
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Idempotent. Not while another thread uses it."""
        self._handle.close()

    def _status(self, function: str, *arguments: Any) -> int:
        """How a function of the library ended that takes the object first."""
        status: int = getattr(self._library, function)(self._handle.get(), *arguments)
        return status

    def _call(self, function: str, *arguments: Any) -> None:
        """Raises the error of a call."""
        check(self._status(function, *arguments))

    def _number(self, function: str, *arguments: Any) -> int:
        """The uint32 to which the last argument of a call points. Raises its error."""
        number = ctypes.c_uint32()
        self._call(function, *arguments, ctypes.byref(number))
        return number.value


def token_array(tokens: Tokens) -> npt.NDArray[np.uint32]:
    """`tokens` as uint32 [count], copied only if need be. Raises InvalidArgumentError."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise invalid("bad_tokens", f"{array.ndim} dimensions instead of 1")
    if array.size == 0:
        return np.zeros(0, dtype=np.uint32)
    if array.dtype != np.uint32:
        if array.dtype.kind not in "iu":
            raise invalid("bad_tokens", f"{array.dtype} instead of integers")
        if array.min() < 0 or array.max() > 0xFFFFFFFF:
            raise invalid("bad_tokens", f"{array.min()} to {array.max()}, 0 to 2**32 - 1 can be")
    return np.ascontiguousarray(array, dtype=np.uint32)


def token_arrays(
    tokens: Tokens, counts: Tokens | None, blocks: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16] | None]:
    """The ids of several blocks, and how many each has; None: all are full. Raises
    InvalidArgumentError."""
    ids = token_array(tokens)
    if counts is None:
        return ids, None
    column = token_array(counts)
    if len(column) != blocks or np.any(column > 0xFFFF):
        raise invalid("bad_token_count", f"{len(column)} counts of {blocks} blocks")
    return ids, column.astype(np.uint16)


def hash_bytes(hashes: Hashes) -> bytes:
    """All hashes one behind the other. Raises InvalidArgumentError unless each has 32 bytes."""
    if isinstance(hashes, (bytes, bytearray, memoryview)):
        joined = bytes(hashes)
        if len(joined) % HASH_BYTES != 0:
            raise invalid("bad_hash", f"{len(joined)} bytes are not a multiple of {HASH_BYTES}")
        return joined
    values = hashes if isinstance(hashes, (list, tuple)) else list(hashes)
    # Lengths are compared all at once, for an acquire has hundreds of hashes.
    if not set(map(len, values)) <= {HASH_BYTES}:
        for value in values:
            one_hash(value)
    return b"".join(values)


def one_hash(value: bytes) -> bytes:
    """One hash. Raises InvalidArgumentError unless it has 32 bytes."""
    if len(value) != HASH_BYTES:
        raise invalid("bad_hash", f"{len(value)} bytes instead of {HASH_BYTES}")
    return value


def split_hashes(joined: bytes) -> list[bytes]:
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined), HASH_BYTES)]


def text(value: str | None, what: str) -> bytes | None:
    """UTF-8 for a C string. Raises InvalidArgumentError for NUL, which would cut it there, and for
    anything but text."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid("not_text", f"{what}: {value!r}")
    if "\0" in value:
        raise invalid("nul_in_text", what)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid("not_text", f"{what}: {value!r}") from None


def unsigned(value: int, bits: int, what: str) -> int:
    """`value`, which C takes with so many bits. Raises InvalidArgumentError: ctypes would cut it
    instead."""
    if not 0 <= value < 1 << bits:
        raise invalid(f"bad_{what}", str(value))
    return value


def address(array: npt.NDArray[Any]) -> int | None:
    """The address of an array's first element; None if it has none."""
    return array.ctypes.data if array.size else None


def timeout(timeout_ms: int | None) -> int:
    """None is the connection's default. Raises InvalidArgumentError."""
    if timeout_ms is None:
        return -1
    return unsigned(timeout_ms, 63, "timeout_ms")


def memory_at(start: int, byte_count: int, owner: object) -> ctypes.Array[ctypes.c_uint8]:
    """The memory at an address as a buffer. Views of it keep `owner`, so that it is not collected, and
    the memory unmapped, under them. Closing the owner unmaps it all the same."""
    memory = (ctypes.c_uint8 * byte_count).from_address(start)
    setattr(memory, "owner", owner)
    return memory


def pointer(data: bytes) -> int | None:
    """Address of bytes that are only read, for a struct's field; the caller keeps `data`."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value if data else None
