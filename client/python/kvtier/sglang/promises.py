# SPDX-License-Identifier: Apache-2.0
"""Pages that a lookup has promised to SGLang: pinned until the load that it leads to has ended.

Pins count against what a tenant may pin, so that pages which stayed pinned after their loads would
keep other prompts from being promised. Pins of which no load comes end by themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._link import HASHES_PER_CALL
from ..errors import KvtierError, LimitExceededError
from .prefixes import logger

# So long a prefix that a lookup has promised stays: the load begins some milliseconds later.
_PROMISE_MS = 10_000


@dataclass
class _Promise:
    """One page of a region is kept: how many lookups have promised it, and when the last pin ends."""

    lookups: int
    until: float


class Promises:
    """Any thread. Regions are those of one session in the daemon, which alone its calls unpin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Held while pages are pinned and unpinned, too: else a page that one lookup gives up is unpinned
        # after the next one has pinned it.
        self._lock = threading.RLock()
        self._made: dict[tuple[Any, bytes], _Promise] = {}  # the oldest first

    def make(self, pages: Sequence[tuple[Any, Sequence[bytes]]]) -> bool | None:
        """Whether these pages, by their regions, will still be there when they are loaded: of all of
        them or of none. None: they are there, but so many may not be pinned. Raises KvtierError."""
        with self._lock:
            return self._make(pages)

    def end(self, pages: Sequence[tuple[Any, Sequence[bytes]]]) -> None:
        """These have been loaded, or will not be; those that no other lookup has promised are unpinned."""
        with self._lock:
            for region, hashes in pages:
                last = self._take(region, hashes)
                try:
                    for first in range(0, len(last), HASHES_PER_CALL):
                        region.pin(last[first : first + HASHES_PER_CALL], 0)
                except KvtierError as error:
                    logger.debug("kvtier: pages stay pinned for some seconds: %s", error)

    def _make(self, pages: Sequence[tuple[Any, Sequence[bytes]]]) -> bool | None:
        made: list[tuple[Any, Sequence[bytes]]] = []
        try:
            for region, hashes in pages:
                for first in range(0, len(hashes), HASHES_PER_CALL):
                    part = hashes[first : first + HASHES_PER_CALL]
                    self._add(region, part)
                    made.append((region, part))
                    if region.pin(part, _PROMISE_MS) < len(part):
                        self.end(made)
                        return False
        except LimitExceededError as error:
            logger.debug("kvtier: %s", error)
            self.end(made)
            return None
        return True

    def _add(self, region: Any, hashes: Sequence[bytes]) -> None:
        now = self._clock()
        while self._made and next(iter(self._made.values())).until < now:
            del self._made[next(iter(self._made))]
        for one in hashes:
            before = self._made.pop((region, one), None)
            lookups = before.lookups if before is not None and before.until >= now else 0
            self._made[region, one] = _Promise(lookups + 1, now + _PROMISE_MS / 1000)

    def _take(self, region: Any, hashes: Sequence[bytes]) -> list[bytes]:
        """Returns the pages that no other lookup has promised."""
        last: list[bytes] = []
        for one in hashes:
            promise = self._made.get((region, one))
            if promise is None:
                continue
            promise.lookups -= 1
            if promise.lookups == 0:
                del self._made[region, one]
                last.append(one)
        return last
