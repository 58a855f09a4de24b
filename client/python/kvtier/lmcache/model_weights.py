# SPDX-License-Identifier: Apache-2.0
"""Which weights the engines of an LMCache server have, as far as the server can know.

LMCache does not say it. The files at a model's path tell, until LMCache's cache is cleared: engines
have it cleared when their weights change, and vLLM's connector of LMCache does so at each
`reset_prefix_cache(reset_connector=True)`. LMCache then empties its own memory and tells no adapter.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from .._epochs import unnamed_epoch
from .._facts import short
from .._model_config import weights
from .objects import logger


class WeightEpoch:
    """From one clearing of LMCache's cache to the next. Any thread may call."""

    def weights_of(self, model: str) -> str:
        raise NotImplementedError


class FirstEpoch(WeightEpoch):
    """Names the weights that lie at a model's path by their content. If there are none and the user has
    named none, only this server finds the objects that it stored. label: the user's name for them.
    whole: reads the files whole."""

    def __init__(self, label: str, whole: bool = False) -> None:
        self._label, self._whole = label, whole
        self._unnamed = unnamed_epoch()
        self._lock = threading.Lock()
        # Read once for each model: files that are replaced below running engines change nothing.
        self._known: dict[str, str] = {}

    def weights_of(self, model: str) -> str:
        with self._lock:
            if model not in self._known:
                self._known[model] = self._find(model)
            return self._known[model]

    def _find(self, model: str) -> str:
        # LMCache's keys have neither an engine's revision nor its working directory, and an engine may
        # read another cache of the hub than this process would.
        found = weights(model, whole=self._whole) if os.path.isabs(model) else None
        if found is None and not self._label:
            logger.warning(
                "kvtier: it is not known which weights %s has: no other server is served its objects, nor "
                "this one after a restart, unless the option `identity` names them",
                model,
            )
        return found or (f"named:{short(self._label)}" if self._label else self._unnamed)


class UnnamedEpoch(WeightEpoch):
    """After LMCache's cache was cleared: it is not known which weights the engines have now, and no
    other server is in this epoch."""

    def __init__(self) -> None:
        self._name = unnamed_epoch()

    def weights_of(self, model: str) -> str:
        return self._name


def tell_of_clearing(tell: Callable[[Any], None]) -> None:
    """From now on, each storage manager of this process that is cleared calls `tell` with each of its
    adapters before. Does so once, however often it is called."""
    try:
        from lmcache.v1.distributed.storage_manager import StorageManager
    except ImportError:
        logger.warning("kvtier: this LMCache does not show when it is cleared")
        return
    original = StorageManager.clear
    if hasattr(original, "tells_adapters"):
        return

    @functools.wraps(original)
    def clear(self: Any, *arguments: Any, **named: Any) -> Any:
        for _, adapter in self.l2_adapters():
            while hasattr(adapter, "_inner"):  # a serde's, or another adapter around it
                adapter = adapter._inner
            tell(adapter)
        return original(self, *arguments, **named)

    clear.tells_adapters = True  # type: ignore[attr-defined]
    StorageManager.clear = clear
