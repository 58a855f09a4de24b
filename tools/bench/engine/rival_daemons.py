# SPDX-License-Identifier: Apache-2.0
"""The daemons of other systems that engine_bench.py compares, started with the flags that their
documentation recommends and with the same bytes of host memory and of disk."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from settings import GIB, MIB, Settings

START_TIMEOUT_S = 90.0


class RivalDaemon:
    """A server in a process group of its own, with a directory for its disk tier. Its maker calls
    `end`, which ends it and deletes that directory; of one thread."""

    def __init__(
        self, command: list[str], url: str, log: pathlib.Path, disk: pathlib.Path
    ) -> None:
        self.command = command
        self._url, self._log, self._disk = url, log, disk
        self._process: subprocess.Popen | None = None

    @property
    def process_id(self) -> int:
        """REQUIRES: started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Returns after how many seconds it answered. Raises RuntimeError if it does not."""
        began = time.monotonic()
        self._disk.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as output:
            self._process = subprocess.Popen(
                self.command, stdout=output, stderr=output, start_new_session=True
            )
        while time.monotonic() - began < START_TIMEOUT_S:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended: {self._log.read_text(errors='replace')[-600:]}")
            if _answers(self._url):
                return time.monotonic() - began
            time.sleep(0.1)
        raise RuntimeError(f"it does not answer: {self._log.read_text(errors='replace')[-600:]}")

    def kill(self) -> None:
        """kill -9; does nothing when none is running."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._disk, ignore_errors=True)


def pegaflow(settings: Settings) -> RivalDaemon:
    disk = settings.work / "pegaflow"
    command = [
        sys.executable, "-m", "pegaflow._server", "--addr", "127.0.0.1:50055", "--devices", "0",
        "--pool-size", _mib(settings.host_bytes), "--ssd-cache-path", str(disk / "ssd.cache"),
        "--ssd-cache-capacity", _mib(settings.disk_bytes), "--http-addr", "127.0.0.1:9091",
    ]  # fmt: skip
    return RivalDaemon(
        command, "http://127.0.0.1:9091/health", settings.log("pegaflow-daemon"), disk
    )


def lmcache(settings: Settings) -> RivalDaemon:
    disk = settings.work / "lmcache"
    # Its disk tier grows without end unless it is told to evict, too.
    adapter = {
        "type": "fs_native", "base_path": str(disk), "num_workers": 8, "use_odirect": True,
        "max_capacity_gb": settings.disk_bytes / GIB, "eviction": {"eviction_policy": "LRU"},
    }  # fmt: skip
    command = [
        sys.executable, "-m", "lmcache.cli.main", "server", "--l1-size-gb",
        f"{settings.host_bytes / GIB:.3f}", "--eviction-policy", "LRU", "--chunk-size", "256",
        "--no-l1-use-lazy", "--disable-observability", "--l2-adapter", json.dumps(adapter),
    ]  # fmt: skip
    return RivalDaemon(command, "http://127.0.0.1:8080/", settings.log("lmcache-daemon"), disk)


def _mib(size: int) -> str:
    """PegaFlow documents whole numbers with a unit."""
    return f"{size // MIB}mb"


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=3).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
