# SPDX-License-Identifier: Apache-2.0
"""Has engine.py make engines and talks to them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# On a quiet machine the first start takes 15 s, others 5 s, a request less than one.
START_TIMEOUT_S = 300
REPLY_TIMEOUT_S = 300
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@functools.lru_cache(maxsize=None)
def _maker() -> socket.socket:
    """The socket of a running engine.py, which ends before this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, str(HERE / "engine.py"), str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        preexec_fn=_die_with_parent,
        # Not for this process: vLLM may load its plugins here, too.
        env={**os.environ, "TEST_PATIENT": "1"},
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _ask_maker(message: dict, descriptors: tuple[int, ...] = ()) -> int:
    socket.send_fds(_maker(), [json.dumps(message).encode()], descriptors)
    answer = _maker().recv(64)
    assert answer, "engine.py has ended"
    return json.loads(answer)


class EngineProcess:
    """A running engine; `kill` or `stop` ends it. log: vLLM's own output, appended to a file."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, options: dict | None = None) -> None:
        requests, writing_requests = os.pipe()
        reading, writing = os.pipe()
        self.log_path = log
        self._exit_status: int | None = None
        with open(log, "ab") as output:
            self._pid = _ask_maker(
                {"model": str(model), "options": options}, (requests, writing, output.fileno())
            )
        self._process = os.pidfd_open(self._pid)
        os.close(requests)
        os.close(writing)
        self._requests = os.fdopen(writing_requests, "w")
        self._replies = os.fdopen(reading)
        self._reply(START_TIMEOUT_S)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def generate(self, prompts: list[list[int]], tokens: int = 16, **more: object) -> dict:
        return self.ask({"op": "generate", "prompts": prompts, "tokens": tokens, **more})

    def forget(self) -> None:
        assert self.ask({"op": "forget"})["done"], self.log[-3000:]

    def reset(self) -> None:
        """As vLLM's pauses do it before weights are updated, with the connector's part."""
        assert self.ask({"op": "reset", "connector": True})["done"], self.log[-3000:]

    def reload(self, model: pathlib.Path, **version: str) -> None:
        """Replaces the weights of the running engine. version: the trainer's name for them."""
        self.ask({"op": "reload", "model": str(model), **version})

    def metrics(self) -> dict[str, float]:
        return self.ask({"op": "metrics"})

    def ask(self, request: dict) -> dict:
        self.send(request)
        return self._reply(REPLY_TIMEOUT_S)

    def send(self, request: dict) -> None:
        """Without waiting for the reply, which `receive` brings."""
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()

    def receive(self) -> dict:
        return self._reply(REPLY_TIMEOUT_S)

    def wait_for_reply(self, timeout_s: float) -> None:
        """Returns when the reply can be received, or the time is over."""
        select.select([self._replies], [], [], timeout_s)

    def stop(self) -> None:
        """Lets the engine end by itself, and says whether it did so without an error."""
        self._requests.close()
        assert self._has_ended(REPLY_TIMEOUT_S), f"the engine does not end:\n{self.log[-3000:]}"
        self._close()
        status = self._exit_status
        assert status == 0, f"the engine ended with {status}:\n{self.log[-3000:]}"

    def kill(self) -> None:
        """kill -9; does nothing after `stop`."""
        if self._exit_status is None:
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self._close()

    def _has_ended(self, timeout_s: float) -> bool:
        return bool(select.select([self._process], [], [], timeout_s)[0])

    def _close(self) -> None:
        """The exit status of an engine that has ended or does so at once."""
        self._exit_status = _ask_maker({"wait": self._pid})
        os.close(self._process)
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._replies.close()

    def _reply(self, timeout_s: float) -> dict:
        deadline = time.monotonic() + timeout_s
        ready, _, _ = select.select([self._replies], [], [], max(0, deadline - time.monotonic()))
        line = self._replies.readline() if ready else ""
        if not line:
            if ready:  # it is ending, and has not said yet why
                self._has_ended(10)
            self.kill()
            raise AssertionError(f"the engine does not answer:\n{self.log[-6000:]}")
        return json.loads(line)
