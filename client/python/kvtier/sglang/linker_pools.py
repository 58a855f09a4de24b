# SPDX-License-Identifier: Apache-2.0
"""All of a linker's device pools and their connection to the daemon: which prefixes it can restore,
and the copies, pool by pool and layer by layer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName

from .._link import Attachment, Link, LinkState, attach
from .._settling import wait_until_settled
from ..connection import Connection
from ..errors import KvtierError, TimedOutError, UnavailableError
from .configuration import Options
from .copy_worker import CopyStream
from .device_transfers import DevicePool, PoolLoad, exists, store
from .offloads import Offload
from .prefixes import logger, page_hash, restorable_prefixes
from .promises import Promises


class LinkerPools:
    """pools: by SGLang's names, each in parts of its layers. layers: of the model. None of the
    methods raises because of the daemon. Transfers are SGLang's PoolTransfers, resolved to these
    pools. weights: which the engine has."""

    def __init__(
        self, pools: dict[Any, list[DevicePool]], layers: int, options: Options, weights: str
    ) -> None:
        self._weights = weights
        self._pools = pools
        self._layers = layers
        self._socket = options.socket
        self._parts = [part for parts in pools.values() for part in parts]  # as regions are
        self._settling = threading.Event()  # rows for loads may still be the daemon's
        self._hanging = threading.Event()
        self._promises = Promises()
        self._link = Link(self._open, logger, *options.retry_s)

    @property
    def connected(self) -> bool:
        return self._link.state is LinkState.READY

    @property
    def hanging(self) -> bool:
        """Whether the daemon has taken too long for a load, and still has its rows."""
        return self._hanging.is_set()

    def turn(self, weights: str) -> None:
        """The engine has these weights from now on. Between loads and stores."""
        self._weights = weights
        self._link.reopen()

    def close(self) -> None:
        """After the last load and store."""
        self._link.close()
        for part in self._parts:
            part.shared.close()

    def restorable(self, rid: str, keys: Sequence[str], transfers: list[Any]) -> list[int]:
        """All prefixes of these pages that can be restored, and that will still be there when the
        request of this id loads them; of the scheduler's thread."""
        if self._settling.is_set():
            return []
        hashes = [page_hash(key) for key in keys]

        def look_up(attachment: Attachment) -> list[int]:
            # The first part of a pool nearly always tells what there is of the others.
            found = self._look_up(attachment, rid, hashes, transfers, 1)
            if found is None:
                found = self._look_up(attachment, rid, hashes, transfers, len(self._parts))
            return found or []

        return self._guarded(look_up, [])

    def load(
        self,
        rids: Sequence[str],
        transfers: list[Any],
        stream: CopyStream,
        timeout_s: float,
        on_layer: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Brings pages to the pools, which these requests were promised; of one thread. Calls `on_layer` for each layer that is there,
        in order, or `on_failure` in between; nothing is written to a pool after that, but it may be
        long until this returns, since rows are waited for."""

        def bring(attachment: Attachment) -> bool:
            try:
                self._load_layers(attachment, transfers, stream, timeout_s, on_layer, on_failure)
            finally:
                for rid in rids:
                    self._promises.end(rid)
            return True

        if not self._guarded(bring, False):
            # Told before, unless nothing was begun.
            on_failure(ConnectionError("the daemon is not there, or refuses the load"))

    def store(self, offload: Offload, stream: CopyStream) -> bool:
        """Stores pages; of one thread. Whether all of them are cached."""
        return self._guarded(lambda one: self._store(one, offload, stream), False)

    # ---------------------------------------------------------------- on a connection

    def _look_up(
        self,
        attachment: Attachment,
        rid: str,
        hashes: list[bytes],
        transfers: list[Any],
        asked_parts: int,
    ) -> list[int] | None:
        """By so many parts of each pool. None: some page that these have is not there whole. Where the
        daemon pins no more pages, the longest prefix that halving leads to."""
        # Pools that need all pages come first, since they limit the questions to the others.
        wanted = sorted(transfers, key=lambda one: one.hit_policy != PoolHitPolicy.ALL_PAGES)
        possible = set(range(1, len(hashes) + 1)) if wanted else set()
        found_in: list[tuple[list[Any], list[bool]]] = []
        for transfer in wanted:
            if not possible:
                return []
            regions = self._regions(attachment, transfer.name)
            asked = [exists(one, hashes[: max(possible)]) for one in regions[:asked_parts]]
            found = [all(parts) for parts in zip(*asked)]
            found_in.append((regions, found))
            possible &= restorable_prefixes(transfer, found)
        while possible:
            end = max(possible)
            promised = self._promises.make(
                rid,
                [
                    (region, [one for one, is_there in zip(hashes[:end], found) if is_there])
                    for regions, found in found_in
                    for region in regions
                ],
            )
            if promised is not None:
                return sorted(possible) if promised else None
            possible = {one for one in possible if one <= end // 2}
        return []

    def _load_layers(
        self,
        attachment: Attachment,
        transfers: list[Any],
        stream: CopyStream,
        timeout_s: float,
        on_layer: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        deadline = time.monotonic() + timeout_s
        loads: list[PoolLoad] = []
        try:
            with stream.current():
                for name, (hashes, pages) in self._pages_by_pool(transfers).items():
                    for part, region in self._parts_of(attachment, name):
                        loads.append(PoolLoad(part, region, hashes, pages))
                loads.sort(key=lambda load: load.layers)
                for load in loads:
                    load.begin()
                for layer in range(self._layers):
                    for load in loads:
                        if layer == load.layers[0]:
                            load.go_on(stream, deadline)
                        if layer in load.layers:
                            load.bring(layer, deadline)
                    stream.synchronize()
                    on_layer(layer)
        except Exception as error:
            self._settling.set()
            if isinstance(error, TimedOutError):
                self._hanging.set()
            # From the call on, SGLang may give the pages to others.
            stream.synchronize()
            on_failure(error)
            raise
        finally:
            self._end(loads)

    def _end(self, loads: list[PoolLoad]) -> None:
        """Once it returns no row for loads is the daemon's."""
        lost: list[PoolLoad] = []
        for load in loads:
            try:
                load.end()
            except UnavailableError:
                lost.append(load)
            except KvtierError as error:
                logger.warning("kvtier: a load ended with: %s", error)
        if lost:
            wait_until_settled(lost[0].region)
        self._hanging.clear()
        self._settling.clear()

    def _store(self, attachment: Attachment, offload: Offload, stream: CopyStream) -> bool:
        with stream.current():
            return all(
                store(
                    part,
                    region,
                    stream,
                    [page_hash(key) for key in one.keys],
                    part.pages.numbers(one.host_indices),
                    one.hit_policy == PoolHitPolicy.ALL_PAGES,
                    offload,
                )
                for one in offload.transfers
                for part, region in self._parts_of(attachment, one.name)
            )

    def _pages_by_pool(self, transfers: list[Any]) -> dict[Any, tuple[list[bytes], torch.Tensor]]:
        """The hashes and the pages of each pool, of all requests."""
        hashes: dict[Any, list[bytes]] = {}
        numbers: dict[Any, list[torch.Tensor]] = {}
        for one in transfers:
            hashes.setdefault(one.name, []).extend(page_hash(key) for key in one.keys)
            pages = self._pools[one.name][0].pages.numbers(one.host_indices)
            numbers.setdefault(one.name, []).append(pages)
        return {name: (hashes[name], torch.cat(pages)) for name, pages in numbers.items()}

    def _parts_of(self, attachment: Attachment, name: PoolName) -> list[tuple[DevicePool, Any]]:
        """The parts of one pool, with the region of each."""
        own = self._pools[name]
        return [one for one in zip(self._parts, attachment.regions) if one[0] in own]

    def _regions(self, attachment: Attachment, name: PoolName) -> list[Any]:
        return [region for _, region in self._parts_of(attachment, name)]

    def _guarded(self, call: Callable[[Attachment], Any], otherwise: Any) -> Any:
        """The call's result, or `otherwise` if there is no daemon, or it refuses."""
        try:
            return self._link.use(call, otherwise)
        except Exception:
            # An exception would end SGLang's scheduler.
            logger.exception("kvtier: pages are misses")
        return otherwise

    def _open(self) -> Attachment:
        """On the link's thread. Raises KvtierError, OSError."""
        weights = self._weights

        def open_regions(connection: Connection) -> list[Any]:
            return [
                part.shared.open_region(connection, replace(part.record, revision=weights))
                for part in self._parts
            ]

        return attach(self._socket, "sglang", open_regions)
