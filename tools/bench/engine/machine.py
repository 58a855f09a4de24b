# SPDX-License-Identifier: Apache-2.0
"""Card, boot, commit and versions of a run, as its results keep them."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess

PACKAGES = ("vllm", "torch", "lmcache", "pegaflow-llm-cu13", "transformers")


def facts() -> dict[str, str]:
    """Each one that can be told here; the commit is KVTIER_COMMIT's where no checkout is."""
    query = "--query-gpu=name,uuid,driver_version"
    told = {
        "card": _output("nvidia-smi", query, "--format=csv,noheader"),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "kernel": os.uname().release,
        "cores": str(os.cpu_count()),
        "commit": os.environ.get("KVTIER_COMMIT") or _output("git", "rev-parse", "HEAD"),
    }
    for package in PACKAGES:
        try:
            told[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {name: value for name, value in told.items() if value}


def drop_page_cache() -> None:
    """As root; else files that were just written may be read from memory, and it says so."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        print(f"engine-bench: the page cache is kept: {error}", flush=True)


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""
