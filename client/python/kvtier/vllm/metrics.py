# SPDX-License-Identifier: Apache-2.0
"""The tier's figures in vLLM's own Prometheus registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHUNKS = "vllm:kvtier_tier_chunks"
CONNECTED = "vllm:kvtier_tier_connected"
CONNECTIONS = "vllm:kvtier_tier_connections"


def definitions() -> dict[str, Any]:
    """The metrics that vLLM registers before the engine starts."""
    from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata

    return {
        CHUNKS: OffloadingCounterMetadata(
            documentation=(
                "Chunks by operation (lookup, load, store) and outcome: of lookups the tier that "
                "has the chunk, or why it is a miss; of loads and stores copied, skipped (stored "
                "before), or why it was not copied."
            ),
            labelnames=("operation", "outcome"),
        ),
        CONNECTED: OffloadingGaugeMetadata(
            documentation="1 while kvtierd serves this engine, 0 while all lookups are misses.",
        ),
        CONNECTIONS: OffloadingCounterMetadata(
            documentation="How often the engine's memory was registered with a daemon.",
        ),
    }


def stats(counts: Mapping[tuple[str, str], int], connected: bool, connections: int) -> Any:
    """The observations since the last call, as vLLM takes them."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
    )

    result = OffloadingConnectorStats()
    for labels, count in counts.items():
        result.increase_counter(CHUNKS, count, labels)
    if connections:
        result.increase_counter(CONNECTIONS, connections)
    result.set_gauge(CONNECTED, int(connected))
    return result
