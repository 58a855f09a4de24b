# SPDX-License-Identifier: Apache-2.0
"""Models whose layers form several groups: acquires of all groups at once.

A prefix can be restored when every group has the blocks of it that its hit rule needs. Its length is
a multiple of every group's block_tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from . import _library, _native
from ._library import abi
from ._native import Hashes
from .blocks import AcquireResult
from .errors import check_available, invalid
from .pool import AcquireCall, Pool
from .types import Miss


@dataclass(frozen=True)
class GroupRequest:
    """The request for one group's pool.

    hashes: of the sequence's full blocks in this group, from block 0. new_blocks: private blocks to
    allocate.
    """

    pool: Pool
    hashes: Hashes = ()
    new_blocks: int = 0


def acquire_groups(
    requests: Sequence[GroupRequest], *, in_layers: bool = False
) -> list[AcquireResult]:
    """Pool.acquire for the groups of a model: the longest prefix that all of them can restore, and
    of each the blocks that it needs; or no hits at all. One round trip, one result for each request.

    Where any hashes are given, all groups of the model must be named, by pools of one connection.
    A failed load in one group makes the prefix useless in all. Without a daemon: no hits, no private
    blocks, miss UNAVAILABLE. Raises as Pool.acquire; nothing is held then.
    """
    calls = [
        AcquireCall(_native.hash_bytes(request.hashes), b"", request.new_blocks, in_layers)
        for request in requests
    ]
    count = len(calls)
    asked = (abi.kvt_acquire_request * count)(*(call.request for call in calls))
    replies = (abi.kvt_acquire_reply * count)(*(call.reply for call in calls))
    pools = _pools(requests)
    if not check_available(_library.load().kvt_acquire_groups(pools, asked, count, replies)):
        return [
            AcquireResult(request.pool, _native.hash_bytes(request.hashes), Miss.UNAVAILABLE)
            for request in requests
        ]
    results = []
    for request, call, reply in zip(requests, calls, replies):
        call.reply = reply
        results.append(call.result(request.pool))
    return results


def _pools(requests: Sequence[GroupRequest]) -> ctypes.Array[ctypes.c_void_p]:
    if not requests:
        raise invalid("no_group", "name at least one group")
    return (ctypes.c_void_p * len(requests))(*(one.pool.handle.get() for one in requests))
