# SPDX-License-Identifier: Apache-2.0
"""The version that a trainer gives the weights of vLLM's engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .._callers import find_caller


def find_weight_version() -> Callable[[], str | None] | None:
    """Finds the engine core that is being made on this thread, which vLLM does not hand to a connector,
    and returns a function that reads its weight version; None if it has no versions."""
    core = find_caller(lambda one: one if hasattr(type(one), "get_weight_version") else None)
    if core is None:
        return None
    found = weakref.ref(core)
    return lambda: _version_of(found())


def _version_of(core: Any) -> str | None:
    return None if core is None else str(core.get_weight_version())
