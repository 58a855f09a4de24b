# SPDX-License-Identifier: Apache-2.0
"""Objects of an engine that it does not hand to its modules, found among those whose methods are under
way on this thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

Found = TypeVar("Found")


def find_caller(wanted: Callable[[Any], Found | None]) -> Found | None:
    """The first answer of `wanted` that is not None, to the callers' `self`, the nearest first."""
    for frame in _frames():
        found = wanted(frame.f_locals.get("self"))
        if found is not None:
            return found
    return None


def locals_within(method: str, of: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """The local variables of the methods of this name that are under way, of objects of which `of` holds,
    the nearest first."""
    frames = (frame for frame in _frames() if frame.f_code.co_name == method)
    return [frame.f_locals for frame in frames if of(frame.f_locals.get("self"))]


def is_within(method: str, of: Callable[[Any], bool]) -> bool:
    """Whether a method of this name is under way, of an object of which `of` holds."""
    return bool(locals_within(method, of))


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
