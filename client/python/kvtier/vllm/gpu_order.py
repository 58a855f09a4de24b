# SPDX-License-Identifier: Apache-2.0
"""The order of vLLM's kernels: the daemon's copies are not ordered behind them by themselves, so a
transfer is begun only when the kernels that were launched before it have ended."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch


class AfterKernels:
    """Work that is begun, in the order in which it was added, once the kernels have ended that had
    been launched on the current stream when it was added. Belongs to the worker's thread."""

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[Any, Callable[[], None]]] = collections.deque()

    def add(self, begin: Callable[[], None]) -> None:
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((event, begin))

    def begin_ready(self) -> None:
        """Never waits."""
        while self._waiting and self._waiting[0][0].query():
            self._waiting.popleft()[1]()


class StepTimer:
    """How long the kernels of steps take. Belongs to the worker's thread; never waits."""

    def __init__(self) -> None:
        self._begun: tuple[int, Any] | None = None
        self._launched: collections.deque[tuple[int, Any, Any]] = collections.deque()

    def begin(self, tokens: int) -> None:
        """Before the kernels of a step with so many tokens are launched."""
        self._begun = (tokens, _recorded())

    def end(self) -> list[tuple[int, float]]:
        """After they were launched. The tokens and seconds of the steps that have ended."""
        if self._begun is not None:
            self._launched.append((*self._begun, _recorded()))
            self._begun = None
        ended = []
        while self._launched and self._launched[0][2].query():
            tokens, first, last = self._launched.popleft()
            ended.append((tokens, first.elapsed_time(last) / 1000))
        return ended


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
