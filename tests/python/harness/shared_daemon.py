# SPDX-License-Identifier: Apache-2.0
"""The base of tests of engines, which share a real daemon, since each has prompts of its own."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

from .private_daemon import MAX_WAIT_MS, PrivateDaemon


class SharedDaemonCase:
    """Mixed into a TestCase: a daemon for all of its tests, and a directory. The tiers are small,
    but hold far more than all prompts of a file of tests need."""

    host_bytes = "64MiB"

    @classmethod
    def settings(cls) -> list[str]:
        """The options of its daemon."""
        return [
            "pool.bytes=16MiB",
            "pool.device=host",
            f"host.bytes={cls.host_bytes}",
            "disk.bytes=128MiB",
            "cache.slab_bytes=1MiB",
            "disk.free_floor_bytes=0B",
            f"cache.max_wait_ms={MAX_WAIT_MS}",
        ]

    @classmethod
    def setUpClass(cls: Any) -> None:
        directory = tempfile.TemporaryDirectory(prefix="kvtier-engines-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.daemon = PrivateDaemon(directory.name, cls.settings())
        cls.addClassCleanup(cls.daemon.kill)
        cls.daemon.start()
