# SPDX-License-Identifier: Apache-2.0
"""Threads that copy, each with a stream of its own, so that SGLang's scheduler never waits."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch


class CopyStream:
    """A stream of a GPU for copies of one thread; for host memory it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def current(self) -> Any:
        """A context in which launched work goes to the stream."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class CopyWorker:
    """A thread that does its queued work, in order, and its stream for copies."""

    def __init__(self, name: str, device: torch.device, work: Callable[[Any], None]) -> None:
        self.stream = CopyStream(device)
        self._device = device
        self._work = work
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Any) -> None:
        self._tasks.put(task)

    def take_waiting(self) -> list[Any]:
        """Takes back the items that were put and not begun, which are not done then. Any thread."""
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is None:
                    self._tasks.put(None)
                    break
                taken.append(task)
        return taken

    def close(self, timeout_s: float) -> bool:
        """Whether the thread has ended in time."""
        self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while True:
            task = self._tasks.get()
            if task is None:
                return
            self._work(task)
