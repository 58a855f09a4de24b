# SPDX-License-Identifier: Apache-2.0
"""The blocks of an engine's KV cache as the daemon gets to know them: who may share them, where
they lie, and by which connection."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import vllm

from .._epochs import unnamed_epoch
from .._gpu_memory import GpuMemory, gpu_uuid
from .._link import Attachment
from .._options import retry_pauses
from ..connection import Connection
from ..model import ModelRecord
from . import identity
from .kept_allocation import KeptAllocation, memory_name, open_memory
from .kv_memory import BlockPieces, SharedAllocation
from .link import LookupLink, attach_regions

#: For each group, the arguments of `attach_regions`.
Memories = Sequence[Mapping[str, Any]]


class EngineBlocks:
    """Belongs to one side of a connector. options: as read. groups: one for each region. hash_root: of
    the engine's hashes. weights: which it has. Both are set when they are known, and regions are
    opened then."""

    def __init__(self, engine: Any, options: Mapping[str, Any], groups: list[BlockPieces]) -> None:
        self._engine = engine
        self._options = options
        self.groups = groups
        self.hash_root: bytes | None = None
        self.weights: str | None = None
        # Once, since vLLM changes its configuration when it is told to load other weights.
        self._facts = identity.block_facts(
            engine,
            [[group.spec, group.layers] for group in groups],
            identity.version_name(
                vllm.__version__,
                engine,
                (kind for group in groups for kind in group.spec_kinds),
            ),
            options["identity"],
        )

    @property
    def configuration(self) -> tuple[str, str, str]:
        """The model's name, and the digests of its configuration and of the engine's settings, as they were
        in this process when the connector was made."""
        extra = self._facts.extra
        return self._facts.name, extra["model_config"], extra.get("settings", "")

    def take_configuration(self, name: str, config: str, settings: str) -> None:
        """Takes the scheduler's in place of this process's: some models change their configuration when
        they are made, which only a worker does. Before regions are opened."""
        if self.configuration != (name, config, settings):
            told = {**self._facts.extra, "model_config": config, "settings": settings}
            extra = {name: text for name, text in told.items() if text}
            self._facts = dataclasses.replace(self._facts, name=name, extra=extra)

    def loaded_weights(self) -> str | None:
        """Names the weights that the engine has just loaded, if it can be told which they are."""
        label, whole = self._options["identity"], self._options["weights_digest"]
        return identity.loaded_weights(self._engine, label, whole)

    def memories_of(
        self, cache: torch.Tensor, allocation: SharedAllocation | None
    ) -> Memories | None:
        """The worker's memory. cache: any layer's, since all layers' are in one allocation.
        allocation: the one that it may have come from. None if vLLM has put them elsewhere."""
        if cache.untyped_storage().nbytes() < self.groups[0].memory_bytes:
            return None
        if allocation is not None and allocation.fd is not None:
            places = [allocation.arguments(group.pieces) for group in self.groups]
        elif cache.is_cuda:
            gpu = GpuMemory(cache)
            places = [gpu.arguments(group.pieces) for group in self.groups]
        else:
            return None
        return [{**place, "blocks": group.blocks} for place, group in zip(places, self.groups)]

    def lookup_memories(self) -> Memories:
        """The memory of the scheduler, which only asks: that of one block."""
        block_bytes = [sum(piece[2] for piece in group.pieces) for group in self.groups]
        fd = os.memfd_create("kvtier-vllm-lookups", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(block_bytes))
        file = {"fd": fd, "bytes": max(block_bytes), "blocks": 1}
        return [{**file, "pieces": [(0, one, one)]} for one in block_bytes]

    def open_link(
        self,
        on_answer: Callable[[Any], None],
        memories: Memories | None,
        ranks: Sequence[int | None],
        on_connection: Callable[[Connection], None] | None = None,
        tells_tokens: bool = False,
    ) -> LookupLink:
        """memories: None if there are none to be opened. ranks: whose blocks the regions have; None:
        this process's. on_connection: gets each new one before its regions are opened, on the
        link's thread. tells_tokens: as LookupLink's."""
        attach = functools.partial(self._attach, memories, ranks, on_connection)
        pauses = retry_pauses(self._options)
        return LookupLink(attach, on_answer, *pauses, tells_tokens=tells_tokens)

    def kept_allocation(self, likely_written: int, device: str) -> KeptAllocation:
        """The worker's kept allocation. likely_written: as there."""
        return KeptAllocation(self.groups, self._open_memory, likely_written, device)

    def _record(self, root: bytes, weights: str, rank: int | None) -> ModelRecord:
        parallel = self._engine.parallel_config
        ranks = parallel.tensor_parallel_size
        own = getattr(parallel, "rank", 0) % ranks
        groups = [group.group for group in self.groups]
        return self._facts.record(root, weights, groups, own if rank is None else rank, ranks)

    def _open_memory(self) -> Any:
        is_gpu = self._engine.device_config.device_type == "cuda"
        gpu = torch.cuda.current_device() if is_gpu else None
        uuid = None if gpu is None else gpu_uuid(torch.device("cuda", gpu))
        first = self.groups[0]
        # The table says whether the bytes are those of these weights and hashes; the name, whose
        # memory it is.
        weights = self.loaded_weights() or unnamed_epoch()
        name = memory_name(self._record(bytes(32), weights, None), self.groups, uuid)
        return open_memory(self._options["socket"], name, first.memory_bytes, first.blocks, gpu)

    def _attach(
        self,
        memories: Memories | None,
        ranks: Sequence[int | None],
        on_connection: Callable[[Connection], None] | None,
    ) -> Attachment | None:
        if memories is None:
            # The scheduler cannot know, so that the worker must go on answering, with failures.
            raise RuntimeError("vLLM has not allocated the KV cache as expected")
        root, weights = self.hash_root or identity.hash_root(), self.weights
        if root is None or weights is None:
            return None
        records = [self._record(root, weights, rank) for rank in ranks]
        return attach_regions(self._options["socket"], records, memories, on_connection)
