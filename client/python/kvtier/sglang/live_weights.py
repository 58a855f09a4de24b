# SPDX-License-Identifier: Apache-2.0
"""Notices that a running server's weights have become others: SGLang flushes its own caches then, and
tells a linker, but no storage backend."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import torch

from .._weight_sample import sample, spread

#: Tensors of which a sample is compared, and the bytes of each.
TENSORS = 64
PIECE_BYTES = 2048


class LiveWeights:
    """Any thread. Each look waits for its copy of the sample, which the storage threads can. model: a
    torch module."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = spread(model, TENSORS)
        self._lock = threading.Lock()
        self._expected = self._sample()

    @classmethod
    def of_server(cls) -> LiveWeights | None:
        """The model of the scheduler that is making a storage backend on this thread, which SGLang does
        not hand to it; None outside a server."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            runner = getattr(_worker_of(frame.f_locals.get("self")), "model_runner", None)
            model = getattr(runner, "model", None)
            if isinstance(model, torch.nn.Module):
                return cls(model)
            frame = frame.f_back
        return None

    def have_changed(self) -> bool:
        """Since the last call, or since this was made."""
        with self._lock:
            before, self._expected = self._expected, self._sample()
            return before != self._expected

    def _sample(self) -> bytes:
        return sample([parameter() for parameter in self._parameters], PIECE_BYTES)


def _worker_of(scheduler: Any) -> Any:
    return getattr(scheduler, "tp_worker", None)
