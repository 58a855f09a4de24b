# SPDX-License-Identifier: Apache-2.0
"""Pages that a lookup has promised to SGLang: pinned until the load that it leads to has ended.

Pins count against what a tenant may pin, so that pages which stayed pinned after their loads would
keep other prompts from being promised. Pins of which no load comes end by themselves.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._link import HASHES_PER_CALL
from ..errors import KvtierError, LimitExceededError
from .prefixes import logger

# So long a prefix that a lookup has promised stays: the load begins some milliseconds later.
_PROMISE_MS = 10_000

#: Pages by the regions that have them.
Pages = Sequence[tuple[Any, Sequence[bytes]]]


@dataclass
class _Promise:
    """To one request. until: when its pins end."""

    pages: Pages
    until: float


class Promises:
    """Any thread. Regions are those of one session in the daemon, which alone its calls unpin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Held while pages are pinned and unpinned, too: else a page that one lookup gives up is unpinned
        # after the next one has pinned it.
        self._lock = threading.Lock()
        self._made: dict[str, _Promise] = {}  # by the request's id, the oldest first
        # By region, how many requests each page was promised.
        self._holders: collections.defaultdict[Any, collections.Counter[bytes]]
        self._holders = collections.defaultdict(collections.Counter)

    def make(self, rid: str, pages: Pages) -> bool | None:
        """Whether these pages will still be there when they are loaded: all of them or none. None: they are
        there, but so many may not be pinned. They take the place of those that the request was promised
        before: it is looked up again and again while it waits. Raises KvtierError."""
        with self._lock:
            before = self._made.pop(rid, None)
            self._forget_old()
            self._made[rid] = _Promise(pages, self._clock() + _PROMISE_MS / 1000)
            for region, hashes in pages:
                self._holders[region].update(hashes)
            left = self._take(before)
            made: bool | None
            try:
                made = all(
                    region.pin(part, _PROMISE_MS) == len(part)
                    for region, hashes in pages
                    for part in _parts(hashes)
                )
            except LimitExceededError as error:
                logger.debug("kvtier: %s", error)
                made = None
            if not made:
                left += self._take(self._made.pop(rid))
            self._unpin(left)
            return made

    def end(self, rid: str) -> None:
        """The request has loaded its pages, or will not; those that no other one was promised are unpinned.
        """
        with self._lock:
            self._unpin(self._take(self._made.pop(rid, None)))

    def _forget_old(self) -> None:
        now = self._clock()
        while self._made and next(iter(self._made.values())).until < now:
            self._take(self._made.pop(next(iter(self._made))))

    def _take(self, promise: _Promise | None) -> list[tuple[Any, list[bytes]]]:
        """Returns the pages that no other request was promised."""
        left = []
        for region, hashes in promise.pages if promise is not None else ():
            holders = self._holders[region]
            last = [one for one in hashes if holders[one] == 1]
            for one in hashes:
                holders[one] -= 1
            for one in last:
                del holders[one]
            if not holders:
                del self._holders[region]
            left.append((region, last))
        return left

    def _unpin(self, pages: Pages) -> None:
        try:
            for region, hashes in pages:
                for part in _parts(hashes):
                    region.pin(part, 0)
        except KvtierError as error:
            logger.debug("kvtier: pages stay pinned for some seconds: %s", error)


def _parts(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (
        hashes[first : first + HASHES_PER_CALL] for first in range(0, len(hashes), HASHES_PER_CALL)
    )
