# SPDX-License-Identifier: Apache-2.0
"""vLLM's keys as the daemon's blocks, and the facts that a store gives of its blocks.

A key is a block's hash, 32 bytes, and the number of its cache group, 4 bytes big endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..types import DType, Retention

_HASH_BYTES = 32


def group_of(key: bytes) -> int:
    return int.from_bytes(key[_HASH_BYTES:], "big")


def hash_of(key: bytes) -> bytes:
    """The engine's hash in a key."""
    return key[:_HASH_BYTES]


def key_of(engine_hash: bytes, group: int) -> bytes:
    return engine_hash + group.to_bytes(4, "big")


def keys_of(engine_hashes: Sequence[bytes], group: int) -> list[bytes]:
    """`key_of` of each hash."""
    suffix = group.to_bytes(4, "big")
    return [one + suffix for one in engine_hashes]


@dataclass(frozen=True)
class StoreRows:
    """The facts that a store gives of its blocks, one entry for each row. parents: None where a
    chain begins, or where the block before is not known. compare: if given, blocks that the daemon
    has are compared, as numbers of this type."""

    hashes: Sequence[bytes]
    parents: Sequence[bytes | None]
    tokens: npt.NDArray[np.uint16]
    depths: npt.NDArray[np.uint32]
    retention: Retention | npt.NDArray[np.uint8]
    compare: DType | None = None
