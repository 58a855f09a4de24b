# SPDX-License-Identifier: Apache-2.0
"""Which tokens vLLM's blocks hold, told to the daemon for the events that routers get.

The scheduler tells it, which has the requests and regions of all ranks, on its link's thread: no
step waits for it, and the plan of a step does not grow. It comes about when the workers' stores do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class ToldBlocks(NamedTuple):
    """group: as in BlockList. tokens: of one block after the other, all full."""

    group: int
    hashes: Sequence[bytes]
    tokens: npt.NDArray[np.uint32]


def are_told_apart_by_tokens(request: Any) -> bool:
    """Whether the hashes of vLLM's request depend on nothing but tokens. For others vLLM's own
    events say more than their tokens, for which the daemon's have no field: a router would take
    their blocks for those of the bare prompt."""
    return not (
        getattr(request, "lora_request", None) is not None
        or getattr(request, "mm_features", None)
        or getattr(request, "cache_salt", None)
        or getattr(request, "prompt_embeds", None) is not None
    )


class TokenTeller:
    """Belongs to the scheduler's thread. wanted: whether the daemon keeps ids of a group's blocks.
    tell: sends without waiting."""

    def __init__(self, wanted: Callable[[int], bool], tell: Callable[[ToldBlocks], None]) -> None:
        self._wanted = wanted
        self._tell = tell

    def tell(
        self,
        group: int,
        block_tokens: int,
        request: Any,
        depths: Sequence[int],
        hashes: Sequence[bytes],
    ) -> None:
        """depths: of the blocks in vLLM's request."""
        if not depths or not self._wanted(group) or not are_told_apart_by_tokens(request):
            return
        tokens = request.all_token_ids
        if depths[-1] - depths[0] == len(depths) - 1:
            ids = tokens[depths[0] * block_tokens : (depths[-1] + 1) * block_tokens]
        else:
            ids = [
                one
                for depth in depths
                for one in tokens[depth * block_tokens : (depth + 1) * block_tokens]
            ]
        self._tell(ToldBlocks(group, list(hashes), np.array(ids, dtype=np.uint32)))
