# SPDX-License-Identifier: Apache-2.0
"""The version that a trainer gives the weights of vLLM's engine."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any


def find_weight_version() -> Callable[[], str | None] | None:
    """Finds the engine core that is being made on this thread, which vLLM does not hand to a connector,
    and returns a function that reads its weight version; None if it has no versions."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        core = frame.f_locals.get("self")
        if callable(getattr(type(core), "get_weight_version", None)):
            found = weakref.ref(core)
            return lambda: _version_of(found())
        frame = frame.f_back
    return None


def _version_of(core: Any) -> str | None:
    return None if core is None else str(core.get_weight_version())
