# SPDX-License-Identifier: Apache-2.0
"""The stores that the scheduler has planned and whose ends it waits for.

The daemon may read their blocks until they end, so that vLLM cannot have these back before: not for
requests, and not to reset its cache. A daemon that hangs ends none, and so gets hold of a share of
vLLM's blocks at most.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Longer than stores take that are under way. With a daemon that hangs, vLLM must preempt requests
#: instead of waiting for the blocks of stores.
PATIENCE_S = 0.2

#: While the oldest store has been under way for so long, and none has ended meanwhile, no other is begun.
#: A step counts for `STEP_S` at most, since the engine hears of ends with its steps, some of which take
#: seconds.
LATE_S, STEP_S = 1.0, 0.1

#: An engine that has nothing else to do, as one that is to pause, steps for so long without the end
#: of a store.
AWAITED_S = 10.0

# One that asked longer ago had other work, or slept, and took no notice of ends meanwhile.
_ASKED_S = 1.0

# One of so many blocks may be in stores.
_SHARE = 4

#: One store has so many blocks at most, so that a daemon that gets on ends one soon.
MOST_BLOCKS = 512


@dataclass
class _Store:
    """Blocks that are pinned until `workers` more workers have stored them. began: by the clock, and by
    the time of steps."""

    blocks: list[Any]
    workers: int
    began: float
    began_steps: float


class Stores:
    """Belongs to the scheduler's thread. workers: how many there are, each with its part of every
    block."""

    def __init__(self, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._most_blocks = 0
        self._blocks = 0
        self._stores: dict[int, _Store] = {}
        self._last = 0
        self._stepped_s = self._asked_s = self._moved_s = clock()
        self._steps_s = self._ended_steps_s = self._lacked_s = 0.0

    def bind(self, engine_blocks: int) -> None:
        """vLLM has so many blocks."""
        self._most_blocks = max(1, engine_blocks // _SHARE)

    def step(self, lacks_blocks: bool = False) -> None:
        """The engine takes another step. lacks_blocks: one that could not begin a request."""
        now = self._clock()
        step_s = min(now - self._stepped_s, STEP_S)
        self._steps_s += step_s
        self._lacked_s = self._lacked_s + step_s if lacks_blocks else 0.0
        self._stepped_s = now

    def numbers(self) -> set[int]:
        return set(self._stores)

    def begin(self) -> int:
        """Returns the number of a new store."""
        self._last += 1
        self._stores[self._last] = _Store([], self._workers, self._clock(), self._steps_s)
        return self._last

    def add(self, number: int, blocks: list[Any]) -> None:
        self._stores[number].blocks += blocks
        self._blocks += len(blocks)

    def take(self, number: int) -> list[Any]:
        """Ends a store. Returns its blocks, which may be unpinned, the last first."""
        blocks = self._stores.pop(number).blocks
        self._blocks -= len(blocks)
        self._moved_s = self._clock()
        return blocks[::-1]

    def end(self, workers: Mapping[int, int]) -> dict[int, list[Any]]:
        """By the numbers of stores, how many more workers have ended them. Takes those that all have."""
        for number, count in workers.items():
            self._stores[number].workers -= count
            if self._stores[number].workers == 0:
                self._ended_steps_s = self._steps_s
        return {one: self.take(one) for one in workers if self._stores[one].workers == 0}

    def room(self) -> int:
        """How many more blocks may be stored now."""
        return 0 if self.are_late() else max(0, self._most_blocks - self._blocks)

    def are_late(self, after_s: float = LATE_S) -> bool:
        """Whether the daemon seems to hang, as steps of so long have not brought the end of a store."""
        return any(
            self._steps_s - max(one.began_steps, self._ended_steps_s) >= after_s
            for one in self._oldest()
        )

    def are_short(self, pool: Any) -> bool:
        """Whether fewer blocks of vLLM's `pool` are free than may be in stores, or than a request needs to
        begin, so that those that no request uses do not wait for room."""
        is_short: bool = pool.get_num_free_blocks() < self._most_blocks
        return is_short or self._lacked_s >= PATIENCE_S

    def end_soon(self) -> bool:
        """Whether blocks are pinned that will be free in a moment."""
        return any(self._clock() - one.began < PATIENCE_S for one in self._oldest())

    def are_awaited(self) -> bool:
        """Asked by an engine that has nothing else to do: whether it must go on stepping for their ends.
        """
        now = self._clock()
        if now - self._asked_s >= _ASKED_S:
            self._moved_s = now
        self._asked_s = now
        return bool(self._stores) and now - self._moved_s < AWAITED_S

    def _oldest(self) -> Iterable[_Store]:
        return itertools.islice(self._stores.values(), 1)
