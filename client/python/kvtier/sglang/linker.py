# SPDX-License-Identifier: Apache-2.0
"""SGLang's external cache linker, loaded by name: from the device's pools to the daemon and back,
without host memory of SGLang's own, layer by layer.

SGLang's scheduler asks, queues and counts; two threads of this module copy. A page that the daemon
lacks or loses is a miss. Only a load that fails after a lookup had promised it costs a request:
SGLang aborts it then.
"""

from __future__ import annotations

import collections
import secrets
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
)

from .._epochs import WeightEpochs
from .._facts import digest
from .._options import read_options
from ..model import ModelRecord
from .configuration import (
    LINKER_OPTIONS,
    Options,
    arguments_of,
    loaded_weights,
    page_facts,
    record_options,
    weight_version,
)
from .copy_worker import CopyStream, CopyWorker
from .device_pools import DevicePages, device_pool_group, split_layers
from .device_transfers import DevicePool
from .linker_pools import LinkerPools
from .live_weights import LiveWeights
from .offloads import Offload, Offloads
from .prefixes import logger

_CLOSE_TIMEOUT_S = 10.0


class KvtierLinker(UnifiedCacheLinker):
    """Options, in "linker_extra_config": "socket", "identity", "retry_min_ms", "retry_max_ms",
    "staging_bytes" (of memory beside each pool), "layer_parts" (at most), "load_timeout_ms",
    "weights_digest", "weights_run".

    All methods are called by SGLang's scheduler. The constructor raises ValueError and OSError for
    what cannot work; no method raises.
    """

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: Any = None,
        forward_stream: Any = None,
    ) -> None:
        values = read_options("KvtierLinker", LINKER_OPTIONS, extra_config or {}, others=None)
        if getattr(server_args, "enable_memory_saver", False):
            # SGLang does not ask whether a linker still reads the pools when it unmaps them.
            raise ValueError("kvtier's linker does not serve with --enable-memory-saver")
        if getattr(server_args, "dcp_size", 1) > 1:
            # Its slots are wider than the rows of the pools, each rank of which has other tokens.
            raise ValueError("kvtier's linker does not serve with --dcp-size")
        options = Options.of(values)
        self._live = LiveWeights.of_server()
        self.forward_stream = forward_stream
        self._load_timeout_s = values["load_timeout_ms"] / 1000
        kv_cache = params.token_to_kv_pool_allocator.get_kvcache()
        self._group = device_pool_group(kv_cache, params, components)
        self.pools = self._group.entry_map
        config = _storage_config(server_args, params, self._group.rank_replicated)
        # All ranks have the same pages of latent attention; one stores them.
        self._stores = not self._group.rank_replicated or config.tp_rank == 0
        arguments = arguments_of(server_args)
        sizes = values["layer_parts"], values["staging_bytes"]
        pools = {
            name: _parts_of(entry, config, arguments, options.identity, *sizes)
            for name, entry in self.pools.items()
        }
        self.layer_done_counter = LayerWiseLoadCounter(self._group.num_layers)
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._queued: dict[str, list[Any]] = {}
        self._offloads = Offloads(self._load_timeout_s)
        self._loads: collections.deque[_Load] = collections.deque()  # that may write to the pools
        first = loaded_weights(config.model_name, arguments, options.identity, options.whole)
        self._rank_group = params.attn_tp_cache_group or params.tp_cache_group
        self._epochs = WeightEpochs(
            first, values["weights_run"], lambda: weight_version(), self._unnamed_epoch
        )
        self._pools = LinkerPools(pools, self._group.num_layers, options, self._epochs.current)
        self._looking = threading.Lock()
        self._has_old_pages = False  # for the weights have been updated, and nothing was flushed
        self._is_updating = False
        self._flushed_at: int | None = None  # after so many forwards; until the epoch begins
        device = next(iter(pools.values()))[0].pages.device
        self._loader = CopyWorker("kvtier-load", device, self._load)
        self._storer = CopyWorker("kvtier-store", device, self._store)

    @property
    def connected(self) -> bool:
        return self._pools.connected

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        begun = self._begin()
        wanted = self._group.resolve_transfers(transfers)
        keys = next((one.keys or [] for one in transfers if one.name == PoolName.KV), [])
        if not begun or not wanted or self._has_old_pages:
            return []
        return self._pools.restorable(rid, keys, wanted)

    # ---------------------------------------------------------------- loads

    def load(self, rid: str, transfers: list[Any]) -> bool:
        # By nothing but the transfers, so that all ranks answer the same.
        wanted = self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        if not wanted or rid in self._queued:
            return False
        self._queued[rid] = wanted
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        queued, self._queued = self._queued, {}
        index = int(self.layer_done_counter.update_producer())
        # The current stream has chosen the slots; the forward's stream writes others.
        while self._loads and self._loads[0].ended.is_set():
            self._loads.popleft()
        self._loads.append(_Load(index, queued, self.record_offload_ready()[:1]))
        self._loader.put(self._loads[-1])
        self._fail_waiting()
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return bool(self.layer_done_counter.finish(counter_index))

    def _load(self, load: _Load) -> None:
        """On the loading thread."""
        try:
            for event in load.ready:
                event.synchronize()
            if self._are_weights_others(self._loader.stream):
                return self._fail(load, RuntimeError("these were pages of the weights before"))
            self._pools.load(
                load.rids,
                load.transfers,
                self._loader.stream,
                self._load_timeout_s,
                lambda layer: self._complete(load, layer),
                lambda error: self._fail(load, error),
            )
        except Exception as error:
            logger.exception("kvtier: a load failed")
            self._fail(load, error)

    def _complete(self, load: _Load, layer: int) -> None:
        self.layer_done_counter.complete(load.index, layer)
        if layer == self._group.num_layers - 1:
            load.ended.set()

    def _fail(self, load: _Load, error: Exception) -> None:
        if not load.ended.is_set():
            self.layer_done_counter.fail(load.index, error)
            load.ended.set()
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        """Loads that wait for one that hangs would hold SGLang's forward."""
        if self._pools.hanging:
            for load in self._loader.take_waiting():
                self._fail(load, TimeoutError("the daemon hangs"))

    # ---------------------------------------------------------------- stores

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        # By nothing that ranks do not have in common, so that all answer the same.
        begun = self._begin()
        wanted = self._group.resolve_transfers(transfers, allow_partial=True)
        if not wanted:
            return False
        if not begun or not self._stores:
            self._offloads.finish(self._offloads.add(wanted, ()), begun)
            return True
        offload = self._offloads.add(wanted, self.record_offload_ready())
        if offload.result is None:  # else the daemon hangs, and they would pile up
            self._storer.put(offload)
        return True

    def num_completed_offloads(self) -> int:
        """Called before each batch."""
        self._watch_update()
        return self._offloads.completed()

    def pop_completed_offload(self) -> bool:
        return self._offloads.pop()

    def _store(self, offload: Offload) -> None:
        """On the storing thread."""
        done = False
        try:
            for event in offload.ready:
                event.synchronize()
            if not self._are_weights_others(self._storer.stream):
                done = self._pools.store(offload, self._storer.stream)
        except Exception:
            logger.exception("kvtier: pages are not stored")
        self._offloads.finish(offload, done)

    # ---------------------------------------------------------------- life

    def _are_weights_others(self, stream: CopyStream) -> bool:
        """Whether SGLang has updated them since the last flush: it says nothing of that to a linker, and
        refuses a flush while requests run. stream: the calling thread's."""
        with stream.current():
            return self._look()

    def _look(self, forgives: bool = False) -> bool:
        """forgives: whether SGLang has no pages, so that an update up to now leaves no old ones."""
        with self._looking:
            if self._live is not None and self._live.have_changed() and not forgives:
                logger.warning("kvtier: nothing is stored or found, since weights are others, until a flush")
                self._has_old_pages = True
            return self._has_old_pages

    def _watch_update(self) -> None:
        """An update in parts may pack the weights at its end, behind its last flush."""
        was_updating = self._is_updating
        self._is_updating = self._live is not None and self._live.updating()
        if was_updating and not self._is_updating:
            self._look(self._is_flushed())

    def _begin(self) -> bool:
        """Before pages are asked for or stored: Whether that may be, which is not in the midst of an update.
        An update since the last flush is forgiven, as of trainers that pause, flush, update and continue."""
        self._watch_update()
        if self._is_updating:
            return False
        if self._flushed_at is not None:
            self._look(self._is_flushed())
            self._flushed_at = None
        if self._epochs.begin():
            self._pools.turn(self._epochs.current)
        return True

    def _is_flushed(self) -> bool:
        """Whether nothing was computed since the last flush."""
        return self._flushed_at is not None and self._flushed_at == self._forwards()

    def _forwards(self) -> int | None:
        return None if self._live is None else self._live.forwards()

    def reset(self) -> None:
        """Called on all ranks when SGLang's caches are flushed, as they are after an update of the
        weights. Waits until the pools are not read and written any more, but not for the daemon, which may
        still copy rows beside them. This engine finds none of the pages any more that were stored before."""
        self._queued.clear()
        for load in self._loader.take_waiting():
            load.ended.set()
        for load in self._loads:
            load.ended.wait()
        self._loads.clear()
        self._offloads.clear()
        self._look(forgives=True)
        self._watch_update()
        self._flushed_at = self._forwards()
        self._has_old_pages = False
        self.layer_done_counter.reset()
        _forget_embeddings()
        self._epochs.turn(may_be_named=True)  # nothing is left on the device
        self._pools.turn(self._epochs.current)

    def _unnamed_epoch(self) -> str:
        """One name for all ranks, some of which load pages that another one stores."""
        drawn = torch.tensor([secrets.randbits(62) for _ in range(4)])
        if self._rank_group is not None:
            torch.distributed.all_reduce(
                drawn, op=torch.distributed.ReduceOp.MIN, group=self._rank_group
            )
        return f"unnamed:{digest(drawn.tolist())[:32]}"

    def close(self) -> None:
        """Ends also if the daemon hangs, within half a minute then."""
        self._queued.clear()
        for worker in (self._loader, self._storer):
            if not worker.close(_CLOSE_TIMEOUT_S):
                logger.warning("kvtier: copies of the daemon are still under way")
        self._pools.close()


class _Load:
    """Pages that go to the pools for the forward of this index of SGLang's counter, by request. ended: nothing is
    written to the pools any more, and the counter knows: SGLang may use the index again."""

    def __init__(self, index: int, queued: dict[str, list[Any]], ready: Sequence[Any]) -> None:
        self.index = index
        self.rids = list(queued)
        self.transfers = [one for wanted in queued.values() for one in wanted]
        self.ready = ready
        self.ended = threading.Event()


def _forget_embeddings() -> None:
    """Images and sound that the weights before have encoded, which a flush of SGLang's own leaves in use."""
    schedule = sys.modules.get("sglang.srt.managers.mm_schedule")
    cache: Any = getattr(schedule, "embedding_cache", None)
    if cache is not None:
        cache.clear()


def _parts_of(
    entry: Any,
    config: Any,
    arguments: dict[str, str],
    identity: str,
    most_parts: int,
    staging_bytes: int,
) -> list[DevicePool]:
    """The parts of one of SGLang's pools, each of which has some of the layers. Raises ValueError
    and OSError."""
    name, parts = str(entry.name), []
    split = split_layers(entry, most_parts)
    for layers in split:
        pages = DevicePages(entry, layers)
        facts = page_facts(config, name, pages.layout(), arguments, identity)
        options = record_options(config.model_name)
        record = ModelRecord(extra=facts, groups=(pages.group(),), **options)
        parts.append(DevicePool(pages, record, staging_bytes // len(split)))
    logger.info(
        "kvtier: pool %s: pages of %d bytes in %d parts of the layers, %d rows beside each",
        name,
        sum(part.pages.page_bytes for part in parts),
        len(parts),
        min(part.shared.rows.shape[0] for part in parts),
    )
    return parts


def _storage_config(server_args: Any, params: Any, replicated: bool) -> HiCacheStorageConfig:
    """Which rank this is, in SGLang's terms."""
    group = params.attn_tp_cache_group or params.tp_cache_group
    rank, size = 0, 1
    if group is not None:
        rank = torch.distributed.get_rank(group=group)
        size = torch.distributed.get_world_size(group=group)
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=size,
        pp_rank=params.pp_rank,
        pp_size=params.pp_size,
        attn_cp_rank=params.attn_cp_rank,
        attn_cp_size=params.attn_cp_size,
        is_mla_model=replicated,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name=server_args.model_path,
    )
