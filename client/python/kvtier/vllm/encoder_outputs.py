# SPDX-License-Identifier: Apache-2.0
"""vLLM's cache of encoder outputs, which outlives a reset of its KV cache: KV that the language layers
make of outputs of other weights is no name's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

from .._callers import find_caller
from .known_request import KnownRequest
from .link import logger


def find_outputs() -> Callable[[], Any]:
    """Finds the scheduler that is being made on this thread, which vLLM does not hand to a connector, and
    returns a function that reads which images its cache of outputs has; None: another kind of cache."""
    scheduler = find_caller(lambda one: one if hasattr(type(one), "reset_encoder_cache") else None)
    found = (lambda: None) if scheduler is None else weakref.ref(scheduler)
    return lambda: getattr(getattr(found(), "encoder_cache_manager", None), "cached", None)


class EncoderOutputs:
    """Used by the scheduler's thread. engine: the VllmConfig. cached: the images of which vLLM has
    outputs, where an adapter's tensors count for these, behind the adapter's name; no collection: not known."""

    def __init__(self, engine: Any = None, cached: Callable[[], Any] = tuple) -> None:
        self._cached = cached
        self._are_shared = getattr(engine, "ec_transfer_config", None) is not None
        lora = getattr(engine, "lora_config", None)
        self._have_adapters = bool(getattr(lora, "enable_tower_connector_lora", False))
        self._are_all_old = False
        self._told: set[bool] = set()  # whether all were old
        self._old: Collection[str] | None = ()  # None: to be looked at by the next request
        self._digests: dict[str, bytes] = {}  # of adapters by name; empty: of several or unknown tensors

    def turn(self) -> None:
        """The weights may be others. vLLM's pauses empty its cache of outputs only behind this; other engines'
        outputs, which an EC connector brings, are never known to be of these weights."""
        self._old = None

    def are_old(self, known: KnownRequest) -> bool:
        """Whether some of a request that begins may be computed on outputs of weights or tensors that it has
        not. An image stays old until the next turn, since vLLM's own KV cache may have such KV by now."""
        images = [one.identifier for one in getattr(known.request, "mm_features", None) or ()]
        if not images:
            return False
        if self._old is None:
            cached = self._cached()
            is_known = isinstance(cached, Collection)
            self._old, self._are_all_old = frozenset(cached if is_known else ()), self._are_shared or not is_known
            if not self._old:
                self._digests.clear()
        are_old = self._are_all_old or any(one in self._old for one in images)
        adapter = getattr(known.request, "lora_request", None)
        if self._have_adapters and adapter is not None:
            if self._digests.setdefault(adapter.lora_name, known.salt or b"") != known.salt:
                self._digests[adapter.lora_name], are_old = b"", True
        if are_old and self._are_all_old not in self._told:
            self._told.add(self._are_all_old)
            logger.warning(
                "kvtier: KV of images is not stored after a reset: it cannot be told which outputs the EC connector "
                "or the encoder cache manager has of other weights"
                if self._are_all_old
                else "kvtier: KV of images that vLLM encoded before a reset or with other tensors of an adapter is "
                "not stored: call its reset_encoder_cache, too"
            )
        return are_old
