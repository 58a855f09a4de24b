# SPDX-License-Identifier: Apache-2.0
"""A vLLM in a process of its own, as engine_bench.py sees it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from settings import Settings

HERE = pathlib.Path(__file__).resolve().parent


class EngineProcess:
    """Its processes form a group. share: of the KV cache's bytes. environment: in addition to the
    benchmark's own. To be waited for, and killed in the end; of one thread."""

    def __init__(
        self,
        settings: Settings,
        connector: dict | None,
        log: pathlib.Path,
        share: float = 1.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        read_fd, write_fd = os.pipe()
        self.start_s = 0.0
        self._replies = os.fdopen(read_fd)
        options = settings.engine_options(connector, share)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "engine_process.py"), settings.model(),
                 json.dumps(options)],
                stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[write_fd],
                env={**os.environ, **(environment or {}), "KVTIER_BENCH_REPLY_FD": str(write_fd)},
                start_new_session=True,
            )  # fmt: skip
        os.close(write_fd)

    def wait_for_start(self) -> None:
        self.start_s = self._reply()["start_s"]

    @property
    def process_id(self) -> int:
        return self._process.pid

    def call(self, op: str, **arguments) -> dict:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return self._reply()

    def kill(self) -> None:
        """kill -9 of all its processes; does nothing when that was done before."""
        if self._replies.closed:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._replies.close()
        # The GPU's memory is free when the driver has noticed.
        time.sleep(1.0)

    def _reply(self) -> dict:
        line = self._replies.readline()
        if not line:
            raise RuntimeError("the engine ended; see its log")
        return json.loads(line)
