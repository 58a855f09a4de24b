# SPDX-License-Identifier: Apache-2.0
"""The connector in vLLM's scheduler: which blocks to load and to store, decided without waiting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from .lookups import Lookups, Verdict

_FIRST_GROUP = (0).to_bytes(4, "big")


@dataclass
class BlockList:
    """Blocks of one request. parents: None for the first block; depths: positions in the request;
    both are of stores only."""

    request: str
    blocks: list[int]
    hashes: list[bytes]
    parents: list[bytes | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)


@dataclass
class StepPlan:
    """What the workers are to do in one step. finished: requests whose blocks are free once all of
    their stores have ended."""

    loads: list[BlockList] = field(default_factory=list)
    stores: list[BlockList] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.finished)


@dataclass
class _Request:
    """request: vLLM's. local_tokens: found in vLLM's own cache. blocks: of the engine, by position.
    stored: so many of the first blocks were handed to the workers, or came from a cache. loading:
    the keys of the blocks that were last to be loaded, by the engine's blocks."""

    request: Any
    local_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    stored: int = 0
    has_stores: bool = False
    loading: dict[int, bytes] = field(default_factory=dict)


class SchedulerSide:
    """Of the scheduler's thread. look_up: the daemon's answers; block_tokens: tokens of a block."""

    def __init__(self, lookups: Lookups, block_tokens: int) -> None:
        self._lookups = lookups
        self._block_tokens = block_tokens
        self._requests: dict[str, _Request] = {}
        self._plan = StepPlan()
        # Requests whose blocks wait for the workers' word that their stores have ended.
        self._ending: set[str] = set()

    def matched_tokens(self, request: Any, local_tokens: int) -> int | None:
        """How many tokens after the first `local_tokens` the daemon has; None: ask again."""
        known = self._requests.setdefault(request.request_id, _Request(request))
        known.local_tokens = local_tokens
        first = local_tokens // self._block_tokens
        # vLLM computes at least one token of each request.
        last = min((request.num_tokens - 1) // self._block_tokens, len(request.block_hashes))
        found, waiting = 0, False
        for block_hash in request.block_hashes[first:last]:
            key = bytes(block_hash) + _FIRST_GROUP
            verdict = self._lookups.look_up(key, request.request_id)
            if verdict is Verdict.MISS:
                break
            waiting = waiting or verdict is Verdict.RETRY
            found += 1
        return None if waiting else found * self._block_tokens

    def allocated(self, request: Any, blocks: Sequence[int], external_tokens: int) -> None:
        """The request has its blocks; those after the local tokens are to be loaded."""
        if external_tokens == 0:
            return
        known = self._requests[request.request_id]
        first = known.local_tokens // self._block_tokens
        last = first + external_tokens // self._block_tokens
        hashes = [bytes(one) for one in request.block_hashes[first:last]]
        known.loading = {
            block: one + _FIRST_GROUP for block, one in zip(blocks[first:last], hashes)
        }
        self._plan.loads.append(BlockList(request.request_id, list(blocks[first:last]), hashes))

    def plan_step(self, output: Any) -> StepPlan:
        """The loads of this step, and stores of what the steps before it have computed."""
        for new in output.scheduled_new_reqs:
            self._begin(new.req_id, new.block_ids[0], new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for i, request in enumerate(cached.req_ids):
            known = self._requests.get(request)
            if known is None:
                continue
            blocks = cached.new_block_ids[i]
            if request in cached.resumed_req_ids:
                known.blocks = []
            if blocks is not None:
                known.blocks += blocks[0]
            self._store(known, cached.num_computed_tokens[i])
        self._lookups.flush()
        plan, self._plan = self._plan, StepPlan()
        return plan

    def finished(self, request: Any, blocks: Sequence[int]) -> bool:
        """Whether the request's blocks must stay until the workers say that its stores have
        ended."""
        self._lookups.forget(request.request_id)
        known = self._requests.pop(request.request_id, None)
        if known is None:
            return False
        known.blocks = list(blocks)
        self._store(known, request.num_computed_tokens)
        if not known.has_stores:
            return False
        self._plan.finished.append(request.request_id)
        self._ending.add(request.request_id)
        return True

    def failed(self, blocks: Collection[int]) -> None:
        """These could not be loaded: the requests that wanted them compute them, and must not hear
        again that the daemon has them."""
        for known in self._requests.values() if blocks else ():
            self._lookups.refuse(known.loading[one] for one in blocks if one in known.loading)

    def sent(self, requests: Sequence[str]) -> None:
        """The workers have said that the stores of these have ended."""
        self._ending.difference_update(requests)

    def has_work(self) -> bool:
        """Whether the engine must go on stepping although it has no request."""
        return bool(self._plan) or bool(self._ending)

    def _begin(self, request: str, blocks: Sequence[int], computed_tokens: int) -> None:
        known = self._requests.get(request)
        if known is not None:
            known.blocks = list(blocks)
            # What came from vLLM's own cache was stored when it was computed. Blocks whose load
            # failed are not among the computed ones.
            known.stored = computed_tokens // self._block_tokens

    def _store(self, known: _Request, computed_tokens: int) -> None:
        """Adds the blocks that are full now and were not before."""
        hashes = known.request.block_hashes
        full = min(computed_tokens // self._block_tokens, len(hashes), len(known.blocks))
        first = known.stored
        if full <= first:
            return
        known.stored, known.has_stores = full, True
        parents = [bytes(hashes[i - 1]) if i > 0 else None for i in range(first, full)]
        self._plan.stores.append(
            BlockList(
                known.request.request_id,
                known.blocks[first:full],
                [bytes(one) for one in hashes[first:full]],
                parents,
                list(range(first, full)),
            )
        )


