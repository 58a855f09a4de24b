# SPDX-License-Identifier: Apache-2.0
"""SGLang's keys of pages, and which prefixes of a prompt its pools can restore."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

logger = logging.getLogger("sglang.kvtier")


def page_hash(key: str) -> bytes:
    """SGLang's key as a block's hash: 32 bytes, which most keys name in hexadecimal."""
    if len(key) == 64:
        try:
            return bytes.fromhex(key)
        except ValueError:
            pass
    return hashlib.sha256(key.encode()).digest()


def leading(found: Sequence[bool]) -> int:
    """How many are there from the first on."""
    return next((i for i, one in enumerate(found) if not one), len(found))


def restorable_prefixes(transfer: Any, found: Sequence[bool]) -> set[int]:
    """The lengths in pages, from 1 on, of the prefixes that one pool can restore. transfer: the
    pool's PoolTransfer. found: which of the prompt's pages it has."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, leading(found) + 1))
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        trailing = max(1, len(transfer.keys or []))
        ends, in_row = set(), 0
        for end, is_there in enumerate(found, 1):
            in_row = in_row + 1 if is_there else 0
            if in_row >= min(trailing, end):
                ends.add(end)
        return ends
    logger.error("kvtier: %s has an unknown hit policy", transfer.name)
    return set()
