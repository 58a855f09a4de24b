# SPDX-License-Identifier: Apache-2.0
"""The storage backend of SGLang's HiCache, loaded by name: pages of all host pools in the daemon.

Each pool has a record of its own, so that pages never meet those of another pool, rank, layout or
type. A call that fails, or finds no daemon, is a miss: SGLang's storage threads see no exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from .._epochs import unnamed_epoch
from .._facts import short
from .._options import COMMON, read_options
from .configuration import (
    Options,
    loaded_weights,
    page_facts,
    record_options,
    running_arguments,
)
from .live_weights import LiveWeights
from .pages import PagePool
from .prefixes import leading, logger, page_hash, restorable_prefixes
from .storage_threads import StorageThreads

_KV = "kv"
# Attributes of a host pool that decide its pages' layout.
_SHAPE = (
    "dtype",
    "layout",
    "page_size",
    "layer_num",
    "head_num",
    "head_dim",
    "v_head_dim",
    "start_layer",
    "end_layer",
    "storage_format_tag",
)


class KvtierStorage(HiCacheStorage):
    """Options, in --hicache-storage-backend-extra-config: "socket", "identity", "retry_min_ms",
    "retry_max_ms"; "interface_v1" must be set.

    Raises ValueError for a configuration that cannot work, and nothing later on.
    """

    def __init__(self, storage_config: Any, options: Any = None) -> None:
        """options: what SGLang's factory adds for backends of other packages; nothing so far."""
        extra = storage_config.extra_config or {}
        if not extra.get("interface_v1"):
            raise ValueError('kvtier needs "interface_v1": 1 in its extra config')
        if storage_config.should_split_heads:
            raise ValueError("kvtier stores whole pages, not parts by heads (tp_lcm_size)")
        self._config = storage_config
        # SGLang has keys of its own there.
        self._options = Options.of(
            read_options("kvtier.sglang.KvtierStorage", COMMON, extra, others=None)
        )
        arguments, label = running_arguments(), self._options.identity
        first = None
        if not LiveWeights.may_be_updated():
            first = loaded_weights(
                storage_config.model_name, arguments, label, self._options.whole
            )
        self._weights = first or unnamed_epoch()
        self._live = LiveWeights.of_server()
        self.registered_pools: dict[str, Any] = {}
        self.mem_pool_host: Any = None
        self._anchor_only = False
        self._pools: dict[str, PagePool] = {}
        self._callers = StorageThreads()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host
        # Without memory of its own, it has the pages of the other pools.
        self._anchor_only = getattr(mem_pool_host, "kv_buffer", None) is None
        if not self._anchor_only:
            self._add(_KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        name = str(host_pool_name)
        self.registered_pools[host_pool_name] = host_pool
        # The pool of keys and values may come by both ways.
        if not (name == _KV and host_pool is self.mem_pool_host and name in self._pools):
            self._add(name, host_pool)

    def close(self) -> None:
        """Ends once nothing touches the pools any more."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def clear(self) -> bool:
        """This engine finds none of the pages any more that were stored before. They stay in the daemon
        for engines with the same weights."""
        self._turn()
        return True

    # ---------------------------------------------------------------- keys and values alone

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages there are from the first on."""
        return leading(self._exists(_KV, keys))

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        return self._load(_KV, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        return self._store(_KV, keys, host_indices, extra_info)

    # ---------------------------------------------------------------- all pools

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """The prefixes that all pools can restore; a pool in block groups only reports its pages.
        """
        kv_pages = len(keys) if self._anchor_only else self.batch_exists(keys, extra_info)
        hits = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = set(range(1, kv_pages + 1))
        for transfer in pool_transfers or []:
            if not restorable:
                break
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                pages = self._group_pages(transfer, keys)
            else:
                found = self._exists(str(transfer.name), keys[:kv_pages])
                possible = restorable_prefixes(transfer, found)
                pages = max(possible, default=0)
                restorable &= possible
            if pages:
                hits[transfer.name] = pages
        prefixes = sorted(restorable)
        return PoolTransferResult(prefixes[-1] if prefixes else 0, hits, prefixes)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {
            one.name: self._load(str(one.name), one.keys or [], one.host_indices)
            for one in transfers
        }

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {
            one.name: self._store(str(one.name), one.keys or [], one.host_indices, None)
            for one in transfers
        }

    # ---------------------------------------------------------------- the generic way, not used

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        return None

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        return [None] * len(keys)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return False

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return False

    # ---------------------------------------------------------------- pools

    def _add(self, name: str, host_pool: Any) -> None:
        if getattr(host_pool, "shared_allocation_domain", None) is not None:
            logger.error("kvtier: pool %s moves its pages, which are misses therefore", name)
            return
        before = self._pools.pop(name, None)
        if before is not None:
            before.close()
        options = record_options(self._config.model_name)
        try:
            facts = self._facts(name, host_pool)
            pool = PagePool(
                host_pool,
                options,
                facts,
                self._options.socket,
                self._options.retry_s,
                self._weights,
            )
        except Exception:
            # Such as a pool without flat pages; an exception would keep the server from starting.
            logger.exception("kvtier: pages of pool %s are misses", name)
            return
        self._pools[name] = pool
        logger.info(
            "kvtier: pool %s is copied %s",
            name,
            "in place" if pool.in_place else 'through other memory; "allocator": "shm" saves that, up to 1,048,576 pages',
        )

    def _facts(self, name: str, host_pool: Any) -> dict[str, str]:
        """Everything that decides the bytes of a page, beside its tokens."""
        shape = {key: str(getattr(host_pool, key, None)) for key in _SHAPE}
        layout = short(" ".join(f"{key}={value}" for key, value in shape.items()))
        # Not within a server: the directory's files and `identity` remain.
        return page_facts(self._config, name, layout, running_arguments(), self._options.identity)

    def _exists(self, name: str, keys: Sequence[str]) -> list[bool]:
        return self._guarded(name, len(keys), lambda pool: pool.exists(keys))

    def _load(self, name: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        loaded = self._guarded(name, len(keys), lambda pool: pool.load(keys, host_indices))
        if any(loaded) and self._has_other_weights():
            return [False] * len(keys)  # those were pages of the weights before
        return loaded

    def _store(
        self, name: str, keys: Sequence[str], host_indices: Any, extra_info: Any
    ) -> list[bool]:
        before = getattr(extra_info, "prefix_keys", None)
        parents: list[bytes | None] = [None] * len(keys)
        if extra_info is not None and keys:
            # One chain with what came before; the daemon keeps beginnings in preference to ends.
            first = page_hash(before[-1]) if before else None
            parents = [first, *(page_hash(key) for key in keys[:-1])]
        depth = len(before or [])

        def store(pool: PagePool) -> list[bool]:
            if self._callers.have_old_pages():
                return [False] * len(keys)
            return pool.store(keys, host_indices, parents, depth)

        return self._guarded(name, len(keys), store)

    def _guarded(
        self, name: str, count: int, call: Callable[[PagePool], list[bool]]
    ) -> list[bool]:
        pool = self._pools.get(name)
        if pool is None or count == 0:
            return [False] * count
        try:
            self._has_other_weights()
            return call(pool)
        except Exception:
            # An exception ends SGLang's storage thread, and with it all that waits for it.
            logger.exception("kvtier: pages of pool %s are misses", name)
            return [False] * count

    def _has_other_weights(self) -> bool:
        """Whether SGLang has updated them since the last look, of which it says nothing to a storage
        backend."""
        changed = self._live is not None and self._live.have_changed()
        if changed:
            logger.warning("kvtier: pages of before are misses, since the weights are others by now")
            self._turn()
        self._callers.note(changed)
        return changed

    def _turn(self) -> None:
        self._weights = unnamed_epoch()
        for pool in self._pools.values():
            pool.turn(self._weights)

    def _group_pages(self, transfer: Any, keys: Sequence[str]) -> int:
        """Pages that the leading complete groups of a pool cover."""
        block, size = transfer.block_pages, transfer.group_pages
        if block < 1 or size < 1:
            return 0
        own = transfer.keys
        if own is None:
            begins = range(0, len(keys), block)
            own = [key for begin in begins for key in keys[begin : begin + size]]
        return leading(self._exists(str(transfer.name), own)) // size * block
