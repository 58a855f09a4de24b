# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector: vLLM's own KV cache, its blocks stored to and loaded from kvtierd in place.

    --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_connector_module_path":
        "kvtier.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

Loads are asynchronous: a request waits for its blocks while others go on. Stores begin one step
after the blocks were computed.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from .._link import Attachment, LinkState
from ..connection import DEFAULT_SOCKET
from ..types import Retention
from . import identity
from .cache_groups import cache_groups
from .connector_metrics import KvtierPromMetrics, KvtierStats
from .connector_scheduler import SchedulerSide, StepPlan
from .connector_worker import WorkerSide
from .gpu_memory import AfterKernels, GpuMemory, StepTimer
from .hit_prices import MIN_STEP_TOKENS, HostStepTimer
from .kv_memory import BlockPieces, SharedAllocation, block_pieces
from .link import LookupLink, attach_regions
from .lookups import Lookups
from .transfers import Transfers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

_OPTIONS = frozenset(
    {
        "always_load",
        "identity",
        "lookup_timeout_ms",
        "retention",
        "retry_max_ms",
        "retry_min_ms",
        "socket",
    }
)


@dataclass
class KvtierMetadata(KVConnectorMetadata):
    """hash_root: of the engine's hashes, which only the scheduler's process knows.
    tokens: that the step computes."""

    plan: StepPlan = field(default_factory=StepPlan)
    hash_root: bytes | None = None
    tokens: int = 0


@dataclass
class KvtierWorkerMetadata(KVConnectorWorkerMetadata):
    """stored: by the numbers of stores, how many workers have ended them. failed: keys of blocks
    that some worker could not load. steps, disk_loads: tokens and seconds, of some worker."""

    stored: collections.Counter[int]
    failed: set[bytes]
    steps: list[tuple[int, float]] = field(default_factory=list)
    disk_loads: list[tuple[int, float]] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KvtierWorkerMetadata:
        assert isinstance(other, KvtierWorkerMetadata)
        return KvtierWorkerMetadata(
            self.stored + other.stored,
            self.failed | other.failed,
            self.steps or other.steps,
            self.disk_loads or other.disk_loads,
        )


class KvtierConnector(KVConnectorBase_V1, SupportsHMA):
    """The options of `kv_connector_extra_config` are KvtierTier's and `always_load`. Raises
    ValueError for others, and for models and devices that it does not know."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)
        unknown = set(options) - _OPTIONS
        if unknown:
            raise ValueError(f"not options of KvtierConnector: {sorted(unknown)}")
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size * parallel.decode_context_parallel_size != 1:
            raise ValueError("KvtierConnector knows tensor parallelism only")
        device = vllm_config.device_config.device_type
        if device not in ("cpu", "cuda"):
            raise ValueError(f"KvtierConnector serves CPUs and NVIDIA GPUs, not {device}")
        self._options = options
        self._engine = vllm_config
        _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        self._ranks = parallel.tensor_parallel_size
        replicated = 1 < self._ranks <= getattr(kv_cache_config, "kv_tp_replicas", 1)
        # One entry and one region for each of vLLM's cache groups that are cached by hash.
        self._cache_groups = cache_groups(kv_cache_config, hash_tokens)
        self._groups: list[BlockPieces] = [
            block_pieces(kv_cache_config, group, replicated) for group in self._cache_groups
        ]
        # On the CPU the KV cache is put where the daemon can map it; on a GPU it can open what
        # torch allocates.
        self._allocation: SharedAllocation | None = None
        self._after_kernels: AfterKernels | None = None
        self._timer = StepTimer() if device == "cuda" else HostStepTimer()
        if device == "cpu":
            self._allocation = SharedAllocation(self._groups[0].memory_bytes)
        else:
            self._after_kernels = AfterKernels()
        self._link: LookupLink | None = None
        self._lookup_counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._connected_told: bool | None = None
        self._hash_root: bytes | None = None
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = self._make_scheduler()

    # ---------------------------------------------------------------- in the worker

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """On a GPU a block's layers are asked to lie together, so that a block is one copy. vLLM
        takes another layout where the attention backend cannot do this one."""
        return "BLNHC" if vllm_config.device_config.device_type == "cuda" else None

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        return self._allocation

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        cache: Any = next(iter(kv_caches.values()))
        # A layer of states has a tensor for each part of a state.
        memories = self._memories(cache[0] if isinstance(cache, (list, tuple)) else cache)
        self._link = self._open_link(lambda _: None, memories, [None])
        retention = Retention[str(self._options.get("retention", "extended")).upper()]
        tokens = [group.group.block_tokens for group in self._groups]
        self._worker = WorkerSide(Transfers(self._link), tokens, retention)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the step's kernels are launched. The step's transfers are of blocks that earlier
        kernels may still be writing or reading, and that no later one touches."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is None or not isinstance(connector_metadata, KvtierMetadata):
            return
        self._hash_root = connector_metadata.hash_root
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
        if self._after_kernels is not None:
            self._after_kernels.begin_ready()
        self._worker.poll()
        loaded, failed = self._worker.take_loaded()
        # With one group, vLLM uses what comes before the first block that failed.
        failed = failed if len(self._groups) > 1 else set()
        return KVConnectorTransferResults(finished_recving=loaded, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        if self._worker is None:
            return set()
        failed = self._worker.take_failed_blocks()
        return failed if len(self._groups) == 1 else set()

    def build_connector_worker_meta(self) -> KvtierWorkerMetadata | None:
        if self._worker is None:
            return None
        stored, failed = self._worker.take_stored(), self._worker.take_failed_keys()
        steps, disk_loads = self._timer.end(), self._worker.take_disk_loads()
        if not (stored or failed or steps or disk_loads):
            return None
        return KvtierWorkerMetadata(stored, failed, steps, disk_loads)

    # ---------------------------------------------------------------- in the scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.bind(kv_cache_manager)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        if not self._engine.cache_config.enable_prefix_caching:
            # vLLM turns it off for attention that cannot continue a prefix.
            return 0, False
        found = self._scheduler.matched_tokens(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        plan = self._scheduler.plan_step(scheduler_output)
        tokens = sum(scheduler_output.num_scheduled_tokens.values())
        return KvtierMetadata(plan, identity.hash_root(), tokens)

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
        """What the daemon has stays; vLLM's own cache is no affair of the connector."""
        return True

    def shutdown(self) -> None:
        if self._link is not None:
            self._link.close()

    # ---------------------------------------------------------------- both

    def _make_scheduler(self) -> SchedulerSide:
        """Asks through regions of one block, since the KV cache is the worker's."""
        block_bytes = [sum(piece[2] for piece in group.pieces) for group in self._groups]
        fd = os.memfd_create("kvtier-vllm-lookups", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(block_bytes))
        memories = [
            {"fd": fd, "bytes": max(block_bytes), "blocks": 1, "pieces": [(0, one, one)]}
            for one in block_bytes
        ]
        answers: list[Lookups] = []
        ranks = list(range(self._ranks))
        link = self._open_link(lambda answer: answers[0].receive(answer), memories, ranks)
        lookups = Lookups(
            link.ask,
            lambda: link.state,
            self._count_lookup,
            float(self._options.get("lookup_timeout_ms", 50)) / 1000,
        )
        answers.append(lookups)
        self._link = link
        always_load = bool(self._options.get("always_load", False))
        return SchedulerSide(lookups, self._cache_groups, self._ranks, always_load)

    def _count_lookup(self, outcome: str) -> None:
        self._lookup_counts["lookup", outcome] += 1

    def _memories(self, cache: torch.Tensor) -> list[dict[str, Any]] | None:
        """Of each group, what `attach_regions` needs. cache: any layer's, since all layers' are in
        one allocation. None if vLLM has put them elsewhere."""
        if cache.untyped_storage().nbytes() < self._groups[0].memory_bytes:
            return None
        if self._allocation is None:
            gpu = GpuMemory(cache)
            places = [gpu.arguments(group.pieces) for group in self._groups]
        elif self._allocation.fd is not None:
            file = {"fd": self._allocation.fd, "bytes": self._groups[0].memory_bytes}
            places = [{**file, "pieces": group.pieces} for group in self._groups]
        else:
            return None
        return [{**place, "blocks": group.blocks} for place, group in zip(places, self._groups)]

    def _open_link(
        self,
        on_answer: Callable[[Any], None],
        memories: Sequence[Mapping[str, Any]] | None,
        ranks: Sequence[int | None],
    ) -> LookupLink:
        """memories: of each group, what `attach_regions` needs; None if there are none to be opened.
        ranks: whose blocks the regions have; None: this process's."""
        pauses = [
            float(self._options.get(name, default)) / 1000
            for name, default in (("retry_min_ms", 50), ("retry_max_ms", 2000))
        ]
        return LookupLink(functools.partial(self._attach, memories, ranks), on_answer, *pauses)

    def _attach(
        self, memories: Sequence[Mapping[str, Any]] | None, ranks: Sequence[int | None]
    ) -> Attachment | None:
        if memories is None:
            # The scheduler cannot know, so that the worker must go on answering, with failures.
            raise RuntimeError("vLLM has not allocated the KV cache as expected")
        root = self._hash_root or identity.hash_root()
        if root is None:
            return None
        records = [
            identity.block_record(
                self._engine,
                [[group.spec, group.layers] for group in self._groups],
                [group.group for group in self._groups],
                root,
                vllm.__version__,
                str(self._options.get("identity", "")),
                rank,
            )
            for rank in ranks
        ]
        socket = str(self._options.get("socket") or os.environ.get("KVTIER_SOCKET", ""))
        return attach_regions(socket or DEFAULT_SOCKET, records, memories)
