# SPDX-License-Identifier: Apache-2.0
"""kvtier under SGLang's HiCache, without changes to SGLang: see docs/engines/SGLANG.md."""

from .storage import KvtierStorage

__all__ = ["KvtierStorage"]
