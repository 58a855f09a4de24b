# SPDX-License-Identifier: Apache-2.0
"""kvtier under SGLang, as a storage backend of HiCache or as an external cache linker, without
changes to SGLang: see docs/engines/SGLANG.md."""

from __future__ import annotations

from typing import Any

from .storage import KvtierStorage

__all__ = ["KvtierLinker", "KvtierStorage"]


def __getattr__(name: str) -> Any:
    """The linker, for which releases of SGLang without linkers have no base class."""
    if name == "KvtierLinker":
        from .linker import KvtierLinker

        return KvtierLinker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
