# SPDX-License-Identifier: Apache-2.0
"""vLLM's `kv_transfer_config` for what engine_bench.py compares."""

from __future__ import annotations

import subprocess
import sys

from settings import GIB, Settings


def kvtier(socket: str, **options) -> dict:
    # The model's weights are drawn, so that no file names them for the next engine.
    options = {"identity": "drawn weights", **options}
    return {
        "kv_connector": "KvtierConnector",
        "kv_connector_module_path": "kvtier.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, **options},
    }


def native(settings: Settings) -> dict:
    """vLLM's own offloading to host memory, without a tier below it."""
    return _offloading({"cpu_bytes_to_use": settings.host_bytes})


def file_system(settings: Settings) -> dict:
    options = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": settings.host_bytes,
        "secondary_tiers": [{"type": "fs", "root_dir": str(settings.work / "fs")}],
    }
    if settings.small:
        # vLLM has no copies between two parts of host memory.
        options.update(spec_name="CpuTieringSpec", spec_module_path="cpu_offloading")
    return _offloading(options)


def _offloading(options: dict) -> dict:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": options,
    }


def pegaflow() -> dict:
    return {
        "kv_connector": "PegaKVConnector",
        "kv_connector_module_path": "pegaflow.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }


def lmcache_daemon() -> dict:
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555,
        },
    }  # fmt: skip


def lmcache() -> dict:
    """LMCache in vLLM's own process. Raises RuntimeError if its operations for the GPU do not load,
    for then it copies with torch, at a tenth of the speed, and says so in a warning only."""
    command = [sys.executable, "-c", "import torch, lmcache.cuda_ops"]
    imported = subprocess.run(command, capture_output=True, text=True)
    if imported.returncode != 0:
        raise RuntimeError(f"lmcache.cuda_ops does not load: {imported.stderr[-400:]}")
    return {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


def lmcache_environment(settings: Settings) -> dict[str, str]:
    return {
        "LMCACHE_CHUNK_SIZE": "256",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": str(settings.host_bytes / GIB),
        "LMCACHE_SAVE_DECODE_CACHE": "False",
        # Without it LMCache's keys differ from process to process, and it warns.
        "PYTHONHASHSEED": "0",
    }
