# SPDX-License-Identifier: Apache-2.0
"""Blocks that only the disk has come to host memory while their requests wait in vLLM's queue.

vLLM asks the connector about a request only when it could begin it, often seconds after it came, and
the disk would be idle meanwhile. Requests are served in the order in which they came, piece by
piece, so that one that begins or ends gives way to the next. The first of those that wait are
looked up now and then, by which the daemon keeps their blocks in host memory.
"""

from __future__ import annotations

import collections
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._link import Attachment
from ..errors import KvtierError, TimedOutError, UnavailableError
from .rows import hash_of

logger = logging.getLogger("vllm.kvtier")

#: Blocks that one call asks for: some tenths of a second of a fast disk.
PIECE_BLOCKS = 256

#: How often requests that wait are looked up, and how many of them, the first.
KEEP_S = 1.0
KEPT_REQUESTS = 16

# Half of the daemon's default limit for one call.
_KEYS_PER_LOOKUP = 8192

# How long one call waits. The daemon ends those that do not get on after 5 s.
_WAIT_MS = 1000
_CLOSE_TIMEOUT_S = 2 * _WAIT_MS / 1000


def _look_up(region: Any, hashes: list[bytes]) -> int:
    return len(region.lookup(hashes))


def _prefetch(region: Any, hashes: list[bytes]) -> int:
    return int(region.prefetch(hashes, _WAIT_MS))


@dataclass
class _Waiting:
    """The part that is left to be prefetched for a request. group: by its place in the connector's
    list."""

    group: int
    keys: list[bytes]


class DiskPrefetch:
    """Belongs to the scheduler's thread, which never waits here: a thread of its own, begun with
    the first request, waits for the daemon.

    borrow, lost: as the link's, whose attachments have regions of all ranks. keep_s: how often
    requests that wait are looked up.
    """

    def __init__(
        self,
        borrow: Callable[[], Attachment | None],
        lost: Callable[[Attachment], None],
        keep_s: float = KEEP_S,
    ) -> None:
        self._borrow = borrow
        self._lost = lost
        self._keep_s = keep_s
        self._changed = threading.Condition()
        # The following are guarded by it. By request, in the order in which they are served.
        self._waiting: collections.OrderedDict[str, list[_Waiting]] = collections.OrderedDict()
        # The requests that wait, whether they have been served or not, with all of their keys.
        self._kept: dict[str, Sequence[tuple[int, Sequence[bytes]]]] = {}
        self._arrived: list[tuple[str, Sequence[bytes]]] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        self._reported: str | None = None  # of the thread alone

    def want(self, request: str, keys: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        """The request waits, and will load these blocks unless it is dropped before. keys: by the
        places of groups; those of each follow one another in the request."""
        waiting = [_Waiting(group, list(of_group)) for group, of_group in keys if of_group]
        if not waiting:
            return
        with self._changed:
            if self._closed:
                return
            self._waiting[request] = waiting
            self._kept[request] = keys
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvtier-prefetch", daemon=True
                )
                self._thread.start()

    def drop(self, request: str) -> None:
        """The request has begun, or ended. Blocks asked for already still come."""
        if request in self._kept:
            with self._changed:
                self._waiting.pop(request, None)
                self._kept.pop(request, None)

    def drop_all(self) -> None:
        """Drops every request and forgets which blocks have arrived."""
        with self._changed:
            self._waiting.clear()
            self._kept.clear()
            self._arrived.clear()

    def take_arrived(self) -> list[tuple[str, Sequence[bytes]]]:
        """Since the last call: requests, and keys of theirs that are in host memory."""
        if not self._arrived:
            return []
        with self._changed:
            arrived, self._arrived = self._arrived, []
            return arrived

    def close(self) -> None:
        """Ends the thread, within two seconds. Before the link is closed."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._kept.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        keep_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._waiting,
                    max(0.0, keep_at - time.monotonic()) if self._kept else None,
                )
                if self._closed:
                    return
                first = next(iter(self._waiting.items()), None)
            if time.monotonic() >= keep_at:
                self._keep()
                keep_at = time.monotonic() + self._keep_s
            if first is not None:
                self._serve(*first)

    def _keep(self) -> None:
        """The first of the requests is looked up last: it is the one that is needed first."""
        with self._changed:
            kept = list(itertools.islice(self._kept.values(), KEPT_REQUESTS))
        for keys in reversed(kept):
            for group, of_group in keys:
                if of_group:
                    self._ask(_look_up, group, of_group[:_KEYS_PER_LOOKUP])

    def _serve(self, request: str, waiting: list[_Waiting]) -> None:
        """Its next piece."""
        group, piece = waiting[0].group, waiting[0].keys[:PIECE_BLOCKS]
        count = self._ask(_prefetch, group, piece)
        if count is not None:
            self._take(request, waiting, piece, count)

    def _take(
        self, request: str, waiting: list[_Waiting], piece: Sequence[bytes], count: int
    ) -> None:
        """So many blocks of the request's next piece are in memory. Blocks behind the first that is
        not will not be hits."""
        with self._changed:
            if count > 0:
                self._arrived.append((request, piece[:count]))
            del waiting[0].keys[: len(piece)]
            if count < len(piece) or not waiting[0].keys:
                del waiting[0]
            if not waiting and self._waiting.get(request) is waiting:
                del self._waiting[request]
            self._changed.notify_all()

    def _ask(
        self, call: Callable[[Any, list[bytes]], int], group: int, keys: Sequence[bytes]
    ) -> int | None:
        """The least of the answers of all ranks' regions; 0 without a daemon; None: too late."""
        attachment = self._borrow()
        if attachment is None:
            return 0
        try:
            groups = len(attachment.regions) // attachment.ranks
            hashes = [hash_of(key) for key in keys]
            regions = attachment.regions[group::groups]
            return min(call(region, hashes) for region in regions)
        except TimedOutError:
            return None
        except UnavailableError:
            self._lost(attachment)
        except KvtierError as error:
            if str(error) != self._reported:
                logger.warning("kvtier: a prefetch was refused: %s", error)
                self._reported = str(error)
        finally:
            attachment.give_back()
        return 0
