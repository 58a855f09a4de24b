# SPDX-License-Identifier: Apache-2.0
"""vLLM's cache groups: which of its blocks each of them needs before a prefix can be used.

A model that mixes full attention with sliding windows or states (Mamba, linear attention) has a
group for each kind of layer, with blocks of its own in each request. All groups have to agree on
the length of a prefix, which is a multiple of the blocks of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import HitRule

# The limit of a model record.
_MAX_GROUPS = 16


@dataclass(frozen=True)
class CacheGroup:
    """number: of the group in vLLM. hashes_per_block: vLLM hashes pieces of the smallest block of
    all groups, and the hash of the last piece in a block stands for the block. window_tokens: of
    TRAILING, the tokens before the end of a prefix that the next token needs. segment_tokens: of
    TRAILING, not 0 if attention begins anew after each so many tokens."""

    number: int
    block_tokens: int
    hashes_per_block: int = 1
    rule: HitRule = HitRule.ALL
    window_tokens: int = 0
    segment_tokens: int = 0

    @property
    def is_state(self) -> bool:
        return self.rule is HitRule.STATE

    def first_needed(self, tokens: int) -> int:
        """The position of the first block that a prefix of `tokens` tokens needs, of a length that
        is a multiple of the block. It never falls when `tokens` grows. vLLM gives a request no
        blocks before it."""
        if self.is_state:
            return tokens // self.block_tokens - 1
        if self.segment_tokens:
            return tokens // self.segment_tokens * self.segment_tokens // self.block_tokens
        if self.rule is HitRule.TRAILING:
            return max(0, tokens - self.window_tokens) // self.block_tokens
        return 0

    def hashes(self, request_hashes: Sequence[bytes], first: int, last: int) -> list[bytes]:
        """The keys of the blocks from position `first` up to before `last`."""
        step = self.hashes_per_block
        return [bytes(one) for one in request_hashes[(first + 1) * step - 1 : last * step : step]]


def prefix_unit(groups: Sequence[CacheGroup]) -> int:
    """The number of tokens that the length of every prefix is a multiple of."""
    return math.lcm(*(group.block_tokens for group in groups))


def longest_prefix(
    groups: Sequence[CacheGroup],
    first: int,
    limit: int,
    look_up: Callable[[int, int, int], tuple[int, bool]],
) -> int | None:
    """The longest prefix of at most `limit` tokens that can be restored when the engine has its
    first `first` tokens; `first` if there is none; None: ask again.

    look_up: of a group (by its place in `groups`), from a position up to before another: how many
    blocks come before the first miss, and whether one of them is not known yet. Full attention
    bounds the prefix, and is asked for everything; the others are asked at first only for the
    blocks that the bound needs, since they mostly have them. Answers come a step later, so that the
    first hole among those makes it ask for all that is left: a request is told to ask again three
    times at most.
    """
    unit = prefix_unit(groups)
    tokens, waiting = limit // unit * unit, False
    for index, group in enumerate(groups):
        if group.rule is HitRule.ALL:
            begin, end = first // group.block_tokens, tokens // group.block_tokens
            hits, unknown = look_up(index, begin, end)
            if begin + hits < end:
                tokens = (begin + hits) * group.block_tokens // unit * unit
            waiting = waiting or unknown
    others = [(i, group) for i, group in enumerate(groups) if group.rule is not HitRule.ALL]
    while tokens > first:
        bound = tokens
        for index, group in others:
            begin = max(first // group.block_tokens, group.first_needed(tokens))
            for position in range(begin, tokens // group.block_tokens):
                hits, unknown = look_up(index, position, position + 1)
                if hits == 0:
                    # Every longer prefix up to here needs this block, too.
                    bound = min(bound, position * group.block_tokens // unit * unit)
                waiting = waiting or unknown
        if waiting:
            return None
        if bound == tokens:
            return tokens
        tokens = bound
        for index, group in others:
            for position in range(first // group.block_tokens, tokens // group.block_tokens):
                waiting = look_up(index, position, position + 1)[1] or waiting
        if waiting:
            return None
    return first


def cache_groups(kv_cache_config: Any, hash_tokens: int) -> list[CacheGroup]:
    """The groups whose blocks are cached by their hashes. hash_tokens: of one hash of a request.
    Raises ValueError for kinds of attention that this does not know."""
    every = range(len(kv_cache_config.kv_cache_groups))
    numbers = getattr(kv_cache_config, "prefix_cacheable_group_ids", every)
    if not 1 <= len(numbers) <= _MAX_GROUPS:
        raise ValueError(f"{len(numbers)} cache groups, not 1 to {_MAX_GROUPS}")
    return [
        _cache_group(number, kv_cache_config.kv_cache_groups[number].kv_cache_spec, hash_tokens)
        for number in numbers
    ]


def _cache_group(number: int, spec: Any, hash_tokens: int) -> CacheGroup:
    from vllm.v1.kv_cache_interface import KVCacheSpecKind, get_kv_cache_spec_kind

    kind = get_kv_cache_spec_kind(spec)
    # The scheduler sees the first of specs that differ by layer, and so must the worker.
    for layer_spec in getattr(spec, "kv_cache_specs", {}).values():
        spec = layer_spec
        break
    facts: dict[str, Any] = {}
    if kind in (KVCacheSpecKind.SLIDING_WINDOW, KVCacheSpecKind.SLIDING_WINDOW_MLA):
        tokens = spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0)
        facts.update(rule=HitRule.TRAILING, window_tokens=tokens)
    elif kind is KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION:
        tokens = spec.attention_chunk_size
        facts.update(rule=HitRule.TRAILING, window_tokens=tokens, segment_tokens=tokens)
    elif kind is KVCacheSpecKind.MAMBA:
        facts.update(rule=HitRule.STATE)
    elif kind not in (
        KVCacheSpecKind.FULL_ATTENTION,
        KVCacheSpecKind.MLA_ATTENTION,
        KVCacheSpecKind.SINK_FULL_ATTENTION,
    ):
        raise ValueError(f"KvtierConnector does not know cache groups of the kind {kind}")
    if spec.block_size % hash_tokens != 0:
        raise ValueError(f"blocks of {spec.block_size} tokens, hashed by {hash_tokens}")
    return CacheGroup(number, spec.block_size, spec.block_size // hash_tokens, **facts)
