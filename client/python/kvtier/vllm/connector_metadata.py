# SPDX-License-Identifier: Apache-2.0
"""The messages between the connector's two sides, carried in vLLM's own."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from .kept_cache import KeptTable
from .step_plan import StepPlan, Tensors


@dataclass
class KvtierMetadata(KVConnectorMetadata):
    """hash_root: of the engine's hashes, which only the scheduler's process knows. weights: which the
    engine has. tokens: that the step computes. configuration: as EngineBlocks'."""

    plan: StepPlan = field(default_factory=StepPlan)
    hash_root: bytes | None = None
    weights: str = ""
    tokens: int = 0
    configuration: tuple[str, str, str] = ("", "", "")


@dataclass
class KvtierWorkerMetadata(KVConnectorWorkerMetadata):
    """stored: by the numbers of stores, how many workers have ended them. failed: keys of blocks
    that some worker could not load. steps, disk_loads: tokens and seconds, of some worker.
    outdated: the epoch in which some worker has noticed other weights; -1: in none. adapters,
    answers: as LoadedAdapters.take_news; of tensors that differ between workers nothing is known."""

    stored: collections.Counter[int]
    failed: set[bytes]
    steps: list[tuple[int, float]] = field(default_factory=list)
    disk_loads: list[tuple[int, float]] = field(default_factory=list)
    outdated: int = -1
    adapters: dict[int, Tensors] = field(default_factory=dict)
    answers: dict[int, bool] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KvtierWorkerMetadata:
        assert isinstance(other, KvtierWorkerMetadata)
        adapters = {**self.adapters, **other.adapters}
        for number in self.adapters.keys() & other.adapters.keys():
            one, another = self.adapters[number], other.adapters[number]
            if one != another:
                adapters[number] = Tensors(max(one.change, another.change), b"")
        return KvtierWorkerMetadata(
            self.stored + other.stored,
            self.failed | other.failed,
            self.steps or other.steps,
            self.disk_loads or other.disk_loads,
            max(self.outdated, other.outdated),
            adapters,
            {one: self.answers.get(one) or is_ for one, is_ in other.answers.items()},
        )


@dataclass
class KvtierHandshake(KVConnectorHandshakeMetadata):
    """table: of the blocks that the last engine left to this worker."""

    table: KeptTable
