# SPDX-License-Identifier: Apache-2.0
"""The prefix that a request loads: blocks that the daemon has, as far as they take less time to load than
to compute."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..types import HitRule
from .arrivals import Arrivals
from .cache_groups import CacheGroup, longest_prefix, prefix_unit
from .canary import LAST_BLOCKS, CanarySampler
from .disk_turns import DiskTurns
from .hit_prices import HitPrices
from .known_request import DiskPlan, KnownRequest, reads_nothing
from .lookups import Lookups

#: How long a request that is alone waits for the daemon's answer. Asked again, it would wait for a
#: step that computes nothing, which takes vLLM more than 2 ms, and the answer mostly takes less.
LONE_WAIT_S = 0.005

#: How long a step waits for answers beside other requests, about questions of thousands of blocks.
#: Asked again, a request would wait for the whole step; the GPU mostly still computes the one before.
STEP_WAIT_S = 0.003


class PrefixPlanner:
    """Belongs to the scheduler's thread. requests: those that have not ended; known_of: adds one."""

    def __init__(
        self,
        lookups: Lookups,
        groups: Sequence[CacheGroup],
        always_load: bool,
        prices: HitPrices,
        turns: DiskTurns,
        requests: Mapping[str, KnownRequest],
        known_of: Callable[[Any], KnownRequest],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arrivals = Arrivals(lookups)
        self._lookups = lookups
        self._groups = groups
        self._always_load = always_load
        self._prices = prices
        self._turns = turns
        self._requests = requests
        self._known_of = known_of
        self._clock = clock
        self._manager: Any = None
        self._backlog_tokens: int | None = None  # to be computed, counted when a step first asks
        self._step_wait_s = STEP_WAIT_S  # the rest of it in this step

    def bind(self, manager: Any) -> None:
        """As SchedulerSide.bind."""
        self._manager = manager

    def plan_step(self) -> list[Any]:
        """Asks for all that came up in the step. Returns the requests that came before it."""
        new = self.arrivals.take()
        self._lookups.flush()
        self._step_wait_s = STEP_WAIT_S
        self._backlog_tokens = None
        return new

    def scheduled(self, known: KnownRequest) -> None:
        """The step will compute a request that is new to it."""
        if self._backlog_tokens is not None:
            self._backlog_tokens += known.tokens_to_compute()

    def find(self, known: KnownRequest, local_tokens: int) -> int | None:
        """How many tokens after the first `local_tokens` are to be loaded; None: ask again."""
        request = known.request
        hashed = [len(keys) * one.block_tokens for keys, one in zip(known.keys, self._groups)]
        # vLLM computes at least one token of each request.
        limit = min(request.num_tokens - 1, *hashed)
        found = self._longest_prefix(known, local_tokens, limit)
        if found is None:
            return None
        if self._always_load:
            return found - local_tokens
        plan = self._plan_load(known, local_tokens, found)
        if plan.disk_tokens == 0:
            self._turns.leave(request.request_id)
            return plan.tokens - local_tokens
        return self.at_turn(known, plan)

    def _plan_load(self, known: KnownRequest, first: int, found: int) -> DiskPlan:
        """The prefix, not longer than `found`, that takes less time to load than to compute. Groups
        without full attention have few blocks, and follow."""
        for index, group in enumerate(self._groups):
            if group.rule is not HitRule.ALL or found == first:
                continue
            begin, end = first // group.block_tokens, found // group.block_tokens
            on_disk = self._lookups.are_on_disk(known.keys[index][begin:end])
            if True not in on_disk:
                continue
            spare_s = self._backlog_s() - self._turns.wait_s(known.request.request_id)
            blocks = self._prices.worthwhile_blocks(on_disk, group.block_tokens, spare_s)
            tokens = found
            if blocks < len(on_disk):
                tokens = self._shortened(known, first, (begin + blocks) * group.block_tokens)
            memory_blocks = on_disk.index(True)
            disk_blocks = sum(on_disk[: max(0, tokens // group.block_tokens - begin)])
            if disk_blocks == 0:
                return DiskPlan(tokens, tokens, 0, 0.0)
            return DiskPlan(
                tokens,
                self._shortened(known, first, (begin + memory_blocks) * group.block_tokens),
                disk_blocks * group.block_tokens,
                self._prices.saved_s(blocks - memory_blocks, disk_blocks, group.block_tokens),
            )
        return DiskPlan(found, found, 0, 0.0)

    def at_turn(self, known: KnownRequest, plan: DiskPlan) -> int | None:
        """As `find`, of two prefixes: with blocks on disk when it is the request's turn to load them;
        without where the disk is stuck, or waiting for the turn would take longer than computing,
        which waits for the tokens that are computed before; None: wait."""
        name, disk_blocks = known.request.request_id, plan.disk_tokens // self._groups[0].block_tokens
        known.waits_for = None
        if self._turns.is_stuck():
            self._lookups.count_stuck(disk_blocks)
        elif self._turns.may_begin(name):
            self._turns.wait(name, plan.disk_tokens)  # keeps its turn until it has its blocks
            return plan.tokens - known.local_tokens
        elif self._turns.wait_s(name) - self._backlog_s() <= plan.saved_s:
            known.waits_for = plan
            self._turns.wait(name, plan.disk_tokens)
            return None
        self._turns.leave(name)
        return plan.tokens_in_memory - known.local_tokens

    def _backlog_s(self) -> float:
        """How long the scheduled tokens take to be computed."""
        if self._backlog_tokens is None:
            requests = self._requests.values()
            self._backlog_tokens = sum(known.tokens_to_compute() for known in requests)
        return self._prices.compute_s(self._backlog_tokens) or 0.0

    def _shortened(self, known: KnownRequest, first: int, limit: int) -> int:
        """The longest prefix of at most `limit` tokens of which all is known to be there."""

        def look_up(index: int, begin: int, end: int) -> tuple[int, bool]:
            keys = known.keys[index][begin:end]
            hits = next((i for i, key in enumerate(keys) if not self._lookups.is_hit(key)), len(keys))
            return hits, False

        found = longest_prefix(self._groups, first, limit, look_up)
        assert found is not None
        return found

    def cut(self, known: KnownRequest, first: int, tokens: int, canary: CanarySampler) -> int | None:
        """A hit without its last blocks, if it is sampled and memory has these: what a disk has is
        not compared. Windows and states may make it shorter; None: ask again."""
        if known.cut_blocks is None:
            known.cut_blocks = canary.draw()
        if known.cut_blocks == 0:
            return tokens
        unit, end = prefix_unit(self._groups), first + tokens
        limit = max(first, end - known.cut_blocks * unit)
        cut = self._longest_prefix(known, first, limit)
        if cut is None:
            return None
        if cut < end - LAST_BLOCKS * unit:
            return tokens
        for keys, group in zip(known.keys, self._groups):
            begin = cut if group.rule is HitRule.ALL else group.first_needed(cut) * group.block_tokens
            blocks = keys[begin // group.block_tokens : end // group.block_tokens]
            if any(self._lookups.are_on_disk(blocks)):
                return tokens
        if not known.is_canary:
            known.is_canary = True
            canary.cut(end - cut)
        return cut - first

    def _longest_prefix(self, known: KnownRequest, first: int, limit: int) -> int | None:
        """Returns the longest prefix of at most `limit` tokens that the daemon can restore; None: ask
        again."""

        def look_up(index: int, begin: int, end: int) -> tuple[int, bool]:
            return self._lookups.look_up_run(known.keys[index][begin:end], known.request.request_id)

        found = longest_prefix(self._groups, first, limit, look_up)
        while found is None and self._wait_for_answer():
            found = longest_prefix(self._groups, first, limit, look_up)
        return found

    def _wait_for_answer(self) -> bool:
        """Whether one came. A daemon that does not answer is waited for once by each request, since
        only questions that have just come up are waited for."""
        if not self._lookups.has_unasked():
            return False
        self.arrivals.ask(self._keys_to_ask)
        if len(self._requests) == 1:
            return self._lookups.wait(LONE_WAIT_S)
        if self._step_wait_s <= 0.0:
            return False
        began = self._clock()
        answered = self._lookups.wait(self._step_wait_s)
        self._step_wait_s -= self._clock() - began
        return answered

    def _keys_to_ask(self, request: Any) -> Iterable[Sequence[bytes]]:
        """Keys that vLLM's own cache probably lacks: prefixes leave it from their ends on."""
        if reads_nothing(request):
            return
        known = self._known_of(request)
        pool = self._manager.block_pool
        for index, group in enumerate(self._groups):
            if group.rule is not HitRule.ALL or known.salt is None:
                continue

            def is_lacking(one: bytes, number: int = group.number) -> bool:
                return pool.get_cached_block(one, [number]) is None

            hashes = group.hashes(request.block_hashes, 0, len(known.keys[index]))
            yield known.keys[index][bisect.bisect_left(hashes, True, key=is_lacking) :]

    def lacking(self, group: CacheGroup, known: KnownRequest, index: int) -> Sequence[bytes]:
        """The request's keys from the first on that vLLM's own cache has not."""
        pool, keys = self._manager.block_pool, known.keys[index]
        for position, one in enumerate(group.hashes(known.request.block_hashes, 0, len(keys))):
            if pool.get_cached_block(one, [group.number]) is None:
                return keys[position:]
        return ()
