# SPDX-License-Identifier: Apache-2.0
"""kvtier in vLLM, without changes to vLLM: see docs/engines/VLLM.md.

Nothing of vLLM is imported before vLLM asks for the connector.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Connectors, by the names that vLLM looks for in `kv_connector_module_path`."""
    if name == "KvtierConnector":
        from .connector import KvtierConnector

        return KvtierConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
