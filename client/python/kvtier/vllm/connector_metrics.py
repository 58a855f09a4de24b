# SPDX-License-Identifier: Apache-2.0
"""The connector's figures in vLLM's own Prometheus registry, from scheduler and workers."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

BLOCKS = "vllm:kvtier_connector_blocks"
CONNECTED = "vllm:kvtier_connector_connected"
# One of the keys of KvtierStats.data.
_CONNECTED_KEY = "connected"


@dataclass
class KvtierStats(KVConnectorStats):
    """data: "operation:outcome" to a number of blocks, and "connected:scheduler" and
    "connected:worker" to 0 or 1."""

    @classmethod
    def of(
        cls, counts: Mapping[tuple[str, str], int], part: str, connected: bool | None
    ) -> KvtierStats:
        """connected: None if it is as it was."""
        data: dict[str, Any] = {":".join(labels): count for labels, count in counts.items()}
        if connected is not None:
            data[f"{_CONNECTED_KEY}:{part}"] = int(connected)
        return cls(data)

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        counts = collections.Counter(self.data)
        for key, value in other.data.items():
            if key.startswith(_CONNECTED_KEY):
                # A worker without a daemon is what must show.
                counts[key] = min(value, self.data.get(key, 1))
            else:
                counts[key] += value
        self.data = dict(counts)
        return self

    def reduce(self) -> dict[str, int | float]:
        return self.data

    def is_empty(self) -> bool:
        return not self.data


class KvtierPromMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._blocks = metric_types[Counter](
            name=BLOCKS,
            documentation=(
                "Blocks by operation (lookup, load, store, restore, hint) and outcome: of lookups the "
                "tier that has the block, or why it is a miss; of loads and stores copied, skipped "
                "(stored before), or why it was not copied; of restore kept, in place as the last "
                "engine left them; of hints the effect, and how many were ignored."
            ),
            labelnames=[*labelnames, "operation", "outcome"],
        )
        self._connected = metric_types[Gauge](
            name=CONNECTED,
            documentation="1 while kvtierd serves the engine's scheduler, or its workers.",
            labelnames=[*labelnames, "part"],
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        engine = self.per_engine_labelvalues[engine_idx]
        for key, value in transfer_stats_data.items():
            first, second = key.split(":", 1)
            if first == _CONNECTED_KEY:
                self._connected.labels(*engine, second).set(value)
            else:
                self._blocks.labels(*engine, first, second).inc(value)
