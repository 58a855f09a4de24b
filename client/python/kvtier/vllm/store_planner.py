# SPDX-License-Identifier: Apache-2.0
"""Which blocks are stored, in the scheduler.

A block that a step completes is pinned when that step is planned, by vLLM's own reference count. It
is stored with the next step, when it has been computed, and unpinned when all workers have said
that its store has ended. Meanwhile vLLM may finish or preempt the request, or drop the block from a
sliding window, without the block being written anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .cache_groups import CacheGroup, prefix_unit
from .kept_cache import KeptCacheScheduler
from .known_request import KnownRequest
from .rows import keys_of
from .step_plan import BlockList, Run, StepPlan, runs_of
from .stores import LATE_S, MOST_BLOCKS, PATIENCE_S, Stores
from .token_ids import TokenTeller
from .wishes import WishTeller

#: A step of fewer tokens begins the stores of about so many blocks. To begin those of a burst of prompts
#: takes longer than its kernels.
SHORT_STEP_TOKENS, SHORT_STEP_STORES = 1024, 256


class StorePlanner:
    """Belongs to the scheduler's thread. tokens, wishes: as SchedulerSide's."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        stores: Stores,
        tokens: TokenTeller | None,
        wishes: WishTeller | None,
    ) -> None:
        self._groups = groups
        self._stores = stores
        self._tokens = tokens
        self.wishes = wishes
        self._kept: KeptCacheScheduler | None = None
        self._manager: Any = None
        self._with_pins: dict[int, KnownRequest] = {}  # some have ended
        # Blocks that were not stored, and requests whose wishes were not told, while it seemed to hang.
        self.late_blocks = self.late_wishes = 0

    def bind(self, manager: Any, kept: KeptCacheScheduler | None) -> None:
        """As SchedulerSide.bind. kept: as SchedulerSide's."""
        self._manager, self._kept = manager, kept
        self._stores.bind(manager.block_pool.num_gpu_blocks)

    def requests(self) -> list[KnownRequest]:
        """Returns requests that have pinned blocks."""
        return list(self._with_pins.values())

    def plan_step(self, plan: StepPlan, step_tokens: int, lacks_blocks: bool) -> None:
        """Stores of blocks that the steps before have computed, in a step of so many tokens. lacks_blocks: as
        Stores.step."""
        self._stores.step(lacks_blocks)
        for known in self.requests():
            has_room = step_tokens >= SHORT_STEP_TOKENS or plan.stored_blocks() < SHORT_STEP_STORES
            is_short = has_room and self._stores.are_short(self._manager.block_pool)
            self._store(plan, known, has_room * self._stores.room(), is_short)
            known.is_freed = known.has_ended

    def finished(self, plan: StepPlan, known: KnownRequest) -> None:
        """The request has ended; vLLM frees its blocks, but for those that are pinned."""
        known.has_ended = True
        self._store(plan, known, self._stores.room())

    def stored(self, workers: Mapping[int, int]) -> None:
        """By the numbers of stores, how many workers have ended them since the last call."""
        for number, blocks in self._stores.end(workers).items():
            self._unpin(blocks)
            if self.wishes is not None:
                self.wishes.stored(number)

    def turn(self, plan: StepPlan) -> None:
        """The engine has other weights: the plan is not carried out any more."""
        if self.wishes is not None:
            self.wishes.turn()
        for store in plan.stores:
            self._unpin(self._stores.take(store.number))

    def has_work(self) -> bool:
        """Whether the engine must go on stepping although it has no request."""
        has_pins = any(one.may_store(self._groups) for one in self._with_pins.values())
        return has_pins or self._stores.are_awaited()

    def frees_blocks_soon(self) -> bool:
        """Whether blocks are pinned that will be free in a moment."""
        return self._stores.end_soon()

    def let_go(self, known: KnownRequest) -> None:
        """Stores none of its blocks that are pinned, and frees those that it no longer uses."""
        for run in known.pinned:
            self._unpin(run.blocks)
        known.pinned = []
        self._with_pins.pop(id(known), None)

    def pin(self, known: KnownRequest, scheduled_tokens: int) -> None:
        """Keeps the blocks that this step completes."""
        computed = known.request.num_computed_tokens
        if known.begins_at is not None and computed > known.begins_at:
            # vLLM tells connectors no part of a block that it has, and nothing of what another one loads while the
            # step is computed: that may fail when the next step, which stores the blocks, has been planned.
            is_loading = computed - known.begins_at >= prefix_unit(self._groups)
            known.is_mixed = known.is_mixed or known.is_own_other or is_loading
        known.begins_at = None
        if known.is_mixed or known.salt is None:
            return
        table, is_late = None, self._stores.are_late()
        for index, group in enumerate(self._groups):
            first = computed // group.block_tokens
            last = (computed + scheduled_tokens) // group.block_tokens
            if first == last:
                continue
            if table is None:
                table = self._manager.get_blocks(known.request.request_id).blocks
            for run in runs_of(index, first, table[group.number][first:last]):
                if is_late:
                    self.late_blocks += len(run.blocks)
                    continue
                self._manager.block_pool.touch(run.blocks)
                known.pinned.append(run)
                self._with_pins[id(known)] = known

    def _store(
        self, plan: StepPlan, known: KnownRequest, room: int, is_short: bool = False
    ) -> None:
        """Plans stores of so many pinned blocks that have been computed; the others wait, or are let go, as
        are those that pins alone hold where vLLM's pool is short. Blocks that have not been are let go: the
        request was preempted, or drafted tokens were rejected."""
        kept, are_late = [], self._stores.are_late(PATIENCE_S if known.has_ended else LATE_S)
        for run in known.pinned:
            computed, ready = known.done(self._groups, run)
            stored = min(ready, room)
            unused = ready if are_late else known.unused(self._groups, run) if is_short else 0
            waits = max(stored, min(ready, unused))
            room -= stored
            self.late_blocks += waits - stored
            self._unpin(run.blocks[stored:waits] + run.blocks[computed:])
            if run.blocks[waits:computed]:
                kept.append(Run(run.index, run.first + waits, run.blocks[waits:computed]))
            for first in range(0, stored, MOST_BLOCKS):
                part = run.blocks[first : min(first + MOST_BLOCKS, stored)]
                self._store_run(plan, known, Run(run.index, run.first + first, part))
        known.pinned = kept
        if not kept:
            self._with_pins.pop(id(known), None)
            if known.has_ended:
                self._tell_wishes(known)

    def _store_run(self, plan: StepPlan, known: KnownRequest, run: Run) -> None:
        request = known.request
        group, first, last = self._groups[run.index], run.first, run.first + len(run.blocks)
        blocks, depths = run.blocks, list(range(first, last))
        hashes = known.hashes(group, first, last)
        before = known.hashes(group, first - 1, first) if first > 0 else [None]
        parents: list[bytes | None] = [*before, *hashes[:-1]]
        if group.is_state:
            # A state is that of the block's end only where vLLM says so.
            keys = keys_of(group.hashes(request.block_hashes, first, last), group.number)
            sound = [block.block_hash == key for block, key in zip(blocks, keys)]
            self._unpin(block for block, is_sound in zip(blocks, sound) if not is_sound)
            columns = (blocks, depths, hashes, parents)
            blocks, depths, hashes, parents = (list(itertools.compress(one, sound)) for one in columns)
            if not blocks:
                return
        store = self._store_of_step(plan, run.index, known, len(blocks))
        if self._tokens is not None:
            self._tokens.tell(run.index, group.block_tokens, request, depths, hashes)
        if known.wishes.retention is not None:
            first = len(store.blocks)
            positions = range(first, first + len(blocks))
            store.retentions.update(dict.fromkeys(positions, known.wishes.retention))
        self._stores.add(store.number, blocks)
        store.blocks += [block.block_id for block in blocks]
        store.hashes += hashes
        store.parents += parents
        store.depths += depths
        if self._kept is not None and not known.salt:
            # A table has vLLM's hashes, by which an adapter's tensors are not told apart.
            self._kept.computed(run.index, blocks, hashes)

    def _store_of_step(self, plan: StepPlan, index: int, known: KnownRequest, blocks: int) -> BlockList:
        """One of the step's, with room for so many more: one transfer costs less than many."""
        compare, adapter = known.is_canary, known.adapter
        store = plan.store_of(index, compare, adapter, MOST_BLOCKS - blocks)
        if store is None:
            number = self._stores.begin()
            store = BlockList("", index, [], [], number=number, compare=compare, adapter=adapter)
            plan.stores.append(store)
        return store

    def _unpin(self, blocks: Iterable[Any]) -> None:
        self._manager.block_pool.free_blocks(blocks)

    def _tell_wishes(self, known: KnownRequest) -> None:
        if self.wishes is None or not known.wishes or known.is_mixed or known.salt is None:
            return
        request, hashes, prompt_blocks = known.request, [], []
        for group in self._groups:
            full = min(len(request.block_hashes) // group.hashes_per_block,
                       request.num_computed_tokens // group.block_tokens)
            hashes.append(known.hashes(group, 0, full))
            prompt_blocks.append(min(full, request.num_prompt_tokens // group.block_tokens))
        if self._stores.are_late():
            self.late_wishes += 1  # they would wait for stores that do not end
            return
        self.wishes.ended(known.wishes, hashes, prompt_blocks, self._stores.numbers())
