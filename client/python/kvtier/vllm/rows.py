# SPDX-License-Identifier: Apache-2.0
"""vLLM's keys as the daemon's blocks: hashes, and each block's place in its request's chain.

A key is a block's hash, 32 bytes, and the number of its cache group, 4 bytes big endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model import MAX_BLOCK_TOKENS
from ..types import Retention
from .identity import chunk_tokens

_HASH_BYTES = 32
_FIRST_GROUP = bytes(4)


def block_hash(key: bytes) -> bytes:
    """32 bytes that name the block of one cache group.

    The first group's blocks keep the engine's hash, which other tools show, too; those of others
    get the digest of the whole key, since one region has the rows of all groups.
    """
    if group_of(key) == 0:
        return key[:_HASH_BYTES]
    return hashlib.sha256(key).digest()


def block_hashes(keys: Sequence[bytes]) -> list[bytes]:
    """`block_hash` of each key. A request has thousands, mostly of the first group."""
    return [key[:_HASH_BYTES] if key.endswith(_FIRST_GROUP) else block_hash(key) for key in keys]


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
    """A store's facts about its blocks, one entry for each row. parents: None where a chain begins,
    or where the block before is not known."""

    hashes: Sequence[bytes]
    parents: Sequence[bytes | None]
    tokens: npt.NDArray[np.uint16]
    depths: npt.NDArray[np.uint32]
    retention: Retention


class Chains:
    """Which block comes before which, as far as the stores of a request show it.

    vLLM says for each key at which token of its request the block ends. Blocks without this are
    stored as the beginnings of chains. Belongs to the scheduler's thread.
    """

    def __init__(self, spec: Any) -> None:
        groups = [group.group_id for group in spec.config.groups]
        self._chunk_tokens = dict(zip(groups, chunk_tokens(spec)))
        # By request and group, the key that ends at a token.
        self._ends: dict[str, dict[tuple[int, int], bytes]] = {}

    def store_rows(self, keys: Sequence[bytes], request: Any, retention: Retention) -> StoreRows:
        """The chains of the keys of this store, which are remembered for the next."""
        ends = self._ends.setdefault(request.req_id, {})
        places = [self._place(key, request) for key in keys]
        ends.update((place, key) for place, key in zip(places, keys) if place is not None)
        parents: list[bytes | None] = []
        depths, tokens = [], []
        for key, place in zip(keys, places):
            step = self._tokens_of(key)
            depth, before = 0, None
            if place is not None:
                group, end = place
                depth = max(0, -(-end // step) - 1)
                before = ends.get((group, end - step))
            parents.append(None if before is None else block_hash(before))
            depths.append(depth)
            tokens.append(min(step, MAX_BLOCK_TOKENS))
        return StoreRows(
            [block_hash(key) for key in keys],
            parents,
            np.array(tokens, dtype=np.uint16),
            np.array(depths, dtype=np.uint32),
            retention,
        )

    def forget(self, request_id: str) -> None:
        """The request stores nothing any more."""
        self._ends.pop(request_id, None)

    def _place(self, key: bytes, request: Any) -> tuple[int, int] | None:
        """The group and the token at which the block ends, or None."""
        find = getattr(request, "get_offload_key_position", None)
        end = None if find is None else find(key)
        return None if end is None else (group_of(key), end)

    def _tokens_of(self, key: bytes) -> int:
        return self._chunk_tokens.get(group_of(key)) or max(self._chunk_tokens.values())
