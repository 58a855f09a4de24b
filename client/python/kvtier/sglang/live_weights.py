# SPDX-License-Identifier: Apache-2.0
"""Notices that a running server's weights have become others: SGLang flushes its own caches then, and
tells a linker, but no storage backend."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from .._callers import find_caller, is_within
from .._model_config import rope_by_length
from .._weight_sample import sample, spread

#: Tensors of which a sample is compared, and the bytes of each.
TENSORS = 64
PIECE_BYTES = 2048


class LiveWeights:
    """Any thread. Each look waits for its copy of the sample, which the storage threads can. model: a
    torch module. moves_experts: SGLang copies experts between places, which leaves the pages right.
    released: whether the weights have no memory now. updating: whether SGLang is between the parts of an
    update. forwards: how many the server has begun, or None."""

    def __init__(
        self,
        model: torch.nn.Module,
        moves_experts: bool = False,
        released: Callable[[], bool] = lambda: False,
        forwards: Callable[[], int | None] = lambda: None,
        updating: Callable[[], bool] = lambda: False,
    ) -> None:
        self._released = released
        self.updating = updating
        self.forwards = forwards
        self._parameters = spread(model, TENSORS, "experts" if moves_experts else None)
        self._lock = threading.Lock()
        self._expected = self._sample()

    @classmethod
    def of_server(cls) -> LiveWeights | None:
        """The model of the scheduler that is making a storage backend on this thread, which SGLang does
        not hand to it; None outside a server. Raises ValueError for one that computes equal tokens' keys
        by the other requests of the batch."""
        scheduler = find_caller(lambda one: None if _model_of(one) is None else one)
        model = _model_of(scheduler)
        if model is None:
            return None
        for kind in filter(None, map(rope_by_length, model.modules())):
            raise ValueError(f"kvtier does not serve with SGLang's {kind} rope")
        forwards = functools.partial(getattr, scheduler, "forward_ct", None)
        released, updating = (functools.partial(one, scheduler) for one in (_released, _updating))
        return cls(model, _moves_experts(), released, forwards, updating)

    def have_changed(self) -> bool:
        """Since the last call, or since this was made; also where they were released or resumed between, or
        an update in parts has begun or ended."""
        with self._lock:
            before, self._expected = self._expected, self._sample()
            return before != self._expected

    @staticmethod
    def may_be_updated() -> bool:
        """Whether a storage backend is attached on this thread to a server that is running, which may have
        other weights by now than it has started with."""
        is_starting = is_within("__init__", lambda one: _model_of(one) is not None)
        return not is_starting and find_caller(_model_of) is not None

    def _sample(self) -> bytes:
        if self._released():
            return b""
        return bytes([self.updating()]) + sample([parameter() for parameter in self._parameters], PIECE_BYTES)


def _model_of(scheduler: Any) -> torch.nn.Module | None:
    runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
    model = getattr(runner, "model", None)
    return model if isinstance(model, torch.nn.Module) else None


def _released(scheduler: Any) -> bool:
    """Whether SGLang's memory saver has unmapped the weights, is about to, or maps them again."""
    updater = getattr(scheduler, "weight_updater", None)
    tags = getattr(updater, "offload_tags", ())
    # SGLang takes the tag back before the memory is there, and this state after.
    return "weights" in tags or getattr(updater, "stashed_model_static_state", None) is not None


def _updating(scheduler: Any) -> bool:
    return getattr(getattr(scheduler, "weight_updater", None), "_session", None) is not None


def _moves_experts() -> bool:
    """Whether this server copies its experts in place: to balance them (EPLB), or to where they are computed."""
    try:
        from sglang.srt.runtime_context import get_server_args

        arguments, names = get_server_args(), ("enable_eplb", "enable_paged_experts")
        return any(bool(getattr(arguments, name, False)) for name in names)
    except Exception:
        return False  # not within a server, or another release
