# SPDX-License-Identifier: Apache-2.0
"""The options of vLLM's connector; docs/engines/VLLM.md explains them."""

from __future__ import annotations

from .._options import COMMON, Choice, Flag, Number, Option, Text
from ..types import Retention

CONNECTOR_OPTIONS: dict[str, Option] = {
    **COMMON,
    "always_load": Flag(False),
    # How many of a million hits are cut short, for the daemon to compare blocks; 0: none.
    "canary_per_million": Number(1000, 0, 1_000_000, whole=True),
    "keep_kv_cache": Flag(False),
    # The longest time for which a request can have blocks kept; 0: none can.
    "keep_most_s": Number(86_400, 0, 31_536_000),
    # The longest time that a worker that has nothing to compute waits for a load in one step.
    "load_wait_ms": Number(5, 0, 1000),
    "lookup_timeout_ms": Number(50, 0, 600_000),
    "retention": Choice(
        Retention.EXTENDED, {"extended": Retention.EXTENDED, "memory": Retention.MEMORY}
    ),
    "weights_run": Text("", 128),
}
