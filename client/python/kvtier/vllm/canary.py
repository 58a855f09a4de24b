# SPDX-License-Identifier: Apache-2.0
"""The canary: which hits are cut short, so that the engine computes blocks that the daemon has and
the daemon compares the two (docs/engines/VLLM.md)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ..errors import KvtierError
from ..types import DType
from .identity import draft_models

#: A cut leaves out at most so many of a hit's last blocks.
LAST_BLOCKS = 8

# vLLM's names of 8-bit types, whose tensors are plain bytes.
_FLOAT8 = {
    "fp8": DType.FLOAT8_E4M3,
    "fp8_e4m3": DType.FLOAT8_E4M3,
    "fp8_e5m2": DType.FLOAT8_E5M2,
}


class CanarySampler:
    """Belongs to the scheduler's thread. per_million: so many of a million hits are cut; the tokens
    that cuts have cost are at most that share of all that were computed, but for the last cut."""

    def __init__(self, per_million: int, chance: Callable[[], float] = random.random) -> None:
        self._share = per_million / 1_000_000
        self._chance = chance
        self.computed_tokens = 0
        self.cut_tokens = 0
        self.hits = 0  # that were cut

    def draw(self) -> int:
        """How many of a hit's last blocks to compute; 0 of those that are not sampled."""
        if self._chance() >= self._share:
            return 0
        if self.cut_tokens > self._share * self.computed_tokens:
            return 0
        return 1 + int(self._chance() * LAST_BLOCKS)

    def computed(self, tokens: int) -> None:
        """A step computes so many tokens."""
        self.computed_tokens += tokens

    def cut(self, tokens: int) -> None:
        """A hit is so many tokens shorter."""
        self.hits += 1
        self.cut_tokens += tokens


def are_told_by_hashes(engine: Any) -> bool:
    """Whether equal hashes are of equal blocks. A drafter's part need not be equal: one that is given the next
    token (EAGLE, MTP) makes its KV of a block's last position of a token that the hash does not tell, and
    vLLM's first runner leaves a drafter out of each step in which one request is too long for it. engine: the
    VllmConfig."""
    return not draft_models(engine)


def number_type(spec: Any, cache_dtype: str) -> DType | None:
    """The type of all numbers in blocks of vLLM's spec; None if not all are of one type, or if
    blocks have bytes that no kernel writes. cache_dtype: as the user chose it."""
    if getattr(spec, "page_size_padded", None) is not None:
        return None
    if getattr(spec, "state_content_bytes", None) is not None:
        return None  # scales lie beside the numbers
    dtype = getattr(spec, "dtype", None)
    if str(dtype) == "torch.uint8":
        if getattr(spec, "head_size_v", None) == 0:
            return None  # latents of 8 bits have scales and 16-bit numbers beside them
        return _FLOAT8.get(cache_dtype)
    try:
        return DType.of(dtype)
    except KvtierError:
        return None
