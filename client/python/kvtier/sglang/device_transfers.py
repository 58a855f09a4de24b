# SPDX-License-Identifier: Apache-2.0
"""Pages of one device pool, or some layers of them, between SGLang and the daemon.

The daemon copies to and from rows beside the pool, half of them for loads and half for stores, and
this process copies between the rows and the pool. So a daemon that is lost, or hangs, never touches
a page that SGLang may have given to another request meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._library import abi
from .._link import HASHES_PER_CALL, wait_until_ended
from ..errors import TimedOutError
from ..model import ModelRecord
from ..types import Retention
from .copy_worker import CopyStream
from .device_pools import DevicePages
from .offloads import Offload
from .shared_rows import SharedRows

_WAIT_MS = 1000


class DevicePool:
    """A pool's pages, and the rows beside them. Owns the rows."""

    def __init__(self, pages: DevicePages, record: ModelRecord, staging_bytes: int) -> None:
        """Raises OSError for memory that the daemon cannot open."""
        self.pages = pages
        self.record = record
        most = min(pages.pages, abi.KVT_MAX_REGION_BLOCKS // 2)
        half = max(1, min(staging_bytes // pages.page_bytes // 2, most))
        self.shared = SharedRows(2 * half, pages.page_bytes, pages.device)
        #: Numbers of the rows that loads and stores use.
        self.load_rows = range(half)
        self.store_rows = range(half, 2 * half)


def exists(region: Any, hashes: Sequence[bytes]) -> list[bool]:
    """Which pages the daemon has. Raises KvtierError."""
    found: list[bool] = []
    for first in range(0, len(hashes), HASHES_PER_CALL):
        found += (region.lookup(hashes[first : first + HASHES_PER_CALL]) != 0).tolist()
    return found


class PoolLoad:
    """Pages on their way to one pool, layer by layer; of the thread that loads. `end` is always
    called last. Pages for which the rows do not suffice come whole, before the others."""

    def __init__(
        self, pool: DevicePool, region: Any, hashes: Sequence[bytes], pages: torch.Tensor
    ) -> None:
        self._pool = pool
        self.region = region
        self._hashes = hashes
        self._pages = pages
        self._positions = {layer: i for i, layer in enumerate(pool.pages.layers)}
        self._first = 0  # of the pages that the rows are for
        self._transfer: int | None = None

    @property
    def layers(self) -> list[int]:
        return self._pool.pages.layers

    def begin(self) -> None:
        """Begins to load as many pages as there are rows. Raises KvtierError."""
        self._begin(0)

    def go_on(self, stream: CopyStream, deadline: float) -> None:
        """Brings all pages but the last ones for which the rows suffice, and begins to load those.
        stream: the current one. Raises KvtierError."""
        rows = len(self._pool.load_rows)
        while self._first + rows < len(self._hashes):
            for layer in self._positions:
                self.bring(layer, deadline)
            stream.synchronize()
            self.end()
            self._begin(self._first + rows)

    def bring(self, layer: int, deadline: float) -> None:
        """Waits for a layer of all pages and has it copied into the pool, on the current stream.
        Raises KvtierError."""
        needed = self._positions[layer] + 1 if self._pool.pages.in_layers else 1
        while True:
            try:
                self.region.wait_layers(self._transfer, needed, _WAIT_MS)
                break
            except TimedOutError:
                if time.monotonic() > deadline:
                    raise
        pages = self._pages[self._first : self._first + len(self._pool.load_rows)]
        self._pool.pages.scatter(layer, pages, self._pool.shared.rows[: len(pages)])

    def end(self) -> None:
        """Waits until the rows are no longer the daemon's. Raises UnavailableError."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            wait_until_ended(self.region, transfer)

    def _begin(self, first: int) -> None:
        self._first = first
        hashes = self._hashes[first : first + len(self._pool.load_rows)]
        self._transfer = self.region.load_many(np.arange(len(hashes)), hashes, in_layers=True)


def store(
    pool: DevicePool,
    region: Any,
    stream: CopyStream,
    hashes: Sequence[bytes],
    pages: torch.Tensor,
    chained: bool,
    offload: Offload,
) -> bool:
    """Stores pages of a pool, and waits until that has ended; whether all of them are cached, and the
    offload was not given up.

    stream: the current one. chained: each page is of use only with those before it. Raises
    KvtierError.
    """
    first_row, count = pool.store_rows.start, len(pool.store_rows)
    done = True
    for first in range(0, len(hashes), count):
        part = hashes[first : first + count]
        positions = range(first, first + len(part))
        rows = pool.shared.rows[first_row : first_row + len(part)]
        if not offload.begin_reading():
            return False
        try:
            pool.pages.gather(pages[first : first + count], rows)
            stream.synchronize()
        finally:
            offload.end_reading()
        parents = [hashes[i - 1] if chained and i else None for i in positions]
        transfer = region.store_many(
            np.arange(first_row, first_row + len(part)),
            part,
            parents,
            depths=np.array(positions) if chained else 0,
            retention=Retention.EXTENDED,
        )
        done = done and not wait_until_ended(region, transfer).failed
    return done
