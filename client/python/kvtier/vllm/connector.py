# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector: vLLM's own KV cache, its blocks stored to and loaded from kvtierd in place.

    --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_connector_module_path":
        "kvtier.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

For models with one cache group. Loads are asynchronous: a request waits for its blocks while others
go on. Stores begin one step after the blocks were computed.
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
    SupportsHMA,
)

from ..connection import DEFAULT_SOCKET
from ..types import Retention
from . import identity
from .connector_metrics import KvtierPromMetrics, KvtierStats
from .connector_scheduler import SchedulerSide, StepPlan
from .connector_worker import WorkerSide
from .gpu_memory import AfterKernels, GpuMemory
from .kv_memory import BlockPieces, SharedAllocation, block_pieces
from .link import Attachment, Link, LinkState, attach_regions, logger
from .lookups import Lookups
from .transfers import Transfers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

_OPTIONS = frozenset(
    {"socket", "lookup_timeout_ms", "retention", "identity", "retry_min_ms", "retry_max_ms"}
)


@dataclass
class KvtierMetadata(KVConnectorMetadata):
    """hash_root: what vLLM's chains of hashes begin with, which only the scheduler's process knows."""

    plan: StepPlan = field(default_factory=StepPlan)
    preempted: list[str] = field(default_factory=list)
    hash_root: bytes | None = None


class KvtierConnector(KVConnectorBase_V1, SupportsHMA):
    """The options of `kv_connector_extra_config` are KvtierTier's. Raises ValueError for others,
    and for models and devices that it does not know."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)
        unknown = set(options) - _OPTIONS
        if unknown:
            raise ValueError(f"not options of KvtierConnector: {sorted(unknown)}")
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError("KvtierConnector takes models with one cache group only")
        device = vllm_config.device_config.device_type
        if device not in ("cpu", "cuda"):
            raise ValueError(f"KvtierConnector serves vLLM on CPUs and NVIDIA GPUs, not on {device}")
        self._options = options
        self._engine = vllm_config
        # One entry and one region for each of vLLM's cache groups, in their order.
        self._groups: list[BlockPieces] = [
            block_pieces(kv_cache_config, group)
            for group in range(len(kv_cache_config.kv_cache_groups))
        ]
        # On the CPU the KV cache is put where the daemon can map it; on a GPU it can open what
        # torch allocates.
        self._allocation: SharedAllocation | None = None
        self._after_kernels: AfterKernels | None = None
        if device == "cpu":
            self._allocation = SharedAllocation(self._groups[0].memory_bytes)
        else:
            self._after_kernels = AfterKernels()
        self._link: Link | None = None
        self._hash_root: bytes | None = None
        self._lookup_counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._connected_told: bool | None = None
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
        memories = self._memories(next(iter(kv_caches.values())))
        if memories is None:
            logger.error("kvtier: the KV cache was not allocated as expected; nothing is cached")
            return
        self._link = self._open_link(lambda _: None, memories)
        retention = Retention[str(self._options.get("retention", "extended")).upper()]
        tokens = self._groups[0].group.block_tokens
        self._worker = WorkerSide(Transfers(self._link), tokens, retention)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker is not None and isinstance(kv_connector_metadata, KvtierMetadata):
            if kv_connector_metadata.preempted and self._after_kernels is not None:
                self._after_kernels.begin_all()
            self._worker.wait_for_stores(kv_connector_metadata.preempted)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the step's kernels are launched. The step's transfers are of blocks that earlier
        kernels may still be writing or reading, and that no later one touches."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is None or not isinstance(connector_metadata, KvtierMetadata):
            return
        self._hash_root = connector_metadata.hash_root
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
        pass

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        if self._after_kernels is not None:
            self._after_kernels.begin_ready()
        return self._worker.take_finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._worker is None else self._worker.take_failed_blocks()

    # ---------------------------------------------------------------- in the scheduler

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        found = self._scheduler.matched_tokens(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        preempted = list(getattr(scheduler_output, "preempted_req_ids", None) or ())
        plan = self._scheduler.plan_step(scheduler_output)
        return KvtierMetadata(plan, preempted, identity.hash_root())

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.sent(connector_output.finished_sending or ())
        self._scheduler.failed(connector_output.invalid_block_ids or ())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return self._scheduler.finished(request, block_ids), None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.has_work()

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
        link = self._open_link(lambda answer: answers[0].receive(answer), memories)
        lookups = Lookups(
            link.ask,
            lambda: link.state,
            self._count_lookup,
            float(self._options.get("lookup_timeout_ms", 50)) / 1000,
        )
        answers.append(lookups)
        self._link = link
        return SchedulerSide(lookups, self._groups[0].group.block_tokens)

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
        self, on_answer: Callable[[Any], None], memories: Sequence[Mapping[str, Any]]
    ) -> Link:
        """memories: of each group, what Connection.open_region is to be given."""
        pauses = [
            float(self._options.get(name, default)) / 1000
            for name, default in (("retry_min_ms", 50), ("retry_max_ms", 2000))
        ]
        return Link(functools.partial(self._attach, memories), on_answer, *pauses)

    def _attach(self, memories: Sequence[Mapping[str, Any]]) -> Attachment | None:
        root = self._hash_root or identity.hash_root()
        if root is None:
            return None
        record = identity.block_record(
            self._engine,
            self._kv_cache_config,
            [group.group for group in self._groups],
            root,
            vllm.__version__,
            str(self._options.get("identity", "")),
        )
        socket = str(self._options.get("socket") or os.environ.get("KVTIER_SOCKET", ""))
        return attach_regions(socket or DEFAULT_SOCKET, record, memories)
