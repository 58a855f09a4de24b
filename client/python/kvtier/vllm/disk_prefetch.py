# SPDX-License-Identifier: Apache-2.0
"""Blocks that only the disk has come to host memory while their requests wait in vLLM's queue.

vLLM asks the connector about a request only when it could begin it, often seconds after it came, and
the disk would be idle meanwhile. Requests are served in the order in which they came, piece by
piece, so that one that begins or ends gives way to the next.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .._link import Attachment
from ..errors import KvtierError, TimedOutError, UnavailableError
from .rows import hash_of

logger = logging.getLogger("vllm.kvtier")

#: Blocks that one call asks for: some tenths of a second of a fast disk.
PIECE_BLOCKS = 256

# How long one call waits. The daemon ends those that do not get on after 5 s.
_WAIT_MS = 1000
_CLOSE_TIMEOUT_S = 2 * _WAIT_MS / 1000


@dataclass
class _Waiting:
    """What is left to be prefetched for a request. group: by its place in the connector's list."""

    group: int
    keys: list[bytes]


class DiskPrefetch:
    """Of the scheduler's thread, which never waits here: a thread of its own, begun with the first
    request, waits for the daemon.

    borrow, lost: as the link's, whose attachments have regions of all ranks.
    """

    def __init__(
        self,
        borrow: Callable[[], Attachment | None],
        lost: Callable[[Attachment], None],
    ) -> None:
        self._borrow = borrow
        self._lost = lost
        self._changed = threading.Condition()
        # The following are guarded by it. By request, in the order in which they are served.
        self._waiting: collections.OrderedDict[str, list[_Waiting]] = collections.OrderedDict()
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
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvtier-prefetch", daemon=True
                )
                self._thread.start()

    def drop(self, request: str) -> None:
        """The request has begun, or ended. What is asked for already still comes."""
        if request in self._waiting:
            with self._changed:
                self._waiting.pop(request, None)

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
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                request, waiting = next(iter(self._waiting.items()))
                group, piece = waiting[0].group, waiting[0].keys[:PIECE_BLOCKS]
            count = self._prefetch(group, piece)
            if count is not None:
                self._take(request, waiting, piece, count)

    def _take(
        self, request: str, waiting: list[_Waiting], piece: Sequence[bytes], count: int
    ) -> None:
        """Of the request's next piece so many blocks are in memory. What comes behind the first that
        is not will not be a hit."""
        with self._changed:
            if count > 0:
                self._arrived.append((request, piece[:count]))
            del waiting[0].keys[: len(piece)]
            if count < len(piece) or not waiting[0].keys:
                del waiting[0]
            if not waiting and self._waiting.get(request) is waiting:
                del self._waiting[request]
            self._changed.notify_all()

    def _prefetch(self, group: int, keys: Sequence[bytes]) -> int | None:
        """How many of them all ranks have in memory then; None: not known yet."""
        attachment = self._borrow()
        if attachment is None:
            return 0
        try:
            groups = len(attachment.regions) // attachment.ranks
            hashes = [hash_of(key) for key in keys]
            regions = attachment.regions[group::groups]
            return min(region.prefetch(hashes, _WAIT_MS) for region in regions)
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
