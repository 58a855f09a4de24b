# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to load from disk.

Loads that share a disk end all together and late, while each of them holds blocks of VRAM that it
does not use yet. So only a few are under way at once, in the order in which requests came, and the
others wait in vLLM's queue without blocks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable

#: Loads under way at once. With one, the disk would be idle from its end until a step has begun the
#: next.
LOADS = 2

#: How much longer than expected a load may take before requests stop to wait for their turn.
STUCK_S = 5.0


class DiskTurns:
    """Belongs to the scheduler's thread. A request waits from `wait` until it begins or leaves, or a step
    does not ask about it; its load is under way from `begin` until `ended`, which also comes for loads
    that failed.

    seconds_for: how long the disk takes for so many tokens; None if that is not known.
    """

    def __init__(
        self,
        seconds_for: Callable[[int], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds_for = seconds_for
        self._clock = clock
        self._waiting: dict[str, int] = {}  # tokens on disk, in the order of turns
        self._asked: set[str] = set()  # of these, in this step
        self._loading: dict[str, int] = {}
        # For each that waits, the tokens of the requests before it; None: count anew.
        self._tokens_before: dict[str, int] | None = None
        self._tokens_waiting = 0
        self._last_change = 0.0  # when a load began or ended

    def step(self) -> None:
        """A step is planned. Requests that vLLM has not asked about wait no more: it may leave them out for
        as long as it likes, and asks about all that it could begin, in its order."""
        if len(self._asked) < len(self._waiting):
            self._waiting = {one: n for one, n in self._waiting.items() if one in self._asked}
            self._tokens_before = None
        self._asked.clear()

    def may_begin(self, request: str) -> bool:
        """Whether it is the request's turn, which may not wait yet."""
        first = next(iter(self._waiting), request)
        return first == request and len(self._loading) < LOADS

    def wait_s(self, request: str) -> float:
        """How long the disk is busy with loads before the request's, at the end of the queue if it
        does not wait yet."""
        if self._tokens_before is None:
            tokens = [0, *itertools.accumulate(self._waiting.values())]
            self._tokens_before = dict(zip(self._waiting, tokens))
            self._tokens_waiting = tokens[-1]
        before = self._tokens_before.get(request, self._tokens_waiting)
        busy_s = self._loading_s() - (self._clock() - self._last_change)
        return max(0.0, busy_s) + (self._seconds_for(before) or 0.0)

    def is_stuck(self) -> bool:
        """Whether no load has ended for far longer than those under way should take. Waiting requests
        are then better computed."""
        if not self._loading:
            return False
        return self._clock() - self._last_change > self._loading_s() + STUCK_S

    def wait(self, request: str, tokens: int) -> None:
        """The request waits for its turn to load so many tokens, as long as each step asks about it."""
        self._asked.add(request)
        if self._waiting.get(request) != tokens:
            self._waiting[request] = tokens
            self._tokens_before = None

    def leave(self, request: str) -> None:
        """The request waits no more."""
        self._asked.discard(request)
        if self._waiting.pop(request, None) is not None:
            self._tokens_before = None

    def begin(self, request: str, tokens: int) -> None:
        """The request's load is under way."""
        self.leave(request)
        if not self._loading:
            self._last_change = self._clock()
        self._loading[request] = tokens
        self._tokens_before = None

    def ended(self, requests: Iterable[str]) -> None:
        """The loads of these have ended, if they had one."""
        for request in requests:
            if self._loading.pop(request, None) is not None:
                self._tokens_before = None
                self._last_change = self._clock()

    def _loading_s(self) -> float:
        """How long the loads take that are under way."""
        return self._seconds_for(sum(self._loading.values())) or 0.0
