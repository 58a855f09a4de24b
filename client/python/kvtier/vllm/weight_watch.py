# SPDX-License-Identifier: Apache-2.0
"""Notices that a running engine's weights have become others, although vLLM has not said so.

A worker compares a sample of its parameters with the sample of the epoch's first step. The kernels
for that are launched before those of the step, and their answer is read when it is there, so that
neither the GPU nor the worker ever waits. An update keeps the worker busy between two steps: a look
follows each pause, and one comes ten times a second without any.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from .._callers import find_caller
from .._weight_sample import piece, spread

#: Tensors of which a sample is compared, and the bytes of each.
TENSORS = 64
PIECE_BYTES = 2048

_WORD_BYTES = 8

#: A pause between two steps that is long enough for an update.
PAUSE_S = 0.001
#: Without such pauses, looks are so far apart.
LOOK_S = 0.1


class WeightWatch:
    """Used by the worker's thread. model: its torch module. moves_experts: vLLM balances the experts'
    load, for which it moves their weights."""

    def __init__(
        self,
        model: torch.nn.Module,
        moves_experts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._parameters = spread(model, TENSORS, "experts" if moves_experts else None)
        self._pieces: list[torch.Tensor] = []
        self._places: list[int] = []
        self._expected: torch.Tensor | None = None
        self._answers: list[tuple[torch.Tensor, Any]] = []
        self._looks = 0
        self._changed = False
        self._stepped_at = self._looked_at = -LOOK_S

    def begin_epoch(self) -> None:
        """The next look learns the weights instead of comparing them."""
        self._expected = None
        self._answers.clear()
        self._changed = False

    def look(self) -> None:
        """Before the kernels of a step are launched that reads or writes KV."""
        now = self._clock()
        if now - self._stepped_at < PAUSE_S and now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        found = [parameter() for parameter in self._parameters]
        places = [0 if one is None else one.data_ptr() for one in found]
        if places != self._places:
            # Other memory has other weights, unless the epoch has only begun.
            self._changed = self._changed or self._expected is not None
            self._places = places
            pieces = [piece(one, PIECE_BYTES) for one in found if one is not None]
            self._pieces = [one for one in pieces if one.device == pieces[0].device]
            self._expected = None
        if not self._pieces:
            return
        sample = torch.cat(self._pieces)
        if sample.numel() >= _WORD_BYTES:  # far fewer numbers are compared; the last few bytes are not
            sample = sample[: sample.numel() // _WORD_BYTES * _WORD_BYTES].view(torch.int64)
        if self._expected is None:
            self._expected = sample
        else:
            self._looks += 1
            self._answers.append(_to_host((sample != self._expected).any()))

    def end_step(self) -> None:
        """After a step's kernels were launched."""
        self._stepped_at = self._clock()

    def looks(self) -> int:
        """How many there have been."""
        return self._looks

    def answered(self) -> int:
        """How many of these have their answer. While an engine computes step after step, the last one never
        has: its kernels are launched behind those of the step before."""
        self._read()
        return self._looks - len(self._answers)

    def has_changed(self) -> bool:
        """Whether the weights are others than in the epoch's first step, as far as looks have
        answered."""
        self._read()
        return self._changed

    def _read(self) -> None:
        while self._answers and (self._answers[0][1] is None or self._answers[0][1].query()):
            self._changed = bool(self._answers.pop(0)[0]) or self._changed


def find_runner() -> Any:
    """The runner whose KV cache is being made on this thread, which vLLM does not hand to a connector;
    None: there is none."""
    return find_caller(lambda one: one if hasattr(type(one), "get_model") else None)


def find_model() -> torch.nn.Module | None:
    runner = find_runner()
    model = None if runner is None else runner.get_model()
    return model if isinstance(model, torch.nn.Module) else None


def _to_host(answer: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy of the answer, and the event after which it is there; None: it is there."""
    if not answer.is_cuda:
        return answer, None
    copy = torch.empty((), dtype=torch.bool, pin_memory=True)
    copy.copy_(answer, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copy, event
