# SPDX-License-Identifier: Apache-2.0
"""Models whose layers form several groups: acquires and lookups of all groups at once, and of all
tensor-parallel ranks.

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
from .types import Miss, Presence


@dataclass(frozen=True)
class GroupRequest:
    """The request for one group's pool.

    hashes: of the sequence's full blocks in this group, from block 0. new_blocks: private blocks to
    allocate; lookups do not use it.
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


@dataclass(frozen=True)
class PrefixLookup:
    """prefixes: lengths in tokens of what can be restored, the longest first. presence: of each
    group asked, the tiers that hold each block; with all_ranks the fastest tier of the rank that is
    worst off."""

    prefixes: list[int]
    presence: list[list[Presence]]


def lookup_groups(
    requests: Sequence[GroupRequest], *, all_ranks: bool = False, every_prefix: bool = False
) -> PrefixLookup:
    """The prefixes that could be restored now; holds nothing. One round trip.

    all_ranks: of every tensor-parallel rank of the model, so that one rank can ask for all. The
    ranks are the models whose records differ only in the rank. every_prefix: else only the longest.
    Without a daemon nothing is there. Raises InvalidArgumentError, LimitExceededError,
    TimedOutError.
    """
    hashes = [_native.hash_bytes(request.hashes) for request in requests]
    presence = [(ctypes.c_uint8 * (len(one) // _native.HASH_BYTES))() for one in hashes]
    groups = (abi.kvt_lookup_group * len(requests))()
    for target, pool, joined, bits in zip(groups, _pools(requests), hashes, presence):
        target.pool, target.hashes = pool, _native.pointer(joined)
        target.hash_count, target.presence = len(bits), ctypes.addressof(bits)
    prefixes = (ctypes.c_uint64 * max(map(len, presence), default=1))()
    count = ctypes.c_size_t()
    flags = (abi.KVT_LOOKUP_ALL_RANKS if all_ranks else 0) | (
        abi.KVT_LOOKUP_EVERY_PREFIX if every_prefix else 0
    )
    check_available(
        _library.load().kvt_lookup_groups(
            groups, len(groups), flags, prefixes, len(prefixes), ctypes.byref(count)
        )
    )
    return PrefixLookup(
        list(prefixes[: count.value]), [[Presence(bit) for bit in bits] for bits in presence]
    )


def _pools(requests: Sequence[GroupRequest]) -> ctypes.Array[ctypes.c_void_p]:
    if not requests:
        raise invalid("no_group", "name at least one group")
    return (ctypes.c_void_p * len(requests))(*(one.pool.handle.get() for one in requests))
