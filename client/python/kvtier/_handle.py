# SPDX-License-Identifier: Apache-2.0
"""Ownership of the library's objects: each is freed once, and before the one it depends on."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Callable

from .errors import Status, error_of, invalid


class Handle:
    """Owns one C object, which is freed when this is closed and nothing needs it any more: what was
    made from it is closed first, and pins are waited for.

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
        weakref.finalize(owner, self.close).atexit = False  # type: ignore[misc]

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
        # A forked child shares the parent's socket: what it freed would be freed for the parent.
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
