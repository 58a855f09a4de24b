# SPDX-License-Identifier: Apache-2.0
"""Starts engine.py and talks to it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# A start takes 15 s on a quiet machine, a request less than one.
START_TIMEOUT_S = 300
REPLY_TIMEOUT_S = 120
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class EngineProcess:
    """A running engine; `kill` or `stop` ends it. log: vLLM's own output, appended to a file."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, tier: dict | None = None) -> None:
        reading, writing = os.pipe()
        self.log_path = log
        command = [sys.executable, str(HERE / "engine.py"), str(model)]
        if tier is not None:
            command.append(json.dumps(tier))
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
                env={**os.environ, "KVTIER_TEST_REPLY_FD": str(writing)},
                preexec_fn=_die_with_parent,
                text=True,
            )
        os.close(writing)
        self._replies = os.fdopen(reading)
        self._reply(START_TIMEOUT_S)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def generate(self, prompts: list[list[int]], tokens: int = 16) -> dict:
        return self.ask({"op": "generate", "prompts": prompts, "tokens": tokens})

    def forget(self) -> None:
        assert self.ask({"op": "forget"})["done"], self.log[-3000:]

    def metrics(self) -> dict[str, float]:
        return self.ask({"op": "metrics"})

    def ask(self, request: dict) -> dict:
        self.send(request)
        return self._reply(REPLY_TIMEOUT_S)

    def send(self, request: dict) -> None:
        """Without waiting for the reply, which `receive` brings."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict:
        return self._reply(REPLY_TIMEOUT_S)

    def wait_for_reply(self, timeout_s: float) -> None:
        """Returns when the reply can be received, or the time is over."""
        select.select([self._replies], [], [], timeout_s)

    def stop(self) -> None:
        """Lets the engine end by itself, and says whether it did so without an error."""
        self._process.stdin.close()
        status = self._process.wait(REPLY_TIMEOUT_S)
        self._replies.close()
        assert status == 0, f"the engine ended with {status}:\n{self.log[-3000:]}"

    def kill(self) -> None:
        """kill -9; does nothing after `stop`."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._replies.close()

    def _reply(self, timeout_s: float) -> dict:
        deadline = time.monotonic() + timeout_s
        ready, _, _ = select.select([self._replies], [], [], max(0, deadline - time.monotonic()))
        line = self._replies.readline() if ready else ""
        if not line:
            if ready:  # it is ending, and has not said yet why
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
            self.kill()
            raise AssertionError(f"the engine does not answer:\n{self.log[-6000:]}")
        return json.loads(line)
