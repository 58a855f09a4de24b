# SPDX-License-Identifier: Apache-2.0
"""The stores that SGLang has asked a linker for, from then until it has taken their results.

SGLang locks the pages of each until its result is there, but a daemon that hangs may keep a store for
ever. So stores are given up that stand still: their pages have been copied to rows beside the pool,
or are not looked at any more.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from typing import Any


class Offload:
    """One store. transfers, ready: SGLang's, with the events before which pages are not to be read."""

    def __init__(self, offloads: Offloads, transfers: list[Any], ready: Sequence[Any]) -> None:
        self.transfers = transfers
        self.ready = ready
        self.result: bool | None = None
        self._offloads = offloads

    def begin_reading(self) -> bool:
        """Whether the storing thread may read pages now; `end_reading` follows then."""
        return self._offloads.begin_reading(self)

    def end_reading(self) -> None:
        self._offloads.end_reading()


class Offloads:
    """Any thread. most_idle_s: stores that stand still for so long are given up."""

    def __init__(self, most_idle_s: float) -> None:
        self._most_idle_s = most_idle_s
        self._changed = threading.Condition()
        self._offloads: collections.deque[Offload] = collections.deque()  # the oldest first
        self._is_reading = False
        self._moved_s = 0.0  # when a store last went on
        self._hang = False  # none has gone on since those of then were given up

    def add(self, transfers: list[Any], ready: Sequence[Any]) -> Offload:
        offload = Offload(self, transfers, ready)
        with self._changed:
            if all(one.result is not None for one in self._offloads):
                self._moved_s = time.monotonic()
            if self._hang:
                offload.result = False
            self._offloads.append(offload)
        return offload

    def finish(self, offload: Offload, done: bool) -> None:
        """Says whether all pages are cached; without effect for one that was given up."""
        with self._changed:
            self._moved_s = time.monotonic()
            self._hang = False
            if offload.result is None:
                offload.result = done
            self._changed.notify_all()

    def begin_reading(self, offload: Offload) -> bool:
        with self._changed:
            self._is_reading = offload.result is None
            return self._is_reading

    def end_reading(self) -> None:
        with self._changed:
            self._is_reading = False
            self._moved_s = time.monotonic()
            self._changed.notify_all()

    def completed(self) -> int:
        """How many have results, from the oldest on."""
        with self._changed:
            if self._is_waiting() and self._left_s() < 0:
                self._hang = True
                self._give_up()
            results = [one.result for one in self._offloads]
            return next((i for i, one in enumerate(results) if one is None), len(results))

    def pop(self) -> bool:
        """The oldest one's result, which is there."""
        with self._changed:
            return bool(self._offloads.popleft().result)

    def clear(self) -> None:
        """Waits until all have ended, as long as they go on, and no page is read any more."""
        with self._changed:
            while self._is_reading or (self._is_waiting() and not self._hang):
                left_s = self._left_s()
                self._hang = left_s < 0
                self._changed.wait(None if self._is_reading else max(0.0, left_s))
            self._give_up()
            self._offloads.clear()

    def _is_waiting(self) -> bool:
        return any(one.result is None for one in self._offloads)

    def _left_s(self) -> float:
        """How long nothing more need go on before all are given up."""
        if self._is_reading:
            return self._most_idle_s
        return self._moved_s + self._most_idle_s - time.monotonic()

    def _give_up(self) -> None:
        for offload in self._offloads:
            if offload.result is None:
                offload.result = False
