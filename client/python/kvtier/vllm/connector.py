# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector: vLLM's own KV cache, its blocks stored to and loaded from kvtierd in place.

    --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_connector_module_path":
        "kvtier.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

Loads are asynchronous: a request waits for its blocks while others go on. Stores begin one step
after the blocks were computed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from .._epochs import WeightEpochs
from .._link import LinkState
from .._options import read_options
from . import identity
from .adapters import AdapterDigests, LoadedAdapters
from .cache_groups import cache_groups
from .canary import CanarySampler, are_told_by_hashes
from .connector_metadata import KvtierHandshake, KvtierMetadata, KvtierWorkerMetadata
from .connector_metrics import KvtierPromMetrics, KvtierStats
from .connector_scheduler import SchedulerSide
from .connector_worker import WorkerSide
from .disk_prefetch import DiskPrefetch
from .encoder_outputs import EncoderOutputs, find_outputs
from .engine_blocks import EngineBlocks
from .gpu_order import AfterKernels, StepTimer
from .hit_prices import MIN_STEP_TOKENS, HostStepTimer
from .kept_allocation import KeptAllocation, warm_up_blocks
from .kept_cache import KeptCacheScheduler, KeptCacheWorker, table_root, why_not_kept
from .kv_memory import SharedAllocation, block_pieces
from .link import LookupLink, logger
from .lookups import Lookups
from .options import CONNECTOR_OPTIONS
from .token_ids import TokenTeller
from .transfers import Transfers
from .weight_version import find_weight_version
from .weight_watch import WeightWatch, find_model, find_runner
from .wishes import WishTeller

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def _ask_for_tiles() -> None:
    """Asks the kernel to let this process use AMX, where the processor has it. vLLM's attention uses
    it, and asks for it only with the first large product: an engine that begins with a hit computes
    none, and would die of an illegal instruction."""
    if getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)():
        torch.cpu._init_amx()


def _is_over_hosts(parallel: Any) -> bool:
    """Whether an engine's ranks are on several hosts. Ray puts them where GPUs are, and may let this process see
    none."""
    if getattr(parallel, "nnodes_within_dp", 1) > 1:
        return True
    return getattr(parallel, "use_ray", False) and 0 < torch.cuda.device_count() < parallel.tensor_parallel_size


class KvtierConnector(KVConnectorBase_V1, SupportsHMA):
    """options.py has the options of `kv_connector_extra_config`. Raises ValueError for others, and for
    models and devices that it does not know."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        given = vllm_config.kv_transfer_config.kv_connector_extra_config
        options = read_options("KvtierConnector", CONNECTOR_OPTIONS, given)
        parallel = vllm_config.parallel_config
        for kind in ("pipeline", "prefill_context", "decode_context"):
            if getattr(parallel, f"{kind}_parallel_size", 1) != 1:
                raise ValueError(f"KvtierConnector knows tensor parallelism, not {kind} parallelism")
        if getattr(parallel, "enable_fault_tolerance", False):
            # Nothing tells a connector of a step that failed after its kernels had written KV.
            raise ValueError("KvtierConnector does not serve --enable-fault-tolerance")
        attention = getattr(vllm_config, "attention_config", None)
        if getattr(attention, "hisparse_config", None) is not None:
            raise ValueError("KvtierConnector does not serve HiSparse, which loads between steps")
        device = vllm_config.device_config.device_type
        if device not in ("cpu", "cuda"):
            raise ValueError(f"KvtierConnector serves CPUs and NVIDIA GPUs, not {device}")
        own_pool = getattr(vllm_config.model_config, "enable_cumem_allocator", False)
        if device == "cuda" and own_pool and not options["keep_kv_cache"]:
            # Memory of vLLM's allocator for sleep has no handle by which the daemon could open it.
            raise ValueError("KvtierConnector knows no sleep mode on a GPU (enable_cumem_allocator)")
        if role is KVConnectorRole.SCHEDULER and _is_over_hosts(parallel):
            logger.warning(
                "kvtier: the ranks of this engine are on several hosts: it will have no hits unless the "
                "daemons of these share a store ([cold])"
            )
        self._options = options
        self._engine = vllm_config
        _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        self._ranks = parallel.tensor_parallel_size
        replicated = 1 < self._ranks <= getattr(kv_cache_config, "kv_tp_replicas", 1)
        # One entry and one region for each of vLLM's cache groups that are cached by hash.
        self._cache_groups = cache_groups(kv_cache_config, hash_tokens)
        cache_dtype = str(vllm_config.cache_config.cache_dtype)
        pieces = [
            block_pieces(kv_cache_config, group, replicated, cache_dtype)
            for group in self._cache_groups
        ]
        if not are_told_by_hashes(vllm_config):
            pieces = [dataclasses.replace(one, number_type=None) for one in pieces]
        self._blocks = EngineBlocks(vllm_config, options, pieces)
        self._keeps = self._can_keep(kv_cache_config)
        self._kept: KeptCacheWorker | None = None
        self._bound: KvtierMetadata | None = None
        self._load_wait_s = options["load_wait_ms"] / 1000
        self._idle_steps = 0  # in a row, without tokens to compute
        self._plans_loads = False  # in this step
        # On the CPU the KV cache is put where the daemon can map it; on a GPU it can open what
        # torch allocates.
        self._allocation: SharedAllocation | None = None
        self._after_kernels: AfterKernels | None = None
        self._timer = StepTimer() if device == "cuda" else HostStepTimer()
        if self._keeps and role is KVConnectorRole.WORKER:
            likely_written = warm_up_blocks(vllm_config, kv_cache_config)
            self._allocation = self._blocks.kept_allocation(likely_written, device)
        elif device == "cpu":
            self._allocation = SharedAllocation(pieces[0].memory_bytes)
        if device == "cuda":
            self._after_kernels = AfterKernels()
        self._link: LookupLink | None = None
        self._tables: list[Any] | None = []
        self._lookup_counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._wish_counts: collections.deque[tuple[str, int]] = collections.deque()  # of two threads
        self._connected_told: bool | None = None
        self._scheduler: SchedulerSide | None = None
        self._epochs: WeightEpochs | None = None  # the scheduler's
        self._prefetch: DiskPrefetch | None = None  # the scheduler's
        self._worker: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = self._make_scheduler()

    # ---------------------------------------------------------------- in the worker

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """On a GPU a block's layers are asked to lie together, so that a block is one copy. vLLM
        takes another layout where the attention backend cannot do this one."""
        return "BLNHC" if vllm_config.device_config.device_type == "cuda" else None

    @property
    def requires_kv_delivery(self) -> bool:
        """A request that is preempted goes on without the KV that was not stored."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Kept memory does not move."""
        given = kv_transfer_config.kv_connector_extra_config
        return not read_options("KvtierConnector", CONNECTOR_OPTIONS, given)["keep_kv_cache"]

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        return self._allocation

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if isinstance(self._allocation, KeptAllocation) and self._allocation.memory is not None:
            self._kept = KeptCacheWorker(self._allocation.memory)
        cache: Any = next(iter(kv_caches.values()))
        # A layer of states has a tensor for each part of a state.
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        if cache.device.type == "cpu":
            _ask_for_tiles()
        memories = self._blocks.memories_of(cache, self._allocation)
        # The scheduler will mostly say the same, and the first step then finds the regions open.
        self._blocks.weights = self._blocks.loaded_weights()
        keep = None if self._kept is None else self._kept.keep
        self._link = self._blocks.open_link(lambda _: None, memories, [None], keep)
        retention = self._options["retention"]
        tokens = [group.group.block_tokens for group in self._blocks.groups]
        transfers, watch = Transfers(self._link), self._make_watch()
        types = [group.number_type for group in self._blocks.groups]
        adapters = LoadedAdapters(
            getattr(find_runner(), "lora_manager", None), self._options["weights_digest"]
        )
        self._worker = WorkerSide(
            transfers,
            tokens,
            retention,
            self._kept,
            watch=watch,
            number_types=types,
            adapters=adapters,
        )

    def _make_watch(self) -> WeightWatch | None:
        model = find_model()
        if model is None:
            logger.warning("kvtier: weights that are updated without a reset will not be noticed")
            return None
        return WeightWatch(model, getattr(self._engine.parallel_config, "enable_eplb", False))

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """After the warm-up."""
        if not isinstance(self._allocation, KeptAllocation):
            return None
        table = self._allocation.found()
        return None if table is None else KvtierHandshake(table)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """The first that a worker hears of a step. vLLM's first model runner clears and copies
        blocks between this and `bind_connector_metadata`."""
        if self._worker is None or kv_connector_metadata is self._bound:
            return
        if isinstance(kv_connector_metadata, KvtierMetadata):
            self._bound = kv_connector_metadata
            self._hear_of_weights(kv_connector_metadata)
            if self._kept is not None:
                root = kv_connector_metadata.hash_root
                root = None if root is None else table_root(root, kv_connector_metadata.weights)
                self._kept.apply(kv_connector_metadata.plan.kept, root)

    def _hear_of_weights(self, metadata: KvtierMetadata) -> None:
        """A worker's blocks are those of the weights that the scheduler names, from the first step on
        and whenever it names others."""
        if metadata.hash_root is None:
            return
        assert self._worker is not None and self._link is not None
        self._blocks.take_configuration(*metadata.configuration)
        self._blocks.hash_root = metadata.hash_root  # from now on the link's thread opens regions
        if metadata.plan.epoch != self._worker.epoch or metadata.weights != self._blocks.weights:
            self._blocks.weights = metadata.weights
            self._worker.turn(metadata.plan.epoch)
            self._link.reopen()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the step's kernels are launched. The step's transfers are of blocks that earlier
        kernels may still be writing or reading, and that no later one touches."""
        super().bind_connector_metadata(connector_metadata)
        self.handle_preemptions(connector_metadata)
        if self._worker is None or not isinstance(connector_metadata, KvtierMetadata):
            return
        self._worker.begin_step(connector_metadata.plan, connector_metadata.tokens)
        self._idle_steps = 0 if connector_metadata.tokens else self._idle_steps + 1
        self._plans_loads = bool(connector_metadata.plan.loads)
        if connector_metadata.tokens >= MIN_STEP_TOKENS:
            self._timer.begin(connector_metadata.tokens)
        if self._after_kernels is not None and connector_metadata.plan:
            plan = connector_metadata.plan
            self._after_kernels.add(functools.partial(self._worker.begin, plan))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        if self._worker is None or not isinstance(metadata, KvtierMetadata):
            return
        if self._after_kernels is not None:
            self._after_kernels.begin_ready()
        else:
            self._worker.begin(metadata.plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads end before the step that needs them. A step that was computed while a
        block did not come could not be taken back: vLLM plans the next one before it knows, and its
        second model runner keeps the request's positions."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        self._begin_ready()
        self._worker.poll()
        if self._idle_steps > 1 and (self._plans_loads or self._worker.is_loading()):
            # vLLM has nothing to do but to ask again, more than a millisecond later.
            self._worker.wait_for_load(self._load_wait_s, self._begin_ready)
        loaded, failed = self._worker.take_loaded()
        failed = set() if self._tells_blocks() else failed
        return KVConnectorTransferResults(finished_recving=loaded, failed_recving=failed)

    def _begin_ready(self) -> None:
        if self._after_kernels is not None:
            self._after_kernels.begin_ready()

    def get_block_ids_with_load_errors(self) -> set[int]:
        if self._worker is None:
            return set()
        failed = self._worker.take_failed_blocks()
        return failed if self._tells_blocks() else set()

    def _tells_blocks(self) -> bool:
        """With one group, vLLM uses what comes before the first block that failed. It takes no blocks with
        several, also if only one is cached by hash."""
        assert self._kv_cache_config is not None
        return len(self._kv_cache_config.kv_cache_groups) == 1

    def build_connector_worker_meta(self) -> KvtierWorkerMetadata | None:
        if self._worker is None:
            return None
        stored, failed = self._worker.take_stored(), self._worker.take_failed_keys()
        steps, disk_loads = self._timer.end(), self._worker.take_disk_loads()
        self._worker.end_step()
        outdated = self._worker.take_outdated()
        adapters, answers = self._worker.adapters.take_news()
        if outdated < 0 and not any((stored, failed, steps, disk_loads, adapters, answers)):
            return None
        return KvtierWorkerMetadata(
            stored, failed, steps, disk_loads, outdated, adapters, answers
        )

    # ---------------------------------------------------------------- in the scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.bind(kv_cache_manager)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        tables = [one.table for one in metadata.values() if isinstance(one, KvtierHandshake)]
        if self._tables is not None and len(tables) == self._ranks:
            self._tables = tables
            kept = None if self._scheduler is None else self._scheduler.kept
            if kept is not None and kept.is_bound():
                kept.expect(tables)

    def on_new_request(self, request: Any) -> None:
        self._restore()
        if self._scheduler is not None and self._engine.cache_config.enable_prefix_caching:
            self._scheduler.came(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None and self._epochs is not None
        if self._epochs.begin():
            self._take_epoch()
        if not self._engine.cache_config.enable_prefix_caching:
            # vLLM turns it off for attention that cannot continue a prefix.
            return 0, False
        found = self._scheduler.matched_tokens(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None and self._epochs is not None
        plan = self._scheduler.plan_step(scheduler_output)
        tokens = sum(scheduler_output.num_scheduled_tokens.values())
        root, weights = identity.hash_root(), self._epochs.current
        return KvtierMetadata(plan, root, weights, tokens, self._blocks.configuration)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        metadata = connector_output.kv_connector_worker_meta
        if isinstance(metadata, KvtierWorkerMetadata):
            self._scheduler.stored(metadata.stored)
            self._scheduler.failed(metadata.failed)
            for step in metadata.steps:
                self._scheduler.prices.computed(*step)
            for load in metadata.disk_loads:
                self._scheduler.prices.loaded_from_disk(*load)
            self._scheduler.hear_of_adapters(metadata.adapters, metadata.answers)
            self._hear_of_other_weights(metadata.outdated)
        self._scheduler.loaded(connector_output.finished_recving or ())
        if self._scheduler.kept is not None:
            self._scheduler.kept.loaded(connector_output.finished_recving or ())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        self._restore()  # vLLM asks as soon as it is ready, so that no request waits for this
        return self._scheduler is not None and self._scheduler.has_work()

    def has_pending_block_frees(self) -> bool:
        return self._scheduler is not None and self._scheduler.frees_blocks_soon()

    def get_kv_connector_stats(self) -> KvtierStats | None:
        if self._link is None:
            return None
        connected: bool | None = self._link.state is LinkState.READY
        if connected == self._connected_told:
            connected = None
        else:
            self._connected_told = connected
        counts, part = self._lookup_counts, "scheduler"
        while self._wish_counts:
            outcome, count = self._wish_counts.popleft()
            counts["hint", outcome] += count
        if self._scheduler is not None:
            counts["store", "late"] += self._scheduler.storing.late_blocks
            counts["hint", "late"] += self._scheduler.storing.late_wishes
            self._scheduler.storing.late_blocks = self._scheduler.storing.late_wishes = 0
        if self._worker is not None:
            counts, part = self._worker.counts, "worker"
        stats = KvtierStats.of(+counts, part, connected)
        counts.clear()
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvtierStats:
        return KvtierStats(data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> KvtierPromMetrics:
        return KvtierPromMetrics(*arguments)

    def reset_cache(self) -> bool | None:
        """The engine may have other weights. It finds none of the KV any more that was computed before,
        whether the daemon has it, a load brings it or memory keeps it for the next engine. The daemon's
        blocks stay for engines that still have those weights."""
        if self._scheduler is not None and self._epochs is not None:
            is_empty = self._scheduler.holds_nothing()
            if self._epochs.turn(may_be_named=is_empty):
                self._take_epoch(is_empty)
            else:
                self._scheduler.note_own_cache(is_empty)
        return True

    def shutdown(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
        if self._link is not None:
            self._link.close()

    # ---------------------------------------------------------------- both

    def _can_keep(self, kv_cache_config: Any) -> bool:
        if not self._options["keep_kv_cache"]:
            return False
        why = why_not_kept(self._engine, kv_cache_config)
        if why is not None:
            logger.warning("kvtier: the KV cache will not outlive this engine: %s", why)
        return why is None

    def _restore(self) -> None:
        """Once, when the root of vLLM's hashes is known, before the first request is scheduled."""
        kept = None if self._scheduler is None else self._scheduler.kept
        if self._tables is None or kept is None or not kept.is_bound():
            return
        root = identity.hash_root()
        if root is not None:
            assert self._epochs is not None
            tables, self._tables = self._tables, None
            root = table_root(root, self._epochs.current)
            self._lookup_counts["restore", "kept"] += kept.restore(tables, root)

    def _take_epoch(self, is_empty: bool = True) -> None:
        """The scheduler asks for blocks of the weights that the epoch names. The workers hear of them
        with the next step. is_empty: whether vLLM's own cache is; it is when the caller names an epoch."""
        assert self._scheduler is not None and self._epochs is not None and self._link is not None
        self._blocks.weights = self._epochs.current
        self._scheduler.turn(is_empty)
        self._link.reopen()

    def _make_scheduler(self) -> SchedulerSide:
        """Asks through regions of one block, since the KV cache is the worker's."""
        first = self._blocks.loaded_weights()
        if first is None:
            logger.warning(
                "kvtier: it cannot be told which weights %s has: no other engine is served its blocks, "
                "nor this one after a restart, unless the option `identity` names them",
                self._engine.model_config.model,
            )
        self._epochs = self._make_epochs(first)
        self._blocks.weights = self._epochs.current
        answers: list[Lookups] = []
        link = self._blocks.open_link(
            lambda answer: answers[0].receive(answer),
            self._blocks.lookup_memories(),
            list(range(self._ranks)),
            tells_tokens=True,
        )
        lookups = Lookups(
            link.ask,
            lambda: link.state,
            self._count_lookup,
            self._options["lookup_timeout_ms"] / 1000,
        )
        answers.append(lookups)
        self._link = link
        kept = KeptCacheScheduler(self._cache_groups) if self._keeps else None
        self._prefetch = DiskPrefetch(link.borrow, link.lost)
        return SchedulerSide(
            lookups,
            self._cache_groups,
            self._ranks,
            self._options["always_load"],
            kept,
            tokens=TokenTeller(link.wants_tokens, link.tell),
            prefetch=self._prefetch,
            adapters=AdapterDigests(self._options["weights_digest"]),
            wishes=WishTeller(self._options["keep_most_s"], link.post, self._count_wish),
            canary=self._make_canary(),
            outputs=EncoderOutputs(self._engine, find_outputs()),
        )

    def _make_canary(self) -> CanarySampler | None:
        """None if no blocks can be compared."""
        per_million = self._options["canary_per_million"]
        types = [group.number_type for group in self._blocks.groups]
        return CanarySampler(per_million) if per_million and any(types) else None

    def _hear_of_other_weights(self, epoch: int) -> None:
        """A worker has noticed them in this epoch. vLLM's own cache still has KV of those before."""
        assert self._scheduler is not None and self._epochs is not None
        if epoch == self._scheduler.epoch:
            logger.warning("kvtier: the weights have changed, and the caches were not reset")
            self._epochs.turn(may_be_named=False)
            self._take_epoch(is_empty=False)

    def _make_epochs(self, first: str | None) -> WeightEpochs:
        """Raises ValueError where vLLM has no versions of weights that could name them."""
        run = self._options["weights_run"]
        version = find_weight_version() if run else lambda: None
        if version is None:
            raise ValueError("weights_run needs a vLLM that has weight versions")
        return WeightEpochs(first, run, version)

    def _count_wish(self, outcome: str, count: int) -> None:
        self._wish_counts.append((outcome, count))

    def _count_lookup(self, outcome: str, count: int) -> None:
        self._lookup_counts["lookup", outcome] += count


# MultiConnector reads statistics by the connector's name, for which vLLM must know the class.
with contextlib.suppress(ValueError):  # registered by a plugin
    KVConnectorFactory.register_connector("KvtierConnector", "kvtier.vllm", "KvtierConnector")
